"""`BasePool`: a pool whose parts may be overridden."""

import itertools
import multiprocessing
import os
import queue
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

from sheave import Closed
from sheave.compat.machin.parallel.exception import ExceptionWithTraceback
from sheave.compat.machin.parallel.pool.calls import Calls, PoolStates
from sheave.compat.machin.parallel.pool.lines import Carried, Lines, died
from sheave.compat.machin.parallel.process import portable
from sheave.pool._processes import check_callable, counted
from sheave.pool._threads import _Job, _Task, _told

_TICK_S = 0.1
_GRACE_S = 10.0

#: Seconds that a result may need from a worker that has ended.
_LATE_S = 0.5


class BasePool(Calls):
    """A pool that does its tasks by methods that a class of one's own may override:

    - `setup_queues` makes what tasks and results go through, before there is a worker. If it makes `_inqueue` and
      `_outqueue`, workers use their `get` and `put`.
    - `pool_inqueue_put(task)` gives a task to the workers, and None to let one of them end. A task is ``(job, number,
      func, args, kwds)``.
    - `pool_outqueue_get(timeout)` returns the next result: ``(job, number, (is_success, value))`` of a task;
      ``(None, None, (False, error))`` breaks the pool. It raises TimeoutError, of any kind, if there is none in time,
      and OSError or EOFError if there will be none any more.
    - `repopulate_pool` starts workers until there are `_processes` of them in `_pool`: things with `is_alive` and
      `join`, such as processes and threads, which call `worker`.
    - `maintain_pool` takes those out that have ended, and starts others; it is called ten times a second.
    - `terminate_workers` ends them, `join_workers` waits for their ends.
    - `worker(get, put, initializer, initargs, maxtasks)`, which is static, does tasks until `get` returns None.

    As it is here workers are processes of the context of multiprocessing, by "spawn" if there is none. One that dies
    fails the task that it had begun, and is replaced. One that dies in a class that has queues of its own, of which
    nobody knows what it had begun, breaks the pool: all its tasks fail.

    The attributes that there are for that: `_ctx`, `_processes`, `_pool`, `_initializer`, `_initargs`,
    `_maxtasksperchild`, `_state`.
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Sequence[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
    ) -> None:
        self._processes = counted(processes)
        if initializer is not None:
            check_callable("initializer", initializer)
        if maxtasksperchild is not None and maxtasksperchild < 1:
            raise ValueError(f"Tasks per worker must be 1 at least, or None, and are {maxtasksperchild}")
        self._initializer = initializer
        self._initargs = tuple(initargs)
        self._maxtasksperchild = maxtasksperchild
        self._ctx = context if context is not None else multiprocessing.get_context("spawn")
        self._pool: list[Any] = []
        self._inqueue: Any = None
        self._outqueue: Any = None
        self._lines: Lines | None = None
        self._ended: float | None = None
        self._workers = core = _Core(self._processes)
        self._state = PoolStates.RUN
        try:
            self.setup_queues()
            self.repopulate_pool()
        except BaseException:
            self._state = PoolStates.TERMINATE
            self.terminate_workers()
            raise
        core.start(self)

    def setup_queues(self) -> None:
        """Make what tasks and results go through."""
        self._lines = Lines(self._ctx)

    def pool_inqueue_put(self, task: Any) -> None:
        """Give a task to the workers, or None to let one of them end."""
        (self._lines if self._lines is not None else self._inqueue).put(task)

    def pool_outqueue_get(self, timeout: float) -> Any:
        """Return the next result. Raises TimeoutError, or OSError or EOFError if there will be none any more."""
        if self._lines is not None:
            return self._lines.get(timeout)
        return self._outqueue.get(timeout=timeout)

    def repopulate_pool(self) -> None:
        """Start workers until there are as many as there are to be."""
        while len(self._pool) < self._processes:
            if self._lines is not None:
                worker = self._lines.start(lambda end: self._process(end, end))
            else:
                worker = self._process(self._inqueue, self._outqueue)
                worker.start()
            self._pool.append(worker)

    def maintain_pool(self) -> None:
        """Take out the workers that have ended, and start others in their place."""
        for worker in [worker for worker in self._pool if not worker.is_alive()]:
            worker.join()
            is_bad = getattr(worker, "exitcode", 0) != 0 or self._maxtasksperchild is None
            if self._lines is None and is_bad:
                # What it has said last may be on its way.
                self._ended = self._ended or time.monotonic()
                if time.monotonic() - self._ended > _LATE_S:
                    self._workers.core.fail(died(worker, "and nobody knows what it had begun"))
                return
            self._pool.remove(worker)
        self.repopulate_pool()

    def terminate_workers(self) -> None:
        """End the workers: processes at once, and threads when they have done the task that they have."""
        for worker in self._pool:
            if hasattr(worker, "terminate"):
                worker.terminate()
            else:
                # What tasks go through may be full.
                threading.Thread(target=self.pool_inqueue_put, args=(None,), daemon=True).start()

    def join_workers(self) -> None:
        """Wait for the ends of the workers, for some seconds; processes that have not ended then are killed."""
        until = time.monotonic() + _GRACE_S
        for worker in self._pool:
            worker.join(max(until - time.monotonic(), 0))
            if worker.is_alive() and hasattr(worker, "kill"):
                worker.kill()
                worker.join()

    @staticmethod
    def worker(
        get: Callable[[], Any],
        put: Callable[[Any], object],
        initializer: Callable[..., Any] | None = None,
        initargs: Sequence[Any] = (),
        maxtasks: int | None = None,
    ) -> None:
        """Do tasks until there are no more, or until `maxtasks` are done."""
        if initializer is not None:
            try:
                initializer(*initargs)
            except BaseException as error:
                put((None, None, (False, ExceptionWithTraceback(_told(error)))))
                return
        for _ in itertools.count() if maxtasks is None else range(maxtasks):
            try:
                task = get()
            except (EOFError, OSError):
                return
            if task is None:
                return
            job, number, func, args, kwds = task
            try:
                result: tuple[bool, Any] = True, func(*args, **kwds)
            except BaseException as error:
                result = False, ExceptionWithTraceback(_told(error))
            put((job, number, result))

    def _process(self, get: Any, put: Any) -> Any:
        setup = portable(self.worker), portable(self._initializer), self._initargs, self._maxtasksperchild
        return self._ctx.Process(target=_work, args=(get, put, *setup), daemon=True)

    def __del__(self) -> None:
        if self._state != PoolStates.TERMINATE and isinstance(self._workers.core, _Core):
            self.terminate()


def _work(get: Any, put: Any, worker: Callable[..., object], *setup: Any) -> None:
    """What a worker does that is a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def send(result: Any) -> None:
        job, number, (is_success, value) = result
        put.put((job, number, (is_success, Carried(value))))

    worker(get.get, send, *setup)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


