"""MXNet's key-value store and what its users need beside it, over sheave.

``import sheave.compat.mxnet as mx`` in a program of one's own, or ``python -m sheave.compat mxnet script.py`` for one
that says ``import mxnet`` (see `sheave.compat`). ``mx.kv`` is MXNet 1.9.1's, with what MXNet 2 added (`KVStoreBase`,
`broadcast`, `pushpull`, 1bit compression); ``mx.nd``, ``mx.optimizer`` and the rest are there as far as users of the
store touch them. There are no symbols, no Gluon, no autograd.

With ``DMLC_ROLE=server`` or ``scheduler`` the import does not return: the process serves, and ends when the workers
have gone (see `kvstore.kvstore_server`).

>>> import sheave.compat.mxnet as mx
>>> store = mx.kv.create("local")
>>> store.init("weight", mx.nd.zeros((2, 2)))
>>> store.push("weight", [mx.nd.ones((2, 2), mx.gpu(device)) for device in range(4)])
>>> weight = mx.nd.empty((2, 2))
>>> store.pull("weight", out=weight)
>>> weight.asnumpy().tolist()
[[4.0, 4.0], [4.0, 4.0]]

What differs from MXNet, on purpose:

- Contexts are labels. Everything lies in host memory, and what does not concern the store runs in numpy.
- A push captures its values before it returns; the store never aliases a pushed array. Values are pushed in their key's
  shape and dtype; MXNet lets a local store change both silently. A pull casts, as there.
- A push or pull of a key that was never initialised, and a second `init`, are a `MXNetError` in every kind of store, on
  every worker, before anything moves. No request can end a server.
- What an updater raises comes out of `push`, or on servers out of whatever reads the next value pulled of that key, and
  of `nd.waitall`.
- A worker that is lost is an error within seconds for all who need it. Rounds of `dist_sync` count each worker once,
  and sum in the order of the ranks. `dist_async` without an optimizer assigns.
- Text keys mean the same key on every worker, in whichever order they are initialised.
- `set_optimizer` with other settings of the same rule keeps its states. In a local store settings that are changed on
  the optimizer hold from the next push on. States can be saved and loaded in distributed stores too, in sheave's own
  format.
- An optimizer or updater that only Python can run is pickled to the servers, by `sheave.pickling`, where MXNet fails
  silently unless the class is its own. Servers that are started with `SHEAVE_PICKLE=never` refuse
  it. There arrays are flat; large ones come in slices, each with a state of its own; of pushed rows an updater sees
  those rows, packed, so optimizers with states take none. Setting it again begins its states anew.
- `_set_updater` in a distributed store sets the updater of the servers; MXNet ignores it.
- `pushpull` works with gradient compression. Out-of-range row ids are an error.
- Commands of any number reach the controllers of the servers, and their answers come back.
- Names of kinds that do not exist are a `MXNetError`, `nccl` among them. Priorities order what is sent in every kind of
  store; there is no kind `p3`.
- A worker whose program ends earlier than the others' is waited for no more; rounds go on without it.
- `horovod` and `byteps` are sheave's collective operations, on whatever mesh the environment names.
- A program that an exception ends does not meet the others before it leaves.
- `nd.save` writes numpy's format. `nd.empty` gives zeros.
"""

from sheave.compat import serve as _serve
from sheave.compat.mxnet import (
    base,
    context,
    device,
    kvstore,
    lr_scheduler,
    ndarray,
    optimizer,
    random,
    test_utils,
)
from sheave.compat.mxnet import kvstore as kv
from sheave.compat.mxnet import ndarray as nd
from sheave.compat.mxnet import optimizer as opt
from sheave.compat.mxnet import random as rnd
from sheave.compat.mxnet.base import MXNetError
from sheave.compat.mxnet.context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from sheave.compat.mxnet.context import Context as Device
from sheave.compat.mxnet.kvstore.kvstore_server import become_role as _become_role

__all__ = [
    "Context",
    "Device",
    "MXNetError",
    "base",
    "context",
    "cpu",
    "cpu_pinned",
    "current_context",
    "device",
    "gpu",
    "kv",
    "kvstore",
    "lr_scheduler",
    "nd",
    "ndarray",
    "num_gpus",
    "opt",
    "optimizer",
    "random",
    "rnd",
    "test_utils",
]

#: The version of MXNet whose interface this is.
__version__ = "1.9.1"

if not _serve.serving:
    _become_role()
