"""Arrays in and out: what is accepted, what is copied, and who keeps memory alive."""

import array
import gc
import importlib.util
import subprocess
import sys
import warnings

import numpy as np
import pytest
import sheave

DTYPES = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64 complex64 complex128".split()
)


def through(pair, value, **keywords):
    one, link, other, back = pair
    one.send(link, value, **keywords)
    return other.recv(back, timeout=10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_goes_through_unchanged(pair, dtype):
    values = (np.arange(24) % 2 if dtype == "bool" else np.arange(24)).astype(dtype).reshape(2, 3, 4)
    tensor = through(pair, values)
    assert (tensor.shape, tensor.dtype, tensor.nbytes) == ((2, 3, 4), dtype, values.nbytes)
    received = tensor.numpy()
    assert received.dtype == values.dtype
    np.testing.assert_array_equal(received, values)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_that_numpy_lacks(pair, name):
    extension = pytest.importorskip("ml_dtypes")
    values = np.array([0.5, -1.0, 2.0]).astype(getattr(extension, name))
    tensor = through(pair, values)
    assert tensor.dtype == name
    received = tensor.numpy()
    assert received.dtype == values.dtype
    assert received.tobytes() == values.tobytes()
    assert np.asarray(tensor).dtype == values.dtype
    with pytest.raises(BufferError, match=name):
        memoryview(tensor)


def test_extension_arrays_are_read_in_any_layout_and_written_in_place(pair):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    one, link, other, back = pair
    values = np.arange(12).astype(bfloat16).reshape(3, 4)
    assert through(pair, values.T).numpy().tolist() == values.T.tolist()
    one.send(link, values)
    target = np.zeros((3, 4), bfloat16)
    other.recv(back, out=target, timeout=10)
    assert target.tobytes() == values.tobytes()
    target.flags.writeable = False
    one.send(link, values)
    with pytest.raises(sheave.InvalidArgument, match="read-only"):
        other.recv(back, out=target, timeout=10)
    assert other.recv(back, timeout=10).numpy().tobytes() == values.tobytes()


@pytest.mark.parametrize(
    "strided",
    [
        np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2],
        np.arange(24, dtype=np.float32).reshape(4, 6).T,
        np.arange(24, dtype=np.int64)[::-1],
        np.broadcast_to(np.float64(3.0), (3, 5)),
        np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
        np.zeros(4, dtype=[("flag", "u1"), ("value", "<f4")])["value"],
    ],
    ids=["columns", "transposed", "reversed", "broadcast", "fortran", "field of packed records"],
)
def test_strided_input_is_packed(pair, strided):
    received = through(pair, strided).numpy()
    assert received.flags.c_contiguous
    np.testing.assert_array_equal(received, strided)


