"""Optimizers that run where the weights are: in the store, on its servers, in native code.

An optimizer says what becomes of a stored value when a gradient is pushed to it. Hand it to
`sheave.KVStore.set_optimizer`. Keywords are those of `torch.optim` where torch has the setting: `lr`, `momentum`,
`betas`, `eps`, `alpha`, `weight_decay`. All of them also have

- `rescale`: what gradients are multiplied by first, such as 1 / global batch size; 1 by default;
- `clip_gradient`: what rescaled gradients are clipped to, from minus this to this; None, no clipping, by default;
- `schedule`: how the learning rate changes from step to step, a `Schedule` or one of its decays; constant by default.
  Every key counts its own steps, the first of which is 1;
- `multi_precision`: whether float16 and bfloat16 weights are stepped as float32 copies beside them; False by default.

Settings are checked when they are set on a store, which raises `sheave.InvalidArgument` for one without a meaning.

>>> import numpy as np, sheave
>>> store = sheave.KVStore("local")
>>> store.init("w", np.array([1.0, 2.0], np.float32))
>>> store.set_optimizer(sheave.optim.SGD(lr=0.5, schedule=sheave.optim.StepDecay(every=1, factor=0.1)))
>>> for _ in range(2):
...     _ = store.push("w", np.array([1.0, -1.0], np.float32))
>>> store.pull("w", np.empty(2, np.float32)).wait()
array([0.45, 2.55], dtype=float32)
"""

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

__all__ = [
    "Adam",
    "AdaGrad",
    "AdamW",
    "CosineDecay",
    "LAMB",
    "MultiStepDecay",
    "Optimizer",
    "PolynomialDecay",
    "RMSProp",
    "SGD",
    "Schedule",
    "StepDecay",
    "Test",
    "WarmUp",
]


@dataclass(frozen=True)
class StepDecay:
    """The learning rate is multiplied by `factor` after each `every` steps, but never by less than `floor` in all.

    `factor` is above 0 and at most 1, `floor` from 0 to 1.

    >>> import sheave
    >>> sheave.optim.StepDecay(every=1000, factor=0.5, floor=0.01)
    StepDecay(every=1000, factor=0.5, floor=0.01)
    """

    every: int
    factor: float
    floor: float = 0.0

    def _written(self) -> Any:
        return {"Step": {"every": int(self.every), "factor": float(self.factor), "floor": float(self.floor)}}


@dataclass(frozen=True)
class MultiStepDecay:
    """The learning rate is multiplied by `factor` after each of the steps `at`, which rise.

    >>> import sheave
    >>> sheave.optim.MultiStepDecay(at=[100, 200], factor=0.1).factor
    0.1
    """

    at: Sequence[int]
    factor: float

    def _written(self) -> Any:
        return {"MultiStep": {"at": [int(step) for step in self.at], "factor": float(self.factor)}}


@dataclass(frozen=True)
class PolynomialDecay:
    """The learning rate is multiplied by `end + (1 - end) * (1 - share)**power`.

    `share` is the share of the `steps` after the warm-up that are done; `power` 1 is a straight line.

    >>> import sheave
    >>> sheave.optim.PolynomialDecay(steps=1000)
    PolynomialDecay(steps=1000, power=1.0, end=0.0)
    """

    steps: int
    power: float = 1.0
    end: float = 0.0

    def _written(self) -> Any:
        return {"Polynomial": {"steps": int(self.steps), "power": float(self.power), "end": float(self.end)}}


@dataclass(frozen=True)
class CosineDecay:
    """The learning rate is multiplied by `end + (1 - end) * (1 + cos(pi * share)) / 2`.

    `share` is the share of the `steps` after the warm-up that are done.

    >>> import sheave
    >>> sheave.optim.CosineDecay(steps=1000)
    CosineDecay(steps=1000, end=0.0)
    """

    steps: int
    end: float = 0.0

    def _written(self) -> Any:
        return {"Cosine": {"steps": int(self.steps), "end": float(self.end)}}


@dataclass(frozen=True)
class WarmUp:
    """The learning rate rises to its full height on a straight line over the first `steps`, from this share of it.

    >>> import sheave
    >>> sheave.optim.WarmUp(steps=10)
    WarmUp(steps=10, start=0.0)
    """

    steps: int
    start: float = 0.0

    def _written(self) -> Any:
        return {"steps": int(self.steps), "from": float(self.start)}


