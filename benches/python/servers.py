"""Times a table of versioned objects between Python processes. `sheave bench servers` runs it:

    sheave launch -n 2 -- python benches/python/servers.py push_pull 100
    sheave launch -n 5 -- python benches/python/servers.py accepted 50

Arguments: a case and the number of rounds. Rank 0 has the table; rank 1 prints lines: the bytes, and nanoseconds of
rounds. `push_pull` pushes a new version of a state dictionary and pulls it into arrays of its own; `unchanged` pulls
where there is nothing newer; in `accepted` all clients compare and push one counter, and the time is that from one
accepted push to the next, whoever made it, as the mean of a thousand. SHEAVE_TRANSPORT chooses the transport.
"""

import sys
import time

import numpy
import sheave

WARM_ROUNDS = 20
#: Accepted pushes whose mean is the time of a round.
ACCEPTED = 1000
PRINTED = 100
#: A state dictionary of 5.76 MB, as that of a small convolutional network.
SHAPES = {
    "conv1": (32, 4, 8, 8),
    "conv2": (64, 32, 4, 4),
    "conv3": (64, 64, 3, 3),
    "full": (2652, 512),
    "head": (512, 6),
}
TIMEOUT_S = 100


def measure(act, rounds):
    for _ in range(min(WARM_ROUNDS, rounds)):
        act()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter_ns()
        act()
        times.append(time.perf_counter_ns() - begun)
    return times


def time_state(table, case, rounds):
    """Pushes and pulls a state dictionary: its bytes, and the times."""
    state = {name: numpy.ones(shape, "float32") for name, shape in SHAPES.items()}
    own = {name: numpy.empty(shape, "float32") for name, shape in SHAPES.items()}
    version = 0

    def push_and_pull():
        nonlocal version
        assert table.push("state", state, version + 1, previous=version or None)
        version += 1
        for name, array in table.pull("state", share=True).value.items():
            own[name][...] = array

    def pull_unchanged():
        assert table.pull("state", newer_than=version).is_unchanged

    push_and_pull()
    act = push_and_pull if case == "push_pull" else pull_unchanged
    return sum(array.nbytes for array in state.values()), measure(act, rounds)


def count_together(table, rounds):
    """Raises one counter beside other clients: nanoseconds from one accepted push to the next."""
    known, began, first, times = None, None, 0, []
    while (known or 0) < (rounds + 1) * ACCEPTED:
        known = table.push("count", 0, (known or 0) + 1, previous=known).newest
        if known >= first + ACCEPTED:
            now = time.perf_counter_ns()
            # The first thousand pushes are for warming up.
            if began is not None:
                times.append((now - began) // (known - first))
            began, first = now, known
    return times


def main(case, rounds):
    with sheave.init() as mesh:
        group = mesh.rpc_group("bench", timeout=TIMEOUT_S)
        if mesh.rank == 0:
            sheave.versions.Versions(mesh, depth=2).register(group, "objects", timeout=TIMEOUT_S)
        group.barrier(TIMEOUT_S)
        if mesh.rank > 0:
            table = group.versions("objects", timeout=TIMEOUT_S)
            if case == "accepted":
                length_bytes, times = 0, count_together(table, rounds)
            else:
                length_bytes, times = time_state(table, case, rounds)
        if mesh.rank == 1:
            # Lines that the launcher prints whole, behind the name of the process.
            for first in range(0, len(times), PRINTED):
                print("times:", length_bytes, *times[first : first + PRINTED], flush=True)
        group.barrier(TIMEOUT_S)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
