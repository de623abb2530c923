"""sheave's errors as those of a backend of torch: each is a `torch.distributed.DistBackendError`, so a RuntimeError.

Code that catches RuntimeError, as torch's own and most code above it does, catches them so, and code that knows sheave
catches what it knows: a `PeerLost` is a `sheave.PeerLost`, a ConnectionError and a RuntimeError at once.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

import sheave

__all__ = ["Cancelled", "Closed", "DeadlineExceeded", "InvalidArgument", "Mismatch", "PeerLost", "Unsupported"]
__all__ += ["torch_errors"]


class PeerLost(sheave.PeerLost, dist.DistBackendError):
    """A rank that the operation needs is gone."""


class DeadlineExceeded(sheave.DeadlineExceeded, dist.DistBackendError):
    """The timeout of the group or operation has passed; the text names who is missing."""


class Mismatch(sheave.Mismatch, dist.DistBackendError):
    """Ranks disagree about an operation; the text shows both sides."""


class InvalidArgument(sheave.InvalidArgument, dist.DistBackendError):
    """What was asked for cannot be done; nothing has begun."""


class Unsupported(sheave.Unsupported, dist.DistBackendError):
    """A dtype, operator or layout that there is no way for; nothing has begun."""


class Closed(sheave.Closed, dist.DistBackendError):
    """The group was shut down."""


class Cancelled(sheave.Cancelled, dist.DistBackendError):
    """The operation was cancelled, as by `abort` of its group."""


_KNOWN: dict[type, type] = {
    known.__mro__[1]: known
    for known in (PeerLost, DeadlineExceeded, Mismatch, InvalidArgument, Unsupported, Closed, Cancelled)
}


def _counterpart(kind: type[sheave.SheaveError]) -> type:
    """Return the class of torch's backends for a class of sheave's."""
    if issubclass(kind, dist.DistBackendError):
        return kind
    made = _KNOWN.get(kind)
    if made is None:
        made = _KNOWN[kind] = type(kind.__name__, (kind, dist.DistBackendError), {"__doc__": kind.__doc__})
    return made


class torch_errors:  # noqa: N801
    """Raise what sheave raises inside as an error of a backend of torch, with the same text, fields and cause.

    Advice about groups is what users of torch can do.
    """

    # Every operation enters one: a generator as a context costs three times as much.
    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, sheave.SheaveError):
            raise translated(error) from error.__cause__


_ADVICE = {
    "shrink the group to go on without it": "make a process group of the others to go on without it",
    "make a group with another label": "make another process group",
}
"""What sheave advises to do with its groups, and the same with those of torch."""


def translated(error: sheave.SheaveError) -> BaseException:
    """Return the error as one of a backend of torch, with advice for its users."""
    counterpart = _counterpart(type(error))
    if counterpart is type(error):
        return error
    raised: BaseException = counterpart(*map(_advised, error.args))
    raised.__dict__.update({name: _advised(value) for name, value in error.__dict__.items()})
    return raised


def _advised(value: Any) -> Any:
    if isinstance(value, str):
        for ours, theirs in _ADVICE.items():
            value = value.replace(ours, theirs)
    return value
