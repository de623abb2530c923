"""`sheave.MemberFleet`: the processes of a job, started, watched and ended together.

They are the members of a mesh of their own, and none is replaced: when one fails, the job has failed. What a function
returns travels through memory that its process has from the one that has started it, which has no name by which anybody
else could find it. So its pickle is opened with `SHEAVE_PICKLE=never` too, which is about what comes over a mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from sheave import _member
from sheave._core import Closed, DeadlineExceeded, InvalidArgument, Members, Peer, Remote, SheaveError, WorkerDied

__all__ = ["MemberFleet"]

_Program = Callable[..., Any] | Sequence[str]


class MemberFleet:
    """Processes of one job on this machine that run a function or a command, as the members of a mesh.

    Each finds its place in the environment, as if `sheave launch` had started it, and joins by `sheave.init()`. They
    end with the fleet and with this process, in whatever way that ends.

    - what: a function, which each of `nprocs` processes calls with `args` and `kwargs`; or a command, a list of words.
      Function, arguments and results travel as `sheave.pickling` says; locks, events and the like of multiprocessing
      may be among the arguments, its queues and pipes may not. A script that starts functions does so under
      `if __name__ == "__main__":`, because the fresh processes import it.
    - servers: so many come beside them, with a scheduler; then they are workers, and else plain ranks. server: what
      the servers run, a function with the same arguments or a command; they run `sheave.run_server()` if None, or the
      command of the workers if that is one.
    - env: variables for them. output: `prefix` prints what they print behind their names, `inherit` as it is, `quiet`
      not at all.

    As a context manager it is closed at the end, and killed if that is an exception. It may be used from any thread.

    >>> with sheave.MemberFleet(sum, 2, ([1, 2, 3],)) as fleet:
    ...     [member.name for member in fleet.members], fleet.wait()
    (['rank-0', 'rank-1'], [6, 6])
    """

    def __init__(
        self,
        what: _Program,
        nprocs: int,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        servers: int = 0,
        server: _Program | None = None,
        env: Mapping[str, str] | None = None,
        output: Literal["prefix", "inherit", "quiet"] = "prefix",
    ) -> None:
        if nprocs < 1 or servers < 0:
            raise InvalidArgument(f"{nprocs} processes and {servers} servers; give at least one process")
        if server is not None and servers == 0:
            raise InvalidArgument("something for servers to run, and no servers; hint: give servers=1 or more")
        if not callable(what) and (args or kwargs):
            raise InvalidArgument("arguments for a command; hint: make them words of the command")
        given = (tuple(args), dict(kwargs or {}))
        program = _program(what, *given)
        programs = {"worker": program, "rank": program}
        if servers > 0:
            default = (_program(_member.serve), _program(_member.schedule)) if callable(what) else (program, program)
            programs["server"] = default[0] if server is None else _program(server, *given)
            programs["scheduler"] = default[1]
        self._returns = callable(what)
        self._members = Members(nprocs, servers, programs, dict(env or {}), output)

    @property
    def members(self) -> list[Peer]:
        """The processes in the order in which they were started, with their names, ranks and process ids."""
        return self._members.peers()

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Wait until all have ended well, and return what the function has returned by rank; None for a command.

        Servers and scheduler are waited for too, for an hour after the last worker at most, and after 10 s it is said
        who: they may save what they hold.

        Raises Remote when the function fails, which names the rank and has the traceback in the text; the exception
        itself is the cause, where it can be pickled. Raises WorkerDied, with `exit_status` and `last_lines`, when a
        process ends without a result, or a command with another status than 0. Of several that fail it is the first by
        what they know of each other, not one that failed for another. All have ended then.

        Raises DeadlineExceeded after `timeout` seconds; it may be called again. Raises Closed if the fleet was ended
        before. Ctrl-C ends the wait, and not the processes.
        """
        try:
            self._wait(timeout)
        except WorkerDied as died:
            failure = self._failure(died)
            if failure is None:
                raise
            raise failure from failure.__cause__
        workers = [peer for peer in self.members if peer.role in ("rank", "worker")]
        return [self._result(peer) for peer in workers] if self._returns else [None] * len(workers)

    def _wait(self, timeout: float | None) -> None:
        try:
            return self._members.wait(timeout)
        except DeadlineExceeded as late:
            names = ", ".join(self._members.unfinished())
            if names:
                error = DeadlineExceeded(f"{names} did not return in time")
                error.elapsed, error.hint = late.elapsed, late.hint
                raise error from None
        # All have told their results, and have only to end, for which they take no longer than this.
        self._members.wait(2 * _member.EXIT_PATIENCE_S)

    def _failure(self, died: WorkerDied) -> Remote | None:
        """What the process says that has died, if it says something."""
        name = died.peer.name if died.peer is not None else ""
        answer = self._members.answer(name)
        if answer is None or answer[0]:
            return None
        from sheave import pickling

        text, packed = pickling.loads(answer[1])
        failure = Remote(f"{name} failed:\n{text}")
        failure.peer, failure.remote_traceback, failure.exit_status = died.peer, text, died.exit_status
        failure.last_lines, failure.elapsed = died.last_lines, died.elapsed
        try:
            failure.__cause__ = None if packed is None else pickling.unpack_exception(packed)
        except Exception as error:
            # Its class may exist there alone; the text says all that is known.
            failure.add_note(f"the exception itself cannot be unpickled: {error}")
        return failure

    def _result(self, peer: Peer) -> Any:
        from sheave import pickling

        answer = self._members.answer(peer.name)
        error: SheaveError
        if answer is None:
            error = Closed(f"the fleet was ended before {peer.name} had returned")
            error.peer = peer
            raise error
        try:
            return pickling.loads(answer[1])
        except Exception as failure:
            error = Remote(f"the result of {peer.name} cannot be unpickled: {failure}")
            error.peer = peer
            raise error from failure

    def kill(self) -> None:
        """Kill the processes, and what they have started. When this returns none is left."""
        self.close(0.0)

    def close(self, grace: float = 5.0) -> None:
        """Ask the processes that still run to end, by SIGTERM; those that have not after `grace` seconds are killed.

        Idempotent.
        """
        self._members.end(grace)

    def __enter__(self) -> MemberFleet:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(5.0 if kind is None else 0.0)

    def __repr__(self) -> str:
        return f"<sheave.MemberFleet of {len(self.members)} processes>"


def _program(what: _Program, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> _Started:
    """What a process is started with: a command, and the function that it is to call, if that is one of ours."""
    if callable(what):
        return _member.command(), _member.order(what, args, kwargs or {})
    if isinstance(what, str):
        raise InvalidArgument(f"{what!r} is no list of words; hint: give {what.split()!r}")
    return list(what), None


_Started = tuple[list[str], bytes | None]
