"""References to values that stay where they are."""

from typing import Any, NamedTuple

from sheave import Ref

from sheave.compat.machin.parallel.distributed.futures import Future
from sheave.compat.runtime_errors import raising


class WorkerInfo(NamedTuple):
    """A process of the world: its rank and its name."""

    id: int
    name: str


class RRef:
    """A counted reference to a value that lives on one process, as torch's are used.

    It travels in arguments and results. The value lives until the last reference to it is gone. Timeouts are in
    seconds.
    """

    def __init__(self, ref: Ref, timeout: float | None) -> None:
        self._ref = ref
        self._timeout = timeout

    def to_here(self, timeout: float | None = None) -> Any:
        """The value: itself in the process that has it, a copy in others."""
        limit_s = self._timeout if timeout is None else timeout or None
        with raising():
            return self._ref.get(limit_s)

    def local_value(self) -> Any:
        """The value itself, in the process that has it."""
        with raising():
            return self._ref.local_value(self._timeout)

    def is_owner(self) -> bool:
        """Whether the value lives in this process."""
        with raising():
            return self._ref.is_owner

    def owner(self) -> WorkerInfo:
        """The process that has the value."""
        with raising():
            owner = self._ref.owner
        return WorkerInfo(owner.rank or 0, owner.name)

    def owner_name(self) -> str:
        """The name of the process that has the value."""
        with raising():
            return self._ref.owner_name

    def confirmed_by_owner(self) -> bool:
        """Whether the owner is known to have heard of this reference. Does not wait."""
        with raising():
            return self._ref.confirmed_by_owner()

    def rpc_sync(self, timeout: float = -1) -> Any:
        """A proxy: its methods are those of the value, called where it is, and return their results."""
        return _Proxy(self, timeout, _sync)

    def rpc_async(self, timeout: float = -1) -> Any:
        """As `rpc_sync`, whose methods return futures."""
        return _Proxy(self, timeout, _async)

    def remote(self, timeout: float = -1) -> Any:
        """As `rpc_sync`, whose methods return references to their results."""
        return _Proxy(self, timeout, _remote)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RRef) and self._ref == other._ref

    def __hash__(self) -> int:
        return hash(self._ref)

    def __repr__(self) -> str:
        return f"<RRef to a value of {self.owner_name()}>"


def _sync(ref: RRef, method: str, args: Any, kwargs: Any, limit_s: float | None) -> Any:
    return ref._ref.call(method, args, kwargs, timeout=limit_s)


def _async(ref: RRef, method: str, args: Any, kwargs: Any, limit_s: float | None) -> Future:
    return Future(ref._ref.call(method, args, kwargs, timeout=limit_s, async_op=True))


def _remote(ref: RRef, method: str, args: Any, kwargs: Any, limit_s: float | None) -> RRef:
    return RRef(ref._ref.remote(method, args, kwargs), limit_s)


class _Proxy:
    """The methods of a value elsewhere."""

    def __init__(self, ref: RRef, timeout: float, call: Any) -> None:
        self._ref = ref
        self._limit_s = ref._timeout if timeout < 0 else timeout or None
        self._call = call

    def __getattr__(self, method: str) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            with raising():
                return self._call(self._ref, method, args, kwargs, self._limit_s)

        return called
