"""Processes whose exceptions their parent sees.

    process = Process(target=train, args=(7,), ctx=get_context("spawn"))
    process.start()
    process.join()
    process.watch()

What differs from machin, on purpose:

- The exit status is what Python makes it: 1 of a target that raises, that of `sys.exit`, and minus the number of the
  signal that has ended it.
- An end with any status but zero is an exception, however it came: `os._exit`, a signal and `sys.exit(3)` too.
- Targets and cleaners may be lambdas, local functions, and those of a script that does not guard its main part.
- A process never waits for its parent to read what it has raised; of a very long text the middle is left out.
"""

import multiprocessing
import os
import signal
import traceback
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from sheave import pickling

__all__ = ["Process", "ProcessException"]

#: Bytes of a text that fit into what the child writes to without waiting, at its beginning and at its end.
_HEAD_BYTES, _TAIL_BYTES = 8 << 10, 24 << 10


class ProcessException(Exception):
    """What a process has raised: the text of it, with tracebacks; or how it has ended."""


def format_exceptions(exceptions: Sequence[BaseException]) -> str:
    """The tracebacks of exceptions, each under its number."""
    texts = ("".join(traceback.format_exception(type(each), each, each.__traceback__)) for each in exceptions)
    return "\n".join(f"Exception {number}:\n{text}" for number, text in enumerate(texts))


def run_with_cleaner(run: Callable[[], object], cleaner: Callable[[], object] | None) -> list[BaseException]:
    """Call both, whatever they do; returns what they raise, without an end by `sys.exit` that means success."""
    errors: list[BaseException] = []
    for act in (run, cleaner):
        if act is None:
            continue
        try:
            act()
        except SystemExit as error:
            if error.code not in (None, 0):
                errors.append(error)
        except BaseException as error:
            errors.append(error)
    return errors


class _ByValue:
    """A function that travels by value if it cannot by name: its pickle is opened as the function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __reduce__(self) -> Any:
        return pickling.loads, (pickling.dumps(self.function),)


def portable(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """The function, or what travels in its place if it cannot by name."""
    if not isinstance(function, types.FunctionType):
        return function
    module, name = function.__module__, function.__qualname__
    is_named = module != "__main__" and pickling._is_by_name(function, module, name)
    return function if is_named else _ByValue(function)


class Process(multiprocessing.Process):
    """A process that tells its parent what its target and its cleaner raise.

    `cleaner` is called at its end unless a signal or `os._exit` ends it. `ctx` is a context of multiprocessing, which
    says how it is started; the default one if None.
    """

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        cleaner: Callable[[], object] | None = None,
        ctx: Any = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        super().__init__(group, portable(target), name, tuple(args), dict(kwargs or {}), daemon=daemon)
        if ctx is not None:
            # By this name the child knows how to start others.
            self._start_method = ctx.get_start_method()
        self._cleaner = portable(cleaner)
        self._told: Connection | None
        self._tells: Connection | None
        self._told, self._tells = multiprocessing.Pipe()
        self._exception: ProcessException | None = None
        self._parent = os.getpid()
        self._was_started = self._is_closed = False

    @staticmethod
    def format_exceptions(exceptions: Sequence[BaseException]) -> str:
        """The tracebacks of exceptions, each under its number."""
        return format_exceptions(exceptions)

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        # How the context that was asked for starts one; there is no public way to say that.
        kind: Any = multiprocessing.get_context(process_obj._start_method).Process
        return kind._Popen(process_obj)

    def __getstate__(self) -> dict[str, Any]:
        # What the parent reads is not for the child.
        return {**self.__dict__, "_told": None}

    @property
    def exception(self) -> ProcessException | None:
        """What it has raised, or how it has ended unless that was well; None so far."""
        if self._exception is None and self._was_started and not self._is_closed and self._parent == os.getpid():
            # In this order: what it has raised is there before it has ended.
            status = self.exitcode
            text = self._text()
            if text is not None:
                self._exception = ProcessException(text)
            elif status:
                self._exception = ProcessException(f"process {self.name} {_ended(status)}")
        return self._exception

    def watch(self) -> None:
        """Raise what `exception` is, if there is one, when the process has ended, for which it waits then."""
        error = self.exception
        if error is not None:
            self.join()
            raise error

    def start(self) -> None:
        """Start it."""
        super().start()
        self._was_started = True
        if self._tells is not None:
            self._tells.close()
            self._tells = None

    def close(self) -> None:
        """Release what it takes here; it must have ended."""
        _ = self.exception
        super().close()
        self._is_closed = True
        if self._told is not None:
            self._told.close()
            self._told = None

    def run(self) -> None:
        """Call the target, and the cleaner. In the process that was started."""
        errors = run_with_cleaner(super().run, self._cleaner)
        if not errors:
            return
        if self._tells is not None:
            self._tells.send_bytes(_cut(format_exceptions(errors).encode(errors="replace")))
        # Of two the one that is no mere exit says the status.
        raise next((error for error in errors if not isinstance(error, SystemExit)), errors[0])

    def _text(self) -> str | None:
        if self._told is None:
            return None
        try:
            return self._told.recv_bytes().decode(errors="replace") if self._told.poll() else None
        except (EOFError, OSError):
            return None


def _cut(text: bytes) -> bytes:
    if len(text) <= _HEAD_BYTES + _TAIL_BYTES:
        return text
    left_out = len(text) - _HEAD_BYTES - _TAIL_BYTES
    return text[:_HEAD_BYTES] + b"\n... %d bytes ...\n" % left_out + text[-_TAIL_BYTES:]


def _ended(status: int) -> str:
    if status > 0:
        return f"has ended with exit status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
