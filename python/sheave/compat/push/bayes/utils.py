"""Lists of tensors as vectors, and back."""

from collections.abc import Iterable, Sequence

import torch

__all__ = ["flatten", "unflatten_like"]


def flatten(lst: Iterable[torch.Tensor]) -> torch.Tensor:
    """The numbers of all tensors as one vector.

    >>> import torch
    >>> flatten([torch.zeros(2, 2), torch.ones(1)])
    tensor([0., 0., 0., 0., 1.])
    """
    parts = [tensor.reshape(-1) for tensor in lst]
    return torch.cat(parts) if parts else torch.zeros(0)


def unflatten_like(vector: torch.Tensor, likeTensorList: Sequence[torch.Tensor]) -> list[torch.Tensor]:  # noqa: N803
    """The numbers of a vector of shape [1, D], or [D], as tensors of the shapes of these.

    >>> import torch
    >>> [tensor.tolist() for tensor in unflatten_like(torch.arange(3.0)[None], [torch.zeros(2), torch.zeros(1, 1)])]
    [[0.0, 1.0], [[2.0]]]
    """
    counts = [tensor.numel() for tensor in likeTensorList]
    flat = vector.reshape(-1)
    if flat.numel() != sum(counts):
        raise ValueError(f"a vector of {flat.numel()} numbers; expected {sum(counts)}, those of the tensors")
    parts = torch.split(flat, counts)
    return [part.view(tensor.shape) for part, tensor in zip(parts, likeTensorList, strict=True)]
