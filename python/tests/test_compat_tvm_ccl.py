"""What moves tensors in tvm.runtime.disco over sheave, in the manner of TVM's own tests of that, and where it does
better."""

import json
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import sheave
import sheave.compat.tvm as tvm
import sheave.compat.tvm.exec.disco_worker  # noqa: F401, registers what threads call
from sheave.compat.tvm.runtime import ShapeTuple
from sheave.compat.tvm.runtime import disco as di

CCL = tvm.get_global_func("runtime.disco.compiled_ccl")()


class SocketSessionTester(di.SocketSession):
    """A session of two nodes, the other of which is a process of its own."""

    def __init__(self, num_workers, num_groups=1):
        port, each = sheave._core._free_port(), num_workers // 2
        command = [sys.executable, "-m", "sheave.compat.tvm.exec.disco_remote_socket_session", "localhost"]
        self.node = subprocess.Popen([*command, str(port), str(each)])
        super().__init__(2, each, num_groups, "localhost", port)

    def shutdown(self):
        super().shutdown()
        assert self.node.wait(20) == 0

    def __exit__(self, *raised):
        super().__exit__(*raised)
        self.node.wait(20)


KINDS = [di.ThreadedSession, di.ProcessSession]
kinds = pytest.mark.parametrize("session_kind", KINDS)
all_kinds = pytest.mark.parametrize("session_kind", [*KINDS, SocketSessionTester])


def begin(kind, workers=2, groups=1):
    sess = kind(num_workers=workers, num_groups=groups)
    sess.init_ccl(CCL, *range(workers))
    return sess


def filled(sess, arrays, like=None):
    """A register in which some workers have an array each."""
    array = next(iter(arrays.values())) if like is None else like
    ref = sess.empty(array.shape, str(array.dtype))
    for worker, array in arrays.items():
        ref.debug_copy_from(worker, array)
    return ref


def numpy(ref, worker):
    return ref.debug_get_from_remote(worker).numpy()


A = np.arange(12, dtype="float32").reshape(3, 4)
B = np.arange(11, -1, -1, dtype="float32").reshape(3, 4)
REDUCED = {"sum": A + B, "prod": A * B, "min": np.minimum(A, B), "max": np.maximum(A, B), "avg": (A + B) * 0.5}


@all_kinds
def test_init(session_kind):
    with begin(session_kind) as sess:
        with pytest.raises(RuntimeError, match="told before"):
            sess.init_ccl(CCL, 0, 1)


@kinds
def test_backends(session_kind):
    with session_kind(num_workers=2) as sess:
        for ccl in ("nccl", "rccl"):
            with pytest.raises(ValueError, match=f"Cannot initialize CCL.* not by {ccl}; expected one of sheave"):
                sess.init_ccl(ccl, 0, 1)
        with pytest.raises(AssertionError, match="Unsupported CCL backend: smoke"):
            sess.init_ccl("smoke", 0, 1)
        with pytest.raises(ValueError, match="1 device ids; expected one for each of 2 workers"):
            sess.init_ccl("mpi", 0)
        sess.init_ccl("gloo")


@all_kinds
def test_allreduce(session_kind):
    with begin(session_kind) as sess:
        source = filled(sess, {0: A, 1: B})
        for op, expected in REDUCED.items():
            target = sess.empty((3, 4), "float32")
            sess.allreduce(source, target, op=op)
            sess.sync_worker_0()
            for worker in range(2):
                np.testing.assert_equal(numpy(target, worker), expected)
        with pytest.raises(ValueError, match="Unsupported reduce op: mid.*sum, prod, min, max, avg"):
            sess.allreduce(source, source, op="mid")


@kinds
def test_group_allreduce(session_kind):
    with begin(session_kind, 4, 2) as sess:
        more = np.arange(30, dtype="float32").reshape(5, 6)
        one, two = filled(sess, {0: A, 1: B}), filled(sess, {2: more, 3: more[::-1]})
        for op, expected in REDUCED.items():
            first, second = sess.empty((3, 4), "float32"), sess.empty((5, 6), "float32")
            sess.allreduce(one, first, op=op)
            sess.allreduce(two, second, op=op)
            for worker in range(2):
                np.testing.assert_equal(numpy(first, worker), expected)
        sess.allreduce(two, second, "sum")
        for worker in (2, 3):
            np.testing.assert_equal(numpy(second, worker), more + more[::-1])
        for worker in range(4):
            one.debug_copy_from(worker, A)
        sess.allreduce(one, one, in_group=False)
        np.testing.assert_equal(numpy(one, 3), 4 * A)


