"""sheave: processes that find each other and then reduce, gather and exchange tensors.

A `Mesh` is the processes of a job, as one of them; `init` joins the one that the environment describes, whoever has
launched it, and remembers it as the default. Its `Group` of all members, `mesh.world`, and every other group have the
collective operations, which the functions of this module do for the default mesh: `all_reduce`, `broadcast`,
`all_gather` and the like. These act on the members of this process's role, which `mesh.rank` and `mesh.size` count: in
a worker on the workers, not on servers and the scheduler. Arrays are whatever speaks the buffer protocol or DLPack,
such as numpy's and torch's; they are used where they lie, and results come back as what was put in. An operation waits,
or is a `Work` that can be waited for, awaited and cancelled.

>>> import numpy as np, sheave
>>> with sheave.init() as mesh:
...     sheave.all_reduce(np.array([1.0, 2.0]), "max")
array([1., 2.])

Members call what others serve: functions and objects, by name. Results come back, or stay where they are as a `Ref`.

>>> with sheave.init() as mesh:
...     mesh.serve("double", lambda number: 2 * number)
...     mesh.call(0, "double", (21,)), mesh.remote(0, "double", ([1],)).get()
(42, [1, 1])

A `Fleet` is processes that are guests of this one: it calls them as members are called, and those that die are
replaced.

>>> with sheave.Fleet(2) as fleet:
...     [fleet.call(guest, pow, (2, 10)) for guest in fleet.guests]
[1024, 1024]

`spawn` runs a function as the processes of a job, for notebooks and tests; `sheave launch` does so with programs. A
`MemberFleet` is such processes, or those of a program, while they run.

>>> sheave.spawn(sum, 2, ([1, 2, 3],))
[6, 6]

A `Session` is one controller and its workers, threads or processes: they run its commands in order, and results stay on
them until they are fetched.

>>> with sheave.session.ThreadedSession(2) as session:
...     ids = session.call(lambda: sheave.session.worker().id)
...     ids.get(worker=0), ids.get(worker=1)
(0, 1)

A `Versions` is a table of keys whose values have versions, for all members of a group: whoever changes a value says
which version it was made from.

>>> with sheave.init() as mesh:
...     group = mesh.rpc_group("training")
...     sheave.versions.Versions(mesh).register(group, "models")
...     models = group.versions("models")
...     bool(models.push("policy", {"steps": 0}, version=1)), models.pull("policy").value
(True, {'steps': 0})

A `GradientServer` of `sheave.learner` sums the gradients that learners push, and makes steps of them.

>>> with sheave.init() as mesh:
...     group, weights = mesh.rpc_group("learning"), {"w": np.zeros(2)}
...     sgd = sheave.optim.SGD(lr=0.5)
...     with sheave.learner.GradientServer(group, "gradients", weights, optimizer=sgd, batch=2):
...         client = sheave.learner.GradientClient(group, "gradients")
...         client.push({"w": np.ones(2)}), client.flush()
(1, 1)

`sheave.bayes` has the mathematics of Bayesian deep learning, and its algorithms on particles.

>>> sheave.bayes.std([np.array([1.0]), np.array([3.0])])
array([1.41421356])

`sheave.placement.assign` says which model should live on which device.

>>> sheave.placement.assign([3, 2, 1], [4, 4]).device_of
[0, 1, 1]

Below that lie nodes and links: a `Node` sends and receives messages over the links that it has made.

>>> with sheave.Node("one") as one, sheave.Node("other") as other:
...     link = one.link_to(other)
...     one.send(link, b"hello", tag=7)
...     bytes(other.recv(tag=7))
b'hello'

Whatever fails raises a `SheaveError`: one class per kind of error, each also of the builtin that fits, with the fields
`peer`, `op`, `group`, `seq`, `elapsed` (seconds) and `hint`. What has caused it is its `__cause__`; that of user code
on another node has the class and traceback that were raised there, as text, in `remote_class`, `remote_traceback` and
a note, so that the interpreter prints them. Numpy and torch are imported only when an array of theirs is asked for.
"""

# It takes the thread that imports it first for the main one, and would wait for that at the end: not for a handler's.
import threading as _threading  # noqa: F401
from typing import TYPE_CHECKING, Any

from sheave._core import (
    AlreadyExists,
    BufferInUse,
    Cancelled,
    Closed,
    DeadlineExceeded,
    Deadlock,
    Death,
    DeclaredDead,
    Forked,
    Group,
    Guest,
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
    NotPermitted,
    Peer,
    PeerLost,
    Protocol,
    Ref,
    Remote,
    RpcGroup,
    Session,
    SheaveError,
    Tensor,
    Unauthenticated,
    Unsupported,
    Work,
    WorkerDied,
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

if TYPE_CHECKING:
    from sheave import bayes, exchange, fleet, kvstore, lanes, learner, meet, members, optim, particle, placement
    from sheave import session, spawning, versions
    from sheave.fleet import Fleet
    from sheave.kvstore import KVStore, run_server
    from sheave.lanes import lane
    from sheave.members import MemberFleet
    from sheave.spawning import spawn

_MODULES = (
    "bayes",
    "exchange",
    "fleet",
    "kvstore",
    "lanes",
    "learner",
    "meet",
    "members",
    "optim",
    "particle",
    "placement",
    "session",
    "spawning",
    "versions",
)
_HOMES = {
    "Fleet": "fleet",
    "KVStore": "kvstore",
    "MemberFleet": "members",
    "lane": "lanes",
    "run_server": "kvstore",
    "spawn": "spawning",
}
"""The modules of names that are not `_core`'s."""

__all__ = [
    "AlreadyExists",
    "BufferInUse",
    "Cancelled",
    "Closed",
    "DeadlineExceeded",
    "Deadlock",
    "Death",
    "DeclaredDead",
    "Fleet",
    "Forked",
    "Group",
    "Guest",
    "Internal",
    "Interrupted",
    "InvalidArgument",
    "Io",
    "KVStore",
    "LimitExceeded",
    "Link",
    "Member",
    "MemberFleet",
    "Mesh",
    "Mismatch",
    "Node",
    "NotFound",
    "NotPermitted",
    "Peer",
    "PeerLost",
    "Protocol",
    "Ref",
    "Remote",
    "RpcGroup",
    "Session",
    "SheaveError",
    "Tensor",
    "Unauthenticated",
    "Unsupported",
    "Work",
    "WorkerDied",
    "__version__",
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "barrier",
    "bayes",
    "broadcast",
    "default_mesh",
    "empty",
    "exchange",
    "gather",
    "init",
    "irecv",
    "isend",
    "lane",
    "learner",
    "meet",
    "optim",
    "particle",
    "placement",
    "recv",
    "reduce",
    "reduce_scatter",
    "run_server",
    "scatter",
    "send",
    "session",
    "spawn",
    "versions",
]


def __getattr__(name: str) -> Any:
    """Import what is written in Python when it is first used: a program that needs none of it starts sooner."""
    home = _HOMES.get(name)
    if home is None and name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f"{__name__}.{home or name}")
    found = globals()[name] = module if home is None else getattr(module, name)
    return found


def __dir__() -> list[str]:
    """Return all names, those included that were not used yet."""
    return sorted({*globals(), *__all__})
