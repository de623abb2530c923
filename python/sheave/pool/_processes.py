"""Workers that are processes: what `Pool` and `Executor` have in common."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

from sheave import pickling
from sheave._core import Mesh, PoolJob, ProcessPool, Work, init
from sheave.pool._functions import Known

_AHEAD = 32
"""Tasks of an `imap` that wait, run, or have a result that nobody has read, for each worker."""

_SHARES = 4
"""Into so many chunks for each worker a map divides what is left, unless it is told."""


class Options(NamedTuple):
    """What pools of processes are told besides what those of the standard library are."""

    mesh: Mesh | None = None
    contexts: Sequence[Any] | None = None
    tries: int = 0
    label: str = "worker"
    env: Mapping[str, str] | None = None
    output: Literal["prefix", "inherit", "quiet"] = "prefix"
    timeout: float | None = 60.0


def counted(processes: int | None) -> int:
    """How many workers there are to be."""
    count = len(os.sched_getaffinity(0)) if processes is None else processes
    if not isinstance(count, int):
        raise TypeError(f"Number of processes must be an int, and is a {type(count).__name__}")
    if count < 1:
        raise ValueError(f"Number of processes must be at least 1, and is {count}")
    return count


def check_callable(what: str, function: Any) -> None:
    """Refuse what cannot be called."""
    if not callable(function):
        raise TypeError(f"{what} must be a callable, and is a {type(function).__name__}")


def check_chunk_size(size: int | None) -> None:
    """Refuse a number of tasks for a chunk."""
    if size is not None and size < 1:
        raise ValueError(f"Chunksize must be 1+, not {size}")


def run_chunk(function: Callable[..., Any], chunk: Sequence[Any]) -> list[Any]:
    """Run several tasks."""
    return [function(item) for item in chunk]


def run_star(function: Callable[..., Any], items: Sequence[Any]) -> Any:
    """Run one task, whose arguments are a tuple."""
    return function(*items)


def run_star_chunk(function: Callable[..., Any], chunk: Sequence[Any]) -> list[Any]:
    """Run several tasks, whose arguments are tuples."""
    return [function(*items) for items in chunk]


def chunks_of(items: Sequence[Any], size: int | None, workers: int) -> Iterator[tuple[Any, ...]]:
    """Cut into chunks: of this size, or of ever smaller ones, so that workers that are done early find some left."""
    at = 0
    while at < len(items):
        count = size or -(-(len(items) - at) // (_SHARES * workers))
        yield tuple(items[at : at + count])
        at += count


def batched(items: Iterator[Any], size: int) -> Iterator[tuple[Any, ...]]:
    """Cut into chunks of this size, as they come."""
    while chunk := tuple(islice(items, size)):
        yield chunk


class Processes:
    """Workers, by what they do. Nothing here knows of results."""

    def __init__(
        self,
        count: int,
        initializer: Callable[..., Any] | None,
        initargs: Sequence[Any],
        tasks_per_worker: int | None,
        options: Options,
    ) -> None:
        mesh, contexts, tries, label, env, output, timeout = options
        if initializer is not None:
            check_callable("initializer", initializer)
        if tasks_per_worker is not None and tasks_per_worker < 1:
            raise ValueError(f"Tasks per worker must be 1 at least, or None, and are {tasks_per_worker}")
        if contexts is not None and len(contexts) != count:
            raise ValueError(f"{len(contexts)} contexts for {count} workers; expected one for each")
        each = contexts or [None] * count
        # Proxies of managers travel with tasks, and managers know a process by that.
        authkey = bytes(multiprocessing.current_process().authkey)
        # Apart, because a worker finds what it names by the path alone.
        setups = [
            (list(sys.path), slot, authkey, pickling.dumps((initializer, tuple(initargs), context)))
            for slot, context in enumerate(each)
        ]
        command = [sys.executable, "-m", "sheave._pool_worker"]
        mesh = init() if mesh is None else mesh
        self.count = count
        self.tries = tries
        self.ahead = _AHEAD * count
        self.core = ProcessPool(
            mesh, command, list((env or {}).items()), label, output, setups, tasks_per_worker, timeout
        )
        self._functions = Known()

    def function(self, function: Callable[..., Any]) -> Any:
        """What workers have of a function: sent once, as long as it means the same."""
        return self._functions.get(function, self.core.function)

    def submit(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
    ) -> Work[Any]:
        """Submit one task. Waits while there are very many."""
        return self.submit_numbered(function, args, kwargs)[1]

    def submit_numbered(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
    ) -> tuple[int, Work[Any]]:
        """Submit one task, and return its number too."""
        self.core.wait_room()
        return self.core.submit(self.function(function), args, dict(kwargs) if kwargs else None, self.tries)

    def submit_to(self, job: PoolJob, function: Any, args: tuple[Any, ...]) -> None:
        """Submit one task of many."""
        self.core.wait_room()
        self.core.submit_to(job, function, args, self.tries)

    def submit_each(self, job: PoolJob, function: Any, items: list[Any]) -> None:
        """Submit tasks with one argument each; if one cannot be, those before it do not begin any more."""
        try:
            self.core.submit_each(job, function, items, self.tries)
        except BaseException:
            self.core.cancel(job)
            raise