ROWS = np.arange(36, dtype="float32")
FIRST, SECOND = ROWS[:18].reshape(3, 3, 2), ROWS[18:].reshape(3, 3, 2)


@all_kinds
def test_allgather(session_kind):
    with begin(session_kind) as sess:
        source, target = filled(sess, {0: FIRST, 1: SECOND}), sess.empty((3, 4, 3), "float32")
        sess.allgather(source, target)
        for worker in range(2):
            np.testing.assert_equal(numpy(target, worker), ROWS.reshape(3, 4, 3))


@kinds
def test_group_allgather(session_kind):
    with begin(session_kind, 4, 2) as sess:
        source = filled(sess, {0: FIRST, 1: SECOND, 2: SECOND, 3: FIRST})
        target = sess.empty((3, 4, 3), "float32")
        sess.allgather(source, target)
        for worker in range(4):
            parts = (FIRST, SECOND) if worker < 2 else (SECOND, FIRST)
            np.testing.assert_equal(numpy(target, worker).reshape(2, 3, 3, 2), parts)


@all_kinds
@pytest.mark.parametrize("explicit", [True, False])
def test_broadcast(session_kind, explicit):
    with begin(session_kind) as sess:
        if explicit:
            source, target = sess.copy_to_worker_0(tvm.runtime.tensor(A)), sess.empty((3, 4), "float32")
            sess.broadcast_from_worker0(source, target)
        else:
            target = sess.broadcast(tvm.runtime.tensor(A))
        for worker in range(2):
            np.testing.assert_equal(numpy(target, worker), A)


@kinds
def test_group_broadcast(session_kind):
    with begin(session_kind, 4, 2) as sess:
        source = sess.empty((3, 4), "float32", worker0_only=True, in_group=True)
        target = sess.empty((3, 4), "float32")
        source.debug_copy_from(0, A)
        source.debug_copy_from(2, B)
        sess.broadcast_from_worker0(source, target)
        for worker in range(4):
            np.testing.assert_equal(numpy(target, worker), A if worker < 2 else B)
        assert [source.debug_get_from_remote(worker) for worker in (1, 3)] == [None, None]


@all_kinds
@pytest.mark.parametrize("explicit", [True, False])
def test_scatter(session_kind, explicit, capfd):
    array = ROWS.reshape(2, 6, 3)
    with begin(session_kind) as sess:
        if explicit:
            source, target = sess.copy_to_worker_0(array), sess.empty((6, 3), "float32")
            sess.scatter_from_worker0(source, target)
        else:
            target = sess.scatter(array)
        for worker in range(2):
            np.testing.assert_equal(numpy(target, worker), array[worker])
    assert capfd.readouterr().err == ""


@kinds
def test_group_scatter(session_kind, capfd):
    with begin(session_kind, 4, 2) as sess:
        source = sess.empty((2, 6, 3), "float32", worker0_only=True)
        source.debug_copy_from(0, ROWS.reshape(2, 6, 3))
        source.debug_copy_from(2, -ROWS.reshape(2, 6, 3))
        target = sess.empty((6, 3), "float32")
        sess.scatter_from_worker0(source, target)
        for worker in range(4):
            sign = 1 if worker < 2 else -1
            np.testing.assert_equal(numpy(target, worker), sign * ROWS.reshape(2, 6, 3)[worker % 2])
    assert capfd.readouterr().err == ""


@kinds
def test_scatter_with_implicit_reshape(session_kind, capfd):
    with begin(session_kind) as sess:
        source, target = sess.copy_to_worker_0(ROWS.reshape(3, 4, 3)), sess.empty((3, 3, 2), "float32")
        sess.scatter_from_worker0(source, target)
        for worker, expected in enumerate((FIRST, SECOND)):
            np.testing.assert_equal(numpy(target, worker), expected)
    assert capfd.readouterr().err == ""


@all_kinds
def test_gather(session_kind, capfd):
    with begin(session_kind) as sess:
        source = filled(sess, {0: FIRST, 1: SECOND})
        target = sess.empty((3, 4, 3), "float32", worker0_only=True)
        sess.gather_to_worker0(source, target)
        back = tvm.nd.empty((3, 4, 3), "float32")
        sess.copy_from_worker_0(back, target)
        sess.sync_worker_0()
        np.testing.assert_equal(back.numpy(), ROWS.reshape(3, 4, 3))
    assert capfd.readouterr().err == ""


