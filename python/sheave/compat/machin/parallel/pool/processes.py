"""Pools whose workers are processes of sheave's."""

import atexit
import functools
import io
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from sheave import Mesh
from sheave.compat.machin.parallel.pickle import Pickler, dumps, loads
from sheave.compat.machin.parallel.pool.base import BasePool
from sheave.compat.machin.parallel.pool.calls import PoolStates
from sheave.compat.machin.parallel.pool.contexts import check_contexts, keep_context, proxy_ctx_caller
from sheave.pool._processes import Options, Processes, check_callable, counted

_turn = threading.Lock()

#: The one that there is, when there was a pool.
_meshes: list[Mesh] = []

#: Pools whose tasks the program waits for at its end.
_waited_for: "weakref.WeakSet[Pool]" = weakref.WeakSet()


class Pool(BasePool):
    """Processes that do tasks.

    - is_copy_tensor: whether tensors are copied to workers; else they are shared, and `share_method` says which: "cpu"
      or "cuda".
    - is_daemon: whether the program ends without waiting for the tasks.
    - is_recursive: taken, and not used.
    """

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
        self._begin(None, processes, initializer, initargs, maxtasksperchild, is_daemon, is_copy_tensor, share_method)

    def _begin(
        self,
        contexts: Sequence[Any] | None,
        processes: int | None,
        initializer: Callable[..., Any] | None,
        initargs: Sequence[Any],
        maxtasksperchild: int | None,
        is_daemon: bool,
        is_copy_tensor: bool,
        share_method: str | None,
    ) -> None:
        if not is_copy_tensor and share_method not in ("cpu", "cuda"):
            raise RuntimeError(f'Invalid share method: "{share_method}"')
        self._is_copying = is_copy_tensor
        options = Options(_mesh(), contexts)
        self._workers = Processes(counted(processes), initializer, initargs, maxtasksperchild, options)
        self._state = PoolStates.RUN
        if not is_daemon:
            _waited_for.add(self)

    def _prepared(
        self, func: Callable[..., Any], calls: list[tuple[Any, ...]]
    ) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
        if self._is_copying or "torch" not in sys.modules:
            return func, calls
        return _run_shared, [(_Shared((func, call)),) for call in calls]


class P2PPool(Pool):
    """As `Pool`."""


class CtxPool(Pool):
    """Processes that do tasks, each with a context, which functions get before their arguments.

    - worker_contexts: one for each worker, and for the one that replaces it. None for all if None.
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Sequence[Any] = (),
        maxtasksperchild: int | None = None,
        worker_contexts: Sequence[Any] | None = None,
        is_recursive: bool = False,
        is_daemon: bool = True,
        is_copy_tensor: bool = True,
        share_method: str | None = None,
    ) -> None:
        processes = check_contexts(processes, worker_contexts)
        if initializer is not None:
            check_callable("initializer", initializer)
        keep = functools.partial(keep_context, initializer, tuple(initargs))
        self._begin(
            worker_contexts, processes, keep, (), maxtasksperchild, is_daemon, is_copy_tensor, share_method
        )

    def _prepared(
        self, func: Callable[..., Any], calls: list[tuple[Any, ...]]
    ) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
        return super()._prepared(functools.partial(proxy_ctx_caller, func), calls)


class _Shared:
    """A value whose tensors are shared: its pickle is opened as the value, once."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return loads, (dumps(self.value, copy_tensor=False),)


def _run_shared(what: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    func, call = what
    return _SharedResult(func(*call))


class _SharedResult(_Shared):
    """A result: tensors that are not in shared memory are copied, for that would end with this process."""

    def __reduce__(self) -> Any:
        with io.BytesIO() as file:
            _ResultPickler(file).dump(self.value)
            return loads, (file.getvalue(),)


class _ResultPickler(Pickler):
    def is_copied(self, value: Any) -> bool:
        storage = value.untyped_storage() if hasattr(value, "untyped_storage") else value
        return not storage.is_shared()


def _mesh() -> Mesh:
    """A mesh of this process alone, whose guests the workers are: that of a job has its own ranks."""
    with _turn:
        if not _meshes:
            _meshes.append(Mesh(rank=0, size=1, role="rank"))
        return _meshes[0]


@atexit.register
def _wait_for_tasks() -> None:
    for pool in list(_waited_for):
        pool.close()
        pool.join()
