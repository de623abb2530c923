"""Errors of sheave that are RuntimeErrors too, for faces whose originals raise these. Their text, fields and causes are
sheave's."""

from collections.abc import Iterator
from contextlib import contextmanager

import sheave
from sheave import SheaveError


class AlreadyExists(sheave.AlreadyExists, RuntimeError):
    """As sheave.AlreadyExists."""


class BufferInUse(sheave.BufferInUse, RuntimeError):
    """As sheave.BufferInUse."""


class Cancelled(sheave.Cancelled, RuntimeError):
    """As sheave.Cancelled."""


class DeadlineExceeded(sheave.DeadlineExceeded, RuntimeError):
    """As sheave.DeadlineExceeded."""


class DeclaredDead(sheave.DeclaredDead, RuntimeError):
    """As sheave.DeclaredDead."""


class Interrupted(sheave.Interrupted, RuntimeError):
    """As sheave.Interrupted."""


class InvalidArgument(sheave.InvalidArgument, RuntimeError):
    """As sheave.InvalidArgument."""


class Io(sheave.Io, RuntimeError):
    """As sheave.Io."""


class Mismatch(sheave.Mismatch, RuntimeError):
    """As sheave.Mismatch."""


class NotFound(sheave.NotFound, RuntimeError):
    """As sheave.NotFound."""


class NotPermitted(sheave.NotPermitted, RuntimeError):
    """As sheave.NotPermitted."""


class PeerLost(sheave.PeerLost, RuntimeError):
    """As sheave.PeerLost."""


class Protocol(sheave.Protocol, RuntimeError):
    """As sheave.Protocol."""


class Unauthenticated(sheave.Unauthenticated, RuntimeError):
    """As sheave.Unauthenticated."""


class Unsupported(sheave.Unsupported, RuntimeError):
    """As sheave.Unsupported."""


class WorkerDied(sheave.WorkerDied, PeerLost):
    """As sheave.WorkerDied."""


#: By the class of sheave; those that are not here are RuntimeErrors themselves.
CLASSES: dict[type[SheaveError], type[SheaveError]] = {
    sheave.AlreadyExists: AlreadyExists,
    sheave.BufferInUse: BufferInUse,
    sheave.Cancelled: Cancelled,
    sheave.DeadlineExceeded: DeadlineExceeded,
    sheave.DeclaredDead: DeclaredDead,
    sheave.Interrupted: Interrupted,
    sheave.InvalidArgument: InvalidArgument,
    sheave.Io: Io,
    sheave.Mismatch: Mismatch,
    sheave.NotFound: NotFound,
    sheave.NotPermitted: NotPermitted,
    sheave.PeerLost: PeerLost,
    sheave.Protocol: Protocol,
    sheave.Unauthenticated: Unauthenticated,
    sheave.Unsupported: Unsupported,
    sheave.WorkerDied: WorkerDied,
}


def raised(error: SheaveError) -> SheaveError:
    """The same error as what the face raises: same text, fields, notes and cause."""
    kind = CLASSES.get(type(error))
    if kind is None:
        return error
    made = kind(str(error))
    made.__dict__.update(error.__dict__)
    if error.__cause__ is not None:
        made.__cause__ = error.__cause__
    return made.with_traceback(error.__traceback__)


@contextmanager
def raising() -> Iterator[None]:
    """Errors of sheave leave this as RuntimeErrors."""
    try:
        yield
    except SheaveError as error:
        made = raised(error)
        raise made from made.__cause__


def described(kind: type[SheaveError], op: str, what: str, hint: str) -> SheaveError:
    """An error of the face's own, with the fields that sheave's have."""
    error = kind(f"{op}: {what}; hint: {hint}")
    error.op, error.hint = op, hint
    return error


def invalid(op: str, what: str, hint: str) -> SheaveError:
    """Arguments or variables make no sense."""
    return described(InvalidArgument, op, what, hint)
