"""What all algorithms on particles share: their members, the loop of a training, and predictions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sheave._core import InvalidArgument
from sheave._core_bayes import seed_of
from sheave.bayes._batching import Batching, predicted, stepping
from sheave.bayes._data import compact, inputs, require_repeatable, several, taken, to_numpy
from sheave.bayes._modules import batch_norms, evaluating
from sheave.bayes._outputs import combine, modes_of, require_task
from sheave.bayes._progress import EpochLosses, Progress, Report, reporter
from sheave.particle import Particles
from sheave.particle._particle import Outstanding

__all__ = ["Handlers", "Posterior"]

Handlers = Mapping[str, Callable[..., Any]]

#: Batches in one message to members of other processes.
AHEAD = 4


def outputs_of(model: Any, batches: Iterable[Any], **keywords: Any) -> NDArray[Any]:
    """The outputs of a model for all batches of inputs, one after another."""
    return np.concatenate([to_numpy(model.forward(x, gradient=False, **keywords)) for x in batches])


def _predict(particle: Any, batches: list[Any], _: Any) -> list[NDArray[Any]]:
    def predict(model: Any) -> list[NDArray[Any]]:
        with evaluating(model):
            return [outputs_of(model, batches)]

    return list(particle.update(predict).wait())


def _parameters(particle: Any) -> NDArray[Any]:
    return np.asarray(particle.update(lambda model: np.array(model.flat())).wait())


def _normalises(particle: Any) -> bool:
    return bool(particle.update(lambda model: bool(batch_norms(model))).wait())


BASIC: Handlers = {
    "normalises": _normalises,
    "predict": _predict,
    "parameters": _parameters,
}


class Posterior:
    """Members of one architecture on particles, that approximate a posterior together.

    `make(seed)` returns the `Model` of a member; each gets a seed of its own, `seed_of(seed, member)`, so that no two
    begin alike. `members` is how many there are. They live on `particles`, or on particles of their own, on `devices`
    with `cache_size` models on each at a time, which `close` or `with` end. With `nodes`, ranks of the mesh of
    `particles`, members are made there in turn: each of those processes must have called `offer` on its particles.

    `task` says what outputs are: numbers ("regression"), means and as many logarithms of variances ("gaussian"), or
    logits of classes ("classification").

    One thread uses an object at a time. All waits end with the members: an exception of a model or of a loss function
    is raised here, and so is `sheave.PeerLost` where the process of a member is gone. With a `timeout` they end after
    so many seconds too, with `sheave.DeadlineExceeded`; what members do then goes on.

    With `batched=True` the members of each device, or of another node, are one batched computation, `BatchedModels`,
    which pays where a model alone is small. They are then equal to members that are stepped one by one within rounding,
    and not bit for bit. Models must be `TorchModel`s of one architecture, optimizer and number of steps, all of which
    have room in the cache of their device: else the call raises `sheave.Unsupported`, `sheave.InvalidArgument` or
    `sheave.LimitExceeded` before any of them is trained. They take their memory there twice.

    >>> import numpy as np, sheave
    >>> from sheave.particle import FunctionModel
    >>> make = lambda seed: FunctionModel({"w": np.full(1, float(seed % 7))}, lambda parameters, x: x * parameters["w"])
    >>> with sheave.bayes.Posterior(make, 3) as posterior:
    ...     posterior.predict(np.ones((2, 1)), mode=["mean", "pred"])["pred"].shape
    (2, 3, 1)
    """

    #: What members of this class handle.
    HANDLERS: ClassVar[Handlers] = BASIC

    def __init__(
        self,
        make: Callable[[int], Any] | None,
        members: int,
        *,
        task: Literal["regression", "gaussian", "classification"] = "regression",
        particles: Particles | None = None,
        nodes: Sequence[int] | None = None,
        devices: int | Sequence[Any] = 1,
        cache_size: int | None = None,
        seed: int = 0,
    ) -> None:
        require_task(task)
        if members < 1:
            raise InvalidArgument(f"the number of members is {members}; expected 1 or more")
        if make is None and nodes is None:
            raise InvalidArgument("make is None; expected a function of a seed, or nodes that offer one")
        self.task: str = task
        self.seed = seed
        self._own = particles is None
        self.particles = Particles(devices=devices, cache_size=cache_size) if particles is None else particles
        self.ids: list[Any] = []
        self._loader: Iterable[Any] | None = None
        try:
            for member in range(members):
                self.ids.append(self._made(make, nodes, member))
        except BaseException:
            self.close()
            raise

    def _made(self, make: Callable[[int], Any] | None, nodes: Sequence[int] | None, member: int) -> Any:
        seed = self.seed_of(member)
        if nodes is not None:
            return self.particles.create_on(nodes[member % len(nodes)], self._kind(), seed)
        assert make is not None
        devices = self.particles.devices
        return self.particles.create(device=devices[member % len(devices)], **self._described(make, seed))

    @classmethod
    def _described(cls, make: Callable[[int], Any], seed: int) -> dict[str, Any]:
        """The arguments of a particle of a seed."""
        return {"model": lambda: make(seed), "receive": cls.HANDLERS, "seed": seed}

    @classmethod
    def _kind(cls) -> str:
        return f"sheave.bayes.{cls.__name__}"

    @classmethod
    def offer(cls, particles: Particles, make: Callable[[int], Any]) -> None:
        """Let members of this class be made on the particles of this process by others: see `nodes`."""
        particles.offer(cls._kind(), lambda seed: cls._described(make, seed))

    def seed_of(self, member: int) -> int:
        """Return the seed of a member."""
        return seed_of(self.seed, member)

    def ask(self, name: str, *args: Any, timeout: float | None = None) -> list[Any]:
        """Send all members a message. Returns their answers, in order, once all are there.

        Raises DeadlineExceeded where they are not within `timeout` seconds.
        """
        return self.particles.ask_all(self.ids, name, *args, timeout=timeout)

    def parameters(self) -> list[NDArray[Any]]:
        """Return copies of the flat parameters of all members."""
        return self.ask("parameters")

    def fit(
        self,
        loader: Iterable[Any],
        loss: Callable[..., Any],
        epochs: int,
        *,
        batched: bool = False,
        timeout: float | None = None,
        progress: Progress = None,
    ) -> NDArray[np.float64]:
        """Train all members on the batches of a loader, `epochs` times.

        `loader` is any iterable of pairs (inputs, targets) that can be gone through again: a list of batches, a
        DataLoader of torch. `loss(outputs, targets)` is a mean over the batch. After each epoch the schedulers of all
        members make a step. `progress` is True for a bar on standard error, where that is a terminal, or a function
        that is told a `Report` after each batch.

        `batched` has the members of each device stepped together, see `Posterior`. `timeout` is how many seconds the
        members may take for one batch. Without one members of other processes are sent four batches at a time, so the
        loader is so far ahead of them, and `progress` is told of these together.

        Returns the mean losses [epochs, members].
        """
        with stepping(self.particles, self.ids, batched, timeout) as steps:
            return self._epochs(
                loader, epochs, progress, timeout, lambda pairs: steps.step(loss, pairs), lambda epoch: steps.schedule()
            )

    def _epochs(
        self,
        loader: Iterable[Any],
        epochs: int,
        progress: Progress,
        timeout: float | None,
        step: Callable[[list[tuple[Any, Any]]], Outstanding],
        ended: Callable[[int], object],
    ) -> NDArray[np.float64]:
        """The loop of a training. `step` takes a step for each of some batches, and has the losses of each member for
        all of them; `ended` is called after each epoch.

        Where members are of other processes that is `AHEAD` batches at a time, unless the time for each is limited: a
        message wakes threads there, which take the core from the one that steps. And they are sent the next ones before
        they have answered, so that nobody waits for who is slower now and then.
        """
        require_repeatable(loader, epochs)
        is_away = any(id.node != self.particles.node for id in self.ids)
        tell, count = reporter(progress), AHEAD if is_away and timeout is None else 1
        means, batches = np.empty((epochs, len(self.ids))), None
        for epoch in range(epochs):
            known = len(loader) if isinstance(loader, Sized) else batches

            def report(batch: int, losses: NDArray[np.float64], epoch: int = epoch, known: int | None = known) -> None:
                if tell is not None:
                    tell(Report(epoch + 1, epochs, batch, known, losses))

            with EpochLosses(len(self.ids), report) as lost:
                for pairs in several(loader, count):
                    lost.add(step([(compact(x), compact(y)) for x, y in pairs] if is_away else pairs))
            means[epoch], batches = lost.means(epoch + 1), lost.count
            ended(epoch)
        return means

    def predict(
        self,
        data: Any,
        *,
        mode: str | Iterable[str] | None = None,
        quantile: float | Sequence[float] = 0.5,
        batch_size: int | None = None,
        batched: bool = False,
        timeout: float | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return what all members say together, by mode, as numpy arrays.

        `data` is an array of inputs, which is taken `batch_size` at a time, all at once by default; or a loader of
        inputs or of pairs, whose batches are joined.

        | task | modes, the default first |
        |---|---|
        | regression | `mean`, `std` (unbiased), `median`, `min`, `max`, `quantile`: [B, out]; `pred`: [B, M, out] |
        | gaussian | `mean`, `std` (of data and model), `model_std`, `noise_std`: [B, out]; `pred`: [B, M, 2 out] |
        | classification | `mean_prob`, `log_prob`, `std`: [B, C]; `mode`: [B]; `logits`, `prob`: [B, M, C] |

        M counts every sample of every member. `mode` is the class that most of them vote for. Probabilities are
        averaged, never logits. Of one member `std` is 0 by convention. With several numbers as `quantile` that mode is
        [Q, B, out]. Members are in evaluation meanwhile, and afterwards as they were.

        `batched` has the members of each device applied together, see `Posterior`. `timeout` is how many seconds all
        of them may take.
        """
        modes = modes_of(self.task, mode)
        outputs = self.outputs(data, batch_size=batch_size, batched=batched, timeout=timeout)
        return combine(self.task, outputs, modes, quantile)

    def outputs(
        self, data: Any, *, batch_size: int | None = None, batched: bool = False, timeout: float | None = None
    ) -> list[NDArray[Any]]:
        """Return the outputs of every sample of every member, [B, ...] each."""
        return self._outputs(list(inputs(data, batch_size)), None, timeout, batched)

    def _outputs(
        self, batches: list[Any], settings: Any, timeout: float | None = None, batched: bool = False
    ) -> list[NDArray[Any]]:
        """The outputs that the members' `predict` returns, for which it is sent `settings`; or, of `batched` ones, what
        all of them say."""
        if not batches:
            raise InvalidArgument("the data have no batches; expected one at least")
        if any(id.node != self.particles.node for id in self.ids):
            batches = [compact(x) for x in batches]
        if batched:
            batching = Batching(self.particles, self.ids, timeout)
            with batching.lasting(timeout):
                return batching.ask(predicted, batches, timeout=timeout)
        return [output for outputs in self.ask("predict", batches, settings, timeout=timeout) for output in outputs]

    def _training(self, refresh_on: Iterable[Any] | None, timeout: float | None) -> list[Any]:
        """The batches that batch normalisation is computed on again, where a member has that."""
        if not any(self.ask("normalises", timeout=timeout)):
            return []
        loader = self._loader if refresh_on is None else refresh_on
        if loader is None:
            raise InvalidArgument("refresh_on is None; expected batches to compute batch normalisation on")
        return list(inputs(loader, None))

    def close(self) -> None:
        """End the members: with particles of their own these, else the members alone. Idempotent."""
        if self._own:
            self.particles.close()
        else:
            for id in self.ids:
                self.particles.remove(id)
        self.ids = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def shuffled_batches(
    data: tuple[Any, Any], indices: NDArray[np.int64], size: int, order: NDArray[np.int64]
) -> Iterator[tuple[Any, Any]]:
    """Batches of a member's own data, in an order."""
    for start in range(0, len(indices), size):
        rows = indices[order[start : start + size]]
        yield taken(data[0], rows), taken(data[1], rows)
