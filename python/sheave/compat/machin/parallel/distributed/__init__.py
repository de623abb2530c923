"""Worlds of processes, and their groups for collective operations.

Every process makes a `World` with its name, its rank and how many there are, and every process of it creates each
group, in the same order::

    from machin.parallel.distributed import World

    world = World(name="0", rank=0, world_size=3)
    group = world.create_collective_group(ranks=[0, 1, 2])
    group.all_reduce(tensor)
    world.stop()

What differs from machin, on purpose:

- Tensors are torch's on the CPU, or numpy's arrays; torch is imported by no module here. Those that are received into
  are contiguous; those that are sent need not be. A tensor of autograd is used without its graph.
- `World` is a class, so that `isinstance` means something. It can be made again after `stop`, which waits for all for
  `dist_timeout` seconds, says who is missing, and may be called again then.
- One rendezvous serves all: at `dist_init_method`, or at `rpc_init_method` with ``init_dist=False``. Methods are
  ``tcp://host:port`` and ``env://``. Processes authenticate each other with sheave's secret, and listen on loopback
  unless ``SHEAVE_BIND`` says more.
- `rank` and `world_size` may be omitted where `sheave launch`, torchrun, mpirun or Slurm has started the processes; the
  launcher says where to meet then, unless the program does.
- A process that dies fails whatever needs it within a second, in all others, with an error that names it; each wait has
  a deadline, whose error names who is missing. Every error is a RuntimeError, and of sheave's class. A failed operation
  breaks its group for good: make another one.
- Creating a group compares the ranks that all give, and refuses with both sides where they differ.
- `get_collective_group` finds a group that this process has made. `get_members` is sorted by name.
- Backends are names without a meaning. `ReduceOp.AVG` works.
- Tensors of a list may differ in shape, where their numbers of elements are right; in `all_gather` those may differ
  too, if all members give the same. What does not fit is refused before it moves, by its index.
- The `*_multigpu` operations take lists of tensors on the CPU, any number of them in each: reduced in the order of the
  list, moved once, and copied. In `all_gather_multigpu` tensor j of the member at place k goes to index
  ``k * len(input_tensor_list) + j``.
- Handles of operations that nobody waits for go on all the same; results are there when `wait` has returned or
  `is_completed` is true. In a process that is no member operations do nothing, and their handles' `wait` returns -1.
- A group of rpc waits for its members for `rpc_timeout` seconds and says who is missing; its name is free again when
  it was destroyed. What a member has paired and registered goes with it, and nothing else goes with any other process:
  there is no rank 0 that must live. Handles that have travelled look up and call, and refuse what is for members.
- Functions are sent by name where they can be imported and by value otherwise, lambdas too. What one raises is raised
  at the caller as what it is, with the traceback of there as its cause; `RpcException` is raised by nobody.
- Targets are names, ranks, or whatever has a `name`. A slow service delays no other.
"""

from sheave.compat.machin.parallel.distributed.collective_group import CollectiveGroup
from sheave.compat.machin.parallel.distributed.current import (
    get_cur_name,
    get_cur_rank,
    get_world,
    is_world_initialized,
)
from sheave.compat.machin.parallel.distributed.debug import debug_with_process
from sheave.compat.machin.parallel.distributed.rpc_exception import RpcException
from sheave.compat.machin.parallel.distributed.rpc_group import RpcGroup
from sheave.compat.machin.parallel.distributed.rref import RRef
from sheave.compat.machin.parallel.distributed.world import World

__all__ = [
    "CollectiveGroup",
    "RRef",
    "RpcException",
    "RpcGroup",
    "World",
    "debug_with_process",
    "get_cur_name",
    "get_cur_rank",
    "get_world",
    "is_world_initialized",
]
