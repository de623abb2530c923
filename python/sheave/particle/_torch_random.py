"""Random numbers of models of torch: each model has generators of its own.

Most of torch draws from generators of the process, one for each device, which cannot be given to it. So while a model
that draws is made or applied, these are in the state of the model's, and afterwards in the one that they had. Other
threads that do the same wait meanwhile; one that never comes to its turn, because it waits for somebody who waits for
it, is told so.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from sheave._core import Deadlock

__all__ = ["Generators", "draws"]

# Modules of torch that draw when they are applied, at a rate of this name, or whenever they train.
RATES = {
    torch.nn.MultiheadAttention: "dropout",
    torch.nn.RNNBase: "dropout",
}
ALWAYS = (torch.nn.modules.dropout._DropoutNd, torch.nn.RReLU, torch.nn.FractionalMaxPool2d)

# Longer than any model is applied for.
TURN_S = 600.0

_TURN = threading.RLock()
_OF_CPU: torch.Generator = torch.random.default_generator  # type: ignore[attr-defined]


def draws(module: torch.nn.Module) -> bool:
    """Whether the module may draw when it is applied. What torch has not made may do anything."""
    for part in module.modules():
        if isinstance(part, ALWAYS):
            return True
        rates = [name for kind, name in RATES.items() if isinstance(part, kind)]
        if any(getattr(part, name, 1.0) for name in rates):
            return True
        if not type(part).__module__.startswith("torch.nn."):
            return True
    return False


class Generators:
    """The states of the generators of one model: of the CPU, and of its device."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        self.states: dict[str, Any] = {}
        with self.in_use():
            _OF_CPU.manual_seed(seed)
            if device.type == "cuda":
                torch.cuda.default_generators[device.index or 0].manual_seed(seed)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Within it whatever draws draws from these."""
        if not _TURN.acquire(timeout=TURN_S):
            raise Deadlock(
                f"a model that draws random numbers waits for another one for {TURN_S:g} s; "
                "hint: wait for nobody within a module"
            )
        try:
            generators = {"cpu": _OF_CPU}
            if self.device.type == "cuda":
                generators["cuda"] = torch.cuda.default_generators[self.device.index or 0]
            before = {name: generator.get_state() for name, generator in generators.items()}
            for name, state in self.states.items():
                generators[name].set_state(state)
            try:
                yield
            finally:
                self.states = {name: generator.get_state() for name, generator in generators.items()}
                for name, state in before.items():
                    generators[name].set_state(state)
        finally:
            _TURN.release()
