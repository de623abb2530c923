"""What the other modules of the face, and programs, take from ``mxnet.base``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import sheave

__all__ = [
    "MXNetError",
    "integer_types",
    "mx_real_t",
    "numeric_types",
    "py_str",
    "string_types",
]

string_types = (str,)
numeric_types: tuple[type, ...] = (float, int, np.generic)
integer_types: tuple[type, ...] = (int, np.int32, np.int64)
mx_real_t: Any = np.float32


class MXNetError(RuntimeError):
    """Whatever goes wrong below the face. Its cause is sheave's own error, which names the peer and gives a hint.

    >>> import sheave.compat.mxnet as mx
    >>> try:
    ...     mx.kv.create("local").pull("weight", out=mx.nd.zeros(1))
    ... except mx.MXNetError as error:
    ...     print("weight" in str(error))
    True
    """


def py_str(text: bytes | str) -> str:
    """Text of either kind as `str`."""
    return text.decode("utf-8") if isinstance(text, bytes) else text


@contextmanager
def translated() -> Iterator[None]:
    """Errors of sheave become `MXNetError`."""
    try:
        yield
    except sheave.SheaveError as error:
        raise MXNetError(str(error)) from error


def as_list(value: Any) -> list[Any]:
    """A list or tuple as a list, anything else as a list of it."""
    return list(value) if isinstance(value, list | tuple) else [value]
