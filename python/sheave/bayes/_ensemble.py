"""Deep ensembles."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sheave import _core_bayes as native
from sheave.bayes._batching import BatchedSteps, SingleSteps, stepping
from sheave.bayes._data import joined, require_repeatable
from sheave.bayes._posterior import Posterior, shuffled_batches
from sheave.bayes._progress import Progress, Report, reporter

__all__ = ["Ensemble", "RandomizedPrior"]


class Ensemble(Posterior):
    """A deep ensemble (Lakshminarayanan, Pritzel and Blundell, NeurIPS 2017, arXiv:1612.01474).

    Members are trained as they would be alone, bit for bit, whatever the number of devices and the size of their caches
    is, unless they are `batched`: they differ by their seeds, and where `bootstrap=True` is given to `fit` by their
    data. For randomised priors have `make` return a `RandomizedPrior`. With the task "gaussian" outputs are a mean and
    the logarithm of a variance for each target, and the loss should be the negative log likelihood, such as
    `sheave.bayes.gaussian_loss`.

    >>> import numpy as np, sheave
    >>> from sheave.particle import FunctionModel
    >>> def gradient(parameters, loss, x, y):
    ...     error = x * parameters["w"] - y
    ...     return float((error**2).mean()), {"w": np.array([2 * (error * x).mean()])}
    >>> def make(seed):
    ...     start = np.array([sheave.bayes.Generator(seed).normal()])
    ...     return FunctionModel({"w": start}, lambda p, x: x * p["w"], gradient, sheave.optim.SGD(0.5))
    >>> x = np.array([[0.5], [1.0]])
    >>> with sheave.bayes.Ensemble(make, members=3) as ensemble:
    ...     losses = ensemble.fit([(x, 2 * x)], None, epochs=50)
    ...     predicted = ensemble.predict(x, mode=["mean", "std"])
    >>> losses.shape, predicted["mean"].round(3).tolist(), bool((predicted["std"] < 1e-3).all())
    ((50, 3), [[1.0], [2.0]], True)
    """

    def fit(
        self,
        loader: Iterable[Any],
        loss: Callable[..., Any],
        epochs: int,
        *,
        bootstrap: bool = False,
        batched: bool = False,
        timeout: float | None = None,
        progress: Progress = None,
    ) -> NDArray[np.float64]:
        """Train all members, as `Posterior.fit` says.

        With `bootstrap` each member has data of its own: as many as there are, drawn with replacement, in batches as
        large as the loader's first one, in a new order in each epoch. All data are in memory then, once for all.
        """
        if not bootstrap:
            return super().fit(loader, loss, epochs, batched=batched, timeout=timeout, progress=progress)
        require_repeatable(loader, epochs)
        with stepping(self.particles, self.ids, batched, timeout) as steps:
            return self._bootstrapped(loader, loss, epochs, steps, progress)

    def _bootstrapped(
        self, loader: Iterable[Any], loss: Any, epochs: int, steps: SingleSteps | BatchedSteps, progress: Progress
    ) -> NDArray[np.float64]:
        """Train each member on data of its own."""
        x, y, size = joined(loader)
        count, tell = len(y), reporter(progress)
        generators = [native.Generator(native.seed_of(self.seed_of(member), 1)) for member in range(len(self.ids))]
        drawn = [native.bootstrap(generator, count) for generator in generators]
        orders = [np.random.Generator(np.random.PCG64(self.seed_of(member))) for member in range(len(self.ids))]
        batches = -(-count // size)
        means = np.empty((epochs, len(self.ids)))
        for epoch in range(epochs):
            sums = np.zeros(len(self.ids))
            own = [
                shuffled_batches((x, y), rows, size, order.permutation(count))
                for rows, order in zip(drawn, orders, strict=True)
            ]
            for batch, each in enumerate(zip(*own, strict=True)):
                losses = np.asarray(steps.step_each(loss, each), np.float64)
                sums += losses
                if tell is not None:
                    tell(Report(epoch + 1, epochs, batch + 1, batches, losses))
            means[epoch] = sums / batches
            steps.schedule()
        return means


class RandomizedPrior:
    """A model with a fixed one added to its outputs: model(x) + scale * prior(x) (Osband, Aslanides and Cassirer,
    NeurIPS 2018, arXiv:1806.03335).

    The prior is another model of the same outputs, with a seed of its own, that is never trained. Its outputs are part
    of what the loss sees, so that far from the data members differ as their priors do. It is a `Model` itself:
    parameters, gradients and optimizer are those of the model alone.

    >>> import numpy as np, sheave
    >>> from sheave.particle import FunctionModel
    >>> def line(w):
    ...     return FunctionModel({"w": np.array([w])}, lambda parameters, x: x * parameters["w"])
    >>> sheave.bayes.RandomizedPrior(line(1.0), line(2.0), scale=3.0).forward(np.array([1.0]))
    array([7.])
    """

    def __init__(self, model: Any, prior: Any, scale: float = 1.0) -> None:
        self.model = model
        self.prior = prior
        self.scale = float(scale)

    def forward(self, x: Any, *args: Any, gradient: bool = True, **keywords: Any) -> Any:
        """Return the sum of both outputs."""
        fixed = self.prior.forward(x, *args, gradient=False, **keywords)
        return self.model.forward(x, *args, gradient=gradient, **keywords) + self.scale * fixed

    def step(self, loss: Callable[..., Any], x: Any, y: Any, *args: Any, **keywords: Any) -> Any:
        """Step the model with a loss that sees both outputs."""
        fixed = self.scale * self.prior.forward(x, *args, gradient=False, **keywords)
        return self.model.step(lambda output, target: loss(output + fixed, target), x, y, *args, **keywords)

    def park(self) -> None:
        """Leave the device, both models."""
        self.model.park()
        self.prior.park()

    def bring(self) -> None:
        """Enter the device, both models."""
        self.model.bring()
        self.prior.bring()

    @property
    def nbytes(self) -> int:
        """The bytes of both models."""
        return int(self.model.nbytes + self.prior.nbytes)

    def state(self) -> dict[str, Any]:
        """Return the state of both models."""
        return {"model": self.model.state(), "prior": self.prior.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Load the state of both models."""
        self.model.load(state["model"])
        self.prior.load(state["prior"])

    def __getattr__(self, name: str) -> Any:
        if name in ("model", "prior"):
            raise AttributeError(name)
        return getattr(self.model, name)
