"""Sparse arrays: `row_sparse`, of which only some rows are there, and `csr`.

Whatever a sparse array has no operation of its own for runs on a dense copy and gives a dense array.
"""

import importlib
from typing import Any

import numpy as np

from sheave.compat.mxnet.base import MXNetError
from sheave.compat.mxnet.context import Context
from sheave.compat.mxnet.ndarray.array import Array, NDArray, array_of, dtype_of

__all__ = [
    "BaseSparseNDArray",
    "CSRNDArray",
    "RowSparseNDArray",
    "array",
    "cast_storage",
    "csr_matrix",
    "empty",
    "retain",
    "row_sparse_array",
    "zeros",
]


class BaseSparseNDArray(NDArray):
    """What sparse arrays have in common: values, and a shape that says nothing of how many there are."""

    def __init__(self, values: Array, shape: Any, ctx: Context | None) -> None:
        super().__init__(values, ctx)
        self._shape = tuple(int(length) for length in shape)

    def _dense(self) -> Array:
        raise NotImplementedError

    def _take(self, dense: Array) -> None:
        """Becomes this dense array, whatever is under way."""
        raise NotImplementedError

    @property
    def _data(self) -> Array:
        return self._dense()

    def _values(self) -> Array:
        """Its values, once nothing is under way that writes them."""
        self._storage.settle()
        return self._raw

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions of the dense array it stands for."""
        return self._shape

    @property
    def data(self) -> NDArray:
        """A copy of its values."""
        return NDArray(self._values().copy(), self._context)

    def asnumpy(self) -> Array:
        """The dense array as a numpy array."""
        return self._dense()

    def detach(self) -> NDArray:
        """A copy."""
        return self.copyto(self._context)

    def __getitem__(self, key: Any) -> NDArray:
        return NDArray(self._dense(), self._context)[key]

    def reshape(self, *shape: Any, **options: Any) -> NDArray:
        """Raises `NotImplementedError`, as in MXNet."""
        raise NotImplementedError(f"reshape is not supported for {self.stype}")

    def __reduce__(self) -> Any:
        return _restored, (self.asnumpy(), self.stype, self._context.device_type, self._context.device_id)


class RowSparseNDArray(BaseSparseNDArray):
    """Some rows of an array, by ascending ids; all others are zero.

    >>> import sheave.compat.mxnet as mx
    >>> rows = mx.nd.sparse.row_sparse_array(([[1, 2]], [3]), shape=(5, 2))
    >>> rows.stype, rows.indices.asnumpy().tolist(), (rows * 2).asnumpy()[3].tolist()
    ('row_sparse', [3], [2.0, 4.0])
    """

    stype = "row_sparse"

    def __init__(self, values: Array, ids: Array, shape: Any, ctx: Context | None = None) -> None:
        super().__init__(values, shape, ctx)
        self._ids = ids

    def _rows(self) -> tuple[Array, Array]:
        """Ids and rows, once nothing is under way that writes them."""
        self._storage.settle()
        return self._ids, self._raw

    def _set_rows(self, ids: Array, rows: Array) -> None:
        """Becomes these rows, in its own dtype. The caller sees to what is under way."""
        self._ids, self._raw = ids, rows.astype(self._raw.dtype, copy=False)

    def _take(self, dense: Array) -> None:
        self._set_rows(*_rows_of(NDArray(dense)))

    def _dense(self) -> Array:
        ids, rows = self._rows()
        dense = np.zeros(self._shape, rows.dtype)
        dense[ids] = rows
        return dense

    @property
    def indices(self) -> NDArray:
        """A copy of the ids of its rows, int64."""
        return NDArray(self._rows()[0].copy(), self._context)

    def _assign(self, source: NDArray) -> None:
        if source.shape != self._shape:
            raise MXNetError(f"operands shape mismatch: from.shape={source.shape}, to.shape={self._shape}")
        self._storage.settle()
        self._set_rows(*(array.copy() for array in _rows_of(source)))

    def __setitem__(self, key: Any, value: Any) -> None:
        if key != slice(None):
            raise ValueError("row_sparse arrays can only be assigned as a whole, with [:]")
        whole = value if isinstance(value, NDArray) else NDArray(np.broadcast_to(np.asarray(value), self._shape))
        self._assign(whole)

    def copyto(self, other: NDArray | Context) -> NDArray:
        """A copy on that context, or into that array."""
        if isinstance(other, Context):
            ids, rows = self._rows()
            return RowSparseNDArray(rows.copy(), ids.copy(), self._shape, other)
        return super().copyto(other)

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """A copy of another dtype."""
        ids, rows = self._rows()
        return RowSparseNDArray(rows.astype(dtype_of(dtype)), ids.copy(), self._shape, self._context)

    def retain(self, indices: NDArray) -> "RowSparseNDArray":
        """Those of its rows that have these ids."""
        ids, rows = self._rows()
        kept = np.isin(ids, indices.asnumpy().astype(np.int64))
        return RowSparseNDArray(rows[kept], ids[kept], self._shape, self._context)

    def _combine(self, function: Any, other: Any, reverse: bool = False) -> Any:
        if isinstance(other, RowSparseNDArray) and function in (np.add, np.subtract):
            return cast_storage(super()._combine(function, other, reverse), "row_sparse")
        if isinstance(other, int | float | np.generic) and function in (np.multiply, np.true_divide) and not reverse:
            ids, rows = self._rows()
            return RowSparseNDArray(function(rows, other).astype(rows.dtype), ids.copy(), self._shape, self._context)
        return super()._combine(function, other, reverse)


class CSRNDArray(BaseSparseNDArray):
    """A matrix in compressed sparse rows.

    >>> import sheave.compat.mxnet as mx
    >>> matrix = mx.nd.array([[0, 2, 0], [1, 0, 3]]).tostype("csr")
    >>> matrix.indptr.asnumpy().tolist(), matrix.indices.asnumpy().tolist(), matrix.data.asnumpy().tolist()
    ([0, 1, 3], [1, 0, 2], [2.0, 1.0, 3.0])
    """

    stype = "csr"

    def __init__(self, values: Array, columns: Array, starts: Array, shape: Any, ctx: Context | None = None) -> None:
        super().__init__(values, shape, ctx)
        self._columns, self._starts = columns, starts

    def _take(self, dense: Array) -> None:
        self._assign(NDArray(dense))

    def _dense(self) -> Array:
        values = self._values()
        dense = np.zeros(self._shape, values.dtype)
        dense[np.repeat(np.arange(self._shape[0]), np.diff(self._starts)), self._columns] = values
        return dense

    @property
    def indices(self) -> NDArray:
        """The columns of its values, int64."""
        return NDArray(self._columns.copy(), self._context)

    @property
    def indptr(self) -> NDArray:
        """Where each row begins among the values, int64."""
        return NDArray(self._starts.copy(), self._context)

    def _assign(self, source: NDArray) -> None:
        other = cast_storage(source, "csr")
        assert isinstance(other, CSRNDArray)
        if other.shape != self._shape:
            raise MXNetError(f"operands shape mismatch: from.shape={other.shape}, to.shape={self._shape}")
        self._raw = other._raw.astype(self._raw.dtype)
        self._columns, self._starts = other._columns, other._starts

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """A copy of another dtype."""
        values = self._values().astype(dtype_of(dtype))
        return CSRNDArray(values, self._columns, self._starts, self._shape, self._context)

    def copyto(self, other: NDArray | Context) -> NDArray:
        """A copy on that context, or into that array."""
        if isinstance(other, Context):
            return CSRNDArray(self._values().copy(), self._columns, self._starts, self._shape, other)
        return super().copyto(other)

    def __getitem__(self, key: Any) -> NDArray:
        return cast_storage(super().__getitem__(key), "csr")

    def asscipy(self) -> Any:
        """The matrix as scipy's, if scipy is there."""
        scipy = importlib.import_module("scipy.sparse")
        return scipy.csr_matrix((self._values(), self._columns, self._starts), shape=self._shape)


