"""Which model lives on which device: close to those that it is connected with, where there is memory and computation.

`assign` takes sizes and what devices have, and returns a `Placement`: the best one for up to 12 models on 8 devices, a
good one with a lower bound beyond. Memory is respected always; what does not fit is an error that says so.

>>> import sheave
>>> placement = sheave.placement.assign([6, 6, 1, 1], [8, 8], connections={(0, 2): 1.0, (1, 3): 1.0})
>>> placement.device_of, placement.exact
([0, 1, 0, 1], True)

What is minimised, with every list and matrix divided by its sum:

```text
connection_weight           * sum of connections[i, j] * distances[device_of[i], device_of[j]]
complexity_weight / devices * sum of (complexity of the models on a device - its complexity)**2
```
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sheave._core import InvalidArgument, Placement, place_models

__all__ = ["Placement", "assign"]

_Numbers = Mapping[str, float] | Sequence[float]
_Matrix = Mapping[tuple[Any, Any], float] | Sequence[Sequence[float]]


def assign(
    sizes: Mapping[str, int] | Sequence[int],
    capacities: Mapping[str, int] | Sequence[int],
    *,
    complexity: _Numbers | None = None,
    connections: _Matrix | None = None,
    device_complexity: _Numbers | None = None,
    distances: _Matrix | None = None,
    connection_weight: float = 2.0,
    complexity_weight: float = 1.0,
    effort: int | None = None,
    seed: int = 0,
) -> Placement:
    """Place models on devices.

    `sizes` and `capacities` are bytes, by number or by name. `complexity` is what each model computes, its size if it
    is None; `device_complexity` what each device can, all alike if it is None. `connections` is how much goes between
    two models, nothing where it is not said, and `distances` how far two devices are apart, 1 where it is not said: a
    matrix, or a mapping from pairs of numbers or names. A distance holds both ways. Of all of these only proportions
    count.

    `effort` is how many moves are tried for each model of a problem that is too large for the optimum, and `seed`
    determines which; the same arguments give the same placement, everywhere.

    Raises `sheave.InvalidArgument` for numbers without a meaning, and `sheave.LimitExceeded` where models do not fit.

    >>> import sheave
    >>> placement = sheave.placement.assign({"actor": 2, "critic": 2}, {"cuda:0": 3, "cuda:1": 3, "cpu": 9},
    ...     device_complexity={"cuda:0": 1, "cuda:1": 1, "cpu": 0},
    ...     distances={("cpu", "cuda:0"): 10, ("cpu", "cuda:1"): 10})
    >>> placement.by_name
    {'actor': 'cuda:0', 'critic': 'cuda:1'}
    >>> sheave.placement.assign([2, 2], [3])
    Traceback (most recent call last):
    sheave.LimitExceeded: place models: the models take 4 bytes in all; expected at most the 3 of all devices
    """
    models, model_bytes = _listed("sizes", sizes)
    devices, device_bytes = _listed("capacities", capacities)
    if complexity is None:
        complexity = [float(size) for size in model_bytes]
    if device_complexity is None:
        device_complexity = [1.0] * len(device_bytes)
    apart = [float(one != other) for one in range(len(device_bytes)) for other in range(len(device_bytes))]
    return place_models(
        model_bytes,
        _numbers("complexity", complexity, models),
        _matrix("connections", connections, models, [0.0] * len(model_bytes) ** 2, False),
        device_bytes,
        _numbers("device_complexity", device_complexity, devices),
        _matrix("distances", distances, devices, apart, True),
        (_number("connection_weight", connection_weight), _number("complexity_weight", complexity_weight)),
        (_names(sizes), _names(capacities)),
        None if effort is None else _count("effort", effort),
        _count("seed", seed),
    )


def _names(given: Any) -> list[str]:
    return [str(name) for name in given] if isinstance(given, Mapping) else []


def _listed(field: str, given: Mapping[str, int] | Sequence[int]) -> tuple[list[Any], list[int]]:
    """Names, which are numbers where there are none, and bytes."""
    named = list(given.items()) if isinstance(given, Mapping) else list(enumerate(given))
    return [name for name, _ in named], [_count(f"{field}[{name!r}]", size) for name, size in named]


def _count(field: str, value: Any) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = -1
    if not 0 <= count < 2**64:
        raise InvalidArgument(f"{field} is {value!r}; expected an integer from 0 to 2**64 - 1")
    return count


def _number(field: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"{field} is {value!r}; expected a number") from None


def _numbers(field: str, given: _Numbers, names: list[Any]) -> list[float]:
    """A number for each name, in their order."""
    if not isinstance(given, Mapping):
        return [_number(f"{field}[{index}]", value) for index, value in enumerate(given)]
    if given.keys() != set(names):
        raise InvalidArgument(f"{field} has {_said(given)}; expected {_said(names)}")
    return [_number(f"{field}[{name!r}]", given[name]) for name in names]


def _said(names: Iterable[Any]) -> str:
    said = [repr(name) for name in names]
    return ", ".join(said[:8]) + (f" and {len(said) - 8} more" if len(said) > 8 else "") or "nothing"


def _matrix(
    field: str, given: _Matrix | None, names: list[Any], default: list[float], symmetric: bool
) -> list[float]:
    """The matrix, row by row."""
    if given is None:
        return default
    if not isinstance(given, Mapping):
        rows = [list(row) for row in given]
        if any(len(row) != len(names) for row in rows):
            raise InvalidArgument(f"{field} has rows of {_said(map(len, rows))}; expected each of {len(names)}")
        return [_number(field, value) for row in rows for value in row]
    places = {name: place for place, name in enumerate(names)}
    matrix = list(default)
    written: dict[tuple[int, int], float] = {}
    for pair, value in given.items():
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(end in places for end in pair)):
            raise InvalidArgument(f"{field} has the key {pair!r}; expected a pair of {_said(names)}")
        one, other = places[pair[0]], places[pair[1]]
        number = _number(f"{field}[{pair!r}]", value)
        for place in {(one, other), (other, one)} if symmetric else {(one, other)}:
            if written.setdefault(place, number) != number:
                what = f"{field}[{pair!r}] is {number} and back is {written[place]}; expected one distance"
                raise InvalidArgument(what)
            matrix[place[0] * len(names) + place[1]] = number
    return matrix
