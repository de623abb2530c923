"""Models of torch, whose parameters are one flat tensor."""

import contextlib
import copy
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sheave._core import InvalidArgument, Mismatch
from sheave.particle._models import laid_out, seed_or_new
from sheave.particle._torch_random import Generators, draws
from sheave.particle._views import Part, Snapshot

__all__ = ["TorchModel"]

Array = np.ndarray[Any, Any]
HOST = torch.device("cpu")


_found: list[int] = []


def gpus() -> int:
    """How many GPUs there are. Torch would look for their library each time."""
    if not _found:
        _found.append(torch.cuda.device_count())
    return _found[0]


def device_of(device: Any) -> torch.device:
    """The device of torch that a label means. A number is that of a CUDA device, where there are any, else the CPU."""
    count = gpus()
    if isinstance(device, int) and not isinstance(device, bool):
        found = torch.device("cuda", device) if count else HOST
    else:
        found = torch.device(device)
    if found.type == "cuda" and found.index is None:
        found = torch.device("cuda", 0)
    if found.type == "cuda" and not 0 <= found.index < count:
        raise InvalidArgument(f"device {device!r}; expected one of the {count} CUDA devices of this process, or 'cpu'")
    return found


def moved(value: Any, device: torch.device) -> Any:
    """The tensors and arrays in dicts, lists and tuples, on this device; anything else as it is."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, np.ndarray):
        return torch.as_tensor(value, device=device)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(item, device) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(moved(item, device) for item in value)
    return value


def parked_copy(tensor: Tensor) -> Tensor:
    """The tensor in the host's memory, in pages that a CUDA device can reach by itself."""
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
    return host.copy_(tensor)


