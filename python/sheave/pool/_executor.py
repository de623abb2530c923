"""`sheave.pool.Executor`, with the interface of `concurrent.futures.Executor`."""

from __future__ import annotations

import atexit
import concurrent.futures
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Literal, TypeVar

from sheave._core import Cancelled, Closed, InvalidArgument, Mesh, SheaveError, Work, WorkerDied
from sheave.pool._processes import Options, Processes, counted

T = TypeVar("T")

_GRACE = 10.0


class BrokenPool(BrokenProcessPool):
    """Nothing is done any more: workers cannot be started, or cannot be set up. Its cause says why."""


class WorkerLost(WorkerDied, BrokenProcessPool):
    """The worker of a task has died. It was replaced, and nothing else is disturbed.

    It is what `concurrent.futures` says of that too, for programs that catch it there.
    """


class _Future(concurrent.futures.Future[T]):
    """A future whose task may be cancelled until a worker has it."""

    _work: Work[T] | None = None
    _has_begun: Callable[[], bool] | None = None
    """Whether a worker runs the task; none once it has ended, for it holds the pool."""

    def running(self) -> bool:
        """Return whether a worker has begun with the task, and it has not ended."""
        has_begun = self._has_begun
        try:
            return super().running() or (has_begun is not None and has_begun())
        except SheaveError:
            # It was terminated meanwhile.
            return False

    def cancel(self) -> bool:
        """Cancel the task, unless a worker has it; whether it was cancelled."""
        work = self._work
        if work is not None and not work.done():
            work.cancel()
            if not (work.done() and isinstance(work.exception(), Cancelled)):
                return False
        return super().cancel()


class Executor(concurrent.futures.Executor):
    """Processes that do tasks, for what is written for `concurrent.futures.ProcessPoolExecutor`.

    It is one that starts all workers at once, and replaces those that die: such a task fails with WorkerLost, and
    nothing else does. A task that raises SystemExit or KeyboardInterrupt fails with Remote, which ends no program.
    max_workers, initializer, initargs and max_tasks_per_child are those of the standard library, mp_context is taken
    and not used, and the others are those of `sheave.pool.Pool`.

    One that nobody holds any more ends once its tasks have; a program that ends waits for the tasks of all.

    >>> with sheave.pool.Executor(2) as executor:
    ...     executor.submit(pow, 2, 10).result(), list(executor.map(max, [1, 4], [2, 3]))
    (1024, [2, 4])
    """

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: Any = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Sequence[Any] = (),
        *,
        max_tasks_per_child: int | None = None,
        mesh: Mesh | None = None,
        contexts: Sequence[Any] | None = None,
        tries: int = 0,
        label: str = "worker",
        env: Mapping[str, str] | None = None,
        output: Literal["prefix", "inherit", "quiet"] = "prefix",
        timeout: float | None = 60.0,
    ) -> None:
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        options = Options(mesh, contexts, tries, label, env, output, timeout)
        self._processes = Processes(counted(max_workers), initializer, initargs, max_tasks_per_child, options)
        # By this name others look how many tasks to give at a time, dask for one.
        self._max_workers = self._processes.count
        self._pending: set[_Future[Any]] = set()
        self._turn = threading.Lock()
        self._is_shut_down = False
        _living.add(self)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        """Begin a task, and return its future. What cannot be pickled fails the future.

        Raises RuntimeError after the shutdown; BrokenPool if nothing is done any more.
        """
        future: _Future[T] = _Future()
        with self._turn:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._pending.add(future)
        try:
            number, future._work = self._processes.submit_numbered(fn, args, kwargs)
            future._has_begun = functools.partial(self._processes.core.has_begun, number)
        except InvalidArgument as error:
            self._pending.discard(future)
            return _failed(_unpicklable(error))
        except SheaveError as error:
            self._pending.discard(future)
            raise self._broken(error) from error
        except Exception as error:
            # Raised by what is pickled.
            self._pending.discard(future)
            return _failed(error)
        except BaseException:
            self._pending.discard(future)
            raise
        future._work.add_done_callback(functools.partial(self._settle, future))
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        **others: Any,
    ) -> Iterator[T]:
        """Run `fn` on the items of all iterables, and return an iterator over the results in order.

        As `concurrent.futures.Executor.map` in all else: `timeout` seconds are from this call on.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout, **others)
        from sheave.pool._processes import batched, run_star_chunk

        run = functools.partial(run_star_chunk, fn)
        chunks = super().map(run, batched(zip(*iterables), chunksize), timeout=timeout, **others)
        return (result for chunk in chunks for result in chunk)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks; cancel those that no worker has, if told to; wait until the others have ended."""
        with self._turn:
            self._is_shut_down = True
            pending = list(self._pending)
        if cancel_futures:
            for future in pending:
                future.cancel()
        core = self._processes.core
        if wait:
            try:
                core.end(_GRACE)
            except Closed:
                # It was shut down before.
                pass
            core.terminate()
        else:
            core.close()

    def _broken(self, error: BaseException) -> BaseException:
        """What a task has failed with, or that nothing is done any more, because of that."""
        if type(error) is WorkerDied:
            error.__class__ = WorkerLost
        try:
            self._processes.core.check()
        except Closed:
            return error
        except Exception:
            broken = BrokenPool(f"the pool is broken: {error}")
            broken.__cause__ = error
            return broken
        return error

    def _settle(self, future: _Future[Any], work: Work[Any]) -> None:
        self._pending.discard(future)
        future._has_begun = None
        error = work.exception()
        if isinstance(error, Cancelled):
            concurrent.futures.Future.cancel(future)
        if not future.set_running_or_notify_cancel():
            return
        if error is None:
            future.set_result(work.result())
        else:
            future.set_exception(self._broken(error))


def _unpicklable(error: InvalidArgument) -> BaseException:
    """What pickle has raised, as futures of the standard library say it, with what that means as a note."""
    cause = error.__cause__
    if cause is None:
        return error
    cause.add_note(str(error))
    return cause


def _failed(error: BaseException) -> concurrent.futures.Future[Any]:
    future: _Future[Any] = _Future()
    future.set_exception(error)
    return future


_living: weakref.WeakSet[Executor] = weakref.WeakSet()
"""Those whose tasks a program waits for when it ends."""


def _end_all() -> None:
    for executor in list(_living):
        executor.shutdown()


# It is called before sheave's own, which was registered before and ends the workers.
atexit.register(_end_all)
# The workers are the parent's.
os.register_at_fork(after_in_child=lambda: _living.clear())
