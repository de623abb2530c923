"""What sheave is given for tensors of torch: their own memory where it is row-major, else a packed copy of it.

A strided output is worked on in a packed copy, which is copied back when the operation has ended, so that ranks may
lay out their tensors as they like.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from sheave.torch.errors import InvalidArgument, Unsupported

__all__ = ["PREMUL_SUM", "Outputs", "is_plain", "operator", "readable"]

_Op: Any = dist.ReduceOp.RedOpType

PREMUL_SUM: int = _Op.PREMUL_SUM.value
"""The number of torch's sum of what is multiplied first."""

_OPERATORS = {
    _Op.SUM.value: "sum",
    PREMUL_SUM: "sum",
    _Op.PRODUCT.value: "product",
    _Op.MIN.value: "min",
    _Op.MAX.value: "max",
    _Op.AVG.value: "avg",
    _Op.BAND.value: "band",
    _Op.BOR.value: "bor",
    _Op.BXOR.value: "bxor",
}
"""By number: to look one up by torch's object takes eight times as long."""

_OF_BOOL = {"sum": "bor", "product": "band"}
"""What sums and products of truth values are to torch: whether any is true, and whether all are."""

_AS_BYTES = {
    dtype
    for name in ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if (dtype := getattr(torch, name, None)) is not None
}
"""Dtypes that sheave has no name for; they are moved as bytes."""


def operator(kind: Any, dtype: torch.dtype) -> str:
    """Return sheave's name for a kind of operator of torch's on this dtype."""
    name = _OPERATORS.get(kind.value)
    if name is None:
        raise Unsupported(f"the operator {kind}; hint: use one of {', '.join(sorted({*_OPERATORS.values()}))}")
    return _OF_BOOL.get(name, name) if dtype == torch.bool else name


def scaled(tensor: torch.Tensor, reduce_op: Any) -> torch.Tensor:
    """Return a tensor times the factor of PREMUL_SUM, as a new one; for other operators as it is."""
    return tensor * reduce_op.factor if reduce_op.op.value == PREMUL_SUM else tensor


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """Return what sheave reads for a tensor. It packs what is strided itself."""
    if not tensor.is_cpu:
        raise InvalidArgument(
            f"a tensor on {tensor.device}; expected one on the CPU; "
            'hint: give each device its backend, as in init_process_group("cpu:sheave,cuda:nccl")'
        )
    if tensor.layout != torch.strided:
        raise Unsupported(f"a tensor of layout {tensor.layout}; hint: to_dense(), or all_reduce, which takes COO")
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.view(torch.uint8) if tensor.dtype in _AS_BYTES else tensor


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether sheave reads and fills a tensor where it lies, as it is."""
    return (
        tensor.is_cpu
        and tensor.layout == torch.strided
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and tensor.dtype not in _AS_BYTES
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


class Outputs:
    """The tensors that one operation fills, and the copies that are due at its end."""

    def __init__(self) -> None:
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what sheave fills for a tensor, with the tensor's elements in it."""
        array = readable(tensor)
        if array.is_contiguous() and not array.is_neg() and not array.is_conj():
            return array
        packed = array.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        self._copies.append((tensor, packed))
        return packed

    def all_of(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return what sheave fills for each of the tensors."""
        return [self.of(tensor) for tensor in tensors]

    def replaced(self, tensor: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
        """Return a new tensor that sheave fills instead of this one, which gets its elements at the end."""
        self._copies.append((tensor, packed))
        return packed

    @property
    def finish(self) -> Callable[[], None] | None:
        """What copies the results to where they belong; None where there is nothing to copy."""
        return self._copy if self._copies else None

    def _copy(self) -> None:
        with torch.no_grad():
            for tensor, packed in self._copies:
                tensor.copy_(packed.view(tensor.dtype) if tensor.dtype in _AS_BYTES else packed)
