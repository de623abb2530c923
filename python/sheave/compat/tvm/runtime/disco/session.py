"""Sessions and what they hand out."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from sheave import session as ground
from sheave.compat.tvm.runtime.device import Device
from sheave.compat.tvm.runtime.disco.collectives import Collectives
from sheave.compat.tvm.runtime.disco.drefs import DModule, DPackedFunc, DRef
from sheave.compat.tvm.runtime.errors import raising
from sheave.compat.tvm.runtime.values import to_sheave

__all__ = ["ProcessSession", "Session", "SocketSession", "ThreadedSession"]

ENTRYPOINT = "tvm.exec.disco_worker"
"""What worker processes run unless their session says otherwise."""


class Session(Collectives):
    """One controller and its workers. `ThreadedSession`, `ProcessSession` and `SocketSession` are its kinds."""

    def __init__(self, session: ground.Session):
        super().__init__()
        self._session = session
        self._call = session.call

    @property
    def num_workers(self) -> int:
        """The number of workers, in all groups."""
        return self._session.workers

    def _check_worker(self, worker_id: int) -> None:
        if not 0 <= worker_id < self.num_workers:
            raise ValueError(f"worker {worker_id} of {self.num_workers}; they are counted from 0")

    @raising
    def get_global_func(self, name: str) -> DPackedFunc:
        """Names a function, which each worker looks up. Returns at once."""
        return DPackedFunc(self._session.function(name), self)

    @raising
    def import_python_module(self, module_name: str) -> None:
        """Has each worker import a module. Returns at once."""
        self._session.import_module(module_name)

    @raising
    def call_packed(self, func: DRef, *args: Any) -> DRef:
        """Has all workers call a function. Returns at once."""
        given = [arg._register if isinstance(arg, DRef) else to_sheave(arg) for arg in args]
        return DRef(self._call(func._register, *given), self)

    def sync_worker_0(self) -> None:
        """Waits until worker 0 has run everything that was issued before."""
        self._sync_worker(0)

    @raising
    def _sync_worker(self, worker_id: int) -> None:
        self._session.sync(worker_id)

    @raising
    def _sync_all(self) -> None:
        self._session.sync()

    @raising
    def load_vm_module(self, path: str, device: Device | None = None, *, upload: bool = False) -> DModule:
        """Has each worker load a file, by a path that means the same for all of them. Returns at once.

        Files are loaded by what `register_module_loader` was told for their kind in the worker's process. With
        `upload` the file is this process's, and goes along to workers whose node has none of this path.
        """
        load, path = self._get_cached_method("runtime.disco.load_vm_module"), os.fspath(path)
        if not upload:
            return DModule(load(path, device), self)
        content = np.fromfile(path, np.uint8)
        return DModule(load(os.path.abspath(path), device, content), self)

    @raising
    def shutdown(self) -> None:
        """Ends the session: workers do what was issued, and leave. Raises what failed and nobody was told."""
        self._cache.clear()
        self._session.shutdown()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._cache.clear()
        self._session.__exit__(kind, error, traceback)


class ThreadedSession(Session):
    """A session whose workers are threads of this process."""

    @raising
    def __init__(self, num_workers: int, num_groups: int = 1):
        super().__init__(ground.ThreadedSession(num_workers, num_groups))


class ProcessSession(Session):
    """A session whose workers are processes; worker 0 is a thread of this one.

    Each runs the module `entrypoint`, as ``python -m entrypoint WORKER_ID NUM_WORKERS NUM_GROUPS READ_FD WRITE_FD``,
    which registers functions and calls the global function ``runtime.disco.WorkerProcess`` with these.
    """

    @raising
    def __init__(self, num_workers: int, num_groups: int = 1, entrypoint: str = ENTRYPOINT):
        super().__init__(ground.ProcessSession(num_workers, num_groups, _found(entrypoint)))


class SocketSession(Session):
    """A session of several nodes, of which this process begins the first.

    Each other one is started by ``python -m tvm.exec.disco_remote_socket_session HOST PORT NUM_WORKERS``, with the same
    number of workers. This waits until all have come, and lets other threads run meanwhile.
    """

    @raising
    def __init__(self, num_nodes: int, num_workers_per_node: int, num_groups: int, host: str, port: int):
        entrypoint = _found(ENTRYPOINT)
        super().__init__(ground.SocketSession(num_nodes, num_workers_per_node, num_groups, host, port, entrypoint))
        self._per_node = num_workers_per_node

    def _workers_per_node(self) -> int:
        return self._per_node


def _found(entrypoint: str) -> str:
    """Where a module of TVM's is found without the runner too."""
    return f"sheave.compat.{entrypoint}" if entrypoint.startswith("tvm.") else entrypoint
