"""When pushes of an asynchronous store may leave after `set_optimizer`.

Only worker 0's word counts, and another worker must not push before the servers have heard it: without an optimizer its
gradient would take the weight's place. In a synchronous store no round is complete without worker 0, so nothing can go
wrong. In the others worker 0 tells the servers by a command of the face that it has been heard, and another worker
asks until that has happened as often as it has called `set_optimizer` itself. A barrier would be wrong: a program may
let worker 0 alone call it, and meet the others afterwards.
"""

import time
from collections import Counter

import sheave

from sheave.compat.mxnet.base import MXNetError, translated

__all__ = ["COMMAND", "Heard", "agree"]

#: The number of the face's own command. Programs number theirs from 0.
COMMAND = -0x5EA4E

#: How long worker 0 may take longer to come to the same call.
WAIT_S = 60.0


class Heard:
    """What a server has heard: how often the updater of each store was set."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()

    def answer(self, body: bytes) -> bytes:
        """How often, after counting one more if worker 0 says so."""
        verb, store = body.decode().split()
        self._times[store] += verb == "said"
        return str(self._times[store]).encode()


def agree(store: sheave.KVStore, number: int, times: int) -> None:
    """After this worker's so-many-th change of the updater: says so, or waits until worker 0 has. `number` is the
    store's, the same on all workers. Raises `MXNetError` if worker 0 does not come."""
    verb = "said" if store.rank == 0 else "asks"
    until = time.monotonic() + WAIT_S
    while True:
        with translated():
            answers = store.send_command_to_servers(COMMAND, f"{verb} {number}".encode())
        # Servers that are not the face's know nothing of it.
        if store.rank == 0 or not all(answers) or min(map(int, answers)) >= times:
            return
        if time.monotonic() > until:
            raise MXNetError(f"worker 0 has set no optimizer for {WAIT_S:.0f} s; hint: only its word counts")
        time.sleep(0.002)
