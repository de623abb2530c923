"""Pickles of functions and tensors.

    data = dumps(lambda: tensor.sum(), copy_tensor=False)
    loads(data)()

What differs from machin, on purpose:

- They are `sheave.pickling`'s: lambdas, local functions, and what a script defines travel by value, with the globals
  that they use and no others, whether `recurse` is said or not.
- Without `copy_tensor` a tensor on the CPU moves into shared memory when it is pickled, unless it is there already, and
  is the same memory in whatever process opens the pickle. A pickle of it is opened once, and keeps the memory until
  that; one that nobody opens keeps it until its process ends. The sharing strategy of torch is left as it is.
- `mark_static_module` changes nothing in the module itself.
- Without torch in the program there is nothing to share, and `copy_tensor` means nothing.
"""

import importlib
import io
import sys
import threading
import types
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from typing import IO, Any

from sheave import pickling

__all__ = ["Pickler", "dumps", "loads", "mark_static_module"]

#: Names of modules whose functions and classes are found by name wherever a pickle is opened.
_static: set[str] = set()

_strategy = threading.Lock()


class Pickler(pickling._Pickler):
    """Writes pickles to a file: with their tensors, or with references to them where `copy_tensor` is false."""

    def __init__(self, file: IO[bytes], recurse: bool = False, copy_tensor: bool = False) -> None:
        super().__init__(file, None, "__main__" in _static, [])  # type: ignore[arg-type]
        self.copy_tensor = copy_tensor
        # Processes of multiprocessing are no nodes yet.
        self.is_attached = False

    def reducer_override(self, value: Any) -> Any:
        """How a value is pickled that `sheave.pickling` would pickle otherwise."""
        if isinstance(value, types.ModuleType) and value.__name__ in _static:
            return importlib.import_module, (value.__name__,)
        if isinstance(value, (type, types.FunctionType)) and value.__module__ in _static:
            if pickling._is_by_name(value, value.__module__, value.__qualname__):
                return NotImplemented
        if not self.copy_tensor and _is_of_torch(value) and not self.is_copied(value):
            reduced = _shared(value)
            if reduced is not None:
                return reduced
        return super().reducer_override(value)

    def is_copied(self, value: Any) -> bool:
        """Whether a tensor or a storage is copied although others are shared."""
        return False

    def place_of(self, ref: Any) -> int:
        """Refuse references of calls, which are counted."""
        raise PicklingError("references travel in calls alone, where they are counted")


def dumps(obj: Any, recurse: bool = False, copy_tensor: bool = True) -> bytes:
    """Return the pickle of `obj`: with its tensors, or with references to them.

    Raises what the pickles of Python raise for what cannot be pickled; RuntimeError for a tensor that cannot be shared,
    because autograd has made it.
    """
    with io.BytesIO() as file:
        Pickler(file, recurse, copy_tensor).dump(obj)
        return file.getvalue()


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Return what `dumps` was given. Runs what its sender has written."""
    return pickling.loads(data)


def mark_static_module(module: types.ModuleType) -> None:
    """From now on pickle what the module defines by its name, also where it is the script itself: it is to be found
    under that name wherever the pickle is opened."""
    _static.add(module.__name__)


def _is_of_torch(value: Any) -> bool:
    """Whether it is a tensor or a storage."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "UntypedStorage"):
        return False
    return isinstance(value, (torch.Tensor, torch.UntypedStorage, torch.storage.TypedStorage))


def _shared(value: Any) -> Any:
    """What torch's own processes get of it, by a name that any process may open; None of kinds that these do not know.

    The functions that torch has registered for that are the public way to them.
    """
    # Some releases of torch have types for it, and some have none.
    multiprocessing: Any = importlib.import_module("torch.multiprocessing")
    reduce = ForkingPickler(io.BytesIO()).dispatch_table.get(type(value))  # type: ignore[attr-defined, unused-ignore]
    if reduce is None:
        return None
    with _strategy:
        before = multiprocessing.get_sharing_strategy()
        multiprocessing.set_sharing_strategy("file_system")
        try:
            return reduce(value)
        finally:
            multiprocessing.set_sharing_strategy(before)
