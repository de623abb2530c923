"""How process groups of sheave begin and end: stores, deaths of ranks on every path, timeouts, exits, and restarts."""

import importlib.util
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import DEATH_BOUND_S, LIVENESS, SILENCE_BOUND_S, free_root, in_a_wait, wait_until_asleep

# The programs import it, and this process need not.
if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

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
    "all_reduce": ("all_reduce", "dist.all_reduce(ones, group=group)"),
    "async": ("all_reduce", "dist.all_reduce(ones, group=group, async_op=True).wait()"),
    "future": ("all_reduce", "dist.all_reduce(ones, group=group, async_op=True).get_future().wait()"),
    "functional": ("all_reduce", "functional.all_reduce(ones, 'sum', group).wait()"),
    "broadcast": ("broadcast", "dist.broadcast(ones, src=victim, group=group)"),
    "all_gather": ("all_gather", "dist.all_gather([ones, ones.clone()], ones.clone(), group=group)"),
    "objects": ("all_gather", "dist.all_gather_object([None, None], rank, group=group)"),
    "barrier": ("barrier", "dist.barrier(group)"),
    "receive": ("recv", "dist.recv(ones, src=victim, group=group)"),
    "send": ("send", "dist.send(torch.ones(1 << 22), dst=victim, group=group)"),
    "DDP": ("all_reduce", "ddp(torch.ones(2, 4)).sum().backward()"),
    "FSDP": ("all_gather", "fsdp(torch.ones(2, 4))"),
}
"""Ways to wait for a rank: the operation that the error names, and what the other rank of a pair does."""


def both(start, tmp_path, source, *arguments, size=2, **environment):
    store = tmp_path / "store"
    return [start(BEGIN + source, rank, size, store, *arguments, **environment) for rank in range(size)]


DEATHS = f"""
import datetime, os, sys, time
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
rank, size, root = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
timeout = datetime.timedelta(seconds=90)
dist.init_process_group("sheave", init_method=f"tcp://{{root}}", rank=rank, world_size=size, timeout=timeout)
paths, victim, ones = {PATHS!r}, size - 1, torch.ones(3)
pairs = [dist.new_group([place, victim]) for place in range(victim)]
for group, place, (path, (operation, act)) in zip(pairs, range(victim), paths.items()):
    if rank not in (place, victim):
        continue
    if path == "DDP":
        ddp = nn.parallel.DistributedDataParallel(nn.Linear(4, 4), process_group=group)
    if path == "FSDP":
        fsdp = nn.Linear(4, 4)
        mesh = torch.distributed.device_mesh.DeviceMesh.from_group(group, "cpu")
        torch.distributed.fsdp.fully_shard(fsdp, mesh=mesh)
    if rank == place:
        break
dist.barrier()
print("ready")
if rank == victim:
    time.sleep(600)
import sheave
begun = time.monotonic()
try:
    exec(act)
    print("returned")
except RuntimeError as error:
    ended = time.monotonic()
    said = type(error).__name__ + ": " + str(error)
    is_known = isinstance(error, sheave.PeerLost) and isinstance(error, ConnectionError)
    print(begun, ended, is_known, "PeerLost" in said and f"rank-{{victim}}" in said and operation in said, said)
os._exit(0)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_death_is_raised_on_every_path_with_rank_and_operation(start_torch, record_property, how):
    """One that is stopped counts as dead after as long a silence as is borne."""
    size, root = len(PATHS) + 1, free_root()
    silence, bound_s = (LIVENESS, SILENCE_BOUND_S) if how == signal.SIGSTOP else ({}, DEATH_BOUND_S)
    ranks = [start_torch(DEATHS, rank, size, root, **silence) for rank in range(size)]
    assert [rank.line() for rank in ranks] == ["ready"] * size
    *survivors, victim = ranks
    for survivor in survivors:
        wait_until_asleep(survivor)
    killed = time.monotonic()
    os.kill(victim.pid, how)
    for path, survivor in zip(PATHS, survivors, strict=True):
        begun, ended, is_known, is_told, said = survivor.line().split(" ", 4)
        elapsed_s = float(ended) - max(killed, float(begun))
        record_property(f"{path}_s", elapsed_s)
        print(f"{path:12} {elapsed_s:6.3f} s  {said}")
        assert elapsed_s < bound_s, (path, said)
        # C++ hands the error of a future on as text.
        assert (is_known, is_told) == (str(path not in ("future", "DDP")), "True"), (path, said)
        assert "; make a process group of the others to go on without it" in said, (path, said)


REFUSALS = """
import sheave.torch
if rank == 0 and sys.argv[4]:
    def raising(**settings):
        raise MemoryError(sys.argv[4])
    sheave.Mesh = raising
