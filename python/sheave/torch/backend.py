"""The backend: each of torch's operations is one of a sheave group, on the memory of the tensors themselves.

Tensors come in lists even where there is one, and ranks are those of the group. An operation that is not asynchronous
ends inside the call, which returns None; torch's own C++ code asks for a work always.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import Backend

import sheave
from sheave.torch import sparse
from sheave.torch.errors import InvalidArgument, Unsupported, torch_errors, translated
from sheave.torch.tensors import PREMUL_SUM, Outputs, is_plain, operator, readable, scaled
from sheave.torch.work import SheaveWork

if TYPE_CHECKING:
    from sheave.torch.meeting import Joined

__all__ = ["SheaveBackend"]

_LIVING: set[SheaveBackend] = set()
"""Backends until they are shut down. Torch's wrappers hold the C++ half alone, which needs the Python half."""

_UNSET = timedelta(0)

Tensors = Sequence[torch.Tensor]
Begin = Callable[..., Any]


def _one(lists: Sequence[Any], what: str) -> Any:
    """Return the only element of a list that torch has one for each device in."""
    if len(lists) != 1:
        raise InvalidArgument(f"{len(lists)} {what}; expected one, for a process has one CPU")
    return lists[0]


class SheaveBackend(Backend):
    """The members of one group of torch's, as a backend of it."""

    def __init__(
        self, joined: Joined, ranks: list[int], rank: int, name: str, timeout: timedelta, is_alone: bool
    ) -> None:
        super().__init__(rank, len(ranks))
        self._joined, self._ranks, self._is_alone = joined, ranks, is_alone
        self._options = Backend.Options("sheave", timeout=timeout)
        self._options.group_name = name  # type: ignore[assignment, unused-ignore]
        self._options.global_ranks_in_group = ranks
        self._set_default_timeout(timeout)
        self._sequence = 0
        self._works: weakref.WeakSet[SheaveWork] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._group: sheave.Group | None = joined.group(ranks, name)
        _LIVING.add(self)

    # What torch asks of every backend.

    def getBackendName(self) -> str:
        """Return the name of the backend."""
        return "sheave"

    @property
    def options(self) -> Backend.Options:
        """What the group was made with."""
        return self._options

    @property
    def supports_splitting(self) -> bool:
        """Whether `split_group` works: where the group is this backend's alone."""
        return self._is_alone

    @property
    def supports_coalescing(self) -> bool:
        """Whether one work may stand for a batch of sends and receives, as with NCCL; here each has its own."""
        return False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Return whether `allocate_tensor` makes tensors on the device; FSDP2 asks, where it is told to."""
        return device.type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return a tensor of so many elements, in memory that ranks on this host reach without a copy.

        Buckets of DistributedDataParallel are not made so: its C++ code asks in C++, where the answer is always no.
        """
        self._members()
        with torch_errors():
            made: torch.Tensor = self._joined.mesh.empty((size,), dtype).torch()
        return made

    def set_timeout(self, timeout: timedelta) -> None:
        """Change how long an operation may take that names no timeout itself."""
        self._set_default_timeout(timeout)

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._options._timeout = timeout
        self._usual_limit_s = timeout.total_seconds() if timeout > _UNSET else None

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        """Nothing: numbers count operations from 0 on."""

    def _wait_for_pending_works(self) -> None:
        for work in list(self._works):
            work.wait()

    def get_error(self) -> Any:
        """Return whether the group works, and if it does not, what kind of error has broken it."""
        from torch._C._distributed_c10d import ErrorType

        broken = None if self._group is None else self._group.broken
        if broken is None:
            return ErrorType.SUCCESS
        return ErrorType.TIMEOUT if isinstance(broken, TimeoutError) else ErrorType.COMM_ERROR

    def abort(self) -> None:
        """Give up the group for all its ranks: whatever is on its way in it ends with an error; and shut down."""
        with self._lock:
            group = self._group
        if group is not None:
            group.cancel()
        self.shutdown()

    def shutdown(self) -> None:
        """Give up the group. With the last one the process leaves the mesh, without waiting for the others."""
        with self._lock:
            group, self._group = self._group, None
        _LIVING.discard(self)
        if group is not None:
            self._joined.release()

    def meet(self) -> None:
        """Wait until every rank has made the group, the first one of its mesh."""
        # By the mesh, whose barrier needs no links but those to rank 0.
        self._joined.mesh.barrier(self._limit_s(None))

    def part(self, ranks: list[int], name: str, timeout: timedelta | None) -> SheaveBackend:
        """Return the backend of some ranks of this group, this one among them, in their order."""
        world_ranks = [self._ranks[rank] for rank in ranks]
        rank = ranks.index(self.rank())
        with torch_errors():
            return SheaveBackend(self._joined, world_ranks, rank, name, timeout or self._options._timeout, True)

    # How an operation runs.

    def _members(self) -> sheave.Group:
        group = self._group
        if group is None:
            raise sheave.Closed("the process group was shut down")
        return group

    def _limit_s(self, opts: Any) -> float | None:
        """Return the seconds that an operation may take: its own timeout, or the group's."""
        own = getattr(opts, "timeout", _UNSET)
        return own.total_seconds() if own > _UNSET else self._usual_limit_s

    def _run(
        self, begin: Begin, arguments: tuple[Any, ...], opts: Any, result: Any, finish: Callable[[], object] | None
    ) -> SheaveWork | None:
        """Begin an operation of the group; end it too unless it is asynchronous."""
        self._sequence += 1
        if opts.asyncOp:
            work = begin(*arguments, async_op=True, timeout=self._limit_s(opts))
            return self._started([work], result, finish)
        begin(*arguments, timeout=self._limit_s(opts))
        if finish is not None:
            finish()
        return None

    def _started(
        self, works: Sequence[sheave.Work[Any]], result: Any, finish: Callable[[], object] | None = None
    ) -> SheaveWork:
        made = SheaveWork(works, result, finish)
        self._works.add(made)
        return made

    # Collective operations.

    def allreduce(self, tensors: Tensors, opts: Any) -> SheaveWork | None:
        """Reduce a tensor of all ranks to all of them, in place. It may be a sparse one."""
        if len(tensors) > 1:
            return self.allreduce_coalesced(tensors, opts)
        (tensor,) = tensors
        # The most frequent operation, whose short ones take less time than what others enter and make here.
        try:
            array, finish = tensor, None
            if not is_plain(tensor):
                if tensor.layout == torch.sparse_coo:
                    self._sequence += 1
                    return sparse.all_reduce(self, self._members(), tensor, opts)
                outputs = Outputs()
                array = outputs.of(tensor)
                finish = outputs.finish
            # Each look at it makes an object.
            kind = opts.reduceOp.op
            op = operator(kind, tensor.dtype)
            if kind.value == PREMUL_SUM:
                array.mul_(opts.reduceOp.factor)
            return self._run(self._members().all_reduce, (array, op), opts, tensors, finish)
        except sheave.SheaveError as error:
            raise translated(error) from error.__cause__

    def allreduce_sparse(self, tensors: Tensors, opts: Any) -> SheaveWork | None:
        """The same as `allreduce`."""
        return self.allreduce(tensors, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> SheaveWork | None:
        """Reduce several tensors of all ranks to all of them, in place, as one operation."""
        with torch_errors():
            outputs = Outputs()
            arrays = outputs.all_of(tensors)
            kind = opts.reduceOp.op
            if kind.value == PREMUL_SUM:
                for array in arrays:
                    array.mul_(opts.reduceOp.factor)
            kinds = {operator(kind, tensor.dtype) for tensor in tensors} or {"sum"}
            if len(kinds) > 1:
                raise Unsupported(f"{opts.reduceOp.op} of numbers and truth values at once; hint: reduce them apart")
            return self._run(self._members().all_reduce, (arrays, *kinds), opts, list(tensors), outputs.finish)

    def broadcast(self, tensors: Tensors, opts: Any) -> SheaveWork | None:
        """Give the tensor of one rank to all."""
        with torch_errors():
            tensor = tensors[opts.rootTensor]
            outputs = Outputs()
            array = readable(tensor) if opts.rootRank == self.rank() else outputs.of(tensor)
            return self._run(
                self._members().broadcast, (array, opts.rootRank), opts, list(tensors), outputs.finish
            )

    def reduce(self, tensors: Tensors, opts: Any) -> SheaveWork | None:
        """Reduce a tensor of all ranks to one, in place there; elsewhere it is only read."""
        with torch_errors():
            tensor = tensors[opts.rootTensor]
            op, outputs, root = operator(opts.reduceOp.op, tensor.dtype), Outputs(), opts.rootRank
            array = scaled(readable(tensor), opts.reduceOp)
            if root != self.rank():
                return self._run(self._members().reduce, (array, op, None, root), opts, list(tensors), None)
            output = outputs.of(tensor)
            return self._run(self._members().reduce, (array, op, output, root), opts, list(tensors), outputs.finish)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> SheaveWork | None:
        """Give the tensors of all ranks, which may differ in length, to all of them."""
        if len(inputs) > 1:
            return self._each(self.allgather, [(one,) for one in outputs], [(one,) for one in inputs], opts)
        with torch_errors():
            given, filled = _one(outputs, "lists of outputs"), Outputs()
            arrays = filled.all_of(given)
            self._check_count(arrays, "outputs")
            arguments = (readable(_one(inputs, "inputs")), arrays)
            return self._run(self._members().all_gather, arguments, opts, [list(given)], filled.finish)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> SheaveWork | None:
        """Do `allgather` for several inputs; torch's lists are by rank and then by input."""
        by_input = [[(of_rank[index]) for of_rank in outputs] for index in range(len(inputs))]
        return self.allgather(by_input, inputs, opts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> SheaveWork | None:
        """Give the tensors of all ranks, one behind the other, to all of them."""
        with torch_errors():
            filled = Outputs()
            arguments = (readable(input), filled.of(output))
            return self._run(self._members().all_gather, arguments, opts, [output], filled.finish)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> SheaveWork | None:
        """Do `all_gather_single` for several tensors as one operation."""
        with torch_errors():
            filled = Outputs()
            arguments = ([readable(one) for one in inputs], filled.all_of(outputs))
            return self._run(self._members().all_gather, arguments, opts, list(outputs), filled.finish)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> SheaveWork | None:
        """Reduce the list of all ranks and give each its own piece."""
        if len(outputs) > 1:
            return self._each(self.reduce_scatter, [(one,) for one in outputs], [(one,) for one in inputs], opts)
        with torch_errors():
            output, pieces, filled = _one(outputs, "outputs"), _one(inputs, "lists of inputs"), Outputs()
            self._check_count(pieces, "inputs")
            arrays = [scaled(readable(piece), opts.reduceOp) for piece in pieces]
            arguments = (arrays, operator(opts.reduceOp.op, output.dtype), filled.of(output))
            return self._run(self._members().reduce_scatter, arguments, opts, [output], filled.finish)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> SheaveWork | None:
        """Reduce the tensor of all ranks, cut it, and give each rank its piece."""
        with torch_errors():
            filled = Outputs()
            array = scaled(readable(input), opts.reduceOp)
            arguments = (array, operator(opts.reduceOp.op, output.dtype), filled.of(output))
            return self._run(self._members().reduce_scatter, arguments, opts, [output], filled.finish)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> SheaveWork | None:
        """Do `reduce_scatter_single` for several tensors as one operation."""
        with torch_errors():
            filled = Outputs()
            arrays = [scaled(readable(one), opts.reduceOp) for one in inputs]
            kinds = {operator(opts.reduceOp.op, one.dtype) for one in outputs} or {"sum"}
            if len(kinds) > 1:
                raise Unsupported(f"{opts.reduceOp.op} of numbers and truth values at once; hint: reduce them apart")
            arguments = (arrays, *kinds, filled.all_of(outputs))
            return self._run(self._members().reduce_scatter, arguments, opts, list(outputs), filled.finish)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> SheaveWork | None:
        """Give the tensors of all ranks to one. The others have no outputs."""
        with torch_errors():
            array, root = readable(_one(inputs, "inputs")), opts.rootRank
            if root != self.rank():
                return self._run(self._members().gather, (array, None, root), opts, [], None)
            given, filled = _one(outputs, "lists of outputs"), Outputs()
            arrays = filled.all_of(given)
            self._check_count(arrays, "outputs")
            return self._run(self._members().gather, (array, arrays, root), opts, [list(given)], filled.finish)

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> SheaveWork | None:
        """Give the tensors of all ranks, one behind the other, to one."""
        with torch_errors():
            array, root, filled = readable(input), opts.rootRank, Outputs()
            target = filled.of(output) if root == self.rank() else None
            return self._run(self._members().gather, (array, target, root), opts, [output], filled.finish)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> SheaveWork | None:
        """Give each rank its tensor of one rank's list. The others have no inputs."""
        with torch_errors():
            output, root, filled = _one(outputs, "outputs"), opts.rootRank, Outputs()
            arrays = None
            if root == self.rank():
                arrays = [readable(piece) for piece in _one(inputs, "lists of inputs")]
                self._check_count(arrays, "inputs")
            arguments = (arrays, filled.of(output), root)
            return self._run(self._members().scatter, arguments, opts, [output], filled.finish)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any) -> SheaveWork | None:
        """Give each rank its tensor of every rank's list."""
        with torch_errors():
            filled = Outputs()
            arrays = [readable(one) for one in inputs]
            self._check_count(arrays, "inputs")
            targets = filled.all_of(outputs)
            self._check_count(targets, "outputs")
            return self._run(self._members().all_to_all, (arrays, targets), opts, list(outputs), filled.finish)

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, received: Sequence[int], sent: Sequence[int], opts: Any
    ) -> SheaveWork | None:
        """Give each rank its rows of every rank's tensor: as many as the splits say, or all the same number."""
        with torch_errors():
            filled, members = Outputs(), self._members()
            array, target = readable(input), filled.of(output)
            if not received and not sent:
                for tensor in (input, output):
                    self._rows(tensor, ())
                return self._run(members.all_to_all, (array, target), opts, [output], filled.finish)
            arguments = (array, self._rows(input, sent), self._rows(output, received), target)
            return self._run(members.all_to_all_v, arguments, opts, [output], filled.finish)

    def _rows(self, tensor: torch.Tensor, splits: Sequence[int]) -> list[int]:
        """Return how many elements each rank's rows have."""
        rows = tensor.size(0) if tensor.dim() > 0 else tensor.numel()
        size = self.size()
        if not splits:
            if rows % size != 0:
                raise InvalidArgument(f"a tensor of {rows} rows for {size} ranks; hint: give numbers of rows for each")
            splits = [rows // size] * size
        if len(splits) != size or sum(splits) != rows or min(splits) < 0:
            raise InvalidArgument(f"splits {list(splits)} of a tensor of {rows} rows for {size} ranks")
        row = tensor.numel() // rows if rows > 0 else 0
        return [count * row for count in splits]

    def _check_count(self, tensors: Sequence[Any], what: str) -> None:
        if len(tensors) != self.size():
            raise InvalidArgument(f"{len(tensors)} {what}; expected one for each of {self.size()} ranks")

    def _each(self, act: Begin, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any) -> SheaveWork | None:
        """Begin one operation after the other, as one work."""
        begun = [act(*both, opts) for both in zip(outputs, inputs, strict=True)]
        made = [work for work in begun if work is not None]
        if not made:
            return None
        works = [work for one in made for work in one._works]
        results = [tensor for one in made for tensor in one._result]

        def finish() -> None:
            for one in made:
                one.wait()

        return self._started(works, results, finish)

    def barrier(self, opts: Any) -> SheaveWork | None:
        """Wait until every rank has come here."""
        with torch_errors():
            return self._run(self._members().barrier, (), opts, [], None)

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """Wait until every rank has come here; the error of one that takes too long names all who are missing."""
        with torch_errors():
            self._sequence += 1
            # Zero is a timeout here: torch says -1 ms where the caller has named none.
            limit_s = 0.0 if opts.timeout == _UNSET else self._limit_s(opts)
            self._members().barrier(timeout=limit_s)

    # Point to point.

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> SheaveWork:
        """Send a tensor to a rank."""
        with torch_errors():
            array = readable(_one(tensors, "tensors"))
            work = self._members().isend(array, dst, tag, timeout=self._limit_s(None))
            return self._started([work], list(tensors))

    def recv(self, tensors: Tensors, src: int | None, tag: int = 0) -> SheaveWork:
        """Receive a tensor from a rank, or from any if None."""
        with torch_errors():
            outputs = Outputs()
            array = outputs.of(_one(tensors, "tensors"))
            work = self._members().irecv(array, src, tag, timeout=self._limit_s(None))
            return self._started([work], list(tensors), outputs.finish)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> SheaveWork:
        """Receive a tensor from any rank."""
        return self.recv(tensors, None, tag)
