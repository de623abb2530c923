"""Lanes: where the handlers of what `Mesh.serve` serves run, said at the function, the method or the class."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeVar

__all__ = ["lane"]

_MARK = "__sheave_lane__"
_LANES = ("concurrent", "serial")
_Marked = TypeVar("_Marked", bound=Callable[..., Any])


def lane(name: Literal["concurrent", "serial"]) -> Callable[[_Marked], _Marked]:
    """Have handlers of a function, a method or a class run on this lane wherever it is served.

    "concurrent" is several at a time, also of one caller; "serial" one after the other, in the order in which each
    caller has called. The serial methods of one service share one order; what a method says comes before what
    `Mesh.serve` is told, and that before what the class says. Of an async method that is serial the next call begins
    when the one before has ended.

    >>> import sheave
    >>> class Counter:
    ...     def __init__(self):
    ...         self.count = 0
    ...     @sheave.lane("serial")
    ...     def add(self, number):
    ...         self.count += number
    ...         return self.count
    >>> with sheave.Mesh() as mesh:
    ...     mesh.serve("counter", Counter())
    ...     sums = [mesh.call(0, "counter.add", (1,), async_op=True) for _ in range(3)]
    ...     [each.wait(timeout=10) for each in sums]
    [1, 2, 3]

    Raises InvalidArgument for another name.
    """
    _check(name)

    def mark(marked: _Marked) -> _Marked:
        # A staticmethod passes on what it is given to what it wraps, and a bound method has no attributes.
        setattr(getattr(marked, "__func__", marked), _MARK, name)
        return marked

    return mark


def _of(service: Any, told: str | None) -> tuple[str, dict[str, str]]:
    """The lane of a service, and those of its methods that say another one."""
    if told is not None:
        _check(told)
    whole = told or _said_by(service) or _LANES[0]
    if inspect.isroutine(service):
        return whole, {}
    members = dict(inspect.getmembers_static(service))
    lanes = {name: _said_by(member) or whole for name, member in members.items() if not name.startswith("_")}
    if not inspect.isclass(service):
        # The object itself is called under no name.
        lanes[""] = _said_by(members.get("__call__")) or whole
    return whole, {name: said for name, said in lanes.items() if said != whole}


def _said_by(marked: Any) -> str | None:
    said = inspect.getattr_static(getattr(marked, "__func__", marked), _MARK, None)
    return said if said in _LANES else None


def _check(name: str) -> None:
    if name not in _LANES:
        from sheave import InvalidArgument

        raise InvalidArgument(f'there is no lane {name!r}; hint: lanes are "concurrent" and "serial"')
