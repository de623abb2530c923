"""`sheave.pool.Pool`, with the interface of `multiprocessing.pool.Pool`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from sheave._core import Closed, Mesh
from sheave.pool._processes import (
    Options,
    Processes,
    batched,
    check_callable,
    check_chunk_size,
    chunks_of,
    counted,
    run_chunk,
    run_star,
    run_star_chunk,
)
from sheave.pool._results import AsyncResult, Callback, IMapIterator, MapResult

T = TypeVar("T")

_GRACE = 10.0
"""Seconds that workers have to end when there is nothing to do any more."""


class Pool:
    """Processes that do tasks.

    - processes: how many; as many as this process has processors, if None.
    - initializer, initargs: called in each worker before its first task. If it raises, the pool is broken by that.
    - maxtasksperchild: after so many tasks a worker is replaced.
    - context: taken, and not used; workers are always processes of their own.
    - contexts: one object for each worker, and for the one that replaces it: `sheave.pool.context` is what it has.
    - tries: how often a task is given to another worker if one dies of it.
    - mesh: whose node's guests the workers are; the default mesh if None, which is joined if there is none.
    - label, env, output: name the workers, are variables for them, and say what becomes of what they print, as for
      `sheave.Fleet`. timeout: seconds that one may take to start.

    Does not wait for the workers. As a context manager it is terminated at the end, as those of the standard library;
    `close` and `join` let tasks end. Waits let other threads run and end at Ctrl-C. It may be used from any thread, and
    is not for other processes.

    >>> with sheave.pool.Pool(2) as pool:
    ...     pool.apply(pow, (2, 10)), pool.starmap(max, [(1, 2), (4, 3)])
    (1024, [2, 4])
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Sequence[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
        *,
        mesh: Mesh | None = None,
        contexts: Sequence[Any] | None = None,
        tries: int = 0,
        label: str = "worker",
        env: Mapping[str, str] | None = None,
        output: Literal["prefix", "inherit", "quiet"] = "prefix",
        timeout: float | None = 60.0,
    ) -> None:
        options = Options(mesh, contexts, tries, label, env, output, timeout)
        count = counted(processes if contexts is None or processes is not None else len(contexts))
        self._processes = Processes(count, initializer, initargs, maxtasksperchild, options)
        self._is_closed = False

    @property
    def size(self) -> int:
        """How many workers it has."""
        return self._processes.count

    def pids(self) -> list[int]:
        """Return the process ids of the workers, by slot."""
        return self._processes.core.pids()

    def apply(self, func: Callable[..., T], args: Iterable[Any] = (), kwds: Mapping[str, Any] | None = None) -> T:
        """Run one task, and return its result or raise what it raises."""
        return self.apply_async(func, args, kwds).get()

    def apply_async(
        self,
        func: Callable[..., T],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
        error_callback: Callback | None = None,
    ) -> AsyncResult[T]:
        """Begin one task. Callbacks are called on a thread of sheave's, one at a time."""
        check_callable("func", func)
        return AsyncResult(self._run(lambda each: each.submit(func, tuple(args), kwds)), callback, error_callback)

    def map(
        self,
        func: Callable[[Any], T],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        *,
        progress: Callable[[int, int], object] | None = None,
    ) -> list[T]:
        """Run `func` on each item, and return the results in order; as `map_async` in all else.

        `progress` is called with how many have ended, and how many there are, on this thread, as they end.
        """
        if progress is None:
            return self.map_async(func, iterable, chunksize).get()
        items = list(iterable)
        results: list[T] = []
        for result in self.imap(func, items, chunksize or 1):
            results.append(result)
            progress(len(results), len(items))
        return results

    def starmap(
        self, func: Callable[..., T], iterable: Iterable[Iterable[Any]], chunksize: int | None = None
    ) -> list[T]:
        """Run `func` on the arguments that each item is, and return the results in order."""
        return self.starmap_async(func, iterable, chunksize).get()

    def map_async(
        self,
        func: Callable[[Any], T],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callback | None = None,
        error_callback: Callback | None = None,
    ) -> MapResult[T]:
        """Begin a task for each item, `chunksize` in a row by one worker; ever fewer in a row if None.

        What the iterable raises is raised here, before anything has begun.
        """
        check_callable("func", func)
        runs = func, functools.partial(run_chunk, func)
        return self._map(runs, iterable, chunksize, callback, error_callback)

    def starmap_async(
        self,
        func: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callback | None = None,
        error_callback: Callback | None = None,
    ) -> MapResult[T]:
        """Begin a task for each item, which is its arguments; as `map_async` in all else."""
        check_callable("func", func)
        runs = functools.partial(run_star, func), functools.partial(run_star_chunk, func)
        return self._map(runs, iterable, chunksize, callback, error_callback)

    def imap(self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int = 1) -> IMapIterator[T]:
        """Return an iterator over the results, in order. Items are taken from `iterable` as results are read."""
        return self._imap(func, iterable, chunksize, is_ordered=True)

    def imap_unordered(self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int = 1) -> IMapIterator[T]:
        """Return an iterator over the results as they come. Items are taken as `imap` takes them."""
        return self._imap(func, iterable, chunksize, is_ordered=False)

    def close(self) -> None:
        """Take no more tasks; those that were submitted go on."""
        if not self._is_closed:
            self._is_closed = True
            self._processes.core.close()

    def terminate(self) -> None:
        """Kill the workers; tasks that have not ended fail with Closed. Idempotent."""
        self._is_closed = True
        self._processes.core.terminate()

    def join(self) -> None:
        """Wait until all tasks have ended, and the workers with them.

        Raises ValueError if the pool was neither closed nor terminated.
        """
        if not self._is_closed:
            raise ValueError("Pool is still running")
        try:
            self._processes.core.end(_GRACE)
        except Closed:
            # It was terminated.
            pass

    def __enter__(self) -> Pool:
        self._check()
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    def __reduce__(self) -> Any:
        raise NotImplementedError("pool objects cannot be passed between processes or pickled")

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "running"
        return f"<sheave.pool.{type(self).__name__} of {self.size}, {state}>"

    def _check(self) -> None:
        if self._is_closed:
            raise ValueError("Pool not running")

    def _run(self, submit: Callable[[Processes], T]) -> T:
        self._check()
        return submit(self._processes)

    def _map(
        self,
        runs: tuple[Callable[..., Any], Callable[..., Any]],
        iterable: Iterable[Any],
        chunksize: int | None,
        callback: Callback | None,
        error_callback: Callback | None,
    ) -> MapResult[Any]:
        self._check()
        check_chunk_size(chunksize)
        items = iterable if isinstance(iterable, list) else list(iterable)
        each, is_chunked = self._processes, chunksize != 1
        function, job = each.core.function(runs[is_chunked]), each.core.job(True)
        each.submit_each(job, function, list(chunks_of(items, chunksize, each.count)) if is_chunked else items)
        return MapResult(job, is_chunked, callback, error_callback)

    def _imap(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int, is_ordered: bool
    ) -> IMapIterator[Any]:
        self._check()
        check_callable("func", func)
        check_chunk_size(chunksize)
        each, is_chunked = self._processes, chunksize > 1
        items: Iterator[Any] = iter(iterable)
        length = operator.length_hint(iterable, -1) if hasattr(iterable, "__len__") else -1
        function = each.core.function(functools.partial(run_chunk, func) if is_chunked else func)
        job = each.core.job(is_ordered)
        return IMapIterator(
            job,
            lambda item: each.submit_to(job, function, (item,)),
            batched(items, chunksize) if is_chunked else items,
            max(each.ahead // chunksize, 2 * each.count),
            is_chunked,
            length if length >= 0 else None,
            lambda: each.core.cancel(job),
        )
