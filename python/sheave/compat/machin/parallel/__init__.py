"""machin's parallel package, as far as it is here."""

from sheave.compat.machin.parallel import (
    assigner,
    distributed,
    event,
    exception,
    pickle,
    pool,
    process,
    thread,
    util,
)

__all__ = ["assigner", "distributed", "event", "exception", "pickle", "pool", "process", "thread", "util"]
