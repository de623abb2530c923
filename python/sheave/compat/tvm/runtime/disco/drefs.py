"""What sessions hand out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sheave import session as ground
from sheave.compat.tvm.runtime.errors import raising
from sheave.compat.tvm.runtime.values import from_sheave, to_sheave

if TYPE_CHECKING:
    from sheave.compat.tvm.runtime.disco.session import Session

__all__ = ["DModule", "DPackedFunc", "DRef"]


class DRef:
    """The result of a command: one value on each worker, which stays there until this is dropped."""

    __slots__ = ("__weakref__", "_register", "session")

    def __init__(self, register: ground.Register | DRef, session: Session):
        self._register: ground.Register = register._register if isinstance(register, DRef) else register
        #: The session that it is of.
        self.session = session

    @raising
    def debug_get_from_remote(self, worker_id: int) -> Any:
        """Fetches the value of a worker. Blocks until it has run everything that was issued before.

        Of worker 0, which is a thread of this process, it is the very object, and a copy of all others'.
        """
        return from_sheave(self._register.local() if worker_id == 0 else self._register.get(worker_id))

    @raising
    def debug_copy_from(self, worker_id: int, value: Any) -> None:
        """Copies an array into the tensor that a worker has there, if it has one of as many bytes; gives it that as its
        value if it has something else. Blocks."""
        self.session._check_worker(worker_id)
        value = to_sheave(value)
        copy = self.session._get_cached_method("runtime.disco._debug_copy_from")
        if not copy(self, worker_id, value)._register.get(worker_id):
            self._register.set(worker_id, value)


class DPackedFunc(DRef):
    """A function of the workers'."""

    __slots__ = ()

    def __call__(self, *args: Any) -> DRef:
        """Has all workers call it. Returns at once."""
        return self.session.call_packed(self, *args)


class DModule(DRef):
    """A module of the workers'."""

    __slots__ = ()

    @raising
    def __getitem__(self, name: str) -> DPackedFunc:
        """Names a function of it. Returns at once; that there is none is told by the next wait."""
        get = self.session._get_cached_method("ffi.ModuleGetFunction")
        return DPackedFunc(get(self, name, False), self.session)
