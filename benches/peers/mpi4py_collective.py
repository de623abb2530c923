"""Times all_reduce of mpi4py, as README.md beside this file says and as sheave times its own.

    python3 -m venv /tmp/mpi4py && /tmp/mpi4py/bin/pip install mpi4py numpy
    mpirun -np 2 /tmp/mpi4py/bin/python benches/peers/mpi4py_collective.py 200000 8 65536

Arguments: BUDGET_US BYTES... Prints a line per size: the bytes, then nanoseconds per operation of every round, as the
slowest rank saw it. Sums are in place, of plain numpy arrays. `sheave bench python --mpi4py PYTHON` runs it.
"""

import sys
import time

import numpy
from mpi4py import MPI

WARM_ROUNDS = 3
ROUNDS_MIN = 5
ROUNDS_MAX = 400
# Short operations in a row, timed as one.
LOOPED = 100
REWRITTEN_BYTES = 65536


def measure(length_bytes, budget_s):
    """Seconds per operation of every round, as the slowest rank saw it."""
    world = MPI.COMM_WORLD
    array = numpy.zeros(length_bytes // 4, numpy.float32)
    looped = 1 if length_bytes >= REWRITTEN_BYTES else LOOPED

    def one_round(number):
        if looped == 1:
            array.fill(1.0 + number)
        world.Barrier()
        begun = time.perf_counter()
        for _ in range(looped):
            world.Allreduce(MPI.IN_PLACE, array)
        return (time.perf_counter() - begun) / looped

    for number in range(WARM_ROUNDS):
        last_s = one_round(number) * looped
    rounds = min(max(int(budget_s / last_s), ROUNDS_MIN), ROUNDS_MAX)
    rounds = world.bcast(rounds, 0)
    times = numpy.array([one_round(number) for number in range(rounds)])
    world.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    return times


def main(arguments):
    budget_us, *sizes = [int(argument) for argument in arguments]
    for length_bytes in sizes:
        times = measure(length_bytes, budget_us / 1e6)
        if MPI.COMM_WORLD.rank == 0:
            print(length_bytes, *(round(time_s * 1e9) for time_s in times), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
