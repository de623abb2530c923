"""States of models in safetensors files.

A state is a dict of arrays and plain values, however deep. Arrays are tensors of the file; everything else is one JSON
text of its metadata. Nothing is pickled, so a file of somebody else runs nothing.
"""

import json
import os
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np

from sheave import _core
from sheave._core import InvalidArgument

__all__ = ["load_state", "save_state"]

# The key of the text that has all but the arrays.
KEY = "state"


def save_state(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write a state to a file, whose folders are made; atomic: the old file is there or the new one, whole.

    Raises InvalidArgument for a value that a file cannot hold, which it names.
    """
    arrays: dict[str, Any] = {}
    text = json.dumps(_written(state, "state", arrays))
    _core._save_tensors(Path(path), arrays, [(KEY, text)])  # type: ignore[attr-defined]


def load_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a state from a file; arrays are numpy's, or torch's where numpy has no such dtype.

    Raises NotFound; LimitExceeded or InvalidArgument for a file that is damaged or is no safetensors file, and
    InvalidArgument for one of something else.
    """
    tensors, texts = _core._load_tensors(Path(path))  # type: ignore[attr-defined]
    if KEY not in texts:
        raise InvalidArgument(f"{path}: no state of a model; expected a file that was saved from one")
    state: dict[str, Any] = _read(json.loads(texts[KEY]), tensors)
    return state


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) or type(value).__module__.split(".")[0] == "torch" and hasattr(
        value, "numpy"
    )


def _written(value: Any, place: str, arrays: dict[str, Any]) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if _is_array(value):
        return _array(value, place, arrays)
    if isinstance(value, (list, tuple, deque)):
        kind = "list" if isinstance(value, list) else "tuple" if isinstance(value, tuple) else "deque"
        return {kind: [_written(item, f"{place}.{index}", arrays) for index, item in enumerate(value)]}
    if isinstance(value, dict):
        kinds = {Counter: "counter", OrderedDict: "dict", defaultdict: "dict", dict: "dict"}
        if kind_of := next((kind for type_, kind in kinds.items() if isinstance(value, type_)), None):
            pairs = [
                [_written(key, place, arrays), _written(item, f"{place}.{key}", arrays)] for key, item in value.items()
            ]
            return {kind_of: pairs}
    raise InvalidArgument(
        f"{place} is a {type(value).__qualname__}; expected an array, a number, a text, or a list or dict of such"
    )


def _array(value: Any, place: str, arrays: dict[str, Any]) -> dict[str, Any]:
    name = place
    while name in arrays:
        name += "'"
    if isinstance(value, (np.ndarray, np.generic)):
        arrays[name] = np.ascontiguousarray(value)
        return {"numpy": name, "shape": list(np.shape(value))}
    arrays[name] = value.detach().cpu().contiguous()
    return {"torch": name}


def _read(written: Any, tensors: dict[str, Any]) -> Any:
    if not isinstance(written, dict):
        return written
    ((kind, value),) = [(kind, value) for kind, value in written.items() if kind != "shape"]
    match kind:
        case "float":
            return float.fromhex(value)
        case "complex":
            return complex(*map(float.fromhex, value))
        case "bytes":
            return bytes.fromhex(value)
        case "numpy":
            return np.array(tensors[value].numpy()).reshape(written["shape"])
        case "torch":
            return tensors[value].torch()
        case "list":
            return [_read(item, tensors) for item in value]
        case "tuple":
            return tuple(_read(item, tensors) for item in value)
        case "deque":
            return deque(_read(item, tensors) for item in value)
        case "dict" | "counter":
            pairs = {_read(key, tensors): _read(item, tensors) for key, item in value}
            return Counter(pairs) if kind == "counter" else pairs
    raise InvalidArgument(f"a value of the kind {kind!r} in a state; expected one of this version's")
