"""Tensors of programs as arrays that sheave takes, whether or not torch is installed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sheave.compat.runtime_errors import invalid


def array(tensor: Any) -> Any:
    """The tensor over the same memory, without its graph: what is received into a parameter is no step of autograd."""
    return tensor.detach() if getattr(tensor, "requires_grad", False) else tensor


def arrays(tensors: Sequence[Any]) -> list[Any]:
    """Each of these as `array` gives it."""
    return [array(tensor) for tensor in tensors]


def copy(target: Any, source: Any) -> None:
    """Copies the elements of an array into one of the same dtype and number of elements."""
    if hasattr(target, "copy_"):
        target.copy_(source.reshape(target.shape))
    else:
        np.copyto(target, np.asarray(source).reshape(target.shape))


def check_alike(op: str, outputs: Sequence[Any], inputs: Sequence[Any], which: str) -> None:
    """Refuses outputs that are not one for each input, of its dtype and number of elements, by their index."""
    if len(outputs) != len(inputs):
        raise invalid(
            op, f"{which} has {len(outputs)} tensors; expected {len(inputs)}", "one for each that is gathered"
        )
    for index, (output, given) in enumerate(zip(outputs, inputs, strict=True)):
        found, wanted = ((str(one.dtype), int(np.prod(tuple(one.shape)))) for one in (output, given))
        if found != wanted:
            what = "tensor {} of {} is {}[{}]; expected {}[{}]".format(index, which, *found, *wanted)
            raise invalid(op, what, "outputs have the dtype and length of what is gathered")
