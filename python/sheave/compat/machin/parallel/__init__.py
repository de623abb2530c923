"""machin's parallel package, as far as it is here: `distributed` and `assigner`."""

from sheave.compat.machin.parallel import assigner, distributed

__all__ = ["assigner", "distributed"]
