"""`sheave.spawn`: a function as the processes of a job, for notebooks and tests.

It is a `MemberFleet` that is made, waited for and ended: its processes end with the call, when one fails, when the time
is up, at Ctrl-C, and when this process dies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sheave.members import MemberFleet

_T = TypeVar("_T")


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
    which are copied. Locks, events and the like of multiprocessing may be among the arguments, its queues and pipes may
    not. A script that spawns does so under `if __name__ == "__main__":`, because the fresh processes import it. What
    they print comes behind their names. Several threads may spawn at once.

    Raises Remote when a process fails, which names its rank and has its traceback in the text; the exception itself is
    the cause, where it can be pickled. Raises WorkerDied, with its `exit_status`, when one ends without a result. Of
    several that fail it is the first by what they know of each other, not one that failed for another. Raises
    DeadlineExceeded when `timeout` seconds have passed. In all cases all processes have ended when it is raised.
    Blocks; Ctrl-C ends it and the processes.

    >>> import sheave
    >>> sheave.spawn(sum, 2, ([1, 2, 3],))
    [6, 6]
    """
    with MemberFleet(fn, nprocs, args, kwargs, servers=servers, server=server) as fleet:
        return fleet.wait(timeout)
