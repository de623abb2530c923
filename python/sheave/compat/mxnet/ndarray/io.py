"""Arrays in files. The format is numpy's ``.npz``, not MXNet's; only what the face has written can be read."""

import zipfile
from typing import Any

import numpy as np

from sheave.compat.mxnet._replacing import replaced
from sheave.compat.mxnet.base import MXNetError
from sheave.compat.mxnet.ndarray import sparse
from sheave.compat.mxnet.ndarray.array import NDArray

__all__ = ["load", "save"]


def save(fname: str, data: NDArray | list[NDArray] | dict[str, NDArray]) -> None:
    """Writes an array, a list or a dictionary of arrays to exactly this path. Should that fail, what was there stays.

    >>> import tempfile
    >>> import sheave.compat.mxnet as mx
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     mx.nd.save(file.name, {"weight": mx.nd.ones(2)})
    ...     mx.nd.load(file.name)["weight"].asnumpy().tolist()
    [1.0, 1.0]
    """
    named = isinstance(data, dict)
    arrays = data if isinstance(data, dict) else dict(enumerate([data] if isinstance(data, NDArray) else data))
    written = {f"{'n' if named else 'l'}:{array.stype}:{name}": array.asnumpy() for name, array in arrays.items()}
    with replaced(fname) as file:
        np.savez(file, **written)  # type: ignore[arg-type, unused-ignore]


def load(fname: str) -> Any:
    """What `save` has written: a list, or a dictionary if one was saved."""
    try:
        with np.load(fname, allow_pickle=False) as file:
            entries = [(entry.split(":", 2), file[entry]) for entry in file.files]
    except (ValueError, zipfile.BadZipFile) as error:
        raise MXNetError(f"{fname} was not written by nd.save of sheave's face: {error}") from error
    arrays = [(kind, name, sparse.cast_storage(NDArray(raw), stype)) for (kind, stype, name), raw in entries]
    if arrays and arrays[0][0] == "n":
        return {name: array for _, name, array in arrays}
    return [array for _, _, array in arrays]
