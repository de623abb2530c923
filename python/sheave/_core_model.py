"""What `sheave._core` has for the models of `sheave.particle`: this module is there for its stubs."""

from sheave._core import CacheOfModels, FlatOptimizer, Guard

__all__ = ["CacheOfModels", "FlatOptimizer", "Guard"]
