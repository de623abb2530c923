"""Handwritten digits for the examples: the file that `sheave demo` has inside, as numpy arrays.

1,797 images of 8x8 pixels by E. Alpaydin and C. Kaynak (1998), UCI Machine Learning Repository, CC BY 4.0.
`crates/nn/data/README.md` gives the format of the file.
"""

import struct
import zlib
from pathlib import Path

import numpy as np

FILE = Path(__file__).resolve().parents[2] / "crates" / "nn" / "data" / "digits.bin"


def load(path=FILE):
    """Returns (images, labels) to train on and (images, labels) to test with, two thirds and one third.

    Images are float32 of shape (n, 64) from 0 to 1, labels int64 from 0 to 9.
    """
    content = Path(path).read_bytes()
    checksum, count = struct.unpack_from("<II", content, 8)
    if content[:8] != b"SHEAVE8X" or zlib.crc32(content[12:]) != checksum:
        raise ValueError(f"{path} is no file of digits, or a damaged one")
    numbers = np.frombuffer(zlib.decompress(content[16:], wbits=-15), np.uint8)
    labels = numbers[:count].astype(np.int64)
    images = numbers[count:].reshape(count, 64).astype(np.float32) / 16
    held_out = np.arange(count) % 3 == 2
    return (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])
