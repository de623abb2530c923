"""How members are stepped: by one message to each device, one by one there, or as one computation."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sheave._core import SheaveError
from sheave.bayes._data import is_tensor, to_numpy
from sheave.bayes._modules import evaluating
from sheave.particle import Answer, ParticleId, Particles, wait_all
from sheave.particle._particle import Outstanding, looked_at

__all__: list[str] = []

Members = NDArray[np.intp]
Pairs = Sequence[tuple[Any, Any]]


def opened(batched: Any, particles: list[Any]) -> list[None]:
    """Nothing: what cannot be batched has been refused by now."""
    return [None] * len(particles)


def stepped(batched: Any, _: list[Any], loss: Any, pairs: Pairs) -> list[list[float]]:
    """A step of all on each of these batches; returns the losses of each on all of them."""
    return of_members([batched.step(loss, x, y).tolist() for x, y in pairs])


def stepped_each(batched: Any, _: list[Any], loss: Any, x: Any, y: Any) -> list[float]:
    """A step of each on a batch of its own; returns the losses."""
    return list(batched.step(loss, x, y, shared=False).tolist())


def of_members(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Losses by member and batch, of losses by batch and member."""
    return [list(losses) for losses in zip(*rows, strict=True)]


def scheduled(batched: Any, particles: list[Any]) -> list[None]:
    """A step of the schedulers of all, where they have some."""
    if any(model.scheduler is not None for model in batched.models):
        batched.scheduler_step()
    return [None] * len(particles)


def predicted(batched: Any, _: list[Any], batches: list[Any]) -> list[NDArray[Any]]:
    """The outputs of each for all batches of inputs, one after another."""
    with evaluating(batched.models[0]):
        outputs = [to_numpy(batched.forward(x)) for x in batches]
    return list(np.concatenate(outputs, axis=1))


class Devices:
    """The members of each device, for whom there is one message, wherever it is. `timeout` is for finding them."""

    def __init__(self, particles: Particles, ids: Sequence[Any], timeout: float | None = None) -> None:
        self._particles, self._count = particles, len(ids)
        members: dict[ParticleId, list[int]] = {}
        for member, place in enumerate(particles._places_of(ids, timeout)):
            members.setdefault(place, []).append(member)
        # What is far away begins first.
        self.places = sorted(members, key=lambda place: place.node == particles.node)
        self._members = [np.array(members[place]) for place in self.places]
        self._numbers = [[ids[member].number for member in members[place]] for place in self.places]
        self._is_alone = [place.node for place in self.places].count(particles.node) == 1

    def begin(
        self, name: str, args: Callable[[Members], tuple[Any, ...]], timeout: float | None = None
    ) -> Outstanding:
        """Send each device a message with the numbers of its particles and what `args` makes for members of these
        numbers. Waits for those of this process alone.

        Where they are of one device they are handled by this thread: another one would take the interpreter from it.
        """
        until = None if timeout is None else time.monotonic() + timeout
        here: list[tuple[Members, Answer[Any]]] = []
        away: list[tuple[Members, Answer[Any]]] = []
        for place, members, numbers in zip(self.places, self._members, self._numbers, strict=True):
            is_here = place.node == self._particles.node
            send = self._particles._run if is_here and self._is_alone and timeout is None else self._particles._ask
            (here if is_here else away).append((members, send(place, name, numbers, *args(members))))
        found: list[Any] = [None] * self._count
        with looked_at([answer for _, answer in away]):
            Outstanding(found, here, until).wait()
        return Outstanding(found, away, until)

    def tell(self, name: str) -> list[Answer[Any]]:
        """Send each device a message that is for all that is on it."""
        return [self._particles._ask(place, name) for place in self.places]


