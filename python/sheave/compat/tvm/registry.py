"""Functions by their names: those that the workers of this process find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

import sheave
from sheave import session
from sheave.compat.tvm.runtime.values import from_sheave, to_sheave

__all__ = [
    "Function",
    "get_global_func",
    "list_global_func_names",
    "register_func",
    "register_global_func",
    "remove_global_func",
]

_F = TypeVar("_F", bound=Callable[..., Any])

_NAMES: set[str] = set()


class Function:
    """A function that is called by TVM's convention: arrays among its arguments and results are tensors."""

    __slots__ = ("_function", "__qualname__")

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self.__qualname__ = getattr(function, "__qualname__", None) or getattr(function, "name", "function")

    def __call__(self, *args: Any) -> Any:
        return from_sheave(self._function(*map(from_sheave, args)))

    def __reduce__(self) -> Any:
        return Function, (self._function,)

    def __repr__(self) -> str:
        return f"<tvm.Function {self.__qualname__}>"


class _Native:
    """A function of Rust's, which gets arrays for tensors."""

    __slots__ = ("_function", "name")

    def __init__(self, function: Any):
        self._function = function
        self.name = getattr(function, "name", "function")

    def __call__(self, *args: Any) -> Any:
        return self._function(*map(to_sheave, args))


@overload
def register_func(func_name: _F) -> _F: ...


@overload
def register_func(func_name: str, f: _F, override: bool = False) -> _F: ...


@overload
def register_func(func_name: str, f: None = None, override: bool = False) -> Callable[[_F], _F]: ...


def register_func(func_name: Any, f: Any = None, override: bool = False) -> Any:
    """Registers a function by its name, or by that of the function itself; without one it is a decorator.

    Raises AlreadyExists, a ValueError, for a name that another one has, unless that is overridden.

    >>> @register_func("example.double", override=True)
    ... def double(number):
    ...     return 2 * number
    >>> get_global_func("example.double")(4)
    8
    """
    if callable(func_name):
        return register_func(func_name.__name__, func_name, override)
    name: str = func_name

    def register(function: _F) -> _F:
        made = function if isinstance(function, Function) else Function(function)
        session.register_function(name, made, replace=override)
        _NAMES.add(name)
        return function

    return register if f is None else register(f)


register_global_func = register_func


def get_global_func(name: str, allow_missing: bool = False) -> Any:
    """Returns the function of this name. Without one raises ValueError, or returns None if that is allowed."""
    found = session.registered_function(name)
    if isinstance(found, Function):
        return found
    if found is not None:
        return Function(_Native(found) if isinstance(found, session.Function) else found)
    if allow_missing:
        return None
    raise ValueError(f"Cannot find global function {name}")


def remove_global_func(name: str) -> None:
    """Lets nobody find the function of this name any more."""
    _NAMES.discard(name)
    try:
        session.unregister_function(name)
    except sheave.NotFound as error:
        raise ValueError(f"Cannot find global function {name}") from error


def list_global_func_names() -> list[str]:
    """Returns the names of the functions that were registered here."""
    return sorted(_NAMES)
