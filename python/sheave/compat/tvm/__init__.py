"""TVM's ``tvm.runtime.disco`` over sheave.

``import sheave.compat.tvm as tvm`` in a program of one's own, or ``python -m sheave.compat tvm -m pytest tests/disco``
for one that says ``import tvm`` (see `sheave.compat`). There is what programs of Disco touch: sessions, tensors in
memory, shapes, devices, and functions by their names. There is no compiler.

>>> import sheave.compat.tvm as tvm
>>> @tvm.register_global_func("example.add_one")
... def add_one(number):
...     return number + 1
>>> session = tvm.runtime.disco.ThreadedSession(num_workers=2)
>>> result = session.get_global_func("example.add_one")(1)
>>> result.debug_get_from_remote(0), result.debug_get_from_remote(1)
(2, 2)
>>> session.shutdown()

What differs from TVM, in all of which TVM ends the process, hangs, or says something else:

- What a worker raises comes back at the next wait for it, with its class, worker, function and traceback; what is
  computed from it fails too, and all else goes on. A function that does not exist is such an error.
- The death of a worker process is a `sheave.WorkerDied` with exit status and last lines, within a second.
- After `shutdown` everything but `num_workers` raises. It waits until the workers have left, and a session is a context
  manager. Dropping a `DRef` is always silent.
- Sessions may be used from any thread, are waited for with the interpreter let go, and end such a wait at Ctrl-C.
- Arguments may be whatever `sheave.pickling` takes, tensors among them. A tensor is a host's.
- `debug_get_from_remote` of None gives None, and of any worker's object what can be pickled. Of worker 0 it gives the
  very object; of all others a copy, also where they are threads.
- Workers move tensors on CPUs (`init_ccl` of `sheave`, or `mpi` or `gloo`, which mean the same; without it too), in
  place, and dtypes and numbers of elements are compared on all of them first. With several groups, `broadcast` and
  `scatter` within groups send the data to the first worker of each, and `scatter` takes a row for each of a group.
- A `SocketSession` lets other threads run while it waits for its nodes, tensors come from and go to all of them, and
  nodes that do not know the secret of this user are turned away.
- `load_vm_module` takes files of the kinds that `tvm.runtime.disco.register_module_loader` was told, at first Python's
  and shared objects. With `upload=True` a file of the controller's goes along to nodes that have none of its path.
- Errors are those of sheave, which are RuntimeErrors too.
"""

from sheave.compat.tvm import exec, nd, runtime, script, testing
from sheave.compat.tvm.registry import (
    Function,
    get_global_func,
    list_global_func_names,
    register_func,
    register_global_func,
    remove_global_func,
)
from sheave.compat.tvm.runtime.device import Device, cpu, cuda, device
from sheave.compat.tvm.runtime.errors import InternalError, TVMError
from sheave.compat.tvm.runtime.values import Shape, String, Tensor
from sheave.compat.tvm.script import relax

__all__ = [
    "Device",
    "Function",
    "InternalError",
    "Shape",
    "String",
    "TVMError",
    "Tensor",
    "cpu",
    "cuda",
    "device",
    "exec",
    "get_global_func",
    "list_global_func_names",
    "nd",
    "register_func",
    "register_global_func",
    "relax",
    "remove_global_func",
    "runtime",
    "script",
    "testing",
]
