"""Values on devices, and out of graphs.

What differs from PusH, on purpose: tuples, and named ones, are treated as lists are by all three functions. Of
`detach_to_device`, `requires_grad` makes a leaf of a graph, on the device, of every tensor of floats or complex
numbers.
"""

from collections.abc import Callable
from typing import Any

import torch

from sheave.particle._torch_models import gpus

__all__ = ["detach_to_cpu", "detach_to_device", "gpus", "to_device", "torch_device"]


def torch_device(label: Any) -> torch.device:
    """The device of torch that a label stands for: a number is a GPU, or the CPU on a machine that has none."""
    if isinstance(label, int):
        return torch.device("cuda", label) if label < gpus() else torch.device("cpu")
    return torch.device(label)


def to_device(device: Any, val: Any) -> Any:
    """Move the tensors in dicts, lists and tuples to a device. All else stays as it is."""
    where = torch_device(device)
    return _mapped(val, lambda tensor: tensor.to(where))


def detach_to_device(device: Any, val: Any, requires_grad: bool = False) -> Any:
    """Move the tensors in dicts, lists and tuples to a device, and out of their graphs. All else stays as it is.

    With `requires_grad` those of floats or complex numbers are leaves that get a gradient there.
    """
    where = torch_device(device)

    def move(tensor: torch.Tensor) -> torch.Tensor:
        moved = tensor.detach().to(where)
        is_differentiable = moved.is_floating_point() or moved.is_complex()
        return moved.requires_grad_() if requires_grad and is_differentiable else moved

    return _mapped(val, move)


def detach_to_cpu(val: Any) -> Any:
    """Move the tensors in dicts, lists and tuples to the CPU, and out of their graphs. All else stays as it is."""
    return _mapped(val, lambda tensor: tensor.detach().to("cpu"))


def _mapped(val: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(val, torch.Tensor):
        return move(val)
    if isinstance(val, dict):
        return {key: _mapped(item, move) for key, item in val.items()}
    if isinstance(val, list):
        return [_mapped(item, move) for item in val]
    if isinstance(val, tuple):
        items = [_mapped(item, move) for item in val]
        return type(val)(*items) if hasattr(val, "_fields") else tuple(items)
    return val
