"""Stores through which the processes of a job learn where they meet, for `sheave.Mesh(rank=, size=, meet=)`.

Rank 0 listens at any free port and puts its address into the store; the others get it there. So no port is guessed and
nothing is told beforehand but rank and size. A store is whatever has `set(key, value)` and a blocking `get(key)`: a
store of torch's (`TCPStore`, `FileStore`, `HashStore`) is one as it is, and a client of etcd or Redis becomes one in
five lines. Where it has `delete_key(key)` too, rank 0 takes its address back once all have met, and the store can be
used again.

What only one process has to say can go through collective operations that exist already:

    mesh = sheave.Mesh(rank=comm.rank, size=comm.size, meet=sheave.meet.bcast(comm.bcast))  # mpi4py
    mesh = sheave.Mesh(rank=context.partitionId(), size=size, meet=sheave.meet.gather(context.allGather))  # Spark

With `insecure=True` and no `SHEAVE_SECRET` or `SHEAVE_SECRET_FILE` the secret of the job goes through the store too:
whoever can read the store can join the mesh then.

>>> import sheave, threading
>>> class Store:
...     def __init__(self):
...         self.values, self.changed = {}, threading.Condition()
...     def set(self, key, value):
...         with self.changed:
...             self.values[key] = value
...             self.changed.notify_all()
...     def get(self, key):
...         with self.changed:
...             self.changed.wait_for(lambda: key in self.values)
...             return self.values[key]
>>> with sheave.Mesh(rank=0, size=1, meet=Store()) as mesh:
...     mesh.size
1
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

__all__ = ["Store", "bcast", "gather"]


class Store(Protocol):
    """What processes meet through: what one of them sets, the others get."""

    def set(self, key: str, value: bytes, /) -> Any:
        """Set the value of a key, whether it has one or not."""

    def get(self, key: str, /) -> bytes:
        """Return the value of a key; wait until it has one."""


class _Collective:
    """A store of one value, which one collective operation carries. Each process calls it once, on its own thread."""

    def __init__(self, name: str, exchange: Callable[[bytes | None], bytes]) -> None:
        self.name = name
        self._exchange = exchange
        self._value: bytes | None = None

    def set(self, key: str, value: bytes, /) -> None:
        """Take part with the value."""
        self._value = self._exchange(value)

    def get(self, key: str, /) -> bytes:
        """Take part without one, and return that of rank 0."""
        if self._value is None:
            self._value = self._exchange(None)
        return self._value


def bcast(broadcast: Callable[..., Any]) -> Store:
    """Return a store over a broadcast of objects from rank 0, such as that of a communicator of mpi4py.

    `broadcast(value, root=0)` is called once by every process, on the thread that joins, and returns the value of
    rank 0.
    """
    return _Collective("bcast", lambda value: broadcast(value, root=0))


def gather(all_gather: Callable[[str], Sequence[str]]) -> Store:
    """Return a store over a gathering of texts to all, such as `BarrierTaskContext.allGather` of Spark.

    `all_gather(text)` is called once by every process, on the thread that joins, and returns the texts by rank.
    """

    def exchange(value: bytes | None) -> bytes:
        return bytes.fromhex(all_gather("" if value is None else value.hex())[0])

    return _Collective("gather", exchange)


class _Asked:
    """A store whose blocking `get` is asked for a while at a time. What it raises is raised by the next question."""

    def __init__(self, store: Store) -> None:
        for method in ("set", "get"):
            if not callable(getattr(store, method, None)):
                kind = type(store).__name__
                raise TypeError(f"meet is a {kind} without {method}(); expected a store with set() and get()")
        self.name = f"the store ({type(store).__name__})"
        self.is_fresh = isinstance(store, _Collective)
        self._store = store
        self._pending: tuple[threading.Event, list[bytes], list[BaseException]] | None = None

    def set(self, key: str, value: bytes) -> None:
        """Set the value of a key."""
        self._store.set(key, value)

    def get(self, key: str, timeout: float) -> bytes | None:
        """Return the value of a key, or None if there is none after so many seconds."""
        if self.is_fresh:
            return self._store.get(key)
        if self._pending is None:
            pending: tuple[threading.Event, list[bytes], list[BaseException]] = (threading.Event(), [], [])
            self._pending = pending
            # It may block for as long as it likes, and after that nobody waits for it: it must not keep the process.
            name = "sheave-meeting"
            threading.Thread(target=self._fetch, args=(key, *pending), name=name, daemon=True).start()
        ended, values, failures = self._pending
        if not ended.wait(timeout):
            return None
        self._pending = None
        if failures:
            raise failures[0]
        return values[0]

    def _fetch(
        self, key: str, ended: threading.Event, values: list[bytes], failures: list[BaseException]
    ) -> None:
        try:
            values.append(bytes(self._store.get(key)))
        except BaseException as failure:
            failures.append(failure)
        ended.set()

    def remove(self, key: str, value: bytes) -> None:
        """Forget a key, in a store that can."""
        if callable(delete := getattr(self._store, "delete_key", None)):
            delete(key)
