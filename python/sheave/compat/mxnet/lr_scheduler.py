"""Learning rates as functions of the number of updates, as ``mxnet.lr_scheduler`` has them."""

import math

__all__ = ["CosineScheduler", "FactorScheduler", "LRScheduler", "MultiFactorScheduler", "PolyScheduler"]


class LRScheduler:
    """A rate that rises during `warmup_steps` from `warmup_begin_lr` to `base_lr`, and then does what `rate` says.

    >>> import sheave.compat.mxnet as mx
    >>> schedule = mx.lr_scheduler.FactorScheduler(step=10, factor=0.5, base_lr=0.4)
    >>> [schedule(update) for update in (1, 10, 11, 21)]
    [0.4, 0.4, 0.2, 0.1]
    """

    def __init__(
        self,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        if warmup_mode not in ("linear", "constant") or warmup_steps < 0 or warmup_begin_lr > base_lr:
            raise ValueError("a warm-up is linear or constant, has no negative length and does not fall")
        self.base_lr = base_lr
        self.warmup_steps = warmup_steps
        self.warmup_begin_lr = warmup_begin_lr
        self.warmup_mode = warmup_mode

    def rate(self, num_update: int) -> float:
        """The rate after the warm-up."""
        raise NotImplementedError

    def __call__(self, num_update: int) -> float:
        if num_update >= self.warmup_steps:
            return self.rate(num_update)
        share = num_update / self.warmup_steps if self.warmup_mode == "linear" else 0
        return self.warmup_begin_lr + (self.base_lr - self.warmup_begin_lr) * share

    def _progress(self, num_update: int, max_update: int) -> float:
        steps = max_update - self.warmup_steps
        return min(1.0, (num_update - self.warmup_steps) / steps) if steps > 0 else 1.0


class FactorScheduler(LRScheduler):
    """Multiplied by `factor` after every `step` updates, down to `stop_factor_lr`."""

    def __init__(
        self,
        step: int,
        factor: float = 1,
        stop_factor_lr: float = 1e-8,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        if step < 1 or factor > 1:
            raise ValueError("a step takes at least one update, and a factor is no more than 1")
        self.step, self.factor, self.stop_factor_lr = step, factor, stop_factor_lr

    def rate(self, num_update: int) -> float:
        """`base_lr` times a power of the factor."""
        return max(self.stop_factor_lr, self.base_lr * self.factor ** max(0, (num_update - 1) // self.step))


class MultiFactorScheduler(LRScheduler):
    """Multiplied by `factor` once the number of updates is beyond each of the steps."""

    def __init__(
        self,
        step: list[int],
        factor: float = 1,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        if not step or sorted(set(step)) != list(step) or step[0] < 1 or factor > 1:
            raise ValueError("steps rise from at least 1, and a factor is no more than 1")
        self.step, self.factor = step, factor

    def rate(self, num_update: int) -> float:
        """`base_lr` times a power of the factor."""
        return float(self.base_lr * self.factor ** sum(num_update > step for step in self.step))


class PolyScheduler(LRScheduler):
    """Falls to `final_lr` at `max_update`, along a power of what is left."""

    def __init__(
        self,
        max_update: int,
        base_lr: float = 0.01,
        pwr: int = 2,
        final_lr: float = 0,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        self.max_update, self.power, self.final_lr = max_update, pwr, final_lr

    def rate(self, num_update: int) -> float:
        """Between `base_lr` and `final_lr`."""
        left = 1 - self._progress(num_update, self.max_update)
        return float(self.final_lr + (self.base_lr - self.final_lr) * left**self.power)


class CosineScheduler(LRScheduler):
    """Falls to `final_lr` at `max_update`, along half a wave."""

    def __init__(
        self,
        max_update: int,
        base_lr: float = 0.01,
        final_lr: float = 0,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        self.max_update, self.final_lr = max_update, final_lr

    def rate(self, num_update: int) -> float:
        """Between `base_lr` and `final_lr`."""
        wave = (1 + math.cos(math.pi * self._progress(num_update, self.max_update))) / 2
        return self.final_lr + (self.base_lr - self.final_lr) * wave
