"""This process in its job: from `init` to `stop`, with the environment as upstream reads it."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import sheave
from sheave import DeadlineExceeded, Mesh, SheaveError

from sheave.compat.fserver_lib.errors import invalid, misuse, raised
from sheave.compat.fserver_lib.server import Server
from sheave.compat.fserver_lib.worker import Worker

#: What upstream takes a variable for that is not set.
DEFAULTS = {"DMLC_ROLE": "server", "DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "1"}


class Job:
    """What this process is."""

    def __init__(self) -> None:
        self.mesh: Mesh | None = None
        self.end: Worker | Server | None = None
        self.lanes = 1
        self.was_stopped = False

    def init(self, timeout: float | None) -> None:
        if self.mesh is not None or self.was_stopped:
            hint = "a process has one job: call init() once, and stop() at the end"
            raise misuse("init", "this process has joined already", hint)
        until = None if timeout is None else time.monotonic() + timeout
        _check_backend()
        try:
            with _defaults():
                mesh = sheave.init() if timeout is None else sheave.init(join_timeout=timeout)
            try:
                self.end = self._opened(mesh, None if until is None else max(until - time.monotonic(), 0.001))
            except BaseException:
                mesh.close()
                raise
        except SheaveError as error:
            raise raised(error) from None
        self.mesh = mesh

    def stop(self, timeout: float | None) -> None:
        if self.mesh is None:
            raise misuse("stop", *self._why_not())
        try:
            if self.end is not None:
                # Whoever still waits for a batch or an answer of this process is told.
                self.end.close()
            try:
                self.mesh.finish(timeout)
            except DeadlineExceeded:
                raise
            except BaseException:
                self._leave()
                raise
            self._leave()
        except SheaveError as error:
            raise raised(error) from None

    def barrier(self, servers: bool, workers: bool, all_lanes: bool, timeout: float | None) -> None:
        if self.mesh is None:
            raise misuse("barrier", *self._why_not())
        includes = workers if isinstance(self.end, Worker) else servers
        if self.end is None or not includes:
            hint = "workers include workers and servers include servers; the scheduler is in no barrier but stop()"
            raise invalid("barrier", f"this process is a {self.mesh.role} and not included", hint)
        scope = "all" if servers and workers else "servers" if servers else "workers"
        try:
            # Where groups have one process the two kinds of barrier are one.
            self.end.barrier(scope, all_lanes or self.lanes == 1, timeout)
        except SheaveError as error:
            raise raised(error) from None

    def worker(self, op: str) -> Worker:
        """This process as a worker."""
        if isinstance(self.end, Worker):
            return self.end
        raise self._other(op, "workers")

    def server(self, op: str) -> Server:
        """This process as a server."""
        if isinstance(self.end, Server):
            return self.end
        raise self._other(op, "servers")

    def _opened(self, mesh: Mesh, timeout: float | None) -> Worker | Server | None:
        if mesh.role == "scheduler":
            return None
        self.lanes = _lanes()
        if mesh.role == "worker":
            return Worker(mesh, self.lanes, timeout)
        if mesh.role == "server":
            return Server(mesh, self.lanes, timeout)
        hint = "set DMLC_ROLE, DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT, or start it with `sheave launch -n 1 -s 1`"
        raise invalid("init", f"this process is a {mesh.role}, neither worker, server nor scheduler", hint)

    def _leave(self) -> None:
        if self.mesh is not None:
            self.mesh.close()
        self.mesh, self.end, self.was_stopped = None, None, True

    def _other(self, op: str, role: str) -> SheaveError:
        if self.mesh is None:
            return misuse(op, *self._why_not())
        return misuse(op, f"this process is a {self.mesh.role}", f"only {role} call it")

    def _why_not(self) -> tuple[str, str]:
        if self.was_stopped:
            return "this process has left its job", "call it before stop()"
        return "this process has joined no job", "call init() first"


@contextmanager
def _defaults() -> Iterator[None]:
    added = [name for name in DEFAULTS if not os.environ.get(name, "").strip()]
    os.environ.update({name: DEFAULTS[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _lanes() -> int:
    said = os.environ.get("DMLC_GROUP_SIZE", "").strip() or "1"
    if not said.isdecimal() or int(said) < 1:
        raise invalid("init", f'DMLC_GROUP_SIZE is "{said}"', "it is how many processes a group has, from 1 on")
    return int(said)


def _check_backend() -> None:
    for name in ("STEPMESH_BAKCEND", "STEPMESH_BACKEND"):
        said = os.environ.get(name, "").strip()
        if said.upper() == "GPU":
            raise invalid("init", f"{name} is {said}, and this build knows the CPU alone", f"set {name}=CPU")
        if said and said.upper() != "CPU":
            raise invalid("init", f'{name} is "{said}"', "it may be `CPU`, or `GPU` in a GPU build")
