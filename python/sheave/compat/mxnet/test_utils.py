"""What MXNet's own tests of the store take from ``mxnet.test_utils``."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from sheave.compat.mxnet import context
from sheave.compat.mxnet.ndarray import random, sparse
from sheave.compat.mxnet.ndarray.array import Array, NDArray, dtype_of

__all__ = [
    "almost_equal",
    "assert_allclose",
    "assert_almost_equal",
    "assert_exception",
    "default_context",
    "default_dtype",
    "environment",
    "rand_ndarray",
    "rand_shape_2d",
    "rand_shape_3d",
    "rand_shape_nd",
    "rand_sparse_ndarray",
    "random_arrays",
    "same",
    "set_default_context",
]

#: Relative and absolute tolerances by the less exact of two dtypes; everything else must be equal.
_TOLERANCES = {np.dtype(np.float16): (1e-2, 1e-1), np.dtype(np.float32): (1e-4, 1e-3), np.dtype(np.float64): (1e-5, 0)}


def default_context() -> context.Context:
    """The context of this thread."""
    return context.current_context()


def set_default_context(ctx: context.Context) -> None:
    """Arrays of this thread that name no context are said to be here from now on."""
    context._stack()[-1] = ctx


def default_dtype() -> type[np.float32]:
    """float32"""
    return np.float32


def _numpy(array: Any) -> Array:
    return array.asnumpy() if isinstance(array, NDArray) else np.asarray(array)


def _tolerances(a: Array, b: Array, rtol: float | None, atol: float | None) -> tuple[float, float]:
    found = [_TOLERANCES.get(array.dtype, (0.0, 0.0)) for array in (a, b)]
    relative, absolute = max(pair[0] for pair in found), max(pair[1] for pair in found)
    return (relative if rtol is None else rtol), (absolute if atol is None else atol)


def same(a: Any, b: Any) -> bool:
    """Whether two arrays have the same elements."""
    return np.array_equal(_numpy(a), _numpy(b))


def almost_equal(
    a: Any, b: Any, rtol: float | None = None, atol: float | None = None, equal_nan: bool = False
) -> bool:
    """Whether two arrays are equal within tolerances, by default those of their dtypes."""
    first, second = _numpy(a), _numpy(b)
    relative, absolute = _tolerances(first, second, rtol, atol)
    return bool(np.allclose(first, second, relative, absolute, equal_nan))


def assert_almost_equal(
    a: Any,
    b: Any,
    rtol: float | None = None,
    atol: float | None = None,
    names: tuple[str, str] = ("a", "b"),
    equal_nan: bool = False,
) -> None:
    """Raises `AssertionError` for two arrays that are not equal within tolerances, by default those of their dtypes."""
    first, second = _numpy(a), _numpy(b)
    relative, absolute = _tolerances(first, second, rtol, atol)
    message = f"{names[0]} and {names[1]} differ"
    np.testing.assert_allclose(first, second, relative, absolute, equal_nan, message)


assert_allclose = assert_almost_equal


def assert_exception(function: Callable[..., Any], exception_type: Any, *arguments: Any, **settings: Any) -> None:
    """Raises `AssertionError` unless the call raises such an exception."""
    try:
        function(*arguments, **settings)
    except exception_type:
        return
    raise AssertionError(f"no {exception_type} was raised")


@contextmanager
def environment(*changes: Any) -> Iterator[None]:
    """Environment variables within a block: a name and a value, or a mapping; None takes one away."""
    if len(changes) == 2:
        changes = ({changes[0]: changes[1]},)
    wanted: Mapping[str, str | None] = changes[0]
    before = {name: os.environ.get(name) for name in wanted}
    try:
        _set_variables(wanted)
        yield
    finally:
        _set_variables(before)


def _set_variables(wanted: Mapping[str, str | None]) -> None:
    for name, value in wanted.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def rand_shape_2d(dim0: int = 10, dim1: int = 10) -> tuple[int, ...]:
    """Two random lengths up to these."""
    return rand_shape_nd(2, (dim0, dim1))


def rand_shape_3d(dim0: int = 10, dim1: int = 10, dim2: int = 10) -> tuple[int, ...]:
    """Three random lengths up to these."""
    return rand_shape_nd(3, (dim0, dim1, dim2))


def rand_shape_nd(num_dim: int, dim: Any = 10) -> tuple[int, ...]:
    """So many random lengths, from 1."""
    most = dim if isinstance(dim, tuple) else (dim,) * num_dim
    return tuple(int(random._generator.integers(1, length + 1)) for length in most)


def random_arrays(*shapes: tuple[int, ...]) -> Any:
    """Normally spread numpy arrays; one array for one shape."""
    arrays = [np.asarray(random._generator.standard_normal(shape)).astype(np.float32) for shape in shapes]
    return arrays[0] if len(arrays) == 1 else arrays


def rand_sparse_ndarray(
    shape: tuple[int, ...], stype: str, density: float | None = None, dtype: Any = None
) -> tuple[NDArray, Any]:
    """A sparse array of which about this share is there, random by default; and its parts."""
    share = random._generator.random() if density is None else density
    drawn = random._generator.uniform(0, 1, shape).astype(dtype_of(dtype))
    kept = random._generator.random(shape[0] if stype == "row_sparse" else shape) < share
    dense = drawn * kept.reshape(-1, *(1,) * (len(shape) - 1)) if stype == "row_sparse" else drawn * kept
    made = sparse.cast_storage(NDArray(dense.astype(drawn.dtype)), stype)
    if isinstance(made, sparse.CSRNDArray):
        return made, (made.indptr, made.indices, made.data)
    assert isinstance(made, sparse.RowSparseNDArray)
    return made, (made.data.asnumpy(), made.indices.asnumpy())


def rand_ndarray(
    shape: tuple[int, ...],
    stype: str = "default",
    density: float | None = None,
    dtype: Any = None,
    ctx: context.Context | None = None,
) -> NDArray:
    """An array of numbers evenly spread from -1 to below 1, or a random sparse one."""
    if stype == "default":
        return random.uniform(-1, 1, shape, dtype, ctx)
    return rand_sparse_ndarray(shape, stype, density, dtype)[0]