class Batching:
    """Members that are one computation on each device."""

    def __init__(self, particles: Particles, ids: Sequence[Any], timeout: float | None = None) -> None:
        self._devices = Devices(particles, ids, timeout)

    def ask(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> list[Any]:
        """Call `function(batched, particles, *args)` for the members of each device. Returns what comes of each."""
        return self.ask_each(function, lambda members: args, timeout)

    def ask_each(
        self, function: Callable[..., Any], args: Callable[[Members], tuple[Any, ...]], timeout: float | None = None
    ) -> list[Any]:
        """As `ask` with the arguments that `args` makes for members of these numbers."""
        return self.begin_each(function, args, timeout).wait()

    def begin_each(
        self, function: Callable[..., Any], args: Callable[[Members], tuple[Any, ...]], timeout: float | None = None
    ) -> Outstanding:
        """As `ask_each`, but waits for the members of this process alone."""
        return self._devices.begin("batched", lambda members: (function, args(members)), timeout)

    @contextlib.contextmanager
    def lasting(self, timeout: float | None = None) -> Iterator[None]:
        """Has them together, and afterwards the models as what they have become.

        Raises what keeps them from being together, before any of them has moved.
        """
        try:
            self.ask(opened, timeout=timeout)
            yield
        except BaseException:
            # They are told, and nobody waits for a node that may be gone: whatever comes next comes after it.
            with contextlib.suppress(SheaveError):
                self._devices.tell("settle")
            raise
        wait_all(self._devices.tell("settle"), timeout)


class Single:
    """Members that are asked one by one, those of each device by one message."""

    def __init__(self, particles: Particles, ids: Sequence[Any], timeout: float | None) -> None:
        self._devices, self._timeout = Devices(particles, ids, timeout), timeout

    def begin(self, function: Callable[..., Any], *args: Any) -> Outstanding:
        """Call `function(particle, model, *args)` for each, for those of other processes perhaps later. Returns what
        comes of it is had of."""
        return self._devices.begin("each", lambda members: (function, args, None), self._timeout)

    def ask_each(
        self, function: Callable[..., Any], args: tuple[Any, ...], own: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """Call `function(particle, model, *args, *own)` for each with what is its own. Returns what comes of each."""

        def made(members: Members) -> tuple[Any, ...]:
            return function, args, [own[member] for member in members]

        return self._devices.begin("each", made, self._timeout).wait()


def stepped_alone(_: Any, model: Any, loss: Any, pairs: Pairs) -> list[float]:
    """A step of one on each of these batches; returns its losses."""
    return [float(model.step(loss, x, y)) for x, y in pairs]


def scheduled_alone(_: Any, model: Any) -> None:
    """A step of the scheduler of one."""
    # A model of torch without a scheduler has None for it; other models know themselves whether they have one.
    if getattr(model, "scheduler", model) is not None:
        model.scheduler_step()


class SingleSteps:
    """The steps of a training whose members are stepped one by one."""

    def __init__(self, single: Single) -> None:
        self._single = single

    def step(self, loss: Any, pairs: Pairs) -> Outstanding:
        """Step all members on each of these batches, those of other processes perhaps later. Returns what the losses of
        each member are had of."""
        return self._single.begin(stepped_alone, loss, pairs)

    def step_each(self, loss: Any, pairs: Pairs) -> list[float]:
        """Step each member on a batch of its own."""
        return [lost for [lost] in self._single.ask_each(stepped_alone, (loss,), [([pair],) for pair in pairs])]

    def schedule(self) -> None:
        """Step the schedulers of all members."""
        self._single.begin(scheduled_alone).wait()


class BatchedSteps:
    """The same of members that are stepped together."""

    def __init__(self, batching: Batching, timeout: float | None) -> None:
        self._batching, self._timeout = batching, timeout

    def step(self, loss: Any, pairs: Pairs) -> Outstanding:
        """Step all members on each of these batches, those of other processes perhaps later. Returns what the losses of
        each member are had of."""
        return self._batching.begin_each(stepped, lambda members: (loss, pairs), self._timeout)

    def step_each(self, loss: Any, pairs: Pairs) -> list[float]:
        """Step each member on a batch of its own, which are of one size."""

        def own(members: Members) -> tuple[Any, ...]:
            return (loss, *(stacked([pairs[member][place] for member in members]) for place in (0, 1)))

        return self._batching.ask_each(stepped_each, own, self._timeout)

    def schedule(self) -> None:
        """Step the schedulers of all members."""
        self._batching.ask(scheduled, timeout=self._timeout)


@contextlib.contextmanager
def stepping(
    particles: Particles, ids: Sequence[Any], batched: bool, timeout: float | None
) -> Iterator[SingleSteps | BatchedSteps]:
    """How members are stepped, one by one or together."""
    if not batched:
        yield SingleSteps(Single(particles, ids, timeout))
        return
    batching = Batching(particles, ids, timeout)
    with batching.lasting(timeout):
        yield BatchedSteps(batching, timeout)


def stacked(arrays: Sequence[Any]) -> Any:
    """One array of arrays of one shape."""
    if is_tensor(arrays[0]):
        import torch

        return torch.stack(list(arrays))
    return np.stack(arrays)
