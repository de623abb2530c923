"""Collectives that take or give a list of one array for each member; numpy computes what must come out."""

import os
import signal
import time

import numpy as np
import pytest
import sheave
from conftest import free_root, together


def values(rank, count=6, dtype="float64"):
    return np.random.default_rng(rank).integers(1, 5, count).astype(dtype)


def zeros(*counts, dtype="float64"):
    return [np.zeros(count, dtype) for count in counts]


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def run(request):
    """Call an operation, and wait for its work where it is asked for one."""

    def call(operation, *arguments, **keywords):
        if not request.param:
            return operation(*arguments, **keywords)
        return operation(*arguments, **keywords, async_op=True).wait(20)

    return call


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_gathers_into_lists(run, transport):
    def act(mesh):
        world, rank = mesh.world, mesh.rank
        out = zeros(6, 6, 6)
        kept = list(out)
        assert run(world.all_gather, values(rank), out=out) is out
        assert all(array is before for array, before in zip(out, kept, strict=True))
        for other in range(3):
            np.testing.assert_array_equal(out[other], values(other))
        # Lengths that differ, shapes as they are.
        out = (np.zeros((0, 2)), np.zeros((2, 2)), np.zeros((4, 2)))
        assert run(world.all_gather, np.full((2 * rank, 2), float(rank)), out=out) is out
        assert [array.tolist() for array in out] == [[], [[1, 1]] * 2, [[2, 2]] * 4]
        out = zeros(6, 6, 6)
        assert run(sheave.all_gather, values(rank), out=out, group=world) is out
        np.testing.assert_array_equal(out[2], values(2))
        out = zeros(6, 6, 6) if rank == 1 else None
        gathered = run(world.gather, values(rank), out=out, dst=1)
        assert gathered is out
        for other, array in enumerate(out or []):
            np.testing.assert_array_equal(array, values(other))

    together(act, transport=transport)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_scatters_of_lists(run, transport):
    def act(mesh):
        world, rank = mesh.world, mesh.rank
        pieces = [values(10 + other, dtype="int32") for other in range(3)]
        out = np.zeros(6, "int32")
        assert run(world.scatter, pieces if rank == 2 else None, out=out, src=2) is out
        np.testing.assert_array_equal(out, pieces[rank])
        # The source may leave its output away.
        out = None if rank == 0 else np.zeros((2, 3), "int32")
        piece = run(world.scatter, None if rank else [piece.reshape(2, 3) for piece in pieces], out=out)
        np.testing.assert_array_equal(piece, pieces[rank].reshape(2, 3))
        out = np.zeros(6)
        assert run(world.reduce_scatter, [values(3 * rank + to) for to in range(3)], "sum", out=out) is out
        np.testing.assert_array_equal(out, sum(values(3 * other + rank) for other in range(3)))
        # A list as output is as many operations, as ever.
        both = world.reduce_scatter([np.arange(3.0), np.arange(6.0)], out=zeros(1, 2))
        assert [array.tolist() for array in both] == [[3.0 * rank], [6.0 * rank, 6.0 * rank + 3]]

    together(act, transport=transport)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_all_to_all_of_lists(run, transport):
    def act(mesh):
        world, rank = mesh.world, mesh.rank
        arrays, out = [values(3 * rank + to) for to in range(3)], zeros(6, 6, 6)
        assert run(world.all_to_all, arrays, out=out) is out
        for other in range(3):
            np.testing.assert_array_equal(out[other], values(3 * other + rank))
        assert run(world.all_to_all, arrays) is arrays
        for other in range(3):
            np.testing.assert_array_equal(arrays[other], out[other])
        lengths = [rank * other for other in range(3)]
        out = zeros(*lengths)
        run(world.all_to_all, [np.full(length, rank, "float64") for length in lengths], out=out)
        assert [array.tolist() for array in out] == [[float(other)] * (rank * other) for other in range(3)]

    together(act, transport=transport)


