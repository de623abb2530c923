"""What torch calls at the end of `import torch`, so that sheave is as near there as the backends that torch brings.

Torch loads the entry points of its group `torch.backends`, this one among them, unless it is forbidden by
`TORCH_DEVICE_BACKEND_AUTOLOAD=0`. It is a package of its own because a module of `sheave` is imported with all of
`sheave`, and most programs that import torch have no process group.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any

__all__ = ["autoload", "can_have_backends"]

_RANKS = ("RANK", "SHEAVE_RANK")
"""What launchers give the processes that are ranks of a job."""


def autoload() -> None:
    """Make the backend known to torch, and load it where a launcher has started this process as a rank.

    Raise nothing, for `import torch` would fail with it: whatever has failed is met again by the first process group,
    which tells it.
    """
    with contextlib.suppress(Exception):
        import torch.distributed as dist

        if not dist.is_available() or not can_have_backends():
            return
        dist.Backend.register_backend("sheave", _create, extended_api=True, devices=["cpu"])
        if any(name in os.environ for name in _RANKS):
            importlib.import_module("sheave.torch")


def can_have_backends() -> bool:
    """Return whether this torch, which has torch.distributed, can have backends that are written in Python."""
    from torch._C._distributed_c10d import Backend

    try:
        type("Probe", (Backend,), {})(0, 1)
    except TypeError:
        return False
    return True


def _create(opts: Any, backend_options: Any = None) -> Any:
    """Load the backend, which from now on makes the groups itself, and make its first one."""
    return importlib.import_module("sheave.torch").create(opts, backend_options)
