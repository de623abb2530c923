"""What `sheave._core` has for `sheave.placement`: this module is there for its stubs."""

from sheave._core import Placement, place_models

__all__ = ["Placement", "place_models"]
