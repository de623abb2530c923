"""Every collective operation on arrays of every kind; numpy computes what must come out."""

import concurrent.futures
import functools
import operator
import threading

import numpy as np
import pytest
import sheave
from conftest import together

OPERATORS = {
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def values(rank, count=24, dtype="float64"):
    return np.random.default_rng(rank).integers(1, 5, count).astype(dtype)


def reduced(op, size, **keywords):
    return functools.reduce(OPERATORS[op], [values(rank, **keywords) for rank in range(size)])


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"])
def test_every_operator(dtype):
    def act(mesh):
        for op in OPERATORS:
            array = values(mesh.rank, dtype=dtype)
            assert mesh.world.all_reduce(array, op) is array
            np.testing.assert_array_equal(array, reduced(op, 3, dtype=dtype))

    together(act)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_floats(dtype):
    def act(mesh):
        array = values(mesh.rank, dtype=dtype)
        mesh.world.all_reduce(array)
        np.testing.assert_array_equal(array, reduced("sum", 3, dtype=dtype))
        mean = mesh.world.all_reduce(values(mesh.rank, dtype=dtype), "avg")
        np.testing.assert_allclose(mean, reduced("sum", 3, dtype=dtype) / 3, rtol=1e-3)
        assert mesh.world.all_reduce(np.ones(2, dtype), op="prod").tolist() == [1, 1]

    together(act)


def test_bfloat16():
    extension = pytest.importorskip("ml_dtypes")

    def act(mesh):
        array = values(mesh.rank, dtype=extension.bfloat16)
        assert mesh.world.all_reduce(array) is array
        np.testing.assert_array_equal(array.astype("float64"), reduced("sum", 3))

    together(act)


def test_out_of_place_leaves_the_input():
    def act(mesh):
        array, out = values(mesh.rank).reshape(4, 6), np.zeros((4, 6))
        assert mesh.world.all_reduce(array, out=out) is out
        np.testing.assert_array_equal(array.ravel(), values(mesh.rank))
        np.testing.assert_array_equal(out.ravel(), reduced("sum", 3))
        columns = np.asfortranarray(array)
        assert mesh.world.all_reduce(columns, out=out) is out
        np.testing.assert_array_equal(out.ravel(), reduced("sum", 3))

    together(act)


def test_reduce_and_broadcast():
    def act(mesh):
        world = mesh.world
        array = values(mesh.rank)
        result = world.reduce(array, dst=1)
        assert result is (array if mesh.rank == 1 else None)
        expected = reduced("sum", 3) if mesh.rank == 1 else values(mesh.rank)
        np.testing.assert_array_equal(array, expected)
        assert world.broadcast(array, src=1) is array
        np.testing.assert_array_equal(array, reduced("sum", 3))
        frozen = b"from rank 2" if mesh.rank == 2 else bytearray(11)
        assert bytes(world.broadcast(frozen, 2)) == b"from rank 2"

    together(act)


def test_gathers():
    everything = np.stack([values(rank).reshape(4, 6) for rank in range(3)])

    def act(mesh):
        world, array = mesh.world, values(mesh.rank).reshape(4, 6)
        gathered = world.all_gather(array)
        assert type(gathered) is np.ndarray
        np.testing.assert_array_equal(gathered, everything)
        out = np.zeros(72)
        assert world.all_gather(array, out) is out
        np.testing.assert_array_equal(out, everything.ravel())
        at_one = world.gather(array, dst=1)
        if mesh.rank == 1:
            np.testing.assert_array_equal(at_one, everything)
        else:
            assert at_one is None
        tensor = world.all_gather(memoryview(array))
        assert type(tensor) is sheave.Tensor and tensor.shape == (3, 4, 6)

    together(act)


def test_gather_of_different_lengths():
    everything = np.concatenate([values(rank, 2 * rank + 1) for rank in range(3)])

    def act(mesh):
        world, array = mesh.world, values(mesh.rank, 2 * mesh.rank + 1)
        np.testing.assert_array_equal(world.all_gather_v(array), everything)
        np.testing.assert_array_equal(world.all_gather_v(array, [1, 3, 5]), everything)
        rows = world.all_gather_v(np.full((mesh.rank, 2), mesh.rank))
        assert rows.tolist() == [[1, 1], [2, 2], [2, 2]]

    together(act)


def test_scatter_and_reduce_scatter():
    def act(mesh):
        world, rank = mesh.world, mesh.rank
        whole = values(9, 12).reshape(3, 4)
        out = np.zeros(4) if rank else None
        piece = world.scatter(None if rank else whole, out)
        assert piece is out or rank == 0
        np.testing.assert_array_equal(piece, whole[rank])
        total = reduced("sum", 3, count=12).reshape(6, 2)
        piece = world.reduce_scatter(values(rank, 12).reshape(6, 2))
        np.testing.assert_array_equal(piece, total[2 * rank : 2 * rank + 2])
        np.testing.assert_array_equal(world.reduce_scatter(values(rank, 12), "sum", np.zeros(4)), piece.ravel())
        with pytest.raises(sheave.InvalidArgument, match="out="):
            world.scatter(None)

    together(act)


def test_all_to_all():
    def act(mesh):
        world, rank = mesh.world, mesh.rank
        expected = np.stack([values(other).reshape(3, 8)[rank] for other in range(3)])
        array, out = values(rank), np.zeros((3, 8))
        assert world.all_to_all(array, out) is out
        np.testing.assert_array_equal(out, expected)
        assert world.all_to_all(array) is array
        np.testing.assert_array_equal(array.reshape(3, 8), expected)
        # Rank i sends i + j elements to rank j.
        sent = [rank + other for other in range(3)]
        received = world.all_to_all_v(np.full(sum(sent), rank), sent, sent)
        assert received.tolist() == functools.reduce(operator.add, [[other] * (rank + other) for other in range(3)])

    together(act)


def test_messages():
    def act(mesh):
        world, rank = mesh.world, mesh.rank
        right, left = (rank + 1) % 3, (rank - 1) % 3
        for count in (1, 100_000):
            array = np.zeros(count)
            work = world.isend(values(rank, count), right, tag=7)
            assert world.recv(array, left, 7, timeout=20) == left
            work.wait(20)
            np.testing.assert_array_equal(array, values(left, count))
        works = [world.isend(np.array([rank]), other, tag=1) for other in range(3) if other != rank]
        seen = set()
        for _ in range(2):
            array = np.array([99])
            source = world.recv(array, tag=1, timeout=20)
            assert array[0] == source
            seen.add(source)
        assert seen == {0, 1, 2} - {rank}
        incoming = world.irecv(array, tag=2)
        world.send(np.array([40 + rank]), right, tag=2)
        assert incoming.result(20) == left and array[0] == 40 + left
        for work in works:
            work.wait(20)

    together(act)


def test_subgroups():
    def act(mesh):
        world, rank = mesh.world, mesh.rank
        assert (world.rank, world.size, world.label) == (rank, 4, "world")
        assert [member.rank for member in world.members] == [0, 1, 2, 3]
        pair = world.split(rank % 2, key=-rank)
        assert (pair.rank, pair.size) == (int(rank < 2), 2)
        assert pair.all_reduce(np.array([rank])).tolist() == [2 if rank % 2 == 0 else 4]
        assert world.split(None if rank else 5) is None or rank == 0
        if rank < 2:
            low = mesh.group([1, 0], "low")
            assert (low.rank, low.label) == (1 - rank, "low")
            assert low.all_gather(np.array([rank])).ravel().tolist() == [1, 0]
            same = world.subgroup([1, 0], "low")
            assert same.all_reduce(np.array([1])).tolist() == [2]
        assert mesh.role_group().all_reduce(np.array([1])).tolist() == [4]
        with pytest.raises(sheave.InvalidArgument, match="role"):
            mesh.role_group("pilot")
        with pytest.raises(sheave.InvalidArgument):
            mesh.group([0, 9])

    together(act, 4)


def test_many_in_flight():
    def act(mesh):
        arrays = [values(mesh.rank + 10 * index, 1000) for index in range(50)]
        works = [mesh.world.all_reduce(array, async_op=True) for array in arrays]
        for index, (work, array) in enumerate(zip(works, arrays)):
            assert work.wait(20) is array and work.done()
            expected = sum(values(rank + 10 * index, 1000) for rank in range(3))
            np.testing.assert_array_equal(array, expected)
        assert mesh.world.barrier() is None and mesh.world.barrier(async_op=True).wait(20) is None

    together(act)


def threads(act, count=4):
    """Runs act(number) on so many threads at once; returns what each returned."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return [done.result(60) for done in [pool.submit(act, number) for number in range(count)]]


def test_f68_threads_that_call_as_they_like_are_told_so_on_all_members():
    def act(mesh):
        # The world is to end well.
        group = mesh.group([0, 1], "threads")

        def call(thread):
            wrong = 0
            for turn in range(500):
                array = np.array([float(1000 * thread + turn)])
                try:
                    group.all_reduce(array, timeout=60)
                except sheave.Mismatch as error:
                    return wrong, error
                wrong += array[0] != 2 * (1000 * thread + turn)
            return wrong, None

        return threads(call)

    for outcomes in together(act, 2):
        wrong, errors = sum(wrong for wrong, _ in outcomes), [error for _, error in outcomes if error]
        assert not wrong or errors, f"{wrong} sums of other threads, and nobody was told"
        assert all("thread" in str(error) for error in errors), errors


def test_f68_threads_that_begin_in_one_order_get_their_own_sums():
    def act(mesh):
        world, turn = mesh.world.ordered_by_caller(), threading.Condition()
        begun = [0]

        def call(thread):
            for step in range(100):
                array = np.array([float(1000 * thread + step)])
                with turn:
                    assert turn.wait_for(lambda: begun[0] == 4 * step + thread, 60)
                    work = world.all_reduce(array, async_op=True)
                    begun[0] += 1
                    turn.notify_all()
                assert work.wait(60)[0] == 2 * (1000 * thread + step)

        threads(call)

    together(act, 2)


def test_a_group_that_is_cancelled_ends_on_all_members_and_no_other_group():
    def act(mesh):
        group = mesh.group([0, 1], "given up")
        group.barrier(timeout=20)
        work = group.irecv(np.zeros(3), src=1 - mesh.rank)
        if mesh.rank == 0:
            group.cancel()
        for wait in (work.wait, group.barrier):
            with pytest.raises(sheave.Cancelled, match="rank 0 has cancelled the group"):
                wait(timeout=20)
        assert isinstance(group.broken, sheave.Cancelled)
        return mesh.world.all_reduce(np.ones(1), timeout=20)[0]

    assert together(act, 2) == [2.0, 2.0]


def test_lists_are_one_operation():
    def act(mesh):
        world, rank = mesh.world, mesh.rank
        arrays = [np.full(3, rank + 1.0), np.full((2, 2), rank, np.int32), np.zeros(0), np.full(50_000, 2, np.float32)]
        assert world.all_reduce(arrays) is arrays
        assert [array.ravel()[:1].tolist() for array in arrays] == [[6], [3], [], [6]]
        outs = (np.zeros(3), np.zeros((2, 2), np.int32))
        assert world.all_reduce(arrays[:2], "max", outs, async_op=True).wait(20) is outs
        assert outs[0].tolist() == [6] * 3 and arrays[0].tolist() == [6] * 3
        arrays = [np.full(2, rank), np.full(3, 10.0 * rank)]
        assert world.broadcast(arrays, src=2) is arrays
        assert [array[0] for array in arrays] == [2, 20]
        first, second = world.all_gather([np.full(2, rank), np.full((1, 2), 10.0 * rank)])
        assert first.tolist() == [[0, 0], [1, 1], [2, 2]] and second.shape == (3, 1, 2)
        pieces = world.reduce_scatter([np.arange(6.0), np.arange(3)])
        assert [piece.tolist() for piece in pieces] == [[6.0 * rank, 6.0 * rank + 3], [3 * rank]]
        with pytest.raises(sheave.InvalidArgument, match="out"):
            world.all_reduce(arrays, out=[np.zeros(2)])

    together(act)


def test_arrays_in_the_arena():
    def act(mesh):
        tensor = mesh.empty((100, 1000), "float32")
        tensor.numpy()[:] = mesh.rank + 1
        before = mesh.world.all_reduce(tensor)
        assert before is tensor and (tensor.numpy() == 6).all()
        work = mesh.world.all_reduce(tensor, async_op=True)
        work.wait(20)
        assert (tensor.numpy() == 18).all()

    together(act)


def test_a_tensor_in_use_is_refused():
    def act(mesh):
        if mesh.rank == 0:
            tensor = mesh.empty(10)
            tensor.numpy()[:] = 1
            work = mesh.world.irecv(tensor, 1)
            with pytest.raises(BufferError, match="recv") as caught:
                mesh.world.send(tensor, 1, tag=1)
            assert isinstance(caught.value, sheave.BufferInUse)
            mesh.barrier(20)
            assert work.wait(20) == 1 and tensor.numpy()[0] == 5
        else:
            mesh.barrier(20)
            mesh.world.send(np.full(10, 5, np.float32), 0)

    together(act, 2)


def test_what_cannot_be_done_is_refused():
    def act(mesh):
        world = mesh.world
        frozen = np.zeros(3)
        frozen.flags.writeable = False
        for attempt, kind, words in [
            (lambda: world.all_reduce(frozen), sheave.InvalidArgument, "read-only"),
            (lambda: world.all_reduce(np.zeros((4, 4)).T[1:]), sheave.InvalidArgument, "contiguous"),
            (lambda: world.all_reduce(np.zeros(3), "median"), sheave.InvalidArgument, "median"),
            (lambda: world.all_reduce(np.zeros(3), "bxor"), sheave.Unsupported, "bxor"),
            (lambda: world.all_reduce(np.zeros(3), out=np.zeros(4)), sheave.InvalidArgument, "elements"),
            (lambda: world.all_reduce("text"), sheave.Unsupported, "str"),
            (lambda: world.all_reduce([1, 2]), sheave.Unsupported, "int"),
            (lambda: world.broadcast(np.zeros(3), src=7), sheave.InvalidArgument, "root 7"),
            (lambda: world.send(np.zeros(3), mesh.rank), sheave.InvalidArgument, "itself"),
            (lambda: world.all_reduce(np.zeros(3), timeout=-1), ValueError, "timeout"),
        ]:
            with pytest.raises(kind, match=words):
                attempt()
        # Nobody has entered anything.
        assert world.all_reduce(np.ones(1)).tolist() == [2]

    together(act, 2)


def test_pointers_stay():
    """Numpy memory is used where it lies, and results are views of the memory that they came to."""

    def act(mesh):
        array = np.full(1000, mesh.rank)
        address = array.ctypes.data
        result = mesh.world.all_reduce(array)
        assert result is array and result.ctypes.data == address and (result == 1).all()
        gathered = mesh.world.all_gather(array)
        assert gathered.ctypes.data == np.asarray(memoryview(gathered)).ctypes.data
        tensor = mesh.empty(1000, "int64")
        assert tensor.numpy().ctypes.data == tensor.data_ptr == mesh.world.all_reduce(tensor).data_ptr
        return result, gathered, tensor.numpy()

    for result, gathered, view in together(act, 2):
        # The mesh is gone, the results are not.
        result += 1
        gathered += 1
        view[:] = 3
        assert (result == 2).all() and (gathered == 2).all() and view.sum() == 3000


def test_torch_tensors():
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def act(mesh):
        tensor = torch.full((10, 10), mesh.rank + 1.0)
        address = tensor.data_ptr()
        assert mesh.world.all_reduce(tensor) is tensor
        assert tensor.data_ptr() == address and (tensor == 3).all()
        half = torch.ones(5, dtype=torch.bfloat16)
        assert mesh.world.all_reduce(half).tolist() == [2] * 5
        gathered = mesh.world.all_gather(tensor)
        assert type(gathered) is torch.Tensor and gathered.shape == (2, 10, 10)
        arena = mesh.empty(7)
        view = torch.from_dlpack(arena)
        assert view.data_ptr() == arena.data_ptr
        return gathered

    for gathered in together(act, 2):
        gathered += 1
        assert (gathered == 4).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_jax_arrays(dtype):
    """They are read where they lie and never written; new results are jax arrays, made of what is there at the end."""
    jax = pytest.importorskip("jax", reason="jax is not installed")
    jnp = jax.numpy

    def act(mesh):
        world = mesh.world
        # Still being computed when it is given.
        array = jax.jit(lambda x: jnp.full((512, 512), x) @ jnp.ones((512, 512)) / 512)(mesh.rank + 1.0).astype(dtype)
        before = array + 0
        for act_in_place in (world.all_reduce, world.all_to_all, lambda array: world.recv(array, 1 - mesh.rank)):
            with pytest.raises(sheave.InvalidArgument, match="jax array, which nobody may write"):
                act_in_place(array)
        with pytest.raises(sheave.InvalidArgument, match="jax array"):
            world.reduce(np.ones(array.shape, array.dtype), out=array, dst=mesh.rank)
        summed = mesh.empty(array.shape, dtype)
        assert world.all_reduce(array, out=summed) is summed and (summed.numpy() == 3).all()
        assert world.broadcast(array if mesh.rank == 0 else summed) is not None
        gathered = world.all_gather(array)
        assert isinstance(gathered, jax.Array) and gathered.shape == (2, 512, 512) and gathered.dtype == array.dtype
        scattered = world.reduce_scatter(array, async_op=True).wait(timeout=20)
        pieces = world.reduce_scatter([array, array])
        assert all(isinstance(one, jax.Array) and one.shape == (256, 512) for one in [scattered, *pieces])
        assert all((one == 3).all() for one in [scattered, *pieces])
        assert (array == before).all() and (array == mesh.rank + 1).all()
        return gathered

    for gathered in together(act, 2):
        # The mesh is gone, the results are not.
        assert (gathered[0] == 1).all() and (gathered[1] == 2).all()
