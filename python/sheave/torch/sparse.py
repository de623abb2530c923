"""all_reduce of sparse tensors: what all ranks have is gathered, and each adds it up.

How many elements each rank has is gathered first, and waited for: what follows depends on it, and the order of a
group's operations is that in which they begin. Every rank adds in the order of the ranks, so all come to the same
bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import sheave
from sheave.torch.errors import Mismatch, Unsupported

if TYPE_CHECKING:
    from sheave.torch.backend import SheaveBackend
    from sheave.torch.work import SheaveWork

__all__ = ["all_reduce"]

_Op: Any = dist.ReduceOp.RedOpType


def all_reduce(backend: SheaveBackend, members: sheave.Group, tensor: torch.Tensor, opts: Any) -> SheaveWork | None:
    """Reduce a sparse COO tensor of all ranks to all of them, in place."""
    kind = opts.reduceOp.op
    if kind not in (_Op.SUM, _Op.AVG, _Op.PREMUL_SUM) or (kind == _Op.AVG and not tensor.dtype.is_floating_point):
        raise Unsupported(f"all_reduce of a sparse tensor of {tensor.dtype} with {kind}; hint: use ReduceOp.SUM")
    own = tensor.detach().coalesce()
    indices = own.indices().t().contiguous()
    values = own.values().contiguous()
    if kind == _Op.PREMUL_SUM:
        values = values * opts.reduceOp.factor
    limit_s = backend._limit_s(opts)
    counts = _counts(members, own, limit_s)
    row = values[0].numel() if values.size(0) else int(torch.tensor(values.shape[1:]).prod())
    all_indices = torch.empty((sum(counts), own.sparse_dim()), dtype=torch.int64)
    all_values = torch.empty((sum(counts), *values.shape[1:]), dtype=values.dtype)
    works = [
        members.all_gather_v(
            indices, [count * own.sparse_dim() for count in counts], all_indices, async_op=True, timeout=limit_s
        ),
        members.all_gather_v(values, [count * row for count in counts], all_values, async_op=True, timeout=limit_s),
    ]

    def finish() -> None:
        with torch.no_grad():
            total = torch.sparse_coo_tensor(all_indices.t(), all_values, own.shape).coalesce()
            tensor.copy_(total / members.size if kind == _Op.AVG else total)

    work = backend._started(works, [tensor], finish)
    if opts.asyncOp:
        return work
    work.wait()
    return None


def _counts(members: sheave.Group, own: torch.Tensor, limit_s: float | None) -> list[int]:
    """Return how many elements each rank has; raise Mismatch where shapes differ."""
    said = torch.tensor([own._nnz(), own.sparse_dim(), own.dense_dim(), *own.shape], dtype=torch.int64)
    lengths = torch.empty(members.size, dtype=torch.int64)
    members.all_gather(torch.tensor([said.numel()]), lengths, timeout=limit_s)
    heard = [torch.empty(length, dtype=torch.int64) for length in lengths.tolist()]
    members.all_gather(said, heard, timeout=limit_s)
    for rank, other in enumerate(heard):
        if other[1:].tolist() != heard[0][1:].tolist():
            raise Mismatch(
                f"all_reduce of sparse tensors: that of rank 0 has the shape {heard[0][3:].tolist()} with "
                f"{int(heard[0][1])} sparse dimensions, that of rank {rank} {other[3:].tolist()} with {int(other[1])}"
            )
    return [int(other[0]) for other in heard]
