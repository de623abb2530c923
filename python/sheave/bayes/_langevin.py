"""Chains of samples on particles: SGLD, SGHMC, cyclical step sizes."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sheave import _core_bayes as native
from sheave._core import InvalidArgument
from sheave.bayes._batching import Batching, Pairs, Single, of_members
from sheave.bayes._data import count_data, inputs, require_repeatable
from sheave.bayes._modules import evaluating, refresh, restored
from sheave.bayes._outputs import combine, modes_of
from sheave.bayes._posterior import BASIC, Handlers, Posterior, outputs_of
from sheave.bayes._progress import Progress
from sheave.particle._particle import Outstanding

__all__ = ["Langevin"]


def potential(model: Any, loss: Any, x: Any, y: Any, data: int, prior: Any) -> tuple[float, Any, Any]:
    """The loss of a batch, a copy of the parameters, and the gradient of the negative log posterior there."""
    require_no_optimizer(model)
    value = float(model.step(loss, x, y))
    flat = np.array(model.flat())
    gradient = np.empty_like(flat)
    write_slopes(model.flat_gradient(), flat, data, prior, gradient)
    return value, flat, gradient


def write_slopes(gradient: Any, flat: NDArray[Any], data: int, prior: Any, out: NDArray[Any]) -> None:
    """Write the gradient of the negative log posterior, by that of the mean loss, which may be `out` itself."""
    np.multiply(gradient, flat.dtype.type(data), out=out)
    if prior is not None:
        prior.add_gradient(flat, out)


def require_no_optimizer(model: Any) -> None:
    """Refuse a model that would make steps of its own."""
    if any(getattr(model, name, None) is not None for name in ("optimizer", "_optimizer")):
        raise InvalidArgument("the model has an optimizer; expected one without: the sampler makes the steps")


class _Settings(NamedTuple):
    """How a chain is sampled."""

    method: str
    step_size: float
    friction: float
    noise: float
    temperature: float
    cycle: tuple[int, int, float] | None
    burn_in: int
    thin: int
    capacity: int


class _Sampler:
    """One chain: its generator, its velocity, its samples."""

    def __init__(self, settings: _Settings, seed: int, flat: NDArray[Any]) -> None:
        self.settings = settings
        self.generator = native.Generator(native.seed_of(seed, 1))
        self.velocity = np.zeros_like(flat)
        self.chain = native.Chain(len(flat), settings.burn_in, settings.thin, settings.capacity, flat.dtype)
        self.steps = 0
        self.cyclical = None
        if settings.cycle is not None:
            steps, cycles, exploration = settings.cycle
            self.cyclical = native.Cyclical(settings.step_size, steps, cycles, exploration)

    def step(self, flat: NDArray[Any], gradient: NDArray[Any]) -> bool:
        """Step parameters in place. Returns whether what they are now may be a sample."""
        self.steps += 1
        settings = self.settings
        size, temperature, samples = settings.step_size, settings.temperature, True
        if self.cyclical is not None:
            size, share, samples, _ = self.cyclical.at(self.steps)
            temperature *= share
        if settings.method == "sgld":
            native.Sgld(size, temperature).step(self.generator, flat, gradient)
        else:
            sghmc = native.Sghmc(size, settings.friction, settings.noise, temperature)
            sghmc.step(self.generator, flat, self.velocity, gradient)
        return samples


def _step(particle: Any, model: Any, settings: Any, loss: Any, pairs: Pairs, data: int, prior: Any) -> list[float]:
    losses = []
    for x, y in pairs:
        value, flat, gradient = potential(model, loss, x, y, data, prior)
        offered = _moved(particle, settings, flat, gradient)
        model.set_flat(flat)
        offered()
        losses.append(value)
    return losses


def _moved(particle: Any, settings: Any, flat: NDArray[Any], gradient: NDArray[Any]) -> Callable[[], None]:
    """Steps the chain of a particle, parameters in place. Returns what offers them as a sample, where they are one."""
    if "sampler" not in particle.state:
        particle.state["sampler"] = _Sampler(_Settings(*settings), particle.seed, flat)
    sampler = particle.state["sampler"]
    may_be_sample = sampler.step(flat, gradient)
    return lambda: sampler.chain.offer(flat) if may_be_sample else None


def _batched_step(
    batched: Any, particles: list[Any], settings: Any, loss: Any, pairs: Pairs, data: int, prior: Any
) -> list[list[float]]:
    return of_members([_batched_move(batched, particles, settings, loss, x, y, data, prior) for x, y in pairs])


def _batched_move(
    batched: Any, particles: list[Any], settings: Any, loss: Any, x: Any, y: Any, data: int, prior: Any
) -> list[float]:
    require_no_optimizer(batched.models[0])
    losses = batched.step(loss, x, y).tolist()
    rows, gradients = batched.flat().cpu().numpy(), batched.flat_gradient().cpu().numpy()
    offered = []
    for particle, flat, gradient in zip(particles, rows, gradients, strict=True):
        write_slopes(gradient, flat, data, prior, gradient)
        offered.append(_moved(particle, settings, flat, gradient))
    batched.set_flat(rows)
    for offer in offered:
        offer()
    return list(losses)


def _kept(particle: Any) -> Any:
    """The samples of a chain, which its device steps: there and nowhere else."""
    sampler = particle.state.get("sampler")
    return None if sampler is None else sampler.chain.samples()


def _samples(particle: Any) -> Any:
    return particle.update(lambda _: _kept(particle)).wait()


def _predict(particle: Any, batches: list[Any], training: list[Any]) -> list[NDArray[Any]]:
    def predict(model: Any) -> list[NDArray[Any]]:
        samples, made = _kept(particle), []
        if samples is None or not len(samples):
            number = particle.id.number
            raise InvalidArgument(f"the chain of particle {number} has no samples; expected longer training")
        with evaluating(model), restored(model):
            for sample in samples:
                model.set_flat(sample)
                refresh(model, training)
                made.append(outputs_of(model, batches))
        return made

    return list(particle.update(predict).wait())


class Langevin(Posterior):
    """Chains of samples of the posterior by noisy gradient steps: `method` "sgld" (Welling and Teh, ICML 2011) or
    "sghmc" (Chen, Fox and Guestrin, ICML 2014, arXiv:1402.4102).

    Chains step along the gradient of U = N * loss - log prior, where `loss` is the *mean* of negative log likelihoods
    over a batch, and N the number of data: `fit` scales it. `prior` is a `Normal`, or None for none. Models must have
    no optimizer. `sheave.bayes.Sgld` and `Sghmc` have the formulas and say what `step_size`, `friction`, `noise` and
    `temperature` are. With `cycles` the step sizes of `steps` steps go down in so many cycles, of which the first
    `exploration` descends without noise and is no sample (cSG-MCMC, Zhang et al., ICLR 2020, arXiv:1902.03932).

    Of each chain the first `burn_in` steps (of those that may be samples) are none, of the others each `thin`-th is
    one, and the last `capacity` are kept.

    >>> import numpy as np, sheave
    >>> from sheave.particle import FunctionModel
    >>> def gradient(parameters, loss, x, y):
    ...     error = x @ parameters["w"] - y
    ...     return float((error**2).mean() / 2), {"w": x.T @ error / len(x)}
    >>> def make(seed):
    ...     return FunctionModel({"w": np.zeros(1)}, lambda parameters, x: x @ parameters["w"], gradient)
    >>> x = np.ones((9, 1))                     # noise and prior of variance 1: the posterior is N(0.9, 0.1)
    >>> with sheave.bayes.Langevin(make, 2, step_size=0.05, burn_in=100, capacity=2000) as langevin:
    ...     _ = langevin.fit([(x, np.ones(9))], None, epochs=1600)
    ...     samples = np.concatenate(langevin.samples())
    >>> samples.shape, bool(abs(samples.mean() - 0.9) < 0.1), bool(0.07 < samples.var() < 0.14)
    ((3000, 1), True, True)
    """

    HANDLERS: ClassVar[Handlers] = {
        **BASIC,
        "predict": _predict,
        "samples": _samples,
    }

    def __init__(
        self,
        make: Callable[[int], Any] | None,
        chains: int = 1,
        *,
        step_size: float,
        method: Literal["sgld", "sghmc"] = "sgld",
        friction: float = 0.1,
        noise: float = 0.0,
        temperature: float = 1.0,
        prior: native.Normal | None = native.Normal(),
        steps: int | None = None,
        cycles: int | None = None,
        exploration: float = 0.5,
        burn_in: int = 0,
        thin: int = 1,
        capacity: int = 100,
        **settings: Any,
    ) -> None:
        if method not in ("sgld", "sghmc"):
            raise InvalidArgument(f'method is {method!r}; expected "sgld" or "sghmc"')
        if (steps is None) != (cycles is None):
            raise InvalidArgument(f"steps is {steps} and cycles is {cycles}; expected both, or neither")
        cycle = None if steps is None or cycles is None else (steps, cycles, exploration)
        self._settings = _Settings(
            method, step_size, friction, noise, temperature, cycle, burn_in, thin, capacity
        )
        # What is wrong is said here, and not by the first step.
        _Sampler(self._settings, 0, np.zeros(1, np.float32)).step(np.zeros(1, np.float32), np.zeros(1, np.float32))
        native.Sghmc(step_size, friction, noise, temperature)
        self.prior = prior
        super().__init__(make, chains, **settings)

    def fit(
        self,
        loader: Iterable[Any],
        loss: Callable[..., Any],
        epochs: int,
        *,
        data: int | None = None,
        batched: bool = False,
        timeout: float | None = None,
        progress: Progress = None,
    ) -> NDArray[np.float64]:
        """Take a step of all chains for each batch, `epochs` times, as `Posterior.fit`.

        `data` is the number N of data; by default what the loader's data set has, or what its batches count together.
        """
        require_repeatable(loader, epochs)
        count, self._loader = count_data(loader, data), loader
        settings = tuple(self._settings)
        sent = (count, self.prior)
        if not batched:
            single = Single(self.particles, self.ids, timeout)

            def step(pairs: Pairs) -> Outstanding:
                return single.begin(_step, settings, loss, pairs, *sent)

            return self._epochs(loader, epochs, progress, timeout, step, lambda epoch: None)
        batching = Batching(self.particles, self.ids, timeout)

        def batched_step(pairs: Pairs) -> Outstanding:
            return batching.begin_each(_batched_step, lambda members: (settings, loss, pairs, *sent), timeout)

        with batching.lasting(timeout):
            return self._epochs(loader, epochs, progress, timeout, batched_step, lambda epoch: None)

    def samples(self, *, timeout: float | None = None) -> list[NDArray[Any]]:
        """Return the samples that each chain keeps, oldest first: [samples, d] each."""
        found = self.ask("samples", timeout=timeout)
        if any(samples is None for samples in found):
            raise InvalidArgument("the chains have not begun; expected fit before")
        return found

    def predict(  # type: ignore[override]
        self,
        data: Any,
        *,
        mode: str | Iterable[str] | None = None,
        refresh_on: Iterable[Any] | None = None,
        quantile: float | Sequence[float] = 0.5,
        batch_size: int | None = None,
        timeout: float | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return what all samples of all chains say together, as `Posterior.predict`; M counts the samples.

        Statistics of batch normalisation are refreshed for each sample on the batches of `refresh_on`, by default the
        loader of `fit`. Afterwards parameters and statistics are those of before.
        """
        modes = modes_of(self.task, mode)
        training = self._training(refresh_on, timeout)
        return combine(self.task, self._outputs(list(inputs(data, batch_size)), training, timeout), modes, quantile)
