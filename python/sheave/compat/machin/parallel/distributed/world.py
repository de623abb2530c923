"""The world: all processes of a job, as one of them."""

import weakref
from collections.abc import Sequence
from typing import Any

from sheave import DeadlineExceeded

from sheave.compat.machin.parallel.distributed import current, rendezvous
from sheave.compat.machin.parallel.distributed.agreement import Agreement
from sheave.compat.machin.parallel.distributed.collective_group import CollectiveGroup
from sheave.compat.machin.parallel.distributed.rpc_group import RpcGroup
from sheave.compat.runtime_errors import invalid, raising

#: Backends of torch.distributed. All mean the same here.
BACKENDS = (None, "gloo", "mpi", "nccl")


class World:
    """All processes of a job, as one of them. A process has one at a time.

    Blocks until all have joined; the error of one that waits in vain names those who are missing. Rank and size are the
    launcher's where they are omitted. Timeouts are in seconds.
    """

    def __init__(
        self,
        name: str,
        rank: int = -1,
        world_size: int = -1,
        init_dist: bool = True,
        init_rpc: bool = True,
        dist_backend: str = "gloo",
        dist_init_method: str = rendezvous.DIST_INIT_METHOD,
        rpc_init_method: str = rendezvous.RPC_INIT_METHOD,
        dist_timeout: float = 60,
        rpc_timeout: float = 60,
    ) -> None:
        _check_backend(dist_backend)
        current.take()
        try:
            # One rendezvous does for both.
            method = dist_init_method if init_dist else rpc_init_method
            self.mesh = rendezvous.join(name, rank, world_size, method, dist_timeout if init_dist else rpc_timeout)
        except BaseException:
            current.free()
            raise
        members = self.mesh.world.members
        self.name = self.mesh.name
        self.rank = self.mesh.world.rank
        self.world_size = len(members)
        self.rank_name_map = {rank: member.name for rank, member in enumerate(members)}
        self.lut_manager = self.rank_name_map[0]
        self.dist_timeout = dist_timeout
        self.rpc_timeout = rpc_timeout
        self.started = True
        #: Groups for remote procedure calls, by name.
        self.groups: dict[str, RpcGroup] = {}
        self._has_rpc = init_rpc
        self._agreement = Agreement(self.mesh) if init_dist else None
        self._collective_groups: weakref.WeakValueDictionary[tuple[int, ...], CollectiveGroup]
        self._collective_groups = weakref.WeakValueDictionary()
        current.fill(self)

    def get_ranks(self) -> list[int]:
        """The ranks of all processes, in ascending order."""
        return sorted(self.rank_name_map)

    def get_members(self) -> list[str]:
        """The names of all processes, in ascending order."""
        return sorted(self.rank_name_map.values())

    def create_collective_group(
        self, ranks: Sequence[int], timeout: float = 60, backend: str | None = None
    ) -> CollectiveGroup:
        """The group of some processes for collective operations, in the order of their ranks.

        All processes of the world call it, members or not, in the same order, and it waits for all of them. `timeout`
        is also that of the group's operations.
        """
        _check_backend(backend)
        if not self.started or self._agreement is None:
            what = "has stopped" if not self.started else "was made with init_dist=False"
            raise RuntimeError(f"create_collective_group: the world {what}")
        wanted = tuple(sorted(ranks))
        if not wanted or len(set(wanted)) < len(wanted) or not 0 <= wanted[0] <= wanted[-1] < self.world_size:
            hint = f"give distinct ranks from 0 to {self.world_size - 1}"
            raise invalid("create_collective_group", f"ranks are {list(ranks)}", hint)
        with raising():
            number = self._agreement.agree("create_collective_group", wanted, timeout)
            group = self.mesh.group(wanted, f"machin/{number}") if self.rank in wanted else None
        made = CollectiveGroup(group, wanted, timeout)
        self._collective_groups[wanted] = made
        return made

    def get_collective_group(self, ranks: Sequence[int]) -> CollectiveGroup | None:
        """The group of these ranks that this process has made last, if it is still there."""
        group = self._collective_groups.get(tuple(sorted(ranks)))
        return None if group is None or group.destroyed else group

    def create_rpc_group(self, group_name: str, members: Sequence[str]) -> RpcGroup:
        """The group of this name with the processes of these names, for remote procedure calls.

        Its members call this, and nobody else; it waits for all of them, for `rpc_timeout` seconds.
        """
        if not self.started or not self._has_rpc:
            what = "has stopped" if not self.started else "was made with init_rpc=False"
            raise RuntimeError(f"create_rpc_group: the world {what}")
        if self.name not in members:
            raise RuntimeError(f"Creator Process [{self.name}] not in Group [{group_name}]")
        if group_name in self.groups:
            raise RuntimeError(f"Group {group_name} already exists!")
        with raising():
            made = self.mesh.rpc_group(group_name, sorted(members), timeout=self.rpc_timeout or None)
        group = RpcGroup(made, self.rpc_timeout)
        self.groups[group_name] = group
        return group

    def get_rpc_group(self, group_name: str) -> RpcGroup | None:
        """The group of this name that this process is in."""
        return self.groups.get(group_name)

    def stop(self, timeout: float | None = None) -> None:
        """Waits until all processes have called this, and leaves. Another world may be made then.

        After `timeout` seconds, `dist_timeout` unless given, a DeadlineExceeded says who is missing, and this may be
        called again. If a process has died the error names it, and this one has left all the same.
        """
        if not self.started:
            raise RuntimeError("Cannot stop the world multiple times!")
        with raising():
            try:
                self.mesh.finish(self.dist_timeout if timeout is None else timeout)
            except (DeadlineExceeded, ValueError):
                # It is still a member.
                raise
            except BaseException:
                self._leave()
                raise
            self._leave()

    def _leave(self) -> None:
        self.started = False
        self.groups.clear()
        self.mesh.close()
        current.free()

    def __reduce__(self) -> Any:
        raise RuntimeError("World is not picklable, create it per process!")


def _check_backend(backend: str | None) -> None:
    if backend not in BACKENDS:
        raise invalid("World", f"there is no backend {backend!r}", "gloo, mpi and nccl are known, and mean the same")
