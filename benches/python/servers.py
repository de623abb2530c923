"""Times a table of versioned objects between Python processes. `sheave bench servers` runs it:

    sheave launch -n 2 -- python benches/python/servers.py push_pull 100
    sheave launch -n 5 -- python benches/python/servers.py accepted 50
    sheave launch -n 8 -- python benches/python/servers.py gradients 20

Arguments: a case and the number of rounds. Rank 0 has the table; rank 1 prints lines: the bytes, and nanoseconds of
rounds. `push_pull` pushes a new version of a state dictionary and pulls it into arrays of its own; `unchanged` pulls
where there is nothing newer; in `accepted` all clients compare and push one counter, and the time is that from one
accepted push to the next, whoever made it, as the mean of a thousand. In `gradients` all are learners and secondaries,
and rank 0 is the primary too: they push gradients of that state dictionary and pull what is published, and the time is
that from one step to the next, for each of its 16 gradients. SHEAVE_TRANSPORT chooses the transport.
"""

import sys
import time

import numpy
import sheave

WARM_ROUNDS = 20
#: Accepted pushes whose mean is the time of a round.
ACCEPTED = 1000
PRINTED = 100
#: A step consumes as many sums as a sum has gradients.
BATCH = 4
WARM_STEPS = 2
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


def learn(mesh, group, rounds):
    """Pushes gradients and pulls parameters beside other learners: nanoseconds for each gradient of each step."""
    gradient = {name: numpy.full(shape, 1e-3, "float32") for name, shape in SHAPES.items()}
    own, stepped = {name: numpy.zeros(shape, "float32") for name, shape in SHAPES.items()}, []
    models = sheave.learner.ModelServer(mesh, group, "models", timeout=TIMEOUT_S) if mesh.rank == 0 else None
    store = models.publisher("policy") if models else None

    def publish(parameters, version):
        store(parameters, version)
        stepped.append(time.perf_counter_ns())

    server = sheave.learner.GradientServer(
        group, "gradients", own, optimizer=sheave.optim.SGD(lr=1e-3) if models else None, batch=BATCH,
        publish=publish if models else None, timeout=TIMEOUT_S,
    )
    group.barrier(TIMEOUT_S)
    client = sheave.learner.GradientClient(group, "gradients", timeout=TIMEOUT_S)
    model = sheave.learner.ModelClient(group, "models", "policy", timeout=TIMEOUT_S)
    while model.version < WARM_STEPS + rounds:
        client.push(gradient)
        for name, array in (model.pull(share=True) or {}).items():
            own[name][...] = array
    group.barrier(TIMEOUT_S)
    length_bytes = sum(array.nbytes for array in gradient.values())
    steps = stepped[WARM_STEPS - 1 : WARM_STEPS + rounds]
    times = [(after - before) // BATCH**2 for before, after in zip(steps, steps[1:])]
    group.barrier(TIMEOUT_S)
    server.stop()
    return length_bytes, times


def report(length_bytes, times):
    """Prints lines that the launcher prints whole, behind the name of the process."""
    for first in range(0, len(times), PRINTED):
        print("times:", length_bytes, *times[first : first + PRINTED], flush=True)


def main(case, rounds):
    with sheave.init() as mesh:
        group = mesh.rpc_group("bench", timeout=TIMEOUT_S)
        if case == "gradients":
            measured = learn(mesh, group, rounds)
            if mesh.rank == 0:
                report(*measured)
            return
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
            report(length_bytes, times)
        group.barrier(TIMEOUT_S)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
