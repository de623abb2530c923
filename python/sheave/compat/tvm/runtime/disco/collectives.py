"""Operations of a session that move tensors among its workers, as methods of `Session`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from sheave import session as ground
from sheave.compat.tvm.runtime.disco.drefs import DPackedFunc

if TYPE_CHECKING:
    from sheave.compat.tvm.runtime.disco.session import Session

__all__ = ["Collectives"]


class Collectives:
    """The part of a session that calls functions which workers have under names of Disco's own."""

    _session: ground.Session

    def __init__(self) -> None:
        # Registers, and nothing that holds the session: it ends when nobody has it any more.
        self._cache: dict[str, ground.Register] = {}

    def _get_cached_method(self, name: str) -> DPackedFunc:
        """A function that is named once."""
        found = self._cache.get(name)
        if found is None:
            found = self._cache[name] = self._session.function(name)
        return DPackedFunc(found, cast("Session", self))
