"""Node event loops in processes of their own: how they are started, asked and ended.

Whoever waits takes messages out of the rank's queue, files what is somebody else's, and looks whether the process is
alive whenever none has come for a moment: so a wait ends within a second of its process. The other ranks are told of
the end by whoever hears of it first, which is a callback of the call that runs the loop.
"""

import collections
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import sheave
from sheave import DeadlineExceeded
from sheave.compat.push._launches import Arriving
from sheave.compat.push.lib import messages
from sheave.compat.push.pqueue import MultiPQueue

__all__ = ["Asked", "Rank", "start"]

#: Seconds between two looks at the process.
_LOOK_S = 0.05


class Asked(Arriving):
    """What was asked of a rank: whoever waits for it takes its messages."""

    def __init__(self, rank: "Rank") -> None:
        super().__init__(rank.number)
        self._of = rank

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the answer. Raises PeerLost, or WorkerDied, when the process is gone."""
        self._of.collect(self, timeout)
        return super().wait(0.0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end. Returns the error, or None."""
        self._of.collect(self, timeout)
        return super().exception(0.0)

    def done(self) -> bool:
        """Whether it has ended."""
        if not super().done():
            self._of.look()
        return super().done()


class Rank:
    """A node event loop in a process of its own, as its `PusH` sees it."""

    def __init__(self, number: int, work: Any, in_queue: MultiPQueue, out_queue: MultiPQueue) -> None:
        self.number = number
        self.in_queue = in_queue
        self.out_queue = out_queue
        self.error: BaseException | None = None
        self._work = work
        self._turn = threading.Lock()
        self._asking = threading.Lock()
        self._by_fid: weakref.WeakValueDictionary[int, Asked] = weakref.WeakValueDictionary()
        # Those whose answers have no number, in the order in which they were asked.
        self._in_order: collections.deque[Asked] = collections.deque()
        self._in_order.append(Asked(self))
        self.started = self._in_order[0]

    def ask(self, message: Any, fid: int | None = None) -> Asked:
        """Ask for something; `fid` is the number in the answer, if it has one."""
        asked = Asked(self)
        with self._asking:
            if self.error is not None:
                asked.fail(self.error)
                return asked
            if fid is None:
                self._in_order.append(asked)
            else:
                self._by_fid[fid] = asked
            self.in_queue.put(message)
        return asked

    def collect(self, asked: Asked, timeout: float | None) -> None:
        """Take messages until `asked` has ended."""
        until = None if timeout is None else time.monotonic() + timeout
        while not Arriving.done(asked):
            left = _LOOK_S if until is None else min(_LOOK_S, until - time.monotonic())
            if left <= 0:
                raise DeadlineExceeded(f"node event loop {self.number} has not answered after {timeout} s")
            if self._turn.acquire(timeout=left):
                try:
                    if not Arriving.done(asked):
                        self._take(left)
                finally:
                    self._turn.release()

    def look(self) -> None:
        """Take what there is."""
        if self._turn.acquire(blocking=False):
            try:
                while self._take(0.0):
                    pass
            finally:
                self._turn.release()

    def _take(self, timeout: float) -> bool:
        """Takes a message. Returns whether there was one."""
        try:
            message = self.out_queue.get(timeout)
        except queue.Empty:
            if self._work.done():
                self.lose(self._work.exception() or sheave.Closed(f"node event loop {self.number} has ended"))
            return False
        except sheave.SheaveError as error:
            self.lose(error)
            return False
        self._file(message)
        return True

    def _file(self, message: Any) -> None:
        pid_fid = getattr(message, "pid_fid", None)
        with self._asking:
            if pid_fid is not None:
                asked = self._by_fid.pop(pid_fid[1], None)
            else:
                asked = self._in_order.popleft() if self._in_order else None
        if asked is None:
            return
        error = message if isinstance(message, BaseException) else getattr(message, "error", None)
        if error is not None:
            asked.fail(error)
        elif isinstance(message, messages.ReceiveParametersAckPDMSG):
            asked.resolve(message.params)
        else:
            asked.resolve(getattr(message, "result", None))

    def lose(self, error: BaseException) -> None:
        """The process is gone: all that was asked fails, and all that will be."""
        with self._asking:
            self.error = self.error or error
            asked = [*self._by_fid.values(), *self._in_order]
            self._by_fid.clear()
            self._in_order.clear()
        for each in asked:
            each.fail(self.error)

    def tell(self, others: Sequence["Rank"]) -> None:
        """Have the other ranks told when the process is gone."""

        def told(work: Any) -> None:
            error = work.exception() or sheave.Closed(f"node event loop {self.number} has ended")
            for other in others:
                try:
                    other.in_queue.put(messages.NELRankLostMSG(self.number, error))
                except sheave.SheaveError:
                    # Its own queue is closed: it has nobody to wait for.
                    continue

        self._work.add_done_callback(told)

    def is_lost(self) -> bool:
        """Whether the process is gone."""
        if self.error is None and self._work.done():
            self.look()
        return self.error is not None

    def end(self, timeout: float) -> None:
        """Have the process leave its loop, and wait for that."""
        if self.error is None:
            self.in_queue.put(messages.NodeEvtLoopCleanupMSG())
            try:
                self._work.wait(timeout)
            except sheave.SheaveError:
                # It is ended with its fleet.
                pass


def start(
    ranks: int, main: Any, devices: Sequence[Sequence[int]], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Any, Any, list[Rank]]:
    """Start a process for each rank, which runs `main`. Returns mesh, fleet and ranks."""
    mesh = sheave.Mesh(rank=0, size=1)
    fleet = sheave.Fleet(ranks, mesh=mesh, label="push", restarts=0)
    ins = {rank: MultiPQueue(mesh=mesh) for rank in range(ranks)}
    outs = {rank: MultiPQueue(mesh=mesh) for rank in range(ranks)}
    started = []
    for rank, guest in enumerate(fleet.guests):
        given = (*args[:2], ins, outs, rank, list(devices[rank]), *args[2:])
        work = fleet.call(guest, main, given, kwargs, async_op=True)
        started.append(Rank(rank, work, ins[rank], outs[rank]))
    for ended in started:
        ended.tell([each for each in started if each is not ended])
    return mesh, fleet, started
