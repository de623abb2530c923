"""Times a table of versions over torch.distributed.rpc, as benches/python/servers.py does that of sheave.

    python benches/peers/torch_servers.py push_pull 100

Arguments: a case and the number of rounds; SHEAVE_TRANSPORT=tcp leaves it nothing but TCP. Prints a line: the bytes,
and nanoseconds of every round. The table is a dictionary under a lock in the process of rank 0, which clients reach by
`rpc_sync`. `sheave bench servers --torch PYTHON` runs it.
"""

import os
import socket
import sys
import threading
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing

WARM_ROUNDS = 20
ACCEPTED = 1000
SHAPES = {
    "conv1": (32, 4, 8, 8),
    "conv2": (64, 32, 4, 4),
    "conv3": (64, 64, 3, 3),
    "full": (2652, 512),
    "head": (512, 6),
}

lock = threading.Lock()
objects = {}


def push(key, value, version, previous):
    """Accepts what was made from the newest version: whether it did, and which is the newest."""
    with lock:
        newest = objects[key][1] if key in objects else None
        if newest != previous:
            return False, newest
        objects[key] = (value, version)
        return True, version


def pull(key, newer_than):
    with lock:
        found = objects.get(key)
        return None if found is None or found[1] == newer_than else found


def measure(act, rounds):
    for _ in range(min(WARM_ROUNDS, rounds)):
        act()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter_ns()
        act()
        times.append(time.perf_counter_ns() - begun)
    return times


def time_state(case, rounds):
    state = {name: torch.ones(shape) for name, shape in SHAPES.items()}
    own = {name: torch.empty(shape) for name, shape in SHAPES.items()}
    version = 0

    def push_and_pull():
        nonlocal version
        accepted, version = rpc.rpc_sync("rank-0", push, ("state", state, version + 1, version or None))
        assert accepted
        for name, tensor in rpc.rpc_sync("rank-0", pull, ("state", None))[0].items():
            own[name].copy_(tensor)

    def pull_unchanged():
        assert rpc.rpc_sync("rank-0", pull, ("state", version)) is None

    push_and_pull()
    act = push_and_pull if case == "push_pull" else pull_unchanged
    return sum(tensor.nbytes for tensor in state.values()), measure(act, rounds)


def count_together(rounds):
    known, began, first, times = None, None, 0, []
    while (known or 0) < (rounds + 1) * ACCEPTED:
        _, known = rpc.rpc_sync("rank-0", push, ("count", 0, (known or 0) + 1, known))
        if known >= first + ACCEPTED:
            now = time.perf_counter_ns()
            if began is not None:
                times.append((now - began) // (known - first))
            began, first = now, known
    return times


def take_part(rank, port, ranks, case, rounds):
    torch.set_num_threads(1)
    os.environ.update(GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    way = {"_transports": ["uv"], "_channels": ["basic"]} if os.environ.get("SHEAVE_TRANSPORT") == "tcp" else {}
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", num_worker_threads=16, **way)
    rpc.init_rpc(f"rank-{rank}", rank=rank, world_size=ranks, rpc_backend_options=options)
    if rank > 0:
        length_bytes, times = (0, count_together(rounds)) if case == "accepted" else time_state(case, rounds)
        if rank == 1:
            print(length_bytes, *times, flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = 5 if sys.argv[1] == "accepted" else 2
    torch.multiprocessing.spawn(take_part, (port, ranks, sys.argv[1], int(sys.argv[2])), nprocs=ranks)
