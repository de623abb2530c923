"""Functions of shared objects, which take tensors as DLPack has them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from sheave.compat.tvm.runtime.values import Tensor

__all__ = ["Symbols"]

#: By numpy's letters; others have no number in DLPack that C knows.
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


_FIELDS = [
    ("data", ctypes.c_void_p),
    ("device_type", ctypes.c_int32),
    ("device_id", ctypes.c_int32),
    ("ndim", ctypes.c_int32),
    ("code", ctypes.c_uint8),
    ("bits", ctypes.c_uint8),
    ("lanes", ctypes.c_uint16),
    ("shape", ctypes.POINTER(ctypes.c_int64)),
    ("strides", ctypes.POINTER(ctypes.c_int64)),
    ("byte_offset", ctypes.c_uint64),
]
_DLTensor: Any = type("_DLTensor", (ctypes.Structure,), {"_fields_": _FIELDS})


def _described(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype.kind not in _CODES:
        raise ValueError(f"an array of {array.dtype.name}; expected whole, floating or complex numbers, or bools")
    extents = ctypes.c_int64 * max(array.ndim, 1)
    shape = extents(*array.shape)
    strides = extents(*(stride // array.itemsize for stride in array.strides))
    code, bits = _CODES[array.dtype.kind], 8 * array.itemsize
    return _DLTensor(array.ctypes.data, 1, 0, array.ndim, code, bits, 1, shape, strides, 0)


class Symbols(Mapping[str, Callable[..., None]]):
    """Functions of a shared object by their names. It does not say which it has."""

    def __init__(self, path: str):
        self._path, self._library = path, ctypes.CDLL(path)
        if hasattr(self._library, "vm_load_executable"):
            raise ValueError(f"{path} was compiled for TVM's virtual machine, which sheave's face of TVM has not")

    def __getitem__(self, name: str) -> Callable[..., None]:
        try:
            function = self._library[name]
        except AttributeError:
            raise KeyError(name) from None
        function.restype = ctypes.c_int

        def called(*args: Any) -> None:
            arrays = [arg._array if isinstance(arg, Tensor) else arg for arg in args]
            if not all(isinstance(array, np.ndarray) for array in arrays):
                raise TypeError(f"{name} of {self._path} takes tensors alone")
            tensors = [_described(array) for array in arrays]
            pointers = (ctypes.POINTER(_DLTensor) * max(len(tensors), 1))(*map(ctypes.pointer, tensors))
            status = function(pointers, ctypes.c_int(len(tensors)))
            if status != 0:
                raise RuntimeError(f"{name} of {self._path} has failed with status {status}")

        called.__qualname__ = name
        return called

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
