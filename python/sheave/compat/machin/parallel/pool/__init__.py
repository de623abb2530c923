"""Pools of processes and of threads, with contexts for their workers.

    pool = CtxPool(2, worker_contexts=["cuda:0", "cuda:1"])
    pool.map(lambda device, item: forward(device, item), items)

`Pool`, `P2PPool` and `CtxPool` stand on `sheave.pool.Pool`, `ThreadPool` and `CtxThreadPool` on its threads. `BasePool`
is for pools of one's own kind, which override what tasks and results go through, and what their workers are; the others
have its methods, and none of their tasks go through them.

What differs from machin, on purpose:

- A worker that dies fails the task that it had begun with `sheave.WorkerDied`, and is replaced. An initializer that
  raises breaks the pool: each task fails with what it has raised. `sys.exit` in a task, results that cannot be sent and
  exceptions that cannot be rebuilt are errors of their tasks.
- Tensors are copied unless ``is_copy_tensor=False``: those of functions, of arguments and of results. Without it those
  on the CPU are shared, in arguments and in what functions refer to; of results those that are in shared memory, and
  others are copied. A tensor that was on its way to a worker that died keeps its memory until this process ends.
- Functions may be lambdas and local ones, whether `is_recursive` is said or not. Workers are always fresh processes,
  which are not for a process that was forked from one that has used pools: `sheave.Forked` says so.
- `is_daemon=False` lets the program wait at its end until the tasks that it has submitted are done; workers may start
  processes of their own in either case. They end with the program in whatever way it ends.
- `close` takes no more tasks, and those that were submitted are done, by every pool. Callbacks are called.
- `imap` with chunks returns an iterator. All iterables are listed in the call, which raises what they raise.
- `P2PPool` is `Pool`: what goes to a worker goes to that one alone in both.
- Threads get what is submitted as it is, and what they return is what they have returned; they are not replaced after
  `maxtasksperchild` tasks. At its end the program waits for what they have to do, unless their pool is terminated.
- A pool that nobody holds any more ends. `CtxPool` has as many workers as there are contexts, unless it is told.
- Results have no constructors for users; those of `sheave.pool` they are.
"""

from sheave.compat.machin.parallel.pool.base import BasePool
from sheave.compat.machin.parallel.pool.calls import IMapUnorderedIterator, PoolStates
from sheave.compat.machin.parallel.pool.contexts import CtxPoolStorage, proxy_caller, proxy_ctx_caller, proxy_dumper
from sheave.compat.machin.parallel.pool.processes import CtxPool, P2PPool, Pool
from sheave.compat.machin.parallel.pool.threads import CtxThreadPool, ThreadPool
from sheave.pool import AsyncResult, IMapIterator, MapResult, TimeoutError

__all__ = [
    "AsyncResult",
    "BasePool",
    "CtxPool",
    "CtxPoolStorage",
    "CtxThreadPool",
    "IMapIterator",
    "IMapUnorderedIterator",
    "MapResult",
    "P2PPool",
    "Pool",
    "PoolStates",
    "ThreadPool",
    "TimeoutError",
    "proxy_caller",
    "proxy_ctx_caller",
    "proxy_dumper",
]
