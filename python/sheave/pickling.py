"""Pickles of user code and its data: one way for all of sheave.

- Functions and classes that can be imported travel by name, all others by value: lambdas, what functions define, and
  what a script or a notebook defines. That is cloudpickle's work.
- Large buffers travel beside the pickle and are not copied into it: those of numpy arrays, of `bytearray` and of
  whatever gives out-of-band buffers by protocol 5.
- Tensors of torch take their storages along, each once: views of one storage are views of one storage again, also as
  parameters of a module. A view of a large storage takes all of it; send a clone where that is too much. What was on
  a device comes back there, or to the CPU where there is no such device. Compiled modules (TorchScript) travel as torch
  saves them.

A pickle is a program: opening one runs what its sender has written. Open none that comes from a stranger.

>>> import sheave.pickling
>>> double = sheave.pickling.loads(sheave.pickling.dumps(lambda number: 2 * number))
>>> double(21)
42
"""

from __future__ import annotations

import io
import pickle
import sys
import threading
import types
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-not-found, import-untyped, unused-ignore]

from sheave._core import InvalidArgument, Ref

__all__ = ["Pickled", "dumps", "loads", "pack", "pack_exception", "unpack", "unpack_exception"]

_APART_BYTES = 4096
"""Buffers from this size on travel beside the pickle; smaller ones cost less in it than a part of their own."""


class Pickled(NamedTuple):
    """A pickle, and the buffers and references that belong to it.

    The buffers are those of the pickled objects themselves, not copies: whoever sends them later sends what is in them
    then.
    """

    data: bytes
    buffers: list[memoryview]
    refs: list[Ref]


def _is_by_name(value: Any, module: str, name: str) -> bool:
    """Whether a function or class is what its module has under its name, and that is where others are to find it."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not value:
        return False
    by_value = cloudpickle.list_registry_pickle_by_value()
    return not by_value or not any(module == each or module.startswith(each + ".") for each in by_value)


def _apply(function: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any:
    """Calls of functions that were sent here."""
    return function(*args, **kwargs) if kwargs else function(*args)


def dumps(value: Any, *, main_by_name: bool = False) -> bytes:
    """Return the pickle of `value` with everything in it.

    With `main_by_name` what a script defines travels by name too: for processes that have imported the script.

    Raises InvalidArgument for what cannot be pickled, with what that is.
    """
    return _pickled(value, None, main_by_name)


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Return what `dumps` was given. Runs what its sender has written; raises whatever that raises."""
    return pickle.loads(data)


def pack(value: Any) -> Pickled:
    """Return the pickle of `value` and its large buffers, which are not copied.

    Raises InvalidArgument as `dumps` does.

    >>> import numpy as np, sheave.pickling
    >>> packed = sheave.pickling.pack(np.zeros(10_000))
    >>> len(packed.data) < 1000, [buffer.nbytes for buffer in packed.buffers]
    (True, [80000])
    """
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:
            # In no order that can be sent as it lies.
            return True
        if raw.nbytes < _APART_BYTES:
            return True
        buffers.append(raw)
        return False

    refs: list[Ref] = []
    return Pickled(_pickled(value, keep, False, refs), buffers, refs)


def unpack(data: bytes | bytearray | memoryview, buffers: Iterable[Any], refs: Sequence[Ref] = ()) -> Any:
    """Return what `pack` was given, in the memory of `buffers`: what is to be written needs buffers that may be."""
    before = getattr(_opening, "refs", ())
    _opening.refs = refs
    try:
        return pickle.loads(data, buffers=buffers)
    finally:
        # What is opened may open another one meanwhile.
        _opening.refs = before


_opening = threading.local()
"""The references beside the pickle that this thread opens."""


def _ref(place: int) -> Ref:
    found: Ref = _opening.refs[place]
    return found


def pack_exception(error: BaseException) -> bytes | None:
    """Return the pickle of an exception: its class, its arguments and what it carries besides; None if its class cannot
    be pickled. What of the rest cannot be pickled is left out, and then its text is its only argument.

    Its traceback, and the exceptions that it was raised because of, are not in it.

    >>> import sheave.pickling
    >>> sheave.pickling.unpack_exception(sheave.pickling.pack_exception(KeyError("x")))
    KeyError('x')
    """
    # Those of Python's own know what they are made of; a constructor of anybody else's may take other things.
    knows_itself = isinstance(type(error).__init__, types.WrapperDescriptorType)
    forms: list[Any] = [error] if knows_itself else []
    forms += [(type(error), args, state) for args, state in ((error.args, error.__dict__), ((str(error),), {}))]
    for form in forms:
        try:
            return dumps(form)
        except InvalidArgument:
            continue
    return None


