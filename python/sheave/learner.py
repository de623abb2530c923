"""Gradient servers: learners push gradients, which are summed in a tree of two levels, and an optimizer makes a step.

Some members of an `RpcGroup` start a `GradientServer` of one name. Each of the secondaries sums `batch` gradients of
learners and sends the sum to the primary, which makes a step of as many sums: by an optimizer of `sheave.optim`, or by
a function of yours. A `GradientClient` pushes gradients, and knows of each whether it is in a step, was dropped by a
full queue, or was lost with a server that died; none is in two steps.

A `ModelServer` keeps models by name, whose versions count up; a `ModelClient` pushes and pulls one of them. A gradient
server may publish into it.

Parameters and gradients are dictionaries of arrays by their names: float16, bfloat16, float32 or float64, of numpy, of
torch, or whatever else speaks the buffer protocol or DLPack. All servers are told names, dtypes and shapes.

>>> with sheave.init() as mesh:
...     group, published = mesh.rpc_group("training"), []
...     weights = {"w": np.array([1.0, 2.0], np.float32)}
...     with sheave.learner.GradientServer(
...         group, "gradients", weights, optimizer=sheave.optim.SGD(lr=1.0), method="mean", batch=2,
...         publish=lambda parameters, version: published.append((version, parameters["w"].tolist())),
...     ):
...         client = sheave.learner.GradientClient(group, "gradients")
...         for value in range(4):
...             _ = client.push({"w": np.array([value, 0.5], np.float32)})
...         client.flush(), client.report().applied, published
(1, 4, [(1, [-0.5, 1.5])])
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, overload

from sheave import _core
from sheave._core import InvalidArgument, RpcGroup, Tensor, Work
from sheave._models import ModelClient, ModelServer
from sheave.optim import Optimizer

__all__ = [
    "ClientReport",
    "GradientClient",
    "GradientId",
    "GradientServer",
    "Losses",
    "ModelClient",
    "ModelServer",
    "Move",
    "Parameter",
    "PrimaryReport",
    "ServerReport",
]


@dataclass(frozen=True)
class Parameter:
    """The dtype and the shape of a parameter, for servers that need not have the parameter itself.

    >>> sheave.learner.Parameter("float32", (2, 3)).shape
    (2, 3)
    """

    dtype: Any
    shape: tuple[int, ...]


class GradientId(NamedTuple):
    """Which gradient it is: the name of the member that has pushed it, the client there, and the client's number of it,
    from 1.

    >>> sheave.learner.GradientId("rank-1", 0, 7).number
    7
    """

    member: str
    client: int
    number: int


@dataclass(frozen=True)
class Losses:
    """Gradients that are in no step: how many, and the latest of them, at most 1024.

    >>> sheave.learner.Losses().count
    0
    """

    count: int = 0
    latest: list[GradientId] = field(default_factory=list)


@dataclass(frozen=True)
class PrimaryReport:
    """What a primary has done: the `version` of its parameters, the gradients of learners that are `applied`, the sums
    that are `queued`, the gradients that any server has `dropped`, and those that were `lost` with a secondary, as far
    as clients have asked for them.

    >>> sheave.learner.PrimaryReport().version
    0
    """

    version: int = 0
    applied: int = 0
    queued: int = 0
    dropped: Losses = field(default_factory=Losses)
    lost: Losses = field(default_factory=Losses)


@dataclass(frozen=True)
class ServerReport:
    """What a server has done: the gradients that it has `taken` as a secondary and `forwarded` in sums, those that are
    `queued`, the pushes that are `waiting` for room, the gradients that it has `dropped`, and what it does as the
    `primary`, if it is.

    >>> sheave.learner.ServerReport().primary is None
    True
    """

    taken: int = 0
    forwarded: int = 0
    queued: int = 0
    waiting: int = 0
    dropped: Losses = field(default_factory=Losses)
    primary: PrimaryReport | None = None


class Move(NamedTuple):
    """A push that went to another secondary, because the first was gone.

    >>> sheave.learner.Move(3, "rank-1", "rank-2").to_member
    'rank-2'
    """

    number: int
    from_member: str
    to_member: str


@dataclass(frozen=True)
class ClientReport:
    """What became of a client's gradients.

    Of those that were `pushed`, secondaries have taken those that are `acknowledged`. They are `applied`, `dropped` by
    a full queue, at the end of a server or because the push gave up, `lost` with a secondary that died, or `pending`:
    on their way, or waiting for their batch. `moved` went to another secondary than first. `lost_numbers` and `moves`
    have the latest, at most 1024 each, and `gone` the names of the secondaries that are gone, as far as the client
    knows.

    >>> sheave.learner.ClientReport().pending
    0
    """

    pushed: int = 0
    acknowledged: int = 0
    applied: int = 0
    dropped: int = 0
    lost: int = 0
    pending: int = 0
    moved: int = 0
    lost_numbers: list[int] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


def _losses(said: tuple[int, list[tuple[str, int, int]]]) -> Losses:
    count, latest = said
    return Losses(count, [GradientId(*each) for each in latest])


def _server_report(said: dict[str, Any]) -> ServerReport:
    primary = said["primary"]
    if primary is not None:
        losses = {"dropped": _losses(primary["dropped"]), "lost": _losses(primary["lost"])}
        primary = PrimaryReport(**{**primary, **losses})
    return ServerReport(**{**said, "dropped": _losses(said["dropped"]), "primary": primary})


def _client_report(said: dict[str, Any]) -> ClientReport:
    return ClientReport(**{**said, "moves": [Move(*each) for each in said["moves"]]})


def _on_host(array: Any) -> Any:
    """The array, or what a tensor of torch has of it in the memory of the host."""
    if not hasattr(array, "detach"):
        return array
    detached = array.detach()
    return detached if detached.device.type == "cpu" else detached.cpu()


def _described(parameters: Mapping[str, Any]) -> list[tuple[str, Any, list[int]]]:
    described = []
    for name, parameter in parameters.items():
        if not hasattr(parameter, "dtype") or not hasattr(parameter, "shape"):
            what = f"parameter {name!r} is a {type(parameter).__name__}; expected an array with dtype and shape"
            raise InvalidArgument(f"start gradient server: {what}; hint: give an array, or a sheave.learner.Parameter")
        described.append((name, parameter.dtype, [int(extent) for extent in parameter.shape]))
    return described


def _like(parameter: Any, tensor: Tensor) -> Any:
    """The tensor as an array of the library that the parameter is of."""
    if type(parameter).__module__.partition(".")[0] == "torch" or hasattr(parameter, "detach"):
        return tensor.torch()
    return tensor.numpy()


class _Learning:
    """The functions of a primary, and the parameters that they are given. The server has this, and not the reverse."""

    def __init__(
        self,
        parameters: Mapping[str, Any],
        step: Callable[[Mapping[str, Any], dict[str, Any]], Any] | None,
        publish: Callable[[Mapping[str, Any], int], Any] | None,
    ) -> None:
        self._parameters = parameters
        self._step = step
        self._publish = publish

    def step(self, gradients: dict[str, Tensor], _count: int) -> None:
        assert self._step is not None
        arrays = {name: _like(self._parameters[name], gradient) for name, gradient in gradients.items()}
        stepped = self._step(self._parameters, arrays)
        if stepped is not None:
            self._parameters = stepped

    def publish(self, parameters: dict[str, Tensor], version: int) -> None:
        assert self._publish is not None
        if self._step is not None:
            self._publish(self._parameters, version)
            return
        arrays = {name: _like(self._parameters[name], tensor) for name, tensor in parameters.items()}
        for array in arrays.values():
            if hasattr(array, "setflags"):
                array.setflags(write=False)
        self._publish(arrays, version)


#: A member of the group: its rank in the mesh, its name, or a `Member`.
_Who = Any


def _servers(
    group: RpcGroup, name: str, primary: _Who | None, secondaries: Iterable[_Who] | None
) -> tuple[str, _Who, list[_Who]]:
    first = group.members[0] if primary is None else primary
    return name, first, list(group.members if secondaries is None else secondaries)


class GradientServer:
    """This process's part of the gradient servers of one name, which serves until `stop`; a context, at whose end it is
    stopped. It is also stopped when nobody has it any more.

    `primary` and `secondaries` say which members of the group are servers, at all servers and clients the same: by
    default the first member is the primary, and all are secondaries. `parameters` tell names, dtypes and shapes; those
    of the primary are what it begins with, as `version`. It steps them

    - by `optimizer`, one of `sheave.optim`, in native code, in memory of its own; its schedule follows the version; or
    - by `step(parameters, gradients)`, which gets the `parameters` that the server was given, and the reduced gradients
      as arrays of the same library. It writes the parameters in place, or returns others, which it is given next time.
      It is called on a thread of sheave, one step at a time, and may block; so an optimizer of torch and a schedule
      that is stepped after it go there.

    `publish(parameters, version)` is called after each step, and may block, which delays the next step. What it gets of
    an optimizer's parameters is read-only and stays as it is; tensors of torch must not be written. On other members
    than the primary these three are ignored. What they raise stops all servers: `watch` and every push raise it, with
    the traceback as a note.

    `method` is "sum", or "mean", over all gradients that are in a step. A step has `batch` times `batch` gradients,
    unless they were flushed, or have waited `flush_after` seconds at a server. A secondary has `queue_max` gradients;
    then pushes wait (`overflow="push_back"`), or the oldest is dropped ("drop_oldest"): a report says so, and
    `on_drop(gradients)` is called with a list of `GradientId` on sheave's callback thread.

    Waits until others find the server, or `timeout` seconds. Raises InvalidArgument for settings without a meaning, and
    AlreadyExists where the group has such a server on this node.

    >>> group = mesh.rpc_group("stepped", [0])
    >>> def step(parameters, gradients):
    ...     parameters["w"] -= gradients["w"]
    >>> weights = {"w": np.array([5.0, 5.0])}
    >>> with sheave.learner.GradientServer(group, "gradients", weights, step=step, batch=2) as server:
    ...     client = sheave.learner.GradientClient(group, "gradients")
    ...     client.push({"w": np.array([1.0, 2.0])}), client.flush(), server.report().primary.applied
    (1, 1, 1)
    >>> weights["w"].tolist()
    [4.0, 3.0]
    """

    def __init__(
        self,
        group: RpcGroup,
        name: str,
        parameters: Mapping[str, Any],
        *,
        primary: _Who | None = None,
        secondaries: Iterable[_Who] | None = None,
        optimizer: Optimizer | None = None,
        step: Callable[[Mapping[str, Any], dict[str, Any]], Any] | None = None,
        publish: Callable[[Mapping[str, Any], int], Any] | None = None,
        on_drop: Callable[[list[GradientId]], Any] | None = None,
        version: int = 0,
        method: Literal["sum", "mean"] = "sum",
        batch: int = 4,
        queue_max: int = 64,
        overflow: Literal["push_back", "drop_oldest"] = "push_back",
        flush_after: float | None = None,
        timeout: float | None = None,
    ) -> None:
        self.name = name
        learning = _Learning(parameters, step, publish)
        arrays = None
        if optimizer is not None or step is not None:
            arrays = {each: _on_host(parameter) for each, parameter in parameters.items()}

        def dropped(ids: list[tuple[str, int, int]]) -> None:
            if on_drop is not None:
                on_drop([GradientId(*each) for each in ids])

        self._server = _core.GradientServer.start(
            group,
            _servers(group, name, primary, secondaries),
            _described(parameters),
            (method, batch, queue_max, overflow, flush_after),
            version=version,
            parameters=arrays,
            optimizer=None if optimizer is None else optimizer._document(),
            step=None if step is None else learning.step,
            publish=None if publish is None else learning.publish,
            on_drop=None if on_drop is None else dropped,
            timeout=timeout,
        ).wait()

    def stop(self) -> None:
        """Stop the server: who waits here is told, and nobody finds it any more. Gradients that it has taken and not
        sent on are dropped and reported. With the primary all secondaries end. Does not wait; may be repeated.

        >>> group, weights = mesh.rpc_group("stopped", [0]), {"w": np.zeros(2)}
        >>> server = sheave.learner.GradientServer(group, "gradients", weights, optimizer=sheave.optim.SGD(lr=1.0))
        >>> server.stop()
        >>> server.watch(timeout=10)
        """
        self._server.stop()

    @overload
    def watch(self, *, async_op: Literal[False] = False, timeout: float | None = None) -> None: ...
    @overload
    def watch(self, *, async_op: Literal[True], timeout: float | None = None) -> Work[None]: ...
    def watch(self, *, async_op: bool = False, timeout: float | None = None) -> Work[None] | None:
        """Wait until the server ends: returns when it was stopped, raises what has stopped it otherwise. With
        `async_op` return a `Work` of that. Raises DeadlineExceeded when `timeout` seconds have passed.

        >>> group, weights = mesh.rpc_group("watched", [0]), {"w": np.zeros(2)}
        >>> server = sheave.learner.GradientServer(group, "gradients", weights, optimizer=sheave.optim.SGD(lr=1.0))
        >>> server.watch(async_op=True).done()
        False
        """
        ended = self._server.watch()
        return ended if async_op else ended.wait(timeout)

    def flush(self) -> None:
        """Send on what this process has taken, and step what it has as the primary, though no batch is full. Does not
        wait for that, which `GradientClient.flush` does.

        >>> group, weights = mesh.rpc_group("flushed", [0]), {"w": np.zeros(2)}
        >>> server = sheave.learner.GradientServer(group, "gradients", weights, optimizer=sheave.optim.SGD(lr=1.0))
        >>> server.flush()
        """
        self._server.flush()

    def report(self) -> ServerReport:
        """Return what the server has done so far. Does not wait.

        >>> group, weights = mesh.rpc_group("reported", [0]), {"w": np.zeros(2)}
        >>> server = sheave.learner.GradientServer(group, "gradients", weights, optimizer=sheave.optim.SGD(lr=1.0))
        >>> server.report().primary.version
        0
        """
        return _server_report(self._server.report())

    def __enter__(self) -> "GradientServer":
        return self

    def __exit__(self, *_args: object) -> None:
        self.stop()


class GradientClient:
    """A learner's access to the gradient servers of one name, all of which have been started: a barrier of the group
    can say so. Any process that has the group can have clients.

    `primary` and `secondaries` are those of the servers. `choice` is the place of the secondary that gets all gradients
    while it lives; without it they take turns. Where one is gone its gradients go to others.

    Waits until it is connected, or `timeout` seconds. Raises NotFound where a server has not been started, and PeerLost
    where one is gone.

    >>> sheave.learner.GradientClient(mesh.rpc_group("empty of servers", [0]), "gradients")
    Traceback (most recent call last):
    ...
    sheave.NotFound: ...
    """

    def __init__(
        self,
        group: RpcGroup,
        name: str,
        *,
        primary: _Who | None = None,
        secondaries: Iterable[_Who] | None = None,
        choice: int | None = None,
        timeout: float | None = None,
    ) -> None:
        self.name = name
        servers = _servers(group, name, primary, secondaries)
        self._client = _core.GradientClient.connect(group, servers, choice=choice, timeout=timeout).wait()

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters whose gradients the servers take, in ascending order.

        >>> group, weights = mesh.rpc_group("named", [0]), {"w": np.zeros(2)}
        >>> server = sheave.learner.GradientServer(group, "gradients", weights, optimizer=sheave.optim.SGD(lr=1.0))
        >>> sheave.learner.GradientClient(group, "gradients").parameters
        ['w']
        """
        return self._client.names()

    @overload
    def push(
        self, gradients: Mapping[str, Any], *, async_op: Literal[False] = False, timeout: float | None = None
    ) -> int: ...
    @overload
    def push(
        self, gradients: Mapping[str, Any], *, async_op: Literal[True], timeout: float | None = None
    ) -> Work[int]: ...
    def push(
        self, gradients: Mapping[str, Any], *, async_op: bool = False, timeout: float | None = None
    ) -> Work[int] | int:
        """Push one gradient for each parameter, of its dtype and shape. Returns the gradient's number when a secondary
        has taken it, which waits where that has no room. With `async_op` return a `Work`: until that ends the arrays
        must not be written.

        Raises Mismatch that names the parameter for what does not fit; what has stopped a server; PeerLost once the
        primary or all secondaries are gone; DeadlineExceeded after `timeout` seconds: then a report says whether the
        gradient was taken all the same.

        >>> group, weights = mesh.rpc_group("pushed to", [0]), {"w": np.zeros(2)}
        >>> server = sheave.learner.GradientServer(group, "gradients", weights, optimizer=sheave.optim.SGD(lr=1.0))
        >>> client = sheave.learner.GradientClient(group, "gradients")
        >>> client.push({"w": np.ones(2)}), client.push({"w": np.ones(2)}, async_op=True).wait(timeout=10)
        (1, 2)
        """
        arrays = {name: _on_host(gradient) for name, gradient in gradients.items()}
        pushed = self._client.push(arrays, timeout=timeout)
        return pushed if async_op else pushed.wait()

    @overload
    def flush(self, *, async_op: Literal[False] = False, timeout: float | None = None) -> int: ...
    @overload
    def flush(self, *, async_op: Literal[True], timeout: float | None = None) -> Work[int]: ...
    def flush(self, *, async_op: bool = False, timeout: float | None = None) -> Work[int] | int:
        """Have everything applied that was taken before, though no batch is full. Returns the version of the parameters
        then. Raises as `push` does.

        >>> group, weights = mesh.rpc_group("flushed to the end", [0]), {"w": np.zeros(2)}
        >>> server = sheave.learner.GradientServer(group, "gradients", weights, optimizer=sheave.optim.SGD(lr=1.0))
        >>> client = sheave.learner.GradientClient(group, "gradients")
        >>> client.push({"w": np.ones(2)}), client.flush()
        (1, 1)
        """
        flushed = self._client.flush()
        return flushed if async_op else flushed.wait(timeout)

    @overload
    def report(self, *, async_op: Literal[False] = False, timeout: float | None = None) -> ClientReport: ...
    @overload
    def report(self, *, async_op: Literal[True], timeout: float | None = None) -> Work[ClientReport]: ...
    def report(self, *, async_op: bool = False, timeout: float | None = None) -> Work[ClientReport] | ClientReport:
        """Ask the primary what became of all gradients, and return it. Raises PeerLost once the primary is gone.

        >>> group, weights = mesh.rpc_group("asked for gradients", [0]), {"w": np.zeros(2)}
        >>> server = sheave.learner.GradientServer(group, "gradients", weights, optimizer=sheave.optim.SGD(lr=1.0))
        >>> client = sheave.learner.GradientClient(group, "gradients")
        >>> client.push({"w": np.ones(2)}), client.report().pending
        (1, 1)
        """
        asked = self._client.report()
        return asked if async_op else asked.wait(timeout)

    def known(self) -> ClientReport:
        """Return what is known without asking anybody: since the last report gradients may have been applied or lost.

        >>> group, weights = mesh.rpc_group("known", [0]), {"w": np.zeros(2)}
        >>> server = sheave.learner.GradientServer(group, "gradients", weights, optimizer=sheave.optim.SGD(lr=1.0))
        >>> sheave.learner.GradientClient(group, "gradients").known().pushed
        0
        """
        return _client_report(self._client.known())
