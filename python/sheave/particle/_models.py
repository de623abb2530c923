"""Models: what a particle computes with."""

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np

from sheave._core import InvalidArgument, Mismatch
from sheave._core_model import FlatOptimizer
from sheave.optim import Optimizer
from sheave.particle._views import Part, Snapshot

__all__ = ["FunctionModel", "Model", "seeding"]

Array = np.ndarray[Any, Any]
Named = Mapping[str, Array]

_SEED: ContextVar[int | None] = ContextVar("the seed of models that are given none", default=None)


@contextlib.contextmanager
def seeding(seed: int) -> Iterator[None]:
    """Within it, models that are made without a seed have this one."""
    token = _SEED.set(seed)
    try:
        yield
    finally:
        _SEED.reset(token)


def seed_or_new(seed: int | None) -> int:
    """The seed that was given, that of whoever makes the model, or a new one; from 0 to below 2**63."""
    if seed is None:
        seed = _SEED.get()
    if seed is None:
        seed = int.from_bytes(os.urandom(8), "little")
    return int(seed) % 2**63


class Model(Protocol):
    """What particles and caches need of a model. `TorchModel` and `FunctionModel` are such."""

    version: int

    @property
    def nbytes(self) -> int:
        """The bytes of its device's memory that it takes."""
        ...

    @property
    def dimension(self) -> int:
        """The number of its parameters."""
        ...

    def forward(self, x: Any, *args: Any, gradient: bool = True, **kwargs: Any) -> Any:
        """Apply it. Without `gradient` nothing is kept for a backward pass."""
        ...

    def step(self, loss: Callable[..., Any], x: Any, y: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a step of training: gradients of `loss(output, y)`, and that of its optimizer if it has one. Returns the
        loss."""
        ...

    def zero_grad(self) -> None:
        """Set its gradients to zero."""
        ...

    def scheduler_step(self) -> None:
        """Make a step of the scheduler of its learning rate."""
        ...

    def snapshot(self, gradients: bool = False) -> Snapshot:
        """Its parameters as they are now; the same object while they stay and somebody has it."""
        ...

    def park(self) -> None:
        """Leave the memory of its device."""
        ...

    def bring(self) -> None:
        """Enter the memory of its device."""
        ...

    def state(self) -> dict[str, Any]:
        """All that it needs to go on, as arrays and plain values."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from such a state."""
        ...


def laid_out(shapes: Mapping[str, tuple[int, ...]]) -> list[Part]:
    """Arrays of these shapes one after the other."""
    parts, start = [], 0
    for name, shape in shapes.items():
        stop = start + int(np.prod(shape, dtype=np.int64))
        parts.append(Part(name, start, stop, tuple(shape)))
        start = stop
    return parts


class FunctionModel:
    """A model of numpy functions: what it computes, and the gradients of a loss, are given.

    `parameters` are arrays of one dtype, float32 or float64, by name. `forward(parameters, x, *args, **kwargs)` returns
    the output, and `gradient(parameters, loss, x, y, *args, **kwargs)` the loss and the gradients by name; those that
    it leaves out are zero. `optimizer` is one of `sheave.optim`, whose schedule is that of its learning rate; without
    one a step computes gradients alone. Parameters are views of one flat array.

    >>> def gradient(parameters, loss, x, y):
    ...     error = x @ parameters["w"] - y
    ...     return 0.5 * np.mean(error**2), {"w": x.T @ error / len(x)}
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> model = sheave.particle.FunctionModel(
    ...     {"w": np.zeros(2)}, lambda parameters, x: x @ parameters["w"], gradient, sheave.optim.SGD(lr=1.0))
    >>> for _ in range(60):
    ...     loss = model.step(None, x, np.array([1.0, -1.0]))
    >>> model.flat().round(3), model.version
    (array([ 1., -1.]), 60)
    """

    def __init__(
        self,
        parameters: Named,
        forward: Callable[..., Any],
        gradient: Callable[..., tuple[Any, Named]] | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        arrays = {name: np.asarray(value) for name, value in parameters.items()}
        dtypes = {value.dtype for value in arrays.values()} or {np.dtype(np.float64)}
        if len(dtypes) > 1 or not dtypes <= {np.dtype(np.float32), np.dtype(np.float64)}:
            raise InvalidArgument(f"parameters of {sorted(map(str, dtypes))}; expected all float32 or all float64")
        self.dtype = dtypes.pop()
        self.parts = laid_out({name: value.shape for name, value in arrays.items()})
        self.version = 0
        self._flat = np.concatenate([value.ravel() for value in arrays.values()] or [np.empty(0, self.dtype)])
        self._gradient = np.zeros_like(self._flat)
        self._named = self._views(self._flat)
        self._forward, self._function = forward, gradient
        self._optimizer = None
        if optimizer is not None:
            is_double = self.dtype == np.float64
            self._optimizer = FlatOptimizer(optimizer._document(), self._flat.size, is_double)
        self._nbytes = 2 * self._flat.nbytes + sum(part.nbytes for part in self._parts().values())
        self._gradient_version = 0
        self._snapshots: dict[bool, tuple[int, int, weakref.ref[Snapshot]]] = {}

    def _views(self, flat: Array) -> dict[str, Array]:
        return {part.name: flat[part.start : part.stop].reshape(part.shape) for part in self.parts}

    @property
    def dimension(self) -> int:
        """The number of parameters."""
        return self._flat.size

    @property
    def nbytes(self) -> int:
        """The bytes of parameters, gradients and moments."""
        return self._nbytes

    def forward(self, x: Any, *args: Any, gradient: bool = True, **kwargs: Any) -> Any:
        """What `forward` returns for the parameters; `gradient` has no meaning here."""
        return self._forward(self._named, x, *args, **kwargs)

    def step(self, loss: Any, x: Any, y: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute gradients, and let the optimizer make its step. Returns the loss."""
        if self._function is None:
            raise InvalidArgument("a step of a model without gradients; expected `gradient` when it was made")
        value, gradients = self._function(self._named, loss, x, y, *args, **kwargs)
        if unknown := set(gradients) - set(self._named):
            raise InvalidArgument(f"gradients of {sorted(unknown)}; expected some of {list(self._named)}")
        self.zero_grad()
        for name, view in self._views(self._gradient).items():
            if name in gradients:
                view[...] = gradients[name]
        if self._optimizer is not None and self._flat.size:
            self._optimizer.step(self._flat, self._gradient)
            self.version += 1
        return value

    def zero_grad(self) -> None:
        """Set the gradients to zero."""
        self._gradient[...] = 0
        self._gradient_version += 1

    def scheduler_step(self) -> None:
        """Do nothing: the schedule of an optimizer of `sheave.optim` counts its steps."""

    def flat(self) -> Array:
        """All parameters: a view that cannot be written to; see `set_flat` and `add_flat`."""
        return _read_only(self._flat)

    def flat_gradient(self) -> Array:
        """The gradients in the order of `flat`, which cannot be written to."""
        return _read_only(self._gradient)

    def set_flat(self, vector: Any) -> None:
        """Replace all parameters by the elements of an array of their number."""
        self._flat[...] = self._fitting(vector)
        self.version += 1

    def add_flat(self, vector: Any, scale: float = 1.0) -> None:
        """Add `scale` times an array of their number to the parameters."""
        self._flat += self.dtype.type(scale) * self._fitting(vector)
        self.version += 1

    def _fitting(self, vector: Any) -> Array:
        array = np.asarray(vector, self.dtype)
        if array.shape != self._flat.shape:
            raise Mismatch(f"a vector of shape {array.shape}; expected ({self._flat.size},)")
        return array

    def snapshot(self, gradients: bool = False) -> Snapshot:
        """The parameters as they are now, and their gradients if they are asked for."""
        kept = self._snapshots.get(gradients)
        known = (self.version, self._gradient_version if gradients else 0)
        if kept is not None and kept[:2] == known and (snapshot := kept[2]()) is not None:
            return snapshot
        gradient = self._gradient.copy() if gradients else None
        snapshot = Snapshot(self.version, self._flat.copy(), gradient, self.parts)
        self._snapshots[gradients] = (*known, weakref.ref(snapshot))
        return snapshot

    def park(self) -> None:
        """Do nothing: it lies in the host's memory."""

    def bring(self) -> None:
        """Do nothing: it lies in the host's memory."""

    def _parts(self) -> dict[str, Array]:
        return {} if self._optimizer is None else {name: part.numpy() for name, part in self._optimizer.parts().items()}

    def state(self) -> dict[str, Any]:
        """All that it needs to go on, as copies."""
        steps = 0 if self._optimizer is None else self._optimizer.steps
        moments = {name: np.array(part) for name, part in self._parts().items()}
        return {
            "kind": "function",
            "version": self.version,
            "parameters": {name: value.copy() for name, value in self._named.items()},
            "gradient": self._gradient.copy(),
            "optimizer": {"steps": steps, "moments": moments},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of a model of the same parameters and the same kind of optimizer; else nothing changes."""
        saved = state.get("parameters", {})
        shapes = {part.name: part.shape for part in self.parts}
        if state.get("kind") != "function" or {name: np.shape(value) for name, value in saved.items()} != shapes:
            raise Mismatch(f"a state of {list(saved)}; expected one of {list(shapes)} of the same shapes")
        if self._optimizer is not None:
            moments = {name: np.ascontiguousarray(value) for name, value in state["optimizer"]["moments"].items()}
            self._optimizer.load(state["optimizer"]["steps"], moments)
        for name, view in self._named.items():
            view[...] = saved[name]
        self._gradient[...] = state["gradient"]
        self._gradient_version += 1
        self.version = max(self.version, int(state["version"])) + 1


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
