"""The worker of a pool that a process, or a thread, is."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from sheave._core import Closed

__all__ = ["Worker", "context", "worker"]


class Worker(NamedTuple):
    """The worker of a pool that this process is."""

    slot: int
    """Its number among those of its pool; the one that replaces it has it too."""
    context: Any
    """What the pool has given to its slot."""


_own: Worker | None = None
"""The worker that this process is."""

_place = threading.local()
"""The worker that a thread is, and its pool."""


def worker() -> Worker:
    """Return the worker of a pool that this process, or this thread, is.

    >>> with sheave.pool.Pool(1, contexts=["first"]) as pool:
    ...     pool.apply(sheave.pool.worker)
    Worker(slot=0, context='first')

    Raises Closed where there is none.
    """
    found = getattr(_place, "worker", None) or _own
    if found is None:
        raise Closed("this process is no worker of a pool")
    return found


def context() -> Any:
    """Return what the pool has given to the slot of this worker; as `worker` in all else."""
    return worker().context
