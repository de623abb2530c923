from collections.abc import Callable, Sequence
from typing import Any, final

from sheave._core import RpcGroup, Work
from sheave.learner import ClientReport

__all__ = ["GradientClient", "GradientServer"]

@final
class GradientServer:
    """A gradient server of this process, as `sheave.learner` uses it."""

    @staticmethod
    def start(
        group: RpcGroup, servers: tuple[str, Any, Sequence[Any]], model: Sequence[tuple[str, Any, Sequence[int]]],
        settings: tuple[str, int, int, str, float | None], *, version: int = 0,
        parameters: dict[str, Any] | None = None, optimizer: str | None = None,
        step: Callable[..., Any] | None = None, publish: Callable[..., Any] | None = None,
        on_drop: Callable[..., Any] | None = None, timeout: float | None = None,
    ) -> Work[GradientServer]: ...
    def stop(self) -> None: ...
    def watch(self) -> Work[None]: ...
    def flush(self) -> None: ...
    def report(self) -> dict[str, Any]: ...

@final
class GradientClient:
    """A learner's access to gradient servers, as `sheave.learner` uses it."""

    @staticmethod
    def connect(
        group: RpcGroup, servers: tuple[str, Any, Sequence[Any]], *, choice: int | None = None,
        timeout: float | None = None,
    ) -> Work[GradientClient]: ...
    def names(self) -> list[str]: ...
    def push(self, gradients: dict[str, Any], *, timeout: float | None = None) -> Work[int]: ...
    def flush(self) -> Work[int]: ...
    def report(self) -> Work[ClientReport]: ...
    def known(self) -> dict[str, Any]: ...
