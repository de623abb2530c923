"""Times tasks of pools, and items of queues, as a user has them. `sheave bench pool` runs it:

    python benches/python/pool.py sheave tasks 5

Arguments: whose pool, a case, and the number of rounds. It prints lines: bytes, and nanoseconds of rounds.

Pools: `sheave`, `multiprocessing`, `futures` (concurrent.futures), `loky`, `torch` (torch.multiprocessing and tensors).
Cases: `tasks` maps a function that does nothing over 10,000 numbers in chunks of one, and its time is that of one;
`awaited` is one such task until its result is there; `array` takes an array of 16 MiB, `echoed` brings it back too,
and `shared` takes one that workers reach where it lies, which is sheave's alone. Two workers.

Queues: `sheave`, `multiprocessing` (its Queue), `simple` (its SimpleQueue); between this process and a spawned child.
Cases: `queue_put` is an object of 100 bytes that this process puts and the child takes, of 10,000, and `queue_get` one
the other way round; `queue_array` an array of 4 MiB until the child says that it has it, and `queue_pingpong` an object
that goes there and back.
"""

import functools
import sys
import time

WORKERS = 2
TASKS = 10_000
ARRAY_BYTES = 16 << 20
WARM_ROUNDS = 3
PRINTED = 100
ITEMS = 10_000
ITEM = b"x" * 100
ITEM_ARRAY_BYTES = 4 << 20

# A program that is read from a string has no functions that a spawned child finds.
CHILD = """
while True:
    case, count = items.get()
    for _ in range(count):
        if case == "queue_get":
            results.put(item)
        else:
            taken = items.get()
            if case != "queue_put":
                results.put(taken if case == "queue_pingpong" else None)
    if case == "queue_put":
        results.put(None)
"""


def nothing(number):
    return None


def echo(array):
    return array


class Bench:
    """A pool: how it maps, how one task is awaited, and how it ends."""

    def __init__(self, map, apply, array, end):
        self.map = map
        self.apply = apply
        self.array = array
        self.end = end


def of_pool(pool, array):
    def end():
        pool.close()
        pool.join()

    return Bench(
        lambda function, items: pool.map(function, items, 1), lambda *call: pool.apply(call[0], call[1:]), array, end
    )


def of_executor(pool):
    return Bench(lambda *call: list(pool.map(*call)), lambda *call: pool.submit(*call).result(), ones, pool.shutdown)


def of_sheave():
    import sheave.pool

    return of_pool(sheave.pool.Pool(WORKERS), ones)


def of_multiprocessing():
    import multiprocessing

    return of_pool(multiprocessing.get_context("fork").Pool(WORKERS), ones)


def of_futures():
    import concurrent.futures
    import multiprocessing

    return of_executor(concurrent.futures.ProcessPoolExecutor(WORKERS, multiprocessing.get_context("fork")))


def of_loky():
    import loky

    return of_executor(loky.get_reusable_executor(WORKERS))


def of_torch():
    import torch
    import torch.multiprocessing

    torch.set_num_threads(1)

    def array():
        # What is sent for the first time moves to shared memory.
        return torch.ones(ARRAY_BYTES // 4)

    return of_pool(torch.multiprocessing.get_context("fork").Pool(WORKERS), array)


def ones():
    import numpy

    return numpy.ones(ARRAY_BYTES // 4, numpy.float32)


def shared():
    import sheave
    import sheave.pool

    array = sheave.empty(ARRAY_BYTES // 4, "float32")
    array.numpy()[:] = 1
    return sheave.pool.Share(array)


POOLS = {
    "sheave": of_sheave,
    "multiprocessing": of_multiprocessing,
    "futures": of_futures,
    "loky": of_loky,
    "torch": of_torch,
}


def queues_of(whose):
    """A queue to a spawned child, and one from it."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    if whose == "sheave":
        import sheave.pool

        make = sheave.pool.Queue
    else:
        make = {"multiprocessing": context.Queue, "simple": context.SimpleQueue}[whose]
    items, results = make(), make()
    names = {"items": items, "results": results, "item": ITEM}
    context.Process(target=exec, args=(CHILD, names), daemon=True).start()
    return items, results


def queue_round(case, items, results):
    """As `round_of`."""

    def act():
        if many:
            items.put((case, ITEMS))
        if case != "queue_get":
            for _ in range(ITEMS if many else 1):
                items.put(item)
        for _ in range(ITEMS if case == "queue_get" else 1):
            results.get()

    many = case in ("queue_put", "queue_get")
    if not many:
        items.put((case, sys.maxsize))
    item = ITEM
    if case == "queue_array":
        import numpy

        item = numpy.ones(ITEM_ARRAY_BYTES // 4, numpy.float32)
    return act, ITEM_ARRAY_BYTES if case == "queue_array" else len(ITEM), ITEMS if many else 1


def round_of(bench, case):
    """What a round is, the bytes that it moves, and into how many tasks its time is cut."""
    if case == "tasks":
        return functools.partial(bench.map, nothing, range(TASKS)), 0, TASKS
    if case == "awaited":
        return functools.partial(bench.apply, nothing, 0), 0, 1
    array = shared() if case == "shared" else bench.array()
    return functools.partial(bench.apply, echo if case == "echoed" else nothing, array), ARRAY_BYTES, 1


def main(whose, case, rounds):
    bench = None
    if case.startswith("queue_"):
        act, length_bytes, cut = queue_round(case, *queues_of(whose))
    else:
        bench = POOLS[whose]()
        act, length_bytes, cut = round_of(bench, case)
    for _ in range(min(WARM_ROUNDS, rounds)):
        act()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter_ns()
        act()
        times.append((time.perf_counter_ns() - begun) // cut)
    for first in range(0, len(times), PRINTED):
        print("times:", length_bytes, *times[first : first + PRINTED], flush=True)
    if bench is not None:
        # Left to the end of the interpreter, torch's aborts at times.
        bench.end()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
