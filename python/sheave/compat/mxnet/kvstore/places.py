"""Where pulled values go.

Of each key one value travels, straight into the first place that can take it; all others of that key are filled from
there when the operation has ended, in the order of the keys. A place cannot take it if its elements do not lie together
or are of another dtype, if an earlier pull into it is still under way, or if it is given twice. Then the value travels
into memory of its own.
"""

from typing import Any

import numpy as np

from sheave.compat.mxnet._pending import Pending
from sheave.compat.mxnet.base import MXNetError
from sheave.compat.mxnet.kvstore.keys import Key
from sheave.compat.mxnet.ndarray.array import Array, NDArray
from sheave.compat.mxnet.ndarray.sparse import BaseSparseNDArray, RowSparseNDArray

__all__ = ["Places", "RowPulls"]


class Filled:
    """Arrays that one operation fills, and the earlier operations that must have filled them before."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self._arrays: list[NDArray] = []
        self._earlier: list[Pending] = []

    def follow(self, works: list[Any]) -> Pending:
        """What is over when these works are and all arrays are filled."""
        return Pending(works, self._fill, self._earlier)

    def attach(self, pending: Pending) -> None:
        """Lets whoever touches one of the arrays wait."""
        for array in self._arrays:
            array._await(pending)

    def _note(self, array: NDArray) -> None:
        self._arrays.append(array)
        self._earlier += array._storage.pending

    def _fill(self) -> None:
        raise NotImplementedError


def _address(array: NDArray) -> int:
    address: int = array._raw.__array_interface__["data"][0]
    return address


class Places(Filled):
    """Where the whole values of keys go."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[Array] = []
        self._copies: list[tuple[NDArray, Array]] = []
        self._taken: set[int] = set()

    def add(self, key: Key, shape: tuple[int, ...], dtype: np.dtype[Any], arrays: list[NDArray]) -> None:
        """The value of a key goes into all of these."""
        for array in arrays:
            if array.shape != shape:
                raise MXNetError(
                    f"operands shape mismatch: key {key!r} holds from.shape={shape}, to.shape={array.shape}"
                )
        direct = next((array for array in arrays if self._takes(array, dtype)), None)
        target = np.empty(shape, dtype) if direct is None else direct._raw
        for array in arrays:
            self._note(array)
            self._taken.add(_address(array))
        self._copies += [(array, target) for array in arrays if array is not direct]
        self.keys.append(key)
        self.targets.append(target)

    def _takes(self, array: NDArray, dtype: np.dtype[Any]) -> bool:
        raw = array._raw
        fits = array.stype == "default" and raw.flags.c_contiguous and raw.dtype == dtype
        return fits and not array._is_awaited() and _address(array) not in self._taken

    def _fill(self) -> None:
        for array, value in self._copies:
            if isinstance(array, BaseSparseNDArray):
                array._take(value)
            else:
                np.copyto(array._raw, value, casting="unsafe")


class RowPulls(Filled):
    """Where some rows of keys go. Arrays that ask for the same rows share one pull."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[Array] = []
        self.buffers: list[Array] = []
        self._number: dict[tuple[Key, int], int] = {}
        self._served: list[tuple[RowSparseNDArray, int]] = []

    def add(
        self, key: Key, ids: NDArray, shape: tuple[int, ...], dtype: np.dtype[Any], array: RowSparseNDArray
    ) -> None:
        """The rows of a key with these ids go into this array."""
        number = self._number.setdefault((key, id(ids)), len(self.ids))
        if number == len(self.ids):
            self.keys.append(key)
            self.ids.append(np.unique(ids.asnumpy().astype(np.int64)))
            self.buffers.append(np.empty((len(self.ids[number]), *shape[1:]), dtype))
        self._note(array)
        self._served.append((array, number))

    def _fill(self) -> None:
        for array, number in self._served:
            array._set_rows(self.ids[number].copy(), self.buffers[number].copy())
