"""Which functions mean the same as when they were sent.

A pool sends a function to its workers once, and names it from then on. That is right as long as it means the same: one
that can be imported does, for its module is what it is. What a script, a notebook or another function defines travels
by value, with the globals and cells that it names, and those may be set anew before the next task. So what such a
function names is looked at each time: as long as all of it is fixed, and is what it was, the function is.

Fixed are numbers, texts and the like, tuples of such, modules, what can be imported, and functions of which the same is
true. An array, a list or an object may have changed without a sign of it: a function that names one is sent each time.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Known", "is_importable"]

_ATOMS = (bool, bytes, complex, float, int, str, type(None), type(Ellipsis))

_PARTS_MAX = 64
"""A function that names more than that is sent each time: looking would take longer."""

_KNOWN_MAX = 64
"""Functions of which a pool remembers that its workers have them."""


def is_importable(thing: Any) -> bool:
    """Whether a function or class is found by its name wherever its module is."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    name = getattr(thing, "__qualname__", "")
    return (
        module is not None
        and module.__name__ != "__main__"
        and isinstance(name, str)
        and getattr(module, name, None) is thing
    )


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that code looks up, and that of functions in it; some are of attributes."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


class _Changeable(Exception):
    """Something may have changed without a sign of it."""


_MISSING = object()


def _add(thing: Any, parts: list[Any]) -> None:
    """Adds what a thing consists of."""
    if len(parts) > _PARTS_MAX:
        raise _Changeable
    parts.append(thing)
    if type(thing) in _ATOMS or isinstance(thing, types.ModuleType) or thing is _MISSING:
        return
    if type(thing) is tuple:
        for item in thing:
            _add(item, parts)
    elif type(thing) is types.FunctionType:
        if not is_importable(thing):
            _add_function(thing, parts)
    elif not (isinstance(thing, (type, types.BuiltinFunctionType)) and is_importable(thing)):
        raise _Changeable


def _add_function(function: types.FunctionType, parts: list[Any]) -> None:
    if function.__dict__ or function.__kwdefaults__:
        raise _Changeable
    parts.append(function.__code__)
    _add(function.__defaults__, parts)
    known = set(parts[1:]) if len(parts) < 8 else None
    for name in _names(function.__code__):
        value = function.__globals__.get(name, _MISSING)
        # One that calls itself names what is there already.
        if value is not function and not (known and type(value) is types.FunctionType and value in known):
            _add(value, parts)
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:
            raise _Changeable from None
        if value is not function:
            _add(value, parts)


def _parts_of(function: Any) -> list[Any] | None:
    """All that a function is made of; none if that may have changed without a sign of it."""
    parts: list[Any] = []
    try:
        if type(function) is types.FunctionType and not is_importable(function):
            _add_function(function, parts)
        elif not is_importable(function):
            return None
    except (_Changeable, RecursionError):
        return None
    return parts


class Known:
    """The functions that workers have."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, list[Any], Any]] = {}

    def get(self, function: Callable[..., Any], make: Callable[[Any], Any]) -> Any:
        """Return what was made of a function that means the same as then, or make it."""
        parts = _parts_of(function)
        if parts is None:
            return make(function)
        known = self._made.get(id(function))
        if known is not None and known[0] is function and _are_same(known[1], parts):
            return known[2]
        made = make(function)
        if len(self._made) >= _KNOWN_MAX:
            del self._made[next(iter(self._made))]
        self._made[id(function)] = function, parts, made
        return made


def _are_same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(first is second for first, second in zip(one, other))
