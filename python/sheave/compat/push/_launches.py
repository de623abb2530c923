"""What a launch has begun, and what is left of it.

A handler of PusH may send, or step, and wait for nothing: all has happened when the launch is over, for a send runs its
handler on the spot. Here a send returns at once, so each launch keeps a list of what its handlers have begun, and is
over when all of that is. Nobody waits for the rest of a handler but who waits for the launch, so this closes no circle.

The list is bounded: what has ended leaves it whenever it has doubled, and a handler that has begun too much waits for
the oldest before it begins more. What has failed and was not seen by anybody fails the launch; of those the first few
are kept.

**Circles.** In PusH a message to a particle that waits, through others, for its sender is handled on the spot, on the
sender's stack, as every message is. Here it could never begin. So each wait of a handler for a `Sent` is noted, and the
one that closes a circle handles a message of it on the spot, its own or another one: some message of a circle has not
begun, for otherwise nobody in it would wait. It is taken back from the mailbox first, with those that its sender has
sent there before. Whose handler it enters is waiting within the circle; in no other case is a particle entered again.
"""

import collections
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any

from sheave import Cancelled, DeadlineExceeded
from sheave.particle import DeadlockError

__all__ = ["Arriving", "Circles", "Launch", "Pending", "Running", "Sent", "current", "handling"]

#: So much may be begun and not have ended, which leaves room in the mailboxes of the particles.
_BEGUN_MAX = 1024
#: How many that have failed unseen are kept.
_FAILED_MAX = 8
#: A list of less than this is not looked through.
_SWEEP_FROM = 64


class Arriving:
    """What comes from another rank, sooner or later. Waits with `wait`, ends with `resolve` or `fail`, once."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._ended = threading.Event()
        self._outcome: tuple[Any, BaseException | None] = (None, None)

    def resolve(self, value: Any) -> None:
        """End with a value."""
        self._end(value, None)

    def fail(self, error: BaseException) -> None:
        """End with an error."""
        self._end(None, error)

    def _end(self, value: Any, error: BaseException | None) -> None:
        if not self._ended.is_set():
            self._outcome = value, error
            self._ended.set()

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the value, or raise the error."""
        if not self._ended.wait(timeout):
            raise DeadlineExceeded(f"rank {self.rank} has not answered after {timeout} s")
        value, error = self._outcome
        if error is not None:
            raise error
        return value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end. Returns the error, or None."""
        if not self._ended.wait(timeout):
            raise DeadlineExceeded(f"rank {self.rank} has not answered after {timeout} s")
        return self._outcome[1]

    def done(self) -> bool:
        """Whether it has ended."""
        return self._ended.is_set()


class Circles:
    """Which messages the handlers of a rank wait for.

    Whoever begins to wait says so before it looks for a circle. So of several waits that close one, one sees it. All
    that is changed is a list at a time, in one operation of Python's.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, list[Sent]] = collections.defaultdict(list)
        #: Held by whoever takes a message back.
        self.taking = threading.Lock()

    def circle(self, waiter: int, sent: "Sent") -> "list[Sent]":
        """The messages of a circle that a wait is in, from that on; none if it is in none."""
        start = sent.receiver
        if start == waiter:
            return [sent]
        if not self.waiting.get(start):
            return []
        before: dict[int, tuple[Sent, int]] = {}
        left = [start]
        while left and waiter not in before:
            particle = left.pop()
            for further in tuple(self.waiting.get(particle, ())):
                if further.receiver not in before and further.receiver != start:
                    before[further.receiver] = further, particle
                    left.append(further.receiver)
        path, at = [], waiter
        while waiter in before and at != start:
            message, at = before[at]
            path.append(message)
        return [sent, *reversed(path)] if path else []


