"""Updaters that are written in Python, as sheave calls them.

sheave shows an updater flat memory. In a store of this process the arrays get their shapes again, because the store of
the face knows them. On servers they stay flat, and a large array comes in slices, as it does in MXNet; each slice has a
state of its own, and its optimizer counts for itself.
"""

import copy
from collections.abc import Callable
from typing import Any

from sheave import _core
from sheave.compat.mxnet.context import cpu
from sheave.compat.mxnet.kvstore.keys import Key
from sheave.compat.mxnet.ndarray.array import Array, NDArray
from sheave.compat.mxnet.ndarray.sparse import RowSparseNDArray
from sheave.compat.mxnet.optimizer.optimizer import Optimizer
from sheave.compat.mxnet.optimizer.updater import Updater

__all__ = ["LocalUpdater", "ServerOptimizer", "ServerUpdater"]


def shown(key: Key) -> Any:
    """A key as MXNet shows it to an updater: text as bytes."""
    return key.encode() if isinstance(key, str) else key


class LocalUpdater:
    """Runs `updater(key, received, stored)` in the thread that pushes."""

    def __init__(self, updater: Callable[[Any, NDArray, NDArray], object], shapes: dict[Key, tuple[int, ...]]) -> None:
        self._updater = updater
        self._shapes = shapes
        #: Ids of the rows that are being pushed to these keys; every other push is dense.
        self.ids: dict[Key, Array] = {}

    def __call__(self, key: Key, received: Any, stored: Any) -> None:
        shape, ids = self._shapes[key], self.ids.get(key)
        # A copy, because MXNet lets updaters write there, and it may be the caller's gradient.
        gradient = received.numpy().reshape(shape)
        whole = NDArray(gradient.copy(), cpu()) if ids is None else RowSparseNDArray(gradient[ids], ids, shape, cpu())
        self._updater(shown(key), whole, NDArray(stored.numpy().reshape(shape), cpu()))


class ServerUpdater:
    """Runs `updater(key, received, stored)` on a server, where it is unpickled."""

    def __init__(self, updater: Callable[[Any, NDArray, NDArray], object]) -> None:
        self._updater = updater

    def __call__(self, key: Key, received: Any, stored: Any) -> None:
        self._updater(shown(key), NDArray(received.numpy().copy(), cpu()), NDArray(stored.numpy(), cpu()))


class ServerOptimizer:
    """Runs an optimizer that only Python can run on a server."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._updaters: dict[tuple[Key, int | None, int], Updater] = {}

    def __call__(self, key: Key, received: Any, stored: Any) -> None:
        # Not by its place in memory: a slice moves while an answer still holds what it was.
        slice_of_key = key, _core._slice_start(), stored.nbytes
        if slice_of_key not in self._updaters:
            self._updaters[slice_of_key] = Updater(copy.deepcopy(self._optimizer))
        self._updaters[slice_of_key](key, NDArray(received.numpy().copy(), cpu()), NDArray(stored.numpy(), cpu()))

    def __getstate__(self) -> dict[str, Any]:
        return {"_optimizer": self._optimizer, "_updaters": {}}
