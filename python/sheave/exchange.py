"""Batched push-pull between workers and servers, with the lowest latency and nothing stored.

Every worker pushes the same arrays to all servers and names the arrays that their answers go to; a server takes one
request of every worker at a time, computes, and answers each straight into the worker's arrays. So do the attention and
expert servers of one model, for each layer and micro-batch. Keys are numbers that name places, not values.

Workers and servers are the members of these roles in a mesh, and open their ends together. In the examples `worker` and
`server` are the ends of an exchange of one each; mostly they are in processes of their own.

>>> x, y = np.array([1.0, 2.0, 3.0]), np.zeros(3)
>>> work = worker.push_pull({0: x}, {0: y})
>>> for request in server.get_batch(timeout=10):
...     server.respond(request, [request.tensors[0].numpy() * 2])
>>> work.wait(timeout=10)
{0: array([2., 4., 6.])}

Arrays are anything with the buffer protocol or DLPack. What is pushed must not change, and what is pulled not be looked
at, before the request is done. Arrays of `sheave.empty` go fastest.

Every wait takes a `timeout` in seconds, lets other threads run, ends at Ctrl-C, and ends with `PeerLost` within a
second when a member dies that it needs, or with `Closed` when one has left.
"""

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

from sheave._core import (
    ExchangeRegistration as Registration,
    ExchangeRequest as Request,
    ExchangeServer,
    ExchangeWorker,
    InvalidArgument,
    Mesh,
    Tensor,
    Work,
    get_nanosecond,
)

__all__ = ["Registration", "Request", "Server", "Take", "Worker", "get_nanosecond"]

#: Anything with the buffer protocol or DLPack: a numpy array, a torch tensor on the CPU, a `sheave.Tensor`.
Array: TypeAlias = Any


class Take(NamedTuple):
    """In place of an array to pull into: the answer comes as a `sheave.Tensor` of this dtype and shape.

    It is the memory that the server has moved, where both are on one host; nothing is copied then.

    >>> from sheave.exchange import Take
    >>> Take("float32", (2, 3)).shape
    (2, 3)
    """

    #: The dtype that the server must answer with.
    dtype: Any
    #: The shape that the result has.
    shape: tuple[int, ...]


