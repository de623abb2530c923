"""What programs of torch do with a process group, each as a function of rank and size that returns tensors or values.

`main(RANK, FOLDER)` is one of four processes that run them all, in their order: first two by two, over sheave and over
gloo at the same time, and then all four, over the one and then the other.
"""

import datetime
import tempfile
import time
import traceback

import torch
import torch.distributed as dist
from torch import nn

FEATURES = {}


def feature(act):
    FEATURES[act.__name__] = act
    return act


def numbers(rank, *shape, dtype=torch.float32):
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 7 + rank + 1).reshape(shape).to(dtype)


def model(rank=0, *layers):
    torch.manual_seed(rank)
    return nn.Sequential(*(layers or (nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))))


def trained(module, rank, steps=2, inputs=None):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        module(numbers(rank, 4, 8) if inputs is None else inputs).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in module.parameters()]


@feature
def reductions(rank, size):
    results = []
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32):
        for op in ("SUM", "PRODUCT", "MIN", "MAX"):
            tensor = numbers(rank, 5, dtype=dtype)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            results.append(tensor)
    for op in ("BAND", "BOR", "BXOR"):
        tensor = numbers(rank, 5, dtype=torch.int64)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
        results.append(tensor)
    for shape in ((), (0,)):
        tensor = numbers(rank, *shape)
        dist.all_reduce(tensor)
        results.append(tensor)
    average = numbers(rank, 3)
    dist.all_reduce(average, dist.ReduceOp.AVG)
    imaginary = torch.complex(numbers(rank, 2), numbers(rank, 2))
    dist.all_reduce(imaginary)
    truth = torch.tensor([rank == 0, False, True])
    dist.all_reduce(truth)
    return [*results, average, imaginary, truth]


@feature
def collectives(rank, size):
    own = numbers(rank, 2, 3)
    listed = [torch.zeros(2, 3) for _ in range(size)]
    dist.all_gather(listed, own)
    single = torch.zeros(2 * size, 3)
    dist.all_gather_into_tensor(single, own)
    gathered = [torch.zeros(2, 3) for _ in range(size)] if rank == 1 else None
    dist.gather(own, gathered, dst=1)
    scattered = torch.zeros(2)
    dist.scatter(scattered, [numbers(other, 2) for other in range(size)] if rank == 1 else None, src=1)
    piece, cut = torch.zeros(2), torch.zeros(2)
    dist.reduce_scatter(piece, [numbers(rank + other, 2) for other in range(size)])
    dist.reduce_scatter_tensor(cut, numbers(rank, 2 * size))
    rooted = numbers(rank, 3)
    dist.reduce(rooted, dst=0)
    given = numbers(rank, 3)
    dist.broadcast(given, src=1)
    dist.barrier()
    coalesced = [numbers(rank, 3), numbers(rank, 2, 2)]
    with dist.distributed_c10d._coalescing_manager():
        for tensor in coalesced:
            dist.all_reduce(tensor)
    return [*listed, single, gathered, scattered, piece, cut, rooted if rank == 0 else None, given, *coalesced]


@feature
def exchanges(rank, size):
    equal, uneven = torch.zeros(2 * size), torch.zeros(sum(other + 1 for other in range(size)))
    dist.all_to_all_single(equal, numbers(rank, 2 * size))
    dist.all_to_all_single(
        uneven, numbers(rank, size * (rank + 1)), [other + 1 for other in range(size)], [rank + 1] * size
    )
    return [equal, uneven]


@feature
def point_to_point(rank, size):
    following, before = (rank + 1) % size, (rank - 1) % size
    received = torch.zeros(3)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, numbers(rank, 3), following), dist.P2POp(dist.irecv, received, before)]
    )
    for work in works:
        work.wait()
    tagged = torch.zeros(2)
    if rank == 0:
        dist.send(numbers(7, 2), 1, tag=3)
    elif rank == 1:
        assert dist.recv(tagged, tag=3) == 0
    objects = [{"rank": 0}, "text"] if rank == 0 else [None, None]
    if rank == 0:
        dist.send_object_list(objects, dst=1)
    elif rank == 1:
        dist.recv_object_list(objects, src=0)
    return [received, tagged, objects if rank < 2 else None]


@feature
def objects(rank, size):
    everybody, broadcast, scattered = [None] * size, [{"rank": rank}], [None]
    dist.all_gather_object(everybody, {"rank": rank, "text": "x" * (rank * 10)})
    dist.broadcast_object_list(broadcast, src=1)
    dist.scatter_object_list(scattered, list(range(size)) if rank == 0 else None, src=0)
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank * 2, gathered, dst=0)
    return [everybody, broadcast, scattered, gathered]


@feature
def groups(rank, size):
    pair = dist.new_group([1, 0])
    result = torch.tensor([float(rank)])
    if rank < 2:
        dist.all_reduce(result, group=pair)
    # With others outside, torch itself counts its groups differently on them.
    local = dist.new_group([0, 1], use_local_synchronization=True) if size == 2 else None
    if local is not None:
        dist.broadcast(result, src=1, group=local)
    mesh = dist.init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("outer", "inner"))
    dist.all_reduce(result, group=mesh["inner"].get_group())
    return [result, mesh["inner"].get_local_rank()]


