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

__all__ = ["KVStoreServer"]


class KVStoreServer:
    """A server, or the scheduler; which of them, the environment says.

    Servers unpickle updaters and optimizers of workers. Every link is authenticated, so these are the job's own."""

    def __init__(self, kvstore: Any = None) -> None:
        self.kvstore = kvstore
        self.init_logging = False

    def _controller(self) -> Callable[[int, Any], bytes]:
        """What commands of workers do: nothing, and the answer is empty. A subclass may do more."""

        def answer(command: int, body: Any) -> bytes:
            return b""

        return answer

    def run(self) -> None:
        """Serves until the workers are gone."""
        with translated():
            sheave.run_server(controller=self._controller(), allow_pickle=True)


def become_role() -> None:
    """Becomes the role that the environment says, unless that is a worker; then it returns."""
    if os.environ.get("DMLC_ROLE", "worker") not in ("server", "scheduler"):
        return
    paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *(os.path.abspath(entry) for entry in sys.path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, paths)))}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-m", "sheave.compat.serve", "mxnet"], environment)
