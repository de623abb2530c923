"""Files that change as a whole or not at all."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

__all__ = ["replaced"]


@contextmanager
def replaced(fname: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Opens a new file beside the one that `fname` leads to, and gives it that name, and the old one's permissions,
    when the block has ended and the disk has all of it. After an error, or a crash at any moment, the old file is what
    it was. The new one's name cannot be foretold, and no link is followed there. What is no regular file, such as a
    pipe, is written as it is.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replaced(f"{folder}/states") as file:
    ...         _ = file.write(b"new")
    ...     open(f"{folder}/states", "rb").read()
    b'new'
    """
    path = os.path.realpath(fname)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and not stat.S_ISREG(mode):
        with open(path, "wb") as file:
            yield file
        return
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name[:100]}.{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    # The name itself is on disk only when the folder is.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