class Sent:
    """A message to a particle of this rank.

    `enter` handles it here, where a circle would keep it for ever; without one it fails then. `line` has those on their
    way from the same sender to the same particle, in their order.
    """

    def __init__(
        self,
        answer: Any,
        receiver: int,
        circles: Circles,
        line: "collections.deque[Sent]",
        enter: Callable[[], Any] | None,
    ) -> None:
        self.receiver = receiver
        self._answer = answer
        self._circles = circles
        self._line = line
        self._enter = enter
        self._here: Future[Any] | None = None
        self._thread = 0

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for what its handler returns, or raise what that has raised."""
        waiter = handling.get()
        if waiter is None or self._enter is None or self.done():
            return self._waited(timeout)
        waiting = self._circles.waiting[waiter]
        waiting.append(self)
        try:
            while any(message._is_entered() for message in self._circles.circle(waiter, self)):
                if self.done():
                    break
            return self._waited(timeout)
        finally:
            waiting.remove(self)

    def _waited(self, timeout: float | None) -> Any:
        if self._here is None:
            try:
                return self._answer.wait(timeout)
            except Cancelled:
                # Whoever takes it back says so before anybody else may look.
                with self._circles.taking:
                    if self._here is None:
                        raise
        return self._outcome(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end. Returns the error, or None."""
        try:
            self.wait(timeout)
        except Exception as error:
            if not self.done():
                raise
            return error
        return None

    def done(self) -> bool:
        """Whether it has ended."""
        return self._here.done() if self._here is not None else bool(self._answer.done())

    def _is_entered(self) -> bool:
        """Takes the message back and handles it, with those before it. False if it has begun."""
        if not self._is_taken_back():
            return False
        for before in list(self._line):
            if before is self:
                break
            if before._is_taken_back():
                before._handle()
        self._handle()
        return True

    def _is_taken_back(self) -> bool:
        """Takes the message out of the mailbox, unless it is too late."""
        with self._circles.taking:
            if self._enter is None or self._here is not None or self._answer.done():
                return False
            self._answer.cancel()
            if not self._answer.done() or not isinstance(self._answer.exception(), Cancelled):
                return False
            self._here, self._thread = Future(), threading.get_ident()
        return True

    def _handle(self) -> None:
        assert self._here is not None and self._enter is not None
        try:
            self._here.set_result(self._enter())
        except BaseException as error:
            self._here.set_exception(error)

    def _outcome(self, timeout: float | None) -> Any:
        assert self._here is not None
        if self._thread == threading.get_ident() and not self._here.done():
            raise DeadlockError("a handler waits for the message that it handles")
        try:
            return self._here.result(timeout)
        except TimeoutError:
            if self._here.done():
                raise
            raise DeadlineExceeded(f"the handler of the message has not ended after {timeout} s") from None


class Pending:
    """Something that was begun, and whether anybody has looked at what came of it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.is_seen = False

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for what comes of it."""
        try:
            return self.answer.wait(timeout)
        finally:
            self.is_seen = self.is_seen or self.answer.done()

    def done(self) -> bool:
        """Whether it has ended."""
        return bool(self.answer.done())

    def has_failed_unseen(self) -> bool:
        """Whether it has failed and nobody knows. It has ended."""
        return not self.is_seen and self.answer.exception() is not None


class Launch:
    """What the handlers of a launch have begun."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: list[Pending] = []
        self._failed: list[Pending] = []
        self._sweep_at = _SWEEP_FROM

    def add(self, pending: Pending) -> None:
        """Note what was begun. Waits for the oldest if too much is."""
        with self._lock:
            self._begun.append(pending)
            if len(self._begun) < self._sweep_at:
                return
            self._sweep()
            oldest = self._begun[0] if len(self._begun) >= _BEGUN_MAX else None
        if oldest is not None:
            self._settled(oldest, None)

    def finish(self, timeout: float | None = None) -> None:
        """Wait until all has ended. Raises what has failed first of what nobody has seen."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                self._sweep()
                oldest = self._begun[0] if self._begun else None
            if oldest is None:
                break
            self._settled(oldest, None if until is None else max(0.0, until - time.monotonic()))
        for failed in self._failed:
            if not failed.is_seen:
                failed.wait()

    def done(self) -> bool:
        """Whether all has ended."""
        with self._lock:
            self._sweep()
            return not self._begun

    def _sweep(self) -> None:
        ended: list[Pending] = []
        left: list[Pending] = []
        for pending in self._begun:
            (ended if pending.done() else left).append(pending)
        self._begun = left
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self._begun))
        for pending in ended:
            if len(self._failed) < _FAILED_MAX and pending.has_failed_unseen():
                self._failed.append(pending)

    def _settled(self, pending: Pending, timeout: float | None) -> None:
        """Waits for the end of something, whatever it is."""
        try:
            pending.answer.wait(timeout)
        except DeadlockError:
            # It waits for the handler that would wait here: that one goes on first, if it is that circle.
            pass
        except Exception:
            if not pending.done():
                raise


class Running:
    """A launch on its way: its handler, and what that has begun."""

    def __init__(self, answer: Any, launch: Launch) -> None:
        self.answer = answer
        self.launch = launch

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until all of it has ended. Returns what the handler has returned, or raises what has failed."""
        until = None if timeout is None else time.monotonic() + timeout
        try:
            value = self.answer.wait(timeout)
        except Exception:
            if self.answer.done():
                self._drained(until)
            raise
        self.launch.finish(None if until is None else max(0.0, until - time.monotonic()))
        return value

    def done(self) -> bool:
        """Whether all of it has ended."""
        return bool(self.answer.done()) and self.launch.done()

    def _drained(self, until: float | None) -> None:
        """Waits for the rest of a launch that has failed; what fails of that is not told."""
        try:
            self.launch.finish(None if until is None else max(0.0, until - time.monotonic()))
        except Exception:
            pass


#: The particle whose handler runs here, on top of others perhaps.
handling: ContextVar[int | None] = ContextVar("push_handling", default=None)
#: The launch of the handler that runs here.
current: ContextVar[Launch | None] = ContextVar("push_launch", default=None)
