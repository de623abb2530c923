"""What all pools can be asked, whatever does their tasks."""

import enum
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

import sheave.pool
from sheave import Closed
from sheave.pool import AsyncResult, IMapIterator, MapResult
from sheave.pool._processes import check_callable, check_chunk_size, chunks_of, run_star_chunk
from sheave.pool._results import Callback

T = TypeVar("T")
_GRACE_S = 10.0


class PoolStates(enum.IntEnum):
    """What a pool does: run, let its tasks end, or nothing any more."""

    RUN = 0
    CLOSE = 1
    TERMINATE = 2


class IMapUnorderedIterator(IMapIterator[T]):
    """The results of `imap_unordered`, one by one as they come."""


class _Inner(sheave.pool.Pool):
    """The pool of sheave's over what does the tasks."""

    def __init__(self, workers: Any) -> None:
        self._processes = workers
        self._is_closed = False


class Calls:
    """A pool by what does its tasks: `_workers`, as `sheave.pool` has them."""

    _workers: Any
    _state = PoolStates.TERMINATE

    def size(self) -> int:
        """How many workers it has."""
        count: int = self._workers.count
        return count

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
        """Begin one task."""
        self._check(func)
        if kwds:
            func = functools.partial(func, **kwds)
        func, (call,) = self._prepared(func, [tuple(args)])
        return AsyncResult(self._workers.submit(func, call), callback, error_callback)

    def map(self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int | None = None) -> list[T]:
        """Run `func` on each item, and return the results in order."""
        return self.map_async(func, iterable, chunksize).get()

    def map_async(
        self,
        func: Callable[[Any], T],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callback | None = None,
        error_callback: Callback | None = None,
    ) -> MapResult[T]:
        """Begin a task for each item, `chunksize` in a row by one worker; ever fewer in a row if None."""
        return self._map(func, ((item,) for item in iterable), chunksize, callback, error_callback)

    def starmap(
        self, func: Callable[..., T], iterable: Iterable[Iterable[Any]], chunksize: int | None = None
    ) -> list[T]:
        """Run `func` on the arguments that each item is, and return the results in order."""
        return self.starmap_async(func, iterable, chunksize).get()

    def starmap_async(
        self,
        func: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callback | None = None,
        error_callback: Callback | None = None,
    ) -> MapResult[T]:
        """Begin a task for each item, which is its arguments; as `map_async` in all else."""
        return self._map(func, map(tuple, iterable), chunksize, callback, error_callback)

    def imap(self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int = 1) -> IMapIterator[T]:
        """Begin a task for each item, and return an iterator over the results in order."""
        return self._imap(IMapIterator, func, iterable, chunksize)

    def imap_unordered(
        self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int = 1
    ) -> IMapUnorderedIterator[T]:
        """Begin a task for each item, and return an iterator over the results as they come."""
        return self._imap(IMapUnorderedIterator, func, iterable, chunksize)

    def close(self) -> None:
        """Take no more tasks; those that were submitted go on."""
        if self._state == PoolStates.RUN:
            self._state = PoolStates.CLOSE
            self._workers.core.close()

    def terminate(self) -> None:
        """End the workers; tasks that have not ended fail. Idempotent."""
        self._state = PoolStates.TERMINATE
        self._workers.core.terminate()

    def join(self) -> None:
        """Wait until all tasks have ended, and the workers with them.

        Raises ValueError if the pool was neither closed nor terminated.
        """
        if self._state == PoolStates.RUN:
            raise ValueError("Pool is still running")
        try:
            self._workers.core.end(_GRACE_S)
        except Closed:
            # It was terminated.
            pass

    def __enter__(self) -> Self:
        if self._state != PoolStates.RUN:
            raise ValueError("Pool not running")
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    def __reduce__(self) -> Any:
        raise NotImplementedError("pool objects cannot be passed between processes or pickled")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.size()}, {self._state.name}>"

    def _check(self, func: Any, chunksize: int | None = None) -> None:
        if self._state != PoolStates.RUN:
            raise ValueError("Pool not running")
        check_callable("func", func)
        check_chunk_size(chunksize)

    def _prepared(
        self, func: Callable[..., Any], calls: list[tuple[Any, ...]]
    ) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
        """What workers run, and on what, in place of a function on arguments."""
        return func, calls

    def _map(
        self,
        func: Callable[..., Any],
        calls: Iterable[tuple[Any, ...]],
        chunksize: int | None,
        callback: Callback | None,
        error_callback: Callback | None,
    ) -> MapResult[Any]:
        self._check(func, chunksize)
        func, prepared = self._prepared(func, list(calls))
        return _Inner(self._workers).starmap_async(func, prepared, chunksize, callback, error_callback)

    def _imap(
        self, kind: Callable[..., T], func: Callable[..., Any], iterable: Iterable[Any], chunksize: int
    ) -> T:
        self._check(func, chunksize)
        func, calls = self._prepared(func, [(item,) for item in iterable])
        core, workers, is_chunked = self._workers.core, self._workers, chunksize > 1
        function = core.function(functools.partial(run_star_chunk, func) if is_chunked else func)
        job = core.job(kind is IMapIterator)

        def submit(call: tuple[Any, ...] | Sequence[tuple[Any, ...]]) -> None:
            workers.submit_to(job, function, (call,) if is_chunked else call)

        items = chunks_of(calls, chunksize, 1) if is_chunked else iter(calls)
        # All of them are submitted here, because the pool may be closed before somebody reads.
        return kind(job, submit, items, None, is_chunked, len(calls), lambda: None)
