"""Groups of processes for remote procedure calls."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sheave
from sheave import AlreadyExists, NotFound

from sheave.compat.machin.parallel.distributed import current
from sheave.compat.machin.parallel.distributed.futures import Future
from sheave.compat.machin.parallel.distributed.rref import RRef
from sheave.compat.runtime_errors import raising

#: Arguments by place.
Args = tuple[Any, ...] | list[Any]

#: Operations that find out whether there is an entry.
_LOOKS = ("deregister", "get paired", "look up", "unpair")


class RpcGroup:
    """Some processes of a world that call each other. Made by `World.create_rpc_group`.

    It can be pickled: what is opened elsewhere is a handle, to look up and to call. Timeouts are in seconds; -1 is the
    world's `rpc_timeout`, 0 none.
    """

    def __init__(self, group: sheave.RpcGroup, timeout: float) -> None:
        self.group = group
        self.group_name = group.name
        self.group_members = sorted(member.name for member in group.members)
        self.destroyed = False
        self._timeout = timeout

    def rpc_sync(
        self,
        to: Any,
        func: Callable[..., Any],
        timeout: float = -1,
        args: Args = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls a function on a member, given by name, rank or worker info, and waits for its result."""
        with raising():
            return self.group.rpc_sync(self._target(to), func, args, kwargs, timeout=self._limit(timeout))

    def rpc_async(
        self,
        to: Any,
        func: Callable[..., Any],
        timeout: float = -1,
        args: Args = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Future:
        """Calls a function on a member; returns a future of its result."""
        with raising():
            return Future(self.group.rpc_async(self._target(to), func, args, kwargs, timeout=self._limit(timeout)))

    def remote(
        self,
        to: Any,
        func: Callable[..., Any],
        timeout: float = -1,
        args: Args = (),
        kwargs: dict[str, Any] | None = None,
    ) -> RRef:
        """Calls a function on a member and keeps the result there; returns a reference to it.

        `timeout` is that of the first use of the reference that says none of its own.
        """
        with raising():
            return RRef(self.group.remote(self._target(to), func, args, kwargs), self._limit(timeout))

    def pair(self, key: Any, value: Any) -> None:
        """Keeps a value of this process under a key, for whoever gets it."""
        self._members_only("pair")
        with _taken(f'Value with key "{key}" already paired to Group [{self.group_name}]'):
            self.group.pair(key, value, timeout=self._limit(-1))

    def unpair(self, key: Any) -> None:
        """Lets nobody get the value of this key any more, which this process has paired."""
        self._members_only("unpair")
        where = f"Group [{self.group_name}] on Process[{current.get_cur_name()}]"
        with _missing(f'Value with key "{key}" not paired to {where}'):
            self.group.unpair(key, timeout=self._limit(-1))

    def is_paired(self, key: Any) -> bool:
        """Whether a member has paired a value under this key."""
        with raising():
            return self.group.is_paired(key, timeout=self._limit(-1))

    def get_paired(self, key: Any) -> RRef:
        """A reference to the value of this key."""
        with _missing(f"Value with key [{key}] not found on Group [{self.group_name}]"):
            return RRef(self.group.get_paired(key, timeout=self._limit(-1)), self._limit(-1))

    def register(self, key: Any, service: Callable[..., Any]) -> None:
        """Lets whoever has the group call a function of this process by a key."""
        self._members_only("register")
        with _taken(f'Service with key "{key}" already registered in Group [{self.group_name}]'):
            self.group.register(key, service, timeout=self._limit(-1))

    def deregister(self, key: Any) -> None:
        """Lets nobody call the service of this key any more, which this process has registered."""
        self._members_only("deregister")
        where = f"Group [{self.group_name}] on Process[{current.get_cur_name()}]"
        with _missing(f'Service with key "{key}" not registered in {where}'):
            self.group.deregister(key, timeout=self._limit(-1))

    def is_registered(self, key: Any) -> bool:
        """Whether a member has registered a service under this key."""
        with raising():
            return self.group.is_registered(key, timeout=self._limit(-1))

    def registered_sync(self, key: Any, args: Args = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Calls the service of this key and waits for its result."""
        with _missing(self._no_service(key)):
            return self.group.registered_sync(key, args, kwargs, timeout=self._limit(-1))

    def registered_async(self, key: Any, args: Args = (), kwargs: dict[str, Any] | None = None) -> Future:
        """Calls the service of this key; returns a future of its result."""
        self._find(key)
        with raising():
            return Future(self.group.registered_async(key, args, kwargs, timeout=self._limit(-1)))

    def registered_remote(self, key: Any, args: Args = (), kwargs: dict[str, Any] | None = None) -> RRef:
        """Calls the service of this key and keeps the result there; returns a reference to it."""
        with _missing(self._no_service(key)):
            made = self.group.registered_remote(key, args, kwargs, timeout=self._limit(-1))
        return RRef(made, self._limit(-1))

    def barrier(self) -> None:
        """Waits until all members have come here as often as this one."""
        self._members_only("barrier")
        with raising():
            self.group.barrier(self._limit(-1))

    def destroy(self) -> None:
        """Leaves the group, with all that this process has paired and registered there. Its name is free here then."""
        if self.destroyed:
            return
        self._members_only("destroy")
        self.destroyed = True
        world = current.get_world()
        if world is not None and world.groups.get(self.group_name) is self:
            del world.groups[self.group_name]
        with raising():
            self.group.destroy()

    def size(self) -> int:
        """The number of members."""
        return len(self.group_members)

    def is_member(self, target: str | None = None) -> bool:
        """Whether the process of this name is a member; this one if None."""
        if target is None:
            return not self.destroyed and self.group.is_member
        return target in self.group_members

    def get_group_name(self) -> str:
        """The name of the group."""
        return self.group_name

    def get_group_members(self) -> list[str]:
        """The names of the members, in ascending order."""
        return list(self.group_members)

    @staticmethod
    def get_cur_name() -> str:
        """This process's name in the world."""
        return current.get_cur_name()

    def __reduce__(self) -> Any:
        return RpcGroup, (self.group, self._timeout)

    def _limit(self, timeout: float) -> float | None:
        limit_s = self._timeout if timeout < 0 else timeout
        return None if limit_s == 0 else limit_s

    def _set_rpc_timeout(self, timeout: float) -> None:
        """Makes this the timeout that -1 means."""
        self._timeout = timeout

    def _target(self, to: Any) -> Any:
        """What sheave calls a member by: its name or its rank in the world."""
        named = getattr(to, "name", to)
        if isinstance(named, int) and not isinstance(named, bool):
            world = current.get_world()
            named = None if world is None else world.rank_name_map.get(named)
        if named not in self.group_members:
            raise RuntimeError("RPC target is not a member of group.")
        return named

    def _members_only(self, function: str) -> None:
        if not self.is_member():
            what = "when current process is not a member of the group"
            raise RuntimeError(f"You should not execute function {function} {what}")

    def _no_service(self, key: Any) -> str:
        return f"Service with key [{key}] not found on Group [{self.group_name}]"

    def _find(self, key: Any) -> None:
        """A service that nobody has is missing at the call, not at the wait."""
        with raising():
            if not self.group._finds(key, timeout=self._limit(-1)):
                raise KeyError(self._no_service(key))


@contextmanager
def _taken(text: str) -> Iterator[None]:
    """A key that somebody has leaves this as a KeyError."""
    try:
        with raising():
            yield
    except AlreadyExists as error:
        raise KeyError(text) from error


@contextmanager
def _missing(text: str) -> Iterator[None]:
    """What is found nowhere leaves this as a KeyError."""
    try:
        with raising():
            yield
    except NotFound as error:
        # A function that was called may have missed something of its own.
        if error.op not in _LOOKS:
            raise
        raise KeyError(text) from error
