import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from os import PathLike
from types import GenericAlias, TracebackType
from typing import (
    Any,
    Generic,
    Literal,
    Protocol as _Protocol,
    Self,
    SupportsIndex,
    TypeAlias,
    TypeVar,
    final,
    overload,
)

import numpy as np
from _typeshed import ReadableBuffer

__all__ = ["AlreadyExists", "BufferInUse", "Cancelled", "Closed", "DeadlineExceeded", "Deadlock", "Death"]
__all__ += ["DeclaredDead", "ExchangeRegistration", "ExchangeRequest", "ExchangeServer", "ExchangeWorker", "Forked"]
__all__ += ["Group", "Guest", "GuestFleet", "Internal", "Interrupted", "InvalidArgument", "Io", "JobPlan"]
__all__ += ["LimitExceeded", "Link", "Member", "Mesh", "Mismatch", "Node", "NotFound", "NotPermitted", "Peer"]
__all__ += ["PeerLost", "Protocol", "Ref", "Remote", "SheaveError", "Store", "Tensor", "Unauthenticated", "Unsupported"]
__all__ += ["Work", "WorkerDied", "__version__", "all_gather", "all_gather_v", "all_reduce", "all_to_all"]
__all__ += ["all_to_all_v", "barrier", "broadcast", "default_mesh", "empty", "gather", "get_nanosecond", "init"]
__all__ += ["irecv", "isend", "main", "recv", "reduce", "reduce_scatter", "scatter", "send", "serve"]

__version__: str

class _SupportsDLPack(_Protocol):
    def __dlpack__(self, *, stream: Any = None) -> Any: ...

_Array: TypeAlias = ReadableBuffer | _SupportsDLPack
_Key: TypeAlias = int | str
_Mode: TypeAlias = Literal["copy", "move", "share"]
_Role: TypeAlias = Literal["scheduler", "server", "worker", "rank"]
_Operator: TypeAlias = Literal[
    "sum", "product", "prod", "min", "max", "avg", "mean", "band", "bor", "bxor"
]
_A = TypeVar("_A")
_T_co = TypeVar("_T_co", covariant=True)
_Args: TypeAlias = tuple[Any, ...] | list[Any] | None
_Kwargs: TypeAlias = dict[str, Any] | None
_To: TypeAlias = int | str | Member | Peer

