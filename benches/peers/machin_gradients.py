"""Times the tree of machin's gradient server: the original's, or that of sheave's face for it.

    python benches/peers/machin_gradients.py 10 --original DIRECTORY    # the folder that holds machin's packages
    python -m sheave.compat machin benches/peers/machin_gradients.py 10

Eight processes are learners, all of them secondaries, and the first of them the primary, as is the default; batches are
of 4, so a step consumes 16 gradients of 5.76 MB. Prints the nanoseconds from one step to the next, divided by 16: what
a gradient takes from its learner into the parameters, while all push and pull as fast as they can. Needs torch.

machin 0.4.2 imports with no torch of today: what it misses and does not use here is put in its place.
"""

import math
import multiprocessing
import os
import socket
import sys
import time
import types

LEARNERS = 8
BATCH = 4
WARM_STEPS = 2
SHAPES = {
    "conv1": (32, 4, 8, 8),
    "conv2": (64, 32, 4, 4),
    "conv3": (64, 64, 3, 3),
    "full": (2652, 512),
    "head": (512, 6),
}


def borrow(directory):
    """Makes the original importable."""
    import torch.distributed
    import torch.multiprocessing.reductions

    # The packages alone, without what their `__init__` imports of reinforcement learning.
    for name in ("machin", "machin.utils"):
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(directory, *name.split("."))]
        sys.modules[name] = package
    sys.modules["GPUtil"] = types.ModuleType("GPUtil")
    torch.multiprocessing.reductions.reduce_event = None
    for name in ("broadcast_multigpu", "all_reduce_multigpu", "reduce_multigpu", "all_gather_multigpu"):
        setattr(torch.distributed, name, None)


def model_of(torch):
    model = torch.nn.Module()
    for name, shape in SHAPES.items():
        parameter = torch.nn.Parameter(torch.zeros(shape))
        parameter.grad = torch.full(shape, 1e-3)
        model.register_parameter(name, parameter)
    return model


def learn(rank, over, ports, steps, directory):
    import torch

    if directory:
        borrow(directory)
    from machin.parallel.distributed import World
    from machin.parallel.server import PushPullGradServerImpl

    torch.set_num_threads(1)
    os.environ.update(GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    first, second = (f"tcp://127.0.0.1:{port}" for port in ports)
    world = World(name=str(rank), rank=rank, world_size=LEARNERS, dist_init_method=first, rpc_init_method=second)
    group = world.create_rpc_group("learners", [str(other) for other in range(LEARNERS)])
    impl = PushPullGradServerImpl("gradients", group, reduce_batch_size=BATCH)
    if rank == 0:
        managed = model_of(torch)
        impl.manage_model(managed, torch.optim.SGD(managed.parameters(), lr=1e-3))
    impl.start()
    group.barrier()
    server, model, seen = group.get_paired("gradients").to_here(), model_of(torch), []
    while not over.is_set():
        for name, parameter in model.named_parameters():
            parameter.grad = torch.full(SHAPES[name], 1e-3)
        try:
            server.push(model)
        except Exception:
            # Whoever ends first takes its part of the tree along.
            if not over.is_set():
                raise
        version = managed.pp_version if rank == 0 else 0
        if version >= WARM_STEPS and (not seen or version > seen[-1][0]):
            seen.append((version, time.perf_counter_ns()))
            if version >= WARM_STEPS + steps:
                over.set()
    if rank == 0:
        pairs = zip(seen, seen[1:])
        each = [(end - begin) // ((after - before) * BATCH**2) for (before, begin), (after, end) in pairs]
        print(sum(4 * math.prod(shape) for shape in SHAPES.values()), *each, flush=True)
    # Not even machin's own tests end its worlds in order.
    os._exit(0)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


if __name__ == "__main__":
    directory = sys.argv[3] if sys.argv[2:3] == ["--original"] else ""
    context = multiprocessing.get_context("fork")
    arguments = (context.Event(), (free_port(), free_port()), int(sys.argv[1]), directory)
    processes = [context.Process(target=learn, args=(rank, *arguments)) for rank in range(LEARNERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(process.exitcode or 0 for process in processes))
