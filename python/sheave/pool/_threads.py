"""`sheave.pool.ThreadPool`: a pool whose workers are threads of this process."""

from __future__ import annotations

import concurrent.futures
import functools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sheave import _core
from sheave._core import Cancelled, Closed, DeadlineExceeded
from sheave.pool._pool import Pool
from sheave.pool._processes import check_callable, counted
from sheave.pool._worker import Worker, _place

T = TypeVar("T")

_AHEAD = 32

class _Task:
    """A task, which one thread runs: a worker, or a worker that waits for it."""

    def __init__(
        self, pool: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.pool = pool
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._call: Callable[[], Any] | None = functools.partial(function, *args, **kwargs)

    def run(self) -> None:
        """Run it, unless somebody has begun with it or it was cancelled."""
        if self._call is None or not _begins(self.future):
            return
        call, self._call = self._call, None
        try:
            result = call()
        except BaseException as error:
            self.future.set_exception(_told(error))
        else:
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Let it fail, unless somebody has begun with it."""
        if _begins(self.future):
            self.future.set_exception(error)

    def done(self) -> bool:
        return self.future.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if timeout is None and _is_worker_of(self.pool):
            # A worker that waits for a task that nobody has begun does it: else all of them might wait so.
            self.run()
        try:
            return self.future.exception(timeout)
        except concurrent.futures.CancelledError:
            return Cancelled("the task was cancelled")
        except concurrent.futures.TimeoutError:
            raise DeadlineExceeded("the task is still running") from None

    def result(self, timeout: float | None = None) -> Any:
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.future.result()

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self.future.add_done_callback(lambda _: callback(self))


def _is_worker_of(pool: Any) -> bool:
    return getattr(_place, "pool", None) is pool


_turn = threading.Lock()


def _begins(future: concurrent.futures.Future[Any]) -> bool:
    with _turn:
        return not future.running() and not future.done() and future.set_running_or_notify_cancel()


def _told(error: BaseException) -> BaseException:
    """What a task has raised, as others get it: what ends programs ends none of those that wait."""
    if isinstance(error, Exception):
        return error
    told = _core.Remote(f"the task raised {type(error).__name__}: {error}")
    told.__cause__ = error
    return told


class _Job:
    """Tasks whose outcomes are taken together."""

    def __init__(self, pool: Any, is_ordered: bool) -> None:
        self._pool = pool
        self._is_ordered = is_ordered
        self._callbacks: list[Callable[[], object]] = []
        self._changed = threading.Condition()
        self._tasks: deque[_Task] = deque()
        self._ended: deque[_Task] = deque()
        self._running = 0

    @property
    def left(self) -> int:
        with self._changed:
            return len(self._tasks) if self._is_ordered else self._running + len(self._ended)

    def add(self, task: _Task) -> None:
        with self._changed:
            self._tasks.append(task)
            self._running += 1
        task.add_done_callback(self._settle)

    def _settle(self, task: _Task) -> None:
        with self._changed:
            self._running -= 1
            if not self._is_ordered:
                self._tasks.remove(task)
                self._ended.append(task)
            self._changed.notify_all()
            callbacks = [] if self._running else self._callbacks
            if callbacks:
                self._callbacks = []
        for callback in callbacks:
            callback()

    def when_ended(self, callback: Callable[[], object]) -> None:
        """Has this called once no task runs any more, by whoever ends the last, or now."""
        with self._changed:
            if self._running:
                self._callbacks.append(callback)
                return
        callback()

    def _next(self) -> _Task | None:
        if not self._is_ordered:
            return self._ended[0] if self._ended else None
        return self._tasks[0] if self._tasks and self._tasks[0].done() else None

    def _help(self, timeout: float | None) -> None:
        # As a wait for one task does; one with a deadline leaves it to others.
        while timeout is None and _is_worker_of(self._pool):
            with self._changed:
                task = next((task for task in self._tasks if not task.future.running() and not task.done()), None)
            if task is None:
                return
            task.run()

    def wait_next(self, timeout: float | None) -> bool:
        self._help(timeout)
        with self._changed:
            return self._changed.wait_for(lambda: self._next() is not None or not self._running, timeout)

    def wait_all(self, timeout: float | None) -> bool:
        self._help(timeout)
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout)

    def all(self) -> _All:
        return _All(self)

    def take(self) -> tuple[Any] | None:
        with self._changed:
            task = self._next()
            if task is None:
                return None
            (self._tasks if self._is_ordered else self._ended).popleft()
        return (task.result(),)

    def take_all(self) -> tuple[list[Any], BaseException | None]:
        results: list[Any] = []
        first: BaseException | None = None
        while True:
            try:
                taken = self.take()
            except BaseException as error:
                first = first or error
            else:
                if taken is None:
                    return results, first
                results.append(taken[0])

    def cancel(self) -> None:
        with self._changed:
            tasks = list(self._tasks)
        for task in tasks:
            task.future.cancel()


class _All:
    """The end of all tasks of a job."""

    def __init__(self, job: _Job) -> None:
        self._job = job

    def done(self) -> bool:
        return self._job.wait_all(0)

    def exception(self, timeout: float | None = None) -> None:
        if not self._job.wait_all(timeout):
            raise DeadlineExceeded("not all tasks have ended")

    def result(self, timeout: float | None = None) -> None:
        self.exception(timeout)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._job.when_ended(lambda: callback(self))


class _Core:
    """Threads, with the methods that a pool of processes has."""

    def __init__(
        self, count: int, initializer: Callable[..., Any] | None, initargs: Sequence[Any], contexts: Sequence[Any]
    ) -> None:
        self._slots = iter(range(count))
        self._begun = threading.Lock()
        self._contexts = contexts
        self._set_up = initializer, tuple(initargs)
        self._threads = concurrent.futures.ThreadPoolExecutor(count, "sheave-pool", self._begin)
        self._tasks: set[_Task] = set()
        self._broken: BaseException | None = None

    def _begin(self) -> None:
        with self._begun:
            slot = next(self._slots)
        _place.pool = self
        _place.worker = Worker(slot, self._contexts[slot])
        initializer, initargs = self._set_up
        if initializer is None:
            return
        try:
            initializer(*initargs)
        except BaseException as error:
            self._break(_told(error))

    def _break(self, error: BaseException) -> None:
        self._broken = self._broken or error
        # First this: a task that is submitted from now on is refused.
        self._threads.shutdown(wait=False, cancel_futures=True)
        for task in list(self._tasks):
            task.fail(self._broken)

    def _start(self, task: _Task) -> _Task:
        self._tasks.add(task)
        task.future.add_done_callback(lambda _: self._tasks.discard(task))
        try:
            self._threads.submit(task.run)
        except RuntimeError as error:
            task.future.cancel()
            if self._broken is not None:
                raise Closed(f"the pool is broken: {self._broken}") from self._broken
            raise Closed(str(error)) from error
        return task

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def job(self, is_ordered: bool) -> _Job:
        return _Job(self, is_ordered)

    def submit(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> _Task:
        return self._start(_Task(self, function, args, kwargs or {}))

    def submit_to(self, job: _Job, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        task = _Task(self, function, args, {})
        job.add(task)
        self._start(task)

    def cancel(self, job: _Job) -> None:
        job.cancel()

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def end(self, _: float) -> None:
        self._threads.shutdown()

    def terminate(self) -> None:
        # A thread cannot be ended; what it runs ends by itself.
        self._threads.shutdown(wait=False, cancel_futures=True)
        for task in list(self._tasks):
            task.future.cancel()


class _Threads:
    """What a pool has of its threads, as `Processes` is of processes."""

    def __init__(self, count: int, core: _Core) -> None:
        self.count = count
        self.core = core
        self.ahead = _AHEAD * count

    def submit(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
    ) -> _Task:
        return self.core.submit(function, args, kwargs)

    def submit_to(self, job: _Job, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.core.submit_to(job, function, args)

    def submit_each(self, job: _Job, function: Callable[..., Any], items: list[Any]) -> None:
        for item in items:
            self.core.submit_to(job, function, (item,))


class ThreadPool(Pool):
    """Threads of this process that do tasks: `Pool` with nothing copied, and no more speed for Python that holds the
    interpreter.

    A task that waits for others of its own pool, without a deadline, does those that nobody has begun. `terminate`
    cancels what has not begun; a thread that runs something goes on until that ends.

    >>> with sheave.pool.ThreadPool(2) as pool:
    ...     pool.map(lambda number: number + 1, range(3))
    [1, 2, 3]
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Sequence[Any] = (),
        *,
        contexts: Sequence[Any] | None = None,
    ) -> None:
        count = counted(processes if contexts is None or processes is not None else len(contexts))
        if initializer is not None:
            check_callable("initializer", initializer)
        if contexts is not None and len(contexts) != count:
            raise ValueError(f"{len(contexts)} contexts for {count} workers; expected one for each")
        core = _Core(count, initializer, initargs, contexts or [None] * count)
        self._processes = _Threads(count, core)  # type: ignore[assignment]
        self._is_closed = False

    def pids(self) -> list[int]:
        """Return nothing: there are no processes."""
        return []
