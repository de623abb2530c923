"""What the algorithms are: a distribution, how it is inferred, and what it says."""

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch
from sheave.compat.push.push import PusH

__all__ = ["Infer"]


class Infer:
    """A distribution over the networks that `mk_nn(*args)` makes, and its inference. It is ended when nobody holds it,
    and as a context manager.

    Particles lie on the first `num_devices` devices, in turn.
    """

    def __init__(
        self,
        mk_nn: Callable[..., torch.nn.Module],
        *args: Any,
        num_devices: int = 1,
        cache_size: int = 4,
        view_size: int = 4,
    ) -> None:
        self.mk_nn, self.args = mk_nn, args
        self.num_devices = num_devices
        self.cache_size, self.view_size = cache_size, view_size
        self.push_dist = PusH(mk_nn, *args, cache_size=cache_size, view_size=view_size, devices=num_devices)
        self._ending = weakref.finalize(self, self.push_dist.close)

    def bayes_infer(self, dataloader: Any, epochs: int, **kwargs: Any) -> None:
        """Make the particles, and train them."""
        raise NotImplementedError(f"{type(self).__name__} has no inference")

    def posterior_pred(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict with all particles."""
        raise NotImplementedError(f"{type(self).__name__} makes no predictions")

    def p_parameters(self) -> list[list[torch.Tensor]]:
        """The parameters of each particle, on the CPU."""
        return [self.push_dist.p_parameters(pid) for pid in self.push_dist.particle_ids()]

    def get_var(self, outputs: Any) -> torch.Tensor:
        """The variance over models at each point, of outputs by model: of a sample."""
        stacked = outputs if isinstance(outputs, torch.Tensor) else torch.stack(list(outputs))
        return stacked.var(dim=0)

    def _cleanup(self) -> None:
        self._ending()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cleanup()
