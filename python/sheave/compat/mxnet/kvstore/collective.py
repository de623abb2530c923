"""Stores that keep nothing: MXNet 2's `horovod` and `byteps`, here sheave's own collective operations.

They need no servers. Every worker calls the same operations in the same order. Each blocks until all have.
"""

from typing import Any

import numpy as np
import sheave

from sheave.compat.mxnet.base import as_list, translated
from sheave.compat.mxnet.kvstore.base import KVStoreBase
from sheave.compat.mxnet.kvstore.keys import pairs
from sheave.compat.mxnet.ndarray.array import NDArray

__all__ = ["BytePS", "Horovod"]


@KVStoreBase.register
class Horovod(KVStoreBase):
    """Sums over all workers. Its optimizer methods do nothing, as in MXNet: workers step their weights themselves."""

    def __init__(self) -> None:
        with translated():
            try:
                self._mesh = sheave.default_mesh()
            except sheave.NotFound:
                self._mesh = sheave.init()
            # The workers, or all where there are plain ranks.
            self._group = self._mesh.role_group()

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Every output becomes worker 0's value."""
        given = dict(reversed(pairs(key, value)))
        for one, place in pairs(key, out):
            with translated():
                place[:] = self._group.broadcast(np.array(given[one]._data, order="C"), src=0)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Every output becomes the sum of the workers' values, element by element of a list."""
        values, outs = as_list(value), as_list(value if out is None else out)
        assert len(values) == len(outs), f"{len(values)} values and {len(outs)} outputs"
        for given, place in zip(values, outs, strict=True):
            assert isinstance(given, NDArray), f"the value of key {key!r} is a {type(given).__name__}, not an NDArray"
            with translated():
                place[:] = self._group.all_reduce(np.array(given._data, order="C"))

    def set_optimizer(self, optimizer: Any) -> None:
        """Does nothing."""

    @staticmethod
    def is_capable(capability: str) -> bool:
        """False."""
        return False

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Does nothing."""

    def load_optimizer_states(self, fname: str) -> None:
        """Does nothing."""

    @property
    def type(self) -> str:
        """`horovod` or `byteps`"""
        return type(self).__name__.lower()

    @property
    def rank(self) -> int:
        """This worker's number."""
        return self._group.rank

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return self._group.size

    @property
    def local_rank(self) -> int:
        """This worker's number among those on its host."""
        members = self._group.members
        hosts = [member.host for member in members[: self.rank]]
        return hosts.count(members[self.rank].host)


@KVStoreBase.register
class BytePS(Horovod):
    """Sums over all workers, of one array for each key. It has no optimizer methods."""

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """The output, or the value if there is none, becomes the sum of the workers' values."""
        assert len(as_list(value)) == 1 and len(as_list(out)) == 1, "byteps has one array for each key"
        super().pushpull(key, value, out, priority)

    def set_optimizer(self, optimizer: Any) -> None:
        """Raises `NotImplementedError`."""
        raise NotImplementedError

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Raises `NotImplementedError`."""
        raise NotImplementedError

    def load_optimizer_states(self, fname: str) -> None:
        """Raises `NotImplementedError`."""
        raise NotImplementedError
