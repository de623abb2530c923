"""How process groups of sheave end: deaths of ranks on every path, timeouts, exits, and what torch makes of them."""

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

pytestmark = pytest.mark.timeout(120)

BEGIN = """
import datetime, os, signal, sys, time
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
timeout = datetime.timedelta(seconds=90)
dist.init_process_group("sheave", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout)
"""

PATHS = {
    "sync": "dist.all_reduce(torch.ones(3))",
    "async": "dist.all_reduce(torch.ones(3), async_op=True).wait()",
    "future": "dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()",
    "functional": "functional.all_reduce(torch.ones(3), 'sum', dist.group.WORLD).wait()",
    "receive": "dist.recv(torch.ones(3), src=1)",
    "backward": "module(torch.ones(2, 4)).sum().backward()",
}


def both(start, tmp_path, source, *arguments, size=2, **environment):
    store = tmp_path / "store"
    return [start(BEGIN + source, rank, size, store, *arguments, **environment) for rank in range(size)]


def test_a_death_is_raised_on_every_path_with_rank_and_operation(start, tmp_path):
    source = f"""
paths = {PATHS!r}
module = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
groups = {{path: dist.new_group([0, 1]) for path in paths}}
dist.barrier()
if rank == 1:
    print("ready")
    time.sleep(600)
print("ready")
import sheave
for path, act in paths.items():
    sys.stdin.readline() if path == "sync" else None
    begun = time.monotonic()
    try:
        exec(act)
        print(path, "returned")
    except RuntimeError as error:
        is_known = isinstance(error, sheave.PeerLost) and isinstance(error, ConnectionError)
        print(path, is_known, "PeerLost" in type(error).__name__ + str(error), "rank-1" in str(error),
              time.monotonic() - begun < 30, flush=True)
os._exit(0)
"""
    survivor, victim = both(start, tmp_path, source)
    assert (survivor.line(), victim.line()) == ("ready", "ready")
    survivor.tell()
    victim.process.kill()
    said = dict(survivor.line().split(" ", 1) for _ in PATHS)
    for path in ("sync", "async", "functional", "receive"):
        assert said[path] == "True True True True", said
    # C++ hands the error on as text.
    for path in ("future", "backward"):
        assert said[path].endswith("True True True"), said


def test_a_rank_that_is_missing_is_named_by_the_timeout(start, tmp_path):
    source = """
groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
if rank == 1:
    sys.stdin.readline()
    os._exit(0)
import sheave
# Zero is a timeout too, not that of the group.
for group, seconds in zip(groups, (1, 0)):
    begun = time.monotonic()
    try:
        dist.monitored_barrier(group, timeout=datetime.timedelta(seconds=seconds))
        print("returned")
    except RuntimeError as error:
        print(isinstance(error, sheave.DeadlineExceeded), isinstance(error, TimeoutError), "rank-1" in str(error),
              time.monotonic() - begun < 60)
os._exit(0)
"""
    waits, _ = both(start, tmp_path, source)
    assert [waits.line(), waits.line()] == ["True True True True"] * 2


def test_a_program_may_end_without_destroying_its_group_and_with_works_that_nobody_waited_for(start, tmp_path):
    source = """
work = dist.all_reduce(torch.ones(3), async_op=True)
left = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
dist.barrier()
"""
    for program in both(start, tmp_path, source):
        status, _, err = program.finish(timeout=60)
        assert status == 0, err


def test_a_group_can_be_made_again_and_with_the_wrapper_of_torch_that_checks(start, tmp_path):
    source = """
dist.destroy_process_group()
for again in ("sheave", "cpu:sheave,cuda:gloo"):
    dist.init_process_group(again, init_method=f"file://{store}.{again[:3]}", rank=rank, world_size=size)
    tensor = torch.full((2,), float(rank + 1))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [3.0, 3.0], tensor
    dist.barrier()
    dist.destroy_process_group()
print("done")
"""
    for program in both(start, tmp_path, source, TORCH_DISTRIBUTED_DEBUG="DETAIL"):
        status, out, err = program.finish(timeout=60)
        assert (status, out) == (0, "done\n"), err


def test_strided_tensors_come_out_right_where_one_rank_alone_is_strided(start, tmp_path):
    source = """
whole = torch.zeros(4, 4)
own = whole[:, ::2] if rank == 0 else torch.zeros(4, 2)
own.copy_(torch.arange(8.0).reshape(4, 2))
with torch.inference_mode():
    dist.all_reduce(own, async_op=True).wait()
assert torch.equal(own, torch.arange(8.0).reshape(4, 2) * 2), own
assert whole[:, 1::2].abs().sum() == 0
gathered = [torch.zeros(2, 3).t() for _ in range(size)]
dist.all_gather(gathered, torch.arange(6.0).reshape(3, 2) + rank)
for other, tensor in enumerate(gathered):
    assert torch.equal(tensor, torch.arange(6.0).reshape(3, 2) + other), tensor
dist.destroy_process_group()
print("done")
"""
    for program in both(start, tmp_path, source):
        status, out, err = program.finish(timeout=60)
        assert (status, out) == (0, "done\n"), err


def test_out_of_sync_and_senseless_arguments_are_errors_of_torch(start, tmp_path):
    source = """
import sheave
try:
    dist.all_reduce(torch.ones(2, dtype=torch.int64), dist.ReduceOp.AVG)
except RuntimeError as error:
    print(isinstance(error, sheave.Unsupported))
premultiplied = torch.ones(2)
dist.all_reduce(premultiplied, dist._make_nccl_premul_sum(3.0))
print(premultiplied.tolist())
try:
    dist.all_reduce(torch.ones(2 + rank))
except RuntimeError as error:
    print(isinstance(error, sheave.Mismatch), isinstance(error, ValueError))
os._exit(0)
"""
    for program in both(start, tmp_path, source):
        assert [program.line() for _ in range(3)] == ["True", "[6.0, 6.0]", "True True"]


def test_sheave_itself_imports_no_torch(start):
    program = start("import sheave, sheave.meet, sys; print('torch' in sys.modules)")
    assert program.line() == "False"


def test_the_backend_is_found_by_its_entry_point():
    from importlib.metadata import entry_points

    found = entry_points(group="torch.distributed.backends", name="sheave")
    assert [point.value for point in found] == ["sheave.torch:register"]
