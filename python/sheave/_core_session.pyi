from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn, Self, TypeAlias, final

from typing_extensions import disjoint_base

__all__ = [
    "Function",
    "ProcessSession",
    "Register",
    "Session",
    "SessionWorker",
    "SocketSession",
    "ThreadedSession",
    "WorkerObject",
]

_Scope: TypeAlias = Literal["group", "world"]

@disjoint_base
class Session:
    """One controller and its workers."""

    @property
    def workers(self) -> int: ...
    @property
    def groups(self) -> int: ...
    def function(self, function: str | Callable[..., Any]) -> Register: ...
    def call(
        self, function: Register | str | Callable[..., Any], *args: Any, timeout: float | None = None
    ) -> Register: ...
    def import_module(self, name: str) -> None: ...
    def sync(self, worker: int | None = None, timeout: float | None = None) -> None: ...
    def empty(
        self, shape: int | Sequence[int], dtype: Any = None, *, placement: Literal["all", "leaders", "first"] = "all"
    ) -> Register: ...
    def copy_to_first(self, array: Any, target: Register | None = None) -> Register: ...
    def copy_from_first(self, array: Any, source: Register) -> None: ...
    def broadcast(self, array: Any, target: Register | None = None, *, scope: _Scope = "group") -> Register: ...
    def broadcast_from_first(
        self, source: Register, target: Register | None = None, *, scope: _Scope = "group"
    ) -> Register: ...
    def scatter(self, array: Any, target: Register | None = None, *, scope: _Scope = "group") -> Register: ...
    def scatter_from_first(
        self, source: Register, target: Register | None = None, *, scope: _Scope = "group"
    ) -> Register: ...
    def gather_to_first(
        self, source: Register, target: Register | None = None, *, scope: _Scope = "group"
    ) -> Register: ...
    def all_gather(self, source: Register, target: Register | None = None, *, scope: _Scope = "group") -> Register: ...
    def all_reduce(
        self,
        source: Register,
        target: Register | None = None,
        op: Literal["sum", "prod", "product", "min", "max", "avg", "mean"] = "sum",
        *,
        scope: _Scope = "group",
    ) -> Register: ...
    def send_between(
        self, sender: int, source: Register, receiver: int, target: Register | None = None
    ) -> Register: ...
    def pass_to_next_group(self, source: Register, target: Register | None = None) -> Register: ...
    def limit_collectives(self, timeout: float | None) -> None: ...
    def renew_collectives(self) -> None: ...
    def shutdown(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, _error: object, _traceback: object) -> None: ...

class ThreadedSession(Session):
    """A session whose workers are threads of this process."""

    def __new__(cls, num_workers: int, num_groups: int = 1) -> Self: ...

class ProcessSession(Session):
    """A session whose workers are processes."""

    def __new__(
        cls,
        num_workers: int,
        num_groups: int = 1,
        entrypoint: str | None = None,
        *,
        env: Mapping[str, str] | None = None,
        output: Literal["prefix", "inherit", "quiet"] = "prefix",
    ) -> Self: ...

class SocketSession(Session):
    """A session of several nodes."""

    def __new__(
        cls,
        num_nodes: int,
        num_workers_per_node: int,
        num_groups: int,
        host: str,
        port: int,
        entrypoint: str | None = None,
        *,
        env: Mapping[str, str] | None = None,
        output: Literal["prefix", "inherit", "quiet"] = "prefix",
        secret: str | bytes | None = None,
    ) -> Self: ...

@final
class Register:
    """The result of a command: one value on each worker."""

    def get(self, worker: int = 0, timeout: float | None = None, *, share: bool = False) -> Any: ...
    def local(self, timeout: float | None = None) -> Any: ...
    def set(self, worker: int, value: Any, timeout: float | None = None) -> None: ...
    def __reduce__(self) -> NoReturn: ...  # type: ignore[override, unused-ignore]

@final
class Function:
    """A function of a worker's that is not Python's."""

    @property
    def name(self) -> str: ...
    def __call__(self, *args: Any) -> Any: ...

@final
class WorkerObject:
    """An object of a worker's that is not Python's."""

@final
class SessionWorker:
    """Who a worker is."""

    @property
    def id(self) -> int: ...
    @property
    def workers(self) -> int: ...
    @property
    def groups(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def group_size(self) -> int: ...
    @property
    def node(self) -> int: ...
    @property
    def local_id(self) -> int: ...
