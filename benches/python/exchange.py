"""Times sheave.exchange from Python. `sheave bench exchange --python PYTHON` runs it:

    python benches/python/exchange.py 1 1 10 0 registered 1024 registered 917504 moved 917504

It takes numbers of workers and servers, what to divide the iterations by, whether to keep each process on a core of its
own (0 or 1), and pairs of a case and a size in bytes. A case is registered (pushed from sheave.empty into registered
memory of sheave.empty, and answered so), private (the same in numpy's own memory), or moved (one tensor is given to the
server and given back). Prints a line for each pair: the case, the bytes, and nanoseconds of every request of worker 0,
from submit to the end of wait. SHEAVE_TRANSPORT in the environment chooses the transport.
"""

import os
import subprocess
import sys
import time

PATIENCE_S = 60


def iterations_of(length_bytes, thrift):
    """How many requests are timed, and how many before them are not."""
    usual = 20_000 if length_bytes <= 65_536 else 1_000 if length_bytes <= 1 << 21 else 80
    timed = max(usual // thrift, 5)
    return timed, timed // 10 + 2


def memory(case, length_bytes):
    """An array of bytes and what is written into it."""
    import numpy
    import sheave

    if case == "private":
        array = numpy.zeros(length_bytes, numpy.uint8)
        return array, array
    tensor = sheave.empty(length_bytes, "uint8")
    return tensor, tensor.numpy()


def work(cases, thrift):
    """Makes the requests; a list of case, size and nanoseconds of each."""
    import sheave
    from sheave.exchange import Take, Worker

    measured = []
    for case, length_bytes in cases:
        with Worker() as worker:
            pushed, written = memory(case, length_bytes)
            places = [memory(case, length_bytes)[0] for _ in range(worker.servers)]
            pull = {0: places[0] if worker.servers == 1 else places}
            timed, warm = iterations_of(length_bytes, thrift)
            times = []
            worker.barrier("all", timeout=PATIENCE_S)
            for number in range(warm + timed):
                if case == "moved":
                    pushed.numpy().fill(number % 256)
                    written = None
                    begun = time.perf_counter_ns()
                    request = worker.submit({0: pushed}, {0: Take("uint8", (length_bytes,))}, move=True)
                    worker.wait(request, PATIENCE_S)
                    [pushed] = worker.take(request)
                else:
                    written.fill(number % 256)
                    begun = time.perf_counter_ns()
                    worker.wait(worker.submit({0: pushed}, pull), PATIENCE_S)
                taken_ns = time.perf_counter_ns() - begun
                if number >= warm:
                    times.append(taken_ns)
            measured.append((case, length_bytes, times))
            worker.barrier("all", timeout=PATIENCE_S)
    sheave.default_mesh().finish()
    return measured


def serve(cases, thrift):
    """Takes the batches; the next answer is written when the one before has been sent."""
    import sheave
    from sheave.exchange import Server

    for case, length_bytes in cases:
        with Server() as server:
            workers = range(server.workers)
            if case != "moved":
                landing = memory(case, length_bytes * server.workers)[0]
                server.register(landing, list(workers), [0] * server.workers)
            answers = [memory(case, length_bytes) for _ in range(2)]
            timed, warm = iterations_of(length_bytes, thrift)
            server.barrier("all", timeout=PATIENCE_S)
            for number in range(warm + timed):
                batch = server.get_batch(PATIENCE_S)
                answer = answers[number % 2][0]
                while batch:
                    request = batch.pop()
                    if case == "moved":
                        handler, tensors = request.handler, request.tensors
                        del request
                        server.respond(handler, tensors, move=True)
                        del tensors
                    else:
                        server.respond(request, (answer,))
                if case != "moved":
                    answers[(number + 1) % 2][1].fill((number + 1) % 256)
            server.barrier("all", timeout=PATIENCE_S)
    sheave.default_mesh().finish()


def play(role, index, arguments):
    """One process of the job."""
    import sheave

    workers, _, thrift, pins, *cases = arguments
    cases = [(case, int(length_bytes)) for case, length_bytes in zip(cases[::2], cases[1::2], strict=True)]
    if role == "scheduler":
        return sheave.init().finish()
    sheave.init()
    if pins == "1":
        # Only now, so that the node has seen all the cores that there are.
        cores = sorted(os.sched_getaffinity(0))
        place = int(index) if role == "worker" else int(workers) + int(index)
        os.sched_setaffinity(0, {cores[place % len(cores)]})
    if role == "server":
        return serve(cases, int(thrift))
    for case, length_bytes, times in work(cases, int(thrift)):
        if index == "0":
            print(case, length_bytes, *times, flush=True)


def main(arguments):
    if arguments[0] == "play":
        return play(arguments[1], arguments[2], arguments[3:])
    from sheave._core import _free_port

    workers, servers = int(arguments[0]), int(arguments[1])
    port = _free_port()
    environment = {
        **os.environ,
        "SHEAVE_ROOT": f"127.0.0.1:{port}",
        "SHEAVE_WORKERS": str(workers),
        "SHEAVE_SERVERS": str(servers),
        # The scheduler has nothing to do.
        "SHEAVE_LOCAL_RANKS": str(workers + servers),
    }
    roles = [("scheduler", 0)]
    roles += [("server", rank) for rank in range(servers)] + [("worker", rank) for rank in range(workers)]

    def start(role, rank):
        line = [sys.executable, os.path.abspath(__file__), "play", role, str(rank), *arguments]
        return subprocess.Popen(line, env={**environment, "SHEAVE_ROLE": role, "SHEAVE_RANK": str(rank)})

    started = [start(role, rank) for role, rank in roles]
    if any([process.wait() for process in started]):
        raise SystemExit("a process failed")


if __name__ == "__main__":
    main(sys.argv[1:])
