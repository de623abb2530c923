"""Times push and pull of MXNet's KVStore over loopback, to set beside the store of sheave.

    python3 -m venv /tmp/mxnet && /tmp/mxnet/bin/pip install mxnet==1.9.1 numpy==1.23.5
    /tmp/mxnet/bin/python benches/peers/mxnet_store.py --servers 1 --workers 2

Starts a scheduler, servers and workers as processes of this machine, for each job anew, and prints a JSON line per
case: the median of rank 0's times for one push, one pull and the wait for it. A job of MXNet hangs at its start now and
then; such a job is ended and tried again, and only jobs that complete are reported. `sheave bench store` runs it.
"""

import argparse
import ctypes
import json
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import time

# Name, elements of f32, rounds.
DENSE = [
    ("1KiB", 256, 300),
    ("64KiB", 16 << 10, 300),
    ("1MiB", 256 << 10, 100),
    ("5.76MB", 1_440_000, 50),
    ("64MiB", 16 << 20, 5),
]
JOBS = [f"{kind}{what}" for what in ("", "_2bit", "_rows", "_keys") for kind in ("dist_sync", "dist_async")]
START_TIMEOUT_S = 20
WARM_UP_ROUNDS = 3
KEYS, KEY_ELEMENTS = 10_000, 16
ROW_ELEMENTS, ROWS_PUSHED = 64, 10_000


def timed(rounds, work):
    """Seconds of each round after a few that do not count."""
    times = []
    for index in range(max(rounds // options.thrift, 3) + WARM_UP_ROUNDS):
        start = time.perf_counter()
        work()
        if index >= WARM_UP_ROUNDS:
            times.append(time.perf_counter() - start)
    return times


def dense(mx, store, report, cases):
    for number, (name, elements, rounds) in enumerate(cases):
        gradient, place = mx.nd.ones((elements,)), mx.nd.zeros((elements,))
        store.init(number, place)

        def round_trip():
            store.push(number, gradient)
            store.pull(number, out=place)
            place.wait_to_read()

        report(name, elements * 4, timed(rounds, round_trip))


def many_keys(mx, store, report):
    keys = list(range(1000, 1000 + KEYS))
    gradients = [mx.nd.ones((KEY_ELEMENTS,)) for _ in keys]
    places = [mx.nd.zeros((KEY_ELEMENTS,)) for _ in keys]
    store.init(keys, places)

    def round_trip():
        store.push(keys, gradients)
        store.pull(keys, out=places)
        mx.nd.waitall()

    report("10000x64B", KEY_ELEMENTS * 4, timed(6, round_trip))


def rows(mx, store, report, table_rows):
    import numpy

    shape = (table_rows, ROW_ELEMENTS)
    random = numpy.random.RandomState(store.rank)
    ids = numpy.sort(random.choice(table_rows, ROWS_PUSHED, replace=False)).astype(numpy.int64)
    store.init(0, mx.nd.ones(shape).tostype("row_sparse"))
    values = mx.nd.ones((ROWS_PUSHED, ROW_ELEMENTS))
    gradient = mx.nd.sparse.row_sparse_array((values, mx.nd.array(ids, dtype="int64")), shape=shape)
    place = mx.nd.sparse.zeros("row_sparse", shape)
    wanted = mx.nd.array(ids, dtype="int64")

    def round_trip():
        store.push(0, gradient)
        store.row_sparse_pull(0, out=place, row_ids=wanted)
        place.wait_to_read()

    report(f"{ROWS_PUSHED}_of_{table_rows}_rows", ROWS_PUSHED * ROW_ELEMENTS * 4, timed(20, round_trip))


def work(job):
    """One worker of one job."""
    workers, servers = options.workers, options.servers
    import mxnet as mx

    store = mx.kv.create("_".join(job.split("_")[:2]))
    print("started", flush=True)
    if job.endswith("_2bit"):
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    # An asynchronous store cannot be without one, and rows that are not pushed would vanish.
    if store.rank == 0 and (job.startswith("dist_async") or job.endswith("_rows")):
        store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.01))
    store._barrier()

    def report(case, length_bytes, times):
        store._barrier()
        if store.rank != 0:
            return
        cuts = statistics.quantiles(times, n=10)
        line = {"peer": f"mxnet {mx.__version__}", "job": job, "case": case, "bytes": length_bytes}
        line |= {"ranks": workers, "servers": servers, "rounds": len(times)}
        line |= {f"p{tenth * 10}_us": round(cuts[tenth - 1] * 1e6, 1) for tenth in (1, 5, 9)}
        if options.times:
            line["times_us"] = [round(time_s * 1e6, 1) for time_s in times]
        print(json.dumps(line), flush=True)

    if job.endswith("_rows"):
        rows(mx, store, report, options.table_rows)
    elif job.endswith("_2bit"):
        dense(mx, store, report, [DENSE[3]])
    elif job.endswith("_keys"):
        many_keys(mx, store, report)
    else:
        dense(mx, store, report, DENSE)