@kinds
def test_group_gather(session_kind, capfd):
    with begin(session_kind, 4, 2) as sess:
        source = filled(sess, {0: FIRST, 1: SECOND, 2: SECOND, 3: FIRST})
        target = sess.empty((3, 4, 3), "float32", worker0_only=True)
        sess.gather_to_worker0(source, target)
        np.testing.assert_equal(numpy(target, 0), ROWS.reshape(3, 4, 3))
        np.testing.assert_equal(numpy(target, 2).reshape(2, 3, 3, 2), (SECOND, FIRST))
        assert target.debug_get_from_remote(3) is None
    assert capfd.readouterr().err == ""


@all_kinds
def test_send_to_next_group_receive_from_prev_group(session_kind):
    with begin(session_kind, 4, 2) as sess:
        buffer = filled(sess, {0: A, 1: B})
        sess.get_global_func(f"runtime.disco.{CCL}.test_send_to_next_group_recv_from_prev_group")(buffer)
        for worker in range(4):
            np.testing.assert_equal(numpy(buffer, worker), B if worker % 2 else A)


@all_kinds
def test_worker2_send_to_worker0(session_kind):
    with begin(session_kind, 4, 2) as sess:
        buffer = filled(sess, {0: A, 1: A, 2: B, 3: A})
        sess.get_global_func(f"runtime.disco.{CCL}.test_worker2_sends_to_worker0")(buffer)
        for worker in range(4):
            np.testing.assert_equal(numpy(buffer, worker), A if worker % 2 else B)


@kinds
def test_mlp(session_kind):
    """A layer whose columns and another one whose rows are divided, as TVM's test has it compiled."""

    def mlp(x, up, down):
        return np.maximum(np.asarray(x) @ np.asarray(up), 0) @ np.asarray(down)

    generator = np.random.default_rng(0)
    x, up, down = (generator.standard_normal(shape, "float32") for shape in ((8, 16), (16, 32), (32, 16)))
    with begin(session_kind) as sess:
        ups = sess.scatter(np.ascontiguousarray(up.reshape(16, 2, 16).transpose(1, 0, 2)))
        downs = sess.scatter(down.reshape(2, 16, 16))
        total = di.DPackedFunc(sess._session.function(mlp), sess)(sess.broadcast(x), ups, downs)
        sess.allreduce(total, total)
        for worker in range(2):
            np.testing.assert_allclose(numpy(total, worker), np.maximum(x @ up, 0) @ down, rtol=1e-4, atol=1e-4)


# The functions of workers.


@kinds
def test_functions_of_workers(session_kind):
    def send_from_0_to_all(buffer):
        from sheave.compat import tvm

        if tvm.get_global_func("runtime.disco.worker_rank")() > 0:
            tvm.get_global_func("runtime.disco.recv_from_worker0")(buffer)
        else:
            for other in range(1, 4):
                tvm.get_global_func("runtime.disco.send_to_worker")(buffer, other)

    with begin(session_kind, 4, 2) as sess:

        def call(name, *args):
            return sess.get_global_func(f"runtime.disco.{name}")(*args)

        made = call("empty", ShapeTuple([2]), "float32", tvm.cpu(), True, False)
        assert [made.debug_get_from_remote(worker) is None for worker in range(4)] == [False, True, True, True]
        own = filled(sess, {worker: np.full(2, worker, "float32") for worker in range(4)})
        one, two = sess.empty((2,), "float32"), sess.empty((4,), "float32")
        call("allreduce", own, ShapeTuple([3]), False, one)
        assert [numpy(one, worker).tolist() for worker in range(4)] == [[3, 3]] * 4
        call("allgather", own, True, two)
        assert [numpy(two, worker).tolist() for worker in (0, 3)] == [[0, 0, 1, 1], [2, 2, 3, 3]]
        call("scatter_from_worker0", two, True, one := sess.empty((2,), "float32"))
        assert [numpy(one, worker).tolist() for worker in range(4)] == [[0, 0], [1, 1], [2, 2], [3, 3]]
        call("broadcast_from_worker0", own, False, one)
        assert [numpy(one, worker).tolist() for worker in range(4)] == [[0, 0]] * 4
        call("gather_to_worker0", own, True, two)
        assert numpy(two, 2).tolist() == [2, 2, 3, 3]
        send = di.DPackedFunc(sess._session.function(send_from_0_to_all), sess)
        send(own)
        assert [numpy(own, worker).tolist() for worker in range(4)] == [[0, 0]] * 4
        call("allreduce", own, ShapeTuple([9]), False, one)
        for worker in range(4):
            with pytest.raises(ValueError, match="reduction 9; expected 0 to 4"):
                sess._sync_worker(worker)


