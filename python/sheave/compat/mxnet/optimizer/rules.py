"""The optimizers that sheave runs natively, and their steps in numpy for whoever updates weights himself.

Settings and formulas are MXNet 1.9.1's. A step is computed in single precision or better; of a row-sparse gradient it
touches the rows that are there (MXNet's lazy update).
"""

from typing import Any

import numpy as np

from sheave.compat.mxnet.ndarray.array import Array, NDArray
from sheave.compat.mxnet.ndarray.sparse import RowSparseNDArray
from sheave.compat.mxnet.optimizer.optimizer import Optimizer, register

__all__ = ["LAMB", "NAG", "SGD", "AdaGrad", "Adam", "AdamW", "RMSProp", "Test"]


class Rule(Optimizer):
    """An optimizer whose step is one function of arrays."""

    #: How many arrays of the weight's shape are remembered.
    moments = 0

    def create_state(self, index: Any, weight: NDArray) -> Any:
        """Arrays of zeros: none, one, or a tuple."""
        kind = np.float32 if weight.dtype == np.float16 else weight.dtype
        zeros = tuple(NDArray(np.zeros(weight.shape, kind), weight.context) for _ in range(self.count()))
        return None if not zeros else zeros[0] if len(zeros) == 1 else zeros

    def count(self) -> int:
        """How many arrays are remembered with these settings."""
        return self.moments

    def move(self, weight: Array, grad: Array, state: list[Array], lr: float, wd: float, steps: int) -> None:
        """One step, in place."""
        raise NotImplementedError

    def slope(self, grad: Array) -> Array:
        """The gradient, rescaled and clipped."""
        scaled = grad * self.rescale_grad
        return self.clipped(scaled)

    def clipped(self, grad: Array) -> Array:
        """The gradient within the bounds that are set."""
        if self.clip_gradient is None or self.clip_gradient <= 0:
            return grad
        return np.clip(grad, -self.clip_gradient, self.clip_gradient)

    def update(self, index: Any, weight: NDArray, grad: NDArray, state: Any) -> None:
        """Moves one weight along its gradient, in place."""
        self._update_count(index)
        rates = self._get_lr(index), self._get_wd(index), self._index_update_count[index]
        stored = [weight, *([] if state is None else state if isinstance(state, tuple | list) else [state])]
        rows, whole = grad._rows() if isinstance(grad, RowSparseNDArray) else (slice(None), grad._data)
        wide = [array._data[rows].astype(np.promote_types(array._raw.dtype, np.float32)) for array in stored]
        self.move(wide[0], whole.astype(wide[0].dtype, copy=False), wide[1:], *rates)
        for array, values in zip(stored, wide, strict=True):
            array._data[rows] = values


@register
class SGD(Rule):
    """Stochastic gradient descent with momentum."""

    def __init__(
        self, momentum: float = 0.0, lazy_update: bool = True, learning_rate: float = 0.01, **settings: Any
    ) -> None:
        super().__init__(learning_rate=learning_rate, **settings)
        self.momentum = momentum
        self.lazy_update = lazy_update

    def count(self) -> int:
        """The momentum, if there is one."""
        return int(self.momentum != 0)

    def move(self, weight: Array, grad: Array, state: list[Array], lr: float, wd: float, steps: int) -> None:
        """weight += momentum * last - lr * (slope + wd * weight)"""
        slope = self.slope(grad) + wd * weight
        if not state:
            weight -= lr * slope
            return
        state[0] *= self.momentum
        state[0] -= lr * slope
        weight += state[0]


@register
class NAG(SGD):
    """Nesterov's accelerated gradient."""

    def move(self, weight: Array, grad: Array, state: list[Array], lr: float, wd: float, steps: int) -> None:
        """As with momentum, but looking one momentum ahead."""
        if not state:
            super().move(weight, grad, state, lr, wd, steps)
            return
        step = lr * (self.slope(grad) + wd * weight)
        state[0] *= self.momentum
        state[0] -= step
        weight += self.momentum * state[0] - step


@register
class Adam(Rule):
    """Adam, with the weight decay in the gradient."""

    moments = 2

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        lazy_update: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **settings)
        self.beta1, self.beta2, self.epsilon, self.lazy_update = beta1, beta2, epsilon, lazy_update

    def follow(self, slope: Array, state: list[Array]) -> None:
        """The means of slopes and of their squares."""
        mean, variance = state
        mean += (1 - self.beta1) * (slope - mean)
        variance += (1 - self.beta2) * (slope * slope - variance)

    def move(self, weight: Array, grad: Array, state: list[Array], lr: float, wd: float, steps: int) -> None:
        """weight -= lr * sqrt(1 - beta2^steps) / (1 - beta1^steps) * mean / (sqrt(variance) + epsilon)"""
        self.follow(self.clipped(grad * self.rescale_grad + wd * weight), state)
        rate = lr * np.sqrt(1 - self.beta2**steps) / (1 - self.beta1**steps)
        weight -= rate * state[0] / (np.sqrt(state[1]) + self.epsilon)


