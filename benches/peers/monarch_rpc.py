"""Times calls of an actor of Monarch, as benches/python/rpc.py does those of sheave.

    python benches/peers/monarch_rpc.py registered 300 0

Arguments: a case, the number of rounds, and bytes. Prints a line: the bytes, and nanoseconds of every round. `sheave
bench rpc --monarch PYTHON` runs it.
"""

import sys
import time

import numpy
from monarch.actor import Actor, endpoint, this_host

WARM_ROUNDS = 20
OUTSTANDING = 100


class Worker(Actor):
    @endpoint
    async def nothing(self, number):
        return number

    @endpoint
    async def echo(self, array):
        return array

    @endpoint
    async def call(self, function):
        return function()


def many(worker):
    waiting = [worker.nothing.call_one(1) for _ in range(OUTSTANDING)]
    for one in waiting:
        one.get()


def measure(act, cut, rounds):
    for _ in range(min(WARM_ROUNDS, rounds)):
        act()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter_ns()
        act()
        times.append((time.perf_counter_ns() - begun) // cut)
    return times


def main(case, rounds, length_bytes):
    processes = this_host().spawn_procs(per_host={"gpus": 1})
    worker = processes.spawn("worker", Worker)
    array = numpy.ones(length_bytes // 4, numpy.float32)
    act, cut = {
        "registered": (lambda: worker.nothing.call_one(1).get(), 1),
        "pickled": (lambda: worker.call.call_one(int).get(), 1),
        "echo": (lambda: worker.echo.call_one(array).get(), 1),
        "outstanding": (lambda: many(worker), OUTSTANDING),
    }[case]
    print(length_bytes, *measure(act, cut, rounds), flush=True)
    processes.stop().get()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
