"""Devices as labels: every array lies in host memory, whatever device it is said to be on."""

import threading
from types import TracebackType
from typing import Any

__all__ = ["Context", "cpu", "cpu_pinned", "current_context", "gpu", "gpu_memory_info", "num_gpus"]

_local = threading.local()


class Context:
    """A device by type and number. As a context manager it is where arrays are said to be that name none.

    >>> import sheave.compat.mxnet as mx
    >>> with mx.Context("gpu", 1):
    ...     print(mx.nd.zeros(2).context, mx.Context("cpu", 2) == mx.cpu(2))
    gpu(1) True
    """

    devtype2str = {1: "cpu", 2: "gpu", 3: "cpu_pinned", 5: "cpu_shared"}
    devstr2type = {name: number for number, name in devtype2str.items()}

    def __init__(self, device_type: "str | Context", device_id: int = 0) -> None:
        self.device_typeid: int
        self.device_id: int
        if isinstance(device_type, Context):
            self.device_typeid, self.device_id = device_type.device_typeid, device_type.device_id
        else:
            self.device_typeid, self.device_id = self.devstr2type[device_type], device_id

    @property
    def device_type(self) -> str:
        """`cpu`, `gpu`, `cpu_pinned` or `cpu_shared`."""
        return self.devtype2str[self.device_typeid]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and (self.device_typeid, self.device_id) == (
            other.device_typeid,
            other.device_id,
        )

    def __hash__(self) -> int:
        return hash((self.device_typeid, self.device_id))

    def __repr__(self) -> str:
        return f"{self.device_type}({self.device_id})"

    def empty_cache(self) -> None:
        """Does nothing: no memory is kept for a device."""

    def __enter__(self) -> "Context":
        _stack().append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _stack().pop()


def _stack() -> list[Context]:
    if not hasattr(_local, "stack"):
        _local.stack = [Context("cpu", 0)]
    stack: list[Context] = _local.stack
    return stack


def current_context() -> Context:
    """The innermost context that was entered in this thread, `cpu(0)` outside of all."""
    return _stack()[-1]


def cpu(device_id: int = 0) -> Context:
    """A processor's memory."""
    return Context("cpu", device_id)


def cpu_pinned(device_id: int = 0) -> Context:
    """The same memory: nothing is pinned."""
    return Context("cpu_pinned", device_id)


def gpu(device_id: int = 0) -> Context:
    """The label of a GPU. Arrays "on" it lie in host memory as all do."""
    return Context("gpu", device_id)


def num_gpus() -> int:
    """0: the face uses none."""
    return 0


def gpu_memory_info(device_id: int = 0) -> Any:
    """Raises `MXNetError`, as without a GPU."""
    from sheave.compat.mxnet.base import MXNetError

    raise MXNetError(f"gpu({device_id}) is a label; no memory of a GPU is used")
