"""Functions by which workers move tensors among themselves, under names of Disco's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sheave import session
from sheave.compat.tvm.registry import register_func
from sheave.compat.tvm.runtime.device import Device
from sheave.compat.tvm.runtime.disco.collectives import BACKENDS, OPERATORS
from sheave.compat.tvm.runtime.values import Tensor, from_sheave

__all__: list[str] = []


def _call(name: str, *args: Any) -> Any:
    """Calls a function that every worker has."""
    found = session.registered_function(f"sheave.{name}")
    assert found is not None
    return found(*args)


def _scope(in_group: bool) -> str:
    return "group" if in_group else "world"


@register_func("runtime.disco.compiled_ccl", override=True)
def _compiled_ccl() -> str:
    return BACKENDS[0]


@register_func("runtime.disco.empty", override=True)
def _empty(
    shape: Sequence[int], dtype: str, device: Device | None = None, worker0_only: bool = False, in_group: bool = True
) -> Any:
    if device is not None and not device.exist:
        raise ValueError(f"a tensor on {device}; expected cpu, for sheave's workers have tensors of hosts")
    placement = ("leaders" if in_group else "first") if worker0_only else "all"
    return from_sheave(_call("empty", list(shape), dtype, placement))


@register_func("runtime.disco.allreduce", override=True)
def _allreduce(send: Tensor, reduce_kind: Sequence[int], in_group: bool, recv: Tensor) -> None:
    kind = reduce_kind[0]
    if not 0 <= kind < len(OPERATORS):
        raise ValueError(f"reduction {kind}; expected 0 to {len(OPERATORS) - 1}, for {', '.join(OPERATORS)}")
    _call("all_reduce", _scope(in_group), OPERATORS[kind], send, recv)


@register_func("runtime.disco.allgather", override=True)
def _allgather(send: Tensor, in_group: bool, recv: Tensor) -> None:
    _call("all_gather", _scope(in_group), send, recv)


@register_func("runtime.disco.broadcast_from_worker0", override=True)
def _broadcast_from_worker0(send: Tensor | None, in_group: bool, recv: Tensor) -> None:
    _call("broadcast_from_first", _scope(in_group), send, recv)


@register_func("runtime.disco.scatter_from_worker0", override=True)
def _scatter_from_worker0(send: Tensor | None, in_group: bool, recv: Tensor) -> None:
    _call("scatter_from_first", _scope(in_group), send, recv)


@register_func("runtime.disco.gather_to_worker0", override=True)
def _gather_to_worker0(send: Tensor, in_group: bool, recv: Tensor | None) -> None:
    _call("gather_to_first", _scope(in_group), send, recv)


@register_func("runtime.disco.recv_from_worker0", override=True)
def _recv_from_worker0(buffer: Tensor) -> None:
    _call("recv_from_first", buffer)


@register_func("runtime.disco.send_to_next_group", override=True)
def _send_to_next_group(buffer: Tensor) -> None:
    _call("send_to_next_group", buffer)


@register_func("runtime.disco.recv_from_prev_group", override=True)
def _recv_from_prev_group(buffer: Tensor) -> None:
    _call("recv_from_previous_group", buffer)


@register_func("runtime.disco.send_to_worker", override=True)
def _send_to_worker(buffer: Tensor, receiver_id: int) -> None:
    _call("send_to_worker", buffer, receiver_id)


@register_func("runtime.disco.recv_from_worker", override=True)
def _recv_from_worker(buffer: Tensor, sender_id: int) -> None:
    _call("recv_from_worker", buffer, sender_id)


def _two_groups_of_two() -> session.SessionWorker:
    worker = session.worker()
    if (worker.workers, worker.groups) != (4, 2):
        raise ValueError(f"{worker.workers} workers in {worker.groups} groups; expected 4 in 2")
    return worker


def _test_next_group(buffer: Tensor) -> None:
    """Sends from group 0 to group 1, as TVM's tests have it."""
    if _two_groups_of_two().group == 0:
        _send_to_next_group(buffer)
    else:
        _recv_from_prev_group(buffer)


def _test_worker2_sends_to_worker0(buffer: Tensor) -> None:
    """Sends from worker 2 to worker 0, as TVM's tests have it."""
    worker = _two_groups_of_two()
    if worker.id == 2:
        _send_to_worker(buffer, 0)
    elif worker.id == 0:
        _recv_from_worker(buffer, 2)


for _backend in BACKENDS:
    _prefix = f"runtime.disco.{_backend}"
    register_func(f"{_prefix}.test_send_to_next_group_recv_from_prev_group", _test_next_group, override=True)
    register_func(f"{_prefix}.test_worker2_sends_to_worker0", _test_worker2_sends_to_worker0, override=True)
