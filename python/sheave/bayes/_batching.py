"""Members that are stepped as one computation for each device."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sheave._core import SheaveError
from sheave.bayes._data import is_tensor, to_numpy
from sheave.bayes._modules import evaluating
from sheave.particle import Particles, wait_all
from sheave.particle._particle import Outstanding, looked_at

__all__: list[str] = []

Members = NDArray[np.intp]


def opened(batched: Any, _: list[Any]) -> None:
    """Nothing: what cannot be batched has been refused by now."""


def stepped(batched: Any, _: list[Any], loss: Any, x: Any, y: Any, shared: bool) -> list[float]:
    """A step of all; returns the losses."""
    return list(batched.step(loss, x, y, shared=shared).tolist())


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


class Batching:
    """The members of each device, for whom there is one message; those of another node are of one device there."""

    def __init__(self, particles: Particles, ids: Sequence[Any]) -> None:
        self._particles = particles
        places: dict[tuple[int, str], list[int]] = {}
        for member, id in enumerate(ids):
            is_here = id.node == particles.node
            place = (id.node, particles._device_of(id.number) if is_here else "")
            places.setdefault(place, []).append(member)
        self._groups = [(np.array(members), [ids[member] for member in members]) for members in places.values()]
        self._count = len(ids)

    def open(self, timeout: float | None = None) -> None:
        """Have all members together. Raises what keeps them from it, before any of them has moved."""
        wait_all([self._particles.batched(ids, opened) for _, ids in self._groups], timeout)

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
        until = None if timeout is None else time.monotonic() + timeout
        sent = [
            (members, self._particles.batched(ids, function, *args(members)), ids[0].node == self._particles.node)
            for members, ids in self._groups
        ]
        away = [(members, answer) for members, answer, is_here in sent if not is_here]
        found: list[Any] = [None] * self._count
        with looked_at([answer for _, answer in away]):
            Outstanding(found, [(members, answer) for members, answer, is_here in sent if is_here], until).wait()
        return Outstanding(found, away, until)

    @contextlib.contextmanager
    def lasting(self, timeout: float | None = None) -> Iterator[None]:
        """Has them together, and afterwards the models as what they have become."""
        try:
            self.open(timeout)
            yield
        except BaseException:
            # They are told, and nobody waits for a node that may be gone: whatever comes next comes after it.
            with contextlib.suppress(SheaveError):
                self._settled()
            raise
        wait_all(self._settled(), timeout)

    def _settled(self) -> list[Any]:
        return [self._particles._settle(ids[0]) for _, ids in self._groups]


class Single:
    """The steps of a training whose members are stepped one by one."""

    def __init__(self, particles: Particles, ids: Sequence[Any], timeout: float | None) -> None:
        self._particles, self._ids, self._timeout = particles, ids, timeout

    def step(self, loss: Any, x: Any, y: Any) -> Outstanding:
        """Step all members on a batch, those of other processes perhaps later. Returns what their losses are had of."""
        return self._particles._begin_all(self._ids, "step", loss, x, y, timeout=self._timeout, in_turn=True)

    def step_each(self, loss: Any, pairs: Sequence[tuple[Any, Any]]) -> list[float]:
        """Step each member on a batch of its own."""
        sent = zip(self._ids, pairs, strict=True)
        return wait_all([self._particles.send(id, "step", loss, *pair) for id, pair in sent], self._timeout)

    def schedule(self) -> None:
        """Step the schedulers of all members."""
        self._particles.ask_all(self._ids, "scheduler_step", timeout=self._timeout)


class Batched:
    """The same of members that are stepped together."""

    def __init__(self, batching: Batching, timeout: float | None) -> None:
        self._batching, self._timeout = batching, timeout

    def step(self, loss: Any, x: Any, y: Any) -> Outstanding:
        """Step all members on a batch, those of other processes perhaps later. Returns what their losses are had of."""
        return self._batching.begin_each(stepped, lambda members: (loss, x, y, True), self._timeout)

    def step_each(self, loss: Any, pairs: Sequence[tuple[Any, Any]]) -> list[float]:
        """Step each member on a batch of its own, which are of one size."""

        def own(members: Members) -> tuple[Any, ...]:
            return (loss, *(stacked([pairs[member][place] for member in members]) for place in (0, 1)), False)

        return self._batching.ask_each(stepped, own, self._timeout)

    def schedule(self) -> None:
        """Step the schedulers of all members."""
        self._batching.ask(scheduled, timeout=self._timeout)


@contextlib.contextmanager
def stepping(
    particles: Particles, ids: Sequence[Any], batched: bool, timeout: float | None
) -> Iterator[Single | Batched]:
    """How members are stepped, one by one or together."""
    if not batched:
        yield Single(particles, ids, timeout)
        return
    batching = Batching(particles, ids)
    with batching.lasting(timeout):
        yield Batched(batching, timeout)


def stacked(arrays: Sequence[Any]) -> Any:
    """One array of arrays of one shape."""
    if is_tensor(arrays[0]):
        import torch

        return torch.stack(list(arrays))
    return np.stack(arrays)
