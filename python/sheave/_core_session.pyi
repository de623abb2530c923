from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn, Self, final

from typing_extensions import disjoint_base

__all__ = ["Function", "ProcessSession", "Register", "Session", "SessionWorker", "ThreadedSession", "WorkerObject"]

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

@final
class Register:
    """The result of a command: one value on each worker."""

    def get(self, worker: int = 0, timeout: float | None = None) -> Any: ...
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
