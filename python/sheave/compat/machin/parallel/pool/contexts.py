"""The contexts that workers have, and what runs functions with them."""

from collections.abc import Callable
from typing import Any

import sheave.pool
from sheave import Closed
from sheave.compat.machin.parallel.pickle import dumps, loads

__all__ = ["CtxPoolStorage", "proxy_caller", "proxy_ctx_caller", "proxy_dumper"]


class CtxPoolStorage:
    """What the pool has given to the worker that this process is: `storage`."""

    storage: Any = None


def proxy_dumper(recurse: bool, copy_tensor: bool, func: Callable[..., Any]) -> bytes:
    """The pickle of a function, as `proxy_caller` and `proxy_ctx_caller` take it."""
    return dumps(func, recurse, copy_tensor)


def proxy_caller(*input: Any) -> Any:
    """Call a function, which is the first argument itself or by its pickle, with the others."""
    func, *args = input
    return _opened(func)(*args)


def proxy_ctx_caller(*input: Any, **kwargs: Any) -> Any:
    """Call a function, as `proxy_caller` does, with the context of this worker before the other arguments."""
    func, *args = input
    try:
        context = sheave.pool.context()
    except Closed:
        context = CtxPoolStorage.storage
    return _opened(func)(context, *args, **kwargs)


def keep_context(initializer: Callable[..., Any] | None, initargs: tuple[Any, ...]) -> None:
    """Set up a worker that is a process."""
    CtxPoolStorage.storage = sheave.pool.context()
    if initializer is not None:
        initializer(*initargs)


def check_contexts(processes: int | None, contexts: Any) -> int | None:
    """How many workers there are to be; there is a context for each if there are any."""
    if contexts is None:
        return processes
    if processes is not None and len(contexts) != processes:
        raise ValueError("Context number is not equal to the number of pool workers.")
    return len(contexts)


def _opened(func: Any) -> Any:
    return loads(func) if isinstance(func, (bytes, bytearray, memoryview)) else func
