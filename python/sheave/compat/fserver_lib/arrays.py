"""Arrays in and out: torch's where the program uses torch, else numpy's; nothing is copied.

A tensor of a torch that has no C interface for DLPack goes in as a capsule that torch makes in C: its `__dlpack__` is
written in Python, and takes longer than a whole small request.
"""

import bisect
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from sheave import Tensor, Unsupported

from sheave.compat.fserver_lib.errors import invalid

#: Arrays over registered memory that are remembered: so many shapes of pushes may alternate before one costs time.
SHOWN_MAX = 4096


class Lent:
    """A torch tensor, as sheave imports it."""

    __slots__ = ("capsule",)

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule


def lent(arrays: Sequence[Any]) -> Sequence[Any]:
    """Arrays as sheave imports them fastest."""
    torch = sys.modules.get("torch")
    if torch is None or hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        return arrays
    kind, capsule_of = torch.Tensor, torch.utils.dlpack.to_dlpack
    # What torch conjugates or negates lazily is told by the tensor alone.
    return [
        Lent(capsule_of(array)) if isinstance(array, kind) and not (array.is_complex() or array.is_neg()) else array
        for array in arrays
    ]


def shown(tensor: Tensor) -> Any:
    """What the program sees of a tensor; the tensor itself if numpy has no such dtype."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return torch.utils.dlpack.from_dlpack(tensor.__dlpack__())
    try:
        return tensor.numpy()
    except Unsupported:
        return tensor


class Region:
    """An array that pushes land in."""

    def __init__(self, array: Any) -> None:
        torch = sys.modules.get("torch")
        self.torch = torch if torch is not None and isinstance(array, torch.Tensor) else None
        if self.torch is None:
            array = np.asarray(array)
            self.begin, self.contiguous = array.__array_interface__["data"][0], array.flags.c_contiguous
            flat = array.reshape(-1).view(np.uint8) if self.contiguous else array
        else:
            array = array.detach()
            self.begin, self.contiguous = array.data_ptr(), array.is_contiguous()
            flat = array.reshape(-1).view(self.torch.uint8) if self.contiguous else array
        if not self.contiguous:
            raise invalid("register_recv_buffer", "the tensor is not contiguous", "give a contiguous one")
        self.bytes = flat

    def part(self, tensor: Tensor) -> Any:
        """The array's own bytes where a tensor lies, with that one's dtype and shape."""
        offset = tensor.data_ptr - self.begin
        part = self.bytes[offset : offset + tensor.nbytes]
        if self.torch is not None:
            return part.view(getattr(self.torch, tensor.dtype)).reshape(tensor.shape)
        return part.view(_numpy_dtype(tensor.dtype)).reshape(tensor.shape)


def _numpy_dtype(name: str) -> Any:
    try:
        return np.dtype(name)
    except TypeError:
        # Whoever pushes this dtype into a numpy array has the package that defines it.
        import ml_dtypes  # type: ignore[import-not-found, import-untyped, unused-ignore]

        return np.dtype(getattr(ml_dtypes, name))


class Landing:
    """All arrays that pushes land in. They stay registered, so an address tells for ever whose it is."""

    def __init__(self) -> None:
        self._regions: list[Region] = []
        self._shown: dict[tuple[int, str, tuple[int, ...]], Any] = {}

    def add(self, region: Region) -> None:
        """Remember an array."""
        bisect.insort(self._regions, region, key=lambda each: each.begin)

    def shown(self, tensor: Tensor) -> Any:
        """What the program sees: where a push landed in a registered array, a slice of that array.

        The tensor is let go of then. A view that is held would keep the next push from landing.
        """
        if not self._regions:
            return shown(tensor)
        place = (tensor.data_ptr, tensor.dtype, tensor.shape)
        array = self._shown.get(place)
        if array is not None:
            return array
        index = bisect.bisect_right(self._regions, place[0], key=lambda each: each.begin) - 1
        if index < 0 or place[0] >= self._regions[index].begin + len(self._regions[index].bytes):
            return shown(tensor)
        if len(self._shown) >= SHOWN_MAX:
            self._shown.clear()
        array = self._shown[place] = self._regions[index].part(tensor)
        return array
