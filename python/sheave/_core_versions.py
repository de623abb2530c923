"""What `sheave._core` has for `sheave.versions`: this module is there for its stubs."""

from sheave._core import Pin, Versions, VersionsClient

__all__ = ["Pin", "Versions", "VersionsClient"]
