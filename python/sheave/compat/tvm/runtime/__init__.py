"""``tvm.runtime``: values, devices, and `disco`."""

from sheave.compat.tvm.runtime import disco
from sheave.compat.tvm.runtime.device import Device, cpu, cuda, device
from sheave.compat.tvm.runtime.errors import InternalError, TVMError
from sheave.compat.tvm.runtime.module import Module
from sheave.compat.tvm.runtime.values import NDArray, Shape, ShapeTuple, String, Tensor, empty, tensor

__all__ = [
    "Device",
    "InternalError",
    "Module",
    "NDArray",
    "Shape",
    "ShapeTuple",
    "String",
    "TVMError",
    "Tensor",
    "cpu",
    "cuda",
    "device",
    "disco",
    "empty",
    "tensor",
]
