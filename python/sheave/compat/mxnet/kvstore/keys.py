"""What may be said of keys and values, as the original has it.

One key with an array or a list of arrays (one for each device), or a list of keys with a list of such. Keys are `int`
(32 bits) or `str`. What does not have that form is an `AssertionError`.
"""

from typing import Any, TypeAlias

from sheave.compat.mxnet.ndarray.array import NDArray

__all__ = ["Key", "Pairs", "grouped", "pairs"]

Key: TypeAlias = int | str
Pairs: TypeAlias = list[tuple[Key, NDArray]]

_INT_MAX = (1 << 31) - 1


def pairs(keys: Any, values: Any) -> Pairs:
    """Keys and arrays one by one, in the order in which they are given."""
    if not isinstance(keys, list | tuple):
        return _of_one(keys, values)
    assert isinstance(values, list | tuple), "a list of keys needs a list of values"
    assert len(keys) == len(values), f"{len(keys)} keys and {len(values)} values"
    flat = [pair for key, value in zip(keys, values, strict=True) for pair in _of_one(key, value)]
    assert len({type(key) for key, _ in flat}) < 2, "inconsistent types of keys detected."
    return flat


def _of_one(key: Any, value: Any) -> Pairs:
    assert isinstance(key, int | str), f"unexpected type for keys: {type(key)}"
    if not isinstance(key, str):
        key = int(key)
        if not -_INT_MAX - 1 <= key <= _INT_MAX:
            raise OverflowError(f"the key {key} does not fit 32 bits")
    arrays = list(value) if isinstance(value, list | tuple) else [value]
    for array in arrays:
        assert isinstance(array, NDArray), f"the value of key {key!r} is a {type(array).__name__}, not an NDArray"
    return [(key, array) for array in arrays]


def grouped(flat: Pairs) -> dict[Key, list[NDArray]]:
    """The arrays of each key, by ascending keys."""
    groups: dict[Key, list[NDArray]] = {}
    for key, array in flat:
        groups.setdefault(key, []).append(array)
    return dict(sorted(groups.items(), key=lambda group: group[0]))