@kinds
def test_messages_without_another_end_are_errors(session_kind):
    with begin(session_kind, 1) as sess:
        buffer = sess.empty((2,), "float32")
        for name, *more in (
            ("recv_from_worker0",),
            ("send_to_worker", 0),
            ("recv_from_worker", 1),
            ("send_to_next_group",),
            ("recv_from_prev_group",),
        ):
            sess.get_global_func(f"runtime.disco.{name}")(buffer, *more)
            with pytest.raises(RuntimeError):
                sess.sync_worker_0()


# Items of what a better implementation should handle.


def test_item_6_tensors_come_from_and_go_to_other_nodes():
    with SocketSessionTester(4) as sess:
        ref = sess.get_global_func("tests.disco.add_one_tensor")(np.zeros((2, 3), "float32"))
        ref.debug_copy_from(3, np.arange(6, dtype="float32"))
        assert [numpy(ref, worker).ravel().tolist() for worker in (2, 3)] == [[1] * 6, [0, 1, 2, 3, 4, 5]]


def test_item_7_the_interpreter_is_let_go_while_nodes_are_waited_for():
    port, sessions = sheave._core._free_port(), []
    thread = threading.Thread(target=lambda: sessions.append(di.SocketSession(2, 1, 1, "localhost", port)))
    thread.start()
    time.sleep(0.2)
    node = subprocess.Popen(
        [sys.executable, "-m", "sheave.compat.tvm.exec.disco_remote_socket_session", "localhost", str(port), "1"]
    )
    thread.join(30)
    with sessions[0] as sess:
        assert sess.get_global_func("tests.disco.add_one")(1).debug_get_from_remote(1) == 2
    assert node.wait(20) == 0


@kinds
def test_item_9_data_within_groups_goes_to_every_leader(session_kind):
    with begin(session_kind, 4, 2) as sess:
        everywhere = sess.broadcast(A)
        rows = sess.scatter(A[:2])
        for worker in range(4):
            np.testing.assert_equal(numpy(everywhere, worker), A)
            np.testing.assert_equal(numpy(rows, worker), A[worker % 2])
        with pytest.raises(AssertionError, match="expected 2 rows, one for each worker of a group"):
            sess.scatter(np.zeros((4, 1), "float32"))
        with pytest.raises(AssertionError, match="expected 4 rows, one for each worker$"):
            sess.scatter(A[:2], in_group=False)
        flat = sess.scatter(np.arange(4, dtype="float32"), in_group=False)
        assert [float(numpy(flat, worker)) for worker in range(4)] == [0, 1, 2, 3]


@kinds
def test_item_10_operations_return_where_their_result_is(session_kind):
    with begin(session_kind) as sess:
        source, target = sess.broadcast(A), sess.empty((3, 4), "float32")
        for issue in (sess.broadcast_from_worker0, sess.allreduce):
            assert issue(source, target) is target
        assert sess.copy_to_worker_0(A, target) is target
        np.testing.assert_equal(numpy(sess.broadcast_from_worker0(B), 1), B)
        np.testing.assert_equal(numpy(sess.scatter_from_worker0(A[:2]), 1), A[1])
        np.testing.assert_equal(numpy(sess.allgather(source), 1), [A, A])
        np.testing.assert_equal(numpy(sess.gather_to_worker0(source), 0), [A, A])
        np.testing.assert_equal(numpy(sess.allreduce(source), 1), 2 * A)


@kinds
def test_item_11_tensors_that_do_not_fit_are_refused_by_all_before_anything_moves(session_kind):
    with begin(session_kind) as sess:
        source, small, other = filled(sess, {0: A, 1: B}), sess.broadcast(A[:2]), sess.broadcast(A.astype("int32"))
        for issue in (
            lambda: sess.allreduce(source, small),
            lambda: sess.allgather(source, small),
            lambda: sess.broadcast_from_worker0(source, other),
            lambda: sess.broadcast(A, small),
        ):
            issue()
            for worker in range(2):
                with pytest.raises(RuntimeError, match="expected"):
                    sess._sync_worker(worker)
        np.testing.assert_equal(numpy(small, 1), A[:2])
        np.testing.assert_equal(numpy(sess.allreduce(source), 1), A + B)


