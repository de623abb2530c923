"""The names of `context` in MXNet 2."""

from sheave.compat.mxnet.context import Context as Device
from sheave.compat.mxnet.context import cpu, cpu_pinned, gpu, gpu_memory_info, num_gpus
from sheave.compat.mxnet.context import current_context as current_device

__all__ = ["Device", "cpu", "cpu_pinned", "current_device", "gpu", "gpu_memory_info", "num_gpus"]
