"""What `sheave._core` has for `sheave.particle`: this module is there for its stubs."""

from sheave._core import Answer, ParticleObject, ParticleRuntime

__all__ = ["Answer", "ParticleObject", "ParticleRuntime"]