_Decay = StepDecay | MultiStepDecay | PolynomialDecay | CosineDecay


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes: a warm-up, and then a decay. Either may be None.

    >>> import sheave
    >>> sheave.optim.Schedule(decay=sheave.optim.CosineDecay(steps=110), warm_up=sheave.optim.WarmUp(steps=10)).warm_up
    WarmUp(steps=10, start=0.0)
    """

    decay: _Decay | None = None
    warm_up: WarmUp | None = None

    def _written(self) -> Any:
        decay = "Constant" if self.decay is None else self.decay._written()
        return {"decay": decay, "warm_up": None if self.warm_up is None else self.warm_up._written()}


@dataclass(frozen=True)
class Optimizer:
    """What all optimizers have in common; make one of the classes below.

    >>> import sheave
    >>> isinstance(sheave.optim.SGD(lr=0.1), sheave.optim.Optimizer)
    True
    """

    #: What the native code calls the rule.
    _rule: ClassVar[str] = ""

    def _settings(self) -> dict[str, Any]:
        raise NotImplementedError("make one of SGD, Adam, AdamW, AdaGrad, RMSProp, LAMB and Test")

    def _document(self) -> str:
        """The optimizer as the native code reads it."""
        schedule = getattr(self, "schedule", None)
        if not isinstance(schedule, Schedule):
            schedule = Schedule(decay=schedule)
        settings = {name: _plain(value) for name, value in self._settings().items()}
        written = {
            "rule": {self._rule: settings},
            "schedule": schedule._written(),
            "multi_precision": bool(getattr(self, "multi_precision", False)),
        }
        return json.dumps(written)


def _plain(value: Any) -> Any:
    """A number as JSON has it, whichever type of number it is."""
    return value if value is None or isinstance(value, bool) else float(value)


def _common(optimizer: Any) -> dict[str, Any]:
    return {
        "learning_rate": optimizer.lr,
        "weight_decay": optimizer.weight_decay,
        "rescale": optimizer.rescale,
        "clip_gradient": optimizer.clip_gradient,
    }


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent, with momentum, or Nesterov's, unless that is zero.

    ```text
    slope    = clip(rescale * gradient) + weight_decay * weight
    velocity = momentum * velocity - lr * slope
    weight   = weight + velocity                                   (plain)
    weight   = weight + momentum * velocity - lr * slope           (nesterov)
    ```

    Where the learning rate changes this differs from torch, which multiplies the whole velocity by the new rate.

    >>> import sheave
    >>> sheave.optim.SGD(lr=0.1, momentum=0.9).momentum
    0.9
    """

    lr: float = 0.01
    momentum: float = 0.0
    _: KW_ONLY
    nesterov: bool = False
    weight_decay: float = 0.0
    rescale: float = 1.0
    clip_gradient: float | None = None
    schedule: Schedule | _Decay | None = None
    multi_precision: bool = False

    _rule: ClassVar[str] = "Sgd"

    def _settings(self) -> dict[str, Any]:
        return {**_common(self), "momentum": self.momentum, "nesterov": bool(self.nesterov)}


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015), with the weight decay in the gradient and before the clipping, as MXNet has it.

    ```text
    slope    = clip(rescale * gradient + weight_decay * weight)
    mean     = beta1 * mean + (1 - beta1) * slope
    variance = beta2 * variance + (1 - beta2) * slope**2
    rate     = lr * sqrt(1 - beta2**steps) / (1 - beta1**steps)
    weight   = weight - rate * mean / (sqrt(variance) + eps)
    ```

    >>> import sheave
    >>> sheave.optim.Adam().betas
    (0.9, 0.999)
    """

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    _: KW_ONLY
    eps: float = 1e-8
    weight_decay: float = 0.0
    rescale: float = 1.0
    clip_gradient: float | None = None
    schedule: Schedule | _Decay | None = None
    multi_precision: bool = False

    _rule: ClassVar[str] = "Adam"

    def _settings(self) -> dict[str, Any]:
        beta1, beta2 = self.betas
        return {**_common(self), "beta1": beta1, "beta2": beta2, "epsilon": self.eps}


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), as torch has it.

    ```text
    slope     = clip(rescale * gradient)
    mean      = beta1 * mean + (1 - beta1) * slope
    variance  = beta2 * variance + (1 - beta2) * slope**2
    direction = mean / (1 - beta1**steps) / (sqrt(variance / (1 - beta2**steps)) + eps) + weight_decay * weight
    weight    = weight - lr * direction
    ```

    >>> import sheave
    >>> sheave.optim.AdamW().weight_decay
    0.01
    """

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    _: KW_ONLY
    eps: float = 1e-8
    weight_decay: float = 0.01
    rescale: float = 1.0
    clip_gradient: float | None = None
    schedule: Schedule | _Decay | None = None
    multi_precision: bool = False

    _rule: ClassVar[str] = "AdamW"

    def _settings(self) -> dict[str, Any]:
        beta1, beta2 = self.betas
        return {**_common(self), "beta1": beta1, "beta2": beta2, "epsilon": self.eps}


