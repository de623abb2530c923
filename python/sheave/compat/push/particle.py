"""What handlers of messages get: their particle, and views of others.

What differs from PusH, on purpose:

- `send` returns at once; the handler runs on whatever thread waits for it, or on another one.
- `register_receive` works, and its state is that of the messages of this name, unless it is None.
- `zero_grad` and `scheduler_step` return futures that can be waited for.
- `forward` and `step` call the module, hooks and all, and take keywords; the loss has no graph.
- A view is a copy of a module, of the moment in which it was got; it is nobody else's.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from sheave.compat.push.lib.utils import detach_to_device, torch_device
from sheave.compat.push.lib.waitable import Waitable
from sheave.compat.push.pfuture import PFuture

__all__ = ["Particle", "ParticleView"]


class Particle(Waitable):
    """A particle, as its handlers see it.

    `device` is the number of its device, `pid` its own, `module` its network, which lies on the device when it is asked
    for, after whatever this particle has begun with it before; `state` is the same object in all of its messages.
    """

    def __init__(
        self, node_event_loop: Any, device: int, pid: int, module: torch.nn.Module, state: dict[Any, Any]
    ) -> None:
        assert isinstance(device, int), f"device is a {type(device).__name__}; expected an int"
        assert isinstance(pid, int), f"pid is a {type(pid).__name__}; expected an int"
        assert isinstance(module, torch.nn.Module), f"module is a {type(module).__name__}; expected a torch.nn.Module"
        self.device = device
        self.pid = pid
        self.state = state
        self._module = module
        self._node_event_loop = node_event_loop

    @property
    def module(self) -> torch.nn.Module:
        """The network. Waits for what this particle has begun with it."""
        return self._module if self._node_event_loop is None else self._node_event_loop._module(self.pid)

    @property
    def torch_device(self) -> torch.device:
        """The device of torch that `device` stands for."""
        return torch_device(self.device)

    def particle_ids(self) -> list[int]:
        """All particles, in the order in which they were made."""
        return list(self._node_event_loop.particles())

    def other_particles(self) -> list[int]:
        """All particles but this one, in the order in which they were made."""
        return [pid for pid in self.particle_ids() if pid != self.pid]

    def register_receive(self, msg: str, fn: Callable[..., Any], state: dict[Any, Any] | None = None) -> None:
        """Handle messages `msg` by `fn(particle, *args)`: those that are sent from now on. The particle that `fn` gets
        has `state`, unless that is None."""
        self._node_event_loop.register_receive(self.pid, msg, fn, state)

    def send(self, pid: int, msg: str, *args: Any) -> PFuture:
        """Send a message. Returns the future of what its handler returns.

        Tensors among the arguments go to the receiver's device, out of their graphs; to a particle of the same rank all
        else goes as it is. Raises NotFound for a particle or a message that is not known.
        """
        future: PFuture = self._node_event_loop.send(self, self.pid, pid, msg, *args)
        return future

    def get(self, pid: int) -> PFuture:
        """Get a particle's parameters and gradients as they are after what this one has sent to it so far. Returns the
        future of a `ParticleView` on this particle's device."""
        future: PFuture = self._node_event_loop.get(self.pid, pid)
        return future

    def wait(self, pfutures: Iterable[PFuture]) -> list[Any]:
        """Wait for all futures. Returns their results, in order; raises what the first one that failed has raised."""
        return list(self._node_event_loop.wait(pfutures))

    def zero_grad(self) -> PFuture:
        """Set the gradients to none. Returns a future of None."""
        future: PFuture = self._node_event_loop.zero_grad(self.pid)
        return future

    def forward(self, x: Any, *args: Any, gradient: bool = True, **kwargs: Any) -> PFuture:
        """Apply the network. Returns the future of its output, with its graph; without one if not `gradient`."""
        inputs = detach_to_device(self.device, [x, *args], requires_grad=gradient)
        future: PFuture = self._node_event_loop.forward(self.pid, *inputs, gradient=gradient, **kwargs)
        return future

    def step(
        self, loss_fn: Callable[..., torch.Tensor], data: Any, label: Any, *args: Any, **kwargs: Any
    ) -> PFuture:
        """Compute the gradients of `loss_fn(module(data, *args), label)`, and let the optimizer step if there is one.
        Returns the future of the loss, without its graph."""
        data, label, *more = detach_to_device(self.device, [data, label, *args])
        future: PFuture = self._node_event_loop.step(self.pid, loss_fn, data, label, *more, **kwargs)
        return future

    def scheduler_step(self, *args: Any) -> PFuture:
        """Advance the scheduler of the learning rate. Returns a future of None."""
        future: PFuture = self._node_event_loop.scheduler_step(self.pid, *args)
        return future

    def update(self, function: Callable[[Any], Any]) -> PFuture:
        """Call `function(model)` in the order of the device, with a model whose `module` is the network, and which has
        `flat`, `flat_gradient`, `set_flat` and `add_flat`. Returns the future of what it returns. PusH has no such
        method."""
        future: PFuture = self._node_event_loop.update(self.pid, function)
        return future


class ParticleView:
    """A copy of another particle's network.

    `view_cache` is what has it: `try_read(pid)` returns the module.
    """

    def __init__(self, view_cache: Any, pid: int) -> None:
        self._view_cache = view_cache
        self.pid = pid

    def view(self) -> torch.nn.Module:
        """The module, with its gradients: the same one each time."""
        module: torch.nn.Module = self._view_cache.try_read(self.pid)
        return module


class Copied:
    """A module that was copied, as the cache of its view."""

    def __init__(self, module: torch.nn.Module, version: int) -> None:
        self.module = module
        self.version = version

    def try_read(self, pid: int) -> torch.nn.Module:
        """The module."""
        return self.module
