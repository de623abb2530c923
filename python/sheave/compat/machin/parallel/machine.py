"""What this machine has, under the names by which machin asks: objects that stand for the modules GPUtil and psutil.

GPUtil imports distutils, which Python 3.12 has no more; psutil is not needed for one number.
"""

import math
import subprocess
from typing import NamedTuple

_QUERY = "index,utilization.gpu,memory.total,memory.used,memory.free,name,uuid"
_TIMEOUT_S = 20


class GPU(NamedTuple):
    """A GPU: its load from 0 to 1, and its memory in MiB. What the driver does not tell is NaN."""

    id: int
    load: float
    memoryTotal: float
    memoryUsed: float
    memoryFree: float
    name: str
    uuid: str

    @property
    def memoryUtil(self) -> float:
        """The share of its memory that is used."""
        return self.memoryUsed / self.memoryTotal if self.memoryTotal else math.nan


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def read_gpus(text: str) -> list[GPU]:
    """The GPUs that nvidia-smi lists, without those of which it does not say the number."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) >= 7 and cells[0].isdecimal():
            load, total, used, free = map(_number, cells[1:5])
            gpus.append(GPU(int(cells[0]), load / 100, total, used, free, ",".join(cells[5:-1]), cells[-1]))
    return sorted(gpus)


class Gpus:
    """In place of the module GPUtil: the two functions that machin calls."""

    def getGPUs(self) -> list[GPU]:
        """The GPUs that the driver of NVIDIA knows, by number; none without a driver."""
        command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
        try:
            asked = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            return []
        return read_gpus(asked.stdout) if asked.returncode == 0 else []

    def getAvailable(
        self, order: str = "first", limit: int | None = None, maxLoad: float = 0.5, maxMemory: float = 0.5
    ) -> list[int]:
        """The numbers of GPUs that are not busy: "first", "last", or by "load" or "memory" with the least first.

        All of them unless there is a limit, where GPUtil says one. What the driver does not tell counts as nothing.
        """
        orders = {"first": lambda gpu: gpu.id, "last": lambda gpu: -gpu.id, "load": _load, "memory": _memory}
        if order not in orders:
            raise ValueError(f"order is {order!r}; expected one of {', '.join(orders)}")
        free = [gpu for gpu in self.getGPUs() if _load(gpu) <= maxLoad and _memory(gpu) <= maxMemory]
        return [gpu.id for gpu in sorted(free, key=orders[order])][:limit]


def _load(gpu: GPU) -> float:
    return 0.0 if math.isnan(gpu.load) else gpu.load


def _memory(gpu: GPU) -> float:
    return 0.0 if math.isnan(gpu.memoryUtil) else gpu.memoryUtil


class Available(NamedTuple):
    """Bytes of memory."""

    total: int
    available: int


class Memory:
    """In place of the module psutil: the function that machin calls."""

    def virtual_memory(self) -> Available:
        """The memory of this machine, and what programs could get of it."""
        with open("/proc/meminfo", encoding="ascii") as lines:
            sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if "kB" in line}
        return Available(sizes["MemTotal"], sizes["MemAvailable"])
