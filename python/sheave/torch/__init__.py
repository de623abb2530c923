"""A backend of torch.distributed over sheave, for tensors on the CPU.

    torch.distributed.init_process_group("sheave")

Nothing needs to be imported: torch finds the backend by its entry points. `import torch` registers it, and loads it in
a process that a launcher has started as a rank (`RANK` or `SHEAVE_RANK` is set); in others, and where
`TORCH_DEVICE_BACKEND_AUTOLOAD=0` forbids that, the first group does. Tensors on GPUs are another backend's, as in
`init_process_group("cpu:sheave,cuda:nccl")`. Groups made without a name take gloo on the CPU; `make_default` changes
that.

It needs torch 2.15 or later, the first release whose backends can be written in Python; with an older one `register`
raises Unsupported. Limits: torch hands on `wait` and `get_future` of a collective's work alone, so `is_completed` of
such a work is always False, and `get_future().done()` is to be asked; a group can have no second backend that torch
does not know itself; in mixed groups a receive without a source and `split_group` are not served. Torch's flight
recorder takes a traceback for each operation of a backend that is not its own, which costs more than a small
operation itself: in one reading an all_reduce of 8 bytes by a single rank took 15 µs of processor time with the
recorder, and 10 µs with `TORCH_FR_BUFFER_SIZE=0`, which ends that. `sheave bench torch` measures both, beside gloo.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import _sheave_torch
import torch
import torch.distributed as dist

import sheave

if TYPE_CHECKING:
    from sheave.torch.backend import SheaveBackend
    from sheave.torch.group import SheaveGroup

__all__ = ["FLOOR", "create", "empty", "make_default", "register"]

FLOOR = "2.15"
"""The oldest torch that this works with."""


def register() -> None:
    """Make the backend known to torch. Idempotent; importing this module does it.

    Raise Unsupported where torch is older than FLOOR, or was built without torch.distributed.
    """
    if not dist.is_available():
        raise sheave.Unsupported("this torch was built without torch.distributed; hint: install another build of it")
    if not _sheave_torch.can_have_backends():
        raise sheave.Unsupported(
            f"torch {torch.__version__} has no backends written in Python; hint: install torch {FLOOR} or later"
        )
    # What a group needs is here before the first one is made, for a program that imports this beforehand.
    importlib.import_module("sheave.torch.group")
    importlib.import_module("sheave.torch.meeting")
    dist.Backend.register_backend("sheave", create, extended_api=True, devices=["cpu"])


def make_default() -> None:
    """Let groups on the CPU that name no backend take sheave, as those of `init_device_mesh("cpu", …)` do.

    >>> import torch.distributed
    >>> before = torch.distributed.Backend.default_device_backend_map["cpu"]
    >>> sheave.torch.make_default()
    >>> torch.distributed.Backend.default_device_backend_map["cpu"]
    'sheave'
    >>> torch.distributed.Backend.default_device_backend_map["cpu"] = before
    """
    dist.Backend.default_device_backend_map["cpu"] = "sheave"


def empty(shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor in memory that peers on this host reach without a copy. Its elements are whatever lay there.

    It belongs to the mesh of the process group. Raise NotFound before `init_process_group("sheave")`.
    """
    from sheave.torch import meeting
    from sheave.torch.errors import torch_errors

    if meeting._world is None or meeting._world.mesh.closed:
        raise sheave.NotFound("there is no process group of sheave; hint: call init_process_group(\"sheave\") first")
    with torch_errors():
        made = meeting._world.mesh.empty(tuple(shape) if not isinstance(shape, int) else (shape,), dtype)
    tensor: torch.Tensor = made.torch()
    return tensor


def create(opts: Any, backend_options: Any = None) -> SheaveGroup | SheaveBackend:
    """Make a group for torch, which calls this: the whole group where it is sheave's alone, else the backend in it.

    `opts` is torch's description of the group; `backend_options` are the caller's `pg_options`, of which none are
    needed.
    """
    from sheave.torch import meeting
    from sheave.torch.backend import SheaveBackend
    from sheave.torch.errors import torch_errors
    from sheave.torch.group import SheaveGroup

    is_alone = _is_alone(opts)
    ranks = list(opts.global_ranks_in_group)
    with torch_errors():
        joined = meeting.join(opts.store, opts.group_rank, opts.group_size, ranks, opts.timeout)
        ranks = ranks or list(range(opts.group_size))
        backend = SheaveBackend(joined, ranks, opts.group_rank, opts.group_id, opts.timeout, is_alone)
        if joined.is_new:
            joined.is_new = False
            # A rank that destroys its group at once would leave the mesh before the others have made theirs.
            backend.meet()
            if opts.group_rank == 0:
                meeting.forget(opts.store, opts.group_size)
    return SheaveGroup(opts.store, backend) if is_alone else backend


def _is_alone(opts: Any) -> bool:
    """Return whether a group has no backend but this one. Torch can hold one backend of those that it does not know."""
    caller: FrameType | None = sys._getframe(2)
    while caller is not None and caller.f_globals.get("__name__") == _sheave_torch.__name__:
        caller = caller.f_back
    described = None if caller is None else caller.f_locals.get("backend_config")
    if described is None:
        return bool(opts.process_group.name() == "custom")
    devices = dict(described.get_device_backend_map())
    custom = dist.ProcessGroup.BackendType.CUSTOM
    others = {
        f"{device}:{name}"
        for device, name in devices.items()
        if name != "sheave" and dist.Backend.backend_type_map.get(name, custom) == custom
    }
    if others:
        raise sheave.InvalidArgument(
            f"a group of cpu:sheave and {', '.join(sorted(others))}: torch can tell apart only one backend that is not "
            "its own; hint: make two groups"
        )
    return all(name == "sheave" for name in devices.values())


register()
