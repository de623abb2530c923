"""``tvm_ffi.core``: values."""

from sheave.compat.tvm.registry import Function
from sheave.compat.tvm.runtime.device import Device
from sheave.compat.tvm.runtime.values import Shape, String, Tensor

__all__ = ["Device", "Function", "Shape", "String", "Tensor"]
