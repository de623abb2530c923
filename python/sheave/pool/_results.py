"""What is on its way: one result, those of a map, and those that are read one by one."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from sheave._core import Closed, DeadlineExceeded

T = TypeVar("T")

TimeoutError = multiprocessing.TimeoutError
"""Raised where a result is not there in time, as by pools of the standard library."""

Callback = Callable[[Any], Any]


class Operation(Protocol):
    """A task on its way, as `sheave.Work` is."""

    def done(self) -> bool: ...

    def exception(self, timeout: float | None = None) -> BaseException | None: ...

    def result(self, timeout: float | None = None) -> Any: ...

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...


class Job(Protocol):
    """Tasks on their way together."""

    @property
    def left(self) -> int: ...

    def wait_next(self, timeout: float | None) -> bool: ...

    def wait_all(self, timeout: float | None) -> bool: ...

    def all(self) -> Operation: ...

    def take(self) -> tuple[Any] | None: ...

    def take_all(self) -> tuple[list[Any], BaseException | None]: ...


def has_ended(work: Operation, timeout: float | None) -> bool:
    """Wait until it has ended, for `timeout` seconds at most; whether it has."""
    try:
        work.exception(timeout)
    except DeadlineExceeded:
        return False
    return True


class AsyncResult(Generic[T]):
    """The result of `apply_async`, on its way. `work` is the operation: in asyncio, await that."""

    def __init__(self, work: Any, callback: Callback | None = None, error_callback: Callback | None = None) -> None:
        self.work = work
        if callback is not None or error_callback is not None:
            work.add_done_callback(lambda work: tell(work.exception(), work.result, callback, error_callback))

    def ready(self) -> bool:
        """Whether the task has ended."""
        done: bool = self.work.done()
        return done

    def successful(self) -> bool:
        """Whether the task has ended without an exception.

        Raises ValueError if it has not ended.
        """
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self.work.exception() is None

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the task has ended, for `timeout` seconds at most."""
        has_ended(self.work, timeout)

    def get(self, timeout: float | None = None) -> T:
        """Return the result, or raise what the task has raised.

        Raises TimeoutError if it has not ended after `timeout` seconds.
        """
        if not has_ended(self.work, timeout):
            raise TimeoutError(f"the task has not ended after {timeout} s")
        result: T = self.work.result()
        return result


def tell(
    error: BaseException | None,
    result: Callable[[], Any],
    callback: Callback | None,
    error_callback: Callback | None,
) -> None:
    """Tell what has come of something."""
    if error is None:
        if callback is not None:
            callback(result())
    elif error_callback is not None:
        error_callback(error)


class MapResult(AsyncResult[list[T]]):
    """The results of `map_async` and `starmap_async`, on their way: a list when all tasks have ended.

    If tasks raise, the first that does in their order is what `get` raises.
    """

    def __init__(
        self, job: Job, is_chunked: bool, callback: Callback | None, error_callback: Callback | None
    ) -> None:
        self._job = job
        self._is_chunked = is_chunked
        self._taken: tuple[list[T], BaseException | None] | None = None
        self._turn = threading.Lock()
        self.work = job.all()
        if callback is not None or error_callback is not None:
            self.work.add_done_callback(
                lambda _: tell(self._outcome()[1], lambda: self._outcome()[0], callback, error_callback)
            )

    def _outcome(self) -> tuple[list[T], BaseException | None]:
        with self._turn:
            if self._taken is None:
                results, error = self._job.take_all()
                if self._is_chunked:
                    results = [result for chunk in results for result in chunk]
                self._taken = results, error
            return self._taken

    def successful(self) -> bool:
        """Whether all tasks have ended without an exception.

        Raises ValueError if they have not ended.
        """
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._outcome()[1] is None

    def get(self, timeout: float | None = None) -> list[T]:
        """Return the results in the order of the tasks, or raise what the first of those has raised that did.

        Raises TimeoutError if not all have ended after `timeout` seconds.
        """
        if not has_ended(self.work, timeout):
            raise TimeoutError(f"not all tasks have ended after {timeout} s")
        results, error = self._outcome()
        if error is not None:
            raise error
        return results


class IMapIterator(Iterator[T]):
    """The results of `imap` and `imap_unordered`, one by one. It has a length if what it maps has one.

    Tasks are submitted as results are read, some ahead of that: by the thread that reads them. May be read by several.
    """

    def __init__(
        self,
        job: Job,
        submit: Callable[[Any], None],
        items: Iterator[Any],
        ahead: int | None,
        is_chunked: bool,
        length: int | None,
        cancel: Callable[[], None],
    ) -> None:
        self._job = job
        self._submit = submit
        self._items: Iterator[Any] | None = items
        self._ahead = ahead
        self._is_chunked = is_chunked
        self._length = length
        self._cancel = cancel
        self._ready: deque[T] = deque()
        self._error: BaseException | None = None
        self._turn = threading.Lock()
        self._fill()

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("what is mapped has no length")
        return self._length

    def __iter__(self) -> IMapIterator[T]:
        return self

    def __next__(self) -> T:
        return self.next()

    def next(self, timeout: float | None = None) -> T:
        """Return the next result, or raise what its task has raised; the iteration may go on after that.

        Raises TimeoutError if it is not there after `timeout` seconds; StopIteration behind the last one; and what the
        iterable raises, behind the results of what it gave before.
        """
        until = None if timeout is None else time.monotonic() + timeout
        # Another thread may be in it that waits for longer.
        if not self._turn.acquire(timeout=-1 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)):
            raise TimeoutError(f"no task has ended after {timeout} s")
        try:
            while not self._ready:
                self._fill()
                taken = self._job.take()
                if taken is not None:
                    (result,) = taken
                    if not self._is_chunked:
                        return result  # type: ignore[no-any-return]
                    self._ready.extend(result)
                elif self._job.left == 0:
                    error, self._error = self._error, None
                    if error is not None:
                        raise error
                    if self._items is None:
                        raise StopIteration
                elif not self._job.wait_next(None if until is None else max(until - time.monotonic(), 0.0)):
                    raise TimeoutError(f"no task has ended after {timeout} s")
            return self._ready.popleft()
        finally:
            self._turn.release()

    def _fill(self) -> None:
        while self._items is not None and (self._ahead is None or self._job.left < self._ahead):
            try:
                item = next(self._items)
            except StopIteration:
                self._items = None
            except BaseException as error:
                self._items, self._error = None, error
            else:
                self._submit(item)

    def __del__(self) -> None:
        try:
            self._cancel()
        except (AttributeError, Closed):
            # It was never made, or there is nothing to cancel any more.
            pass
