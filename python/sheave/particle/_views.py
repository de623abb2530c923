"""What a model was at one moment."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sheave._core import NotFound

__all__ = ["Part", "Snapshot"]


@dataclass(frozen=True)
class Part:
    """Where a named array lies in a flat one: its elements from `start` to before `stop`, row by row."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


class Snapshot:
    """The parameters of a model at one version, which never change.

    `flat` has all of them, one after the other, and cannot be written to; `gradient` has their gradients in the same
    order, or is None where they were not asked for. `named` returns them one by one, and `module`, for models of torch,
    as a module of their own.

    >>> model = sheave.particle.FunctionModel({"w": np.ones(2), "b": np.zeros(1)}, lambda p, x: x @ p["w"] + p["b"])
    >>> before = model.snapshot()
    >>> model.add_flat(np.ones(3))
    >>> before.version, before.named()["w"], model.snapshot().named()["w"]
    (0, array([1., 1.]), array([2., 2.]))
    """

    __slots__ = {
        "__weakref__": "",
        "_copy": "",
        "buffers": "What belongs to the model and is no parameter, by name, such as statistics of normalisations.",
        "flat": "All parameters, one after the other: an array that cannot be written to.",
        "gradient": "Their gradients in the same order, or None.",
        "parts": "Where each of them lies in `flat`.",
        "version": "How often the model had changed.",
    }

    def __init__(
        self,
        version: int,
        flat: np.ndarray[Any, Any],
        gradient: np.ndarray[Any, Any] | None,
        parts: Sequence[Part],
        buffers: Mapping[str, Any] | None = None,
        copy: "Callable[[Snapshot], Any] | None" = None,
    ) -> None:
        flat.flags.writeable = False
        if gradient is not None:
            gradient.flags.writeable = False
        self.version = version
        self.flat = flat
        self.gradient = gradient
        self.parts = parts
        self.buffers: Mapping[str, Any] = {} if buffers is None else buffers
        self._copy = copy

    def named(self, names: Sequence[str] | None = None, *, gradients: bool = False) -> dict[str, np.ndarray[Any, Any]]:
        """The parameters by name, or those of these `names`, or their gradients: views that cannot be written to."""
        source = self.gradient if gradients else self.flat
        if source is None:
            raise NotFound("the snapshot has no gradients; hint: get it with gradients=True")
        wanted = None if names is None else set(names)
        if wanted is not None and (unknown := wanted - {part.name for part in self.parts}):
            raise NotFound(f"no parameters {sorted(unknown)}; the model has {[part.name for part in self.parts]}")
        parts = [part for part in self.parts if wanted is None or part.name in wanted]
        return {part.name: source[part.start : part.stop].reshape(part.shape) for part in parts}

    def module(self) -> Any:
        """A module of torch with these parameters and buffers, which is the caller's own: another one at each call.

        Raises NotFound for a model that is not of torch, whose process is another one, or that is gone.
        """
        if self._copy is None:
            raise NotFound("the snapshot makes no module; hint: read named(), and load that into a module")
        return self._copy(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Snapshot, (self.version, np.array(self.flat), self.gradient, tuple(self.parts), dict(self.buffers))

    def __repr__(self) -> str:
        return f"<sheave.particle.Snapshot of version {self.version}, {self.flat.size} parameters>"
