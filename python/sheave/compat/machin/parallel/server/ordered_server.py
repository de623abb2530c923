"""Servers that keep objects in the order of their versions."""

from abc import ABC, abstractmethod
from typing import Any

import sheave
from sheave.versions import Pulled, Versions, VersionsClient

from sheave.compat.machin.parallel.distributed import current
from sheave.compat.machin.parallel.distributed.rpc_group import RpcGroup
from sheave.compat.runtime_errors import raising


class OrderedServerBase(ABC):
    """What a client has of a server that keeps objects in the order of their versions."""

    @abstractmethod
    def push(self, key: Any, value: Any, version: Any, prev_version: Any) -> bool:
        """Pushes a value as this version of a key, made from the previous one. Returns whether it was accepted."""

    @abstractmethod
    def pull(self, key: Any, version: Any = None) -> tuple[Any, Any] | None:
        """Returns the value of a version, or of the newest, and that version; None if it is not there."""


class OrderedServerSimple(OrderedServerBase):
    """The accessor of an ordered server, which may be pickled."""

    def __init__(self, server_name: str, group: RpcGroup) -> None:
        self.server_name = server_name
        self.group = group
        self._table: VersionsClient | None = None

    def push(self, key: Any, value: Any, version: Any, prev_version: Any) -> bool:
        """Pushes a value as this version of a key. Returns whether it was accepted: a key that is not known takes any
        push, any other one that was made from its newest version. One that is there is overwritten where it stands."""
        with raising():
            return bool(self._found().push(key, value, version, prev_version, timeout=self._limit()))

    def pull(self, key: Any, version: Any = None) -> tuple[Any, Any] | None:
        """Returns the value of a version, or of the newest, and that version; None if it is not there. The value is the
        caller's own."""
        with raising():
            return _pair(self._found().pull(key, version, timeout=self._limit()))

    def _pull_newer(self, key: Any, known: Any) -> Pulled | None:
        """Returns the newest version, with its value if that is another one than the caller knows. Arrays are read-only
        and tensors not to be written: they are the server's own where that is on this host."""
        with raising():
            table, limit = self._found(), self._limit()
            if known is None:
                return table.pull(key, share=True, timeout=limit)
            pulled = table.pull(key, newer_than=known, share=True, timeout=limit)
            if pulled is not None and pulled.kind == "changes":
                # The caller may have changed what it has.
                pulled = table.pull(key, share=True, timeout=limit)
            return pulled

    def _found(self) -> VersionsClient:
        if self._table is None:
            self._table = self.group.group.versions(_table_key(self.server_name), timeout=self._limit())
        return self._table

    def _limit(self) -> float | None:
        return self.group._limit(-1)

    def __reduce__(self) -> Any:
        return OrderedServerSimple, (self.server_name, self.group)


class OrderedServerSimpleImpl:
    """A server that keeps the newest versions of each key: `version_depth` of them, and the one before.

    It serves members of the group and whoever has a handle of it; `OrderedServerSimple` is paired under its name.
    """

    def __init__(self, server_name: str, group: Any, version_depth: int = 1, **_: Any) -> None:
        assert group.is_member()
        assert isinstance(version_depth, int) and version_depth > 0
        self.server_name = server_name
        self.group = group
        self.version_depth = version_depth
        world = current.get_world()
        is_ours = isinstance(group, RpcGroup) and world is not None
        # A group that is none of ours is served by a mesh of this process alone.
        self._mesh = world.mesh if is_ours and world is not None else sheave.Mesh()
        # The original keeps one more than it says, and its tests ask for that.
        self._versions = Versions(self._mesh, depth=version_depth + 1, rules="machin")
        self._table = self._versions.client()
        if is_ours:
            with raising():
                self._versions.register(group.group, _table_key(server_name), timeout=group._limit(-1))
        group.register(server_name + "/_push_service", self._push_service)
        group.register(server_name + "/_pull_service", self._pull_service)
        # Last: who finds the accessor finds the services.
        group.pair(server_name, OrderedServerSimple(server_name, group))

    def _push_service(self, key: Any, value: Any, version: Any, prev_version: Any) -> bool:
        with raising():
            return bool(self._table.push(key, value, version, prev_version))

    def _pull_service(self, key: Any, version: Any = None) -> tuple[Any, Any] | None:
        with raising():
            return _pair(self._table.pull(key, version))


def _table_key(server_name: str) -> str:
    return server_name + "/_versions"


def _pair(pulled: Pulled | None) -> tuple[Any, Any] | None:
    return None if pulled is None else (pulled.value, pulled.version)
