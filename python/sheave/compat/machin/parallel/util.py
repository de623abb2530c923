"""What calls something when an object goes."""

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["Finalize"]


class Finalize:
    """Calls `callback(*args, **kwargs)` once: when `obj` goes, or when it is called itself, whichever comes first.

    With None for `obj` only by a call of it. In no process but the one that has made it, and not because that process
    ends; so `exitpriority` is kept, and does nothing.
    """

    def __init__(
        self,
        obj: Any,
        callback: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        exitpriority: int | None = None,
    ) -> None:
        if not callable(callback):
            raise TypeError(f"callback must be a callable, and is a {type(callback).__name__}")
        self._call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None
        self._call = callback, tuple(args), dict(kwargs or {})
        self._pid = os.getpid()
        self.exitpriority = exitpriority
        self._watch: weakref.finalize[..., Any] | None = None
        if obj is not None:
            self._watch = weakref.finalize(obj, self)
            self._watch.atexit = False

    def __call__(self) -> Any:
        """Call it, unless that was done; returns what it returns."""
        call = self._call
        self.cancel()
        if call is None or self._pid != os.getpid():
            return None
        callback, args, kwargs = call
        return callback(*args, **kwargs)

    def cancel(self) -> None:
        """Never call it any more."""
        self._call = None
        if self._watch is not None:
            self._watch.detach()

    def still_active(self) -> bool:
        """Whether it is still to be called."""
        return self._call is not None
