"""PusH (``push``) over sheave: particles of Bayesian deep learning, on CPUs too.

``import sheave.compat.push.bayes.ensemble`` in a program of one's own, or ``python -m sheave.compat push script.py``
for one that says ``import push.bayes.ensemble`` (see `sheave.compat`). It needs torch.

- `push.PusH`: a distribution over networks; makes particles, launches their handlers, waits for them.
- `particle.Particle`: what handlers get. `pfuture.PFuture`: what they wait for. `pqueue`: queues of messages.
- `bayes`: deep ensembles, multi-SWAG, Stein variational gradient descent, multi MC-dropout.
- `lib`: node event loops, their messages, and the caches of particles.

What differs from PusH, on purpose, beside what the documentation of each module lists:

- Devices are the GPUs, or numbers that stand for the CPU on a machine without one; see `PusH`.
- A send returns at once. Handlers run on the threads that wait for them, or on others; what a handler has begun and not
  waited for has ended when the launch that it belongs to is waited for, and fails it if it fails.
- Particles handle one message after the other. PusH enters a particle again whenever somebody sends to it; here that
  happens in a circle alone, where a message could not begin because its particle waits, through others, for its sender:
  programs of PusH rely on it, and a handler that does not wait never sees its state change under it. It is handled on
  the sender's stack, behind what that has sent there before. See `strict`. A circle through two ranks is not seen, and
  ends when the `p_wait` for it does.
- Errors of handlers, losses and modules come to whoever waits, and the node event loop goes on.
- Each particle has a module of its own, with its buffers, optimizer and scheduler: they are the same for every size of
  the cache. Seeds are the particles' own, and the generator of torch is left alone.
- Progress is not printed.

`strict` decides about contracts that can be seen and are neither right nor wrong. It is True, and then they are PusH's:

| contract | strict | not strict |
|---|---|---|
| `PusH.p_wait` returns | a dict by the futures' numbers | a list in the order of the futures |
| who leaves a full cache | whoever shares the slot (direct-mapped) | who was used the longest time ago |
| a circle of handlers that wait for each other | goes on | is a `sheave.particle.DeadlockError` that names it |
| `SinglePQueue` gives | what was put last; IndexError when empty | what was put first; `queue.Empty` |
| `posterior_pred` with one mode as a str returns | a dict of that mode | what it has of that mode |

It may be set before a `PusH` is made, and is read there and wherever the contract applies. Mathematics is not among
them.

>>> import torch
>>> from sheave.compat.push.push import PusH
>>> with PusH(torch.nn.Linear, 3, 1) as distribution:
...     leader = distribution.p_create(None, receive={"NUMBER": lambda particle, number: particle.pid + number})
...     future = distribution.p_launch(leader, "NUMBER", 42)
...     distribution.p_wait([future])[future._fid]
42
"""

__all__ = ["strict"]
__version__ = "0.2.0"

#: Whether contracts that can be seen are PusH's, as the table above says.
strict: bool = True
