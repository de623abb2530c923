"""``tvm.nd``: tensors, under their former names."""

from typing import Any

from sheave.compat.tvm.runtime.device import Device, cpu, cuda, device
from sheave.compat.tvm.runtime.values import NDArray, empty, tensor

__all__ = ["NDArray", "array", "cpu", "cuda", "device", "empty"]


def array(arr: Any, device: Device | None = None, mem_scope: str | None = None) -> NDArray:
    """Makes a tensor with the elements of an array."""
    return tensor(arr, device, mem_scope)
