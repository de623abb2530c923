"""Pools: many tasks for a few workers, with the interfaces of `multiprocessing.pool` and `concurrent.futures`.

`Pool` and `Executor` run tasks in processes, `ThreadPool` in threads of this one. They take what is written for those
of the standard library. Beyond that, in processes:

- **A worker that dies** fails the task that it had begun, with `WorkerDied` that has its exit status and last lines. It
  is replaced, and nothing else is disturbed. `tries` says how often such a task is given to another worker.
- **Arrays** of numpy, and tensors of torch, travel beside the pickle through shared memory. They are captured when the
  task is submitted, and are the worker's own; those that are read-only stay so. `Share` is for one that is not copied.
- **Functions** of any kind: lambdas, local ones, those of a script or a notebook. A pool captures a function, and what
  it refers to, when it is submitted.
- **Infinite iterables**: `imap` and `imap_unordered` are no more than some tasks ahead of whoever reads them.
- **Queues**: `Queue` is one of objects between this process, workers of its pools, children that it spawns, and members
  of its mesh. A process that is killed leaves no lock behind, and what it was about to do is told as lost.
- **joblib**: `sheave.pool.joblib` registers a backend, for what is built on that, scikit-learn for one.
- **What is lost**: a pool that nobody holds any more ends, and its workers with it; they end with this process in
  whatever way that ends.

>>> with sheave.pool.Pool(2) as pool:
...     pool.map(lambda number: number * number, range(5))
[0, 1, 4, 9, 16]
"""

from sheave._core import Share
from sheave.pool._executor import BrokenPool, Executor, WorkerLost
from sheave.pool._pool import Pool
from sheave.pool._queue import Empty, Full, Lost, Queue
from sheave.pool._results import AsyncResult, IMapIterator, MapResult, TimeoutError
from sheave.pool._threads import ThreadPool
from sheave.pool._worker import Worker, context, worker

__all__ = [
    "AsyncResult",
    "BrokenPool",
    "Empty",
    "Executor",
    "Full",
    "IMapIterator",
    "Lost",
    "MapResult",
    "Pool",
    "Queue",
    "Share",
    "ThreadPool",
    "TimeoutError",
    "Worker",
    "WorkerLost",
    "context",
    "worker",
]
