"""What a handler gets: its particle."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sheave._core_particle import Answer, ParticleObject

if TYPE_CHECKING:
    from sheave.particle._runtime import Particles


class ParticleId(NamedTuple):
    """The name of a particle: the rank in the mesh of the node that it lives on, and its number there.

    >>> sheave.particle.ParticleId(node=0, number=3)
    ParticleId(node=0, number=3)
    """

    node: int
    number: int


async def awaited(base: Answer[Any], answer: Answer[Any]) -> Any:
    """What a function makes of an answer that is awaited: it runs in the loop."""
    await base
    return answer.wait()


def wait_all(answers: Iterable[Answer[Any]], timeout: float | None = None, *, flatten: bool = False) -> list[Any]:
    """Wait for all answers. Returns what came of them, in order; raises what the first one that failed has raised.
    Those that come to other answers are waited for until they come to something else, if they are to `flatten`.

    Raises DeadlineExceeded after `timeout` seconds for all of them together. Of those that have failed besides nothing
    is told: all have been looked at.

    >>> with sheave.particle.Particles() as particles:
    ...     ids = [particles.create(receive={"add": lambda particle, one: particle.id.number + one}) for _ in range(3)]
    ...     sheave.particle.wait_all(particles.send_all(ids, "add", 10))
    [10, 11, 12]
    """
    every = list(answers)
    until = None if timeout is None else time.monotonic() + timeout
    with looked_at(every):
        left = (None if until is None else max(0.0, until - time.monotonic()) for _ in every)
        return [answer.wait(seconds, flatten=flatten) for answer, seconds in zip(every, left, strict=True)]


@contextlib.contextmanager
def looked_at(answers: Sequence[Answer[Any]]) -> Iterator[None]:
    """Whoever waits for the first that fails has looked at those that have failed by then."""
    try:
        yield
    except BaseException:
        for answer in answers:
            answer.done()
        raise


class Outstanding:
    """What came of a message to many particles in this process, and what others have yet to answer."""

    def __init__(
        self, found: list[Any], sent: Sequence[tuple[Iterable[int], Answer[Any]]], until: float | None
    ) -> None:
        self._found, self._sent, self._until = found, sent, until

    def __bool__(self) -> bool:
        return bool(self._sent)

    def look(self) -> None:
        """Look at those that have failed by now."""
        for _, answer in self._sent:
            answer.done()

    def wait(self) -> list[Any]:
        """Wait for the rest. Returns what came of all, in order."""
        with looked_at([answer for _, answer in self._sent]):
            for places, answer in self._sent:
                results = answer.wait(None if self._until is None else max(0.0, self._until - time.monotonic()))
                for place, result in zip(places, results, strict=True):
                    self._found[place] = result
        # Not before: who waits again after a timeout waits for the same.
        self._sent = ()
        return self._found


class Particle(ParticleObject):
    """A particle of this process, as its handlers see it. There is one object for each, in all of its messages.

    `id` is its name, `state` any object that is its own, `device` the label of its device, and `seed` the number that
    its random generator begins with.
    """

    id: ParticleId
    particles: "Particles"
    state: Any
    device: Any
    seed: int

    def __new__(cls, particles: "Particles", *_: Any) -> "Particle":
        return super().__new__(cls, particles)  # type: ignore[return-value]

    def __init__(
        self, particles: "Particles", id: ParticleId, state: Any, device: Any, seed: int, place: ParticleId | None
    ) -> None:
        self.particles = particles
        self.id = id
        self.state = {} if state is None else state
        self.device = device
        self.seed = seed
        self._place = place
        self._generator: np.random.Generator | None = None

    @property
    def generator(self) -> np.random.Generator:
        """Its own random generator, which begins with its seed; nobody else draws from it."""
        if self._generator is None:
            self._generator = np.random.Generator(np.random.PCG64(self.seed % 2**64))
        return self._generator

    @property
    def model(self) -> Any:
        """Its model, or None. Only what is done by `update` and the like is done in the order of its device."""
        return self.particles._models.get(self.id.number)

    def ids(self, node: int | None = None) -> list[ParticleId]:
        """The particles of this node, or of the one of this rank, in the order in which they were made."""
        return self.particles.ids(node)

    def others(self) -> list[ParticleId]:
        """The other particles of this node, in the order in which they were made."""
        return [id for id in self.particles.ids() if id != self.id]

    def wait(self, answers: Iterable[Answer[Any]], timeout: float | None = None, *, flatten: bool = False) -> list[Any]:
        """Wait for all answers, as `wait_all` does. Returns what came of them, in order."""
        return wait_all(answers, timeout, flatten=flatten)

    def register(self, name: str, function: Callable[..., Any]) -> None:
        """Handle messages of this name by `function(particle, *args, **kwargs)`: those that are sent from now on."""
        self.particles.register(self.id, name, function)

    def get(self, id: ParticleId, gradients: bool = False) -> Answer[Any]:
        """Get a snapshot of the model of a particle, of this node or of another, with its gradients if they are asked
        for. It stays as it is while the model goes on."""
        return self.particles.get(id, gradients)

    def forward(self, x: Any, *args: Any, gradient: bool = True, **kwargs: Any) -> Answer[Any]:
        """Apply its model on its device; without `gradient` nothing is kept for a backward pass."""
        return self._ask("forward", x, *args, gradient=gradient, **kwargs)

    def step(self, loss: Callable[..., Any], x: Any, y: Any, *args: Any, **kwargs: Any) -> Answer[Any]:
        """Make a step of its model on its device: forward, `loss(output, y)`, backward, and that of its optimizer if it
        has one. The answer is the loss, without a graph."""
        return self._ask("step", loss, x, y, *args, **kwargs)

    def zero_grad(self) -> Answer[None]:
        """Set the gradients of its model to zero."""
        return self._ask("zero_grad")

    def scheduler_step(self) -> Answer[None]:
        """Make a step of the scheduler of its learning rate."""
        return self._ask("scheduler_step")

    def update(self, function: Callable[[Any], Any]) -> Answer[Any]:
        """Call `function(model)` in the order of its device, such as to write parameters. The answer is what it
        returns."""
        return self._ask("update", function)

    def _ask(self, name: str, *args: Any, **kwargs: Any) -> Answer[Any]:
        if self._place is None:
            # The device says so.
            return self.send(self.particles._place_of(self.device), name, self.id.number, *args, **kwargs)
        return self.send(self._place, name, self.id.number, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<sheave.particle.Particle {self.id.number} on {self.device}>"
