"""Times the commands of TVM's Disco, as benches/python/session.py does those of sheave.

    python benches/peers/tvm_session.py call processes 500 0

Arguments: a case, where the workers are, the number of rounds, and bytes. Prints a line: the bytes, and nanoseconds of
every round. Its wheel has Disco only where lib/libtvm_runtime.so and lib/libtvm_runtime_extra.so of the package are
loaded before `tvm` is imported, in workers too: by a .pth file, say. `sheave bench session --tvm PYTHON` runs it.
"""

import socket
import subprocess
import sys
import time

import numpy
import tvm.exec.disco_worker  # noqa: F401: the functions of its tests, for the first worker
from tvm.runtime import disco

WORKERS = 2
WARM_ROUNDS = 20
PIPELINED = 10_000
ADD_ONE = "tests.disco.add_one"

OTHERS = []
"""The other nodes."""


def over_sockets():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "tvm.exec.disco_remote_socket_session", "127.0.0.1", str(port), "1"]
    # Its constructor holds the interpreter: the other node is started before, and tries once.
    script = f"sleep 1; exec {' '.join(words)}"
    OTHERS.append(subprocess.Popen(["sh", "-c", script]))
    return disco.SocketSession(WORKERS, 1, 1, "127.0.0.1", port)


def begin(kind):
    return {
        "threads": lambda: disco.ThreadedSession(WORKERS),
        "processes": lambda: disco.ProcessSession(WORKERS),
        "sockets": over_sockets,
    }[kind]()


def sync(session):
    for worker in range(WORKERS):
        session._sync_worker(worker)


def call(session, add):
    session.call_packed(add, 1)
    sync(session)


def pipelined(session, add):
    for number in range(PIPELINED):
        session.call_packed(add, number)
    sync(session)


def pipelined_kept(session, add):
    kept = [session.call_packed(add, number) for number in range(PIPELINED)]
    sync(session)
    del kept


def start(kind):
    begun = time.perf_counter_ns()
    session = begin(kind)
    add = session.get_global_func(ADD_ONE)
    if session.call_packed(add, 1).debug_get_from_remote(WORKERS - 1) != 2:
        raise RuntimeError("one and one is two")
    took = time.perf_counter_ns() - begun
    session.shutdown()
    return took


def measure(session, case, rounds, length_bytes):
    add = session.get_global_func(ADD_ONE)
    array = None
    if case == "fetch":
        array = session.empty((length_bytes // 4,), "float32")
        array.debug_copy_from(WORKERS - 1, numpy.ones(length_bytes // 4, numpy.float32))
    act, cut = {
        "call": (lambda: call(session, add), 1),
        "pipelined": (lambda: pipelined(session, add), PIPELINED),
        "pipelined_kept": (lambda: pipelined_kept(session, add), PIPELINED),
        "fetch": (lambda: array.debug_get_from_remote(WORKERS - 1), 1),
    }[case]
    for _ in range(min(WARM_ROUNDS, rounds)):
        act()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter_ns()
        act()
        times.append((time.perf_counter_ns() - begun) // cut)
    return times


def main(case, kind, rounds, length_bytes):
    if case == "start":
        times = [start(kind) for _ in range(rounds)]
    else:
        session = begin(kind)
        times = measure(session, case, rounds, length_bytes)
        session.shutdown()
    print(length_bytes, *times, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
