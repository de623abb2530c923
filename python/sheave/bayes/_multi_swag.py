"""Multi-SWAG: a Gaussian about each member of an ensemble."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sheave import _core_bayes as native
from sheave._core import InvalidArgument
from sheave.bayes._batching import stepping
from sheave.bayes._data import inputs
from sheave.bayes._modules import evaluating, refresh, restored
from sheave.bayes._outputs import combine, modes_of
from sheave.bayes._posterior import BASIC, Handlers, Posterior, outputs_of
from sheave.bayes._progress import Progress

__all__ = ["MultiSwag"]


def _collect(particle: Any, rank: int) -> int:
    def collect(model: Any) -> int:
        flat = model.flat()
        if "swag" not in particle.state:
            particle.state["swag"] = native.Swag(len(flat), rank, flat.dtype)
        particle.state["swag"].collect(flat)
        return int(particle.state["swag"].snapshots)

    return int(particle.update(collect).wait())


def _moments(particle: Any) -> dict[str, Any] | None:
    swag = particle.state.get("swag")
    return None if swag is None else dict(swag.state())


def _predict(
    particle: Any, batches: list[Any], settings: tuple[int, float, int, list[Any]]
) -> list[NDArray[Any]]:
    samples, scale, seed, training = settings
    swag = particle.state.get("swag")
    if swag is None:
        raise InvalidArgument(f"particle {particle.id.number} has no snapshots; expected fit with swag_epochs before")

    def predict(model: Any) -> list[NDArray[Any]]:
        made = []
        with evaluating(model), restored(model):
            flat = np.empty_like(swag.mean)
            for sample in range(samples):
                generator = native.Generator(native.seed_of(native.seed_of(particle.seed, seed), sample))
                model.set_flat(swag.sample(generator, scale, flat))
                refresh(model, training)
                made.append(outputs_of(model, batches))
        return made

    return list(particle.update(predict).wait())


class MultiSwag(Posterior):
    """SWAG (Maddox et al., NeurIPS 2019, arXiv:1902.02476) about each of several models (Wilson and Izmailov, NeurIPS
    2020, arXiv:2002.08791). One member is SWAG.

    After some epochs of training each further epoch ends with a snapshot, from which each member has moments of its own
    and the last `rank` deviations. A sample is

    ```text
    mean + sqrt(scale) * (sqrt(variance) * z1 + deviations.T @ z2 / sqrt(K - 1))
    ```

    with the number K of deviations that are kept and a scale of a half, as in the paper. Statistics of batch
    normalisation are computed again for each sample. Probabilities, not logits, are averaged over the samples of all
    members. Schedulers rest while snapshots are taken: the learning rate stays what it is, and should be a rate that
    moves on.

    >>> import numpy as np, sheave
    >>> from sheave.particle import FunctionModel
    >>> def gradient(parameters, loss, x, y):
    ...     error = x @ parameters["w"] - y
    ...     return float((error**2).mean() / 2), {"w": x.T @ error / len(x)}
    >>> def make(seed):
    ...     start, sgd = np.full(1, float(seed % 2)), sheave.optim.SGD(lr=0.3)
    ...     return FunctionModel({"w": start}, lambda parameters, x: x @ parameters["w"], gradient, sgd)
    >>> batches = [(np.ones((2, 1)), np.zeros(2)), (np.ones((2, 1)), np.ones(2))]
    >>> with sheave.bayes.MultiSwag(make, 2, rank=5) as swag:
    ...     _ = swag.fit(batches, None, 20, swag_epochs=8)
    ...     predicted = swag.predict(np.ones((1, 1)), mode=["mean", "pred"], samples=10)
    >>> predicted["pred"].shape, bool(0.4 < predicted["mean"][0] < 0.8)
    ((1, 20), True)
    """

    HANDLERS: ClassVar[Handlers] = {
        **BASIC,
        "predict": _predict,
        "collect": _collect,
        "moments": _moments,
    }

    def __init__(self, make: Callable[[int], Any] | None, members: int, *, rank: int = 20, **settings: Any) -> None:
        super().__init__(make, members, **settings)
        self.rank = rank

    def fit(
        self,
        loader: Iterable[Any],
        loss: Callable[..., Any],
        epochs: int,
        *,
        swag_epochs: int = 10,
        batched: bool = False,
        timeout: float | None = None,
        progress: Progress = None,
    ) -> NDArray[np.float64]:
        """Train all members for `epochs`, then for `swag_epochs` more, each of which ends with a snapshot.

        Else as `Posterior.fit`. Returns the mean losses [epochs + swag_epochs, members].
        """
        for name, count in (("epochs", epochs), ("swag_epochs", swag_epochs)):
            if count < 0:
                raise InvalidArgument(f"{name} is {count}; expected 0 or more")

        self._loader = loader
        with stepping(self.particles, self.ids, batched, timeout) as steps:

            def ended(epoch: int) -> None:
                if epoch >= epochs:
                    self.collect(timeout=timeout)
                else:
                    steps.schedule()

            return self._epochs(
                loader, epochs + swag_epochs, progress, timeout, lambda pairs: steps.step(loss, pairs), ended
            )

    def collect(self, *, timeout: float | None = None) -> int:
        """Take a snapshot of all members as they are. Returns how many each has."""
        return min(int(count) for count in self.ask("collect", self.rank, timeout=timeout))

    def moments(self, *, timeout: float | None = None) -> list[native.Swag]:
        """Return the Gaussian of each member, copies."""
        states = self.ask("moments", timeout=timeout)
        if any(state is None for state in states):
            raise InvalidArgument("a member has no snapshots; expected fit with swag_epochs, or collect, before")
        return [native.Swag.load(state) for state in states]

    def predict(  # type: ignore[override]
        self,
        data: Any,
        *,
        mode: str | Iterable[str] | None = None,
        samples: int = 20,
        scale: float = 0.5,
        seed: int = 0,
        refresh_on: Iterable[Any] | None = None,
        quantile: float | Sequence[float] = 0.5,
        batch_size: int | None = None,
        timeout: float | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return what `samples` samples of each member say together, as `Posterior.predict`; M is members * samples.

        The same `seed` draws the same samples. Statistics of batch normalisation are refreshed on the batches of
        `refresh_on`, by default the loader of `fit`. Afterwards parameters and statistics are those of before.
        """
        modes = modes_of(self.task, mode)
        if samples < 1:
            raise InvalidArgument(f"samples is {samples}; expected 1 or more")
        training = self._training(refresh_on, timeout)
        outputs = self._outputs(list(inputs(data, batch_size)), (samples, float(scale), seed + 1, training), timeout)
        return combine(self.task, outputs, modes, quantile)
