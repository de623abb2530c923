"""What the outputs of all members say together."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sheave import _core_bayes as native
from sheave._core import InvalidArgument

__all__ = ["combine"]

_Members = list[NDArray[Any]]


def _stacked(members: _Members) -> NDArray[Any]:
    return np.stack(members, axis=1)


def _probabilities(logits: NDArray[Any]) -> NDArray[Any]:
    return np.exp(native.log_softmax(logits))


def _halves(members: _Members) -> tuple[_Members, _Members]:
    """Means and variances of members that predict a mean and the logarithm of a variance for each target."""
    width = members[0].shape[-1]
    if width % 2:
        raise InvalidArgument(f"the outputs have {width} columns; expected means and as many logarithms of variances")
    means = [np.ascontiguousarray(member[..., : width // 2]) for member in members]
    return means, [np.exp(member[..., width // 2 :]) for member in members]


_REGRESSION: dict[str, Callable[[_Members], NDArray[Any]]] = {
    "mean": native.mean,
    "std": native.std,
    "median": native.median,
    "min": lambda members: np.min(members, axis=0),
    "max": lambda members: np.max(members, axis=0),
    "pred": _stacked,
}

_CLASSIFICATION: dict[str, Callable[[_Members], NDArray[Any]]] = {
    "logits": _stacked,
    "prob": lambda members: _stacked([_probabilities(member) for member in members]),
    "mean_prob": native.mean_probabilities,
    "log_prob": native.mean_log_probabilities,
    "std": native.probability_std,
    "mode": native.mode,
}

_GAUSSIAN: dict[str, Callable[[_Members], NDArray[Any]]] = {
    "mean": lambda members: native.mixture(*_halves(members))[0],
    "std": lambda members: np.sqrt(native.mixture(*_halves(members))[1]),
    "model_std": lambda members: native.std(_halves(members)[0]),
    "noise_std": lambda members: np.sqrt(native.mean(_halves(members)[1])),
    "pred": _stacked,
}

TASKS: dict[str, dict[str, Callable[[_Members], NDArray[Any]]]] = {
    "regression": _REGRESSION,
    "gaussian": _GAUSSIAN,
    "classification": _CLASSIFICATION,
}

DEFAULTS = {"regression": "mean", "gaussian": "mean", "classification": "mean_prob"}


def require_task(task: str) -> None:
    """Refuse what is no task."""
    if task not in TASKS:
        raise InvalidArgument(f"task is {task!r}; expected one of {', '.join(map(repr, TASKS))}")


def modes_of(task: str, mode: str | Iterable[str] | None) -> list[str]:
    """The modes that are meant, each of which the task has."""
    modes = [DEFAULTS[task]] if mode is None else [mode] if isinstance(mode, str) else list(mode)
    known = [*TASKS[task], *(["quantile"] if task == "regression" else [])]
    for name in modes:
        if name not in known:
            raise InvalidArgument(f"mode is {name!r}; expected of a {task} some of {', '.join(map(repr, known))}")
    return modes


def combine(
    task: str, members: Sequence[Any], modes: Iterable[str], quantile: float | Sequence[float] = 0.5
) -> dict[str, NDArray[Any]]:
    """Return what each mode says of the outputs of all members, arrays of one shape.

    A regression's outputs are [B] or [B, out], a classification's logits [B, C], a Gaussian head's [B, 2 out].

    >>> import numpy as np, sheave
    >>> members = [np.array([[1.0]]), np.array([[3.0]])]
    >>> sheave.bayes.combine("regression", members, ["mean", "pred"])
    {'mean': array([[2.]]), 'pred': array([[[1.],
            [3.]]])}
    """
    rows: _Members = [np.ascontiguousarray(member, _float(member)) for member in members]
    made = {}
    for name in modes:
        if name != "quantile":
            made[name] = TASKS[task][name](rows)
        elif isinstance(quantile, float | int):
            made[name] = native.quantile(rows, float(quantile))
        else:
            made[name] = np.stack([native.quantile(rows, float(each)) for each in quantile])
    return made


def _float(array: NDArray[Any]) -> type:
    """The float to compute in: the array's own, or the least that holds it."""
    if array.dtype == np.float64:
        return np.float64
    return np.float32 if array.dtype in (np.float32, np.float16) else np.float64
