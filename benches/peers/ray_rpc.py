"""Times calls of an actor of Ray, as benches/python/rpc.py does those of sheave.

    python benches/peers/ray_rpc.py registered 300 0

Arguments: a case, the number of rounds, and bytes. Prints a line: the bytes, and nanoseconds of every round. `sheave
bench rpc --ray PYTHON` runs it.
"""

import sys
import time

import numpy
import ray

WARM_ROUNDS = 20
OUTSTANDING = 100


@ray.remote(num_cpus=0)
class Actor:
    def nothing(self, number=0):
        return number

    def echo(self, array):
        return array

    def call(self, function):
        return function()


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
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", _node_ip_address="127.0.0.1")
    actor = Actor.remote()
    array = numpy.ones(length_bytes // 4, numpy.float32)
    act, cut = {
        "registered": (lambda: ray.get(actor.nothing.remote(1)), 1),
        "pickled": (lambda: ray.get(actor.call.remote(int)), 1),
        "echo": (lambda: ray.get(actor.echo.remote(array)), 1),
        "outstanding": (lambda: ray.get([actor.nothing.remote(1) for _ in range(OUTSTANDING)]), OUTSTANDING),
    }[case]
    print(length_bytes, *measure(act, cut, rounds), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
