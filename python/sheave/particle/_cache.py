"""Which models are in the memory of a device."""

import os
from typing import Any

from sheave._core import NotFound
from sheave._core_model import CacheOfModels, Guard
from sheave.particle._files import load_state, save_state

__all__ = ["Guard", "ParticleCache"]

Key = int | str | tuple[int, int]


class ParticleCache:
    """The models of a device, some of which are in its memory; the others are parked in the host's.

    At most so many `particles` are on the device at a time, and so many `bytes`; as many as there are by default. The
    `policy` says who makes room: "lru", the one that was released the longest time ago, or "direct", the one in the
    same slot, which is the number of those inserted before it, modulo `particles`, for as long as it is there. `device`
    is what errors call it. What models compute does not depend on any of these.

    `acquire` brings a model and pins it until its guard is released; no lock is held meanwhile, and of several threads
    that acquire one model one moves it. A model is used by one thread at a time: guards do not see to that.

    >>> cache = sheave.particle.ParticleCache(particles=1)
    >>> for key in range(2):
    ...     cache.insert(key, sheave.particle.FunctionModel({"w": np.full(2, float(key))}, lambda p, x: p["w"] * x))
    >>> with cache.acquire(1) as model:
    ...     model.forward(3.0), cache.resident(), cache.try_acquire(0)
    (array([3., 3.]), [1], None)
    """

    def __init__(
        self,
        particles: int | None = None,
        bytes: int | None = None,
        policy: str = "lru",
        *,
        device: Any = "cpu",
    ) -> None:
        self._cache = CacheOfModels(str(device), particles, bytes, policy)
        self._models: dict[Any, Any] = {}

    def insert(self, key: Key, model: Any) -> None:
        """Add a model, which is parked until it is acquired. Raises AlreadyExists for a key that is known, and
        LimitExceeded for a model that is larger than the cache."""
        # Before it is found by others.
        nbytes = int(model.nbytes)
        if self._cache.contains(key):
            self._cache.insert(key, nbytes)
        model.park()
        self._models[key] = model
        try:
            self._cache.insert(key, nbytes)
        except BaseException:
            self._models.pop(key, None)
            model.bring()
            raise

    def acquire(self, key: Key, timeout: float | None = None) -> Guard:
        """Wait until the model is in the memory of the device, and pin it there: `with cache.acquire(key) as model`.

        Raises NotFound for a key that is not known; Deadlock if the guards of this thread itself have all the room;
        DeadlineExceeded after `timeout` seconds, which names those who have it; LimitExceeded for a model that has
        become larger than the cache; Closed; and what `park` or `bring` of a model raises, which then stays where it
        is.
        Ctrl-C ends the wait.
        """
        return self._cache.acquire(self._models, key, timeout)

    def try_acquire(self, key: Key) -> Guard | None:
        """As `acquire`, but None where it would wait for others."""
        return self._cache.try_acquire(self._models, key)

    def remove(self, key: Key) -> Any:
        """Forget a model, and return it, where it is: pinned, parked, or in the memory of the device. Who waits for it
        is told. Raises NotFound for a key that is not known."""
        self._cache.remove(key)
        return self._models.pop(key)

    def peek(self, key: Key) -> Any:
        """The model, wherever it is, neither brought nor pinned. Raises NotFound for a key that is not known."""
        model = self._models.get(key)
        if model is None:
            raise NotFound(f"the cache has no particle {key}; hint: was it removed?")
        return model

    def contains(self, key: Key) -> bool:
        """Whether the model is known, wherever it is."""
        return self._cache.contains(key)

    __contains__ = contains

    def particles(self) -> list[Any]:
        """The keys of all models, in the order in which they were inserted."""
        return self._cache.keys()

    def resident(self) -> list[Any]:
        """The keys of those in the memory of the device, in the order in which they were inserted."""
        return self._cache.resident()

    def statistics(self) -> dict[str, int]:
        """What there was: `hits`, `misses`, `evictions`, `failures`, `brought_bytes`, `parked_bytes`; and what there
        is: `known`, `resident`, `resident_bytes`, `pinned` models, and who is `waiting`."""
        return self._cache.statistics()

    def save(self, key: Key, path: str | os.PathLike[str]) -> None:
        """Write a model as it is now to a file, wherever the model is; atomic, with all that it needs to go on:
        parameters, buffers, gradients, optimizer, scheduler, generator. Folders are made."""
        save_state(path, self.peek(key).state())

    def load(self, key: Key, path: str | os.PathLike[str], timeout: float | None = None) -> None:
        """Replace the state of a model by that of a file, as `acquire` gets it."""
        state = load_state(path)
        with self.acquire(key, timeout) as model:
            model.load(state)

    def close(self) -> None:
        """Fail all who wait, and whoever acquires from now on, with Closed. Guards stay; idempotent."""
        self._cache.close()

    def __len__(self) -> int:
        return len(self._models)

    def __repr__(self) -> str:
        numbers = self.statistics()
        return f"<sheave.particle.ParticleCache of {numbers['known']} models, {numbers['resident']} of them resident>"
