"""sheave: processes that exchange tensors.

A `Node` is one end of links to other nodes. It sends and receives numpy arrays, torch tensors and everything else that
speaks the buffer protocol or DLPack, without copying where the memory allows it.

>>> import sheave
>>> with sheave.Node("one") as one, sheave.Node("other") as other:
...     link = one.link_to(other)
...     one.send(link, b"hello", tag=7)
...     bytes(other.recv(tag=7))
b'hello'
"""

from typing import TYPE_CHECKING, Any

from sheave._core import (
    AlreadyExists,
    BufferInUse,
    Cancelled,
    Closed,
    DeadlineExceeded,
    Death,
    DeclaredDead,
    Forked,
    Group,
    Internal,
    Interrupted,
    InvalidArgument,
    Io,
    LimitExceeded,
    Link,
    Member,
    Mesh,
    Mismatch,
    Node,
    NotFound,
    Peer,
    PeerLost,
    Protocol,
    Remote,
    SheaveError,
    Tensor,
    Unauthenticated,
    Unsupported,
    Work,
    __version__,
    all_gather,
    all_gather_v,
    all_reduce,
    all_to_all,
    all_to_all_v,
    barrier,
    broadcast,
    default_mesh,
    empty,
    gather,
    init,
    irecv,
    isend,
    recv,
    reduce,
    reduce_scatter,
    scatter,
    send,
)
from sheave.kvstore import KVStore, run_server
from sheave.spawning import spawn

if TYPE_CHECKING:
    from sheave import optim

__all__ = [
    "AlreadyExists",
    "BufferInUse",
    "Cancelled",
    "Closed",
    "DeadlineExceeded",
    "Death",
    "DeclaredDead",
    "Forked",
    "Group",
    "Internal",
    "Interrupted",
    "InvalidArgument",
    "Io",
    "KVStore",
    "LimitExceeded",
    "Link",
    "Member",
    "Mesh",
    "Mismatch",
    "Node",
    "NotFound",
    "Peer",
    "PeerLost",
    "Protocol",
    "Remote",
    "SheaveError",
    "Tensor",
    "Unauthenticated",
    "Unsupported",
    "Work",
    "__version__",
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "barrier",
    "broadcast",
    "default_mesh",
    "empty",
    "gather",
    "init",
    "irecv",
    "isend",
    "optim",
    "recv",
    "reduce",
    "reduce_scatter",
    "run_server",
    "scatter",
    "send",
    "spawn",
]


def __getattr__(name: str) -> Any:
    """Modules that take long to import, such as those with dataclasses, are imported when they are first used."""
    if name != "optim":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return importlib.import_module(f"{__name__}.{name}")
