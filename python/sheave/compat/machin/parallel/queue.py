"""Queues between processes.

    queue = SimpleQueue()
    process = Process(target=queue.put, args=(7,), ctx=get_context("spawn"))
    process.start()
    queue.get(timeout=5.0)

What differs from machin, on purpose:

- They stand on `sheave.pool.Queue`: no pipe and no lock. A process that is killed in the middle of something leaves
  nothing locked and nothing half written, and what it had put stays.
- `put` waits for nobody: what was put is in the queue, at once.
- A timeout counts all that is waited for. What is raised after it is `multiprocessing.TimeoutError`, and `queue.Empty`
  too.
- All are of the process that has made them, and end with it: then those who wait are told so by `sheave.PeerLost`. They
  go to processes that are spawned, whenever these are given them, and not to forked ones; `ctx` is taken, and means
  nothing.
- After `close` in that process what is there can be taken still; then `get`, as `put` at once, raises `sheave.Closed`.
- The quick methods are the others: there is no lock to save. Those of a `SimpleP2PQueue` may be used by any number of
  processes, and a `MultiP2PQueue` is fair: it begins behind the queue that it has taken from last.
- Objects travel as those of `sheave.pool` do: lambdas and local functions too. Arrays of numpy are copied, by shared
  memory. With `copy_tensor` tensors are as well, and without it those on the CPU move into shared memory and are the
  same ones for whoever takes them (`sheave.compat.machin.parallel.pickle`).
"""

import sys
import time
from multiprocessing import TimeoutError
from multiprocessing.connection import Connection
from typing import Any

import sheave.pool
from sheave.compat.machin.parallel.pickle import dumps, loads

__all__ = ["ConnectionWrapper", "MultiP2PQueue", "SimpleP2PQueue", "SimpleQueue", "TimeoutError"]

#: Seconds that one of several queues is waited for before the next one is looked into.
_TURN_S = 0.001


class _Late(sheave.pool.Empty, TimeoutError):
    """Nothing has come in time."""


class _Shared:
    """An object whose tensors are not copied: its pickle is opened as the object itself."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> Any:
        return loads, (self.data,)


class ConnectionWrapper:
    """A connection of multiprocessing whose reads may have a timeout. It has all else that the connection has."""

    def __init__(self, conn: "Connection") -> None:
        self.conn = conn

    def send(self, obj: Any) -> None:
        """Send an object, with its tensors."""
        self.send_bytes(dumps(obj))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes."""
        self.conn.send_bytes(data)

    def recv(self, timeout: float | None = None) -> Any:
        """Receive an object; as `recv_bytes` in all else."""
        return loads(self.recv_bytes(timeout))

    def recv_bytes(self, timeout: float | None = None) -> bytes:
        """Receive bytes. Raises TimeoutError if none have come after `timeout` seconds."""
        if not self.conn.poll(timeout):
            raise TimeoutError(f"nothing has come after {timeout} s")
        return self.conn.recv_bytes()

    def __getattr__(self, name: str) -> Any:
        if name == "conn":
            # It is being made of a pickle.
            raise AttributeError(name)
        return getattr(self.conn, name)


class SimpleQueue:
    """A queue that any process puts to, and takes from. `ctx` is taken and not used."""

    def __init__(self, *, ctx: Any = None, copy_tensor: bool = False) -> None:
        self._queue: sheave.pool.Queue[Any] = sheave.pool.Queue()
        self._copy_tensor = copy_tensor

    def empty(self) -> bool:
        """Whether there was nothing in this moment."""
        return self._queue.empty()

    def put(self, obj: Any) -> None:
        """Put an object."""
        if not self._copy_tensor and "torch" in sys.modules:
            obj = _Shared(dumps(obj, copy_tensor=False))
        self._queue.put(obj)

    def get(self, timeout: float | None = None) -> Any:
        """Take an object. Raises TimeoutError if none has come after `timeout` seconds."""
        try:
            return self._queue.get(timeout=timeout)
        except sheave.pool.Empty as error:
            late = _Late(str(error))
        raise late

    def quick_put(self, obj: Any) -> None:
        """Put an object, as `put` does."""
        self.put(obj)

    def quick_get(self, timeout: float | None = None) -> Any:
        """Take an object, as `get` does."""
        return self.get(timeout)

    def close(self) -> None:
        """In the process that has made it: take nothing more. In another one: use it there no more."""
        self._queue.close()


class SimpleP2PQueue(SimpleQueue):
    """A queue from one process to another."""

    def __init__(self, *, copy_tensor: bool = False) -> None:
        super().__init__(copy_tensor=copy_tensor)


class MultiP2PQueue:
    """Several queues, as one: what is put goes to one after the other, and what is taken comes from one after the
    other that has something. Each is for one process at the other side, which gets it by `get_sub_queue`."""

    def __init__(self, queue_num: int, *, copy_tensor: bool = False) -> None:
        if queue_num < 1:
            raise ValueError(f"a queue of {queue_num} queues; expected 1 at least")
        self._queues = [SimpleP2PQueue(copy_tensor=copy_tensor) for _ in range(queue_num)]
        self._put_to = self._take_from = 0

    def empty(self) -> bool:
        """Whether there was nothing in any of them."""
        return all(queue.empty() for queue in self._queues)

    def put(self, obj: Any) -> None:
        """Put an object to the next queue."""
        queue = self._queues[self._put_to % len(self._queues)]
        self._put_to += 1
        queue.put(obj)

    def get(self, timeout: float | None = None) -> Any:
        """Take an object from the next queue that has one. Raises TimeoutError if none has after `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        is_first = True
        while True:
            for _ in self._queues:
                queue = self._queues[self._take_from % len(self._queues)]
                self._take_from += 1
                try:
                    return queue.get(0.0 if is_first else _TURN_S)
                except TimeoutError:
                    continue
            is_first = False
            if until is not None and time.monotonic() >= until:
                raise _Late(f"nothing has come after {timeout} s")

    def quick_put(self, obj: Any) -> None:
        """Put an object, as `put` does."""
        self.put(obj)

    def quick_get(self, timeout: float | None = None) -> Any:
        """Take an object, as `get` does."""
        return self.get(timeout)

    def get_sub_queue(self, index: int) -> SimpleP2PQueue:
        """The queue of this number."""
        return self._queues[index]

    def close(self) -> None:
        """Close all of them."""
        for queue in self._queues:
            queue.close()
