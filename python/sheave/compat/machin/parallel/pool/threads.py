"""Pools whose workers are threads of this process."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from sheave.compat.machin.parallel.pool.base import BasePool
from sheave.compat.machin.parallel.pool.calls import PoolStates
from sheave.compat.machin.parallel.pool.contexts import check_contexts, proxy_ctx_caller
from sheave.pool._processes import check_callable, counted
from sheave.pool._threads import _Core, _Threads


class ThreadPool(BasePool):
    """Threads that do tasks. Takes what `Pool` takes; what is about processes means nothing."""

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Sequence[Any] = (),
        maxtasksperchild: int | None = None,
        is_recursive: bool = False,
        is_daemon: bool = True,
        is_copy_tensor: bool = True,
        share_method: str | None = None,
    ) -> None:
        self._begin(processes, initializer, initargs, None)

    def _begin(
        self,
        processes: int | None,
        initializer: Callable[..., Any] | None,
        initargs: Sequence[Any],
        contexts: Sequence[Any] | None,
    ) -> None:
        count = counted(processes)
        if initializer is not None:
            check_callable("initializer", initializer)
        self._workers = _Threads(count, _Core(count, initializer, initargs, contexts or [None] * count))
        self._state = PoolStates.RUN


class CtxThreadPool(ThreadPool):
    """Threads that do tasks, each with a context, which functions get before their arguments."""

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Sequence[Any] = (),
        worker_contexts: Sequence[Any] | None = None,
    ) -> None:
        self._begin(check_contexts(processes, worker_contexts), initializer, initargs, worker_contexts)

    def _prepared(
        self, func: Callable[..., Any], calls: list[tuple[Any, ...]]
    ) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
        return functools.partial(proxy_ctx_caller, func), calls
