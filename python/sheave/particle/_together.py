"""Models of several particles of a device, as one computation that lasts over several messages.

Only handlers of the device look at it, one after the other, so it needs no lock. Whatever else is done on the device
ends it first: nobody sees a model without what was computed here.
"""

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from sheave._core import Deadlock, InvalidArgument, LimitExceeded, Unsupported
from sheave.particle._cache import ParticleCache

__all__ = ["Together"]


class Together:
    """The models of these particles, pinned in the cache of their device, and all of them as one."""

    def __init__(self, cache: ParticleCache, label: Any, numbers: Sequence[int]) -> None:
        self.numbers = tuple(numbers)
        self._guards = contextlib.ExitStack()
        try:
            self.batched = _batched(self._pinned(cache, label))
        except BaseException:
            self._guards.close()
            raise

    def _pinned(self, cache: ParticleCache, label: Any) -> list[Any]:
        models = {}
        # In one order, whatever that of the names is: of two that want the same, one comes first at all of them.
        for number in sorted(self.numbers):
            try:
                models[number] = self._guards.enter_context(cache.acquire(number))
            except (Deadlock, LimitExceeded) as error:
                raise LimitExceeded(
                    f"the cache of device {label} has room for {len(models)} of {len(self.numbers)} models that are to "
                    "be batched; hint: make it larger, or step them one by one"
                ) from error
        return [models[number] for number in self.numbers]

    def end(self) -> None:
        """Give everything back to the models, and let go of them."""
        try:
            self.batched.finish()
        finally:
            self._guards.close()


def _batched(models: list[Any]) -> Any:
    # Without torch there are none of its models.
    of_torch = sys.modules.get("sheave.particle._torch_models")
    kind = () if of_torch is None else of_torch.TorchModel
    others = sorted({type(model).__name__ for model in models if not isinstance(model, kind)})
    if others:
        raise Unsupported(f"models of {others} cannot be batched; hint: use TorchModels, or step them one by one")
    from sheave.particle._batched import BatchedModels

    return BatchedModels(models)


def require_distinct(ids: Sequence[Any]) -> None:
    """Refuse no particles, or the same one twice."""
    if not ids or len(set(ids)) < len(ids):
        said = [tuple(id) for id in ids]
        raise InvalidArgument(f"particles {said} to be batched; expected one or more, each of them once")
