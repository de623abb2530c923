"""`sheave.pool.Queue`, with the interface of `multiprocessing.Queue`."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import queue
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from sheave import _core
from sheave._core import Closed, DeadlineExceeded, Guest, InvalidArgument, LimitExceeded, Mesh, NotFound, Peer
from sheave._core import ProcessQueue, SheaveError, init

__all__ = ["Empty", "Full", "Lost", "Queue"]

T = TypeVar("T")

_NUMBERS = itertools.count(1)
"""Numbers of this process's queues, for their names."""


class Empty(queue.Empty, DeadlineExceeded):
    """Nothing has come in time."""


class Full(queue.Full, DeadlineExceeded):
    """There was no room in time."""


class Lost(NamedTuple):
    """An item whose holder has died."""

    number: int
    """How many items were put before it."""
    holder: Peer
    """The process that had it."""
    error: SheaveError
    """What has become of that."""


class Queue(Generic[T]):
    """Items that any process puts, and each of which one process takes.

    - maxsize: so many items at most, and whoever puts one waits until it is in; no number of them if it is 0 or less.
    - mesh: the queue lives in this process, as long as somebody holds it here, on the node of this mesh; on that of the
      default mesh if None, which is joined if there is none.

    It goes to other processes by a pickle: to children that multiprocessing spawns, among their arguments; to workers
    of pools and members of its mesh, in calls; and back to this process, where it is itself. A process that has got it
    so does not pass it on to its own children. A forked child cannot use it.

    Objects travel as the arguments of pools' tasks do: what is put is captured, an array is its taker's own, and
    `sheave.pool.Share` is for one that is not copied, in queues of this process. As far as one taker sees, objects come
    in their order.

    A thread *holds* what it has taken until it comes back for another item, calls `task_done`, or ends. If its process
    dies meanwhile, what it holds is lost, and `lost` tells of it here; everything else goes on. Whatever a process has
    put stays. May be used by many threads; the tasks of a loop of asyncio are one of them.

    >>> queue = sheave.pool.Queue()
    >>> queue.put({"name": "first", "values": np.ones(3)})
    >>> queue.get()
    {'name': 'first', 'values': array([1., 1., 1.])}
    """

    _core: ProcessQueue

    def __init__(self, maxsize: int = 0, *, mesh: Mesh | None = None) -> None:
        if isinstance(maxsize, bool) or not isinstance(maxsize, int):
            raise TypeError(f"maxsize must be an int, and is a {type(maxsize).__name__}")
        mesh = init() if mesh is None else mesh
        name = f"queue-{next(_NUMBERS)}"
        self._set_up(ProcessQueue(mesh, name, maxsize if maxsize > 0 else None), name, maxsize, mesh)
        self._home = self._core.node
        with _turn:
            _queues[self._home, name] = self

    def _set_up(self, core: ProcessQueue, name: str, maxsize: int, mesh: Mesh | None) -> None:
        self._core = core
        self._name = name
        self._maxsize = max(maxsize, 0)
        self._mesh = mesh
        self._invitations: list[_Invitation] = []

    @property
    def maxsize(self) -> int:
        """How many items it has at most; 0 if nobody has said so."""
        return self._maxsize

    def put(self, obj: T, block: bool = True, timeout: float | None = None) -> None:
        """Put an object, and wait for room, for `timeout` seconds at most.

        Raises Full, which is `queue.Full` and a TimeoutError, if there was none; InvalidArgument for what cannot be
        pickled; Closed once the queue was closed; PeerLost once its process is gone.
        """
        self._core.put(obj, block, timeout)

    def put_nowait(self, obj: T) -> None:
        """Put an object if there is room; as `put` in all else."""
        self._core.put(obj, False, None)

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Take an object, and wait for one, for `timeout` seconds at most.

        Raises Empty, which is `queue.Empty` and a TimeoutError, if none came; Closed once the queue was closed and is
        empty; PeerLost once its process is gone; whatever the pickle of the object raises.
        """
        return self._core.get(block, timeout)  # type: ignore[no-any-return]

    def get_nowait(self) -> T:
        """Take an object if there is one; as `get` in all else. Asks the process of the queue, which takes a moment."""
        return self._core.get(False, None)  # type: ignore[no-any-return]

    async def aput(self, obj: T) -> None:
        """Put an object, which is captured at once, and wait for room in asyncio; as `put` in all else."""
        item = self._core.pack(obj)
        while True:
            is_in, work = self._core.offer(item)
            await work
            if is_in:
                return

    async def aget(self) -> T:
        """Take an object, and wait for one in asyncio; as `get` in all else. Cancelled, it has taken nothing."""
        while True:
            taken = self._core.take()
            if taken is not None:
                return taken[0]  # type: ignore[no-any-return]
            available = self._core.available()
            try:
                await available
            except BaseException:
                available.cancel()
                self._core.give_up()
                raise

    def __iter__(self) -> Iterator[T]:
        """Take objects until the queue was closed and is empty."""
        with contextlib.suppress(Closed):
            while True:
                yield self._core.get(True, None)

    async def __aiter__(self) -> AsyncIterator[T]:
        with contextlib.suppress(Closed):
            while True:
                yield await self.aget()

    def task_done(self) -> None:
        """Say that this thread is done with what it has taken last, before it comes back for another item.

        Raises ValueError if it holds nothing.
        """
        if not self._core.let_go() and self._mesh is None:
            raise ValueError("task_done() called without an item that this thread holds")

    def qsize(self) -> int:
        """Return how many items nobody has taken: asks the process of the queue."""
        return self._core.length()

    def empty(self) -> bool:
        """Whether there was no item in this moment: asks the process of the queue."""
        return self._core.length() == 0

    def full(self) -> bool:
        """Whether there were `maxsize` items in this moment: asks the process of the queue."""
        return 0 < self._maxsize <= self._core.length()

    def lost(self) -> list[Lost]:
        """Return what was lost because its holders died, the last 1024 of it: in the process of the queue.

        Raises InvalidArgument in another process.
        """
        return [Lost(*lost) for lost in self._core.lost()]

    def close(self) -> None:
        """In the process of the queue: take nothing more; what is in it is taken still, and then `get` raises Closed
        everywhere. In another one: use it there no more. Idempotent."""
        self._core.close()
        with _turn:
            self._invitations.clear()

    def join_thread(self) -> None:
        """Return at once: what was put is in the queue, and no thread has it."""

    def cancel_join_thread(self) -> None:
        """Return at once, as `join_thread`."""

    def __reduce__(self) -> Any:
        return self._reduced(is_attached=False)

    def _reduced(self, is_attached: bool) -> Any:
        """The pickle; with an invitation, unless it goes to nodes that know that of the queue."""
        invited = (None, None, None) if is_attached else self._invited()
        return _opened, (self._home, self._name, self._maxsize, *invited)

    def _invited(self) -> tuple[str, str, bytes | None]:
        # Checks the process too.
        self._core.node
        if self._mesh is None:
            what = f"queue {self._name} is passed on by its own process alone, and this one has got it from there"
            raise InvalidArgument(f"{what}; hint: start the process there, or make a queue here that it writes to")
        popen = _spawning()
        with _turn:
            return self._invited_by(self._mesh, popen)

    def _invited_by(self, mesh: Mesh, popen: Any) -> tuple[str, str, bytes | None]:
        # Those that were used, and those that were withdrawn.
        self._invitations[:] = [each for each in self._invitations if each.is_open()]
        known = None if popen is None else _spawned.setdefault(popen, weakref.WeakValueDictionary()).get(self._home)
        invitation = known or _Invitation(mesh, self._name)
        if all(each is not invitation for each in self._invitations):
            self._invitations.append(invitation)
        if popen is None:
            return invitation.text, invitation.name, None
        if known is None:
            _spawned[popen][self._home] = invitation
            _await_children()
            finalizer = weakref.finalize(popen, _Invitation.withdraw_of, weakref.ref(invitation))
            finalizer.atexit = False
        # The secret goes to a child through the pipe between the two alone. Other processes find it in their own way.
        return invitation.text, invitation.name, invitation.secret

    def __repr__(self) -> str:
        where = "" if self._mesh is not None else " of another process"
        return f"<sheave.pool.Queue {self._name}{where}>"


class _Invitation:
    """Lets one process in, for all queues of one node, until it has come or no queue needs it any more."""

    def __init__(self, mesh: Mesh, queue: str) -> None:
        self._mesh = mesh
        self._pid = os.getpid()
        self.name = ""
        try:
            self.text, self.name, self.secret = _core._invite_for_queues(mesh)
        except LimitExceeded as error:
            what = f"queue {queue} cannot be pickled for one process more: {error}"
            raise LimitExceeded(f"{what}; hint: a pickle is for one process, which is to open it") from error

    def is_open(self) -> bool:
        """Whether nobody has come by it."""
        with contextlib.suppress(Closed):
            return _core._is_invited(self._mesh, self.name)
        return False

    def withdraw(self) -> None:
        """Let nobody in."""
        # In a forked child it is the parent's.
        if self.name and self._pid == os.getpid():
            with contextlib.suppress(SheaveError):
                _core._withdraw_invitation(self._mesh, self.name)

    @staticmethod
    def withdraw_of(reference: weakref.ref[_Invitation]) -> None:
        """Withdraw it, if it is there."""
        invitation = reference()
        if invitation is not None:
            invitation.withdraw()

    def __del__(self) -> None:
        self.withdraw()


_turn = threading.RLock()

_queues: weakref.WeakValueDictionary[tuple[int, str], Queue[Any]] = weakref.WeakValueDictionary()
"""The queues of this process, and those that it has got, by node and name."""

_guests: dict[int, Guest] = {}
"""As what this process is attached to the homes of queues, by their nodes. They leave when it ends."""

_spawned: weakref.WeakKeyDictionary[Any, weakref.WeakValueDictionary[int, _Invitation]] = weakref.WeakKeyDictionary()
"""The invitations of children that are being started."""


def _forget() -> None:
    """In a forked child: nothing is its own."""
    global _turn
    _turn = threading.RLock()
    _queues.clear()
    _guests.clear()


os.register_at_fork(after_in_child=_forget)


def _opened(
    home: int, name: str, maxsize: int, invitation: str | None, invited: str | None, secret: bytes | None
) -> Queue[Any]:
    """The queue that a pickle is of."""
    with _turn:
        known = _queues.get((home, name))
        if known is not None:
            if invited is not None and known._mesh is not None:
                _core._withdraw_invitation(known._mesh, invited)
            elif invited is not None:
                _core._decline_invitation(home, invited)
            return known
        core = ProcessQueue.attach(home, name)
        if core is not None:
            if invited is not None:
                _core._decline_invitation(home, invited)
        elif invitation is not None:
            _guests[home] = _attached(invitation, secret)
            core = ProcessQueue.attach(home, name)
        if core is None:
            what = f"queue {name} lives on a node that this process has no link to"
            hint = "give it to a child when that is started, or to workers of a pool and members of its mesh in calls"
            raise NotFound(f"{what}; hint: {hint}")
        made: Queue[Any] = Queue.__new__(Queue)
        made._set_up(core, name, maxsize, None)
        made._home = home
        _queues[home, name] = made
        return made


def _attached(invitation: str, secret: bytes | None) -> Guest:
    guest: Guest = _core._attach_guest(invitation, secret)
    if "multiprocessing.process" in sys.modules:
        import multiprocessing.util

        _leave_in_the_end(guest)
        # A process forgets that when it begins to run, behind the opening of its arguments.
        multiprocessing.util.register_after_fork(guest, _leave_in_the_end)
    return guest


def _leave_in_the_end(guest: Guest) -> None:
    """Processes of multiprocessing may end without the end of their interpreter."""
    import multiprocessing.util

    multiprocessing.util.Finalize(None, _leave, (guest, os.getpid()), exitpriority=-100)


def _leave(guest: Guest, pid: int) -> None:
    """Leave, or fail, as the process does."""
    if pid == os.getpid():
        kind, error, traceback = sys.exc_info()
        is_well = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        guest.__exit__(*((None, None, None) if is_well else (kind, error, traceback)))


def _spawning() -> Any:
    """What multiprocessing starts a child by, if it is writing for that now."""
    context = sys.modules.get("multiprocessing.context")
    return None if context is None else context.get_spawning_popen()


_is_awaited = False


def _await_children() -> None:
    """Have the end of this process wait for its children before its nodes leave, whose queues they use. It waits for
    them in any case."""
    global _is_awaited
    if not _is_awaited:
        _is_awaited = True
        atexit.register(_join_children)


def _join_children() -> None:
    import multiprocessing

    if hasattr(sys, "last_value"):
        # The program has failed, and they are told so.
        return
    for child in multiprocessing.active_children():
        if not child.daemon:
            child.join()
