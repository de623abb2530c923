"""The other roles: servers, and the scheduler.

Where `DMLC_ROLE` says `server` or `scheduler`, importing the face does not return: the process becomes that role and
ends when the workers are gone. It does so by becoming another Python (`os.execve`), which keeps the process id and
finds the same modules, but stands in no half-done import; so a server can import the user's modules, which import the
face, when it unpickles what workers send it.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import sheave

from sheave.compat.mxnet.base import translated
from sheave.compat.mxnet.kvstore import agreement

__all__ = ["KVStoreServer"]


class KVStoreServer:
    """A server, or the scheduler; which of them, the environment says.

    Servers unpickle updaters and optimizers of workers: of the job's own, for they are members and every link is
    authenticated. With `SHEAVE_PICKLE=never` they open no pickle, and take what sheave knows itself."""

    def __init__(self, kvstore: Any = None) -> None:
        self.kvstore = kvstore
        self.init_logging = False

    def _controller(self) -> Callable[[int, bytes, Any], bytes | str | None]:
        """What is called with each command of a worker: its number, its body, and nothing. What that returns is the
        answer. This one answers nothing; a subclass may do more."""

        def answer(cmd_id: int, cmd_body: bytes, _: Any) -> None:
            return None

        return answer

    def run(self) -> None:
        """Serves until the workers are gone."""
        controller, heard = self._controller(), agreement.Heard()

        def answer(number: int, body: bytes) -> bytes | str | None:
            return heard.answer(body) if number == agreement.COMMAND else controller(number, body, None)

        with translated():
            sheave.run_server(controller=answer, allow_pickle=True)


def become_role() -> None:
    """Becomes the role that the environment says, unless that is a worker; then it returns."""
    if (os.environ.get("SHEAVE_ROLE") or os.environ.get("DMLC_ROLE")) not in ("server", "scheduler"):
        return
    paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *(os.path.abspath(entry) for entry in sys.path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, paths)))}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-m", "sheave.compat.serve", "mxnet"], environment)
