"""Dropout that stays on at prediction."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sheave import _core_bayes as native
from sheave._core import InvalidArgument
from sheave.bayes._data import inputs
from sheave.bayes._modules import dropping, evaluating
from sheave.bayes._outputs import combine, modes_of
from sheave.bayes._posterior import BASIC, Handlers, Posterior, outputs_of

__all__ = ["MonteCarloDropout"]


def _predict(particle: Any, batches: list[Any], settings: tuple[int, int]) -> list[NDArray[Any]]:
    samples, seed = settings

    def predict(model: Any) -> list[NDArray[Any]]:
        made = []
        with evaluating(model):
            for sample in range(samples):
                drawn = native.seed_of(native.seed_of(particle.seed, seed), sample)
                made.append(_sampled(model, batches, drawn))
        return made

    return list(particle.update(predict).wait())


def _sampled(model: Any, batches: list[Any], seed: int) -> NDArray[Any]:
    """The outputs of one mask, which is the same for every batch."""
    made = []
    for x in batches:
        with dropping(model, seed) as keywords:
            made.append(outputs_of(model, [x], **keywords))
    return np.concatenate(made)


class MonteCarloDropout(Posterior):
    """Dropout that stays on at prediction, each mask a sample (Gal and Ghahramani, ICML 2016, arXiv:1506.02142).

    A sample draws one mask for each dropout layer, and keeps it for all data: what it predicts is one function. Kept
    units are scaled by 1 / (1 - p), as in training, so that means stay. Of a model of torch the layers are Dropout and
    Dropout1d to 3d, whose masks are one number for each channel; all else is in evaluation. A `FunctionModel` gets a
    `Generator` as the keyword `dropout` of its forward function, which must have it, and draws its masks by
    `sheave.bayes.dropout_mask`.

    >>> import numpy as np, sheave
    >>> from sheave.particle import FunctionModel
    >>> def forward(parameters, x, dropout=None):
    ...     mask = np.ones(100)
    ...     if dropout is not None:
    ...         sheave.bayes.dropout_mask(dropout, 0.5, mask)
    ...     return (x * mask) @ parameters["w"]
    >>> make = lambda seed: FunctionModel({"w": np.full(100, 0.01)}, forward)
    >>> with sheave.bayes.MonteCarloDropout(make, 1) as dropout:
    ...     predicted = dropout.predict(np.ones((1, 100)), mode=["mean", "std"], samples=200)
    >>> bool(abs(predicted["mean"][0] - 1) < 0.05), bool(0.05 < predicted["std"][0] < 0.2)
    (True, True)
    """

    HANDLERS: ClassVar[Handlers] = {**BASIC, "predict": _predict}

    def predict(  # type: ignore[override]
        self,
        data: Any,
        *,
        mode: str | Iterable[str] | None = None,
        samples: int = 20,
        seed: int = 0,
        quantile: float | Sequence[float] = 0.5,
        batch_size: int | None = None,
        timeout: float | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return what `samples` masks of each member say together, as `Posterior.predict`; M is members * samples.

        The same `seed` draws the same masks.
        """
        modes = modes_of(self.task, mode)
        if samples < 1:
            raise InvalidArgument(f"samples is {samples}; expected 1 or more")
        outputs = self._outputs(list(inputs(data, batch_size)), (samples, seed + 1), timeout)
        return combine(self.task, outputs, modes, quantile)