def _rows_of(source: NDArray) -> tuple[Array, Array]:
    """Ids and rows of any array: of a dense one those that are not all zero."""
    if isinstance(source, RowSparseNDArray):
        return source._rows()
    dense = source._data
    ids = np.flatnonzero(dense.reshape(dense.shape[0], -1).any(axis=1))
    return ids.astype(np.int64), dense[ids]


def cast_storage(source: NDArray, stype: str) -> NDArray:
    """A copy with this kind of storage: `default`, `row_sparse` or `csr`."""
    context = source.context
    if stype == "default":
        return NDArray(source.asnumpy(), context)
    if stype == "row_sparse":
        ids, rows = _rows_of(source)
        return RowSparseNDArray(rows.copy(), ids.copy(), source.shape, context)
    if stype != "csr":
        raise ValueError(f"unknown storage type: {stype}")
    if source.ndim != 2:
        raise MXNetError(f"a csr array has two dimensions, not {source.ndim}")
    dense = source._data
    rows_at, columns = np.nonzero(dense)
    starts = np.searchsorted(rows_at, np.arange(dense.shape[0] + 1))
    return CSRNDArray(dense[rows_at, columns], columns.astype(np.int64), starts.astype(np.int64), dense.shape, context)


def row_sparse_array(arg1: Any, shape: Any = None, ctx: Context | None = None, dtype: Any = None) -> RowSparseNDArray:
    """From ``(rows, ids)``, a dense array, another sparse one, or a shape. Ids are sorted; each may be given once."""
    if isinstance(arg1, tuple) and len(arg1) == 2 and not isinstance(arg1[0], int):
        rows, ids = array_of(arg1[0], ctx, dtype)._raw, np.asarray(array_of(arg1[1], dtype=np.int64)._raw)
        order = np.argsort(ids, kind="stable")
        if len(ids) != len(rows) or len(np.unique(ids)) != len(ids):
            raise ValueError("rows and ids differ in number, or an id is there twice")
        length = int(ids.max()) + 1 if len(ids) else 0
        whole = (length, *rows.shape[1:]) if shape is None else tuple(shape)
        if len(ids) and not 0 <= ids.min() <= ids.max() < whole[0]:
            raise ValueError(f"an id is not within the {whole[0]} rows")
        return RowSparseNDArray(rows[order].reshape((len(ids), *whole[1:])), ids[order], whole, ctx)
    if isinstance(arg1, tuple):
        made = zeros("row_sparse", arg1, ctx, dtype)
    else:
        made = cast_storage(arg1 if isinstance(arg1, BaseSparseNDArray) else array_of(arg1, ctx, dtype), "row_sparse")
    if shape is not None and tuple(shape) != made.shape:
        raise ValueError(f"an array of shape {made.shape} cannot be one of {tuple(shape)}")
    assert isinstance(made, RowSparseNDArray)
    return made


