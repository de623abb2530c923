"""Times torch.distributed over a backend, sheave or gloo. `sheave bench torch` runs it, as processes of a job:

    sheave launch -n 2 -- python benches/python/process_group.py all_reduce sheave 200 /tmp/meet
    sheave launch -n 4 -- python benches/python/process_group.py init gloo 1 /tmp/meet-again

Arguments: a case, the backend, the number of rounds, and a file that is not there yet, by which the ranks meet. Rank 0
prints lines: bytes, and nanoseconds of rounds as the slowest rank saw them.

`all_reduce` sums f32 tensors in torch's own memory in place, of 8 bytes (a hundred in a row), 1 MiB and 64 MiB;
`all_reduce_unrecorded` those of 8 bytes alone, and is run without torch's flight recorder; `all_reduce_arena` those
that `sheave.torch.empty` made. `reduce_scatter` and `all_gather` do what FSDP2 does for 16 MiB of unsharded
parameters, and `ddp` is a step of eight layers of 1024 by 1024 with a batch of four, forward, backward and SGD. Long
inputs are written again before each round, outside the timer. `init` is `init_process_group` in a process that has
imported what the backend is in, as it has with torch for those of torch's own; `init_by_name` in one that has imported
torch alone, which loads the backend in a rank; `init_and_barrier` is the first one, and a barrier, for all backends
link ranks when they first need it.
"""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

WARM_ROUNDS = 3
# Short operations in a row, timed as one.
LOOPED = 100
PRINTED = 100
SHORT_BYTES, MIDDLE_BYTES, LONG_BYTES = 8, 1 << 20, 64 << 20
SHARDED_BYTES = 16 << 20
# So many times fewer rounds of the longest ones.
THRIFT = 10
ROUNDS_MIN = 3
LAYERS, WIDTH, BATCH = 8, 1024, 4
TIMEOUT = datetime.timedelta(seconds=100)


def report(length_bytes, times_ns):
    """Prints lines that the launcher prints whole, behind the name of the process."""
    for first in range(0, len(times_ns), PRINTED):
        print("times:", length_bytes, *times_ns[first : first + PRINTED], flush=True)


def slowest(times_ns):
    """What the slowest rank saw of each; the same on every rank."""
    times = torch.tensor(times_ns)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.tolist()


def measure(length_bytes, act, rounds, looped=1, before=lambda: None):
    times_ns = []
    for _ in range(WARM_ROUNDS + rounds):
        before()
        dist.barrier()
        begun = time.perf_counter_ns()
        for _ in range(looped):
            act()
        times_ns.append((time.perf_counter_ns() - begun) // looped)
    times_ns = slowest(times_ns[WARM_ROUNDS:])
    if dist.get_rank() == 0:
        report(length_bytes, times_ns)


def check(tensor, value):
    if not (tensor == value).all():
        raise ValueError(f"a result is wrong: expected {value} in {tensor}")


def time_all_reduce(rounds, sizes, make=torch.zeros):
    for length_bytes in sizes:
        tensor = make(length_bytes // 4)
        if length_bytes == SHORT_BYTES:
            tensor.zero_()
            measure(length_bytes, lambda tensor=tensor: dist.all_reduce(tensor), rounds, LOOPED)
        else:
            few = max(rounds // THRIFT, ROUNDS_MIN) if length_bytes == LONG_BYTES else rounds
            before = lambda tensor=tensor: tensor.fill_(1.0)  # noqa: E731
            measure(length_bytes, lambda tensor=tensor: dist.all_reduce(tensor), few, before=before)
            check(tensor, dist.get_world_size())


def time_sharded(case, rounds):
    whole = torch.zeros(SHARDED_BYTES // 4)
    shard = torch.zeros(whole.numel() // dist.get_world_size())
    if case == "all_gather":
        measure(SHARDED_BYTES, lambda: dist.all_gather_into_tensor(whole, shard), rounds, before=lambda: shard.fill_(1))
        check(whole, 1)
    else:
        measure(SHARDED_BYTES, lambda: dist.reduce_scatter_tensor(shard, whole), rounds, before=lambda: whole.fill_(1))
        check(shard, dist.get_world_size())


def time_ddp(rounds):
    torch.manual_seed(1)
    layers = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    length_bytes = 4 * sum(parameter.numel() for parameter in layers.parameters())
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(BATCH, WIDTH)

    def step():
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    measure(length_bytes, step, rounds)


def main(case, backend, rounds, meet):
    torch.set_num_threads(1)
    rank, size = int(os.environ["SHEAVE_RANK"]), int(os.environ["SHEAVE_WORLD_SIZE"])
    if backend == "sheave" and case != "init_by_name":
        import sheave.torch
    files = dist.FileStore(meet, size)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        files.set("port", str(store.port))
    else:
        store = dist.TCPStore("127.0.0.1", int(files.get("port")), timeout=TIMEOUT)
    store.set(f"up/{rank}", "")
    store.wait([f"up/{other}" for other in range(size)])
    begun = time.perf_counter_ns()
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    if case == "init_and_barrier":
        dist.barrier()
    took_ns = time.perf_counter_ns() - begun
    match case:
        case "init" | "init_by_name" | "init_and_barrier":
            times_ns = slowest([took_ns])
            if rank == 0:
                report(0, times_ns)
        case "all_reduce":
            time_all_reduce(rounds, [SHORT_BYTES, MIDDLE_BYTES, LONG_BYTES])
        case "all_reduce_unrecorded":
            time_all_reduce(rounds, [SHORT_BYTES])
        case "all_reduce_arena":
            time_all_reduce(rounds, [SHORT_BYTES, MIDDLE_BYTES, LONG_BYTES], sheave.torch.empty)
        case "reduce_scatter" | "all_gather":
            time_sharded(case, rounds)
        case "ddp":
            time_ddp(rounds)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
