"""``ShardLoader``: parameters that worker 0 reads from files and cuts, of which each worker gets its shard."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sheave import session
from sheave.compat.tvm.registry import get_global_func, register_func
from sheave.compat.tvm.runtime.disco.moves import _broadcast_from_worker0, _scatter_from_worker0
from sheave.compat.tvm.runtime.values import Tensor, empty

__all__ = ["ShardLoader"]

_SHARD = re.compile(r"(?P<name>.*)_shard-\d+-of-\d+")


@dataclass(frozen=True)
class _Parameter:
    """Where a parameter lies."""

    path: str
    offset: int
    bytes: int
    shape: tuple[int, ...]
    dtype: str
    format: str

    def read(self) -> Tensor:
        """Returns it as a new tensor."""
        tensor = empty(self.shape, self.dtype)
        stored = np.fromfile(self.path, np.uint8, self.bytes, offset=self.offset)
        if stored.nbytes != self.bytes:
            raise ValueError(f"{self.path} ends at byte {self.offset + stored.nbytes} of {self.offset + self.bytes}")
        if self.format == "f32-to-bf16" and self.dtype == "float32":
            stored = (stored.view(np.uint16).astype(np.uint32) << 16).view(np.uint8)
        if stored.nbytes != tensor._array.nbytes:
            has = f"{tensor._array.nbytes}, for {self.dtype} of shape {self.shape}"
            raise ValueError(f"{stored.nbytes} bytes in {self.path}; expected {has}")
        tensor._array.reshape(-1).view(np.uint8)[:] = stored
        return tensor


class ShardLoader:
    """Parameters of files that a ``tensor-cache.json`` describes, and how they are cut.

    `shard_info` has for each parameter that is cut functions by their names, each with the shape and dtype of what it
    makes and more numbers: it is called with what the one before has made, these numbers, and a tensor to fill. The
    first extent of the last tensor is the number of workers.
    """

    def __init__(self, path_to_metadata: str, metadata: str, shard_info: str, module: Any = None):
        folder = os.path.dirname(os.path.abspath(path_to_metadata))
        self._module = module
        self._cuts: dict[str, list[list[Any]]] = json.loads(shard_info) if shard_info else {}
        self._parameters: dict[str, _Parameter] = {}
        for file in json.loads(metadata)["records"]:
            for record in file["records"]:
                self._parameters[record["name"]] = _Parameter(
                    os.path.join(folder, file["dataPath"]),
                    record["byteOffset"],
                    record["nbytes"],
                    tuple(record["shape"]),
                    record["dtype"],
                    record.get("format", "raw"),
                )
        unknown = sorted(set(self._cuts) - {_whole(name) for name in self._parameters})
        if unknown:
            raise ValueError(f"parameters that are to be cut and that no file has: {', '.join(unknown[:8])}")
        self._names = list(self._parameters)
        #: Those that were cut before, by the names that they have together.
        self._wholes = list(dict.fromkeys(map(_whole, self._names)))

    def __len__(self) -> int:
        return len(self._names)

    def load(self, index: int) -> Tensor:
        """Returns this worker's part of a parameter, or all of one that is not cut. All workers call it."""
        name = _at(self._names, index)
        parameter, cuts, worker = self._parameters[name], self._cuts.get(name, []), session.worker()
        is_first = worker.id == 0
        whole = parameter.read() if is_first else None
        if not cuts:
            target = empty(parameter.shape, parameter.dtype)
            _broadcast_from_worker0(whole, False, target)
            return target
        shape, dtype = cuts[-1][1]
        if not shape or shape[0] != worker.workers:
            raise ValueError(f"{name} is cut into a tensor of shape {shape}; expected {worker.workers} shards")
        if is_first:
            for function, made, *numbers in cuts:
                shard = empty(made[0], made[1])
                self._function(function)(whole, *numbers, shard)
                whole = shard
        target = empty(shape[1:], dtype)
        _scatter_from_worker0(whole, False, target)
        return target

    def load_presharded(self, index: int) -> Tensor:
        """Returns this worker's part of a parameter that was cut before, or all of one that was not."""
        name, worker = _at(self._wholes, index), session.worker()
        own = f"{name}_shard-{worker.id + 1}-of-{worker.workers}"
        parameter = self._parameters.get(own) or self._parameters.get(name)
        if parameter is None:
            raise ValueError(f"no file has {own}, nor {name}")
        return parameter.read()

    def load_on_first(self, index: int) -> Tensor | None:
        """Returns all of a parameter on worker 0, and None on the others."""
        parameter = self._parameters[_at(self._names, index)]
        return parameter.read() if session.worker().id == 0 else None

    def _function(self, name: str) -> Any:
        found = get_global_func(name, allow_missing=True)
        return self._module[name] if found is None and self._module is not None else found or get_global_func(name)


def _whole(name: str) -> str:
    cut = _SHARD.fullmatch(name)
    return name if cut is None else cut["name"]


def _at(names: Sequence[str], index: int) -> str:
    if not 0 <= index < len(names):
        raise IndexError(f"parameter {index} of {len(names)}; they are counted from 0")
    return names[index]


register_func("runtime.disco.ShardLoader", ShardLoader, override=True)


@register_func("runtime.disco.ShardLoaderLoad", override=True)
def _load(loader: ShardLoader, weight_index: Sequence[int]) -> Tensor:
    return loader.load(weight_index[0])


@register_func("runtime.disco.ShardLoaderLoadPresharded", override=True)
def _load_presharded(loader: ShardLoader, weight_index: Sequence[int]) -> Tensor:
    return loader.load_presharded(weight_index[0])


@register_func("runtime.disco.ShardLoaderLoadAll", override=True)
def _load_all(loader: ShardLoader) -> list[Tensor]:
    return [loader.load(index) for index in range(len(loader))]


@register_func("runtime.disco.ShardLoaderLoadAllPresharded", override=True)
def _load_all_presharded(loader: ShardLoader) -> list[Tensor]:
    return [loader.load_presharded(index) for index in range(len(loader._wholes))]


@register_func("runtime.disco.ShardLoaderLoadParamOnWorker0", override=True)
def _load_param_on_worker_0(loader: ShardLoader, param_index: int) -> Tensor | None:
    return loader.load_on_first(param_index)
