"""Exceptions that cross from one process to another.

What differs from machin, on purpose:

- An exception whose constructor takes other things than its arguments comes back as what it is, and so does one that
  holds what cannot be pickled, with its text. One whose class is not known there is a `sheave.Remote` with its text.
"""

import traceback
from types import TracebackType
from typing import Any

import sheave
from sheave import pickling

__all__ = ["ExceptionWithTraceback", "RemoteTraceback"]


class RemoteTraceback(Exception):
    """The traceback of an exception in the process where it was raised: the cause of the one here."""

    def __init__(self, tb: str) -> None:
        super().__init__(tb)
        self.tb = tb

    def __str__(self) -> str:
        return self.tb


class ExceptionWithTraceback:
    """An exception on its way: its pickle is opened as the exception itself, caused by a `RemoteTraceback`."""

    def __init__(self, exc: BaseException, tb: TracebackType | None = None) -> None:
        self.exc = exc
        where = exc.__traceback__ if tb is None else tb
        self.tb = "".join(traceback.format_exception(type(exc), exc, where))

    def __reduce__(self) -> Any:
        summary = "".join(traceback.format_exception_only(type(self.exc), self.exc)).strip()
        return _rebuilt, (pickling.pack_exception(self.exc), summary, f'\n"""\n{self.tb}"""')


def _rebuilt(packed: bytes | None, summary: str, tb: str) -> BaseException:
    error: BaseException | None = None
    if packed is not None:
        try:
            error = pickling.unpack_exception(packed)
        except Exception:
            # Its class is not known here, or takes nothing of what it was.
            pass
    if error is None:
        error = sheave.Remote(summary)
    error.__cause__ = RemoteTraceback(tb)
    return error
