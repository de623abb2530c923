from collections.abc import Sequence
from typing import Any, Literal, final, overload

from sheave._core import Mesh, RpcGroup, Work
from sheave.versions import Pulled, Pushed

__all__ = ["Pin", "Versions", "VersionsClient"]

@final
class Versions:
    """A table of keys whose values have versions, in this process."""

    def __new__(
        cls, mesh: Mesh, *, depth: int = 1, bytes_max: int | None = None, keys_max: int | None = None,
        rules: Literal["strict", "machin"] = "strict", has_guests: bool = False,
    ) -> Versions: ...
    def register(self, group: RpcGroup, key: Any, *, timeout: float | None = None) -> None: ...
    def client(self) -> VersionsClient: ...
    def report(self) -> dict[str, int]: ...

@final
class VersionsClient:
    """A table of versioned objects that a member of a group serves."""

    @overload
    def push(
        self, key: Any, value: Any, version: Any, previous: Any = None, *, async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> Pushed: ...
    @overload
    def push(
        self, key: Any, value: Any, version: Any, previous: Any = None, *, async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work[Pushed]: ...
    @overload
    def push_changes(
        self, key: Any, changes: dict[str, Any], version: Any, previous: Any, *, removed: Sequence[str] = [],
        async_op: Literal[False] = False, timeout: float | None = None,
    ) -> Pushed: ...
    @overload
    def push_changes(
        self, key: Any, changes: dict[str, Any], version: Any, previous: Any, *, removed: Sequence[str] = [],
        async_op: Literal[True], timeout: float | None = None,
    ) -> Work[Pushed]: ...
    @overload
    def pull(
        self, key: Any, version: Any = None, *, newer_than: Any = None, share: bool = False,
        async_op: Literal[False] = False, timeout: float | None = None,
    ) -> Pulled | None: ...
    @overload
    def pull(
        self, key: Any, version: Any = None, *, newer_than: Any = None, share: bool = False, async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work[Pulled | None]: ...
    @overload
    def watch(
        self, key: Any, newer_than: Any = None, *, share: bool = False, async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> Pulled: ...
    @overload
    def watch(
        self, key: Any, newer_than: Any = None, *, share: bool = False, async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work[Pulled]: ...
    def pin(
        self, key: Any, version: Any = None, *, lease: float = 60.0, timeout: float | None = None
    ) -> Pin | None: ...
    def versions(self, key: Any, *, timeout: float | None = None) -> list[Any]: ...
    def remove(self, key: Any, *, timeout: float | None = None) -> bool: ...
    def report(self, *, timeout: float | None = None) -> dict[str, int]: ...

@final
class Pin:
    """A version that is kept while somebody reads it."""

    @property
    def version(self) -> Any: ...
    def release(self) -> bool: ...
    def __enter__(self) -> Pin: ...
    def __exit__(self, *_args: Any) -> None: ...
