"""A module of torch as the model of a particle: a `sheave.particle.TorchModel` with what programs of PusH rely on.

A handler may write its module in the way it likes, the ``data`` of a parameter too, which takes that out of the one
tensor in which all of them lie: what looks at that tensor puts such parameters back before. A module that has left the
device lies in the host's memory, and can be read and written there. The optimizer is made on the parameters as PusH
makes it, on those of `trainable` alone if there is a `prior`. A module that draws when it is applied draws from the
generator of torch, as in PusH, so those of several devices are applied at the same time.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sheave import InvalidArgument
from sheave.bayes import seed_of
from sheave.compat.push.lib.utils import torch_device
from sheave.particle._torch_models import TorchModel

__all__ = ["ModuleModel", "seed_for"]


def seed_for(master: int, pid: int, train_key: int | None) -> int:
    """The seed of a particle: its `train_key`, or one of its own if that is None or -1, made from that of all."""
    if train_key is None or train_key == -1:
        return seed_of(master % 2**64, pid) % 2**63
    return train_key % 2**63


class ModuleModel(TorchModel):
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
        trained: list[torch.nn.Module] = []

        def make() -> torch.nn.Module:
            module = mk_module(*args)
            if not isinstance(module, torch.nn.Module):
                raise InvalidArgument(f"mk_module has made a {type(module).__name__}; expected a torch.nn.Module")
            if prior:
                module.apply(module.trainable.init_weights)  # type: ignore[union-attr, arg-type]
            trained.append(module.trainable if prior else module)  # type: ignore[arg-type]
            return module

        def optimizer(_: Any) -> Any:
            return None if mk_optim is None else mk_optim(trained[0].parameters())

        # PusH takes a scheduler without an optimizer, and makes none.
        super().__init__(make, optimizer=optimizer, scheduler=mk_scheduler, seed=seed, device=torch_device(device))
        self._draws = False

    def forward(self, x: Any, *args: Any, gradient: bool = True, **kwargs: Any) -> Any:
        """Apply the module, as `TorchModel.forward` does, in whatever mode the handler is that waits."""
        with torch.set_grad_enabled(gradient):
            return super().forward(x, *args, gradient=gradient, **kwargs)

    def step(self, loss: Callable[..., Any], x: Any, y: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Make a step of training, as `TorchModel.step` does, in whatever mode the handler is that waits."""
        with torch.enable_grad():
            return super().step(loss, x, y, *args, **kwargs)

    def scheduler_step(self, *args: Any) -> None:
        """Advance the scheduler of the learning rate."""
        if self.scheduler is None:
            what = "scheduler_step of a particle without a scheduler"
            raise InvalidArgument(f"{what}; hint: give p_create a mk_scheduler")
        super().scheduler_step(*args)

    def parameters(self) -> list[torch.Tensor]:
        """Copies of the parameters on the CPU, in the order of the module."""
        return [parameter.detach().to("cpu", copy=True) for parameter in self._parameters]

    def flat(self) -> NDArray[Any]:
        """All parameters as one vector on the CPU: a copy."""
        with self._moves:
            self._put_back()
            return np.array(super().flat())

    def flat_gradient(self) -> NDArray[Any]:
        """All gradients as one vector on the CPU, zero where there is none: a copy."""
        return np.array(super().flat_gradient())

    def _change(self, vector: Any, change: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        values = torch.as_tensor(vector).detach().flatten()
        # What PusH's handlers send of complex numbers to real parameters is their real part.
        values = values.real if values.is_complex() and not self.dtype.is_complex else values
        with self._moves:
            self._put_back()
            super()._change(values, change)

    def viewed(self, device: Any) -> torch.nn.Module:
        """A copy of the module on a device, with its gradients. It shares nothing with this one."""
        place = torch_device(device)
        memo: dict[int, Any] = {}
        for parameter in self._parameters:
            copied = torch.nn.Parameter(parameter.detach().to(place, copy=True), parameter.requires_grad)
            if parameter.grad is not None:
                copied.grad = parameter.grad.detach().to(place, copy=True)
            memo[id(parameter)] = copied
        for buffer in self.module.buffers():
            memo[id(buffer)] = buffer.detach().to(place, copy=True)
        return copy.deepcopy(self.module, memo)

    def park(self) -> None:
        """Leave the memory of the device."""
        with self._moves:
            if self.is_parked:
                return
            self._put_back()
            super().park()
            for index, (part, parameter) in enumerate(zip(self.parts, self._parameters, strict=True)):
                parameter.data = self._view(index).view(part.shape)
                parameter.grad = self._gradients[index]
            for name, buffer in self.module.named_buffers():
                buffer.data = self._buffers[name]

    def bring(self) -> None:
        """Enter the memory of the device."""
        with self._moves:
            self._put_back()
            super().bring()

    def state(self) -> dict[str, Any]:
        """All that it is, on the CPU, with nothing of it shared."""
        with self._moves:
            self._put_back()
            return super().state()

    def load_module(self, state: dict[str, Any]) -> None:
        """Become what `state_dict` of a module has returned, with the optimizer as it is."""
        with self._moves:
            self._put_back()
            self.module.load_state_dict(state)
            self.version += 1

    def _put_back(self) -> None:
        """Has all parameters in the one tensor again, with what was written in their places."""
        if self.is_parked:
            self._gradients = [parameter.grad for parameter in self._parameters]
            self._buffers = {name: buffer.detach() for name, buffer in self.module.named_buffers()}
        for index, (part, parameter) in enumerate(zip(self.parts, self._parameters, strict=True)):
            view = self._view(index)
            if parameter.data_ptr() != view.data_ptr():
                if parameter.shape != torch.Size(part.shape):
                    what = f"parameter {part.name} has become one of shape {tuple(parameter.shape)}"
                    raise InvalidArgument(f"{what}; expected {tuple(part.shape)}")
                view.copy_(parameter.detach().reshape(-1))
                parameter.data = view.view(part.shape)