def csr_matrix(arg1: Any, shape: Any = None, ctx: Context | None = None, dtype: Any = None) -> CSRNDArray:
    """From ``(values, columns, starts)``, ``(values, (rows, columns))``, a dense array, or a shape."""
    if isinstance(arg1, tuple) and len(arg1) == 3:
        values = array_of(arg1[0], ctx, dtype)._raw
        columns, starts = (array_of(part, dtype=np.int64)._raw for part in arg1[1:])
        width = int(columns.max()) + 1 if len(columns) else 0
        return CSRNDArray(values, columns, starts, shape or (len(starts) - 1, width), ctx)
    if isinstance(arg1, tuple) and len(arg1) == 2 and isinstance(arg1[1], tuple):
        rows, columns = (np.asarray(part, np.int64) for part in arg1[1])
        values = array_of(arg1[0], ctx, dtype)._raw
        dense = np.zeros(shape or (rows.max() + 1, columns.max() + 1), values.dtype)
        dense[rows, columns] = values
        arg1 = NDArray(dense, ctx)
    shaped = isinstance(arg1, tuple)
    made = zeros("csr", arg1, ctx, dtype) if shaped else cast_storage(array_of(arg1, ctx, dtype), "csr")
    assert isinstance(made, CSRNDArray)
    return made


def zeros(stype: str, shape: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """An array without any values, or for `default` one of zeros."""
    shape = (int(shape),) if np.ndim(shape) == 0 else tuple(int(length) for length in shape)
    kind, none = dtype_of(dtype), np.zeros(0, np.int64)
    if stype == "default":
        return NDArray(np.zeros(shape, kind), ctx)
    if stype == "row_sparse":
        return RowSparseNDArray(np.zeros((0, *shape[1:]), kind), none, shape, ctx)
    if stype != "csr":
        raise ValueError(f"unknown storage type: {stype}")
    return CSRNDArray(np.zeros(0, kind), none, np.zeros(shape[0] + 1, np.int64), shape, ctx)


empty = zeros


def array(source: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """A copy of a sparse array."""
    if not isinstance(source, BaseSparseNDArray):
        raise ValueError("the source of a sparse array is a sparse array")
    made = source.copyto(ctx or source.context)
    return made if dtype is None else made.astype(dtype)


def retain(data: RowSparseNDArray, indices: NDArray) -> RowSparseNDArray:
    """Those rows that have these ids."""
    return data.retain(indices)


def _restored(raw: Array, stype: str, device_type: str, device_id: int) -> NDArray:
    return cast_storage(NDArray(raw, Context(device_type, device_id)), stype)
