"""What every store can do, the registry of stores that are Python classes, and the simplest one of them."""

import warnings
from typing import Any, ClassVar, TypeVar

from sheave.compat.mxnet.base import as_list
from sheave.compat.mxnet.ndarray.operators import add_n

__all__ = ["KVStoreBase", "TestStore"]

Class = TypeVar("Class", bound="type[KVStoreBase]")


class KVStoreBase:
    """An abstract store. A class of one's own is registered, and `create` makes it by its name in lower case.

    >>> import sheave.compat.mxnet as mx
    >>> @mx.kv.KVStoreBase.register
    ... class Nowhere(mx.kv.KVStoreBase):
    ...     type = "nowhere"
    >>> mx.kv.create("Nowhere").type
    'nowhere'
    """

    #: The capability of running an optimizer where the values are.
    OPTIMIZER = "optimizer"

    kv_registry: ClassVar[dict[str, "type[KVStoreBase]"]] = {}

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """New keys: every worker gets the values of worker 0."""
        raise NotImplementedError

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Merges values of all workers, and gives every worker the outcome, in `value` if there is no `out`."""
        raise NotImplementedError

    def set_optimizer(self, optimizer: Any) -> None:
        """Lets the store step its values by an optimizer."""
        raise NotImplementedError

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Whether the store has a capability, such as `KVStoreBase.OPTIMIZER`."""
        raise NotImplementedError

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Writes the optimizer's states to a file."""
        raise NotImplementedError

    def load_optimizer_states(self, fname: str) -> None:
        """Reads them from a file."""
        raise NotImplementedError

    @property
    def type(self) -> str:
        """The name of the kind of store."""
        raise NotImplementedError

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        raise NotImplementedError

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        raise NotImplementedError

    @staticmethod
    def register(klass: Class) -> Class:
        """Lets `create` find a class by its name in lower case. Returns the class, so it serves as a decorator."""
        name = klass.__name__.lower()
        if name in KVStoreBase.kv_registry:
            warnings.warn(f"the store {name} is registered a second time and takes the first one's place", stacklevel=2)
        KVStoreBase.kv_registry[name] = klass
        return klass


@KVStoreBase.register
class TestStore(KVStoreBase):
    """A store of one worker that keeps nothing: what stores of one's own are held against.

    >>> import sheave.compat.mxnet as mx
    >>> arrays = [mx.nd.ones(2), mx.nd.ones(2)]
    >>> mx.kv.create("teststore").pushpull(1, arrays)
    >>> arrays[0].asnumpy().tolist()
    [2.0, 2.0]
    """

    __test__ = False

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Copies the value to every output."""
        for place in as_list(out):
            place[:] = as_list(value)[0]

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Gives every output the sum of the values."""
        total = add_n(*as_list(value))
        for place in as_list(value if out is None else out):
            place[:] = total

    @staticmethod
    def is_capable(capability: str) -> bool:
        """False for the optimizer; raises `ValueError` for what is no capability."""
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return False
        raise ValueError(f"Unknown capability: {capability}")

    @property
    def type(self) -> str:
        """`teststore`"""
        return "teststore"

    @property
    def rank(self) -> int:
        """0"""
        return 0

    @property
    def num_workers(self) -> int:
        """1"""
        return 1
