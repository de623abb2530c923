"""Ranks of a process group of sheave that disagree are told so on every path, with what each of them has said."""

import importlib.util

import pytest

# The programs import it, and this process need not.
if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

pytestmark = pytest.mark.timeout(120)

REDUCE = "dist.all_reduce({}, group=group)"

PATHS = {
    "length": (REDUCE.format("ones(3)"), REDUCE.format("ones(4)"), "f32[3]", "f32[4]"),
    "dtype": (REDUCE.format("ones(3)"), REDUCE.format("ones(3, torch.int64)"), "f32", "i64"),
    "operator": (
        "dist.all_reduce(ones(3), dist.ReduceOp.MAX, group=group)",
        "dist.all_reduce(ones(3), group=group)",
        "max",
        "sum",
    ),
    "operation": ("dist.barrier(group)", REDUCE.format("ones(3)"), "barrier", "all_reduce"),
    "async": (
        "dist.all_reduce(ones(3), group=group, async_op=True).wait()",
        "dist.all_reduce(ones(4), group=group, async_op=True).wait()",
        "f32[3]",
        "f32[4]",
    ),
    "future": (
        "dist.all_reduce(ones(3), group=group, async_op=True).get_future().wait()",
        "dist.all_reduce(ones(4), group=group, async_op=True).get_future().wait()",
        "f32[3]",
        "f32[4]",
    ),
    "functional": (
        "functional.all_reduce(ones(3), 'sum', group).wait()",
        "functional.all_reduce(ones(4), 'sum', group).wait()",
        "f32[3]",
        "f32[4]",
    ),
    "coalesced": (
        "coalesced(ones(3), ones(5))",
        "coalesced(ones(3), ones(6))",
        "8 elements",
        "9 elements",
    ),
    "root": ("dist.broadcast(ones(3), src=0, group=group)", "dist.broadcast(ones(3), src=1, group=group)", "0", "1"),
    "reduce": ("dist.reduce(ones(3), dst=0, group=group)", "dist.reduce(ones(4), dst=0, group=group)", "[3]", "[4]"),
    "gather": ("gather(ones(3))", "gather(ones(4))", "[3]", "[4]"),
    "scatter": ("scatter(ones(3))", "scatter(ones(4))", "[3]", "[4]"),
    "all_gather": (
        "dist.all_gather_into_tensor(ones(6), ones(3), group=group)",
        "dist.all_gather_into_tensor(ones(8), ones(4), group=group)",
        "[3]",
        "[4]",
    ),
    "reduce_scatter": (
        "dist.reduce_scatter_tensor(ones(3), ones(6), group=group)",
        "dist.reduce_scatter_tensor(ones(4), ones(8), group=group)",
        "[3]",
        "[4]",
    ),
    "all_to_all": (
        "dist.all_to_all_single(ones(5), ones(5), [2, 3], [2, 3], group=group)",
        "dist.all_to_all_single(ones(5), ones(5), [4, 1], [3, 2], group=group)",
        "[3]",
        "[4]",
    ),
}
"""What each of two ranks does, and what of it both are told."""

PROGRAM = f"""
import os, sys
import torch, torch.distributed as dist, sheave
import torch.distributed._functional_collectives as functional
rank = int(sys.argv[1])
dist.init_process_group("sheave", init_method=f"file://{{sys.argv[2]}}", rank=rank, world_size=2)
def ones(count, dtype=torch.float32):
    return torch.ones(count, dtype=dtype)
def coalesced(*tensors):
    dist.all_reduce_coalesced(list(tensors), group=group)
def gather(tensor):
    dist.gather(tensor, [torch.zeros_like(tensor) for _ in range(2)] if rank == 0 else None, dst=0, group=group)
def scatter(tensor):
    dist.scatter(tensor, [torch.zeros_like(tensor) for _ in range(2)] if rank == 0 else None, src=0, group=group)
for path, acts in {PATHS!r}.items():
    group = dist.new_group([0, 1])
    try:
        exec(acts[rank])
        print(path, "returned", flush=True)
    except RuntimeError as error:
        is_known = isinstance(error, sheave.Mismatch) and isinstance(error, ValueError)
        print(path, is_known, type(error).__name__, str(error).replace("\\n", "; "), flush=True)
# Other groups go on.
total = ones(1)
dist.all_reduce(total)
print("total", total.item(), flush=True)
os._exit(0)
"""


def test_ranks_that_disagree_are_told_on_every_path_what_each_has_said(start_torch, tmp_path):
    ranks = [start_torch(PROGRAM, rank, tmp_path / "store") for rank in range(2)]
    for path, (_, _, *words) in PATHS.items():
        for rank in ranks:
            said = rank.line()
            print(said)
            named, is_known, kind, text = said.split(" ", 3)
            # C++ hands the error of a future on as text.
            assert (named, is_known) == (path, str(path != "future")), said
            assert "Mismatch" in (text if path == "future" else kind), said
            assert all(word in text for word in words) and "another label" not in text, said
    assert [rank.line() for rank in ranks] == ["total 2.0"] * 2
