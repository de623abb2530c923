"""What `sheave._core` has for `sheave.learner`: this module is there for its stubs."""

from sheave._core import GradientClient, GradientServer

__all__ = ["GradientClient", "GradientServer"]
