"""Functions of arrays, as far as users of the store meet them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sheave.compat.mxnet.ndarray.array import Array, NDArray, dtype_of

__all__ = [
    "abs",
    "add",
    "add_n",
    "argmax",
    "argmin",
    "broadcast_add",
    "broadcast_div",
    "broadcast_mul",
    "broadcast_sub",
    "broadcast_to",
    "cast",
    "clip",
    "concat",
    "concatenate",
    "divide",
    "dot",
    "elemwise_add",
    "elemwise_div",
    "elemwise_mul",
    "elemwise_sub",
    "exp",
    "expand_dims",
    "flatten",
    "log",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "multiply",
    "norm",
    "one_hot",
    "relu",
    "reshape",
    "sigmoid",
    "sign",
    "softmax",
    "sqrt",
    "square",
    "stack",
    "subtract",
    "sum",
    "tanh",
    "transpose",
    "where",
]


def _store(result: NDArray, out: NDArray | None) -> NDArray:
    return result if out is None else result.copyto(out)


def _each(function: Callable[[Array], Array]) -> Callable[..., NDArray]:
    """An operator of one array, element by element; `out` may be the array itself."""

    def apply(data: NDArray, out: NDArray | None = None) -> NDArray:
        result = NDArray(function(data._data).astype(data.dtype, copy=False), data.context)
        return _store(result, out)

    return apply


abs = _each(np.abs)
exp = _each(np.exp)
log = _each(np.log)
relu = _each(lambda data: np.maximum(data, 0))
sigmoid = _each(lambda data: 1 / (1 + np.exp(-data)))
sign = _each(np.sign)
sqrt = _each(np.sqrt)
square = _each(np.square)
tanh = _each(np.tanh)


def _pair(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator of two arrays, or an array and a number, which broadcasts."""

    def apply(lhs: Any, rhs: Any, out: NDArray | None = None) -> Any:
        if isinstance(lhs, NDArray):
            return _store(lhs._combine(function, rhs), out)
        if isinstance(rhs, NDArray):
            return _store(rhs._combine(function, lhs, reverse=True), out)
        return function(lhs, rhs)

    return apply


add = broadcast_add = elemwise_add = _pair(np.add)
subtract = broadcast_sub = elemwise_sub = _pair(np.subtract)
multiply = broadcast_mul = elemwise_mul = _pair(np.multiply)
divide = broadcast_div = elemwise_div = _pair(np.true_divide)
maximum = _pair(np.maximum)
minimum = _pair(np.minimum)


def _reduced(name: str) -> Callable[..., NDArray]:
    def apply(data: NDArray, axis: Any = None, keepdims: bool = False) -> NDArray:
        result: NDArray = getattr(data, name)(axis=axis, keepdims=keepdims)
        return result

    return apply


sum = _reduced("sum")
mean = _reduced("mean")
max = _reduced("max")
min = _reduced("min")
norm = _reduced("norm")


def argmax(data: NDArray, axis: int | None = None) -> NDArray:
    """Where the largest is, as float32."""
    return data.argmax(axis)


def argmin(data: NDArray, axis: int | None = None) -> NDArray:
    """Where the smallest is, as float32."""
    return data.argmin(axis)


def clip(data: NDArray, a_min: float, a_max: float, out: NDArray | None = None) -> NDArray:
    """All elements within these bounds."""
    return _store(data.clip(a_min, a_max), out)


def cast(data: NDArray, dtype: Any) -> NDArray:
    """A copy of another dtype."""
    return data.astype(dtype)


def reshape(data: NDArray, shape: Any) -> NDArray:
    """Another shape over the same memory."""
    return data.reshape(shape)


def flatten(data: NDArray) -> NDArray:
    """Two dimensions: the first one, and all others."""
    return data.flatten()


def transpose(data: NDArray, axes: Any = ()) -> NDArray:
    """The dimensions in another order, by default reversed."""
    return data.transpose(*axes)


def expand_dims(data: NDArray, axis: int) -> NDArray:
    """One more dimension of length 1."""
    return data.expand_dims(axis)


def broadcast_to(data: NDArray, shape: Any) -> NDArray:
    """Repeated along the dimensions of length 1."""
    return data.broadcast_to(shape)


def add_n(*arrays: NDArray) -> NDArray:
    """The sum of arrays of one shape, in the order in which they are given."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total


def concat(*arrays: NDArray, dim: int = 1) -> NDArray:
    """Arrays joined along a dimension, the second one by default."""
    return NDArray(np.concatenate([array._data for array in arrays], axis=dim), arrays[0].context)


def concatenate(arrays: list[NDArray], axis: int = 0, always_copy: bool = True) -> NDArray:
    """Arrays joined along a dimension, the first one by default."""
    return concat(*arrays, dim=axis)


def stack(*arrays: NDArray, axis: int = 0) -> NDArray:
    """Arrays joined along a new dimension."""
    return NDArray(np.stack([array._data for array in arrays], axis=axis), arrays[0].context)


def dot(lhs: NDArray, rhs: NDArray, transpose_a: bool = False, transpose_b: bool = False) -> NDArray:
    """The product of matrices, or of vectors; the last dimension of one with the first of the other."""
    left = lhs._data.T if transpose_a else lhs._data
    right = rhs._data.T if transpose_b else rhs._data
    return NDArray(np.asarray(np.tensordot(left, right, axes=1)), lhs.context)


def softmax(data: NDArray, axis: int = -1) -> NDArray:
    """Exponentials that sum up to one along a dimension."""
    raised = np.exp(data._data - data._data.max(axis=axis, keepdims=True))
    return NDArray(raised / raised.sum(axis=axis, keepdims=True), data.context)


def one_hot(indices: NDArray, depth: int, on_value: float = 1.0, off_value: float = 0.0, dtype: Any = None) -> NDArray:
    """One more dimension, with `on_value` where the index says."""
    at = indices._data.astype(np.int64)
    return NDArray(np.where(at[..., None] == np.arange(depth), on_value, off_value).astype(dtype_of(dtype)))


def where(condition: NDArray, x: NDArray, y: NDArray) -> NDArray:
    """Elements of `x` where the condition is not zero, of `y` elsewhere."""
    return NDArray(np.where(condition._data != 0, x._data, y._data).astype(x.dtype), x.context)
