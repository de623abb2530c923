"""Dense arrays: numpy arrays with MXNet's manners.

Where the manners differ from numpy's: there are no arrays without dimensions (a scalar has the shape ``(1,)``), results
keep the dtype of the array beside a scalar, comparisons give numbers, and the default dtype is float32. An index of
integers and slices gives a view. Any access waits first for a pull into the array that is under way.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sheave.compat.mxnet._pending import Pending, Storage
from sheave.compat.mxnet.base import MXNetError
from sheave.compat.mxnet.context import Context, current_context

__all__ = ["Array", "NDArray", "array_of", "dtype_of"]

Array = npt.NDArray[Any]
Function = Callable[..., Any]


def dtype_of(dtype: Any, default: Any = np.float32) -> np.dtype[Any]:
    """A dtype by any of its names; `default` for None."""
    if isinstance(dtype, str) and dtype == "bfloat16":
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    made: np.dtype[Any] = np.dtype(default if dtype is None else dtype)
    return made


def _shape_of(shape: Any) -> tuple[int, ...]:
    if np.ndim(shape) == 0:
        return (int(shape),)
    return tuple(int(length) for length in shape)


def _operand(value: Any) -> Any:
    """What numpy computes with, or NotImplemented."""
    if isinstance(value, NDArray):
        return value._data
    if isinstance(value, bool | int | float | np.ndarray):
        return value
    return value.item() if isinstance(value, np.generic) else NotImplemented


class NDArray:
    """An array in host memory. ``NDArray(numpy_array)`` shares the memory it is given.

    >>> import sheave.compat.mxnet as mx
    >>> a = mx.nd.ones((2, 3)) * 4
    >>> a[0] += 1
    >>> a.asnumpy().tolist(), a[0][0].shape, (a > 4).dtype
    ([[5.0, 5.0, 5.0], [4.0, 4.0, 4.0]], (1,), <class 'numpy.float32'>)
    """

    __array_ufunc__ = None
    stype = "default"

    def __init__(self, raw: Array, ctx: Context | None = None, storage: Storage | None = None) -> None:
        self._raw = raw if raw.ndim else raw.reshape(1)
        self._context = ctx or current_context()
        self._storage = storage or Storage()

    @property
    def _data(self) -> Array:
        """The memory, once nothing is under way that writes it."""
        if self._storage.pending:
            self._storage.settle()
        return self._raw

    def _await(self, pending: Pending) -> None:
        """Whoever touches the memory from now on waits for this first."""
        self._storage.pending.append(pending)

    def _is_awaited(self) -> bool:
        return bool(self._storage.pending)

    def _like(self, raw: Any) -> "NDArray":
        return NDArray(np.asarray(raw), self._context)

    # What it is.

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of its dimensions."""
        return self._raw.shape

    @property
    def dtype(self) -> Any:
        """The type of its elements, as numpy's scalar type."""
        return self._raw.dtype.type

    @property
    def size(self) -> int:
        """How many elements it has."""
        return int(np.prod(self.shape))

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    @property
    def context(self) -> Context:
        """Where it is said to be."""
        return self._context

    ctx = context
    device = context

    @property
    def T(self) -> "NDArray":
        """A copy with the dimensions in reverse order."""
        return self.transpose()

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"\n{self.asnumpy()}\n<{type(self).__name__} {shape} @{self._context}>"

    # Waiting and copying.

    def wait_to_read(self) -> None:
        """Blocks until it holds what was pulled into it; raises `MXNetError` if that failed."""
        self._storage.settle()

    wait_to_write = wait_to_read

    def asnumpy(self) -> Array:
        """A copy as a numpy array, once what is under way has ended."""
        return self._data.copy()

    def asscalar(self) -> Any:
        """Its only element."""
        if self.size != 1:
            raise ValueError("The current array is not a scalar")
        return self.asnumpy().reshape(-1)[0]

    item = asscalar

    def tolist(self) -> Any:
        """Nested lists of numbers."""
        return self._data.tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self._data.astype(dtype or self._raw.dtype)

    def copy(self) -> "NDArray":
        """A copy on the same context."""
        return self.copyto(self._context)

    def copyto(self, other: "NDArray | Context") -> "NDArray":
        """A copy on that context, or into that array, whose dtype and kind of storage stay."""
        if isinstance(other, Context):
            return NDArray(self._data.copy(), other)
        if other is not self:
            other._assign(self)
        return other

    def _assign(self, source: "NDArray") -> None:
        values = source._data
        if values.shape != self.shape:
            raise MXNetError(f"operands shape mismatch: from.shape={values.shape}, to.shape={self.shape}")
        np.copyto(self._data, values, casting="unsafe")

    def as_in_context(self, context: Context) -> "NDArray":
        """Itself if it is there already, else a copy."""
        return self if context == self._context else self.copyto(context)

    as_in_ctx = as_in_context

    def astype(self, dtype: Any, copy: bool = True) -> "NDArray":
        """A copy of another dtype."""
        wanted = dtype_of(dtype)
        return self if not copy and wanted == self._raw.dtype else self._like(self._data.astype(wanted))

    def tostype(self, stype: str) -> "NDArray":
        """A copy with another kind of storage: `default`, `row_sparse` or `csr`."""
        from sheave.compat.mxnet.ndarray import sparse

        return sparse.cast_storage(self, stype)

    def detach(self) -> "NDArray":
        """An array over the same memory."""
        return NDArray(self._raw, self._context, self._storage)

    def __deepcopy__(self, memo: Any) -> "NDArray":
        return self.copy()

    def __reduce__(self) -> Any:
        return _restored, (self.asnumpy(), self._context.device_type, self._context.device_id)

    # Shapes.

    def reshape(self, *shape: Any, **options: Any) -> "NDArray":
        """Another shape over the same memory; 0 keeps a dimension, -1 takes what is left."""
        lengths = _shape_of(options["shape"] if "shape" in options else shape[0] if len(shape) == 1 else shape)
        if any(length < -1 for length in lengths):
            raise MXNetError(f"reshape to {lengths}: of the special lengths only 0 and -1 are known")
        lengths = tuple(self.shape[at] if length == 0 and self.size else length for at, length in enumerate(lengths))
        try:
            return NDArray(self._data.reshape(lengths), self._context, self._storage)
        except ValueError as error:
            raise MXNetError(str(error)) from error

    def transpose(self, *axes: Any) -> "NDArray":
        """A copy with the dimensions in another order, by default reversed."""
        order = axes[0] if len(axes) == 1 else axes or None
        return self._like(np.ascontiguousarray(np.transpose(self._data, order)))

    def flatten(self) -> "NDArray":
        """Two dimensions over the same memory: the first one, and all others."""
        return self.reshape((self.shape[0], -1))

    def expand_dims(self, axis: int) -> "NDArray":
        """One more dimension of length 1 over the same memory."""
        return NDArray(np.expand_dims(self._data, axis), self._context, self._storage)

    def broadcast_to(self, shape: Any) -> "NDArray":
        """A copy, repeated along the dimensions of length 1."""
        return self._like(np.broadcast_to(self._data, _shape_of(shape)).copy())

    def slice(self, begin: Any, end: Any) -> "NDArray":
        """A copy of a range of each dimension."""
        return self[tuple(slice(*ends) for ends in zip(begin, end, strict=True))].copy()

    # Indexing.

    def _index(self, key: Any) -> Any:
        """The index as numpy understands it, and whether it gives a view."""
        parts = key if isinstance(key, tuple) else (key,)
        parts = tuple(part.asnumpy().astype(np.int64) if isinstance(part, NDArray) else part for part in parts)
        if any(isinstance(part, list | np.ndarray) and np.ndim(part) for part in parts):
            return parts, False
        return (parts if any(part is Ellipsis for part in parts) else (*parts, Ellipsis)), True

    def __getitem__(self, key: Any) -> "NDArray":
        index, is_view = self._index(key)
        return NDArray(self._data[index], self._context, self._storage if is_view else None)

    def __setitem__(self, key: Any, value: Any) -> None:
        source = value._data if isinstance(value, NDArray) else np.asarray(value)
        self._data[self._index(key)[0]] = source.astype(self._raw.dtype, copy=False)

    def __iter__(self) -> Iterator["NDArray"]:
        return (self[at] for at in range(len(self)))

    # Arithmetic.

    def _combine(self, function: Function, other: Any, reverse: bool = False) -> Any:
        operand = _operand(other)
        if operand is NotImplemented:
            return NotImplemented
        pair = (operand, self._data) if reverse else (self._data, operand)
        try:
            result = np.asarray(function(*pair))
        except ValueError as error:
            raise MXNetError(f"operands shape mismatch: {error}") from error
        if not isinstance(operand, np.ndarray) or result.dtype == np.bool_:
            result = result.astype(self._raw.dtype, copy=False)
        return self._like(result)

    def _change(self, function: Function, other: Any) -> Any:
        result = self._combine(function, other)
        if result is not NotImplemented:
            self._assign(result)
            return self
        return result

    def __add__(self, other: Any) -> Any:
        return self._combine(np.add, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._combine(np.subtract, other)

    def __rsub__(self, other: Any) -> Any:
        return self._combine(np.subtract, other, reverse=True)

    def __mul__(self, other: Any) -> Any:
        return self._combine(np.multiply, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._combine(np.true_divide, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._combine(np.true_divide, other, reverse=True)

    def __mod__(self, other: Any) -> Any:
        return self._combine(np.mod, other)

    def __pow__(self, other: Any) -> Any:
        return self._combine(np.power, other)

    def __rpow__(self, other: Any) -> Any:
        return self._combine(np.power, other, reverse=True)

    def __neg__(self) -> "NDArray":
        return self._like(-self._data)

    def __abs__(self) -> "NDArray":
        return self._like(np.abs(self._data))

    def __iadd__(self, other: Any) -> Any:
        return self._change(np.add, other)

    def __isub__(self, other: Any) -> Any:
        return self._change(np.subtract, other)

    def __imul__(self, other: Any) -> Any:
        return self._change(np.multiply, other)

    def __itruediv__(self, other: Any) -> Any:
        return self._change(np.true_divide, other)

    # Comparison: numbers, element by element.

    def __eq__(self, other: Any) -> Any:
        return False if other is None else self._combine(np.equal, other)

    def __ne__(self, other: Any) -> Any:
        return True if other is None else self._combine(np.not_equal, other)

    def __lt__(self, other: Any) -> Any:
        return self._combine(np.less, other)

    def __le__(self, other: Any) -> Any:
        return self._combine(np.less_equal, other)

    def __gt__(self, other: Any) -> Any:
        return self._combine(np.greater, other)

    def __ge__(self, other: Any) -> Any:
        return self._combine(np.greater_equal, other)

    def __hash__(self) -> int:
        return id(self) >> 4

    def __bool__(self) -> bool:
        if self.size > 1:
            raise ValueError("The truth value of an NDArray with multiple elements is ambiguous.")
        return bool(self.size and self.asscalar())

    def __float__(self) -> float:
        return float(self.asscalar())

    def __int__(self) -> int:
        return int(self.asscalar())

    # Reductions.

    def _reduce(self, function: Function, axis: Any, keepdims: bool) -> "NDArray":
        axis = tuple(axis) if isinstance(axis, list) else axis
        # As the array's own dtype: means of integers are integers, sums of halves are halves.
        return self._like(np.asarray(function(self._data, axis=axis, keepdims=keepdims)).astype(self._raw.dtype))

    def sum(self, axis: Any = None, keepdims: bool = False) -> "NDArray":
        """The sum along some dimensions, by default all."""
        return self._reduce(np.sum, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> "NDArray":
        """The mean along some dimensions, by default all."""
        return self._reduce(np.mean, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> "NDArray":
        """The largest along some dimensions, by default all."""
        return self._reduce(np.max, axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> "NDArray":
        """The smallest along some dimensions, by default all."""
        return self._reduce(np.min, axis, keepdims)

    def prod(self, axis: Any = None, keepdims: bool = False) -> "NDArray":
        """The product along some dimensions, by default all."""
        return self._reduce(np.prod, axis, keepdims)

    def norm(self, axis: Any = None, keepdims: bool = False) -> "NDArray":
        """The root of the sum of squares."""
        return self._reduce(lambda data, **where: np.sqrt(np.sum(data * data, **where)), axis, keepdims)

    def argmax(self, axis: int | None = None) -> "NDArray":
        """Where the largest is, as float32."""
        return self._like(np.asarray(np.argmax(self._data, axis=axis), np.float32))

    def argmin(self, axis: int | None = None) -> "NDArray":
        """Where the smallest is, as float32."""
        return self._like(np.asarray(np.argmin(self._data, axis=axis), np.float32))

    def clip(self, a_min: float, a_max: float) -> "NDArray":
        """A copy with all elements within these bounds."""
        return self._like(np.clip(self._data, a_min, a_max))


def _restored(raw: Array, device_type: str, device_id: int) -> NDArray:
    return NDArray(raw, Context(device_type, device_id))


def array_of(source: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """A new array from whatever numpy understands; float32 unless the source is an array of the face."""
    raw = source._data if isinstance(source, NDArray) else np.asarray(source)
    return NDArray(np.array(raw, dtype_of(dtype, raw.dtype if isinstance(source, NDArray) else np.float32)), ctx)
