"""What all optimizers have in common, and their names."""

import warnings
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from sheave.compat.mxnet.lr_scheduler import LRScheduler
from sheave.compat.mxnet.ndarray.array import NDArray

__all__ = ["Optimizer", "create", "register"]

State = Any


class Optimizer:
    """How weights follow gradients. A class of one's own defines `create_state` and `update`, or, as in MXNet 2,
    `step` on lists.

    >>> import sheave.compat.mxnet as mx
    >>> @mx.optimizer.register
    ... class Halve(mx.optimizer.Optimizer):
    ...     def update(self, index, weight, grad, state):
    ...         weight[:] = weight * 0.5 - grad * self.lr
    >>> updater = mx.optimizer.get_updater(mx.optimizer.create("halve", learning_rate=1.0))
    >>> weight = mx.nd.ones(1)
    >>> updater(0, mx.nd.ones(1), weight)
    >>> weight.asscalar()
    np.float32(-0.5)
    """

    opt_registry: dict[str, type["Optimizer"]] = {}

    def __init__(
        self,
        rescale_grad: float = 1.0,
        param_idx2name: Mapping[Any, str] | None = None,
        wd: float = 0.0,
        clip_gradient: float | None = None,
        learning_rate: float | None = None,
        lr_scheduler: LRScheduler | None = None,
        sym: Any = None,
        begin_num_update: int = 0,
        multi_precision: bool = False,
        param_dict: Mapping[Any, Any] | None = None,
        **ignored: Any,
    ) -> None:
        if not isinstance(param_idx2name or {}, Mapping):
            raise AssertionError("param_idx2name should be a dict of param indexes to names.")
        unknown = set(ignored) - {"aggregate_num", "use_fused_step"}
        if unknown:
            raise TypeError(f"{type(self).__name__} knows no setting {', '.join(sorted(unknown))}")
        self.rescale_grad = rescale_grad
        self.lr_scheduler = lr_scheduler
        self.lr = 0.01 if learning_rate is None else learning_rate
        if lr_scheduler is not None and learning_rate is not None:
            lr_scheduler.base_lr = learning_rate
        self.wd = wd
        self.clip_gradient = clip_gradient
        self.multi_precision = multi_precision
        self.begin_num_update = self.num_update = begin_num_update
        self._index_update_count: dict[Any, int] = {}
        self.idx2name = dict(param_idx2name or {})
        self.param_dict = dict(param_dict or {})
        self.lr_mult: dict[Any, float] = {}
        self.wd_mult: dict[Any, float] = {}
        self.set_wd_mult({})

    @staticmethod
    def register(klass: type["Optimizer"]) -> type["Optimizer"]:
        """Lets `create` find a class by its name in lower case. Returns the class, so it serves as a decorator."""
        name = klass.__name__.lower()
        if name in Optimizer.opt_registry:
            message = f"the optimizer {name} is registered a second time and takes the first one's place"
            warnings.warn(message, stacklevel=2)
        Optimizer.opt_registry[name] = klass
        return klass

    @staticmethod
    def create_optimizer(name: str, *arguments: Any, **settings: Any) -> "Optimizer":
        """An optimizer by its name, in letters of either case."""
        if name.lower() not in Optimizer.opt_registry:
            known = ", ".join(sorted(Optimizer.opt_registry))
            raise ValueError(f"Cannot find optimizer {name}; there are {known}")
        return Optimizer.opt_registry[name.lower()](*arguments, **settings)

    # What classes define.

    def create_state(self, index: Any, weight: NDArray) -> State:
        """What is remembered of a weight between its steps; None for nothing."""
        return None

    def step(self, indices: list[Any], weights: list[NDArray], grads: list[NDArray], states: list[State]) -> None:
        """Moves weights along their gradients, in place (MXNet 2)."""
        raise NotImplementedError

    def update(self, index: Any, weight: NDArray, grad: NDArray, state: State) -> None:
        """Moves one weight along its gradient, in place."""
        self._update_count(index)
        self.step([index], [weight], [grad], [state])

    # With copies of halves in single precision.

    def create_state_multi_precision(self, index: Any, weight: NDArray) -> State:
        """The state of a weight; for halves and `multi_precision` with a copy of the weight in single precision."""
        if self.multi_precision and weight.dtype == np.float16:
            copy = weight.astype(np.float32)
            return copy, self.create_state(index, copy)
        return self.create_state(index, weight)

    def update_multi_precision(self, index: Any, weight: NDArray, grad: NDArray, state: State) -> None:
        """Moves one weight, by its copy in single precision where there is one."""
        if not (self.multi_precision and weight.dtype == np.float16):
            self.update(index, weight, grad, state)
            return
        copy, inner = state
        self.update(index, copy, grad.astype(np.float32), inner)
        copy.copyto(weight)

    # Rates.

    @property
    def learning_rate(self) -> float:
        """What the scheduler says, or the rate that was set."""
        return self.lr if self.lr_scheduler is None else self.lr_scheduler(self.num_update)

    def set_learning_rate(self, lr: float) -> None:
        """Another learning rate, unless there is a scheduler."""
        if self.lr_scheduler is not None:
            raise UserWarning("LRScheduler of the optimizer has already been defined.")
        self.lr = lr

    def set_lr_mult(self, args_lr_mult: Mapping[Any, float]) -> None:
        """Factors of the learning rate, by index or name of the parameter."""
        self.lr_mult = dict(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Mapping[Any, float]) -> None:
        """Factors of the weight decay, by index or name; 0 for named parameters that end in neither `_weight` nor
        `_gamma`."""
        spared = (name for name in self.idx2name.values() if not name.endswith(("_weight", "_gamma")))
        self.wd_mult = {**dict.fromkeys(spared, 0.0), **args_wd_mult}

    def _update_count(self, index: Any) -> None:
        for one in index if isinstance(index, list | tuple) else (index,):
            count = self._index_update_count.get(one, self.begin_num_update) + 1
            self._index_update_count[one] = count
            self.num_update = max(self.num_update, count)

    def _factor(self, index: Any, factors: Mapping[Any, float], attribute: str) -> float:
        if index in self.param_dict:
            return float(getattr(self.param_dict[index], attribute))
        return factors.get(index, factors.get(self.idx2name.get(index), 1.0))

    def _get_lr(self, index: Any) -> float:
        return self.learning_rate * self._factor(index, self.lr_mult, "lr_mult")

    def _get_lrs(self, indices: list[Any]) -> list[float]:
        return [self._get_lr(index) for index in indices]

    def _get_wd(self, index: Any) -> float:
        return self.wd * self._factor(index, self.wd_mult, "wd_mult")

    def _get_wds(self, indices: list[Any]) -> list[float]:
        return [self._get_wd(index) for index in indices]


Class = TypeVar("Class", bound=type[Optimizer])


def register(klass: Class) -> Class:
    """See `Optimizer.register`."""
    Optimizer.register(klass)
    return klass


def create(name: str, *arguments: Any, **settings: Any) -> Optimizer:
    """An optimizer by its name, in letters of either case: `sgd`, `adam`, …

    >>> import sheave.compat.mxnet as mx
    >>> mx.optimizer.create("SGD", learning_rate=0.5).lr
    0.5
    """
    return Optimizer.create_optimizer(name, *arguments, **settings)