@kinds
def test_item_12_arrays_of_the_controller_are_captured_and_checked(session_kind):
    with begin(session_kind) as sess:
        array = tvm.runtime.tensor(np.ones(1 << 16, "float32"))
        first = sess.copy_to_worker_0(array)
        array.copyfrom(np.zeros(1 << 16))
        assert (numpy(first, 0) == 1).all() and first.debug_get_from_remote(1) is None
        back = tvm.nd.empty((3,), "float32")
        nothing = sess.empty((3,), "float32", worker0_only=True)
        nothing.debug_copy_from(0, np.zeros(3, "float32"))
        sess.copy_from_worker_0(back, first)
        with pytest.raises(RuntimeError, match="expected"):
            sess.sync_worker_0()
        sess.copy_from_worker_0(back, sess.get_global_func("runtime.disco._import_python_module")("json"))
        with pytest.raises(ValueError):
            sess.sync_worker_0()
        assert back.numpy().tolist() == [0, 0, 0]


@kinds
def test_item_16_a_copy_that_fails_does_not_shift_those_behind_it(session_kind):
    with begin(session_kind) as sess:
        first, other = sess.copy_to_worker_0(A), sess.copy_to_worker_0(B)
        small, back, last = (tvm.nd.empty(shape, "float32") for shape in ((2,), (3, 4), (3, 4)))
        sess.copy_from_worker_0(small, first)
        sess.copy_from_worker_0(back, first)
        with pytest.raises(RuntimeError):
            sess.copy_to_worker_0(threading.Lock())
        sess.copy_from_worker_0(last, other)
        with pytest.raises(RuntimeError):
            sess.sync_worker_0()
        np.testing.assert_equal(back.numpy(), A)
        np.testing.assert_equal(last.numpy(), B)


