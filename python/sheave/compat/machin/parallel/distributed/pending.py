"""Handles of operations in flight, as torch.distributed's are used."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sheave import SheaveError, Work

from sheave.compat.runtime_errors import raised, raising


class PendingOperation:
    """An operation in flight. It goes on, and keeps its tensors, whether or not this handle is kept."""

    def __init__(self, work: "Work[Any]", finish: Callable[[Any], Any]) -> None:
        self._work = work
        self._finish: Callable[[Any], Any] | None = finish
        self._lock = threading.Lock()
        self._result: Any = None

    def wait(self, timeout: float | timedelta | None = None) -> Any:
        """Waits for the end: the source's rank of a receive, else True.

        The group's timeout ends the operation; one that is given here, in seconds, ends just this wait.
        """
        limit_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        with raising():
            return self._finished(self._work.wait(limit_s))

    def is_completed(self) -> bool:
        """Whether it has ended, well or not. The results of one that has ended well are there."""
        if not self._work.done():
            return False
        if self._work.exception() is None:
            self._finished(self._work.result())
        return True

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed() and self._work.exception() is None

    def exception(self) -> BaseException | None:
        """Why it has failed; None while it has not."""
        error = self._work.exception() if self._work.done() else None
        return raised(error) if isinstance(error, SheaveError) else error

    def _finished(self, outcome: Any) -> Any:
        with self._lock:
            if self._finish is not None:
                self._result, self._finish = self._finish(outcome), None
            return self._result


class NothingPending:
    """What a process gets for an operation of a group that it is no member of."""

    def wait(self, timeout: float | timedelta | None = None) -> int:
        """-1, at once."""
        return -1

    def is_completed(self) -> bool:
        """True."""
        return True

    def is_success(self) -> bool:
        """True."""
        return True

    def exception(self) -> None:
        """None."""
