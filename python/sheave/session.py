"""Sessions: one controller, and workers that run its commands in order.

The controller calls functions on all workers at once and waits for none of it. Results stay where they were made, in
registers, which later commands take as arguments; what is wanted is fetched.

>>> import sheave.session
>>> with sheave.session.ThreadedSession(2) as session:
...     ids = session.call(lambda: sheave.session.worker().id)
...     tens = session.call(lambda number: 10 * number, ids)
...     tens.get(worker=0), tens.get(worker=1)
(0, 10)

Functions are found by the names under which the workers' processes have registered them, or are sent along. What one of
Python's returns stays on its worker as the very object, is passed to later ones as that, and is made a value only where
it is fetched or a function of Rust's reads it: an object whose class has a method `__sheave_value__` is what that
returns then. All functions of a worker run on one thread.

Workers move and reduce the arrays in their registers together, by commands too (`Session.broadcast`, `all_reduce` and
so on): within each group, or all of them. A register that is given as target has its array written in place.

>>> import numpy
>>> with sheave.session.ThreadedSession(2) as session:
...     rows = session.scatter(numpy.arange(4.0).reshape(2, 2))
...     session.all_reduce(rows).get(worker=1).tolist()
[2.0, 4.0]

Exceptions come back: whatever waits for the worker next raises them, with the class that they had. The other workers go
on, and so does the session. A worker that dies is WorkerDied, within a second, in whatever waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from sheave import _core
from sheave._core_session import (
    Function,
    ProcessSession,
    Register,
    Session,
    SessionWorker,
    SocketSession,
    ThreadedSession,
    WorkerObject,
)

__all__ = [
    "Function",
    "ProcessSession",
    "Register",
    "Session",
    "SessionWorker",
    "SocketSession",
    "ThreadedSession",
    "WorkerObject",
    "register_function",
    "registered_function",
    "unregister_function",
    "work",
    "worker",
]

_F = TypeVar("_F", bound=Callable[..., Any])


@overload
def register_function(name: str, function: _F, *, replace: bool = False) -> _F: ...


@overload
def register_function(name: str, function: None = None, *, replace: bool = False) -> Callable[[_F], _F]: ...


def register_function(name: str, function: Any = None, *, replace: bool = False) -> Any:
    """Let the workers of this process find a function by its name; without a function this is a decorator.

    Workers that are processes register theirs when they import the program, or a module by `Session.import_module`.

    >>> import sheave.session
    >>> @sheave.session.register_function("double")
    ... def double(number):
    ...     return 2 * number
    >>> with sheave.session.ThreadedSession(1) as session:
    ...     session.call(session.function("double"), 21).get()
    42
    >>> sheave.session.unregister_function("double")

    Raises AlreadyExists for a name that another one has, unless that is to be replaced; registers that hold it keep it.
    """
    if function is not None:
        _core._session_register(name, function, replace)
        return function

    def register(function: _F) -> _F:
        _core._session_register(name, function, replace)
        return function

    return register


def registered_function(name: str) -> Callable[..., Any] | None:
    """Return the function that the workers of this process find by this name; None if there is none.

    >>> import sheave.session
    >>> sheave.session.registered_function("no such function") is None
    True
    """
    found: Callable[..., Any] | None = _core._session_registered(name)
    return found


def unregister_function(name: str) -> None:
    """Let nobody find the function of this name any more. Registers that hold it keep it.

    >>> import sheave.session
    >>> _ = sheave.session.register_function("triple", lambda number: 3 * number)
    >>> sheave.session.unregister_function("triple")

    Raises NotFound if there is none.
    """
    _core._session_unregister(name)


def worker() -> SessionWorker:
    """Return who the worker is on whose thread this is called.

    >>> import sheave.session
    >>> with sheave.session.ThreadedSession(2) as session:
    ...     session.call(lambda: sheave.session.worker().id).get(worker=1)
    1

    Raises NotFound on any other thread, those that a worker's function starts included.
    """
    return _core._session_worker()


def work() -> None:
    """Be the worker as which a session has started this process, until that ends: what an entrypoint does.

    >>> import sheave.session
    >>> sheave.session.work()
    Traceback (most recent call last):
    ...
    sheave.InvalidArgument: ...

    Blocks. Raises InvalidArgument if no session has started this process, PeerLost if the controller dies.
    """
    _core._session_work()
