"""Futures of particles.

What differs from PusH, on purpose: a future is waited for again and again, by any thread, with a timeout; those of
`PusH` too. Two are equal if they have one number and one maker, for each maker counts its own.
"""

import threading
from typing import Any

from sheave import DeadlineExceeded
from sheave.compat.push.lib.waitable import Waitable

__all__ = ["PFuture"]


class PFuture:
    """What will come of a message, or of something that is done with a module.

    `t` is what is waited for: what has `wait(timeout)` and `done()`, or a thread behind which the waitable has the
    result; None if the waitable knows.
    """

    def __init__(self, waitable: Waitable, send_pid: int, recv_pid: int, fid: int, t: Any = None) -> None:
        self._waitable = waitable
        self._send_pid = send_pid
        self._recv_pid = recv_pid
        self._fid = fid
        self._t_or_ts = t
        self._outcome: tuple[Any, BaseException | None] | None = None

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the result, for `timeout` seconds at most. Raises what has failed, or DeadlineExceeded."""
        if self._outcome is None:
            try:
                self._outcome = self._waited(timeout), None
            except DeadlineExceeded as error:
                if timeout is not None and not self._is_over():
                    raise
                self._outcome = None, error
            except Exception as error:
                self._outcome = None, error
        value, failure = self._outcome
        if failure is not None:
            raise failure
        return value

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result, as `wait` does."""
        return self.wait(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end. Returns what has failed, or None. Raises DeadlineExceeded after `timeout` seconds."""
        try:
            self.wait(timeout)
        except Exception as error:
            if self._outcome is None:
                raise
            return error
        return None

    def done(self) -> bool:
        """Whether it has come to its end, so that `wait` returns at once."""
        return self._outcome is not None or self._is_over()

    def _is_over(self) -> bool:
        if isinstance(self._t_or_ts, threading.Thread):
            return not self._t_or_ts.is_alive()
        return self._t_or_ts is not None and bool(self._t_or_ts.done())

    def _waited(self, timeout: float | None) -> Any:
        if self._t_or_ts is None:
            return self._waitable._wait(self._fid)
        if isinstance(self._t_or_ts, threading.Thread):
            self._t_or_ts.join(timeout)
            if self._t_or_ts.is_alive():
                what = f"future {self._fid} of particle {self._recv_pid} has no result"
                raise DeadlineExceeded(f"{what} after {timeout} s")
            return self._waitable._wait(self._fid)
        return self._t_or_ts.wait(timeout)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PFuture) and self._fid == other._fid and self._waitable is other._waitable

    def __hash__(self) -> int:
        return self._fid

    def __repr__(self) -> str:
        state = "done" if self.done() else "pending"
        return f"<PFuture {self._fid} of particle {self._recv_pid}, {state}>"
