"""Models onto devices.

    from machin.parallel.assigner import ModelAssigner

    assigner = ModelAssigner([actor, critic], {(0, 1): 1.0}, devices=["cuda:0", "cuda:1"])
    assigner.assignment

What differs from machin, on purpose:

- The placement is the best one for up to 12 models on 8 devices, and a good one beyond, by machin's loss taken at
  placements that are not fractions; `sheave.placement` says how. It is the same each time. The term of connections is
  not divided by the square of the number of models, which makes it next to nothing in machin, where models that meet
  are those that happen to begin together. So `iterations` and
  `update_rate` are checked and do nothing; neither does `entropy_weight`, for the entropy of such placements is zero.
- **No device gets more than its memory**, where machin counts excess with `size_match_weight`, which does nothing here
  either. What cannot fit is a RuntimeError that says why.
- Nothing is not a number: without connections, with one device, with models of size zero, with CPUs alone, or where all
  devices are busy. Devices without any capacity to compute share alike.
- All GPUs that are free count, not one. A device counts once, however often it is listed.
- Weights, distances, sizes and the ends of connections are checked.
- Models are modules of torch, which is imported by nothing here but `optimize_placement`, or sizes alone: see
  `ModelSizeEstimator`. Devices are objects of torch where the program has imported torch, and names otherwise.
- `placement` is the whole answer: its objective, bound and gap; printed it is a table, in a notebook a picture.
- bfloat16, complex and 8-bit floats have sizes.
"""

import logging
import math
import operator
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sheave.compat.machin.parallel.machine import Gpus, Memory
from sheave.compat.runtime_errors import invalid, raising
from sheave.placement import Placement, assign

__all__ = ["ModelAssigner", "ModelSizeEstimator"]

logger = logging.getLogger("machin")

#: What the machine has is asked of these, so that programs and tests can put others in their place.
GPUtil = Gpus()
psutil = Memory()

_MIB = 1 << 20
#: Far more than any machine has, and far from what 64 bits hold, also in sum.
_BYTES_MAX = 1 << 52

#: Bytes of dtypes that numpy does not know.
_OTHER_BYTES = {"bfloat16": 2, "complex32": 4, "float8_e4m3fn": 1, "float8_e5m2": 1}


class ModelSizeEstimator:
    """The memory that a model takes: its parameters and buffers, times `size_multiplier` for what training adds.

    A model is a module of torch; or the MiB of its parameters; or a mapping from names of parameters to arrays, or to
    pairs of a shape and a dtype's name.

    >>> ModelSizeEstimator({"weight": ((1024, 512), "float32"), "bias": ((512,), "float32")}).estimate_size()
    4.00390625
    """

    def __init__(self, model: Any, size_multiplier: float = 2) -> None:
        self.model = model
        self.size_multiplier = _number("ModelSizeEstimator", "size_multiplier", size_multiplier)

    def get_parameter_sizes(self) -> float:
        """MiB of all parameters."""
        if hasattr(self.model, "parameters"):
            return sum(_tensor_bytes(tensor) for tensor in self.model.parameters()) / _MIB
        if isinstance(self.model, Mapping):
            return sum(_described_bytes(name, one) for name, one in self.model.items()) / _MIB
        return _number("ModelSizeEstimator", "model", self.model)

    def get_buffer_sizes(self) -> float:
        """MiB of all buffers; of a model that is a size alone, none."""
        if not hasattr(self.model, "buffers"):
            return 0.0
        return sum(_tensor_bytes(tensor) for tensor in self.model.buffers()) / _MIB

    def estimate_size(self) -> float:
        """MiB of the whole model."""
        return (self.get_parameter_sizes() + self.get_buffer_sizes()) * self.size_multiplier


def _tensor_bytes(tensor: Any) -> int:
    return int(tensor.nelement()) * int(tensor.element_size())


def _described_bytes(name: str, one: Any) -> int:
    if hasattr(one, "element_size"):
        return _tensor_bytes(one)
    if hasattr(one, "nbytes"):
        return int(one.nbytes)
    try:
        shape, dtype = one
        lengths = [operator.index(length) for length in shape]
    except (TypeError, ValueError):
        lengths = [-1]
    if min(lengths, default=0) < 0:
        what = f"model[{name!r}] is {one!r}; expected an array, or a shape and a dtype"
        raise invalid("ModelSizeEstimator", what, 'such as ((1024, 512), "float32")')
    return math.prod(lengths) * _dtype_bytes(str(dtype).removeprefix("torch."))


