"""Queues between `PusH` and node event loops.

What differs from PusH, on purpose:

- What is put into the queue that a node event loop reads is handled there and then, and is not kept in it besides.
- A `MultiPQueue` stands on `sheave.pool.Queue`: there is no manager process. `manager` is taken, and means nothing.
- With ``push.strict = False`` a `SinglePQueue` gives first what was put first, and is `queue.Empty` when it is.
"""

import queue
from typing import Any

import sheave.pool
from sheave import Mesh
from sheave.compat import push

__all__ = ["MultiPQueue", "PQueue", "SinglePQueue"]


class PQueue:
    """A queue of messages."""

    def put(self, msg: Any) -> None:
        """Put a message."""
        raise NotImplementedError(f"{type(self).__name__} takes no messages")

    def get(self) -> Any:
        """Take a message."""
        raise NotImplementedError(f"{type(self).__name__} gives no messages")


class SinglePQueue(PQueue):
    """A queue within a thread: a message to a node event loop is handled when it is put."""

    def __init__(self) -> None:
        self._queue: list[Any] = []
        self._nel: Any = None

    def put(self, msg: Any) -> None:
        """Put a message. If this is the queue that the node event loop reads, that has handled it when this returns."""
        is_read = self._nel is not None and getattr(self._nel, "in_queue", self) is self
        if not is_read or getattr(self._nel, "in_queue", None) is None:
            self._queue.append(msg)
        if is_read:
            self._nel._dispatch(msg)

    def get(self) -> Any:
        """Take the message that was put last. Never waits; raises IndexError when there is none."""
        if push.strict:
            return self._queue.pop()
        if not self._queue:
            raise queue.Empty("there is no message in the queue")
        return self._queue.pop(0)


class MultiPQueue(PQueue):
    """A queue between processes."""

    def __init__(self, manager: Any = None, *, mesh: Mesh | None = None) -> None:
        self._queue: sheave.pool.Queue[Any] = sheave.pool.Queue(mesh=mesh)

    def put(self, msg: Any) -> None:
        """Put a message. Does not wait. Raises PeerLost once the process that has made the queue is gone."""
        self._queue.put(msg)

    def get(self, timeout: float | None = None) -> Any:
        """Take the message that was put first, and wait for one, for `timeout` seconds at most.

        Raises `queue.Empty` if none came, and PeerLost once the process that has made the queue is gone.
        """
        return self._queue.get(timeout=timeout)

    def close(self) -> None:
        """Take no more messages. Idempotent."""
        self._queue.close()