class TorchModel:
    """A module of torch, with its optimizer, scheduler and random generator.

    `make_module(*args)` returns the module, and `optimizer(parameters)` its optimizer, such as
    `lambda parameters: torch.optim.Adam(parameters, lr=1e-3)`; without one a step computes gradients alone.
    `scheduler(optimizer)` returns that of its learning rate. What the module draws, when it is made and when it is
    applied, comes from a generator of its own that begins with `seed`, never from that of the process; without a seed
    it is that of the particle that it is made for, or another one each time. `device` is a label of torch, or a number:
    that of a CUDA device, or the CPU where there is none.

    A step may clip the norm of all gradients (`clip_norm`), add up those of several steps before it lets the optimizer
    go on (`accumulate`), and compute in a smaller dtype (`autocast`, such as torch.bfloat16).

    **Memory.** All parameters of one dtype lie in one flat tensor, and the module's are views of it, also those that
    are frozen; of tied ones there is one. `park` leaves the memory of the device, with buffers, gradients and moments.
    A model is used by one thread at a time, but snapshots, `state` and moves keep each other out.

    >>> import torch
    >>> model = sheave.particle.TorchModel(torch.nn.Linear, 2, 1, optimizer=torch.optim.SGD, seed=7)
    >>> before = model.snapshot()
    >>> loss = model.step(torch.nn.functional.mse_loss, torch.ones(4, 2), torch.zeros(4, 1))
    >>> model.dimension, before.version, model.version, bool((before.flat != model.flat()).any())
    (3, 0, 1, True)
    """

    def __init__(
        self,
        make_module: Callable[..., torch.nn.Module],
        *args: Any,
        optimizer: Callable[[list[torch.nn.Parameter]], Any] | None = None,
        scheduler: Callable[[Any], Any] | None = None,
        seed: int | None = None,
        device: Any = "cpu",
        clip_norm: float | None = None,
        accumulate: int = 1,
        autocast: torch.dtype | None = None,
    ) -> None:
        if accumulate < 1:
            raise InvalidArgument(f"accumulate is {accumulate}; expected a number of steps from 1 on")
        if scheduler is not None and optimizer is None:
            raise InvalidArgument("a scheduler without an optimizer; expected `optimizer`")
        self.device = device_of(device)
        self._generators = Generators(seed_or_new(seed), self.device)
        with self._generators.in_use():
            self.module = make_module(*args)
        if not isinstance(self.module, torch.nn.Module):
            raise InvalidArgument(f"make_module returned a {type(self.module).__name__}; expected a torch.nn.Module")
        self.module.to(self.device)
        self.clip_norm, self.accumulate, self.autocast = clip_norm, accumulate, autocast
        self.version = 0
        self.is_parked = False
        self._steps = 0
        self._gradient_version = 0
        self._snapshots: dict[bool, tuple[int, tuple[int, ...], weakref.ref[Snapshot]]] = {}
        self._moves = threading.RLock()
        self._gradients: list[Tensor | None] = []
        self._buffers: dict[str, Tensor] = {}
        self._lay_out()
        self._draws = draws(self.module)
        trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        self.optimizer: Any = optimizer(trained) if optimizer is not None and trained else None
        is_scheduled = scheduler is not None and self.optimizer is not None
        self.scheduler: Any = scheduler(self.optimizer) if scheduler is not None and is_scheduled else None
        self._needs_closure = isinstance(self.optimizer, torch.optim.LBFGS)
        self._size = (-1, 0)

    def _lay_out(self) -> None:
        """Puts all parameters of one dtype into one tensor, of which they are views from then on."""
        named = dict(self.module.named_parameters())
        self._parameters = list(named.values())
        self.parts = laid_out({name: tuple(parameter.shape) for name, parameter in named.items()})
        dtypes = dict.fromkeys(parameter.dtype for parameter in self._parameters)
        self.dtypes = list(dtypes) or [torch.get_default_dtype()]
        self._flats: dict[torch.dtype, Tensor] = {}
        self._places: list[Part] = [*self.parts]
        for dtype in self.dtypes:
            indices = [index for index, parameter in enumerate(self._parameters) if parameter.dtype == dtype]
            parts = laid_out({self.parts[index].name: self.parts[index].shape for index in indices})
            flat = torch.empty(parts[-1].stop if parts else 0, dtype=dtype, device=self.device)
            for index, part in zip(indices, parts, strict=True):
                view = flat[part.start : part.stop].view(part.shape)
                view.copy_(self._parameters[index].detach())
                self._parameters[index].data = view
                self._places[index] = part
            self._flats[dtype] = flat

    # What it computes.

    @property
    def dimension(self) -> int:
        """The number of parameters, also of those that are frozen; of tied ones once."""
        return self.parts[-1].stop if self.parts else 0

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the parameters, or that which holds all of theirs."""
        dtype = self.dtypes[0]
        for other in self.dtypes[1:]:
            dtype = torch.promote_types(dtype, other)
        return dtype

    def forward(self, x: Any, *args: Any, gradient: bool = True, **kwargs: Any) -> Any:
        """Apply the module, by calling it, to `x` on its device. Without `gradient` nothing is kept for a backward
        pass. Buffers, such as the statistics of normalisations, follow if it trains."""
        self._require_here("forward")
        x, args, kwargs = moved((x, args, kwargs), self.device)
        with contextlib.nullcontext() if gradient else torch.no_grad():
            return self._applied(x, args, kwargs)

    def _applied(self, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with contextlib.ExitStack() as stack:
            if self._draws:
                stack.enter_context(self._generators.in_use())
            if self.autocast is not None:
                stack.enter_context(torch.autocast(self.device.type, self.autocast))
            output = self.module(x, *args, **kwargs)
        if self.module.training and self._has_buffers:
            self.version += 1
        return output

    @property
    def _has_buffers(self) -> bool:
        return next(self.module.buffers(), None) is not None

    def step(self, loss: Callable[..., Any], x: Any, y: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Make a step of training: the gradients of `loss(module(x, *args, **kwargs), y)`, and the optimizer's step if
        there is one. Returns the loss, without a graph."""
        self._require_here("step")
        x, y, args, kwargs = moved((x, y, args, kwargs), self.device)

        def closure() -> Tensor:
            if self._steps % self.accumulate == 0:
                self._drop_gradients()
            value: Tensor = loss(self._applied(x, args, kwargs), y)
            torch.autograd.backward(value if self.accumulate == 1 else value / self.accumulate)
            self._gradient_version += 1
            return value.detach()

        if self._needs_closure and self.optimizer is not None:
            value = self.optimizer.step(closure)
            self.version += 1
            return value if isinstance(value, Tensor) else torch.as_tensor(value)
        value = closure()
        self._steps += 1
        if self.optimizer is not None and self._steps % self.accumulate == 0:
            if self.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(self._parameters, self.clip_norm)
            self.optimizer.step()
            self.version += 1
        return value

    def _drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def zero_grad(self) -> None:
        """Drop the gradients, which are zero then."""
        self._drop_gradients()
        self._gradients = [None] * len(self._gradients)
        self._gradient_version += 1

    def scheduler_step(self, *args: Any) -> None:
        """Make a step of the scheduler. Raises InvalidArgument if there is none."""
        if self.scheduler is None:
            raise InvalidArgument("a step of a scheduler that is not there; expected `scheduler` when it was made")
        self.scheduler.step(*args)

    def train(self, mode: bool = True) -> "TorchModel":
        """Let the module train, or else evaluate. Returns this model."""
        self.module.train(mode)
        return self

    def eval(self) -> "TorchModel":
        """Let the module evaluate. Returns this model."""
        return self.train(False)

    # Its parameters, as one vector.

    def flat(self) -> Array:
        """All parameters in the order of the module's: a view that cannot be written to; see `set_flat`, `add_flat`.

        On a CUDA device, with parameters of several dtypes, or of one that numpy does not know, it is a copy, of the
        dtype that holds all of them.
        """
        if len(self._flats) == 1 and self.dtype is not torch.bfloat16:
            flat = self._flats[self.dtypes[0]]
            array = flat.numpy() if flat.device.type == "cpu" else flat.cpu().numpy()
        else:
            array = self._gathered([self._view(index) for index in range(len(self._parameters))])
        array.flags.writeable = False
        return array

    def _view(self, index: int) -> Tensor:
        part = self._places[index]
        return self._flats[self._parameters[index].dtype][part.start : part.stop]

    def _gathered(self, parts: list[Tensor | None], out: Array | None = None) -> Array:
        """One array of all of them, which is `out` if it is given; of zeros where there is nothing."""
        dtype = torch.float32 if self.dtype is torch.bfloat16 else self.dtype
        array = torch.empty(self.dimension, dtype=dtype) if out is None else torch.from_numpy(out)
        for part, values in zip(self.parts, parts, strict=True):
            place = array[part.start : part.stop]
            place.zero_() if values is None else place.copy_(values.reshape(-1))
        found: Array = array.numpy() if out is None else out
        return found

    def flat_gradient(self) -> Array:
        """The gradients in the order of `flat`, as a copy; zero where there is none."""
        array = self._gathered(self._detached_gradients())
        array.flags.writeable = False
        return array

    def write_gradient(self, out: Array) -> None:
        """Write what `flat_gradient` returns into an array of that size: new memory would take longer than it."""
        if out.shape != (self.dimension,):
            raise Mismatch(f"an array of shape {out.shape}; expected ({self.dimension},)")
        self._gathered(self._detached_gradients(), out)

    def _detached_gradients(self) -> list[Tensor | None]:
        gradients = self._gradients if self.is_parked else [parameter.grad for parameter in self._parameters]
        return [None if gradient is None else gradient.detach() for gradient in gradients]

    def set_flat(self, vector: Any) -> None:
        """Replace the parameters by the elements of an array of their number; those that are frozen stay."""
        self._change(vector, lambda view, values: view.copy_(values))

    def add_flat(self, vector: Any, scale: float = 1.0) -> None:
        """Add `scale` times an array of their number to the parameters; those that are frozen stay."""
        self._change(vector, lambda view, values: view.add_(values.to(view.dtype), alpha=scale))

    def _change(self, vector: Any, change: Callable[[Tensor, Tensor], Any]) -> None:
        # Torch warns of arrays that cannot be written to, and takes none that goes backwards.
        is_plain = isinstance(vector, np.ndarray) and vector.flags.writeable and vector.flags.c_contiguous
        is_copied = isinstance(vector, np.ndarray) and not is_plain
        values = torch.as_tensor(np.array(vector) if is_copied else vector)
        if tuple(values.shape) != (self.dimension,):
            raise Mismatch(f"a vector of shape {tuple(values.shape)}; expected ({self.dimension},)")
        with self._moves, torch.no_grad():
            if len(self._flats) == 1 and all(parameter.requires_grad for parameter in self._parameters):
                flat = self._flats[self.dtypes[0]]
                change(flat, values.to(flat.device))
            else:
                for index, (part, parameter) in enumerate(zip(self.parts, self._parameters, strict=True)):
                    if parameter.requires_grad:
                        view = self._view(index)
                        change(view, values[part.start : part.stop].to(view.device))
            self.version += 1

    def frozen(self) -> Array:
        """Which elements of `flat` are of frozen parameters: an array of bool."""
        mask = np.zeros(self.dimension, np.bool_)
        for part, parameter in zip(self.parts, self._parameters, strict=True):
            mask[part.start : part.stop] = not parameter.requires_grad
        return mask

    def buffers_flat(self) -> dict[str, Array]:
        """Copies of the buffers by name, such as the statistics of normalisations."""
        return {name: buffer.detach().cpu().numpy().copy() for name, buffer in self._named_buffers().items()}

    def snapshot(self, gradients: bool = False) -> Snapshot:
        """The parameters as they are now, and their gradients if they are asked for; the same object while they stay
        and somebody has it. One copy is made of each version; the model is not moved for it."""
        kept = self._snapshots.get(gradients)
        known = (self.version, self._state(gradients))
        if kept is not None and kept[:2] == known and (snapshot := kept[2]()) is not None:
            return snapshot
        with self._moves:
            flat = self.flat()
            gradient = self.flat_gradient() if gradients else None
            buffers = self.buffers_flat()
            copied = np.array(flat) if flat.base is not None or flat.flags.owndata is False else flat
        mine = weakref.ref(self)
        snapshot = Snapshot(known[0], copied, gradient, self.parts, buffers, lambda of: _module_of(mine(), of))
        self._snapshots[gradients] = (*known, weakref.ref(snapshot))
        return snapshot

    def _state(self, gradients: bool) -> tuple[int, ...]:
        """What is another one after anybody has written to parameters, or to gradients if they count, as torch sees it:
        a backward pass of the user's own, or a function that changes the module."""
        parameters = self._parameters
        state = [sum(_writes(parameter) for parameter in parameters)]
        if gradients:
            state.append(self._gradient_version)
            for parameter in parameters:
                if parameter.grad is not None:
                    state += (id(parameter.grad), _writes(parameter.grad))
        return tuple(state)

    # Where it is.

    def _require_here(self, operation: str) -> None:
        if self.is_parked:
            raise InvalidArgument(f"{operation} of a model that is parked; hint: acquire it, or call bring()")

    def _named_buffers(self) -> dict[str, Tensor]:
        return self._buffers if self.is_parked else dict(self.module.named_buffers())

    @property
    def nbytes(self) -> int:
        """The bytes of its device's memory that it takes while it is there: parameters, gradients, buffers, moments."""
        entries = 0 if self.optimizer is None else len(self.optimizer.state)
        if self._size[0] != entries:
            flats = sum(flat.nbytes for flat in self._flats.values())
            trained = sum(parameter.requires_grad for parameter in self._parameters)
            buffers = sum(buffer.nbytes for buffer in self._named_buffers().values())
            moments = sum(tensor.nbytes for _, _, tensor in self._moments())
            self._size = (entries, flats * (2 if trained else 1) + buffers + moments)
        return self._size[1]

    def _moments(self) -> list[tuple[dict[str, Any], str, Tensor]]:
        """What the optimizer remembers on the device."""
        states = [] if self.optimizer is None else list(self.optimizer.state.values())
        found = [(state, key, value) for state in states for key, value in state.items() if isinstance(value, Tensor)]
        # Adam counts its steps in the host's memory, wherever the parameters are.
        return [(state, key, value) for state, key, value in found if value.dim() > 0]

    def park(self) -> None:
        """Leave the memory of the device, with all that belongs to it. It can be looked at, and not be applied, until
        `bring`. Idempotent; if it raises, nothing has changed."""
        with self._moves:
            if self.is_parked:
                return
            flats = {dtype: parked_copy(flat) for dtype, flat in self._flats.items()}
            gradients = [
                None if parameter.grad is None else parked_copy(parameter.grad) for parameter in self._parameters
            ]
            buffers = dict(self.module.named_buffers())
            copies = {name: parked_copy(buffer.detach()) for name, buffer in buffers.items()}
            moments = [(state, key, parked_copy(value)) for state, key, value in self._moments()]
            # From here on nothing fails.
            for parameter in self._parameters:
                parameter.grad = None
                parameter.data = torch.empty(0, dtype=parameter.dtype, device=self.device)
            for buffer in buffers.values():
                buffer.data = torch.empty(0, dtype=buffer.dtype, device=self.device)
            for state, key, value in moments:
                state[key] = value
            self._flats, self._gradients, self._buffers = flats, gradients, copies
            self.is_parked = True

    def bring(self) -> None:
        """Enter the memory of the device. Idempotent; if it raises, such as for want of memory, nothing has changed."""
        with self._moves:
            if not self.is_parked:
                return
            flats = {dtype: flat.to(self.device) for dtype, flat in self._flats.items()}
            gradients = [None if gradient is None else gradient.to(self.device) for gradient in self._gradients]
            copies = {name: buffer.to(self.device) for name, buffer in self._buffers.items()}
            moments = [(state, key, value.to(self.device)) for state, key, value in self._moments()]
            self._flats = flats
            for index, (part, parameter) in enumerate(zip(self.parts, self._parameters, strict=True)):
                parameter.data = self._view(index).view(part.shape)
                parameter.grad = gradients[index]
            for name, buffer in self.module.named_buffers():
                buffer.data = copies[name]
            for state, key, value in moments:
                state[key] = value
            self._gradients, self._buffers = [], {}
            self.is_parked = False

    # All of it, to go on elsewhere.

    def state(self) -> dict[str, Any]:
        """All that it needs to go on, as copies in the host's memory, wherever it is."""
        with self._moves:
            gradients = self._gradients if self.is_parked else [parameter.grad for parameter in self._parameters]
            views = [self._view(index).view(part.shape) for index, part in enumerate(self.parts)]
            names = [part.name for part in self.parts]
            state = {
                "kind": "torch",
                "version": self.version,
                "steps": self._steps,
                "training": self.module.training,
                "parameters": dict(zip(names, views, strict=True)),
                "gradients": {name: of for name, of in zip(names, gradients, strict=True) if of is not None},
                "buffers": self._named_buffers(),
                "optimizer": None if self.optimizer is None else self.optimizer.state_dict(),
                "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
                "generators": self._generators.states,
            }
            return _copied(state)  # type: ignore[no-any-return]

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of a model of the same module, optimizer and scheduler, at another device too.

        Raises Mismatch for another module; then nothing has changed.
        """
        saved = dict(state.get("parameters", {}))
        shapes = {part.name: part.shape for part in self.parts}
        if state.get("kind") != "torch" or {name: tuple(value.shape) for name, value in saved.items()} != shapes:
            raise Mismatch(f"a state of {list(saved)}; expected one of {list(shapes)} of the same shapes")
        if (state["optimizer"] is None) != (self.optimizer is None):
            raise Mismatch("a state with an optimizer, or without one; expected it as the model has it")
        with self._moves, torch.no_grad():
            was_parked = self.is_parked
            self.bring()
            for part, parameter in zip(self.parts, self._parameters, strict=True):
                parameter.copy_(saved[part.name])
                gradient = state["gradients"].get(part.name)
                parameter.grad = None if gradient is None else gradient.to(self.device, copy=True)
            for name, buffer in self.module.named_buffers():
                buffer.copy_(state["buffers"][name])
            if self.optimizer is not None:
                self.optimizer.load_state_dict(_copied(state["optimizer"]))
            if self.scheduler is not None:
                self.scheduler.load_state_dict(_copied(state["scheduler"]))
            self._generators.states = _copied(state["generators"])
            self.module.train(state["training"])
            self._steps = int(state["steps"])
            self._gradient_version += 1
            self.version = max(self.version, int(state["version"])) + 1
            self._size = (-1, 0)
            if was_parked:
                self.park()

    def __repr__(self) -> str:
        place = "parked" if self.is_parked else f"on {self.device}"
        return f"<sheave.particle.TorchModel {type(self.module).__name__}, {self.dimension} parameters, {place}>"


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(item) for item in value)
    return copy.deepcopy(value)


def _writes(tensor: Tensor) -> int:
    """How often a tensor was written to, as far as torch counts."""
    return 0 if tensor.is_inference() else tensor._version


def _module_of(model: TorchModel | None, snapshot: Snapshot) -> torch.nn.Module:
    """A copy of the module with other parameters. It is not made anew: that would cost time, and random numbers."""
    if model is None:
        raise InvalidArgument("the model of the snapshot is gone; hint: read named(), and load that into a module")
    memo: dict[int, Any] = {}
    named = snapshot.named()
    for part, parameter in zip(model.parts, model._parameters, strict=True):
        values = torch.from_numpy(np.array(named[part.name])).to(model.device, parameter.dtype)
        memo[id(parameter)] = torch.nn.Parameter(values, requires_grad=parameter.requires_grad)
        if snapshot.gradient is not None and parameter.requires_grad:
            gradient = torch.from_numpy(np.array(snapshot.gradient[part.start : part.stop]))
            memo[id(parameter)].grad = gradient.view(part.shape).to(model.device, parameter.dtype)
    for name, buffer in model.module.named_buffers():
        memo[id(buffer)] = torch.from_numpy(np.array(snapshot.buffers[name])).to(model.device)
    return copy.deepcopy(model.module, memo)