def _dtype_bytes(name: str) -> int:
    try:
        return _OTHER_BYTES.get(name) or np.dtype(name).itemsize
    except TypeError:
        raise ValueError(f"Invalid data type. dtype is {name!r}; expected the name of one of numpy or torch") from None


class ModelAssigner:
    """Finds a device for each model, and moves it there.

    `models` are what `ModelSizeEstimator` takes. `model_connection` is how much goes between two of them, by pairs of
    their numbers. `devices` are names or objects of torch; None is all GPUs that are not busy, or the CPU if there is
    none; a GPU that is not free is left out, and a warning says so. Models may take the share `max_mem_ratio` of the
    memory that is free. A GPU computes as much as it is not loaded, and the CPU `cpu_weight`.

    >>> ModelAssigner([10, 10], {(0, 1): 1.0}, devices=["cpu"], move_models=False).placement.device_of
    [0, 0]
    """

    def __init__(
        self,
        models: Sequence[Any],
        model_connection: Mapping[tuple[int, int], float],
        devices: Sequence[Any] | None = None,
        model_size_multiplier: float = 2,
        max_mem_ratio: float = 0.5,
        cpu_weight: float = 0,
        connection_weight: float = 2,
        size_match_weight: float = 1e-2,
        complexity_match_weight: float = 1,
        entropy_weight: float = 1,
        iterations: int = 500,
        update_rate: float = 0.01,
        gpu_gpu_distance: float = 1,
        cpu_gpu_distance: float = 10,
        move_models: bool = True,
    ) -> None:
        for field, number in [
            ("cpu_weight", cpu_weight),
            ("connection_weight", connection_weight),
            ("size_match_weight", size_match_weight),
            ("complexity_match_weight", complexity_match_weight),
            ("entropy_weight", entropy_weight),
            ("update_rate", update_rate),
            ("gpu_gpu_distance", gpu_gpu_distance),
            ("cpu_gpu_distance", cpu_gpu_distance),
            ("iterations", iterations),
        ]:
            _number("ModelAssigner", field, number)
        if not 0 < _number("ModelAssigner", "max_mem_ratio", max_mem_ratio) <= 1:
            what = f"max_mem_ratio is {max_mem_ratio!r}; expected a share above 0 and at most 1"
            raise invalid("ModelAssigner", what, "0.5 leaves half of the memory for others")
        used = _usable(devices)
        sizes = [float(ModelSizeEstimator(model, model_size_multiplier).estimate_size()) for model in models]
        capacities = [_size_capacity(name) * max_mem_ratio for name in used]
        if sum(sizes) > sum(capacities):
            raise RuntimeError(
                f"Estimated model will use {sum(sizes):.2f} MB, "
                f"but only have {sum(capacities):.2f} MB allowed memory in total."
            )
        with raising():
            self.placement: Placement = assign(
                {f"model {model}": _bytes(size, math.ceil) for model, size in enumerate(sizes)},
                {name: _bytes(capacity, math.floor) for name, capacity in zip(used, capacities, strict=True)},
                complexity=sizes,
                connections=_connections(model_connection, len(sizes)),
                device_complexity=[_complexity_capacity(name, cpu_weight) for name in used],
                distances=_distances(list(used), gpu_gpu_distance, cpu_gpu_distance),
                connection_weight=connection_weight,
                complexity_weight=complexity_match_weight,
            )
        places = [used[name] for name in used]
        self._assignment = [places[device] for device in self.placement.device_of]
        if move_models:
            for model, device in zip(models, self._assignment, strict=True):
                if hasattr(model, "to"):
                    model.to(device)

    @property
    def assignment(self) -> list[Any]:
        """The device of each model."""
        return self._assignment

    @staticmethod
    def optimize_placement(
        optimizer: Any,
        placement: Any,
        model_size: Any,
        size_capacity: Any,
        model_complexity: Any,
        complexity_capacity: Any,
        model_connection: Any,
        device_distance: Any,
        connection_weight: float = 2,
        size_match_weight: float = 1e-2,
        complexity_match_weight: float = 1,
        entropy_weight: float = 1,
    ) -> None:
        """One step of `optimizer` down machin's loss, in which models are on devices by fractions.

        `placement` is n × m, the softmax of whose rows are these fractions; sizes and complexities of models are 1 × n
        and those of devices 1 × m, connections n × n, distances m × m: tensors of torch. `ModelAssigner` does not call
        it; it is for programs that do.
        """
        tensors = (model_size, size_capacity, model_complexity, complexity_capacity, model_connection, device_distance)
        terms = _terms(placement, *tensors)
        weights = (connection_weight, size_match_weight, complexity_match_weight, entropy_weight)
        loss = sum(weight * term for weight, term in zip(weights, terms, strict=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _terms(
    placement: Any,
    model_size: Any,
    size_capacity: Any,
    model_complexity: Any,
    complexity_capacity: Any,
    model_connection: Any,
    device_distance: Any,
) -> tuple[Any, Any, Any, Any]:
    """The terms of machin's loss: connection, size, complexity and entropy."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    logs = torch.log_softmax(placement, dim=-1)
    parts = logs.exp()
    far = parts @ _shares(device_distance, 0.0) @ parts.transpose(0, 1)
    far = far - torch.diag_embed(torch.diagonal(far))
    connection = (_shares(model_connection, 0.0) * far).mean()
    size = torch.relu(model_size @ parts - size_capacity).mean()
    wanted = _shares(complexity_capacity, 1.0 / complexity_capacity.numel())
    complexity = ((_shares(model_complexity, 0.0) @ parts - wanted) ** 2).mean()
    return connection, size, complexity, -(parts * logs).sum(dim=-1).mean()


def _shares(tensor: Any, otherwise: float) -> Any:
    """Each number by the sum of all, where that is not zero."""
    total = tensor.sum()
    return tensor / total if float(total) > 0 else tensor * 0 + otherwise


def _number(op: str, field: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise invalid(op, f"{field} is {value!r}; expected a finite number from 0 on", f"give {field} another value")
    return number


def _bytes(mebibytes: float, rounded: Any) -> int:
    return int(min(rounded(mebibytes * _MIB), _BYTES_MAX))


def _connections(given: Mapping[tuple[int, int], float], models: int) -> dict[tuple[str, str], float]:
    named = {}
    for (one, other), amount in given.items():
        if not (0 <= one < models and 0 <= other < models):
            what = f"model_connection has the key {(one, other)!r}; expected numbers of models below {models}"
            raise invalid("ModelAssigner", what, "models are counted from 0")
        number = _number("ModelAssigner", f"model_connection[{(one, other)!r}]", amount)
        named[f"model {one}", f"model {other}"] = number
    return named


def _usable(devices: Sequence[Any] | None) -> dict[str, Any]:
    """The devices that can be used, as the program gets them, by name."""
    if devices is None:
        usable = {f"cuda:{gpu}": _device(f"cuda:{gpu}") for gpu in GPUtil.getAvailable(order="load")}
    else:
        usable, free = {}, None
        for device in devices:
            kind, number = _kind(device)
            if kind == "cuda":
                free = set(GPUtil.getAvailable(order="load")) if free is None else free
                if number not in free:
                    logger.warning("device %s is not available, and left out", device)
                    continue
            usable.setdefault("cpu" if kind == "cpu" else f"cuda:{number}", _device(str(device)))
    return usable or {"cpu": _device("cpu")}


def _kind(device: Any) -> tuple[str, int]:
    kind, _, number = str(device).partition(":")
    if kind not in ("cpu", "cuda") or not (number or "0").isdecimal():
        what = f"devices has {device!r}; expected cpu, cuda, or cuda with a number"
        raise invalid("ModelAssigner", what, 'such as "cuda:0"')
    return kind, int(number or 0)


def _device(name: str) -> Any:
    torch = sys.modules.get("torch")
    return name if torch is None else torch.device(name)


def _gpu(name: str) -> Any:
    gpus, number = GPUtil.getGPUs(), _kind(name)[1]
    # By number where they have one, for the driver may hide some.
    return next((gpu for gpu in gpus if getattr(gpu, "id", None) == number), None) or gpus[number]


def _size_capacity(name: str) -> float:
    """MiB that are free; none where the driver does not tell."""
    if name == "cpu":
        return int(psutil.virtual_memory().available / _MIB)
    free = float(_gpu(name).memoryFree)
    return 0.0 if math.isnan(free) else max(free, 0.0)


def _complexity_capacity(name: str, cpu_weight: float) -> float:
    if name == "cpu":
        return cpu_weight
    load = float(_gpu(name).load)
    return 1.0 if math.isnan(load) else min(max(1.0 - load, 0.0), 1.0)


def _distances(names: list[str], gpu_gpu: float, cpu_gpu: float) -> dict[tuple[str, str], float]:
    pairs = [(one, other) for place, one in enumerate(names) for other in names[:place]]
    return {pair: cpu_gpu if "cpu" in pair else gpu_gpu for pair in pairs}
