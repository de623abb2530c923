"""How the processes of a world meet: where the program says, as which it says, or as whatever has launched it says."""

import os
import time
from typing import Any
from urllib.parse import urlsplit

from sheave import AlreadyExists, Mesh

from sheave.compat.machin.parallel.distributed import current
from sheave.compat.runtime_errors import invalid, raising

#: Where a world meets that says nothing.
DIST_INIT_METHOD = "tcp://localhost:9100"
RPC_INIT_METHOD = "tcp://localhost:9101"

#: How long a process waits before it tries again to join, in seconds.
PAUSE_S = 0.02

#: By which of these in the environment sheave knows that a launcher has started this process, and which one.
LAUNCHED = (
    "SHEAVE_ROLE",
    "SHEAVE_RANK",
    "SHEAVE_WORLD_SIZE",
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "FLUX_TASK_RANK",
    "SLURM_PROCID",
    "LWS_WORKER_INDEX",
)


def join(name: str, rank: int, world_size: int, init_method: str, timeout: float) -> Mesh:
    """Waits until all processes of a world have come, and returns the mesh of them: plain ranks.

    A rank or size below zero is the launcher's, which says where to meet too unless the program does.
    """
    root = _root(init_method)
    if world_size > 0 and not -1 <= rank < world_size:
        raise invalid("World", f"rank {rank} is outside a world of {world_size}", "ranks are counted from 0")
    if rank >= 0 and world_size > 0:
        with raising():
            return _mesh(timeout, rank=rank, size=world_size, role="rank", root=root, name=name)
    if not any(os.environ.get(variable, "").strip() for variable in LAUNCHED):
        what = f"rank is {rank} and world_size {world_size}, and no launcher has set them"
        raise invalid("World", what, "give both, or start the processes with `sheave launch -n` or torchrun")
    # A method that was left as it is says nothing.
    said = root if init_method not in (DIST_INIT_METHOD, RPC_INIT_METHOD) else None
    with raising():
        mesh = _mesh(timeout, root=said, name=name)
    if mesh.world.size != mesh.size:
        mesh.close()
        raise invalid("World", "the launcher has started servers or a scheduler beside", "start the processes alone")
    for which, given, found in (("rank", rank, mesh.world.rank), ("world_size", world_size, mesh.world.size)):
        if given >= 0 and given != found:
            mesh.close()
            raise invalid("World", f"{which} is {given}, and {found} by the launcher", "give both or neither of them")
    return mesh


def _mesh(timeout: float, **settings: Any) -> Mesh:
    """Joins. In the place of a world that this process has left others may not have left theirs: until they have, the
    one who listens there says that the job has started."""
    until = time.monotonic() + timeout
    while True:
        try:
            return Mesh(join_timeout=max(until - time.monotonic(), PAUSE_S), **settings)
        except AlreadyExists:
            if not current.has_left_one() or time.monotonic() + PAUSE_S > until:
                raise
            time.sleep(PAUSE_S)


def _root(init_method: str) -> str | None:
    """The host and port of a method; None if the environment is to say it."""
    said = urlsplit(init_method)
    if said.scheme == "env":
        return None
    try:
        port = said.port
    except ValueError:
        port = None
    if said.scheme != "tcp" or not said.hostname or port is None:
        raise invalid("World", f"the init method is {init_method!r}", "give tcp://host:port or env://")
    return said.netloc
