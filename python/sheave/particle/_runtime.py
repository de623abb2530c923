"""The particles of a process: how they are made, reached and ended, and what serves them."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sheave._core import InvalidArgument, Mesh, NotFound
from sheave._core_particle import Answer, ParticleRuntime
from sheave.particle._cache import ParticleCache
from sheave.particle._models import seeding
from sheave.particle._particle import Outstanding, Particle, ParticleId, looked_at, wait_all
from sheave.particle._saving import files_of, load_particle, replace_files, save_particle
from sheave.particle._together import Together, require_distinct
from sheave.particle._views import Snapshot

__all__ = ["Particles", "wait_all"]

# Number of the particle of each node that serves the others: the first of those that stand apart.
KEEPER = 1 << 62

Receive = Mapping[str, Callable[..., Any]]


class Device:
    """The state of a particle that stands for a device."""

    def __init__(self, label: Any, cache: ParticleCache) -> None:
        self.label = label
        self.cache = cache
        self._together: Together | None = None

    @contextlib.contextmanager
    def using(self, particles: "Particles", number: int) -> Iterator[Any]:
        """Has the model on the device."""
        self.settle()
        _require_model(particles, number)
        with self.cache.acquire(number) as model:
            yield model

    def batching(self, particles: "Particles", numbers: Sequence[int]) -> Any:
        """Has the models on the device, as one that stays until something else is done there."""
        for number in numbers:
            _require_model(particles, number)
        if self._together is None or self._together.numbers != tuple(numbers):
            self.settle()
            self._together = Together(self.cache, self.label, numbers)
        return self._together.batched

    def settle(self) -> None:
        """Give models that are stepped as one what they have become."""
        together, self._together = self._together, None
        if together is not None:
            together.end()


def _require_model(particles: "Particles", number: int) -> None:
    if number not in particles._models:
        raise NotFound(f"particle {number} has no model; hint: give create a model")


def _forward(device: Particle, number: int, x: Any, *args: Any, **kwargs: Any) -> Any:
    with device.state.using(device.particles, number) as model:
        return model.forward(x, *args, **kwargs)


def _step(device: Particle, number: int, loss: Any, x: Any, y: Any, *args: Any, **kwargs: Any) -> Any:
    with device.state.using(device.particles, number) as model:
        return model.step(loss, x, y, *args, **kwargs)


def _zero_grad(device: Particle, number: int) -> None:
    with device.state.using(device.particles, number) as model:
        model.zero_grad()


def _scheduler_step(device: Particle, number: int) -> None:
    with device.state.using(device.particles, number) as model:
        model.scheduler_step()


def _update(device: Particle, number: int, function: Callable[[Any], Any]) -> Any:
    with device.state.using(device.particles, number) as model:
        return function(model)


def _each(
    device: Particle, numbers: Sequence[int], function: Callable[..., Any], args: tuple[Any, ...], own: list[Any] | None
) -> list[Any]:
    """Call `function(particle, model, *args)` for each of them, in turn, with what is its own of the arguments.

    As one message it is done by one thread, and what is sent behind it by the same one. All of them have their turn:
    the one that is told of is the first that has failed.
    """
    found, failed = [], None
    for place, number in enumerate(numbers):
        more = () if own is None else own[place]
        try:
            with device.state.using(device.particles, number) as model:
                found.append(function(device.particles._objects[number], model, *args, *more))
        except Exception as error:
            failed = error if failed is None else failed
    if failed is not None:
        raise failed
    return found


def _get(device: Particle, number: int, gradients: bool) -> Any:
    # Where it lies: whoever looks at a model does not bring it to the device.
    device.state.settle()
    _require_model(device.particles, number)
    return device.particles._models[number].snapshot(gradients=gradients)


def _save(device: Particle, number: int, path: Path) -> None:
    particles = device.particles
    device.state.settle()
    save_particle(path, particles._objects[number], particles._models[number])


def _load(device: Particle, number: int, path: Path) -> None:
    with device.state.using(device.particles, number) as model:
        load_particle(path, device.particles._objects[number], model)


def _forget(device: Particle, number: int) -> None:
    device.state.settle()
    device.state.cache.remove(number)


def _batched(device: Particle, numbers: Sequence[int], function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        batched = device.state.batching(device.particles, numbers)
        return function(batched, [device.particles._objects[number] for number in numbers], *args)
    except BaseException:
        device.state.settle()
        raise


def _settle(device: Particle) -> None:
    device.state.settle()


OF_DEVICES: Receive = {
    "forward": _forward,
    "step": _step,
    "zero_grad": _zero_grad,
    "scheduler_step": _scheduler_step,
    "update": _update,
    "each": _each,
    "get": _get,
    "save": _save,
    "load": _load,
    "forget": _forget,
    "batched": _batched,
    "settle": _settle,
}


def _kept_create(keeper: Particle, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    # Plain, so that it is read where no pickles are opened.
    node, number = keeper.particles._made_of(kind, args, kwargs)
    return node, number


def _kept_get(keeper: Particle, number: int, gradients: bool) -> Any:
    if number not in keeper.particles._objects:
        raise NotFound(f"no particle {number} on this node; hint: it was removed, or never made")
    return keeper.particles.get(ParticleId(keeper.id.node, number), gradients).wait()


def _kept_remove(keeper: Particle, number: int) -> bool:
    return keeper.particles.remove(ParticleId(keeper.id.node, number))


def _kept_numbers(keeper: Particle) -> list[int]:
    return keeper.particles._numbers()


def _kept_names(keeper: Particle, number: int) -> list[str]:
    return keeper.particles._names(number)


def _kept_waiting(keeper: Particle, number: int) -> int:
    return keeper.particles._waiting(number)


def _kept_all(keeper: Particle, numbers: list[int], name: str, args: tuple[Any, ...]) -> list[Any]:
    ids = [ParticleId(keeper.id.node, number) for number in numbers]
    return wait_all(keeper.particles.send_all(ids, name, *args))


def _kept_batched(keeper: Particle, numbers: list[int], function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    ids = [ParticleId(keeper.id.node, number) for number in numbers]
    return keeper.particles.batched(ids, function, *args).wait()


def _kept_places(keeper: Particle, numbers: list[int]) -> list[int]:
    particles = keeper.particles
    return [particles._places[particles._device_of(number)].number for number in numbers]


OF_KEEPERS: Receive = {
    "all": _kept_all,
    "batched": _kept_batched,
    "places": _kept_places,
    "create": _kept_create,
    "get": _kept_get,
    "remove": _kept_remove,
    "numbers": _kept_numbers,
    "names": _kept_names,
    "waiting": _kept_waiting,
}


class Particles(ParticleRuntime):
    """The particles of one name in this process, and the way to those of the other processes of the mesh.

    `mesh` is where they are found by others that make particles of this `name`; without one they are alone. `devices`
    is how many there are, labelled 0, 1 and so on, or their labels: numbers, "cpu", "cuda:0", torch devices. Of each
    `cache_size` models, or `cache_bytes` bytes of them, lie on it at a time, and which is said by `policy`: "lru" or
    "direct", see `ParticleCache`; what models compute does not depend on that. The seeds of all particles are made
    from `seed`.

    >>> with sheave.particle.Particles(devices=2, seed=7) as particles:
    ...     particles.create(state={"count": 0}, device=1)
    ParticleId(node=0, number=0)
    """

    def __new__(cls, mesh: Mesh | None = None, name: str = "particles", **_: Any) -> "Particles":
        own = Mesh(rank=0, size=1) if mesh is None else None
        joined = mesh if own is None else own
        made: Particles = super().__new__(cls, joined, name)  # type: ignore[arg-type, assignment]
        made._own_mesh = own
        return made

    def __init__(
        self,
        mesh: Mesh | None = None,
        name: str = "particles",
        *,
        devices: int | Sequence[Any] = 1,
        cache_size: int | None = None,
        cache_bytes: int | None = None,
        policy: str = "lru",
        seed: int = 0,
    ) -> None:
        self._own_mesh: Mesh | None
        self.name = name
        self.seed = seed
        self._objects: dict[int, Particle] = {}
        self._models: dict[int, Any] = {}
        self._kinds: dict[str, Callable[..., Mapping[str, Any]]] = {}
        self._devices: dict[str, Device] = {}
        self._places: dict[str, ParticleId] = {}
        keeper = self._apart("the keeper", None, OF_KEEPERS, reentrant=True)
        assert keeper.number == KEEPER
        labels: Sequence[Any] = range(devices) if isinstance(devices, int) else devices
        if not labels or len({str(label) for label in labels}) < len(labels):
            raise InvalidArgument(f"devices is {devices!r}; expected a count from 1 on, or labels that differ")
        for label in labels:
            device = Device(label, ParticleCache(cache_size, cache_bytes, policy, device=label))
            self._devices[str(label)] = device
            self._places[str(label)] = self._apart(f"device {label}", device, OF_DEVICES, reentrant=False)

    @property
    def devices(self) -> list[Any]:
        """The labels of the devices."""
        return [device.label for device in self._devices.values()]

    def create(
        self,
        model: Any = None,
        *,
        receive: Receive | None = None,
        state: Any = None,
        device: Any = None,
        reentrant: bool = False,
        seed: int | None = None,
    ) -> ParticleId:
        """Make a particle of this process. Returns its name.

        `model` is a `Model`, or a function without arguments that makes one, with the seed of the particle unless it
        has another. `receive` has the handlers of its messages: `function(particle, *args, **kwargs)`. `state` is any
        object, a dict of its own if it is None. `device` is the label of its device, or its place among them; the first
        one if it is None. A `reentrant` particle handles the next message while its handlers wait. Without a `seed` it
        gets one of its own, made from that of all and its number.

        Raises InvalidArgument for a device that there is not, LimitExceeded for a model that is larger than the cache
        of its device, and Closed when the particles were closed.
        """
        label = self._label(device)
        number = self._reserve(False)
        id = ParticleId(self.node, number)
        seed = self._seed_of(self.seed % 2**64, number) if seed is None else seed
        is_maker = isinstance(model, type) or not hasattr(model, "forward")
        with seeding(seed):
            made = model() if callable(model) and is_maker else model
        place = None if made is None else self._places[label]
        particle = Particle(self, id, state, self._devices[label].label, seed, place)
        if made is not None:
            self._devices[label].cache.insert(number, made)
            self._models[number] = made
        self._objects[number] = particle
        try:
            self._place(number, particle, dict(receive or {}), reentrant, None)
        except BaseException:
            self._dropped(number)
            raise
        return id

    def create_many(self, count: int, make: Callable[[int], Mapping[str, Any]]) -> list[ParticleId]:
        """Make `count` particles; `make(index)` returns the arguments of `create` for each, as a dict by name."""
        return [self.create(**make(index)) for index in range(count)]

    def offer(self, kind: str, make: Callable[..., Mapping[str, Any]]) -> None:
        """Let others create particles of this kind here. `make(*args, **kwargs)` gets what they give, and returns the
        arguments of `create` as a dict by name; it runs on a thread of this node."""
        self._kinds[kind] = make

    def create_on(self, node: int, kind: str, *args: Any, **kwargs: Any) -> ParticleId:
        """Make a particle of a kind that the node of this rank offers. Waits; returns its name.

        Raises NotFound for a kind that is not offered there, and PeerLost when the node is gone.
        """
        return ParticleId(*self._ask(ParticleId(node, KEEPER), "create", kind, args, kwargs).wait())

    def send_all(self, ids: Iterable[tuple[int, int]], name: str, *args: Any, **kwargs: Any) -> list[Answer[Any]]:
        """Send the same message to several particles. Returns their answers, in order; never waits."""
        return [self.send(id, name, *args, **kwargs) for id in ids]

    def batched(self, ids: Iterable[tuple[int, int]], function: Callable[..., Any], *args: Any) -> Answer[Any]:
        """Call `function(batched, particles, *args)` with the models of several particles of one device as one
        computation, in the order of that device. Never waits; the answer is what it returns.

        `batched` are `BatchedModels` of theirs, in the order of `ids`, and `particles` what their handlers get. All of
        these models are pinned in the memory of the device, and stay together for the next call with the same `ids`.
        Anything else that is done on the device, such as a step or a snapshot of one of them, ends that first, and
        finds in the models what they have become. For particles of another node `function` is sent there.

        Raises InvalidArgument for particles of several devices or nodes. The answer raises Unsupported for models that
        cannot be batched, and LimitExceeded where the cache has no room for all of them; what the function raises ends
        that they are together too.

        >>> import torch
        >>> loss = torch.nn.functional.mse_loss
        >>> def make():
        ...     return sheave.particle.TorchModel(torch.nn.Linear, 2, 1, optimizer=torch.optim.SGD)
        >>> with sheave.particle.Particles() as particles:
        ...     ids = [particles.create(make) for _ in range(3)]
        ...     for _ in range(4):
        ...         step = lambda batched, _: batched.step(loss, torch.ones(4, 2), torch.zeros(4, 1))
        ...         losses = particles.batched(ids, step).wait()
        ...     tuple(losses.shape), particles.get(ids[0]).wait().version
        ((3,), 4)
        """
        named = [ParticleId(*id) for id in ids]
        numbers = [id.number for id in named]
        require_distinct(named)
        nodes = {id.node for id in named}
        if len(nodes) > 1:
            raise InvalidArgument(f"particles of the nodes {sorted(nodes)} to be batched; expected those of one device")
        if named[0].node != self.node:
            return self._ask(ParticleId(named[0].node, KEEPER), "batched", numbers, function, args)
        labels = {self._device_of(number) for number in numbers}
        if len(labels) > 1:
            raise InvalidArgument(f"particles of the devices {sorted(labels)} to be batched; expected those of one")
        return self.send(self._places[labels.pop()], "batched", numbers, function, args)

    def _places_of(self, ids: Sequence[ParticleId], timeout: float | None = None) -> list[ParticleId]:
        """The particles that stand for the devices of these. Waits for what other nodes say of theirs."""
        numbers: dict[int, list[int]] = {}
        for id in ids:
            if id.node != self.node:
                numbers.setdefault(id.node, []).append(id.number)
        asked = [self._ask(ParticleId(node, KEEPER), "places", of_node) for node, of_node in numbers.items()]
        known: dict[ParticleId, ParticleId] = {}
        for (node, of_node), places in zip(numbers.items(), wait_all(asked, timeout), strict=True):
            for number, place in zip(of_node, places, strict=True):
                known[ParticleId(node, number)] = ParticleId(node, place)
        return [self._places[self._device_of(id.number)] if id.node == self.node else known[id] for id in ids]

    def _device_of(self, number: int) -> str:
        particle = self._objects.get(number)
        if particle is None:
            raise NotFound(f"no particle {number} on this node; hint: it was removed, or never made")
        return str(particle.device)

    def ask_all(
        self, ids: Iterable[tuple[int, int]], name: str, *args: Any, timeout: float | None = None
    ) -> list[Any]:
        """Send the same message to several particles, and wait for all. Returns what came of them, in order.

        It travels to another node once for all of its particles there. Raises what the first one that failed has
        raised, and DeadlineExceeded after `timeout` seconds for all of them together.

        >>> with sheave.particle.Particles() as particles:
        ...     receive = {"add": lambda particle, one: particle.id.number + one}
        ...     ids = [particles.create(receive=receive) for _ in range(3)]
        ...     particles.ask_all(ids, "add", 10)
        [10, 11, 12]
        """
        named = [ParticleId(*id) for id in ids]
        places: dict[int, list[int]] = {}
        for place, id in enumerate(named):
            if id.node != self.node:
                places.setdefault(id.node, []).append(place)
        # What is far away begins first.
        sent: list[tuple[list[int], Answer[Any]]] = []
        for node, of_node in places.items():
            numbers = [named[place].number for place in of_node]
            sent.append((of_node, self._ask(ParticleId(node, KEEPER), "all", numbers, name, args)))
        here = [place for place, id in enumerate(named) if id.node == self.node]
        until = None if timeout is None else time.monotonic() + timeout
        found: list[Any] = [None] * len(named)
        with looked_at([answer for _, answer in sent]):
            own = wait_all(self.send_all([named[place] for place in here], name, *args), timeout)
            for place, result in zip(here, own, strict=True):
                found[place] = result
        return Outstanding(found, sent, until).wait()

    def register(self, id: tuple[int, int], name: str, function: Callable[..., Any]) -> None:
        """Have a particle of this node handle messages of this name by `function(particle, *args, **kwargs)`: those
        that are sent from now on."""
        self._register(id, name, function)

    def remove(self, id: tuple[int, int]) -> bool:
        """Remove a particle. Returns whether it was there. Messages that have not begun fail with NotFound; handlers
        that have begun go on."""
        if id[0] != self.node:
            return bool(self._ask(ParticleId(id[0], KEEPER), "remove", id[1]).wait())
        was_there = self._remove(id[1])
        self._dropped(id[1])
        return was_there

    def ids(self, node: int | None = None) -> list[ParticleId]:
        """The particles of this node, or of the one of this rank, in the order in which they were made."""
        if node is None or node == self.node:
            return [ParticleId(self.node, number) for number in self._numbers()]
        return [ParticleId(node, number) for number in self._ask(ParticleId(node, KEEPER), "numbers").wait()]

    def names(self, id: tuple[int, int]) -> list[str]:
        """The names of the messages that a particle handles, in order."""
        if id[0] == self.node:
            return self._names(id[1])
        return list(self._ask(ParticleId(id[0], KEEPER), "names", id[1]).wait())

    def waiting(self, id: tuple[int, int]) -> int:
        """How many messages to a particle have not begun."""
        if id[0] == self.node:
            return self._waiting(id[1])
        return int(self._ask(ParticleId(id[0], KEEPER), "waiting", id[1]).wait())

    def get(self, id: tuple[int, int], gradients: bool = False) -> Answer[Snapshot]:
        """Get a snapshot of the model of a particle, of this node or of another, with its gradients if they are asked
        for. It stays as it is while the model goes on, which is not moved for it.

        >>> def make():
        ...     return sheave.particle.FunctionModel({"w": np.zeros(2)}, lambda p, x: p["w"] * x)
        >>> with sheave.particle.Particles() as particles:
        ...     snapshot = particles.get(particles.create(make)).wait()
        ...     snapshot.version, snapshot.flat
        (0, array([0., 0.]))
        """
        particle = self._objects.get(id[1]) if id[0] == self.node else None
        if particle is None:
            return self._ask(ParticleId(id[0], KEEPER), "get", id[1], gradients)
        return self.send(self._place_of(particle.device), "get", id[1], gradients)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write all particles of this node, with all that they need to go on: model, state, generator. One file each.

        Folders are made; what is there is replaced in one step, when all is written. Models are written in the order of
        their devices; states as they are, so wait for handlers before. Raises InvalidArgument for a state that has more
        in it than arrays, numbers, texts, and lists and dicts of such, which it names.
        """

        def write(number: int, path: Path) -> None:
            particle = self._objects[number]
            if number in self._models:
                self.send(self._place_of(particle.device), "save", number, path).wait()
            else:
                save_particle(path, particle, None)

        replace_files(directory, self._numbers(), write)

    def load(self, directory: str | os.PathLike[str]) -> None:
        """Give all particles of this node what was saved of those of the same numbers.

        The program has made them as it had made those, models and handlers included. Raises NotFound where none were
        saved, and InvalidArgument for others than there are, before anything changes. A file that is damaged is found
        when its turn comes.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, sheave.particle.Particles() as particles:
        ...     id = particles.create(state={"count": 3}, receive={"count": lambda particle: particle.state["count"]})
        ...     particles.save(folder)
        ...     particles.register(id, "forget", lambda particle: particle.state.clear())
        ...     particles.send(id, "forget").wait()
        ...     particles.load(folder)
        ...     particles.send(id, "count").wait()
        3
        """
        for number, path in files_of(directory, self._numbers()).items():
            particle = self._objects[number]
            if number in self._models:
                self.send(self._place_of(particle.device), "load", number, path).wait()
            else:
                load_particle(path, particle, None)

    def cache_statistics(self, device: Any = None) -> dict[str, int]:
        """What the cache of a device has done, as `ParticleCache.statistics` says; that of the first one for None."""
        return self._devices[self._label(device)].cache.statistics()

    def close(self) -> None:
        """End all particles of this process; messages that have not begun fail with Closed. Idempotent."""
        self._stop()
        for device in self._devices.values():
            device.cache.close()
        self._objects.clear()
        self._models.clear()
        if self._own_mesh is not None:
            self._own_mesh.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sheave.particle.Particles {self.name!r} of node {self.node}>"

    def _apart(self, label: str, state: Any, receive: Receive, reentrant: bool) -> ParticleId:
        """Make a particle that serves the others."""
        number = self._reserve(True)
        id = ParticleId(self.node, number)
        self._place(number, Particle(self, id, state, None, 0, None), dict(receive), reentrant, label)
        return id

    def _label(self, device: Any) -> str:
        """The device that is meant."""
        if device is None:
            return next(iter(self._devices))
        if str(device) in self._devices:
            return str(device)
        is_counted = not any(isinstance(known.label, int) for known in self._devices.values())
        if is_counted and isinstance(device, int) and 0 <= device < len(self._devices):
            return list(self._devices)[device]
        raise InvalidArgument(f"device is {device!r}; expected one of {self.devices}")

    def _place_of(self, device: Any) -> ParticleId:
        return self._places[str(device)]

    def _made_of(self, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ParticleId:
        make = self._kinds.get(kind)
        if make is None:
            raise NotFound(f"no kind {kind!r} of particles on this node, which offers {sorted(self._kinds)}")
        return self.create(**make(*args, **kwargs))

    def _dropped(self, number: int) -> None:
        """A particle is gone: its model goes when its device has come to it."""
        particle = self._objects.pop(number, None)
        if particle is not None and self._models.pop(number, None) is not None:
            self.send(self._place_of(particle.device), "forget", number)
