"""Node event loops in processes of their own: how they are started, asked and ended.

What a `PusH` asks of a rank is a call, which the rank answers on the thread that has it: a launch runs its handler
there and then. So a launch and its answer are one round trip, nobody polls, and a wait ends with its process. Queues
are for what the ranks say to each other, and for programs that put messages into them themselves.

**Order.** Calls have numbers, and begin in their order, though several threads of a rank take them. A call that never
came, because it was refused, holds up those behind it for a moment only.

The other ranks are told of the end of a process by whoever hears of it first, which is a callback of the call that runs
the loop.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import sheave
from sheave import InvalidArgument, PeerLost
from sheave.compat.push.lib import messages
from sheave.compat.push.pqueue import MultiPQueue

__all__ = ["Asked", "Rank", "Reply", "Service", "start"]

T = TypeVar("T")

#: Under which a process serves its loop.
SERVICE = "push"
#: Seconds between two looks at a process that starts.
_LOOK_S = 0.05
#: Seconds for which a call waits for those before it to begin.
_ORDER_S = 5.0
#: What travels without a pickle.
_PLAIN = (type(None), bool, int, float, str)


class Reply:
    """Where a node event loop puts the answer to a call, and what is left to be done for it."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.rest: Callable[[], None] | None = None

    def put(self, answer: Any) -> None:
        """Answer."""
        self.answer = answer


class Service:
    """A node event loop, as its `PusH` calls it."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._next = 0
        self._turn = threading.Condition()

    def launch(self, number: int, pid: int, msg: str, packed: Any) -> Any:
        """Have a particle handle a message, whose arguments are in a message of PusH's if there are any. Returns what
        its handler has returned, or else a message that has that, or the error."""
        args = () if packed is None else packed.args
        try:
            running = self._in_order(number, lambda: self._loop._launch(pid, msg, args))
            result = self._loop._settled(running.wait())
        except Exception as error:
            return messages.ReceiveFuncAckPDMSG((pid, number), None, error)
        return result if type(result) in _PLAIN else messages.ReceiveFuncAckPDMSG((pid, number), result)

    def ask(self, number: int, message: Any) -> Any:
        """Handle a message. Returns its answer."""
        reply = Reply()
        self._in_order(number, lambda: self._loop._dispatch(message, reply))
        if reply.rest is not None:
            reply.rest()
        return reply.answer

    def _in_order(self, number: int, begin: Callable[[], T]) -> T:
        """Begins a call after those before it. It does not wait for anything itself."""
        with self._turn:
            self._turn.wait_for(lambda: self._next >= number, _ORDER_S)
            try:
                return begin()
            finally:
                self._next = max(self._next, number + 1)
                self._turn.notify_all()


class Asked:
    """What was asked of a rank."""

    def __init__(self, rank: "Rank", work: Any) -> None:
        self._of = rank
        self._work = work

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the answer. Raises PeerLost, or WorkerDied, which names the rank, when its process is gone."""
        try:
            answer = self._work.wait(timeout)
        except PeerLost as error:
            raise self._of.named(error)
        except sheave.Remote as error:
            # A rank answers with what its handlers raise; what is left is an answer that could not be sent.
            raise InvalidArgument(f"what a handler has returned cannot be sent: {error}") from None
        raised = answer if isinstance(answer, BaseException) else getattr(answer, "error", None)
        if isinstance(raised, BaseException):
            raise raised
        if isinstance(answer, messages.ReceiveParametersAckPDMSG):
            return answer.params
        return getattr(answer, "result", None) if isinstance(answer, messages.MSG) else answer

    def done(self) -> bool:
        """Whether it has ended."""
        return bool(self._work.done())


class Rank:
    """A node event loop in a process of its own, as its `PusH` sees it."""

    def __init__(
        self, number: int, mesh: sheave.Mesh, guest: Any, work: Any, in_queue: MultiPQueue, out_queue: MultiPQueue
    ) -> None:
        self.number = number
        self.in_queue = in_queue
        self.out_queue = out_queue
        self._mesh = mesh
        self._guest = guest
        self._work = work
        self._asking = threading.Lock()
        self._asked = 0

    def wait_for_start(self) -> None:
        """Wait until the loop is up. Raises why it could not be made, or what its process has died of."""
        while True:
            try:
                message = self.out_queue.get(_LOOK_S)
            except queue.Empty:
                if self._work.done():
                    raise self.loss() from None
                continue
            if message.error is not None:
                raise message.error
            return

    def ask(self, message: Any) -> Asked:
        """Ask for what a message says."""
        return self._called("ask", message)

    def launch(self, pid: int, msg: str, args: Sequence[Any]) -> Asked:
        """Have a particle handle a message."""
        packed = messages.ReceiveFuncPDMSG(None, pid, msg, args) if args else None
        return self._called("launch", pid, msg, packed)

    def _called(self, method: str, *args: Any) -> Asked:
        # A call that cannot be made takes no number.
        with self._asking:
            if self._work.done():
                raise self.loss()
            work = self._mesh.call(self._guest, f"{SERVICE}.{method}", (self._asked, *args), async_op=True)
            self._asked += 1
        return Asked(self, work)

    def tell(self, others: Sequence["Rank"]) -> None:
        """Have the other ranks told when the process is gone."""

        def told(work: Any) -> None:
            error = self.loss()
            for other in others:
                try:
                    other.in_queue.put(messages.NELRankLostMSG(self.number, error))
                except sheave.SheaveError:
                    # Its own queue is closed: it has nobody to wait for.
                    continue

        self._work.add_done_callback(told)

    def is_lost(self) -> bool:
        """Whether the process is gone."""
        return bool(self._work.done())

    def loss(self) -> BaseException:
        """What has become of the process that is gone."""
        error = self._work.exception()
        return sheave.Closed(f"node event loop {self.number} has ended") if error is None else self.named(error)

    def named(self, error: BaseException) -> BaseException:
        """An error of the process, with the rank in a note."""
        note = f"node event loop {self.number} of PusH ran in this process"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        return error

    def end(self, timeout: float) -> None:
        """Have the process leave its loop, and wait for that."""
        if not self.is_lost():
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
        work = fleet.call(guest, main, given, {**kwargs, "is_served": True}, async_op=True)
        started.append(Rank(rank, mesh, guest, work, ins[rank], outs[rank]))
    for ended in started:
        ended.tell([each for each in started if each is not ended])
    return mesh, fleet, started