def test_inputs_may_have_gaps_and_outputs_may_not():
    def act(mesh):
        world, rank = mesh.world, mesh.rank
        table = np.arange(16.0).reshape(4, 4) + 100 * rank
        out = zeros(4, 4)
        world.all_to_all([table[:, 0], table.T[1]], out=out)
        for other in range(2):
            np.testing.assert_array_equal(out[other], np.arange(16.0).reshape(4, 4)[:, rank] + 100 * other)
        place = np.zeros(4)
        world.reduce_scatter([table[:, 2], table[::-1, 3]], out=place)
        np.testing.assert_array_equal(place, [104, 112, 120, 128] if rank == 0 else [130, 122, 114, 106])
        with pytest.raises(sheave.InvalidArgument, match="contiguous") as caught:
            world.all_gather(np.ones(4), out=[np.zeros(4), np.zeros((4, 4))[:, 0]])
        assert caught.value.__notes__ == ["output 1 of the list"]
        # Rows of one array are places as good as any, its own among them.
        whole = np.zeros((2, 3))
        whole[rank] = rank + 1
        world.all_gather(whole[rank], out=list(whole))
        assert whole.tolist() == [[1] * 3, [2] * 3]

    together(act, 2)


def test_what_does_not_fit_is_refused_by_its_index():
    def act(mesh):
        world, rank = mesh.world, mesh.rank
        one = np.zeros(1)
        for attempt, words in [
            (lambda: world.all_gather(one, out=zeros(1)), "1 outputs was given to a group of 2 ranks"),
            (lambda: world.all_gather(one, out=[]), "0 outputs was given"),
            (lambda: world.all_gather(one, out=[np.zeros(1), np.zeros(1, "int8")]), "output 1 is i8; expected f64"),
            (lambda: world.gather(one, out=zeros(1, 2), dst=rank), "output 1 has 2 elements; expected 1"),
            (lambda: world.gather(one, out=zeros(1, 1), dst=1 - rank), "only the root gives outputs"),
            (lambda: world.scatter(zeros(2, 1), out=one, src=rank), "input 0 has 2 elements; expected 1"),
            (lambda: world.scatter(zeros(1, 1), out=one, src=1 - rank), "only the root gives inputs"),
            (lambda: world.scatter([], src=rank), "one array for each member"),
            (lambda: world.reduce_scatter(zeros(1, 1, 1), out=one), "3 inputs was given to a group of 2 ranks"),
            (lambda: world.all_to_all(zeros(1, 1), out=np.zeros(2)), "out= a list"),
            (lambda: world.all_to_all(zeros(1, 1), out=zeros(1, 1, dtype="int8")), "output 0 is i8; expected f64"),
            (lambda: world.all_gather(one, out=[one, one]), "overlap"),
        ]:
            with pytest.raises(sheave.InvalidArgument, match=words):
                attempt()
        with pytest.raises(sheave.Unsupported) as caught:
            world.all_to_all([one, "text"], out=zeros(1, 1))
        assert caught.value.__notes__ == ["input 1 of the list"]
        # Nobody has entered anything.
        assert world.all_reduce(np.ones(1)).tolist() == [2]

    together(act, 2)


def test_members_that_disagree_are_told_both_sides():
    def act(mesh):
        # The world is to end well.
        group, rank = mesh.group([0, 1], "apart"), mesh.rank
        with pytest.raises(sheave.Mismatch) as caught:
            group.all_gather(np.zeros(2 + rank), out=zeros(2, 2) if rank == 0 else zeros(2, 3))
        assert "rank 0 called all_gather f64[2]" in str(caught.value)
        assert "rank 1 called all_gather_v f64" in str(caught.value)
        assert group.broken is not None

    together(act, 2)


