"""machin's parallel package, as far as it is here.

- `distributed`: worlds of processes, groups for collective operations, and for calls.
- `assigner`: models onto devices.
- `pool`: pools of processes and of threads.
- `queue`: queues between processes.
- `server`: objects in the order of their versions, models, and gradients, for learners.
- `process`, `thread`, `event`, `exception`, `util`: processes and threads whose exceptions others see, and events that
  are made of others.
- `pickle`: pickles of functions and tensors, or of references to these.

What differs from machin is listed in the documentation of each.
"""

from sheave.compat.machin.parallel import (
    assigner,
    distributed,
    event,
    exception,
    pickle,
    pool,
    process,
    queue,
    server,
    thread,
    util,
)

__all__ = ["assigner", "distributed", "event", "exception", "pickle", "pool", "process", "queue", "server"]
__all__ += ["thread", "util"]
