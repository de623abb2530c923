"""A server's end: batches as lists of tuples, answers, and memory that pushes land in."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from sheave import Mesh, SheaveError
from sheave._core import ExchangeServer

from sheave.compat.fserver_lib.arrays import Landing, Region, lent
from sheave.compat.fserver_lib.errors import invalid, raised


class ServerDataBatch(NamedTuple):
    """One worker's request."""

    #: By which it is answered.
    handler: int
    #: What was pushed, in order.
    tensors: list[Any]
    #: The keys of what was pushed, in order.
    keys: list[int]


class Server:
    """What a server's functions do."""

    def __init__(self, mesh: Mesh, lanes: int, timeout: float | None) -> None:
        self._rows_follow = _rows_follow()
        self._server = ExchangeServer(mesh, lanes=lanes, timeout=timeout)
        self._landing = Landing()

    def get_batch(self, timeout: float | None) -> list[ServerDataBatch]:
        try:
            requests = self._server.get_batch(timeout)
        except SheaveError as error:
            raise raised(error) from None
        shown = self._landing.shown
        return [
            ServerDataBatch(request.handler, [shown(tensor) for tensor in request.tensors], request.keys)
            for request in requests
        ]

    def respond(self, tensors: Sequence[Any], handler: int) -> None:
        try:
            self._server.respond(handler, lent(tensors))
        except SheaveError as error:
            raise raised(error) from None

    def respond_vec(self, ret_buffer: Any, tensors_vec: Sequence[Any], handler_vec: Sequence[int]) -> None:
        rows = [tensor.shape[0] for tensor in tensors_vec]
        needed = sum(rows) if self._rows_follow else max(rows, default=0)
        if len(rows) != len(handler_vec):
            what = f"{len(rows)} tensors and {len(handler_vec)} handlers"
            raise invalid("respond_vec", what, "give one of each for each request")
        if needed > ret_buffer.shape[0]:
            what = f"the tensors have {needed} rows and ret_buffer {ret_buffer.shape[0]}"
            raise invalid("respond_vec", what, "give a ret_buffer with the rows of all requests, one behind the other")
        if not self._rows_follow:
            for count, handler in zip(rows, handler_vec, strict=True):
                self.respond([ret_buffer[:count]], handler)
            return
        try:
            self._server.respond_rows(lent([ret_buffer])[0], handler_vec, rows)
        except SheaveError as error:
            raise raised(error) from None

    def register_recv_buffer(self, tensor: Any, worker_ranks: Sequence[int], push_keys: Sequence[int]) -> None:
        region = Region(tensor)
        try:
            self._server.register(lent([tensor])[0], worker_ranks, push_keys)
        except SheaveError as error:
            raise raised(error) from None
        self._landing.add(region)

    def barrier(self, scope: str, all_lanes: bool, timeout: float | None) -> None:
        self._server.barrier(scope, all_lanes, timeout)

    def close(self) -> None:
        self._server.close()


def _rows_follow() -> bool:
    """Whether the answers of `respond_vec` are rows that follow each other, or all begin at row 0."""
    said = os.environ.get("STEPMESH_RESPOND_VEC", "").strip().lower()
    if said not in ("", "offsets", "row0"):
        raise invalid("init", f'STEPMESH_RESPOND_VEC is "{said}"', "it may be `offsets` or `row0`")
    return said != "row0"