def test_torch_tensors_in_lists():
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def act(mesh):
        world, rank = mesh.world, mesh.rank
        out = [torch.zeros(2, 3, dtype=torch.bfloat16) for _ in range(2)]
        places = [tensor.data_ptr() for tensor in out]
        assert world.all_gather(torch.full((2, 3), rank + 1.0, dtype=torch.bfloat16), out=out) is out
        assert [tensor.data_ptr() for tensor in out] == places
        assert [tensor.tolist() for tensor in out] == [[[1.0] * 3] * 2, [[2.0] * 3] * 2]
        whole = torch.arange(8.0) + 10 * rank
        out = list(torch.zeros(8).chunk(2))
        world.all_to_all(list(whole.chunk(2)), out=out)
        assert [tensor[0].item() for tensor in out] == [4.0 * rank, 10 + 4.0 * rank]
        piece = world.scatter(list(whole.chunk(2)) if rank == 0 else None, out=None if rank == 0 else out[0])
        assert type(piece) is torch.Tensor and piece.tolist() == (torch.arange(4.0) + 4 * rank).tolist()

    together(act, 2)


def test_arrays_on_several_devices(run):
    def act(mesh):
        world, rank = mesh.world, mesh.rank
        arrays = [np.full(5, 10.0 * rank + device) for device in range(2)]
        assert run(world.all_reduce_devices, arrays) is arrays
        assert [array.tolist() for array in arrays] == [[63.0] * 5] * 2
        arrays = [np.full(3, float(3 * rank + device)) for device in range(3)]
        out = arrays[2] if rank == 1 else None
        assert run(world.reduce_devices, arrays, "max", out=out, dst=1) is out
        assert arrays[2].tolist() == [8.0 if rank == 1 else 3.0 * rank + 2] * 3
        arrays = [np.full(3, float(3 * rank + device)) for device in range(rank + 1)]
        assert run(world.broadcast_devices, arrays, src=2) is arrays
        assert [array.tolist() for array in arrays] == [[6.0] * 3] * (rank + 1)

    together(act)


def test_receives_from_anybody():
    def act(mesh):
        world, rank = mesh.world, mesh.rank
        if rank:
            world.isend(np.array([rank]), 0, tag=rank // 3, timeout=20).wait(20)
            return
        places = [np.zeros(1, "int64") for _ in range(2)]
        works = [world.irecv(place, None, 0, timeout=20) for place in places]
        assert sorted(work.wait(20) for work in works) == [1, 2]
        assert sorted(place[0] for place in places) == [1, 2]
        assert all(place[0] == work.result() for place, work in zip(places, works, strict=True))
        assert world.recv(places[0], tag=1, timeout=20) == 3 == places[0][0]
        with pytest.raises(sheave.DeadlineExceeded):
            world.irecv(places[0], tag=5, timeout=0.05).wait(20)

    together(act, 4)


MEMBER = """
    import sys, numpy as np, sheave
    rank, root, op = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    mesh = sheave.Mesh(rank=rank, size=3, root=root, join_timeout=20)
    world = mesh.world
    def turn():
        outs = [np.zeros(20_000) for _ in range(3)]
        if op == "all_gather":
            world.all_gather(np.full(20_000, float(rank)), out=outs)
        else:
            world.all_to_all(outs, out=[np.zeros(20_000) for _ in range(3)])
    for _ in range(5):
        turn()
    print("under way", flush=True)
    try:
        while True:
            turn()
    except sheave.PeerLost as error:
        print(error.peer.rank, error.op, flush=True)
        mesh.close()
"""


@pytest.mark.parametrize("op", ["all_gather", "all_to_all"])
def test_a_killed_member_is_named_to_all_others(start, op):
    root = free_root()
    programs = [start(MEMBER, rank, root, op) for rank in range(3)]
    for program in programs:
        assert program.line() == "under way"
    os.kill(programs[1].pid, signal.SIGKILL)
    begun = time.monotonic()
    for program in (programs[0], programs[2]):
        words = program.line().split()
        assert words[0] == "1" and words[1].startswith(op), words
        # The bound is a second; the machine may be busy.
        assert time.monotonic() - begun < 5
        program.succeed()
