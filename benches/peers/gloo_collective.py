"""Times the collectives of torch.distributed over Gloo, as README.md beside this file says and as sheave times its own.

    apt-get install python3-torch
    /usr/bin/python3 benches/peers/gloo_collective.py all_reduce 2 200000 8 65536

Arguments: OPERATION RANKS BUDGET_US BYTES... Starts the ranks as processes of this machine and prints a line per size:
the bytes, then nanoseconds per operation of every round, as the slowest rank saw it. With GLOO_COLLECTIVE_PIN=1 in the
environment each rank stays on a core. `sheave bench collective --gloo PYTHON` runs it.
"""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time

WARM_ROUNDS = 3
ROUNDS_MIN = 5
ROUNDS_MAX = 400
# Short operations in a row, timed as one.
LOOPED = 100
REWRITTEN_BYTES = 65536


def tensors_of(operation, count, ranks):
    """Elements of the input and of the output, for tensors of so many elements."""
    counts = {"all_gather": (1, ranks), "gather": (1, ranks), "scatter": (ranks, 1)}
    inputs, outputs = counts.get(operation, (1, 1))
    return count * inputs, count * outputs


def prepare(operation, count, rank, ranks):
    """The input, and a function that takes part in the operation once."""
    import torch
    import torch.distributed as dist

    input_count, output_count = tensors_of(operation, count, ranks)
    tensor, output = torch.zeros(input_count), torch.zeros(output_count)
    if operation in ("all_gather", "gather"):
        pieces = list(output.split(count))
    elif operation == "scatter":
        pieces = list(tensor.split(count))
    turn = 0

    def next_root():
        nonlocal turn
        turn += 1
        return (turn - 1) % ranks

    def reduce():
        # It reduces in place, so the input goes where the output will be.
        output.copy_(tensor)
        dist.reduce(output, next_root())

    def gather():
        root = next_root()
        dist.gather(tensor, pieces if rank == root else None, dst=root)

    def scatter():
        root = next_root()
        dist.scatter(output, pieces if rank == root else None, src=root)

    def ping_pong():
        if rank == 0:
            dist.send(tensor, 1)
            dist.recv(tensor, 1)
        else:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)

    operations = {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "broadcast": lambda: dist.broadcast(tensor, next_root()),
        "all_gather": lambda: dist.all_gather(pieces, tensor),
        "reduce": reduce,
        "gather": gather,
        "scatter": scatter,
        "all_to_all": lambda: dist.all_to_all_single(output, tensor),
        "barrier": dist.barrier,
        "ping_pong": ping_pong,
    }
    return tensor, operations[operation]


def measure(operation, length_bytes, budget_s, rank, ranks):
    """Seconds per operation of every round, as the slowest rank saw it."""
    import torch
    import torch.distributed as dist

    tensor, run = prepare(operation, length_bytes // 4, rank, ranks)
    looped = 1 if length_bytes >= REWRITTEN_BYTES else LOOPED

    def one_round(number):
        if looped == 1:
            tensor.fill_(1.0 + number)
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(looped):
            run()
        return (time.perf_counter() - begun) / looped

    for number in range(WARM_ROUNDS):
        begun = time.perf_counter()
        one_round(number)
        last_s = time.perf_counter() - begun
    rounds = torch.tensor([min(max(int(budget_s / last_s), ROUNDS_MIN), ROUNDS_MAX)])
    dist.broadcast(rounds, 0)
    times = torch.tensor([one_round(number) for number in range(int(rounds))], dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.tolist()


def take_part(rank, meeting, operation, ranks, budget_us, sizes):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if os.environ.get("GLOO_COLLECTIVE_PIN"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    for length_bytes in sizes:
        times = measure(operation, length_bytes, budget_us / 1e6, rank, ranks)
        if rank == 0:
            print(length_bytes, *(round(time_s * 1e9) for time_s in times), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def end_with_parent():
    """Asks the kernel to kill this process when its parent is gone (prctl, PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main(arguments):
    if arguments[0] == "--rank":
        rank, meeting, operation, ranks, budget_us, *sizes = arguments[1:]
        return take_part(int(rank), meeting, operation, int(ranks), int(budget_us), [int(size) for size in sizes])
    # What was started is ended before this process is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    environment = dict(os.environ, GLOO_SOCKET_IFNAME="lo")
    started = []
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        try:
            for rank in range(int(arguments[1])):
                command = [sys.executable, os.path.abspath(__file__), "--rank", str(rank), meeting, *arguments]
                started.append(subprocess.Popen(command, env=environment, preexec_fn=end_with_parent))
            return int(any([process.wait() for process in started]))
        finally:
            for process in started:
                process.kill()
                process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
