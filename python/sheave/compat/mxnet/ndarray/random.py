"""Arrays of random numbers. The generator belongs to the face: numpy's own is neither read nor moved."""

from typing import Any

import numpy as np

from sheave.compat.mxnet.context import Context
from sheave.compat.mxnet.ndarray.array import NDArray, dtype_of

__all__ = ["exponential", "normal", "randint", "randn", "seed", "shuffle", "uniform"]

_generator = np.random.default_rng()


def seed(seed_state: int, ctx: Context | str = "all") -> None:
    """Starts the sequence of random numbers anew, that of all contexts.

    >>> import sheave.compat.mxnet as mx
    >>> mx.random.seed(7)
    >>> a = mx.nd.random.uniform(shape=3)
    >>> mx.random.seed(7)
    >>> (mx.nd.random.uniform(shape=3) == a).sum().asscalar()
    np.float32(3.0)
    """
    global _generator
    _generator = np.random.default_rng(seed_state)


def _made(values: Any, ctx: Context | None, dtype: Any, out: NDArray | None) -> NDArray:
    made = NDArray(np.asarray(values).astype(dtype_of(dtype)), ctx)
    return made if out is None else made.copyto(out)


def uniform(
    low: float = 0.0,
    high: float = 1.0,
    shape: Any = (1,),
    dtype: Any = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
) -> NDArray:
    """Evenly spread from `low` to below `high`."""
    return _made(_generator.uniform(low, high, shape if out is None else out.shape), ctx, dtype, out)


def normal(
    loc: float = 0.0,
    scale: float = 1.0,
    shape: Any = (1,),
    dtype: Any = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
) -> NDArray:
    """Normally spread around `loc`."""
    return _made(_generator.normal(loc, scale, shape if out is None else out.shape), ctx, dtype, out)


def randn(
    *shape: int, loc: float = 0.0, scale: float = 1.0, dtype: Any = None, ctx: Context | None = None
) -> NDArray:
    """As `normal`, with the shape as arguments."""
    return normal(loc, scale, shape or (1,), dtype, ctx)


def exponential(scale: float = 1.0, shape: Any = (1,), dtype: Any = None, ctx: Context | None = None) -> NDArray:
    """Exponentially spread with this mean."""
    return _made(_generator.exponential(scale, shape), ctx, dtype, None)


def randint(low: int, high: int, shape: Any = (1,), dtype: Any = None, ctx: Context | None = None) -> NDArray:
    """Integers from `low` to below `high`, int32 by default."""
    return _made(_generator.integers(low, high, shape), ctx, dtype or np.int32, None)


def shuffle(data: NDArray) -> NDArray:
    """A copy with the entries of the first dimension in random order."""
    return NDArray(_generator.permutation(data._data, axis=0), data.context)
