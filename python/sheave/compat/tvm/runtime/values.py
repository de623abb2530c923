"""What functions of TVM take and return: tensors, shapes and texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsIndex

import numpy as np

from sheave.compat.tvm.runtime.device import Device, cpu

__all__ = [
    "NDArray",
    "Shape",
    "ShapeTuple",
    "String",
    "Tensor",
    "empty",
    "from_sheave",
    "tensor",
    "to_sheave",
]


class Shape(tuple[int, ...]):
    """The extents of a tensor, or any other whole numbers.

    >>> Shape([2, 3]), list(Shape((1,))) + [4]
    ((2, 3), [1, 4])
    """

    __slots__ = ()

    def __new__(cls, content: Iterable[SupportsIndex] = ()) -> Shape:
        numbers = tuple(int(number) for number in content)
        if not all(-(2**63) <= number < 2**63 for number in numbers):
            raise ValueError(f"a shape of {numbers}; expected whole numbers of 64 bits")
        return super().__new__(cls, numbers)


ShapeTuple = Shape


class String(str):
    """A text."""

    __slots__ = ()


class Tensor:
    """A tensor in a host's memory, which it shares with the arrays that `numpy` returns.

    >>> tensor(np.array([1, 2], "int8")).shape, empty((2,), "float16").dtype
    ((2,), 'float16')
    """

    __slots__ = ("_array", "device", "__weakref__")

    def __init__(self, array: np.ndarray[Any, Any], device: Device | None = None):
        self._array = array
        self.device = cpu() if device is None else device

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns a copy as an array of numpy's."""
        return self._array.copy()

    asnumpy = numpy

    @property
    def shape(self) -> Shape:
        """Its extents."""
        return Shape(self._array.shape)

    @property
    def dtype(self) -> str:
        """The name of its dtype."""
        name: str = self._array.dtype.name
        return name

    @property
    def ndim(self) -> int:
        """The number of its dimensions."""
        return self._array.ndim

    def copyfrom(self, source: Any) -> Tensor:
        """Takes over the elements of an array or a tensor of the same shape."""
        array = source._array if isinstance(source, Tensor) else np.asarray(source, self._array.dtype)
        if array.shape != self._array.shape:
            raise ValueError(f"an array of shape {array.shape}; expected {self._array.shape}")
        np.copyto(self._array, array, casting="unsafe")
        return self

    def copyto(self, target: Any) -> Tensor:
        """Copies the elements to a tensor of the same shape, or to a new one on a device."""
        if isinstance(target, Tensor):
            return target.copyfrom(self)
        return Tensor(self._array.copy(), target)

    @property
    def strides(self) -> Shape:
        """How many elements lie between neighbours in each dimension."""
        return Shape(stride // self._array.itemsize for stride in self._array.strides)

    def data_ptr(self) -> int:
        """Returns the address of the first element."""
        return int(self._array.ctypes.data)

    def numel(self) -> int:
        """Returns the number of elements."""
        return self._array.size

    def is_contiguous(self) -> bool:
        """Returns whether the elements lie row-major one behind the other."""
        return self._array.flags.c_contiguous

    def same_as(self, other: Any) -> bool:
        """Whether it is the same tensor."""
        return self is other

    def __getitem__(self, index: Any) -> Any:
        return self._array[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._array[index] = value._array if isinstance(value, Tensor) else value

    def __len__(self) -> int:
        return len(self._array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self._array if dtype is None else self._array.astype(dtype, copy=False)
        return array.copy() if copy else array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __sheave_value__(self) -> np.ndarray[Any, Any]:
        return self._array

    def __reduce__(self) -> Any:
        return Tensor, (self._array, self.device)

    def __repr__(self) -> str:
        return f"<tvm.runtime.Tensor shape={tuple(self.shape)}, {self.device}>\n{self._array!r}"


NDArray = Tensor


def tensor(arr: Any, device: Device | None = None, mem_scope: str | None = None) -> Tensor:
    """Makes a tensor with the elements of an array."""
    array = arr._array if isinstance(arr, Tensor) else np.asarray(arr)
    return Tensor(np.array(array, order="C"), device)


def empty(shape: Any, dtype: Any = "float32", device: Device | None = None, mem_scope: str | None = None) -> Tensor:
    """Makes a tensor of zeros."""
    return Tensor(np.zeros(shape, _dtype(dtype)), device)


def _dtype(dtype: Any) -> Any:
    if not isinstance(dtype, str):
        return dtype
    try:
        return np.dtype(dtype)
    except TypeError:
        import ml_dtypes  # type: ignore[import-not-found, import-untyped, unused-ignore]

        return np.dtype(getattr(ml_dtypes, dtype))


def from_sheave(value: Any) -> Any:
    """What a value of sheave's is in TVM: arrays are tensors."""
    kind = type(value)
    if kind is np.ndarray:
        return Tensor(value)
    if kind is list or kind is tuple:
        return kind(map(from_sheave, value)) if value else value
    return value


def to_sheave(value: Any) -> Any:
    """What a value of TVM's is in sheave: tensors are arrays, and scalars of numpy's are numbers."""
    kind = type(value)
    if kind is int or kind is float or kind is str or value is None:
        return value
    if kind is Tensor:
        return value._array
    if isinstance(value, np.generic):
        return value.item()
    if kind is list or kind is tuple:
        return kind(map(to_sheave, value))
    return value
