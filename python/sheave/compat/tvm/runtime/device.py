"""Devices, by TVM's names and numbers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Device", "cpu", "cuda", "device"]

_KINDS = {"llvm": 1, "cpu": 1, "c": 1, "cuda": 2, "nvptx": 2, "cl": 4, "opencl": 4, "vulkan": 7, "metal": 8}
_KINDS |= {"vpi": 9, "rocm": 10, "ext_dev": 12, "hexagon": 16, "webgpu": 15}
_NAMES = {1: "cpu", 2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 9: "vpi", 10: "rocm", 12: "ext_dev"}
_NAMES |= {15: "webgpu", 16: "hexagon"}


@dataclass(frozen=True, repr=False)
class Device:
    """A device.

    >>> cpu(0), str(device("cuda", 1)), cpu().device_type
    (device(type='cpu', index=0), 'cuda:1', 1)
    """

    device_type: int
    index: int

    @property
    def type(self) -> str:
        """The name of its kind."""
        return _NAMES.get(self.device_type, str(self.device_type))

    @property
    def device_id(self) -> int:
        """Its number, under its former name."""
        return self.index

    @property
    def exist(self) -> bool:
        """Whether there is such a device for sheave: a CPU."""
        return self.device_type == 1

    def dlpack_device_type(self) -> int:
        """Returns the number of its kind."""
        return self.device_type

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"device(type={self.type!r}, index={self.index})"


def device(dev: str | int | Device, index: int | None = None) -> Device:
    """Returns the device of a name, as in ``cuda:1``, or of the number of a kind."""
    if isinstance(dev, Device):
        return dev
    if isinstance(dev, int):
        return Device(dev, index or 0)
    name, _, number = dev.split()[0].partition(":")
    if name not in _KINDS:
        raise ValueError(f"Unknown device type {name!r}; known are {', '.join(_KINDS)}")
    return Device(_KINDS[name], int(number) if number else index or 0)


def cpu(index: int = 0) -> Device:
    """Returns a CPU."""
    return Device(1, index)


def cuda(index: int = 0) -> Device:
    """Returns a GPU of NVIDIA's."""
    return Device(2, index)
