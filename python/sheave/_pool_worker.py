"""What the processes of a pool run: `python -m sheave._pool_worker`."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from typing import Any

import sheave
from sheave import _core, fleet, pickling
from sheave.pool import _worker


def _set_up(setup: tuple[Any, ...]) -> None:
    path, slot, authkey, pickled = setup
    sys.path[:] = path
    multiprocessing.current_process().authkey = authkey
    initializer, initargs, context = pickling.loads(pickled)
    _worker._own = _worker.Worker(slot, context)
    if initializer is not None:
        initializer(*initargs)


def main() -> None:
    """Work for the pool that has started this process, until it lets it go."""
    # Whoever has started the pool decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        guest = sheave.Guest()
    except (sheave.NotPermitted, sheave.PeerLost):
        # The pool has ended meanwhile.
        sys.exit(1)
    with guest:
        fleet._current = guest
        try:
            _core._pool_work(guest, _set_up)
        except sheave.PeerLost:
            # The host is there to say why.
            sys.exit(1)


if __name__ == "__main__":
    main()
