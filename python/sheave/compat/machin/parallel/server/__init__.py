"""machin's servers for learners: objects in the order of their versions, models, and gradients.

A server's `Impl` runs in one process, which pairs an accessor under the server's name; whoever has the group gets it by
`group.get_paired(name).to_here()`.

Objects lie in a table of sheave (`sheave.versions`), so that arrays and tensors travel without a pickle, one copy of a
version serves all who pull it, and a server that dies ends every call by its name. Versions are compared as they are
written: 1, 1.0 and True are three. Gradients are summed by servers of `sheave.learner`.
"""

from sheave.compat.machin.parallel.server.ordered_server import (
    OrderedServerBase,
    OrderedServerSimple,
    OrderedServerSimpleImpl,
)
from sheave.compat.machin.parallel.server.param_server import (
    PushPullGradServer,
    PushPullGradServerImpl,
    PushPullModelServer,
    PushPullModelServerImpl,
    ReduceType,
)

__all__ = [
    "OrderedServerBase",
    "OrderedServerSimple",
    "OrderedServerSimpleImpl",
    "PushPullGradServer",
    "PushPullGradServerImpl",
    "PushPullModelServer",
    "PushPullModelServerImpl",
    "ReduceType",
]
