"""A worker's end: handlers as upstream numbers them, over the requests of the exchange.

Every pushed tensor, and every pull that one server answers, has a number of its own, counted from 0 over all requests
of the worker; a request's handler is its first number. Of the last requests it is remembered which they are; older ones
are over, as so many cannot be in flight.
"""

import threading
from collections.abc import Sequence
from typing import Any

from sheave import Mesh, SheaveError
from sheave._core import ExchangeWorker

from sheave.compat.fserver_lib.arrays import lent
from sheave.compat.fserver_lib.errors import invalid, raised

#: Requests that are remembered: those in flight, and those whose failure the exchange still knows.
REMEMBERED_MAX = 64 + 1024


class Worker:
    """What a worker's functions do."""

    def __init__(self, mesh: Mesh, lanes: int, timeout: float | None) -> None:
        self._worker = ExchangeWorker(mesh, lanes=lanes, stamps=True, timeout=timeout)
        self._servers = self._worker.servers
        self._numbering = threading.Lock()
        self._next = 0
        #: By handler: the number of the request, and how many handlers it has, of which 1 is left after a wait.
        self._requests: dict[int, tuple[int, int]] = {}

    def push_pull(
        self,
        push_tensors: Sequence[Any],
        push_keys: Sequence[int],
        pull_tensors: Sequence[Any],
        pull_keys: Sequence[int],
    ) -> int:
        try:
            number = self._worker.submit(push_keys, lent(push_tensors), pull_keys, lent(pull_tensors))
        except SheaveError as error:
            raise raised(error) from None
        count = len(push_keys) + len(pull_keys) // self._servers
        with self._numbering:
            handler = self._next
            self._next += count
            self._requests[handler] = (number, count)
            if len(self._requests) > REMEMBERED_MAX:
                del self._requests[next(iter(self._requests))]
        return handler

    def wait(self, handler: int, timeout_ms: float) -> None:
        request = self._find("wait", handler)
        if request is None:
            return
        try:
            self._worker.wait(request[0], timeout_ms / 1000)
        except SheaveError as error:
            raise raised(error) from None
        if handler in self._requests:
            self._requests[handler] = (request[0], 1)

    def get_all_handlers(self, handler: int) -> list[int]:
        _, count = self._requests.get(handler, (0, 1))
        return list(range(handler, handler + count))

    def fetch_trace(self, handler: int, server: int | None) -> list[int]:
        request = self._find("fetch_trace", handler)
        if request is None:
            what = f"handler {handler} is not among the last ones"
            raise invalid("fetch_trace", what, "ask before so many other requests were made")
        try:
            stamps = self._worker.stamps(request[0])
        except SheaveError as error:
            raise raised(error) from None
        if server is None:
            return max(stamps, key=lambda each: each[6])
        if not 0 <= server < len(stamps):
            raise invalid("fetch_trace", f"there is no server {server}", f"servers are from 0 to {len(stamps) - 1}")
        return stamps[server]

    def barrier(self, scope: str, all_lanes: bool, timeout: float | None) -> None:
        self._worker.barrier(scope, all_lanes, timeout)

    def close(self) -> None:
        self._worker.close()

    def _find(self, op: str, handler: int) -> tuple[int, int] | None:
        """The request that a number belongs to; None for one that is long over."""
        found = self._requests.get(handler)
        if found is not None:
            return found
        if not 0 <= handler < self._next:
            what = f"there is no handler {handler}; {self._next} were given"
            raise invalid(op, what, "use what push_pull has returned")
        # One of the numbers behind a handler.
        with self._numbering:
            return next((self._requests[first] for first in reversed(self._requests) if first <= handler), None)
