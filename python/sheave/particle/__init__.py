"""Particles: objects with a mailbox and a model, which send each other messages and wait for each other.

A particle has a state, handlers of messages by name, and perhaps a model on a device. It handles one message after the
other, those of each sender in the order in which they were sent. What comes of a message is an `Answer`: what its
handler returns, or raises.

>>> def double(particle, number):
...     particle.state["count"] = particle.state.get("count", 0) + 1
...     return 2 * number
>>> def ask(particle, other, number):
...     return particle.send(other, "double", number).wait()
>>> with sheave.particle.Particles() as particles:
...     member = particles.create(receive={"double": double})
...     leader = particles.create(receive={"ask": ask})
...     particles.send(leader, "ask", member, 21).wait()
42

Handlers are functions that may wait for whatever they like, for other particles too: they run on the thread that waits
for them, or on one of the node's. A circle of handlers that wait for each other raises `DeadlockError`, which names
them; a particle that is `reentrant` handles the next message while its handlers wait.

A model lies on a device, which is a particle itself: what is to be done with it is a message to the device, so the
operations of one device come one after the other. Models that do not fit there are parked in the host's memory.

Particles of other processes of the mesh are sent messages in the same way; arguments and answers travel as those of
`Mesh.call` do. Mailboxes, messages by name and caches of models follow PusH (arXiv 2306.06528).
"""

import importlib
from typing import Any

from sheave._core import Deadlock as DeadlockError
from sheave._core_particle import Answer
from sheave.particle._cache import Guard, ParticleCache
from sheave.particle._models import FunctionModel, Model
from sheave.particle._particle import Particle, ParticleId
from sheave.particle._runtime import Particles, wait_all
from sheave.particle._views import Snapshot

__all__ = ["Answer", "DeadlockError", "FunctionModel", "Guard", "Model", "Particle", "ParticleCache", "ParticleId"]
__all__ += ["Particles", "Snapshot", "wait_all"]

# What needs torch, which is imported when it is asked for.
_OF_TORCH = {"TorchModel": "sheave.particle._torch_models", "BatchedModels": "sheave.particle._batched"}


def __getattr__(name: str) -> Any:
    if name not in _OF_TORCH:
        raise AttributeError(f"module 'sheave.particle' has no attribute {name!r}")
    return getattr(importlib.import_module(_OF_TORCH[name]), name)
