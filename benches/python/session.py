"""Times the commands of a session whose controller and workers are Python's. `sheave bench session` runs it:

    python benches/python/session.py call processes 10000 0

Arguments: a case, where the workers are, the number of rounds, and bytes. Prints a line: the bytes, and nanoseconds of
every round. `call` calls a function on two workers and waits for both; `pipelined` calls it many times before it waits,
and its time is that of one; `pipelined_kept` keeps all registers until then; `fetch` gets an array from the last
worker, `fetch_shared` the memory of one that the session has made, which its processes share; `start` begins a session
and waits for its first result.
"""

import os
import socket
import subprocess
import sys
import time

import numpy
import sheave.session

WORKERS = 2
WARM_ROUNDS = 20
PIPELINED = 10_000

OTHERS = []
"""The other nodes."""


def add_one(number):
    return number + 1


def make(length_bytes):
    return numpy.ones(length_bytes // 4, numpy.float32)


def over_sockets():
    """Begin a session of two nodes: this process, and another one that a command starts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "sheave.session_node", "127.0.0.1", str(port), "1"]
    OTHERS.append(subprocess.Popen(words, env={**os.environ, "SHEAVE_TRANSPORT": "tcp"}))
    return sheave.session.SocketSession(WORKERS, 1, 1, "127.0.0.1", port)


def begin(kind):
    return {
        "threads": lambda: sheave.session.ThreadedSession(WORKERS),
        "processes": lambda: sheave.session.ProcessSession(WORKERS),
        "sockets": over_sockets,
    }[kind]()


def end(session):
    session.shutdown()
    while OTHERS:
        if OTHERS.pop().wait(timeout=20) != 0:
            raise RuntimeError("the other node has failed")


def start(kind):
    begun = time.perf_counter_ns()
    session = begin(kind)
    if session.call(add_one, 1).get(WORKERS - 1) != 2:
        raise RuntimeError("one and one is two")
    took = time.perf_counter_ns() - begun
    end(session)
    return took


def pipelined(session, add):
    for number in range(PIPELINED):
        session.call(add, number)
    session.sync()


def pipelined_kept(session, add):
    kept = [session.call(add, number) for number in range(PIPELINED)]
    session.sync()
    del kept


def call(session, add):
    session.call(add, 1)
    session.sync()


def measure(session, case, rounds, length_bytes):
    add = session.function(add_one)
    if case == "fetch_shared":
        array = session.empty((length_bytes // 4,), "float32")
    else:
        array = session.call(make, length_bytes)
    act, cut = {
        "call": (lambda: call(session, add), 1),
        "pipelined": (lambda: pipelined(session, add), PIPELINED),
        "pipelined_kept": (lambda: pipelined_kept(session, add), PIPELINED),
        "fetch": (lambda: array.get(WORKERS - 1), 1),
        "fetch_shared": (lambda: array.get(WORKERS - 1, share=True), 1),
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
        end(session)
    print(length_bytes, *times, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
