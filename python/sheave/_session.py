"""What the worker processes of a `sheave.session.ProcessSession` run."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def command(entrypoint: str | None) -> list[str]:
    """Return how such a process is started."""
    from multiprocessing import spawn, util

    from sheave import _member

    if entrypoint is None:
        return _member.command("_session")
    flags: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined, unused-ignore]
    return [os.fsdecode(spawn.get_executable()), *flags, "-m", entrypoint]


def program(has_entrypoint: bool) -> bytes:
    """Return what makes a process one of this program: nothing where an entrypoint does that."""
    import pickle

    from sheave import _member

    if has_entrypoint:
        return b""
    data = _member.preparation()
    # What would let it take part in this process's multiprocessing stays here.
    data.pop("authkey", None)
    return pickle.dumps(data)


def prepare(program: bytes) -> None:
    """Make this process, a worker, one of its session's program."""
    import pickle

    from sheave import _core, _member

    name = os.environ.get("SHEAVE_NAME", "worker")
    # They say where the session is, which it has joined: what it starts or joins itself is elsewhere.
    for variable in _core._variables_of_jobs():
        os.environ.pop(variable, None)
    if program:
        with _member.prepared({**pickle.loads(program), "name": name}):
            pass


def main() -> None:
    """Be a worker until the session ends."""
    from sheave import _core

    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            # Lines are to be seen when they are written, into a pipe too.
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr, unused-ignore]
    try:
        _core._session_work()
    except _core.PeerLost:
        # The controller is not there to hear why.
        os._exit(1)