@feature
def data_parallel(rank, size):
    module = nn.parallel.DistributedDataParallel(model(rank))
    results = trained(module, rank)
    unused = nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 4)])

    class Some(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = unused

        def forward(self, inputs):
            return self.layers[0](inputs)

    torch.manual_seed(1)
    for parameter in unused.parameters():
        nn.init.uniform_(parameter)
    found = nn.parallel.DistributedDataParallel(Some(), find_unused_parameters=True)
    results += trained(found, rank)
    joined = nn.parallel.DistributedDataParallel(model(3))
    with joined.join():
        for _ in range(rank + 1):
            joined(numbers(rank, 4, 8)).sum().backward()
    return results + [parameter.grad for parameter in joined.parameters()]


@feature
def hooks(rank, size):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    halved = nn.parallel.DistributedDataParallel(model())
    halved.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
    results = trained(halved, rank)
    powered = nn.parallel.DistributedDataParallel(model())
    state = powerSGD_hook.PowerSGDState(dist.group.WORLD, matrix_approximation_rank=1, start_powerSGD_iter=2)
    powered.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return results + trained(powered, rank, steps=4)


@feature
def sparse_gradients(rank, size):
    torch.manual_seed(0)
    module = nn.parallel.DistributedDataParallel(nn.Embedding(10, 3, sparse=True))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module(torch.tensor([rank, 5, 5])).sum().backward()
    optimizer.step()
    return [module.module.weight.detach()]


@feature
def zero_redundancy(rank, size):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    module = nn.parallel.DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.Adam, lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        module(numbers(rank, 4, 8)).sum().backward()
        optimizer.step()
    return [parameter.detach() for parameter in module.parameters()]


@feature
def fully_sharded(rank, size):
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    module = model()
    fully_shard(module)
    results = [parameter.full_tensor() for parameter in trained(module, rank)]
    from_group = model()
    fully_shard(from_group).set_allocate_memory_from_process_group_for_comm(True)
    results += [parameter.full_tensor() for parameter in trained(from_group, rank)]
    older = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    return results + trained(older, rank)


@feature
def distributed_tensors(rank, size):
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = dist.init_device_mesh("cpu", (size,))
    whole = numbers(0, 4, 8)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    results = [sharded.full_tensor(), sharded.redistribute(mesh, [Shard(1)]).to_local()]
    partial = torch.distributed.tensor.DTensor.from_local(numbers(rank, 4, 4), mesh, [Partial()])
    results += [partial.redistribute(mesh, [Shard(0)]).to_local(), partial.redistribute(mesh, [Replicate()]).to_local()]
    parallel = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return [*results, parallel(numbers(0, 4, 8)).detach()]


@feature
def checkpoints(rank, size):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Shard, distribute_tensor

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    mesh = dist.init_device_mesh("cpu", (size,))
    saved = {"whole": distribute_tensor(numbers(0, 4, 3), mesh, [Shard(0)]), "step": 3}
    dcp.save(saved, checkpoint_id=folder[0])
    loaded = {"whole": distribute_tensor(torch.zeros(4, 3), mesh, [Shard(0)]), "step": 0}
    dcp.load(loaded, checkpoint_id=folder[0])
    return [loaded["whole"].full_tensor(), loaded["step"]]


@feature
def pipelines(rank, size):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(rank)
    stage = PipelineStage(nn.Linear(8, 8), rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda output, target: (output - target).square().mean())
    if rank == 0:
        schedule.step(numbers(0, 4, 8))
        return [parameter.grad for parameter in stage.submod.parameters()]
    losses = []
    if rank == size - 1:
        schedule.step(target=numbers(1, 4, 8), losses=losses)
    else:
        schedule.step()
    return [*(parameter.grad for parameter in stage.submod.parameters()), *(loss.detach() for loss in losses)]


@feature
def compiled(rank, size):
    import torch.distributed._functional_collectives as functional

    @torch.compile(fullgraph=True, backend="aot_eager")
    def act(tensor):
        summed = functional.all_reduce(tensor, "sum", dist.group.WORLD)
        return functional.all_gather_tensor(summed * 2, 0, dist.group.WORLD) + 1

    eager = functional.reduce_scatter_tensor(numbers(rank, 2 * size), "sum", 0, dist.group.WORLD)
    several = functional.all_reduce_coalesced([numbers(rank, 2), numbers(rank, 3)], "sum", dist.group.WORLD)
    return [act(numbers(rank, 3)), eager + 0, *(tensor + 0 for tensor in several)]


@feature
def inference(rank, size):
    with torch.inference_mode():
        own, strided = numbers(rank, 3), numbers(rank, 4)
        work = dist.all_reduce(own, async_op=True)
        work.wait()
        listed = [torch.zeros(4) for _ in range(size)]
        dist.all_gather(listed, strided)
    return [own, *listed]


def outcomes_of(backend, rank, size, folder):
    """Be a rank of a world that runs the features for as long as they succeed; write what they have come to."""
    timeout = datetime.timedelta(seconds=60)
    store = f"file://{folder}/store-{backend}-{size}"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=size, timeout=timeout)
    if backend == "sheave":
        import sheave.torch

        sheave.torch.make_default()
    outcomes = {}
    for name, act in FEATURES.items():
        # The last line tells what it was at, should it crash.
        print(f"{backend}, rank {rank} of {size}: {name}", flush=True)
        begun = time.monotonic()
        try:
            outcomes[name] = (None, act(rank, size))
        except Exception:
            outcomes[name] = (traceback.format_exc(), None)
            break
        print(f"{time.monotonic() - begun:.2f} s", flush=True)
    torch.save(outcomes, f"{folder}/{backend}-{size}-{rank}")
    dist.destroy_process_group()


def main(rank, folder):
    rank = int(rank)
    default = dist.Backend.default_device_backend_map["cpu"]
    for backend, place, size in [(("sheave", "gloo")[rank // 2], rank % 2, 2), ("sheave", rank, 4), ("gloo", rank, 4)]:
        outcomes_of(backend, place, size, folder)
        dist.Backend.default_device_backend_map["cpu"] = default