class _Pending(_Task):
    """A task that a worker has, or will have."""

    def __init__(self, job: int, call: Carried) -> None:
        # No thread is a worker of that.
        super().__init__(self, _nothing, (), {})
        self.job = job
        self.call = call
        self._call = None
        # Nobody cancels it, and nobody runs it in passing.
        self.future.set_running_or_notify_cancel()

    def settle(self, is_success: bool, value: Any) -> None:
        """End it, as its worker says."""
        try:
            value = value.open() if isinstance(value, Carried) else value
        except BaseException as error:
            is_success, value = False, error
        if is_success:
            self.future.set_result(value)
        else:
            self.future.set_exception(_error(value))


def _error(value: Any) -> BaseException:
    """The error that a worker has put."""
    if isinstance(value, Carried):
        value = value.value if value.error is None else value.error
    if isinstance(value, ExceptionWithTraceback):
        return value.exc
    return value if isinstance(value, BaseException) else RuntimeError(str(value))


def _nothing() -> None:
    pass


class _Core:
    """The tasks of a pool that are under way, with the methods that a pool of processes has; and its threads."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.core = self
        self._pool: Callable[[], BasePool | None] = lambda: None
        self._numbers = itertools.count()
        self._turn = threading.RLock()
        self._changed = threading.Condition(self._turn)
        self._tasks: dict[int, _Pending] = {}
        self._error: BaseException | None = None
        self._has_ended = False
        self._threads: list[threading.Thread] = []

    def start(self, pool: BasePool) -> None:
        """Begin to look after workers and results, until the pool ends or nobody holds it any more."""
        self._pool = weakref.ref(pool)
        for act in (self._look_after_workers, self._take_results):
            self._threads.append(threading.Thread(target=act, name="machin-pool", daemon=True))
            self._threads[-1].start()

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def job(self, is_ordered: bool) -> _Job:
        return _Job(self, is_ordered)

    def submit(self, function: Callable[..., Any], args: tuple[Any, ...]) -> _Pending:
        return self._start(None, function, args)

    def submit_to(self, job: _Job, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._start(job, function, args)

    def submit_each(self, job: _Job, function: Callable[..., Any], items: list[Any]) -> None:
        for item in items:
            self._start(job, function, (item,))

    def _start(self, job: _Job | None, function: Callable[..., Any], args: tuple[Any, ...]) -> _Pending:
        pool = self._pool()
        task = _Pending(next(self._numbers), Carried((function, args)))
        with self._turn:
            broken = Closed("the pool has ended") if pool is None else self._error
            if broken is None:
                self._tasks[task.job] = task
        if job is not None:
            job.add(task)
        if broken is not None or pool is None:
            task.settle(False, broken)
            return task
        try:
            pool.pool_inqueue_put((task.job, 0, task.call, (), {}))
        except BaseException as error:
            self._settle(task.job, False, error)
            raise
        return task

    def _settle(self, job: int, is_success: bool, value: Any) -> None:
        with self._turn:
            task = self._tasks.pop(job, None)
        if task is not None:
            task.settle(is_success, value)
        with self._turn:
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Break the pool: all tasks fail, and so do those that are submitted later."""
        with self._turn:
            if self._error is None:
                self._error = error
            tasks = list(self._tasks.values())
        for task in tasks:
            # A thread that comes to it raises that, too.
            task.call.error = error
            self._settle(task.job, False, error)
        pool = self._pool()
        if pool is not None:
            self._end_workers(pool)

    def _end_workers(self, pool: "BasePool") -> None:
        with self._turn:
            pool.terminate_workers()

    def close(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def terminate(self) -> None:
        self.fail(Closed("the pool was terminated"))

    def end(self, _: float) -> None:
        # The tasks end, or the pool does; then the workers.
        for thread in self._threads:
            thread.join()
        pool = self._pool()
        if pool is not None:
            pool.join_workers()

    def _is_over(self) -> bool:
        """Whether there is nothing to do any more."""
        pool = self._pool()
        return self._error is not None or pool is None or (pool._state != PoolStates.RUN and not self._tasks)

    def _look_after_workers(self) -> None:
        while not self._is_over():
            with self._turn:
                pool = self._pool()
                try:
                    if pool is not None and self._error is None:
                        pool.maintain_pool()
                except Exception as error:
                    self.fail(error)
                del pool
            with self._changed:
                self._changed.wait_for(self._is_over, _TICK_S)
        pool = self._pool()
        if pool is not None and self._error is None:
            for _ in range(len(pool._pool)):
                pool.pool_inqueue_put(None)

    def _take_results(self) -> None:
        until: float | None = None
        while (pool := self._pool()) is not None and self._error is None:
            if self._is_over():
                # Workers may have to be heard until they have ended.
                until = until or time.monotonic() + _GRACE_S
                if time.monotonic() > until or not any(worker.is_alive() for worker in pool._pool):
                    return
            try:
                job, _, (is_success, value) = pool.pool_outqueue_get(_TICK_S)
            except (TimeoutError, multiprocessing.TimeoutError, queue.Empty):
                pass
            except Exception as error:
                if self._is_over():
                    return
                self.fail(error)
            else:
                if job is None:
                    self.fail(_error(value))
                else:
                    self._settle(job, is_success, value)
            del pool
