"""Functions that workers have under names of Disco's own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from sheave import session, session_node
from sheave.compat.tvm.registry import register_func
from sheave.compat.tvm.runtime.device import Device, cpu
from sheave.compat.tvm.runtime.module import Module, load_module
from sheave.compat.tvm.runtime.values import Shape, Tensor

__all__: list[str] = []


@register_func("runtime.disco.worker_id", override=True)
def _worker_id() -> Shape:
    return Shape((session.worker().id,))


@register_func("runtime.disco.worker_rank", override=True)
def _worker_rank() -> int:
    return session.worker().id


@register_func("runtime.disco.world_size", override=True)
def _world_size() -> int:
    return session.worker().workers


@register_func("runtime.disco.device", override=True)
def _device() -> Device:
    session.worker()
    return cpu()


@register_func("runtime.disco.bind_worker_to_cpu_core", override=True)
def _bind_worker_to_cpu_core(cpu_ids: Sequence[int]) -> None:
    worker = session.worker()
    if worker.id >= len(cpu_ids):
        raise ValueError(f"{len(cpu_ids)} cores; expected one for each of {worker.workers} workers")
    # The calling thread alone.
    os.sched_setaffinity(0, {cpu_ids[worker.id]})


@register_func("runtime.disco._import_python_module", override=True)
def _import_python_module(name: str) -> None:
    __import__(name)


@register_func("runtime.disco.load_vm_module", override=True)
def _load_vm_module(path: str, device: Device | None = None, content: Any = None) -> Module:
    uploaded = None if content is None else np.ascontiguousarray(content).tobytes()
    return load_module(path, cpu() if device is None else device, uploaded)


@register_func("runtime.disco._debug_copy_from", override=True)
def _debug_copy_from(target: Any, worker_id: int, source: Tensor) -> bool:
    """Copies into a tensor; False where there is none."""
    if session.worker().id != worker_id:
        return True
    if not isinstance(target, Tensor):
        return False
    into, array = target._array, np.ascontiguousarray(source)
    if into.nbytes != array.nbytes:
        raise ValueError(f"an array of {array.nbytes} bytes; expected {into.nbytes}, as the tensor has")
    into.reshape(-1).view(np.uint8)[:] = array.reshape(-1).view(np.uint8)
    return True


@register_func("runtime.disco.RemoteSocketSession", override=True)
def _remote_socket_session(server_host: str, server_port: int, num_workers: int) -> None:
    """Is a node of a session until that ends."""
    session_node.work_on_node(server_host, server_port, num_workers)


@register_func("runtime.disco.WorkerProcess", override=True)
def _worker_process(worker_id: int, num_workers: int, num_groups: int, read_fd: int, write_fd: int) -> None:
    """Is a worker until its session ends. Which one it is the session has said; the pipes are not used."""
    session.work()
