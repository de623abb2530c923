"""machin's parallel package, as far as it is here: `distributed`."""

from sheave.compat.machin.parallel import distributed

__all__ = ["distributed"]
