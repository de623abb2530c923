"""Times calls of torch.distributed.rpc between two processes, as benches/python/rpc.py does those of sheave.

    python benches/peers/torch_rpc.py pickled 500 0

Arguments: a case, the number of rounds, and bytes; SHEAVE_TRANSPORT=tcp leaves it nothing but TCP. Prints a line: the
bytes, and nanoseconds of every round. torch has no services by name: `registered` is `pickled` here. `sheave bench rpc
--torch PYTHON` runs it.
"""

import os
import socket
import sys
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing

WARM_ROUNDS = 20
OUTSTANDING = 100


def nothing(number=0):
    return number


def echo(array):
    return array


def many():
    torch.futures.wait_all([rpc.rpc_async("rank-1", nothing, (1,)) for _ in range(OUTSTANDING)])


def measure(act, cut, rounds):
    for _ in range(min(WARM_ROUNDS, rounds)):
        act()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter_ns()
        act()
        times.append((time.perf_counter_ns() - begun) // cut)
    return times


def take_part(rank, port, case, rounds, length_bytes):
    torch.set_num_threads(1)
    os.environ.update(GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    way = {"_transports": ["uv"], "_channels": ["basic"]} if os.environ.get("SHEAVE_TRANSPORT") == "tcp" else {}
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", num_worker_threads=16, **way)
    rpc.init_rpc(f"rank-{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        array = torch.ones(length_bytes // 4)
        act, cut = {
            "registered": (lambda: rpc.rpc_sync("rank-1", nothing, (1,)), 1),
            "pickled": (lambda: rpc.rpc_sync("rank-1", int), 1),
            "echo": (lambda: rpc.rpc_sync("rank-1", echo, (array,)), 1),
            "outstanding": (many, OUTSTANDING),
        }[case]
        print(length_bytes, *measure(act, cut, rounds), flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = (port, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    torch.multiprocessing.spawn(take_part, arguments, nprocs=2)