begun = time.monotonic()
try:
    dist.init_process_group("sheave", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=size, timeout=timeout)
    print("it returned")
except (RuntimeError, MemoryError) as error:
    print(type(error).__name__, time.monotonic() - begun < 60, error)
"""


@pytest.mark.parametrize("raised", ["", "no memory for it"])
def test_why_rank_0_makes_no_group_is_told_to_all(start_torch, tmp_path, raised):
    source = BEGIN.rsplit("\n", 2)[0] + REFUSALS
    variables = [{} if raised else {"SHEAVE_TRANSPORT": "pigeons"}, {}, {}]
    ranks = [
        start_torch(source, rank, 3, tmp_path / "store", raised, **own) for rank, own in enumerate(variables)
    ]
    first, *others = [rank.line() for rank in ranks]
    kinds = ("MemoryError", "PeerLost") if raised else ("InvalidArgument", "InvalidArgument")
    assert first.startswith(f"{kinds[0]} True ") and (raised or "pigeons") in first, first
    for other in others:
        assert other.startswith(f"{kinds[1]} True rank 0 has ") and (raised or "pigeons") in other, other


def test_a_rank_that_is_missing_is_named_by_the_timeout(start_torch, tmp_path):
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
    waits, _ = both(start_torch, tmp_path, source)
    assert [waits.line(), waits.line()] == ["True True True True"] * 2


def test_a_program_may_end_without_destroying_its_group_and_with_works_that_nobody_waited_for(start_torch, tmp_path):
    source = """
work = dist.all_reduce(torch.ones(3), async_op=True)
left = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
dist.barrier()
"""
    for program in both(start_torch, tmp_path, source, SHEAVE_TEST_WHOLE_END="1"):
        status, _, err = program.finish(timeout=60)
        assert status == 0, err


def test_a_group_can_be_made_again_and_with_the_wrapper_of_torch_that_checks(start_torch, tmp_path):
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
    for program in both(start_torch, tmp_path, source, TORCH_DISTRIBUTED_DEBUG="DETAIL"):
        status, out, err = program.finish(timeout=60)
        assert (status, out) == (0, "done\n"), err


def test_strided_tensors_come_out_right_where_one_rank_alone_is_strided(start_torch, tmp_path):
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
    for program in both(start_torch, tmp_path, source):
        status, out, err = program.finish(timeout=60)
        assert (status, out) == (0, "done\n"), err


def test_out_of_sync_and_senseless_arguments_are_errors_of_torch(start_torch, tmp_path):
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
    for program in both(start_torch, tmp_path, source):
        assert [program.line() for _ in range(3)] == ["True", "[6.0, 6.0]", "True True"]


def test_a_group_that_is_aborted_ends_for_all_its_ranks(start_torch, tmp_path):
    source = """
pair = dist.new_group([0, 1])
dist.barrier()
if rank == 0:
    work = dist.all_reduce(torch.ones(3), group=pair, async_op=True)
    sys.stdin.readline()
    pair.abort()
import sheave
try:
    work.wait() if rank == 0 else dist.recv(torch.ones(3), src=0, group=pair)
    print("returned")
except RuntimeError as error:
    print(isinstance(error, sheave.Cancelled), "rank 0 has cancelled the group" in str(error), flush=True)
tensor = torch.ones(1)
dist.all_reduce(tensor)
dist.barrier()
print(tensor.item())
dist.destroy_process_group()
"""
    aborts, waits = both(start_torch, tmp_path, source)
    aborts.tell()
    for program in (aborts, waits):
        status, out, err = program.finish(timeout=60)
        assert (status, out) == (0, "True True\n2.0\n"), err


def test_ranks_meet_through_every_store_of_torch(start_torch, tmp_path):
    source = """
