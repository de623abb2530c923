"""Times calls between Python processes, as a user makes them. `sheave bench rpc` runs it:

    sheave launch -n 2 -- python benches/python/rpc.py registered 2000 0
    sheave launch -n 8 -- python benches/python/rpc.py groups 50 0

Arguments: a case, the number of rounds, and bytes. Rank 0 prints lines: the bytes, and nanoseconds of rounds.
`registered` calls a service by its key, with plain values; `pickled` sends a function along; `echo` an array there and
back; `outstanding` has 100 calls in flight, and its time is that of one; `groups` makes a group of all and leaves it;
`services` registers a thousand services, and another process finds them. SHEAVE_TRANSPORT chooses the transport.
"""

import sys
import time

import numpy
import sheave

WARM_ROUNDS = 20
OUTSTANDING = 100
SERVICES = 1000
PRINTED = 100


def nothing(number=0):
    return number


def echo(array):
    return array


def rounds_of(group, case, length_bytes):
    """What a round of rank 0 is, and into how many calls its time is cut."""
    array = numpy.ones(length_bytes // 4, numpy.float32)
    other = "rank-1"
    return {
        "registered": (lambda: group.registered_sync("nothing", (1,)), 1),
        "pickled": (lambda: group.rpc_sync(other, int), 1),
        "echo": (lambda: group.registered_sync("echo", (array,)), 1),
        "outstanding": (lambda: many(group), OUTSTANDING),
    }[case]


def many(group):
    works = [group.registered_async("nothing", (1,)) for _ in range(OUTSTANDING)]
    for work in works:
        work.wait()


def measure(act, cut, rounds):
    for _ in range(min(WARM_ROUNDS, rounds)):
        act()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter_ns()
        act()
        times.append((time.perf_counter_ns() - begun) // cut)
    return times


def make_groups(mesh, rounds):
    times = []
    for _ in range(rounds):
        mesh.barrier()
        begun = time.perf_counter_ns()
        group = mesh.rpc_group("made")
        times.append(time.perf_counter_ns() - begun)
        group.destroy()
    return times


def find_services(mesh, group, rounds):
    times = []
    for number in range(rounds):
        mesh.barrier()
        begun = time.perf_counter_ns()
        keys = [(number, key) for key in range(SERVICES)]
        if mesh.rank == 1:
            for key in keys:
                group.register(key, nothing)
        mesh.barrier()
        if mesh.rank == 0:
            for key in keys:
                assert group.is_registered(key)
        times.append(time.perf_counter_ns() - begun)
    return times


def main(case, rounds, length_bytes):
    with sheave.init() as mesh:
        if case == "groups":
            times = make_groups(mesh, rounds)
        else:
            group = mesh.rpc_group("bench")
            if case == "services":
                times = find_services(mesh, group, rounds)
            else:
                if mesh.rank == 1:
                    group.register("nothing", nothing)
                    group.register("echo", echo)
                group.barrier()
                times = measure(*rounds_of(group, case, length_bytes), rounds) if mesh.rank == 0 else []
        if mesh.rank == 0:
            # Lines that the launcher prints whole, behind the name of the process.
            for first in range(0, len(times), PRINTED):
                print("times:", length_bytes, *times[first : first + PRINTED], flush=True)
        mesh.barrier()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
