"""``mxnet.random``: see `sheave.compat.mxnet.ndarray.random`."""

from sheave.compat.mxnet.ndarray.random import exponential, normal, randint, randn, seed, shuffle, uniform

__all__ = ["exponential", "normal", "randint", "randn", "seed", "shuffle", "uniform"]
