"""Losses of heads that predict a variance."""

import math
from typing import Any

__all__ = ["gaussian_loss"]


def gaussian_loss(output: Any, target: Any) -> Any:
    """Mean negative log likelihood of a head that predicts a normal distribution for each target, in nats.

    The last axis of `output` has the means and as many logarithms s of variances:
    mean(log 2 pi + s + (y - m)**2 exp(-s)) / 2 (Nix and Weigend 1994). For tensors of torch, through which it has
    gradients, and for arrays of numpy.

    >>> import numpy as np, sheave
    >>> round(float(sheave.bayes.gaussian_loss(np.zeros((1, 2)), np.ones((1, 1)))), 4)
    1.4189
    """
    width = output.shape[-1] // 2
    mean, log_variance = output[..., :width], output[..., width:]
    squares = (target - mean) ** 2
    precision = (-log_variance).exp() if hasattr(log_variance, "exp") else math.e ** (-log_variance)
    return (math.log(2 * math.pi) + log_variance + squares * precision).mean() / 2
