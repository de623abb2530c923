"""What the processes of a `sheave.MemberFleet` run: a function of the one that has started them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sheave._core import Sheet, init

if TYPE_CHECKING:
    from collections.abc import Iterator

EXIT_PATIENCE_S = 10.0
"""How long a process may take to end after its function has returned."""


def command(module: str = "_member") -> list[str]:
    """Return how such a process is started: as what this module of sheave does.

    It looks for modules where this one does from its first line on, and imports nothing before.
    """
    from multiprocessing import spawn, util

    flags: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined, unused-ignore]
    path = [folder for folder in sys.path if isinstance(folder, str)]
    program = f"import sys; sys.path[:] = {ascii(path)}; from sheave import {module}; {module}.main()"
    return [os.fsdecode(spawn.get_executable()), *flags, "-c", program]


def order(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Return what is on the sheet of a process that is to call this function."""
    import pickle

    from sheave import pickling

    with _starting():
        call = pickling.dumps((fn, tuple(args), dict(kwargs)), main_by_name=_can_import_main())
        return pickle.dumps((preparation(), call))


def preparation() -> dict[str, Any]:
    """Return what `prepare` makes a process one of this program by."""
    from multiprocessing import spawn

    data: dict[str, Any] = spawn.get_preparation_data("member")
    if not _can_import_main():
        # A program that was read from standard input says that it is a file.
        data.pop("init_main_from_path", None)
    return data


def _can_import_main() -> bool:
    """Whether fresh processes import what runs here as a script."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    return getattr(main, "__spec__", None) is not None or (path is not None and os.path.exists(path))


@contextmanager
def _starting() -> Iterator[None]:
    """Locks of multiprocessing may be pickled only by a thread that starts a process."""
    from multiprocessing import context

    before = context.get_spawning_popen()  # type: ignore[attr-defined, unused-ignore]
    context.set_spawning_popen(object())  # type: ignore[arg-type, attr-defined, unused-ignore]
    try:
        yield
    finally:
        context.set_spawning_popen(before)  # type: ignore[attr-defined, unused-ignore]


def serve() -> None:
    """Do what servers do."""
    import sheave

    init()
    sheave.run_server()


def schedule() -> None:
    """Do what the scheduler does."""
    with init() as mesh:
        mesh.until_gone()


def main() -> None:
    """Call what is on the sheet of this process, and write there what came of that."""
    import traceback

    from sheave import pickling

    sheet, pid = Sheet(), os.getpid()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            # Lines are to be seen when they are written, into a pipe too.
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr, unused-ignore]
    try:
        fn, args, kwargs = _opened(sheet.take_order())
        result = pickling.dumps(fn(*args, **kwargs))
        if os.getpid() == pid:
            sheet.answer(True, result)
            # Threads that go on, and what is done at exit, keep nobody waiting for ever.
            patience = threading.Timer(EXIT_PATIENCE_S, os._exit, (0,))
            patience.daemon = True
            patience.start()
    except BaseException as error:
        if os.getpid() != pid:
            # A copy of the process, made by the function, in whose name it must not speak.
            raise
        sheet.answer(False, pickling.dumps((traceback.format_exc(), pickling.pack_exception(error))))
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        # The others are to find this process dead, not to hear that it has left in order.
        os._exit(1)


@contextmanager
def prepared(data: dict[str, Any]) -> Iterator[None]:
    """Make this process one of the program that `preparation` is of, and run what belongs to that."""
    from multiprocessing import process, spawn

    data["name"] = os.environ.get("SHEAVE_NAME", data["name"])
    current = process.current_process()
    # A script that starts processes whenever it is imported is told so.
    current._inheriting = True  # type: ignore[attr-defined, unused-ignore]
    try:
        spawn.prepare(data)
        yield
    finally:
        del current._inheriting  # type: ignore[attr-defined, unused-ignore]


def _opened(order: bytes) -> Any:
    """What is to be called, where the program of the other process has been imported."""
    import pickle

    from sheave import pickling

    data, call = pickle.loads(order)
    with prepared(data):
        return pickling.loads(call)
