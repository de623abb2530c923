"""Groups of processes for collective operations."""

from collections.abc import Callable, Sequence
from typing import Any

from sheave import Group

from sheave.compat.machin.parallel.distributed.arrays import array, arrays, check_alike, copy
from sheave.compat.machin.parallel.distributed.operators import operator
from sheave.compat.machin.parallel.distributed.pending import NothingPending, PendingOperation
from sheave.compat.runtime_errors import invalid, raising


def _done(_: Any) -> bool:
    return True


class CollectiveGroup:
    """Some processes of a world that do things together. Made by `World.create_collective_group`.

    Ranks that its methods take and return are those of the world. Operations work in place, on tensors of torch on the
    CPU or on arrays of numpy. They return None, or at once a handle with `async_op`; each has the group's timeout. In a
    process that is no member they do nothing.
    """

    def __init__(self, group: Group | None, ranks: tuple[int, ...], timeout: float) -> None:
        self.group = group
        #: This process's place in the group, None if it is no member.
        self.current_rank = None if group is None else group.rank
        self.destroyed = False
        self._ranks = ranks
        self._timeout = timeout

    def send(self, tensor: Any, dst: int, tag: int = 0) -> None:
        """Sends a tensor to a member, and returns when it may be written again."""
        group = self._group("send")
        if group is not None:
            with raising():
                group.send(array(tensor), self._place("dst", dst), tag, timeout=self._timeout)

    def recv(self, tensor: Any, src: int | None = None, tag: int = 0) -> int:
        """Receives into a tensor from a member, or from any. Returns the sender's rank; -1 if this is no member."""
        group = self._group("recv")
        if group is None:
            return -1
        with raising():
            return self._ranks[group.recv(array(tensor), self._source(src), tag, timeout=self._timeout)]

    def isend(self, tensor: Any, dst: int, tag: int = 0) -> PendingOperation | NothingPending:
        """Begins to send a tensor, which may be written again when the handle's wait has returned."""
        group = self._group("isend")
        if group is None:
            return NothingPending()
        with raising():
            work = group.isend(array(tensor), self._place("dst", dst), tag, timeout=self._timeout)
        return PendingOperation(work, _done)

    def irecv(self, tensor: Any, src: int | None = None, tag: int = 0) -> PendingOperation | NothingPending:
        """Begins to receive into a tensor. The handle's wait returns the sender's rank."""
        group = self._group("irecv")
        if group is None:
            return NothingPending()
        with raising():
            work = group.irecv(array(tensor), self._source(src), tag, timeout=self._timeout)
        return PendingOperation(work, self._ranks.__getitem__)

    def broadcast(self, tensor: Any, src: int, async_op: bool = False) -> Any:
        """The tensor of `src` goes to all, who give one of the same dtype and number of elements."""
        return self._run(
            "broadcast", async_op, lambda group, how: group.broadcast(array(tensor), self._place("src", src), **how)
        )

    def all_reduce(self, tensor: Any, op: Any = "SUM", async_op: bool = False) -> Any:
        """Reduces the tensors of all to all of them, to the same bits everywhere."""
        return self._run(
            "all_reduce", async_op, lambda group, how: group.all_reduce(array(tensor), operator(op), **how)
        )

    def reduce(self, tensor: Any, dst: int, op: Any = "SUM", async_op: bool = False) -> Any:
        """Reduces the tensors of all to that of `dst`; others are only read."""
        return self._run(
            "reduce",
            async_op,
            lambda group, how: group.reduce(array(tensor), operator(op), dst=self._place("dst", dst), **how),
        )

    def all_gather(self, tensor_list: Sequence[Any], tensor: Any, async_op: bool = False) -> Any:
        """The tensors of all go to the lists of all, in the order of the ranks."""
        return self._run(
            "all_gather", async_op, lambda group, how: group.all_gather(array(tensor), arrays(tensor_list), **how)
        )

    def gather(
        self, tensor: Any, gather_list: Sequence[Any] | None = None, dst: int = 0, async_op: bool = False
    ) -> Any:
        """The tensors of all go to the list of `dst`, in the order of the ranks. Others give none."""

        def start(group: Group, how: dict[str, Any]) -> Any:
            place = self._place("dst", dst)
            out = _rooted("gather_list", gather_list, place == group.rank)
            return group.gather(array(tensor), out, place, **how)

        return self._run("gather", async_op, start)

    def scatter(
        self, tensor: Any, scatter_list: Sequence[Any] | None = None, src: int = 0, async_op: bool = False
    ) -> Any:
        """The tensors of `src`'s list go one to each, in the order of the ranks. Others give none."""

        def start(group: Group, how: dict[str, Any]) -> Any:
            place = self._place("src", src)
            given = _rooted("scatter_list", scatter_list, place == group.rank)
            return group.scatter(given, array(tensor), place, **how)

        return self._run("scatter", async_op, start)

    def barrier(self, async_op: bool = False) -> Any:
        """Waits until every member has come here."""
        return self._run("barrier", async_op, lambda group, how: group.barrier(**how))

    def broadcast_multigpu(
        self, tensor_list: Sequence[Any], src: int, async_op: bool = False, src_tensor: int = 0
    ) -> Any:
        """One tensor of `src` goes to all tensors of all members."""

        def start(group: Group, how: dict[str, Any]) -> Any:
            # The first one is what travels.
            given = arrays(tensor_list)
            given.insert(0, given.pop(_index("src_tensor", src_tensor, given)))
            return group.broadcast_devices(given, self._place("src", src), **how)

        return self._run("broadcast_multigpu", async_op, start)

    def all_reduce_multigpu(self, tensor_list: Sequence[Any], op: Any = "SUM", async_op: bool = False) -> Any:
        """Reduces all tensors of all members to each of them."""
        return self._run(
            "all_reduce_multigpu",
            async_op,
            lambda group, how: group.all_reduce_devices(arrays(tensor_list), operator(op), **how),
        )

    def reduce_multigpu(
        self, tensor_list: Sequence[Any], dst: int, op: Any = "SUM", async_op: bool = False, dst_tensor: int = 0
    ) -> Any:
        """Reduces all tensors of all members to one of `dst`; all others are only read."""

        def start(group: Group, how: dict[str, Any]) -> Any:
            given, place = arrays(tensor_list), self._place("dst", dst)
            out = given[_index("dst_tensor", dst_tensor, given)] if place == group.rank else None
            return group.reduce_devices(given, operator(op), out, place, **how)

        return self._run("reduce_multigpu", async_op, start)

    def all_gather_multigpu(
        self, output_tensor_lists: Sequence[Sequence[Any]], input_tensor_list: Sequence[Any], async_op: bool = False
    ) -> Any:
        """All tensors of all members go to each list of all members: tensor j of the member at place k to
        ``k * len(input_tensor_list) + j``."""
        inputs = arrays(input_tensor_list)
        outputs = [arrays(tensors) for tensors in output_tensor_lists]

        def start(group: Group, how: dict[str, Any]) -> Any:
            for index, tensors in enumerate(outputs):
                check_alike("all_gather_multigpu", tensors, inputs * group.size, f"output_tensor_lists[{index}]")
            return group.all_gather(inputs, **how)

        def finish(gathered: list[Any]) -> bool:
            for tensors in outputs:
                for at, tensor in enumerate(tensors):
                    place, index = divmod(at, len(inputs))
                    copy(tensor, gathered[index][place])
            return True

        return self._run("all_gather_multigpu", async_op, start, finish)

    def size(self) -> int:
        """How many members there are; -1 if this process is none."""
        return -1 if self.current_rank is None else len(self._ranks)

    def destroy(self) -> None:
        """Lets go of the group. Operations in flight go on. Idempotent."""
        self.destroyed, self.group = True, None

    def __del__(self) -> None:
        self.destroy()

    def __reduce__(self) -> Any:
        raise RuntimeError("Group is not picklable, create it per process!")

    def _run(
        self,
        op: str,
        async_op: bool,
        start: Callable[[Group, dict[str, Any]], Any],
        finish: Callable[[Any], bool] = _done,
    ) -> Any:
        """Begins an operation; waits for it and returns None, or returns its handle."""
        group = self._group(op)
        if group is None:
            return NothingPending() if async_op else None
        with raising():
            begun = start(group, {"async_op": bool(async_op), "timeout": self._timeout})
        if async_op:
            return PendingOperation(begun, finish)
        finish(begun)
        return None

    def _group(self, op: str) -> Group | None:
        """The group; None if this process is no member."""
        if self.destroyed:
            raise RuntimeError(f"{op}: the group of ranks {list(self._ranks)} is destroyed; hint: create it anew")
        return self.group

    def _place(self, which: str, rank: int) -> int:
        """The place in the group of a rank of the world."""
        if rank not in self._ranks:
            hint = "it is a rank of the world, not a place in the group"
            raise invalid(which, f"rank {rank} is outside a group of ranks {list(self._ranks)}", hint)
        return self._ranks.index(rank)

    def _source(self, src: int | None) -> int | None:
        return None if src is None else self._place("src", src)


def _rooted(which: str, tensors: Sequence[Any] | None, is_root: bool) -> list[Any] | None:
    """The list that one process gives and no other."""
    if is_root and tensors is None:
        raise invalid(which, f"{which} is None where it is needed", "give one tensor for each member")
    if not is_root and tensors:
        raise invalid(which, f"{which} is given where it is not used", "only one process gives it; give None")
    return arrays(tensors) if is_root and tensors is not None else None


def _index(which: str, index: int, tensors: Sequence[Any]) -> int:
    if not 0 <= index < len(tensors):
        raise invalid(which, f"{which} is {index} in a list of {len(tensors)}", "it is the index of a tensor")
    return index