def test_item_18_a_node_with_another_number_of_workers_is_refused():
    port = sheave._core._free_port()
    node = subprocess.Popen(
        [sys.executable, "-m", "sheave.compat.tvm.exec.disco_remote_socket_session", "localhost", str(port), "2"],
        stderr=subprocess.PIPE,
        text=True,
    )
    with pytest.raises(RuntimeError):
        di.SocketSession(3, 1, 1, "localhost", port)
    assert node.wait(20) == 1 and "Traceback" not in node.stderr.read()
    for arguments in ((2, 3, 4), (0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ValueError):
            di.SocketSession(*arguments, "localhost", port)


@kinds
def test_item_20_a_module_is_loaded_where_it_is(session_kind, tmp_path):
    with begin(session_kind) as sess:
        loaded = sess.load_vm_module(str(tmp_path / "model.py"))
        for worker in range(2):
            with pytest.raises(FileNotFoundError, match="model.py does not exist where the worker runs"):
                sess._sync_worker(worker)
        (tmp_path / "model.py").write_text("def half(x):\n    return x.numpy() / 2\n")
        del loaded
        half = sess.load_vm_module(str(tmp_path / "model.py"))["half"]
        np.testing.assert_equal(numpy(half(sess.broadcast(A)), 1), A / 2)


@kinds
def test_item_22_integers_wrap_and_their_average_is_cut_off(session_kind):
    with begin(session_kind) as sess:
        numbers = filled(sess, {0: np.array([-3, 3, 100], "int8"), 1: np.array([0, 0, 100], "int8")})
        assert numpy(sess.allreduce(numbers, op="avg"), 1).tolist() == [-1, 1, -28]
        assert numpy(sess.allreduce(numbers), 0).tolist() == [-3, 3, -56]
        truths = sess.broadcast(np.array([True, False]))
        assert numpy(sess.allreduce(truths, op="max"), 1).tolist() == [True, False]
        sess.allreduce(truths)
        for worker in range(2):
            with pytest.raises(RuntimeError):
                sess._sync_worker(worker)


@kinds
def test_tensors_of_other_devices_are_refused(session_kind):
    with begin(session_kind) as sess:
        with pytest.raises(ValueError, match="a tensor on cuda:0; expected cpu"):
            sess.empty((2,), "float32", tvm.cuda(0))
        assert sess.empty((2,), "bfloat16", tvm.cpu(1)).debug_get_from_remote(1).dtype == "bfloat16"


# Parameters from files.


def _dump(folder, parameters):
    """Files as ``tvmjs.dump_tensor_cache`` writes them."""
    records = []
    for at, (name, array) in enumerate(parameters.items()):
        (folder / f"params_shard_{at}.bin").write_bytes(b"\0" * at + array.tobytes())
        record = {"name": name, "shape": array.shape, "dtype": str(array.dtype), "format": "raw"}
        record |= {"nbytes": array.nbytes, "byteOffset": at}
        records.append({"dataPath": f"params_shard_{at}.bin", "format": "raw-shard", "records": [record]})
    metadata = {"metadata": {"ParamSize": len(records)}, "records": records}
    (folder / "tensor-cache.json").write_text(json.dumps(metadata))


def _loader(sess, folder, shard_info):
    path = folder / "tensor-cache.json"
    create = sess.get_global_func("runtime.disco.ShardLoader")
    return create(str(path), path.read_text(), json.dumps(shard_info), None)


LEFT = np.arange(64 * 128, dtype="float32").reshape(64, 128)
RIGHT = np.arange(32 * 128, dtype="float16").reshape(32, 128)
SHARDS = {
    "param_0": [["tests.disco.shard_dim_1", [[2, 64, 64], "float32"], 2]],
    "param_1": [["tests.disco.shard_dim_0", [[2, 16, 128], "float16"], 2]],
}


@pytest.fixture
def cutting():
    """Functions that cut, in the process where worker 0 is."""

    def shard_dim_0(src, shards, target):
        target.copyfrom(src.numpy().reshape(shards, src.shape[0] // shards, *src.shape[1:]))

    def shard_dim_1(src, shards, target):
        rows, columns = src.shape
        target.copyfrom(src.numpy().reshape(rows, shards, columns // shards).transpose(1, 0, 2))

    names = {"tests.disco.shard_dim_0": shard_dim_0, "tests.disco.shard_dim_1": shard_dim_1}
    for name, function in names.items():
        tvm.register_func(name, function, override=True)
    yield
    for name in names:
        tvm.remove_global_func(name)


@kinds
def test_load_shard(session_kind, tmp_path, cutting):
    _dump(tmp_path, {"param_0": LEFT, "param_1": RIGHT, "param_2": A})
    with begin(session_kind) as sess:
        loader = _loader(sess, tmp_path, SHARDS)
        load = sess.get_global_func("runtime.disco.ShardLoaderLoad")
        parts = [load(loader, ShapeTuple([index])) for index in range(3)]
        everything = sess.get_global_func("runtime.disco.ShardLoaderLoadAll")(loader)
        for worker in range(2):
            expected = [np.split(LEFT, 2, 1)[worker], np.split(RIGHT, 2)[worker], A]
            for part, again, array in zip(parts, everything.debug_get_from_remote(worker), expected, strict=True):
                assert part.debug_get_from_remote(worker).dtype == str(array.dtype)
                np.testing.assert_equal(numpy(part, worker), array)
                np.testing.assert_equal(again.numpy(), array)
        first = sess.get_global_func("runtime.disco.ShardLoaderLoadParamOnWorker0")(loader, 0)
        np.testing.assert_equal(numpy(first, 0), LEFT)
        assert first.debug_get_from_remote(1) is None
        load(loader, ShapeTuple([3]))
        for worker in range(2):
            with pytest.raises(IndexError, match="parameter 3 of 3"):
                sess._sync_worker(worker)
        _loader(sess, tmp_path, {"param_9": SHARDS["param_0"]})
        for worker in range(2):
            with pytest.raises(ValueError, match="no file has: param_9"):
                sess._sync_worker(worker)


@kinds
def test_load_presharded(session_kind, tmp_path):
    parts = {f"param_0_shard-{worker + 1}-of-2": part for worker, part in enumerate(np.split(RIGHT, 2))}
    _dump(tmp_path, {**parts, "param_1": A})
    with begin(session_kind) as sess:
        loader = _loader(sess, tmp_path, {"param_0": SHARDS["param_1"]})
        load = sess.get_global_func("runtime.disco.ShardLoaderLoadPresharded")
        one = load(loader, ShapeTuple([0]))
        everything = sess.get_global_func("runtime.disco.ShardLoaderLoadAllPresharded")(loader)
        for worker in range(2):
            np.testing.assert_equal(numpy(one, worker), np.split(RIGHT, 2)[worker])
            both = everything.debug_get_from_remote(worker)
            np.testing.assert_equal(both[0].numpy(), np.split(RIGHT, 2)[worker])
            np.testing.assert_equal(both[1].numpy(), A)