@final
class Peer:
    """A node as others see it. Fields that are not known are None."""

    def __new__(
        cls,
        name: str,
        rank: int | None = None,
        host: str | None = None,
        pid: int | None = None,
        role: str | None = None,
    ) -> Self: ...
    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str | None: ...
    @property
    def rank(self) -> int | None: ...
    @property
    def host(self) -> str | None: ...
    @property
    def pid(self) -> int | None: ...
    def __getnewargs__(self) -> tuple[str, int | None, str | None, int | None, str | None]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Link:
    """A link of one node. Its node's methods take it; it holds nothing open."""

    @property
    def id(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Tensor:
    """Row-major elements in memory that Python and sheave share."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def data_ptr(self) -> int: ...
    @property
    def source(self) -> Link | None: ...
    @property
    def tag(self) -> int | None: ...
    def numpy(self) -> np.ndarray[Any, Any]: ...
    def torch(self) -> Any: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...
        def __release_buffer__(self, buffer: memoryview, /) -> None: ...
    def __len__(self) -> int: ...

@final
class Work(Generic[_T_co]):
    """An operation in flight. It holds its buffers until it ends, whether or not somebody waits."""

    def wait(self, timeout: float | None = None) -> _T_co: ...
    def result(self, timeout: float | None = None) -> _T_co: ...
    def exception(self, timeout: float | None = None) -> BaseException | None: ...
    def done(self) -> bool: ...
    def cancel(self) -> None: ...
    def add_done_callback(self, callback: Callable[[Work[Any]], object]) -> None: ...
    def trace(self) -> dict[str, Any]: ...
    def __await__(self) -> Generator[Any, None, _T_co]: ...
    def __class_getitem__(cls, key: Any) -> GenericAlias: ...

@final
class Group:
    """An ordered set of members of a mesh that do things together. Ranks are counted from 0 in its own order."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def label(self) -> str: ...
    @property
    def members(self) -> list[Member]: ...
    @property
    def broken(self) -> SheaveError | None: ...
    def subgroup(self, ranks: Sequence[int], label: str = "group") -> Group: ...
    def ordered_by_caller(self) -> Group: ...
    def split(self, color: int | None, key: int = 0) -> Group | None: ...
    def shrink(self) -> Group: ...
    @overload
    def barrier(self, *, async_op: Literal[False] = False, timeout: float | None = None) -> None: ...
    @overload
    def barrier(self, *, async_op: Literal[True], timeout: float | None = None) -> Work[None]: ...
    @overload
    def all_reduce(
        self,
        array: _A,
        op: _Operator = "sum",
        out: _A | None = None,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> _A: ...
    @overload
    def all_reduce(
        self,
        array: _A,
        op: _Operator = "sum",
        out: _A | None = None,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work[_A]: ...
    @overload
    def reduce(
        self,
        array: _A,
        op: _Operator = "sum",
        out: _A | None = None,
        dst: int = 0,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> _A | None: ...
    @overload
    def reduce(
        self,
        array: _A,
        op: _Operator = "sum",
        out: _A | None = None,
        dst: int = 0,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work[_A | None]: ...
    @overload
    def broadcast(
        self, array: _A, src: int = 0, *, async_op: Literal[False] = False, timeout: float | None = None
    ) -> _A: ...
    @overload
    def broadcast(
        self, array: _A, src: int = 0, *, async_op: Literal[True], timeout: float | None = None
    ) -> Work[_A]: ...
    @overload
    def all_gather(
        self, array: _A, out: _A | None = None, *, async_op: Literal[False] = False, timeout: float | None = None
    ) -> _A: ...
    @overload
    def all_gather(
        self, array: _A, out: _A | None = None, *, async_op: Literal[True], timeout: float | None = None
    ) -> Work[_A]: ...
    @overload
    def all_gather_v(
        self,
        array: _A,
        lengths: Sequence[int] | None = None,
        out: _A | None = None,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> _A: ...
    @overload
    def all_gather_v(
        self,
        array: _A,
        lengths: Sequence[int] | None = None,
        out: _A | None = None,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work[_A]: ...
    @overload
    def gather(
        self,
        array: _A,
        out: _A | None = None,
        dst: int = 0,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> _A | None: ...
    @overload
    def gather(
        self, array: _A, out: _A | None = None, dst: int = 0, *, async_op: Literal[True], timeout: float | None = None
    ) -> Work[_A | None]: ...
    @overload
    def scatter(
        self,
        array: _A | None,
        out: _A | None = None,
        src: int = 0,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> _A: ...
    @overload
    def scatter(
        self,
        array: _A | None,
        out: _A | None = None,
        src: int = 0,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work[_A]: ...
    @overload
    def reduce_scatter(
        self,
        array: _A,
        op: _Operator = "sum",
        out: _A | None = None,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> _A: ...
    @overload
    def reduce_scatter(
        self,
        array: _A,
        op: _Operator = "sum",
        out: _A | None = None,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work[_A]: ...
    @overload
    def all_to_all(
        self, array: _A, out: _A | None = None, *, async_op: Literal[False] = False, timeout: float | None = None
    ) -> _A: ...
    @overload
    def all_to_all(
        self, array: _A, out: _A | None = None, *, async_op: Literal[True], timeout: float | None = None
    ) -> Work[_A]: ...
    @overload
    def all_to_all_v(
        self,
        array: _A,
        sent: Sequence[int],
        received: Sequence[int],
        out: _A | None = None,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> _A: ...
    @overload
    def all_to_all_v(
        self,
        array: _A,
        sent: Sequence[int],
        received: Sequence[int],
        out: _A | None = None,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work[_A]: ...
    def send(self, array: _Array, dst: int, tag: int = 0, *, timeout: float | None = None) -> None: ...
    def recv(self, array: _Array, src: int | None = None, tag: int = 0, *, timeout: float | None = None) -> int: ...
    def isend(self, array: _Array, dst: int, tag: int = 0) -> Work[None]: ...
    def irecv(self, array: _Array, src: int | None = None, tag: int = 0) -> Work[int]: ...

@final
class Member:
    """A member of a mesh. Members that have died or left stay in the list."""

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def role_rank(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Death:
    """A member that is gone."""

    @property
    def member(self) -> Member: ...
    @property
    def left(self) -> bool: ...
    @property
    def epoch(self) -> int: ...
    @property
    def reason(self) -> str: ...

@final
class Mesh:
    """The nodes of a job, as one of them."""

    def __new__(
        cls,
        *,
        rank: int | None = None,
        size: int | None = None,
        root: str | None = None,
        role: _Role | None = None,
        workers: int | None = None,
        servers: int | None = None,
        name: str | None = None,
        host: str | None = None,
        bind: str | None = None,
        insecure: bool | None = None,
        join_timeout: float | None = None,
        liveness_timeout: float | None = None,
        transport: Literal["auto", "shm", "tcp"] | None = None,
        arena_bytes: int | None = None,
        local_ranks: int | None = None,
        collective_table: str | PathLike[str] | None = None,
        secret: str | bytes | None = None,
    ) -> Self: ...
    @property
    def rank(self) -> int: ...
    @property
    def role_rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def role(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def members(self) -> list[Member]: ...
    @property
    def epoch(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def identity(self) -> Peer: ...
    @property
    def world(self) -> Group: ...
    def group(self, ranks: Sequence[int], label: str = "group") -> Group: ...
    def role_group(self, role: _Role | None = None) -> Group: ...
    def barrier(self, timeout: float | None = None) -> None: ...
    def serve(self, name: str, service: Any, *, lane: Literal["concurrent", "serial"] | None = None) -> None: ...
    def serve_no_more(self, name: str) -> None: ...
    def call(
        self, to: _To, what: str, args: _Args = None, kwargs: _Kwargs = None, *, timeout: float | None = None,
        async_op: bool = False,
    ) -> Any: ...
    def remote(self, to: _To, what: str, args: _Args = None, kwargs: _Kwargs = None) -> Ref: ...
    def export(self, object: Any) -> Ref: ...
    def empty(self, shape: SupportsIndex | Iterable[SupportsIndex], dtype: Any = None) -> Tensor: ...
    def guests(self) -> list[Peer]: ...
    def invite(self, label: str = "guest") -> str: ...
    def deaths(self) -> list[Death]: ...
    def until_gone(self, role: _Role | None = None) -> None: ...
    def finish(self, timeout: float | None = None) -> None: ...
    def leave(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None, /
    ) -> None: ...

@final
class Node:
    """One end of links to other nodes. Every method may be called from any thread."""

    def __new__(
        cls,
        name: str | None = None,
        role: str | None = None,
        *,
        rank: int | None = None,
        local_ranks: int | None = None,
        arena_bytes: int | None = None,
        liveness_timeout: float | None = None,
        transport: Literal["auto", "shm", "tcp"] | None = None,
    ) -> Self: ...
    @property
    def identity(self) -> Peer: ...
    def links(self) -> list[Link]: ...
    def listen(self, tcp: str | None = "127.0.0.1:0", *, unix: bool = True, insecure: bool = False) -> str: ...
    def connect(self, address: str, timeout: float | None = 60.0) -> Link: ...
    def link_to(self, other: Node, medium: Literal["inproc", "shm"] = "inproc") -> Link: ...
    def accept(self, timeout: float | None = None) -> Link: ...
    def send(
        self, link: Link, array: _Array, tag: int = 0, mode: _Mode = "copy", timeout: float | None = None
    ) -> None: ...
    def isend(self, link: Link, array: _Array, tag: int = 0, mode: _Mode = "copy") -> Work[None]: ...
    def recv(
        self, link: Link | None = None, tag: int = 0, out: _Array | None = None, timeout: float | None = None
    ) -> Tensor: ...
    def irecv(self, link: Link | None = None, tag: int = 0, out: _Array | None = None) -> Work[Tensor]: ...
    def empty(self, shape: SupportsIndex | Iterable[SupportsIndex], dtype: Any = None) -> Tensor: ...
    def peer(self, link: Link) -> Peer: ...
    def medium(self, link: Link) -> str: ...
    def counts(self) -> dict[str, int]: ...
    def disconnect(self, link: Link) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

def init(
    *,
    rank: int | None = None,
    size: int | None = None,
    root: str | None = None,
    role: _Role | None = None,
    workers: int | None = None,
    servers: int | None = None,
    name: str | None = None,
    host: str | None = None,
    bind: str | None = None,
    insecure: bool | None = None,
    join_timeout: float | None = None,
    liveness_timeout: float | None = None,
    transport: Literal["auto", "shm", "tcp"] | None = None,
    arena_bytes: int | None = None,
    local_ranks: int | None = None,
    collective_table: str | PathLike[str] | None = None,
    secret: str | bytes | None = None,
) -> Mesh: ...
def default_mesh() -> Mesh: ...
def main(own: Sequence[str], arguments: Sequence[str]) -> int: ...
def _free_port() -> int: ...
def _slice_start() -> int | None: ...
def _variables_of_jobs() -> list[str]: ...
def empty(shape: SupportsIndex | Iterable[SupportsIndex], dtype: Any = None) -> Tensor: ...
@overload
def barrier(
    *, group: Group | None = None, async_op: Literal[False] = False, timeout: float | None = None
) -> None: ...
@overload
def barrier(*, group: Group | None = None, async_op: Literal[True], timeout: float | None = None) -> Work[None]: ...
@overload
def all_reduce(
    array: _A,
    op: _Operator = "sum",
    out: _A | None = None,
    *,
    group: Group | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
) -> _A: ...
@overload
def all_reduce(
    array: _A,
    op: _Operator = "sum",
    out: _A | None = None,
    *,
    group: Group | None = None,
    async_op: Literal[True],
    timeout: float | None = None,
) -> Work[_A]: ...
@overload
def reduce(
    array: _A,
    op: _Operator = "sum",
    out: _A | None = None,
    dst: int = 0,
    *,
    group: Group | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
) -> _A | None: ...
@overload
def reduce(
    array: _A,
    op: _Operator = "sum",
    out: _A | None = None,
    dst: int = 0,
    *,
    group: Group | None = None,
    async_op: Literal[True],
    timeout: float | None = None,
) -> Work[_A | None]: ...
@overload
def broadcast(
    array: _A,
    src: int = 0,
    *,
    group: Group | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
) -> _A: ...
@overload
def broadcast(
    array: _A, src: int = 0, *, group: Group | None = None, async_op: Literal[True], timeout: float | None = None
) -> Work[_A]: ...
@overload
def all_gather(
    array: _A,
    out: _A | None = None,
    *,
    group: Group | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
) -> _A: ...
@overload
def all_gather(
    array: _A,
    out: _A | None = None,
    *,
    group: Group | None = None,
    async_op: Literal[True],
    timeout: float | None = None,
) -> Work[_A]: ...
@overload
def all_gather_v(
    array: _A,
    lengths: Sequence[int] | None = None,
    out: _A | None = None,
    *,
    group: Group | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
) -> _A: ...
@overload
def all_gather_v(
    array: _A,
    lengths: Sequence[int] | None = None,
    out: _A | None = None,
    *,
    group: Group | None = None,
    async_op: Literal[True],
    timeout: float | None = None,
) -> Work[_A]: ...
@overload
def gather(
    array: _A,
    out: _A | None = None,
    dst: int = 0,
    *,
    group: Group | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
) -> _A | None: ...
@overload
def gather(
    array: _A,
    out: _A | None = None,
    dst: int = 0,
    *,
    group: Group | None = None,
    async_op: Literal[True],
    timeout: float | None = None,
) -> Work[_A | None]: ...
@overload
def scatter(
    array: _A | None,
    out: _A | None = None,
    src: int = 0,
    *,
    group: Group | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
) -> _A: ...
@overload
def scatter(
    array: _A | None,
    out: _A | None = None,
    src: int = 0,
    *,
    group: Group | None = None,
    async_op: Literal[True],
    timeout: float | None = None,
) -> Work[_A]: ...
@overload
def reduce_scatter(
    array: _A,
    op: _Operator = "sum",
    out: _A | None = None,
    *,
    group: Group | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
) -> _A: ...
@overload
def reduce_scatter(
    array: _A,
    op: _Operator = "sum",
    out: _A | None = None,
    *,
    group: Group | None = None,
    async_op: Literal[True],
    timeout: float | None = None,
) -> Work[_A]: ...
@overload
def all_to_all(
    array: _A,
    out: _A | None = None,
    *,
    group: Group | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
) -> _A: ...
@overload
def all_to_all(
    array: _A,
    out: _A | None = None,
    *,
    group: Group | None = None,
    async_op: Literal[True],
    timeout: float | None = None,
) -> Work[_A]: ...
@overload
def all_to_all_v(
    array: _A,
    sent: Sequence[int],
    received: Sequence[int],
    out: _A | None = None,
    *,
    group: Group | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
) -> _A: ...
@overload
def all_to_all_v(
    array: _A,
    sent: Sequence[int],
    received: Sequence[int],
    out: _A | None = None,
    *,
    group: Group | None = None,
    async_op: Literal[True],
    timeout: float | None = None,
) -> Work[_A]: ...
def send(
    array: _Array, dst: int, tag: int = 0, *, group: Group | None = None, timeout: float | None = None
) -> None: ...
def recv(
    array: _Array, src: int | None = None, tag: int = 0, *, group: Group | None = None, timeout: float | None = None
) -> int: ...
def isend(array: _Array, dst: int, tag: int = 0, *, group: Group | None = None) -> Work[None]: ...
def irecv(array: _Array, src: int | None = None, tag: int = 0, *, group: Group | None = None) -> Work[int]: ...

class SheaveError(Exception):
    """Anything that sheave can fail with.

    What has caused it is its `__cause__`, an exception of the cause's kind. Of user code on another node,
    `remote_class` is the class of what was raised there and `remote_traceback` the text of its traceback, which the
    exceptions that it caused have too. Of a process that has ended, `exit_status` is its exit code, or the number of
    the signal that ended it, negated, and `last_lines` what it said last on its standard error.
    """

    kind: str | None
    peer: Peer | None
    op: str | None
    group: str | None
    seq: int | None
    elapsed: float | None
    hint: str | None
    remote_class: str | None
    remote_traceback: str | None
    exit_status: int | None
    last_lines: str | None

@final
class Guest:
    """This process as a guest of a member of a mesh, its host."""

    def __new__(cls, *, timeout: float | None = None) -> Self: ...
    @property
    def name(self) -> str: ...
    @property
    def host(self) -> Peer: ...
    @property
    def is_attached(self) -> bool: ...
    def call(
        self, what: str, args: _Args = None, kwargs: _Kwargs = None, *, timeout: float | None = None,
        async_op: bool = False,
    ) -> Any: ...
    def serve(self, name: str, service: Any, *, lane: Literal["concurrent", "serial"] | None = None) -> None: ...
    def serve_no_more(self, name: str) -> None: ...
    def export(self, object: Any) -> Ref: ...
    def ready(self) -> None: ...
    def until_gone(self) -> None: ...
    def leave(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, _traceback: TracebackType | None, /
    ) -> None: ...

@final
class GuestFleet:
    """Processes that are guests of a mesh: what `sheave.Fleet` stands on."""

    def __new__(
        cls,
        mesh: Mesh,
        count: int,
        command: Sequence[str],
        env: Sequence[tuple[str, str]],
        label: str,
        timeout: float | None,
        restarts: tuple[int, float],
        output: str,
    ) -> Self: ...
    def guests(self) -> list[Peer]: ...
    def guest(self, slot: int, timeout: float | None) -> Peer: ...
    def events(self) -> list[tuple[str, int, str | None, int | None, Any]]: ...
    def close(self, grace: float) -> None: ...

@final
class JobPlan:
    """Where the processes of a job belong: what `sheave.spawn` starts them by."""

    def __new__(cls, workers: int, servers: int) -> Self: ...
    def members(self) -> list[tuple[Peer, dict[str, str]]]: ...
    def losses(self) -> set[tuple[str, str]]: ...

@final
class Ref:
    """A counted reference to an object that lives on one node of the mesh."""

    @property
    def owner(self) -> Member | Peer: ...
    @property
    def is_owner(self) -> bool: ...
    def get(self, timeout: float | None = None, *, async_op: bool = False) -> Any: ...
    def call(
        self, method: str, args: _Args = None, kwargs: _Kwargs = None, *, timeout: float | None = None,
        async_op: bool = False,
    ) -> Any: ...
    def remote(self, method: str, args: _Args = None, kwargs: _Kwargs = None) -> Ref: ...
    def __await__(self) -> Generator[Any, None, Any]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

class PeerLost(SheaveError, ConnectionError): ...
class DeclaredDead(SheaveError, ConnectionError): ...
class DeadlineExceeded(SheaveError, TimeoutError): ...
class Cancelled(SheaveError): ...
class Interrupted(SheaveError, InterruptedError): ...
class Mismatch(SheaveError, ValueError): ...
class InvalidArgument(SheaveError, ValueError): ...
class Unsupported(SheaveError, TypeError): ...
class NotFound(SheaveError, LookupError): ...
class AlreadyExists(SheaveError, ValueError): ...
class Unauthenticated(SheaveError, PermissionError): ...
class Protocol(SheaveError, ConnectionError): ...
class LimitExceeded(SheaveError, RuntimeError): ...
class BufferInUse(SheaveError, BufferError): ...
class Closed(SheaveError, RuntimeError): ...
class Forked(SheaveError, RuntimeError): ...
class Remote(SheaveError, RuntimeError): ...
class Io(SheaveError, OSError): ...
class Internal(SheaveError, RuntimeError): ...
class NotPermitted(SheaveError, PermissionError): ...
class WorkerDied(PeerLost): ...
class Deadlock(SheaveError, RuntimeError): ...

@final
class ExchangeWorker:
    """A worker's end of an exchange under flat lists. `sheave.exchange.Worker` is what people use."""

    def __new__(
        cls,
        mesh: Mesh | None = None,
        *,
        lanes: int = 1,
        window: int | None = None,
        stamps: bool = False,
        trace: bool = False,
        timeout: float | None = None,
    ) -> Self: ...
    @property
    def rank(self) -> int: ...
    @property
    def servers(self) -> int: ...
    def submit(
        self,
        push_keys: Sequence[int],
        pushes: Iterable[_Array],
        pull_keys: Sequence[int],
        pulls: Iterable[_Array | tuple[Any, Sequence[int]]],
        *,
        moved: bool = False,
        step: int | None = None,
        timeout: float | None = None,
    ) -> int: ...
    def wait(self, request: int, timeout: float | None = None) -> None: ...
    def is_done(self, request: int) -> bool: ...
    def work(self, request: int, result: Callable[[], Any]) -> Work[Any]: ...
    def take(self, request: int) -> list[Tensor]: ...
    def stamps(self, request: int) -> list[list[int]]: ...
    def write_trace(self, path: str | PathLike[str]) -> None: ...
    def barrier(self, scope: str, all_lanes: bool = False, timeout: float | None = None) -> None: ...
    def close(self) -> None: ...

@final
class ExchangeServer:
    """A server's end of an exchange under flat lists. `sheave.exchange.Server` is what people use."""

    def __new__(
        cls, mesh: Mesh | None = None, *, lanes: int = 1, trace: bool = False, timeout: float | None = None
    ) -> Self: ...
    @property
    def rank(self) -> int: ...
    @property
    def workers(self) -> int: ...
    @property
    def unanswered(self) -> int: ...
    def get_batch(self, timeout: float | None = None) -> list[ExchangeRequest]: ...
    def next_batch(self, timeout: float | None = None) -> list[ExchangeRequest] | None: ...
    def respond(self, handler: int, arrays: Iterable[_Array], moved: bool = False) -> None: ...
    def respond_rows(self, array: _Array, handlers: Sequence[int], rows: Sequence[int]) -> None: ...
    def refuse(self, handler: int, reason: str) -> None: ...
    def register(self, array: _Array, workers: Sequence[int], keys: Sequence[int]) -> ExchangeRegistration: ...
    def unregister(self, registration: ExchangeRegistration) -> None: ...
    def write_trace(self, path: str | PathLike[str]) -> None: ...
    def barrier(self, scope: str, all_lanes: bool = False, timeout: float | None = None) -> None: ...
    def close(self) -> None: ...

@final
class ExchangeRequest:
    """A request that waits for its answer."""

    @property
    def handler(self) -> int: ...
    @property
    def worker(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def step(self) -> int | None: ...
    @property
    def keys(self) -> list[int]: ...
    @property
    def tensors(self) -> list[Tensor]: ...
    @property
    def pulls(self) -> list[tuple[int, str, tuple[int, ...]]]: ...

@final
class ExchangeRegistration:
    """Memory in which pushes land, until it is unregistered."""

    @property
    def places(self) -> list[tuple[int, int]]: ...
    def merged(self, tensors: Sequence[Tensor]) -> Tensor: ...

def get_nanosecond() -> int: ...

@final
class Store:
    """A key-value store under flat lists of keys and values. `sheave.KVStore` is what people use."""

    def __new__(
        cls,
        kind: str,
        mesh: Mesh | None,
        cut_elements: int | None,
        slice_elements: int | None,
        staleness: int | None,
        on_worker_loss: str,
        open_timeout: float | None,
    ) -> Self: ...
    @property
    def kind(self) -> str: ...
    @property
    def is_distributed(self) -> bool: ...
    @property
    def rank(self) -> int: ...
    @property
    def num_workers(self) -> int: ...
    @property
    def is_first(self) -> bool: ...
    def ship(self, name: str, pickled: bytes) -> None: ...
    def init(self, keys: list[_Key], values: list[_Array]) -> None: ...
    def init_without_values(self, keys: list[_Key]) -> None: ...
    def push(self, keys: list[_Key], values: list[_Array], priority: int) -> Work[Any]: ...
    def pull(self, keys: list[_Key], outs: list[_Array], result: Any, priority: int) -> Work[Any]: ...
    def push_pull(
        self,
        keys: list[_Key],
        values: list[_Array],
        out_keys: list[_Key],
        outs: list[_Array],
        result: Any,
        priority: int,
    ) -> Work[Any]: ...
    def init_rows(
        self,
        keys: list[_Key],
        shapes: list[list[int]],
        dtypes: list[Any],
        ids: list[_Array | None],
        values: list[_Array | None],
    ) -> None: ...
    def push_pull_rows(
        self,
        keys: list[_Key],
        ids: list[_Array],
        values: list[_Array],
        out_keys: list[_Key],
        out_ids: list[_Array],
        outs: list[_Array],
        result: Any,
        priority: int,
    ) -> Work[Any]: ...
    def set_updater_named(self, name: str) -> None: ...
    def set_updater_function(self, function: Callable[[Any, Tensor, Tensor], object]) -> None: ...
    def register(self, name: str, function: Callable[[Any, Tensor, Tensor], object]) -> None: ...
    def set_optimizer(self, document: str) -> None: ...
    def learning_rate(self) -> float: ...
    def set_learning_rate(self, learning_rate: float) -> None: ...
    def set_gradient_compression(self, kind: str, threshold: float | None, keys: list[_Key] | None) -> None: ...
    def set_pull_compression(self, kind: str) -> None: ...
    def save(self, path: str | PathLike[str]) -> None: ...
    def load(self, path: str | PathLike[str]) -> None: ...
    def save_optimizer_states(self, path: str | PathLike[str], dump_optimizer: bool) -> None: ...
    def load_optimizer_states(self, path: str | PathLike[str]) -> None: ...
    def send_command_to_servers(self, number: int, body: bytes) -> list[bytes]: ...
    def barrier(self) -> None: ...
    def done(self) -> Work[Any]: ...
    def wait_for(self, keys: list[_Key]) -> None: ...
    def delete(self, keys: list[_Key]) -> None: ...
    def num_dead_node(self, node_id: int, timeout: float) -> int: ...
    def set_barrier_before_exit(self, meets: bool) -> None: ...
    def close(self) -> None: ...

def serve(
    mesh: Mesh,
    functions: list[tuple[str, Callable[[Any, Tensor, Tensor], object]]],
    controller: Callable[[int, bytes], bytes | str | None] | None,
    unpickle: Callable[[bytes], Any] | None,
) -> None: ...
