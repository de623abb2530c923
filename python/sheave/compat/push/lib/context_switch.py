"""Caches of particles: which modules lie on a device.

What differs from PusH, on purpose:

- Each particle has a module of its own. Parameters, gradients, buffers, and what optimizer and scheduler keep move
  together, so a particle is the same for every `cache_size`; memory on the device is bounded by what lies there.
- `ParticleCacheLRU` is one: who is read is used.
- Nothing is locked while a thread is waited for, or a module moves; `lock` is taken, and means nothing.
- `save_to_disk` writes the module as it is now, where `path` says, and `load_from_disk` reads it.
- A seed of a particle is `train_key`, and its own without one; the generator of torch stays as it is.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sheave.compat import push
from sheave.compat.push import _files
from sheave.compat.push._model import ModuleModel, seed_for
from sheave.particle import ParticleCache as _Cache

__all__ = ["ParticleCache", "ParticleCacheLRU"]


class ParticleCache:
    """Particles of a device, of which `cache_size` lie on it at a time.

    A particle that is pinned stays there. With ``push.strict`` the cache is direct-mapped, as PusH's is: the n-th
    particle has the place n mod `cache_size` for life. All methods raise KeyError for a particle that is not known.
    """

    _policy: str | None = None

    def __init__(
        self,
        mk_module: Callable[..., torch.nn.Module],
        args: Sequence[Any],
        cache_size: int,
        device: Any,
        lock: Any = None,
        *,
        seed: int | None = None,
    ) -> None:
        self.mk_module = mk_module
        self.args = args
        self._device = device
        self._cache_size = int(cache_size)
        self._seed = torch.initial_seed() if seed is None else seed
        policy = self._policy or ("direct" if push.strict else "lru")
        self._cache = _Cache(particles=self._cache_size, policy=policy)
        self._models: dict[int, ModuleModel] = {}
        self._pins: dict[int, contextlib.ExitStack] = {}
        self._pinning = threading.Lock()

    def create(
        self,
        pid: int,
        mk_optim: Callable[..., Any] | None,
        mk_scheduler: Callable[..., Any] | None = None,
        prior: bool = False,
        train_key: int | None = None,
    ) -> torch.nn.Module:
        """Make a particle. Returns its module, on the device."""
        seed = seed_for(self._seed, pid, train_key)
        model = ModuleModel(
            self.mk_module, self.args, mk_optim, mk_scheduler, prior=prior, seed=seed, device=self._device
        )
        self._insert(pid, model)
        with self._cache.acquire(pid):
            return model.module

    def try_read(self, pid: int, pin: bool = False, msg: Any = None) -> torch.nn.Module | None:
        """Bring a particle to the device, and pin it if so asked. Returns its module; None if its place is taken by one
        that is pinned."""
        model = self._models[pid]
        guard = self._cache.try_acquire(pid)
        if guard is None:
            return None
        self._kept(pid, guard, pin)
        return model.module

    def try_pin(self, pid: int) -> bool:
        """Pin a particle if it lies on the device. Returns whether it does."""
        self._models[pid]
        guard = self._cache.try_acquire(pid) if pid in self._cache.resident() else None
        if guard is None:
            return False
        self._kept(pid, guard, True)
        return True

    def unpin(self, pid: int) -> None:
        """Let a particle be replaced, if it is pinned."""
        self._models[pid]
        with self._pinning:
            pin = self._pins.pop(pid, None)
        if pin is not None:
            pin.close()

    def release(self, pid: int, thread: threading.Thread) -> None:
        """Wait for the end of a thread, and let the particle be replaced then."""
        self._models[pid]
        thread.join()
        self.unpin(pid)

    def contains(self, pid: int) -> bool:
        """Whether this particle is known."""
        return pid in self._models

    def particles(self) -> list[int]:
        """The particles that are known, in the order in which they were made."""
        return list(self._models)

    def resident(self) -> list[int]:
        """The particles that lie on the device."""
        return list(self._cache.resident())

    def save_to_disk(self, pid: int, path: str = _files.DIRECTORY) -> None:
        """Write a particle into the directory `path`, which is made, as ``device{device}_particle{pid}.pth``."""
        _files.save(self._models[pid], path, self._device, pid)

    def load_from_disk(self, pid: int, path: str = _files.DIRECTORY) -> None:
        """Read a particle from the directory `path`. Raises NotFound if it is not there."""
        _files.load(self._models[pid], path, self._device, pid)

    def _insert(self, pid: int, model: ModuleModel) -> None:
        self._cache.insert(pid, model)
        self._models[pid] = model

    def _kept(self, pid: int, guard: Any, is_pin: bool) -> None:
        """Enters a guard, and leaves it again if it is not to stay."""
        with contextlib.ExitStack() as entered:
            entered.enter_context(guard)
            with self._pinning:
                if is_pin and pid not in self._pins:
                    self._pins[pid] = entered.pop_all()

    def __str__(self) -> str:
        return f"particles {self.particles()} of device {self._device}, resident {self.resident()}"


class ParticleCacheLRU(ParticleCache):
    """Particles of a device, of which those that were used last lie on it."""

    _policy = "lru"

    def write(self, pid: int, module: torch.nn.Module) -> None:
        """Make `module` that of a particle, which is made if it is not known; the optimizer is made again on it."""
        known = self._models.get(pid)
        if known is not None:
            known.module.load_state_dict(module.state_dict())
            self.read(pid)
            return
        model = ModuleModel(lambda: module, (), None, device=self._device)
        self._insert(pid, model)
        self.read(pid)

    def read(self, pid: int) -> torch.nn.Module:
        """Bring a particle to the device. Returns its module."""
        model = self._models[pid]
        with self._cache.acquire(pid):
            return model.module

    def contains(self, pid: int) -> bool:
        """Whether this particle lies on the device."""
        return pid in self._cache.resident()

    def particles(self) -> list[int]:
        """The particles that lie on the device."""
        return self.resident()