class Worker:
    """A worker's end of an exchange. All workers and servers open their ends at once, and block until all have.

    Without a `mesh` it is the default one, which is joined as the environment says if there is none. With `lanes`, the
    same on all members, each worker and server stands for so many processes: those whose rank in their role leaves the
    same remainder exchange with each other. At most `window` requests are in flight; one more waits. With `stamps`,
    `stamps` tells the eight points in time of each request; with `trace` they are recorded too, for `write_trace`.
    Raises AlreadyExists if this node has an open end.

    As a context manager it is closed at the end.

    >>> work = worker.push_pull({7: np.ones(2)}, {8: sheave.exchange.Take("float64", (2,))}, step=1)
    >>> [request] = server.get_batch(timeout=10)
    >>> request.keys, request.pulls, request.step
    ([7], [(8, 'float64', (2,))], 1)
    >>> server.respond(request, request.tensors)
    >>> work.wait(timeout=10)[8].numpy()
    array([1., 1.])
    """

    def __init__(
        self,
        mesh: Mesh | None = None,
        *,
        lanes: int = 1,
        window: int = 64,
        stamps: bool = False,
        trace: bool = False,
        timeout: float | None = None,
    ) -> None:
        self._worker = ExchangeWorker(
            mesh, lanes=lanes, window=window, stamps=stamps, trace=trace, timeout=timeout
        )
        self._servers = self._worker.servers
        self._has_stamps = stamps

    def __repr__(self) -> str:
        return f"<sheave.exchange.Worker {self.rank} with {self.servers} servers>"

    @property
    def rank(self) -> int:
        """This worker's rank among the workers of its lane."""
        return self._worker.rank

    @property
    def servers(self) -> int:
        """How many servers each request goes to."""
        return self._servers

    def push_pull(
        self,
        push: Mapping[int, Array],
        pull: Mapping[int, Any],
        *,
        move: bool = False,
        step: int | None = None,
        timeout: float | None = None,
    ) -> Work[dict[int, Any]]:
        """Send arrays to every server and ask each for answers. Returns at once, unless the window is full.

        `pull` has an array for each key, or a `Take`; with several servers a list of one for each. The work's result
        is what was pulled, by key: the arrays, or tensors in place of a `Take`. With `move` the pushed arrays are
        `sheave.Tensor`s that are given away: on one host the one server gets the memory itself. All requests of a batch
        must name the same `step`, or none. `timeout` is for room in the window.

        Raises InvalidArgument for a key that is there twice, nothing at all, or arrays that cannot be filled;
        BufferInUse for arrays that another operation uses, or moved ones with views; PeerLost or Closed if a server is
        gone. The work raises Mismatch if the batch did not fit together, or the server refuses.
        """
        number, keys, targets = self._submit(push, pull, move, step, timeout)
        return self._worker.work(number, lambda: self._result(number, keys, targets))

    def submit(
        self,
        push: Mapping[int, Array],
        pull: Mapping[int, Any],
        *,
        move: bool = False,
        step: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """As `push_pull`, and returns the request's number for `wait`, which costs less than a work."""
        return self._submit(push, pull, move, step, timeout)[0]

    def wait(self, number: int, timeout: float | None = None) -> None:
        """Wait until a request is done; it goes on after a timeout. Raises what went wrong with it.

        DeadlineExceeded names a server that has not answered; NotFound is for a number that no request has had.
        """
        self._worker.wait(number, timeout)

    def is_done(self, number: int) -> bool:
        """Whether a request is done, without waiting."""
        return self._worker.is_done(number)

    def take(self, number: int) -> list[Tensor]:
        """The answers of a request that is done to each `Take`, once: those of server 0 first.

        Raises InvalidArgument if it is not done, and what went wrong with it if it failed.
        """
        return self._worker.take(number)

    def stamps(self, number: int) -> list[list[int]]:
        """The eight points in time of a request, for each server, in nanoseconds; zeros unless `stamps` was set.

        They are: the call, its sending; the arrival at the server, its taking, its answer, the answer's sending; the
        answer's arrival here, and the end of the wait. The four in the middle are of the server's clock. Raises
        NotFound when so many requests came after that it is forgotten.
        """
        return self._worker.stamps(number)

    def write_trace(self, path: str | PathLike[str]) -> None:
        """Write the spans recorded so far, which Perfetto shows; Io if that fails, InvalidArgument without `trace`."""
        self._worker.write_trace(path)

    def barrier(self, scope: str = "workers", *, all_lanes: bool = False, timeout: float | None = None) -> None:
        """Wait for all "workers", or "all" workers and servers, of this lane or of all lanes."""
        self._worker.barrier(scope, all_lanes, timeout)

    def close(self) -> None:
        """Say farewell to the servers. Requests that are not done end with Closed, and so do later calls."""
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _submit(
        self, push: Mapping[int, Array], pull: Mapping[int, Any], move: bool, step: int | None, timeout: float | None
    ) -> tuple[int, list[int], list[Any]]:
        keys = list(pull)
        targets = list(pull.values())
        if self._servers > 1:
            for key, each in pull.items():
                if not isinstance(each, list | tuple) or isinstance(each, Take) or len(each) != self._servers:
                    what = f"key {key} is pulled from {self._servers} servers; hint: give a list of one array for each"
                    raise InvalidArgument(what)
            keys *= self._servers
            targets = [each[server] for server in range(self._servers) for each in pull.values()]
        number = self._worker.submit(
            list(push), list(push.values()), keys, targets, moved=move, step=step, timeout=timeout
        )
        return number, keys, targets

    def _result(self, number: int, keys: list[int], targets: list[Any]) -> dict[int, Any]:
        if self._has_stamps:
            # Takes down when the wait has ended.
            self._worker.wait(number)
        taken = iter(self._worker.take(number) if any(isinstance(target, Take) for target in targets) else ())
        results = [next(taken) if isinstance(target, Take) else target for target in targets]
        if self._servers == 1:
            return dict(zip(keys, results, strict=True))
        each = len(keys) // self._servers
        return {key: results[index::each] for index, key in enumerate(keys[:each])}


class Server:
    """A server's end of an exchange. All workers and servers open their ends at once, and block until all have.

    `mesh`, `lanes`, `trace` and `timeout` are as for `Worker`. As an iterator it gives batches until all workers have
    left, one after the other; as a context manager it is closed at the end.

    >>> landing = server.register(np.zeros((1, 4)), workers=[0], keys=[9])
    >>> work = worker.push_pull({9: np.full((1, 4), 5.0)}, {9: np.zeros(4)})
    >>> batch = server.get_batch(timeout=10)
    >>> x = landing.merged([request.tensors[0] for request in batch])
    >>> server.respond_rows(x.numpy() + 1, batch, rows=[1])
    >>> work.wait(timeout=10)
    {9: array([6., 6., 6., 6.])}
    >>> server.unregister(landing)
    """

    def __init__(
        self, mesh: Mesh | None = None, *, lanes: int = 1, trace: bool = False, timeout: float | None = None
    ) -> None:
        self._server = ExchangeServer(mesh, lanes=lanes, trace=trace, timeout=timeout)

    def __repr__(self) -> str:
        return f"<sheave.exchange.Server {self.rank} with {self.workers} workers>"

    @property
    def rank(self) -> int:
        """This server's rank among the servers of its lane."""
        return self._server.rank

    @property
    def workers(self) -> int:
        """How many workers a batch has requests of."""
        return self._server.workers

    @property
    def unanswered(self) -> int:
        """How many requests were given out and not answered."""
        return self._server.unanswered

    def get_batch(self, timeout: float | None = None) -> list[Request]:
        """Wait until there is a request of every worker, and take the oldest of each, by the workers' ranks.

        Raises Closed when workers have left, PeerLost when one is lost; Mismatch when the requests name different steps
        or one did not fit its registered place, which is refused to the workers, and the next call has the next batch;
        BufferInUse when a push cannot land because an array of an answered request is still looked at.
        """
        return self._server.get_batch(timeout)

    def respond(self, request: Request | int, arrays: Sequence[Array], *, move: bool = False) -> None:
        """Answer a request, or a handler: one array for each pull, of its dtype and number of elements.

        Returns at once. The arrays must not change before the worker has them. With `move` they are `sheave.Tensor`s
        that are given away. Raises Mismatch for other answers than the worker pulls; it can be answered still. Raises
        NotFound for a request that was answered, PeerLost if the worker is gone.
        """
        self._server.respond(_handler(request), arrays, move)

    def respond_rows(
        self, array: Array, requests: Sequence[Request | int], rows: Sequence[int] | None = None
    ) -> None:
        """Answer several requests with the rows of one array, which follow each other; each pulls one array.

        `rows` says how many each gets: as many as its pull has, if not given.
        """
        if rows is None:
            if not all(isinstance(request, Request) and request.pulls for request in requests):
                raise InvalidArgument("rows are known of requests that pull an array; hint: give rows=[…]")
            shapes = [request.pulls[0][2] for request in requests if isinstance(request, Request)]
            rows = [shape[0] if shape else 1 for shape in shapes]
        self._server.respond_rows(array, [_handler(request) for request in requests], list(rows))

    def refuse(self, request: Request | int, reason: str) -> None:
        """End a request without an answer: its worker gets Mismatch with this reason."""
        self._server.refuse(_handler(request), reason)

    def register(self, array: Array, workers: Sequence[int], keys: Sequence[int]) -> Registration:
        """Let pushes land in `array`, cut into equal parts: the first for `workers[0]` and `keys[0]`, and so on.

        So the parts of all workers lie side by side (`Registration.merged`). Pushes may be smaller than their part. A
        push waits until the request that lies in its place is answered. It holds for pushes that arrive from now on;
        meet the workers in a barrier before they push. The array is in use until `unregister` and its last view.

        Raises InvalidArgument for ranks that do not exist or bytes that cannot be cut evenly, AlreadyExists for a place
        that is taken.
        """
        return self._server.register(array, list(workers), list(keys))

    def unregister(self, registration: Registration) -> None:
        """Take places back. Raises BufferInUse if a request lies there that is not answered."""
        self._server.unregister(registration)

    def write_trace(self, path: str | PathLike[str]) -> None:
        """Write the spans recorded so far, which Perfetto shows; Io if that fails, InvalidArgument without `trace`."""
        self._server.write_trace(path)

    def barrier(self, scope: str = "servers", *, all_lanes: bool = False, timeout: float | None = None) -> None:
        """Wait for all "servers", or "all" workers and servers, of this lane or of all lanes."""
        self._server.barrier(scope, all_lanes, timeout)

    def close(self) -> None:
        """Say farewell to the workers: their requests that are not answered end with Closed."""
        self._server.close()

    def __iter__(self) -> Iterator[list[Request]]:
        while (batch := self._server.next_batch()) is not None:
            yield batch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _handler(request: Request | int) -> int:
    return request if isinstance(request, int) else request.handler
