"""Errors of TVM's names."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from sheave import SheaveError
from sheave.compat.runtime_errors import raised

__all__ = ["InternalError", "TVMError", "raising"]

_F = TypeVar("_F", bound=Callable[..., Any])

#: What TVM raises where nothing more is known of an error. Those of sheave are such too.
TVMError = RuntimeError
InternalError = RuntimeError


def raising(function: _F) -> _F:
    """Errors of sheave leave this function as RuntimeErrors."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except SheaveError as error:
            made = raised(error)
            raise made from made.__cause__

    return cast(_F, called)
