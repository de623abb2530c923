"""A module of torch as the model of a particle: with its optimizer, its scheduler, and a seed of its own.

Its parameters are objects of the module's own all the time, so that a handler may write them, or their ``data``, in the
way it likes; the optimizer is made on them. Moving it replaces their data and leaves the objects.
"""

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sheave import InvalidArgument
from sheave.bayes import seed_of
from sheave.compat.push.lib.utils import torch_device

__all__ = ["ModuleModel", "seed_for"]

# Modules are made one at a time: torch has one generator for all threads, which is lent to each and put back.
_making = threading.Lock()


def seed_for(master: int, pid: int, train_key: int | None) -> int:
    """The seed of a particle: its `train_key`, or one of its own if that is None or -1, made from that of all."""
    if train_key is None or train_key == -1:
        return seed_of(master % 2**64, pid) % 2**63
    return train_key % 2**63


class ModuleModel:
    """A module on a device, what trains it, and where it lies now."""

    def __init__(
        self,
        mk_module: Callable[..., torch.nn.Module],
        args: Sequence[Any],
        mk_optim: Callable[..., Any] | None,
        mk_scheduler: Callable[..., Any] | None = None,
        *,
        prior: bool = False,
        seed: int = 0,
        device: Any = 0,
    ) -> None:
        self.place = torch_device(device)
        own_generators = [self.place] if self.place.type == "cuda" else []
        with _making, torch.random.fork_rng(devices=own_generators):
            torch.manual_seed(seed)
            module = mk_module(*args)
            if not isinstance(module, torch.nn.Module):
                raise InvalidArgument(f"mk_module has made a {type(module).__name__}; expected a torch.nn.Module")
            if prior:
                module.apply(module.trainable.init_weights)  # type: ignore[union-attr, arg-type]
        self.module = module.to(self.place)
        trained = module.trainable if prior else module
        self.optimizer = None if mk_optim is None else mk_optim(trained.parameters())  # type: ignore[union-attr]
        has_scheduler = mk_scheduler is not None and self.optimizer is not None
        self.scheduler = mk_scheduler(self.optimizer) if has_scheduler else None  # type: ignore[misc]
        self.version = 0

    @property
    def dimension(self) -> int:
        """How many parameters there are."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    @property
    def dtype(self) -> torch.dtype:
        """The type of the first parameter."""
        first = next(self.module.parameters(), None)
        return torch.float32 if first is None else first.dtype

    @property
    def nbytes(self) -> int:
        """Bytes on the device: parameters, gradients, buffers, and what the optimizer keeps."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors())

    def forward(self, x: Any, *args: Any, gradient: bool = True, **kwargs: Any) -> Any:
        """Apply the module, hooks and all; without `gradient` nothing is kept for a backward pass."""
        with torch.set_grad_enabled(gradient):
            return self.module(x, *args, **kwargs)

    def step(self, loss: Callable[..., torch.Tensor], x: Any, y: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Compute the gradients of `loss(module(x, ...), y)`, and let the optimizer step if there is one. Returns the
        loss, without its graph."""
        self.version += 1
        self.module.zero_grad()
        with torch.enable_grad():
            outcome = loss(self.module(x, *args, **kwargs), y)
            outcome.backward()  # type: ignore[no-untyped-call]
        if self.optimizer is not None:
            self.optimizer.step()
        return outcome.detach()

    def zero_grad(self) -> None:
        """Set gradients to none."""
        self.module.zero_grad()

    def scheduler_step(self, *args: Any) -> None:
        """Advance the scheduler of the learning rate."""
        if self.scheduler is None:
            what = "scheduler_step of a particle without a scheduler"
            raise InvalidArgument(f"{what}; hint: give p_create a mk_scheduler")
        self.scheduler.step(*args)

    def parameters(self) -> list[torch.Tensor]:
        """Copies of the parameters on the CPU, in the order of the module."""
        return [parameter.detach().to("cpu", copy=True) for parameter in self.module.parameters()]

    def flat(self) -> NDArray[Any]:
        """All parameters as one vector on the CPU: a copy."""
        return _flat(list(self.module.parameters()))

    def flat_gradient(self) -> NDArray[Any]:
        """All gradients as one vector on the CPU, zero where there is none: a copy."""
        parameters = list(self.module.parameters())
        return _flat([torch.zeros_like(each) if each.grad is None else each.grad for each in parameters])

    def set_flat(self, vector: Any) -> None:
        """Write all parameters from one vector."""
        self._write(vector, lambda parameter, part: parameter.copy_(part))

    def add_flat(self, vector: Any, scale: float = 1.0) -> None:
        """Add `scale` times a vector to all parameters."""
        self._write(vector, lambda parameter, part: parameter.add_(part, alpha=scale))

    def _write(self, vector: Any, write: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        values = torch.as_tensor(vector).detach().flatten()
        if values.numel() != self.dimension:
            raise InvalidArgument(f"a vector of {values.numel()} numbers; expected {self.dimension}, the parameters")
        begin = 0
        self.version += 1
        with torch.no_grad():
            for parameter in self.module.parameters():
                part = values[begin : begin + parameter.numel()].view(parameter.shape)
                # What PusH's handlers send of complex numbers to real parameters is their real part.
                real = part.real if part.is_complex() and not parameter.is_complex() else part
                write(parameter, real.to(parameter.device, parameter.dtype))
                begin += parameter.numel()

    def viewed(self, device: Any) -> torch.nn.Module:
        """A copy of the module on a device, with its gradients. It shares nothing with this one."""
        place = torch_device(device)
        memo: dict[int, Any] = {}
        for parameter in self.module.parameters():
            copied = torch.nn.Parameter(parameter.detach().to(place, copy=True), parameter.requires_grad)
            if parameter.grad is not None:
                copied.grad = parameter.grad.detach().to(place, copy=True)
            memo[id(parameter)] = copied
        for buffer in self.module.buffers():
            memo[id(buffer)] = buffer.detach().to(place, copy=True)
        return copy.deepcopy(self.module, memo)

    def park(self) -> None:
        """Leave the memory of the device."""
        self._move(torch.device("cpu"))

    def bring(self) -> None:
        """Enter the memory of the device."""
        self._move(self.place)

    def state(self) -> dict[str, Any]:
        """All that it is, on the CPU, with nothing of it shared."""
        parts = {"module": self.module, "optimizer": self.optimizer, "scheduler": self.scheduler}
        state = {name: part.state_dict() for name, part in parts.items() if part is not None}
        return {**copy.deepcopy(state), "version": self.version}

    def load(self, state: dict[str, Any]) -> None:
        """Become what `state` has returned."""
        self.module.load_state_dict(state["module"])
        for name, part in (("optimizer", self.optimizer), ("scheduler", self.scheduler)):
            if part is not None and name in state:
                part.load_state_dict(state[name])
        self.version = max(self.version, state.get("version", 0)) + 1

    def _tensors(self) -> Iterator[torch.Tensor]:
        for parameter in self.module.parameters():
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad
        yield from self.module.buffers()
        if self.optimizer is not None:
            for kept in getattr(self.optimizer, "state", {}).values():
                yield from (value for value in kept.values() if isinstance(value, torch.Tensor))

    def _move(self, place: torch.device) -> None:
        for tensor in self._tensors():
            tensor.data = tensor.data.to(place)


def _flat(tensors: list[torch.Tensor]) -> NDArray[Any]:
    if not tensors:
        return np.zeros(0, np.float32)
    parts = [tensor.detach().to("cpu").flatten() for tensor in tensors]
    return torch.cat(parts).numpy()
