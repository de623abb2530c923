"""Batches in, arrays out: numpy's and torch's alike."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sheave._core import InvalidArgument

__all__: list[str] = []


def to_numpy(array: Any) -> NDArray[Any]:
    """The elements as a numpy array; those of a torch tensor without its graph, from whichever device."""
    if is_tensor(array):
        return np.asarray(array.detach().cpu())
    return np.asarray(array)


def is_tensor(array: Any) -> bool:
    """Whether it is a tensor of torch, which is not imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def compact(array: Any) -> Any:
    """The array, or a copy where it is a part of a tensor that is larger: all of that would travel with it."""
    if is_tensor(array) and array.untyped_storage().nbytes() > array.nbytes:
        return array.clone()
    return array


def several(loader: Iterable[Any], count: int) -> Iterator[list[tuple[Any, Any]]]:
    """The batches of a loader, up to so many at a time; then they are copies, for it may use its arrays again.

    One that is no pair of arrays comes alone, before the loader goes on.
    """
    held: list[tuple[Any, Any]] = []
    for x, y in pairs(loader):
        if count > 1 and is_array(x) and is_array(y):
            held.append((copied(x), copied(y)))
            if len(held) < count:
                continue
            yield held
        else:
            if held:
                yield held
            yield [(x, y)]
        held = []
    if held:
        yield held


def is_array(array: Any) -> bool:
    """Whether it is an array of numpy or a tensor of torch."""
    return isinstance(array, np.ndarray) or is_tensor(array)


def copied(array: Any) -> Any:
    """A copy of an array."""
    return array.clone() if is_tensor(array) else array.copy()


def pairs(loader: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """The batches of a loader, each of which must be a pair."""
    for place, batch in enumerate(loader):
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            what = f"batch {place} of the loader is a {type(batch).__name__}; expected a pair of inputs and targets"
            raise InvalidArgument(what)
        yield batch[0], batch[1]


def inputs(data: Any, batch_size: int | None) -> Iterator[Any]:
    """The inputs of an array, of a batch of them, or of a loader of inputs or of pairs."""
    if not hasattr(data, "shape"):
        for batch in data:
            yield batch[0] if isinstance(batch, tuple | list) else batch
        return
    size = batch_size or max(len(data), 1)
    for start in range(0, len(data), size):
        yield data[start : start + size]


def require_repeatable(loader: Iterable[Any], epochs: int) -> None:
    """Refuse an iterator, which gives its batches once, where there are several epochs."""
    if epochs < 0:
        raise InvalidArgument(f"epochs is {epochs}; expected 0 or more")
    if epochs > 1 and iter(loader) is loader:
        raise InvalidArgument(
            f"the loader is an iterator, which gives its batches once; expected {epochs} epochs of them; "
            "hint: give a list of batches, or a DataLoader"
        )


def count_data(loader: Iterable[Any], given: int | None) -> int:
    """How many data there are: what was said, what the loader's data set says, or the sum of its batches."""
    if given is not None:
        if given < 1:
            raise InvalidArgument(f"data is {given}; expected the number of data, 1 or more")
        return given
    dataset = getattr(loader, "dataset", None)
    if dataset is not None and hasattr(dataset, "__len__"):
        return len(dataset)
    if iter(loader) is loader:
        raise InvalidArgument("the loader is an iterator; expected data=, the number of data in all of its batches")
    return sum(len(y) for _, y in pairs(loader))


def joined(loader: Iterable[Any]) -> tuple[Any, Any, int]:
    """All data of a loader as two arrays, and the size of its first batch."""
    batches = list(pairs(loader))
    if not batches:
        raise InvalidArgument("the loader has no batches; expected one at least")
    columns = []
    for place in (0, 1):
        parts = [batch[place] for batch in batches]
        if is_tensor(parts[0]):
            columns.append(sys.modules["torch"].cat(parts))
        else:
            columns.append(np.concatenate(parts))
    return columns[0], columns[1], len(batches[0][1])


def taken(array: Any, indices: NDArray[np.int64]) -> Any:
    """The rows of these numbers."""
    return array[sys.modules["torch"].from_numpy(indices)] if is_tensor(array) else array[indices]