def unpack_exception(data: bytes | bytearray | memoryview) -> BaseException:
    """Return the exception that `pack_exception` was given, without calling a constructor that may take other things.

    Runs what its sender has written; raises whatever that raises.
    """
    form = loads(data)
    if isinstance(form, BaseException):
        return form
    kind, args, state = form
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise InvalidArgument(f"a pickle of {kind!r}; expected one of an exception")
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def _pickled(value: Any, keep: Any, main_by_name: bool, refs: list[Ref] | None = None) -> bytes:
    with io.BytesIO() as file:
        try:
            _Pickler(file, keep, main_by_name, refs).dump(value)
        except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError) as error:
            what = f"{type(value).__module__}.{type(value).__qualname__}"
            hint = "hint: leave out what holds locks, files or connections, or give its class a __reduce__"
            raise InvalidArgument(f"a value of {what} cannot be pickled: {error}; {hint}") from error
        return file.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
    """Adds what torch leaves to others: storages by their memory."""

    def __init__(self, file: io.BytesIO, buffer_callback: Any, main_by_name: bool, refs: list[Ref] | None):
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self.main_by_name = main_by_name
        self.refs = refs
        # It goes to nodes that know this one.
        self.is_attached = refs is not None
        # Of each storage, by its address: tensors make a new object of theirs whenever they are asked.
        self.storages: dict[int, _Storage] = {}

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Ref:
            return _ref, (self.place_of(value),)
        queues = sys.modules.get("sheave.pool._queue")
        if queues is not None and isinstance(value, queues.Queue):
            return value._reduced(self.is_attached)
        if self.main_by_name and isinstance(value, (type, types.FunctionType)) and _is_of_main(value):
            return NotImplemented
        connections = sys.modules.get("multiprocessing.connection")
        if connections is not None and isinstance(value, connections._ConnectionBase):
            # Its number would mean something else there.
            raise pickle.PicklingError("pipes and queues of multiprocessing stay with the processes that it starts")
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "UntypedStorage"):
            reduced = self.reduced_of_torch(torch, value)
            if reduced is not None:
                return reduced
        return super().reducer_override(value)

    def place_of(self, ref: Ref) -> int:
        """The place of a reference among those that travel beside the pickle, where it is counted."""
        if self.refs is None:
            raise pickle.PicklingError("references travel in calls alone, where they are counted")
        self.refs.append(ref)
        return len(self.refs) - 1

    def reduced_of_torch(self, torch: Any, value: Any) -> Any:
        if isinstance(value, torch.storage.TypedStorage):
            return _typed_storage, (self.storage(value._untyped_storage), value.dtype)
        if isinstance(value, torch.UntypedStorage):
            # Tensors of newer dtypes have one, and are rebuilt of a typed one, which torch's own pickles make of it.
            return _typed_storage, (self.storage(value), torch.uint8)
        if isinstance(value, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
            saved = io.BytesIO()
            torch.jit.save(value, saved)
            return _script, (pickle.PickleBuffer(saved.getvalue()),)
        return None

    def storage(self, storage: Any) -> _Storage:
        # Kept until the pickle is made, so that no other one gets the address meanwhile.
        return self.storages.setdefault(storage._cdata, _Storage(storage))


def _is_of_main(value: Any) -> bool:
    """Whether the script has a function or class under its name."""
    if value.__module__ != "__main__":
        return False
    found: Any = sys.modules["__main__"]
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def _torch() -> Any:
    """torch, which is there where one of its storages is."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    return torch


class _Storage:
    """A storage of torch on its way: its bytes, and the device that it was on."""

    def __init__(self, storage: Any):
        self.storage = storage

    def __reduce__(self) -> Any:
        here = self.storage if self.storage.device.type == "cpu" else self.storage.cpu()
        octets = _torch().tensor([], dtype=_torch().uint8).set_(here)
        return _storage, (pickle.PickleBuffer(octets.numpy()), str(self.storage.device))


def _storage(buffer: Any, device: str) -> Any:
    torch = _torch()
    view = memoryview(buffer)
    if view.nbytes == 0:
        storage = torch.UntypedStorage(0)
    else:
        storage = torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8).untyped_storage()
    if device == "cpu":
        return storage
    try:
        return torch.tensor([], dtype=torch.uint8).set_(storage).to(device).untyped_storage()
    except (RuntimeError, AssertionError):
        return storage


def _typed_storage(storage: Any, dtype: Any) -> Any:
    torch = _torch()
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def _script(buffer: Any) -> Any:
    return _torch().jit.load(io.BytesIO(bytes(buffer)))
