"""What the worker processes of a `sheave.session.ProcessSession` run."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any


def command(entrypoint: str | None) -> list[str]:
    """Return how such a process is started."""
    from multiprocessing import spawn, util

    from sheave import _member

    if entrypoint is None:
        return _member.command("_session")
    flags: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined, unused-ignore]
    return [os.fsdecode(spawn.get_executable()), *flags, "-m", entrypoint]


def program(entrypoint: str | None, is_elsewhere: bool = False) -> bytes:
    """Return what makes a process one of this program: nothing where an entrypoint does that.

    Workers elsewhere, on other nodes, are not started by the entrypoint, and import it.
    """
    import pickle

    from sheave import _member

    if entrypoint is not None:
        return pickle.dumps({"entrypoint": entrypoint}) if is_elsewhere else b""
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
    if not program:
        return
    data = pickle.loads(program)
    is_elsewhere = _core._session_worker().node > 0
    if "entrypoint" in data:
        if is_elsewhere:
            _import_entrypoint(data["entrypoint"])
        return
    if is_elsewhere:
        data = _moved(data)
    with _member.prepared({**data, "name": name}):
        pass


def _import_entrypoint(module: str) -> None:
    """Import, on another node than the controller's, what registers functions there."""
    import importlib

    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        what = f"the entrypoint {module} is not installed on {_host()}, where python is {sys.executable}"
        raise ModuleNotFoundError(what, name=module) from None


def _moved(data: dict[str, Any]) -> dict[str, Any]:
    """Return what makes a process of another node one of the program, whose folders may not be there."""
    import importlib.util

    moved = dict(data)
    known = [folder for folder in sys.path if isinstance(folder, str)]
    there = [path for path in data.get("sys_path", ()) if path not in known and os.path.exists(path)]
    moved["sys_path"] = known + there
    for folder in ("dir", "orig_dir"):
        if not os.path.isdir(moved.get(folder) or ""):
            moved.pop(folder, None)
    path, module = data.get("init_main_from_path"), data.get("init_main_from_name")
    if path is not None and not os.path.exists(path):
        hint = "copy it there, or give the session an entrypoint, a module that the nodes can import"
        raise FileNotFoundError(f"the program {path} is not on {_host()}: {hint}")
    if module is not None:
        before = sys.path
        sys.path = moved["sys_path"]
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        finally:
            sys.path = before
        if found is None:
            raise ModuleNotFoundError(f"the program, {module}, is not installed on {_host()}", name=module)
    return moved


def _host() -> str:
    import platform

    from sheave import _core

    return f"node {_core._session_worker().node}, {platform.node()}"


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