@dataclass(frozen=True)
class AdaGrad(Optimizer):
    """AdaGrad (Duchi, Hazan and Singer 2011), with the weight decay beside the gradient.

    ```text
    slope   = clip(rescale * gradient)
    squares = squares + slope**2
    weight  = weight - lr * (slope / sqrt(squares + eps) + weight_decay * weight)
    ```

    >>> import sheave
    >>> sheave.optim.AdaGrad(lr=0.1).eps
    1e-07
    """

    lr: float = 0.01
    _: KW_ONLY
    eps: float = 1e-7
    weight_decay: float = 0.0
    rescale: float = 1.0
    clip_gradient: float | None = None
    schedule: Schedule | _Decay | None = None
    multi_precision: bool = False

    _rule: ClassVar[str] = "AdaGrad"

    def _settings(self) -> dict[str, Any]:
        return {**_common(self), "epsilon": self.eps}


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """RMSProp (Tieleman and Hinton 2012), or centered with momentum (Graves 2013).

    ```text
    slope    = clip(rescale * gradient + weight_decay * weight)
    squares  = alpha * squares + (1 - alpha) * slope**2
    weight   = weight - lr * slope / sqrt(squares + eps)           (plain)

    mean     = alpha * mean + (1 - alpha) * slope                  (centered)
    velocity = momentum * velocity - lr * slope / sqrt(max(squares - mean**2, 0) + eps)
    weight   = weight + velocity
    ```

    Momentum is for the centered form alone, as in MXNet, from which the defaults are.

    >>> import sheave
    >>> sheave.optim.RMSProp(lr=0.01, alpha=0.99).alpha
    0.99
    """

    lr: float = 0.001
    _: KW_ONLY
    alpha: float = 0.9
    eps: float = 1e-8
    momentum: float = 0.9
    centered: bool = False
    weight_decay: float = 0.0
    rescale: float = 1.0
    clip_gradient: float | None = None
    schedule: Schedule | _Decay | None = None
    multi_precision: bool = False

    _rule: ClassVar[str] = "RmsProp"

    def _settings(self) -> dict[str, Any]:
        own = {"decay": self.alpha, "epsilon": self.eps, "momentum": self.momentum, "centered": bool(self.centered)}
        return {**_common(self), **own}


@dataclass(frozen=True)
class LAMB(Optimizer):
    """LAMB (You et al. 2020): AdamW with one rate for each tensor.

    ```text
    direction = as AdamW's
    size      = norm(weights), at least lower_bound and at most upper_bound
    trust     = size / norm(direction), or 1 where either is zero
    weight    = weight - lr * trust * direction
    ```

    Both norms are those of the whole tensor. In a synchronous store servers put them together; the other kinds on
    servers have it only for tensors that are not cut. Rows cannot be pushed to it.

    >>> import sheave
    >>> sheave.optim.LAMB(lr=0.01, upper_bound=10.0).bias_correction
    True
    """

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    _: KW_ONLY
    eps: float = 1e-6
    weight_decay: float = 0.0
    bias_correction: bool = True
    lower_bound: float | None = None
    upper_bound: float | None = None
    rescale: float = 1.0
    clip_gradient: float | None = None
    schedule: Schedule | _Decay | None = None
    multi_precision: bool = False

    _rule: ClassVar[str] = "Lamb"

    def _settings(self) -> dict[str, Any]:
        beta1, beta2 = self.betas
        own = {"beta1": beta1, "beta2": beta2, "epsilon": self.eps, "bias_correction": bool(self.bias_correction)}
        return {**_common(self), **own, "lower_bound": self.lower_bound, "upper_bound": self.upper_bound}


@dataclass(frozen=True)
class Test(Optimizer):
    """`weight = weight + rescale * gradient`: MXNet's optimizer for tests. It has no learning rate.

    >>> import sheave
    >>> sheave.optim.Test(rescale=2.0).rescale
    2.0
    """

    rescale: float = 1.0
    _: KW_ONLY
    schedule: Schedule | _Decay | None = None
    multi_precision: bool = False

    _rule: ClassVar[str] = "Test"

    def _settings(self) -> dict[str, Any]:
        return {"rescale": self.rescale}
