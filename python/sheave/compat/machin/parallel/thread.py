"""Threads whose exceptions others see.

What differs from machin, on purpose:

- The exception itself is the cause of the `ThreadException`.
- `sys.exit` with a status that is not zero is an exception too; it ends the thread and nothing else, as Python has it.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sheave.compat.machin.parallel.process import format_exceptions, run_with_cleaner

__all__ = ["Thread", "ThreadException"]


class ThreadException(Exception):
    """What a thread has raised: the text of it, with tracebacks."""


class Thread(threading.Thread):
    """A thread that keeps what its target and its cleaner raise. `cleaner` is called at its end, however that comes."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        cleaner: Callable[[], object] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        super().__init__(group, target, name, tuple(args), dict(kwargs or {}), daemon=daemon)
        self._cleaner = cleaner
        self._exception: ThreadException | None = None

    @staticmethod
    def format_exceptions(exceptions: Sequence[BaseException]) -> str:
        """The tracebacks of exceptions, each under its number."""
        return format_exceptions(exceptions)

    @property
    def exception(self) -> ThreadException | None:
        """What it has raised, or None so far."""
        return self._exception

    def watch(self) -> None:
        """Raise what it has raised, if it has. Does not wait."""
        if self._exception is not None:
            raise self._exception

    def run(self) -> None:
        """Call the target, and the cleaner."""
        errors = run_with_cleaner(super().run, self._cleaner)
        if errors:
            raised = ThreadException(format_exceptions(errors))
            raised.__cause__ = errors[0]
            self._exception = raised
