"""Times sheave from Python, as a user calls it. `sheave bench python` runs it:

    python benches/python/measure.py all_reduce arena 2 200000 8 65536
    python benches/python/measure.py push_pull 5760000 50
    python benches/python/measure.py start 4 5 sheave launch -n 4 --

`all_reduce` takes where arrays lie (arena, made by sheave.empty, or numpy), the number of ranks, the microseconds for
each size, and sizes in bytes; `push_pull` the bytes of one key and the number of rounds, for two workers and a server;
`start` the number of processes, how often they are started, and the command that starts them all. Prints a line per
size: the bytes, then nanoseconds per operation of every round; of all_reduce as the slowest rank saw it, of push_pull
as worker 0 did. A start is one until the last process has passed the first barrier; without a command the processes are
bare interpreters, and it is one until the last of them runs. `import NAME TIMES` prints how long an interpreter
takes that imports this module and ends. SHEAVE_TRANSPORT in the environment chooses the transport.
"""

import os
import sys
import time

WARM_ROUNDS = 3
ROUNDS_MIN = 5
ROUNDS_MAX = 400
# Short operations in a row, timed as one.
LOOPED = 100
REWRITTEN_BYTES = 65536


def rounds_of(budget_s, length_bytes, arena):
    """Seconds per operation of every round, as the slowest rank saw it."""
    import numpy
    import sheave

    mesh = sheave.init()
    world = mesh.world
    given = array = numpy.zeros(length_bytes // 4, numpy.float32)
    if arena:
        given = sheave.empty(length_bytes // 4)
        array = given.numpy()
        array.fill(0.0)
    looped = 1 if length_bytes >= REWRITTEN_BYTES else LOOPED

    def one_round(number):
        if looped == 1:
            array.fill(1.0 + number)
        world.barrier()
        begun = time.perf_counter()
        for _ in range(looped):
            world.all_reduce(given)
        return (time.perf_counter() - begun) / looped

    for number in range(WARM_ROUNDS):
        last_s = one_round(number) * looped
        if looped == 1 and not (array == mesh.size * (1.0 + number)).all():
            raise ValueError("the sum is wrong")
    rounds = numpy.array([min(max(int(budget_s / last_s), ROUNDS_MIN), ROUNDS_MAX)])
    world.broadcast(rounds)
    times = numpy.array([one_round(number) for number in range(int(rounds[0]))])
    return world.all_reduce(times, "max").tolist()


def take_part(arena, budget_us, sizes):
    if "BENCH_PYTHON_PIN" in os.environ:
        import sheave

        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[sheave.init().rank % len(cores)]})
    return [(length_bytes, rounds_of(budget_us / 1e6, length_bytes, arena)) for length_bytes in sizes]


def push_and_pull(length_bytes, rounds):
    """Seconds of every round of one worker: a push, a pull, and the wait for it."""
    import numpy
    import sheave

    with sheave.KVStore("dist_sync") as store:
        gradient = numpy.ones(length_bytes // 4, numpy.float32)
        place = numpy.zeros_like(gradient)
        store.init("weight", place)
        store.barrier()
        times = []
        for number in range(WARM_ROUNDS + rounds):
            begun = time.perf_counter()
            store.push("weight", gradient)
            store.pull("weight", place).wait()
            if number >= WARM_ROUNDS:
                times.append(time.perf_counter() - begun)
        if not (place == store.num_workers).all():
            raise ValueError("the stored value is wrong")
        store.barrier()
    return [(length_bytes, times)]


def clock_ns():
    """The time since the machine started, the same in all processes."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def meet(folder):
    """One process of a job that is started."""
    import sheave

    with sheave.init() as mesh:
        mesh.barrier()
        passed_ns = clock_ns()
        with open(os.path.join(folder, str(mesh.rank)), "w") as file:
            file.write(str(passed_ns))


def start(processes, times, command):
    """Nanoseconds from each start to the last process's first barrier."""
    import subprocess
    import tempfile

    stamp = "import sys, time; print(time.clock_gettime_ns(time.CLOCK_MONOTONIC), file=open(sys.argv[1], 'w'))"
    taken_ns = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            begun_ns = clock_ns()
            if command:
                lines = [[*command, sys.executable, os.path.abspath(__file__), "meet", folder]]
            else:
                files = [os.path.join(folder, str(number)) for number in range(processes)]
                lines = [[sys.executable, "-c", stamp, file] for file in files]
            started = [subprocess.Popen(line, stdout=subprocess.DEVNULL) for line in lines]
            if any([process.wait() for process in started]):
                raise SystemExit("a process failed")
            stamps = [int(open(os.path.join(folder, name)).read()) for name in os.listdir(folder)]
        if len(stamps) != processes:
            raise SystemExit(f"{len(stamps)} of {processes} processes met")
        taken_ns.append(max(stamps) - begun_ns)
    return taken_ns


def imports(module, times):
    """Nanoseconds of an interpreter that imports a module and ends, each time."""
    import subprocess

    taken_ns = []
    for _ in range(times):
        begun_ns = clock_ns()
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
        taken_ns.append(clock_ns() - begun_ns)
    return taken_ns


def main(arguments):
    what, *arguments = arguments
    if what == "meet":
        return meet(arguments[0])
    if what == "start":
        return print(0, *start(int(arguments[0]), int(arguments[1]), arguments[2:]))
    if what == "import":
        return print(0, *imports(arguments[0], int(arguments[1])))
    import sheave

    if what == "all_reduce":
        memory, ranks, budget_us, *sizes = arguments
        given = (memory == "arena", int(budget_us), [int(size) for size in sizes])
        results = sheave.spawn(take_part, int(ranks), given, timeout=300)
    else:
        length_bytes, rounds = (int(argument) for argument in arguments)
        results = sheave.spawn(push_and_pull, 2, (length_bytes, rounds), servers=1, timeout=300)
    for length_bytes, times in results[0]:
        print(length_bytes, *(round(time_s * 1e9) for time_s in times), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