import sys, threading, sheave, numpy as np, torch.distributed as dist
shared = dist.HashStore()
host, port = sys.argv[2].split(":")
server = dist.TCPStore(host, int(port), is_master=True, wait_for_workers=False)
stores = {
    "HashStore": lambda: shared,
    "PrefixStore": lambda: dist.PrefixStore("of this job", shared),
    "FileStore": lambda: dist.FileStore(sys.argv[1], 2),
    "TCPStore": lambda: dist.TCPStore(host, int(port), is_master=False),
}
for name, store in stores.items():
    sums = [None, None]

    def run(rank):
        with sheave.Mesh(rank=rank, size=2, meet=store(), join_timeout=60) as mesh:
            sums[rank] = mesh.world.all_gather(np.array([rank]), timeout=60).ravel().tolist()
            mesh.barrier(timeout=60)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(80)
    print(name, sums)
dist.init_process_group("sheave", store=dist.HashStore(), rank=0, world_size=1)
dist.barrier()
dist.destroy_process_group()
"""
    program = start_torch(source, tmp_path / "store", free_root())
    expected = [f"{name} [[0, 1], [0, 1]]" for name in ("HashStore", "PrefixStore", "FileStore", "TCPStore")]
    status, out, err = program.finish(timeout=100)
    assert (status, out.splitlines()) == (0, expected), err


def test_workers_that_load_data_are_forked_beside_the_group(start_torch, tmp_path):
    source = """
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
data = TensorDataset(torch.arange(16.0).reshape(16, 1))
module = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
total = torch.zeros(1)
for epoch in range(2):
    sampler = DistributedSampler(data, size, rank)
    for (batch,) in DataLoader(data, batch_size=2, sampler=sampler, num_workers=2, multiprocessing_context="fork"):
        module(batch).sum().backward()
        total += batch.sum()
dist.all_reduce(total)
print(total.item(), torch.isfinite(module.module.weight.grad).all().item())
dist.destroy_process_group()
"""
    for program in both(start_torch, tmp_path, source):
        status, out, err = program.finish(timeout=100)
        assert (status, out) == (0, "240.0 True\n"), err


def test_a_thousand_groups_are_made_used_and_destroyed_without_more_links(start_torch, tmp_path):
    source = """
def descriptors():
    return len(os.listdir("/proc/self/fd"))
one = torch.ones(1)
dist.all_reduce(one)
before = descriptors()
groups = [dist.new_group([0, 1]) for _ in range(1000)]
for group in groups:
    dist.all_reduce(one.fill_(rank + 1), group=group)
    assert one == 3, one
print(descriptors() - before)
for group in groups:
    dist.destroy_process_group(group)
dist.all_reduce(one.fill_(rank + 1))
print(one.item())
dist.destroy_process_group()
"""
    for program in both(start_torch, tmp_path, source):
        more, total = program.succeed(timeout=100).split()
        # Memory for what a thousand groups say comes in a few pieces.
        assert int(more) < 32 and total == "3.0"


@pytest.mark.soak("100,000 operations take a minute")
@pytest.mark.timeout(600)
def test_operations_leave_nothing_behind(start_torch, tmp_path):
    source = """