@pytest.mark.parametrize("value", [np.array(3.5), np.zeros((0, 4)), np.zeros((3, 0, 2), np.uint8), b"", b"x"])
def test_scalars_and_empty_arrays(pair, value):
    received = through(pair, value).numpy()
    expected = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
    assert (received.shape, received.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(received, expected)


def test_everything_with_a_buffer(pair):
    for value in [b"bytes", bytearray(b"bytes"), memoryview(b"bytes"), array.array("B", b"bytes")]:
        assert bytes(through(pair, value)) == b"bytes"
    assert through(pair, array.array("d", [1.5, 2.5])).numpy().tolist() == [1.5, 2.5]
    frozen = np.arange(3)
    frozen.flags.writeable = False
    assert through(pair, frozen).numpy().tolist() == [0, 1, 2]


class OldProducer:
    """Speaks DLPack as it was before versions."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, stream=None):
        return self.values.__dlpack__()

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


class NewProducer(OldProducer):
    def __dlpack__(self, **keywords):
        return self.values.__dlpack__(**keywords)


@pytest.mark.parametrize("producer", [OldProducer, NewProducer])
def test_dlpack_producers(pair, producer):
    one, link, other, back = pair
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(through(pair, producer(values)).numpy(), values)
    one.send(link, values + 1)
    target = np.zeros((2, 3), np.float32)
    other.recv(back, out=producer(target), timeout=10)
    np.testing.assert_array_equal(target, values + 1)


def test_torch_goes_in_and_out():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with sheave.Node("one") as one, sheave.Node("other") as other:
        link = one.link_to(other)
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
            values = torch.arange(6).to(dtype).reshape(2, 3)
            one.send(link, values)
            tensor = other.recv(timeout=10)
            for viewed in (tensor.torch(), torch.from_dlpack(tensor)):
                assert viewed.data_ptr() == tensor.data_ptr and torch.equal(viewed, values)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_jax_goes_in_and_out(pair, dtype):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    one, link, other, back = pair
    values = (jax.numpy.arange(6) % 2).astype(dtype).reshape(2, 3)
    tensor = through(pair, values)
    viewed = jax.numpy.from_dlpack(tensor)
    assert viewed.unsafe_buffer_pointer() == tensor.data_ptr
    assert viewed.dtype == values.dtype and (viewed == values).all()
    one.send(link, values)
    with pytest.raises(sheave.InvalidArgument, match="jax array, which nobody may write"):
        other.recv(back, out=values, timeout=10)
    assert (jax.numpy.from_dlpack(other.recv(back, out=tensor, timeout=10)) == values).all()


def test_what_torch_has_yet_to_conjugate_or_negate_is_not_sent_as_it_lies(pair):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    one, link, other, back = pair
    conjugated = torch.tensor([1 + 2j, 3 - 1j]).conj()
    for lazy in (conjugated, conjugated.imag):
        assert lazy.is_conj() or lazy.is_neg()
        assert through(pair, lazy).torch().tolist() == lazy.tolist()
        one.send(link, lazy.resolve_conj().resolve_neg())
        with pytest.raises(sheave.InvalidArgument, match="resolve_conj"):
            other.recv(back, out=lazy, timeout=10)
        other.recv(back, timeout=10)


def test_what_torch_keeps_in_no_memory_of_its_own_is_refused_without_a_trace_of_its_code(pair):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    one, link, _, _ = pair
    with warnings.catch_warnings():
        # Torch is about to give them up.
        warnings.simplefilter("ignore")
        quantized = torch.quantize_per_tensor(torch.zeros(2), 0.5, 0, torch.qint8)
    for tensor, told in [
        (torch.eye(2).to_sparse(), "torch.float32 with layout torch.sparse_coo on device cpu"),
        (quantized, "torch.qint8 with layout torch.strided on device cpu"),
        (torch.zeros(2, dtype=torch.int8, device="meta"), "torch.int8 with layout torch.strided on device meta"),
    ]:
        with pytest.raises(sheave.Unsupported, match="to_dense") as refused:
            one.send(link, tensor)
        assert told in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_its_tensors_are_refused(pair):
    with pytest.raises(sheave.Unsupported, match="torch is not installed"):
        through(pair, np.zeros(1)).torch()


def test_views_share_memory(pair):
    tensor = through(pair, np.arange(1000, dtype=np.float32))
    views = [tensor.numpy(), np.asarray(tensor), np.from_dlpack(tensor), np.frombuffer(tensor, np.float32)]
    for view in views:
        assert view.ctypes.data == tensor.data_ptr
    views[0][0] = 77
    assert views[2][0] == 77 and memoryview(tensor)[0] == 77
    assert np.array(tensor).ctypes.data != tensor.data_ptr
    assert np.asarray(tensor, dtype=np.float64)[0] == 77


def test_output_lands_in_place(pair):
    one, link, other, back = pair
    target = np.zeros((2, 3), np.float32)
    for values in (np.ones((2, 3), np.float32), np.full((2, 3), 2, np.float32)):
        one.send(link, values)
        tensor = other.recv(back, out=target, timeout=10)
        assert tensor.data_ptr == target.ctypes.data
        np.testing.assert_array_equal(target, values)
    work = other.irecv(back, tag=5, out=target)
    one.send(link, np.zeros((2, 3), np.float32), tag=5)
    assert work.result(10).data_ptr == target.ctypes.data and not target.any()


def test_impossible_outputs_are_refused(pair):
    _, _, other, back = pair
    frozen = np.zeros(4, np.float32)
    frozen.flags.writeable = False
    for target in (frozen, np.zeros((4, 4), np.float32)[:, ::2], b"bytes"):
        with pytest.raises(ValueError, match="output") as caught:
            other.recv(back, out=target, timeout=0)
        assert isinstance(caught.value, sheave.InvalidArgument)


def test_an_output_that_does_not_fit_is_a_mismatch(pair):
    one, link, other, back = pair
    one.send(link, np.zeros(3, np.float32))
    with pytest.raises(sheave.Mismatch):
        other.recv(back, out=np.zeros(3, np.float64), timeout=10)


def test_what_is_no_array_is_refused(pair):
    one, link, *_ = pair
    for value in ([1, 2], "text", 3, None, np.zeros(2, "U3"), np.zeros(2, np.longdouble), np.zeros(2, ">f4")):
        with pytest.raises((TypeError, BufferError, ValueError)):
            one.send(link, value)
    with pytest.raises(sheave.InvalidArgument, match="mode"):
        one.send(link, b"x", mode="lend")


def test_move_changes_hands_without_a_copy(pair):
    one, link, other, back = pair
    tensor = one.empty((256, 1024), "float32")
    tensor.numpy()[:] = 5
    before = one.counts()
    one.send(link, tensor, mode="move")
    received = other.recv(back, timeout=10)
    after = one.counts()
    assert after["bytes_copied"] == before["bytes_copied"]
    assert after["bytes_lent"] - before["bytes_lent"] == 1 << 20
    assert (received.numpy() == 5).all()
    with pytest.raises(sheave.InvalidArgument, match="move"):
        tensor.numpy()
    # And home again: the very same memory.
    other.send(back, received, mode="move")
    again = one.recv(link, timeout=10)
    assert (again.numpy() == 5).all() and other.counts()["bytes_copied"] == 0


def test_an_exported_tensor_cannot_be_moved(pair):
    one, link, other, back = pair
    tensor = one.empty(8, "int64")
    for export in (tensor.numpy, lambda: memoryview(tensor), lambda: np.from_dlpack(tensor)):
        view = export()
        with pytest.raises(BufferError, match="views") as caught:
            one.send(link, tensor, mode="move")
        assert isinstance(caught.value, sheave.BufferInUse)
        del view
    one.send(link, tensor, mode="move")
    assert other.recv(back, timeout=10).shape == (8,)
    with pytest.raises(sheave.InvalidArgument, match="sheave.Tensor"):
        one.send(link, np.zeros(3), mode="move")


def test_share_is_the_same_memory(pair):
    one, link, other, back = pair
    tensor = one.empty(1 << 18, np.float32)
    view = tensor.numpy()
    view[:] = 1
    one.send(link, tensor, mode="share")
    received = other.recv(back, timeout=10).numpy()
    view[17] = 42
    assert received[17] == 42


def test_a_copy_is_captured_before_isend_returns(pair):
    one, link, other, back = pair
    values = np.ones(3_000_000, np.float32)
    work = one.isend(link, values)
    values[:] = 2
    received = other.recv(back, timeout=10)
    work.wait(10)
    assert (received.numpy() == 1).all()


def test_a_view_outlives_tensor_link_and_node():
    with sheave.Node("one") as one, sheave.Node("other") as other:
        link = one.link_to(other, "shm")
        moved = one.empty(1 << 18, "float32")
        moved.numpy()[:] = np.arange(1 << 18)
        one.send(link, moved, mode="move")
        one.send(link, np.arange(5), tag=1)
        views = [other.recv(timeout=10).numpy(), np.from_dlpack(other.recv(tag=1, timeout=10))]
    del one, other, link, moved
    gc.collect()
    assert views[0][-1] == (1 << 18) - 1 and views[0].sum() > 0
    views[0][0] = 9
    assert views[0][0] == 9 and views[1].tolist() == [0, 1, 2, 3, 4]


def test_received_arrays_are_given_back(pair):
    """A numpy array is held while its send is under way, and not for longer."""
    one, link, other, back = pair

    class Watched(np.ndarray):
        gone = 0

        def __del__(self):
            Watched.gone += 1

    for _ in range(20):
        one.send(link, np.ones(1000).view(Watched))
        other.recv(back, timeout=10)
    gc.collect()
    assert Watched.gone == 20


def test_memory_does_not_grow_with_operations():
    with sheave.Node("one", arena_bytes=64 << 20) as one, sheave.Node("other", arena_bytes=64 << 20) as other:
        link = one.link_to(other, "shm")
        for _ in range(300):
            one.send(link, np.zeros(1 << 18, np.float32))
            assert other.recv(timeout=10).numpy()[0] == 0


def test_import_leaves_numpy_alone():
    program = "import sys, sheave; sys.exit('numpy' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=30).returncode == 0


def test_import_is_quick():
    """At most 60 ms beyond the interpreter's own start, in the best of some runs."""
    program = "import time; begun = time.perf_counter(); import sheave; print(time.perf_counter() - begun)"
    runs = [subprocess.run([sys.executable, "-c", program], timeout=30, capture_output=True) for _ in range(10)]
    assert min(float(run.stdout) for run in runs) < 0.06
