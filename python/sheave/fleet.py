"""`sheave.Fleet`: processes that are guests of this one, and are replaced when they end.

They run a function of the caller's, or just what they are called for; they end with the fleet, with their host and with
its process, in whatever way that ends. Pickles are opened between them and their host alone, in both directions, and
nowhere with `SHEAVE_PICKLE=never`.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from sheave._core import (
    Closed,
    Guest,
    GuestFleet,
    Mesh,
    Peer,
    SheaveError,
    init,
)

__all__ = ["Fleet", "FleetEvent", "current_guest"]

_NUMBERS = itertools.count(1)
"""Numbers of this process's fleets, for the names of the services by which their guests find their program."""

_RUN = "fleet.run"
"""What each guest of a fleet serves: it runs a function of its host's."""


class FleetEvent(NamedTuple):
    """Something that has happened to a process of a fleet."""

    what: str
    """`started`, `attached`, `ended` (and nobody had asked it to), or `given up`."""
    slot: int
    """Which of the processes, counted from 0."""
    name: str | None
    """Its name as a guest."""
    pid: int | None
    """Its process id."""
    error: SheaveError | None
    """WorkerDied with exit status and last lines, where it has ended."""


class Fleet:
    """Processes that are guests of a mesh's node, each replaced when it ends.

    Each runs `fn(*args, **kwargs)`, if that is given, and then does what its host calls it for, until that lets it go.
    In it `current_guest` is the guest, by which it serves functions and objects and calls its host. Function, arguments
    and results travel as `sheave.pickling` says.

    - mesh: whose guests they are; the default mesh if None, which is joined if there is none.
    - label: names them, as in `rank-0.guest-3`. env: variables for them. output: `prefix` prints what they print
      behind their names, `inherit` as it is, `quiet` not at all.
    - timeout: seconds that one may take from its start until it has run `fn`.
    - restarts, within: a process that ends is replaced so often within so many seconds; then its slot is given up.

    Blocks until all have run `fn`. Raises WorkerDied, with `exit_status` and `last_lines`, for one that ends before.
    As a context manager it is closed at the end. It may be used from any thread.

    >>> with sheave.Fleet(2) as fleet:
    ...     [fleet.call(guest, pow, (2, 10)) for guest in fleet.guests]
    [1024, 1024]
    """

    def __init__(
        self,
        count: int,
        fn: Callable[..., Any] | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        mesh: Mesh | None = None,
        label: str = "guest",
        env: Mapping[str, str] | None = None,
        timeout: float | None = 60.0,
        restarts: int = 5,
        within: float = 60.0,
        output: Literal["prefix", "inherit", "quiet"] = "prefix",
    ) -> None:
        self.count = count
        self.mesh = init() if mesh is None else mesh
        self._service = f"fleet-{next(_NUMBERS)}"
        call = None if fn is None else (fn, tuple(args), dict(kwargs or {}))
        self.mesh.serve(self._service, _Program(call))
        command = [sys.executable, "-m", "sheave._guest", self._service]
        variables = list((env or {}).items())
        try:
            self._fleet = GuestFleet(
                self.mesh, count, command, variables, label, timeout, (restarts, within), output
            )
        except BaseException:
            self._end_service()
            raise

    @property
    def guests(self) -> list[Peer]:
        """The guests that are there now, by slot; one that is being replaced is missing."""
        return self._fleet.guests()

    def guest(self, slot: int, timeout: float | None = None) -> Peer:
        """Return the guest of a slot, and wait for it if it is being replaced.

        Raises what its process has died of if the slot was given up; DeadlineExceeded after `timeout` seconds.
        """
        return self._fleet.guest(slot, timeout)

    def wait(self, timeout: float | None = None) -> list[Peer]:
        """Wait until there is a guest in each slot, and return them.

        Raises what the processes of a slot have died of that was given up; DeadlineExceeded after `timeout` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        left = (None if until is None else max(until - time.monotonic(), 0.0) for _ in range(self.count))
        return [self.guest(slot, seconds) for slot, seconds in enumerate(left)]

    def call(
        self,
        guest: Peer | str,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Run `fn(*args, **kwargs)` in a guest and return its result, or a Work of it; as `Mesh.call` in all else."""
        what = (fn, tuple(args), dict(kwargs or {}))
        return self.mesh.call(guest, _RUN, what, timeout=timeout, async_op=async_op)

    def events(self) -> list[FleetEvent]:
        """Return what has happened since this was called last: of very much, the last 1,024 events."""
        return [FleetEvent(*event) for event in self._fleet.events()]

    def close(self, grace: float = 5.0) -> None:
        """Let the guests go; those that have not ended after `grace` seconds are killed. Idempotent."""
        self._end_service()
        self._fleet.close(grace)

    def _end_service(self) -> None:
        if not self.mesh.closed:
            try:
                self.mesh.serve_no_more(self._service)
            except Closed:
                # The mesh was left meanwhile.
                return

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sheave.Fleet of {self.count} guests>"


class _Program:
    """What the guests of one fleet ask their host for when they start."""

    def __init__(self, call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None):
        self._call = call

    def path(self) -> list[str]:
        """Where modules are, so that functions are found by their names."""
        return [folder for folder in sys.path if isinstance(folder, str)]

    def call(self) -> Any:
        """Return the function that they run, and its arguments."""
        return self._call


_current: Guest | None = None


def current_guest() -> Guest:
    """Return the guest that this process is, if a Fleet has started it.

    Raises Closed where that is not so.
    """
    if _current is None:
        raise Closed("this process is no guest that a Fleet has started")
    return _current