import gc
def resident_mib():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
def run(count):
    tensor, both = torch.ones(64), [torch.zeros(64), torch.zeros(64)]
    for _ in range(count // 5):
        tensor.fill_(1)
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
        dist.all_reduce(tensor, async_op=True).get_future().wait()
        dist.all_gather(both, tensor)
        functional.all_reduce(tensor, "sum", dist.group.WORLD).wait()
    assert tensor[0] == 8, tensor
run(10_000)
before, objects = resident_mib(), len(gc.get_objects())
run(100_000)
print(round(resident_mib() - before, 1), len(gc.get_objects()) - objects)
dist.destroy_process_group()
"""
    for program in both(start_torch, tmp_path, source, TORCH_FR_BUFFER_SIZE="0"):
        status, out, err = program.finish(timeout=500)
        assert status == 0, err
        grown_mib, objects = map(float, out.split())
        assert grown_mib < 8 and objects < 1000, out


@pytest.mark.soak("torchrun imports torch five times")
@pytest.mark.timeout(300)
def test_an_elastic_restart_makes_the_group_again(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import os, sys, torch, torch.distributed as dist
dist.init_process_group("sheave")
# In one piece, for ranks share their output.
say = lambda *words: sys.stdout.write(" ".join(map(str, words)) + "\\n")
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
total = torch.ones(1)
dist.all_reduce(total)
if attempt == 0:
    if rank == 1:
        os._exit(3)
    try:
        dist.all_reduce(total)
        say("it returned")
    except RuntimeError as error:
        say("attempt 0:", type(error).__name__, "rank-1" in str(error))
        raise
say(f"attempt {attempt}: rank {rank} has {int(total)}")
dist.destroy_process_group()
""")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([*command, program], env=environment, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended
    *failed, one, other = ended.stdout.splitlines()
    # Where the agent was quicker, it has ended rank 0 before the error came.
    assert set(failed) <= {"attempt 0: PeerLost True"}, ended
    assert sorted((one, other)) == [f"attempt 1: rank {rank} has 2" for rank in range(2)], ended


@pytest.mark.parametrize("transport", ["auto", "pigeons"])
def test_ranks_that_are_restarted_meet_in_the_same_store_whoever_is_first(start_torch, tmp_path, transport):
    """Whether they had met before or had heard from rank 0 why they did not."""
    source = """
import datetime, os, sys
import torch, torch.distributed as dist
rank, path = int(sys.argv[1]), sys.argv[2]
store, timeout = dist.FileStore(path, 2), datetime.timedelta(seconds=20)
print("begins", flush=True)
try:
    dist.init_process_group("sheave", store=store, rank=rank, world_size=2, timeout=timeout)
    total = torch.ones(1)
    dist.all_reduce(total)
    print(int(total), flush=True)
except RuntimeError as error:
    print("pigeons" if "pigeons" in str(error) else error, flush=True)
# Without a word, so that the store stays.
os._exit(0)
"""
    for own, said in [(transport, "2" if transport == "auto" else "pigeons"), ("auto", "2")]:
        follower = start_torch(source, 1, tmp_path / "store")
        # It finds the store as the attempt before has left it.
        in_a_wait(follower)
        leader = start_torch(source, 0, tmp_path / "store", SHEAVE_TRANSPORT=own)
        assert leader.succeed(60).splitlines() == ["begins", said]
        assert follower.succeed(60).splitlines() == [said]


def test_sheave_itself_imports_no_torch(start):
    program = start("import sheave, sheave.meet, sys; print('torch' in sys.modules)")
    assert program.line() == "False"


def test_the_backend_is_found_by_its_entry_points():
    from importlib.metadata import entry_points

    found = entry_points(group="torch.distributed.backends", name="sheave")
    assert [point.value for point in found] == ["sheave.torch:register"]
    found = entry_points(group="torch.backends", name="sheave")
    assert [point.value for point in found] == ["_sheave_torch:autoload"]


GROUP_OF_ONE = """
import sys, torch, torch.distributed as dist
loaded = [name in sys.modules for name in ("sheave", "sheave.torch.group")]
print("SHEAVE" in dist.Backend._plugins, *loaded, flush=True)
dist.init_process_group("sheave", store=dist.HashStore(), rank=0, world_size=1)
print(type(dist.group.WORLD).__name__, dist.Backend._plugins["SHEAVE"].creator_fn.__module__)
dist.destroy_process_group()
"""


def test_torch_loads_the_backend_in_ranks(start):
    program = start(GROUP_OF_ONE, RANK="0", WORLD_SIZE="1")
    assert program.succeed(60).splitlines() == ["True True True", "SheaveGroup sheave.torch"]


@pytest.mark.soak("imports torch three times")
def test_torch_loads_the_backend_in_ranks_alone_and_where_it_may(start):
    for environment, loaded in (
        ({}, "True False False"),
        ({"SHEAVE_RANK": "0"}, "True True True"),
        ({"RANK": "0", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "False False False"),
    ):
        program = start(GROUP_OF_ONE, **environment)
        assert program.succeed(60).splitlines() == [loaded, "SheaveGroup sheave.torch"], environment


def test_torch_is_imported_though_the_backend_cannot_be(start, tmp_path):
    broken = tmp_path / "sheave"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise OSError('no such library')")
    program = start(
        """
import torch, torch.distributed as dist
print("imported", flush=True)
try:
    dist.init_process_group("sheave", store=dist.HashStore(), rank=0, world_size=1)
except OSError as error:
    print(error)
""",
        RANK="0",
        PYTHONPATH=str(tmp_path),
    )
    assert program.succeed(60).splitlines() == ["imported", "no such library"]