@register
class AdamW(Adam):
    """Adam with the weight decay beside the gradient."""

    def direction(self, weight: Array, state: list[Array], wd: float, steps: int) -> Array:
        """Corrected mean / (sqrt(corrected variance) + epsilon) + wd * weight."""
        mean, variance = state[0] / (1 - self.beta1**steps), state[1] / (1 - self.beta2**steps)
        direction: Array = mean / (np.sqrt(variance) + self.epsilon) + wd * weight
        return direction

    def move(self, weight: Array, grad: Array, state: list[Array], lr: float, wd: float, steps: int) -> None:
        """weight -= lr * direction"""
        self.follow(self.slope(grad), state)
        weight -= lr * self.direction(weight, state, wd, steps)


@register
class LAMB(AdamW):
    """AdamW with one rate for each tensor."""

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        lower_bound: float | None = None,
        upper_bound: float | None = None,
        bias_correction: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, **settings)
        self.lower_bound, self.upper_bound, self.bias_correction = lower_bound, upper_bound, bias_correction

    def move(self, weight: Array, grad: Array, state: list[Array], lr: float, wd: float, steps: int) -> None:
        """weight -= lr * norm of weight / norm of direction * direction"""
        self.follow(self.slope(grad), state)
        if self.bias_correction:
            direction = self.direction(weight, state, wd, steps)
        else:
            direction = state[0] / (np.sqrt(state[1]) + self.epsilon) + wd * weight
        size, length = (float(np.linalg.norm(array.astype(np.float64))) for array in (weight, direction))
        size = max(size, self.lower_bound or size)
        size = min(size, self.upper_bound or size)
        weight -= lr * (size / length if size and length else 1.0) * direction


@register
class AdaGrad(Rule):
    """AdaGrad, with the weight decay beside the gradient."""

    moments = 1

    def __init__(self, eps: float = 1e-7, learning_rate: float = 0.01, **settings: Any) -> None:
        super().__init__(learning_rate=learning_rate, **settings)
        self.float_stable_eps = eps

    def move(self, weight: Array, grad: Array, state: list[Array], lr: float, wd: float, steps: int) -> None:
        """weight -= lr * (slope / sqrt(squares + eps) + wd * weight)"""
        slope = self.slope(grad)
        state[0] += slope * slope
        weight -= lr * (slope / np.sqrt(state[0] + self.float_stable_eps) + wd * weight)


@register
class RMSProp(Rule):
    """RMSProp, or centered with momentum (Graves 2013)."""

    def __init__(
        self,
        learning_rate: float = 0.001,
        gamma1: float = 0.9,
        gamma2: float = 0.9,
        epsilon: float = 1e-8,
        centered: bool = False,
        clip_weights: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **settings)
        self.gamma1, self.gamma2, self.epsilon = gamma1, gamma2, epsilon
        self.centered, self.clip_weights = centered, clip_weights

    def count(self) -> int:
        """The mean of squares; centered also that of slopes, and the momentum."""
        return 3 if self.centered else 1

    def move(self, weight: Array, grad: Array, state: list[Array], lr: float, wd: float, steps: int) -> None:
        """weight -= lr * slope / sqrt(squares + epsilon)"""
        slope = self.clipped(grad * self.rescale_grad + wd * weight)
        state[0] += (1 - self.gamma1) * (slope * slope - state[0])
        if self.centered:
            state[1] += (1 - self.gamma1) * (slope - state[1])
            spread = np.maximum(state[0] - state[1] * state[1], 0)
            state[2] *= self.gamma2
            state[2] -= lr * slope / np.sqrt(spread + self.epsilon)
            weight += state[2]
        else:
            weight -= lr * slope / np.sqrt(state[0] + self.epsilon)
        if self.clip_weights:
            np.clip(weight, -self.clip_weights, self.clip_weights, out=weight)


@register
class Test(Rule):
    """The optimizer of MXNet's own tests, as in 1.9.1: weight += rescale_grad * grad."""

    __test__ = False

    def move(self, weight: Array, grad: Array, state: list[Array], lr: float, wd: float, steps: int) -> None:
        """weight += rescale_grad * grad"""
        weight += grad * self.rescale_grad
