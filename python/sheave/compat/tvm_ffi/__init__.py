"""``tvm_ffi``: the part of `sheave.compat.tvm` that TVM has in a package of its own."""

from sheave.compat.tvm.registry import (
    Function,
    get_global_func,
    register_func,
    register_global_func,
    remove_global_func,
)
from sheave.compat.tvm.runtime.device import Device, device
from sheave.compat.tvm.runtime.module import Module
from sheave.compat.tvm.runtime.values import Shape, Tensor
from sheave.compat.tvm_ffi import core

__all__ = [
    "Device",
    "Function",
    "Module",
    "Shape",
    "Tensor",
    "core",
    "device",
    "get_global_func",
    "register_func",
    "register_global_func",
    "remove_global_func",
]
