"""`sheave.spawn`: a function as the processes of a job, for notebooks and tests.

The processes are fresh ones of `multiprocessing`'s kind "spawn". Each finds its place in the environment, as if
`sheave launch` had started it, and joins by `sheave.init()`. They end with the call: those that still run are killed
when one fails, when the time is up, at Ctrl-C, and when this process dies.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from sheave._core import (
    DeadlineExceeded,
    InvalidArgument,
    JobPlan,
    Peer,
    PeerLost,
    Remote,
    WorkerDied,
    _variables_of_jobs,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

_T = TypeVar("_T")

_STARTS = threading.Lock()
"""Held while a process is started."""

_EXIT_PATIENCE_S = 10.0
"""How long a process may take to end after its function has returned."""

_CAUSE_PATIENCE_S = 5.0
"""How long a process that has lost another one is taken for a mere witness: the other may yet say why it failed."""

_DRAIN_S = 3600.0
"""How long servers may take to return after all workers have: time for the largest checkpoint to a slow disk."""

_NOTICES_S = (10.0, 60.0, 600.0)
"""After how long it is said whom is waited for."""


def spawn(
    fn: Callable[..., _T],
    nprocs: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    servers: int = 0,
    server: Callable[..., Any] | None = None,
    timeout: float | None = None,
) -> list[_T]:
    """Run `fn(*args, **kwargs)` in `nprocs` fresh processes of one job and return their results by rank.

    `fn` calls `sheave.init()` itself. With `servers`, a scheduler and so many servers come beside the processes, which
    are workers then; without, they are plain ranks. Servers run `sheave.run_server()`, or `server` with the same
    arguments as `fn`, which calls `sheave.init()` itself and returns when the workers have left. The call waits for
    them, for an hour at most, and says after 10 s whom it waits for: they may save what they hold.

    Function, arguments and results travel as `sheave.pickling` says: functions of a notebook too, and tensors of torch,
    which are copied. A script that spawns does so under `if __name__ == "__main__":`, because the fresh processes
    import it. Several threads may spawn at once.

    Raises Remote when a process fails, which names its rank and has its traceback in the text; the exception itself is
    the cause, where it can be pickled. Raises WorkerDied, with its `exit_status`, when one ends without a result. Of
    several that fail it is the first by what they know of each other, not one that failed for another. Raises
    DeadlineExceeded when `timeout` seconds have passed. In all cases all processes have ended when it is raised.
    Blocks; Ctrl-C ends it and the processes.

    >>> import sheave
    >>> sheave.spawn(sum, 2, ([1, 2, 3],))
    [6, 6]
    """
    if nprocs < 1 or servers < 0:
        raise InvalidArgument(f"{nprocs} processes and {servers} servers; give at least one process")
    if server is not None and servers == 0:
        raise InvalidArgument("a function for servers, and no servers; hint: give servers=1 or more")
    serve = _Call(_serve, (), {}) if server is None else _Call(server, args, kwargs or {})
    job = _Job(_Call(fn, args, kwargs or {}), nprocs, serve, servers)
    try:
        return job.run(timeout)
    finally:
        job.kill()


class _Call:
    """A call as it travels to a fresh process, where it is opened when that knows its place.

    It is pickled while a process is started, as locks and queues of multiprocessing want it.
    """

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]):
        self.what = (fn, tuple(args), dict(kwargs))
        self.pickled = b""

    def __getstate__(self) -> bytes:
        from sheave import pickling

        return pickling.dumps(self.what, main_by_name=_can_import_main())

    def __setstate__(self, pickled: bytes) -> None:
        self.pickled = pickled

    def __call__(self) -> Any:
        from sheave import pickling

        fn, args, kwargs = pickling.loads(self.pickled)
        return fn(*args, **kwargs)


def _can_import_main() -> bool:
    """Whether fresh processes import what runs here as a script."""
    import sys

    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    return getattr(main, "__spec__", None) is not None or (path is not None and os.path.exists(path))


@contextmanager
def _main_that_can_be_imported() -> Iterator[None]:
    """A program that was read from standard input says that it is a file, which fresh processes would look for."""
    import sys

    main = sys.modules["__main__"]
    hidden = None if _can_import_main() else main.__dict__.pop("__file__", None)
    try:
        yield
    finally:
        if hidden is not None:
            main.__file__ = hidden


def _serve() -> None:
    """What servers do."""
    import sheave

    sheave.init()
    sheave.run_server()


def _schedule() -> None:
    """What the scheduler does."""
    import sheave

    with sheave.init() as mesh:
        mesh.until_gone()


class _Process:
    """One process of the job, and what it has said."""

    def __init__(self, peer: Peer, is_worker: bool, process: SpawnProcess, connection: Connection):
        self.name, self.peer = peer.name, peer
        self.is_worker, self.process, self.connection = is_worker, process, connection
        self.is_heard = False
        self.is_witness = False
        self.result: Any = None

    def hear(self) -> Remote | PeerLost | None:
        """Take its last words, if there are any; an exception if it has failed."""
        failure = self.heard()
        if failure is not None:
            failure.peer = Peer(self.name, self.peer.rank, None, self.process.pid, self.peer.role)
        return failure

    def heard(self) -> Remote | PeerLost | None:
        from sheave import pickling

        try:
            if not self.connection.poll():
                return None
            said = self.connection.recv_bytes()
        except (EOFError, OSError):
            self.is_heard = True
            return self.ended_early()
        try:
            succeeded, what = pickling.loads(said)
        except Exception as error:
            self.is_heard = True
            return Remote(f"the result of {self.name} cannot be unpickled: {error}")
        self.is_heard = True
        if succeeded:
            self.result = what
            return None
        text, pickled, self.is_witness = what
        failure = Remote(f"{self.name} failed:\n{text}")
        failure.__cause__ = _unpickled(pickled)
        return failure

    def ended_early(self) -> PeerLost:
        self.process.join(_EXIT_PATIENCE_S)
        status = self.process.exitcode
        text = f"{self.name} (pid {self.process.pid}) ended without a result: {_how(status)}"
        if status is None:
            return PeerLost(text)
        died = WorkerDied(text)
        died.exit_status = status
        return died


def _how(status: int | None) -> str:
    import signal

    if status is None:
        return "it closed its connection"
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _unpickled(pickled: bytes | None) -> BaseException | None:
    from sheave import pickling

    if pickled is None:
        return None
    try:
        cause = pickling.loads(pickled)
    except Exception:
        return None
    return cause if isinstance(cause, BaseException) else None


class _Job:
    def __init__(self, call: _Call, workers: int, serve: _Call, servers: int):
        self.call, self.serve = call, serve
        self.processes: list[_Process] = []
        self.failures: list[tuple[_Process, BaseException]] = []
        self.fails_at: float | None = None
        self.plan = JobPlan(workers, servers)

    def run(self, timeout: float | None) -> list[Any]:
        import time

        until = None if timeout is None else time.monotonic() + timeout
        self.start()
        self.wait(until, lambda process: process.is_worker)
        self.wait_for_servers(until)
        self.wait(time.monotonic() + _EXIT_PATIENCE_S, lambda _: True, must_end=True)
        return [process.result for process in self.processes if process.is_worker]

    def wait_for_servers(self, until: float | None) -> None:
        import itertools
        import sys
        import time

        begun = time.monotonic()
        until = begun + _DRAIN_S if until is None else until
        for span_s in itertools.chain(_NOTICES_S, itertools.count(2 * _NOTICES_S[-1], _NOTICES_S[-1])):
            due = begun + span_s
            with suppress(TimeoutError):
                return self.wait(min(until, due), lambda _: True, may_go_on=due < until)
            names = ", ".join(process.name for process in self.processes if not process.is_heard)
            left_s = until - time.monotonic()
            what = f"sheave: spawn: all workers have returned; waiting for {names}, for {left_s:.0f} s at most"
            print(what, file=sys.stderr, flush=True)

    def start(self) -> None:
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        for peer, place in self.plan.members():
            call = self.call_of(peer)
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(theirs, place, call), name=peer.name)
            self.processes.append(_Process(peer, call is self.call, process, ours))
            with _STARTS, _main_that_can_be_imported():
                process.start()
            theirs.close()

    def call_of(self, peer: Peer) -> _Call:
        """Return what a process of this role does."""
        match peer.role:
            case "scheduler":
                return _Call(_schedule, (), {})
            case "server":
                return self.serve
            case _:
                return self.call

    def wait(
        self, until: float | None, picks: Callable[[_Process], bool], must_end: bool = False, may_go_on: bool = False
    ) -> None:
        """Wait until all that are picked have told their results, and have ended too if they must.

        Raises DeadlineExceeded if they have not until then, or TimeoutError if the caller may go on.
        """
        import time
        from multiprocessing.connection import wait

        while True:
            self.hear()
            waiting = [process for process in self.processes if picks(process) and not process.is_heard]
            if must_end:
                waiting += [process for process in self.processes if process.is_heard and process.process.is_alive()]
            if not waiting and self.fails_at is None:
                return
            ends = [end for end in (until, self.fails_at) if end is not None]
            left = min(ends) - time.monotonic() if ends else None
            unheard: list[Any] = [process.connection for process in self.processes if not process.is_heard]
            if self.failures and (not unheard or (left is not None and left <= 0)):
                raise self.failures[0][1]
            if left is not None and left <= 0:
                if must_end:
                    return
                if may_go_on:
                    raise TimeoutError
                names = ", ".join(process.name for process in waiting)
                raise DeadlineExceeded(f"spawn: {names} did not return in time")
            ending = [process.process.sentinel for process in waiting if process.is_heard]
            wait(unheard + ending, left)

    def hear(self) -> None:
        """Raise the failure that is the cause of all. Those who have lost another process have to wait for its end."""
        import time

        for process in self.processes:
            failure = None if process.is_heard else process.hear()
            if failure is not None:
                self.failures.append((process, failure))
        if not self.failures:
            return
        losses = self.plan.losses()
        suspects = {process.name for process in self.processes if not process.is_heard}
        suspects |= {process.name for process, _ in self.failures}
        for process, cause in self.failures:
            if not process.is_witness and not any(by == process.name and of in suspects for by, of in losses):
                raise cause
        self.fails_at = self.fails_at or time.monotonic() + _CAUSE_PATIENCE_S

    def kill(self) -> None:
        for process in self.processes:
            if process.process.pid is not None and process.process.is_alive():
                process.process.kill()
        for process in self.processes:
            if process.process.pid is not None:
                process.process.join()
                process.process.close()
            process.connection.close()


def _run(connection: Connection, place: dict[str, str], call: _Call) -> None:
    """What a fresh process does."""
    import sys
    import traceback

    from sheave import pickling

    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Variables of a job around this one mean nothing here.
    for name in _variables_of_jobs():
        os.environ.pop(name, None)
    os.environ.update(place)
    try:
        connection.send_bytes(pickling.dumps((True, call())))
    except BaseException as error:
        try:
            pickled = pickling.dumps(error)
        except Exception:
            pickled = None
        connection.send_bytes(pickling.dumps((False, (traceback.format_exc(), pickled, _has_lost(error)))))
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        # The others are to find this process dead, not to hear that it has left in order.
        os._exit(1)


def _has_lost(error: BaseException | None) -> bool:
    """Whether the error came from the loss of another process."""
    for _ in range(100):
        if error is None or isinstance(error, PeerLost):
            break
        error = error.__cause__ or error.__context__
    return isinstance(error, PeerLost)


def _end_with_parent() -> None:
    import multiprocessing
    from multiprocessing.connection import wait

    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
