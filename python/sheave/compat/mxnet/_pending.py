"""Operations in flight, and who waits for them.

MXNet enqueues every operation and waits when somebody reads an array. Here only the store's operations take time: a
pull hangs a `Pending` on its target, and whatever touches the target's memory waits for it first. Everything else runs
at once.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from sheave.compat.mxnet.base import translated


class Pending:
    """Works of the store or other pendings, and what is to be done with their outcome. It may be waited for by any
    thread and any number of times, and raises the same error each time."""

    def __init__(
        self, works: Iterable[Any], finish: Callable[[], None] | None = None, after: "Iterable[Pending]" = ()
    ) -> None:
        """`finish` is called once the works have ended well, and these others have ended in whichever way."""
        self._works = list(works)
        self._finish = finish
        self._after = list(after)
        self._error: BaseException | None = None
        self._lock = threading.RLock()

    def done(self) -> bool:
        """Whether waiting would not block."""
        return all(work.done() for work in (*self._works, *self._after))

    def ended_well(self) -> bool:
        """Whether it has ended without an error."""
        if self.done():
            with contextlib.suppress(Exception):
                self.result()
                return True
        return False

    def over(self) -> bool:
        """Whether it has been waited for."""
        return not self._works and self._finish is None

    def result(self) -> None:
        """Blocks until the works have ended, and raises `MXNetError` if one failed. Ctrl-C interrupts it and changes
        nothing."""
        with self._lock:
            while self._works and self._error is None:
                try:
                    with translated():
                        self._works[0].result()
                except Exception as error:
                    self._error = error
                else:
                    self._works.pop(0)
            self._works.clear()
            if self._error is not None:
                self._finish = None
                raise self._error
            for other in self._after:
                # What has failed is told to those who read what it was for.
                with contextlib.suppress(Exception):
                    other.result()
            self._after.clear()
            finish, self._finish = self._finish, None
            if finish is not None:
                try:
                    finish()
                except Exception as error:
                    self._error = error
                    raise
                except BaseException:
                    # An interrupt changes nothing.
                    self._finish = finish
                    raise


class _Flying:
    """All operations that nobody has waited for yet."""

    def __init__(self) -> None:
        self._queue: deque[Pending] = deque()
        self._failed: Exception | None = None
        self._lock = threading.Lock()

    def add(self, pending: Pending) -> None:
        """Remembers it, and forgets what has ended, so that memory does not grow with the number of operations."""
        with self._lock:
            while self._queue and (self._queue[0].over() or self._queue[0].done()):
                self._end(self._queue.popleft())
            self._queue.append(pending)

    def wait(self) -> None:
        """Waits for all of them and raises the first error that nobody has seen."""
        while self._queue:
            # Others may add to it meanwhile; an interrupted wait leaves the rest.
            pending = self._queue[0]
            self._end(pending)
            with self._lock, contextlib.suppress(ValueError):
                self._queue.remove(pending)
        error, self._failed = self._failed, None
        if error is not None:
            raise error

    def _end(self, pending: Pending) -> None:
        try:
            if not pending.over():
                pending.result()
        except Exception as error:
            self._failed = self._failed or error


_flying = _Flying()


def track(pending: Pending) -> None:
    """Remembers it for `waitall`."""
    _flying.add(pending)


def waitall() -> None:
    """Blocks until every operation of this process has ended, and raises the first error that nobody has seen.

    >>> import sheave.compat.mxnet as mx
    >>> mx.nd.waitall()
    """
    _flying.wait()


class Storage:
    """What arrays that share memory wait for before they touch it."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: list[Pending] = []

    def settle(self) -> None:
        """Waits for all of it, in the order in which it came. What fails is reported once."""
        while self.pending:
            pending = self.pending[0]
            try:
                pending.result()
            finally:
                if pending.over():
                    with contextlib.suppress(ValueError):
                        self.pending.remove(pending)