def end_with_parent():
    """Asks the kernel to kill this process when its parent is gone (prctl, PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def attempt(job, timeout_s):
    """The lines of rank 0, or none if the job did not complete in time."""
    environment = dict(os.environ, DMLC_PS_ROOT_URI="127.0.0.1", DMLC_PS_ROOT_PORT=str(free_port()))
    environment |= {"DMLC_NODE_HOST": "127.0.0.1", "DMLC_NUM_SERVER": str(options.servers)}
    environment |= {"DMLC_NUM_WORKER": str(options.workers)}
    worker = [sys.executable, os.path.abspath(__file__), "--work", job, "--table-rows", str(options.table_rows)]
    worker += ["--servers", str(options.servers), "--workers", str(options.workers), "--thrift", str(options.thrift)]
    worker += ["--times"] * options.times
    # A scheduler and a server never come back from the import before the job ends.
    other = [sys.executable, "-c", "import mxnet"]
    started = []

    def start(role, command, **pipes):
        environment_of = dict(environment, DMLC_ROLE=role)
        started.append(subprocess.Popen(command, env=environment_of, preexec_fn=end_with_parent, **pipes))
        return started[-1]

    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        for role in ["scheduler"] + ["server"] * options.servers:
            start(role, other, **quiet)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        workers = [start("worker", worker, **pipes) for _ in range(options.workers)]
        for process in workers:
            if not select.select([process.stdout], [], [], START_TIMEOUT_S)[0]:
                return []
        deadline = time.monotonic() + timeout_s
        lines = []
        for process in workers:
            # The lines are few, so no pipe runs full while another one is read.
            out, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            lines += [line for line in out.splitlines() if line != "started"]
            if process.returncode != 0:
                return []
        return lines
    except subprocess.TimeoutExpired:
        return []
    finally:
        for process in started:
            process.kill()
            process.wait()


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--jobs", nargs="*", choices=JOBS, default=JOBS)
    parser.add_argument("--table-rows", type=int, default=1_000_000)
    parser.add_argument("--attempts", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one attempt of a job")
    parser.add_argument("--thrift", type=int, default=1, help="divides the rounds")
    parser.add_argument("--times", action="store_true", help="print the time of every round")
    parser.add_argument("--work", choices=JOBS, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    if options.work:
        return work(options.work)
    # What was started is ended before this process is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    failed = []
    for job in options.jobs:
        for number in range(options.attempts):
            lines = attempt(job, options.timeout)
            if lines:
                print("\n".join(lines), flush=True)
                break
            print(f"{job}: attempt {number + 1} did not complete", file=sys.stderr)
        else:
            failed.append(job)
    return f"never completed: {', '.join(failed)}" if failed else None


if __name__ == "__main__":
    options = read_options()
    sys.exit(main())
