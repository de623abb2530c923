"""Optimizers as functions of a key, a gradient and a weight."""

import pickle
from typing import Any

import numpy as np

from sheave.compat.mxnet.base import py_str
from sheave.compat.mxnet.ndarray.array import NDArray
from sheave.compat.mxnet.optimizer.optimizer import Optimizer

__all__ = ["Updater", "get_updater"]


class Updater:
    """An optimizer with the states of the weights it has seen, by key. ``updater(key, gradient, weight)`` moves the
    weight in place; lists of them are taken one by one."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.states: dict[Any, Any] = {}
        self.aggregate_updates = False

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        if isinstance(index, list | tuple):
            for one in zip(index, grad, weight, strict=True):
                self(*one)
            return
        index = py_str(index) if isinstance(index, bytes) else index
        if index not in self.states:
            self.states[index] = self.optimizer.create_state_multi_precision(index, weight)
        self.optimizer.update_multi_precision(index, weight, grad, self.states[index])

    def get_states(self, dump_optimizer: bool = False) -> bytes:
        """The states as a pickle, together with the optimizer if that is asked for."""
        states = {key: _as_numpy(state) for key, state in self.states.items()}
        return pickle.dumps((states, self.optimizer) if dump_optimizer else states)

    def set_states(self, states: bytes) -> None:
        """Becomes what `get_states` gave. Unpickles, so it must come from nobody else."""
        found = pickle.loads(states)
        if isinstance(found, tuple):
            found, self.optimizer = found
        self.states = {key: _as_arrays(state) for key, state in found.items()}


def _as_numpy(state: Any) -> Any:
    if isinstance(state, tuple | list):
        return type(state)(_as_numpy(part) for part in state)
    return state.asnumpy() if isinstance(state, NDArray) else state


def _as_arrays(state: Any) -> Any:
    if isinstance(state, tuple | list):
        return type(state)(_as_arrays(part) for part in state)
    return NDArray(state) if isinstance(state, np.ndarray) else state


def get_updater(optimizer: Optimizer) -> Updater:
    """The optimizer as a function.

    >>> import sheave.compat.mxnet as mx
    >>> updater = mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=0.5))
    >>> weight = mx.nd.ones(2)
    >>> updater("weight", mx.nd.ones(2), weight)
    >>> weight.asnumpy().tolist()
    [0.5, 0.5]
    """
    return Updater(optimizer)
