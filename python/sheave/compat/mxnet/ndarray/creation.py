"""New arrays."""

from typing import Any

import numpy as np

from sheave.compat.mxnet.context import Context
from sheave.compat.mxnet.ndarray import sparse
from sheave.compat.mxnet.ndarray.array import NDArray, array_of, dtype_of

__all__ = [
    "arange",
    "array",
    "empty",
    "eye",
    "from_numpy",
    "full",
    "linspace",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]


def _lengths(shape: Any) -> tuple[int, ...]:
    return (int(shape),) if np.ndim(shape) == 0 else tuple(int(length) for length in shape)


def zeros(shape: Any, ctx: Context | None = None, dtype: Any = None, stype: str | None = None) -> NDArray:
    """An array of zeros, float32 by default; `stype` may be `row_sparse` or `csr`."""
    return sparse.zeros(stype or "default", shape, ctx, dtype)


def empty(shape: Any, ctx: Context | None = None, dtype: Any = None, stype: str | None = None) -> NDArray:
    """An array of zeros: nobody finds what others left in memory."""
    return zeros(shape, ctx, dtype, stype)


def ones(shape: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """An array of ones, float32 by default."""
    return NDArray(np.ones(_lengths(shape), dtype_of(dtype)), ctx)


def full(shape: Any, val: float, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """An array of one value, float32 by default."""
    return NDArray(np.full(_lengths(shape), val, dtype_of(dtype)), ctx)


def zeros_like(data: NDArray) -> NDArray:
    """Zeros of the same shape, dtype and kind of storage."""
    return sparse.zeros(data.stype, data.shape, data.context, data.dtype)


def ones_like(data: NDArray) -> NDArray:
    """Ones of the same shape and dtype."""
    return ones(data.shape, data.context, data.dtype)


def array(source_array: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """A copy of whatever numpy understands; float32 unless the source is an array of the face or a dtype is given."""
    if isinstance(source_array, sparse.BaseSparseNDArray):
        return sparse.array(source_array, ctx, dtype)
    return array_of(source_array, ctx, dtype)


def from_numpy(source: Any, zero_copy: bool = True) -> NDArray:
    """An array over the memory of a numpy array, or a copy."""
    return NDArray(source if zero_copy else source.copy())


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: Any = None,
    ctx: Context | None = None,
    dtype: Any = None,
) -> NDArray:
    """Numbers from `start` to below `stop`, each `repeat` times; float32 by default."""
    first, end = (0.0, start) if stop is None else (start, stop)
    return NDArray(np.repeat(np.arange(first, end, step), repeat).astype(dtype_of(dtype)), ctx)


def linspace(
    start: float, stop: float, num: int, endpoint: bool = True, ctx: Context | None = None, dtype: Any = None
) -> NDArray:
    """So many numbers at even distances."""
    return NDArray(np.linspace(start, stop, num, endpoint).astype(dtype_of(dtype)), ctx)


def eye(N: int, M: int = 0, k: int = 0, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """A matrix with ones on one diagonal."""
    return NDArray(np.eye(N, M or N, k, dtype_of(dtype)), ctx)
