"""The arrays of MXNet's face: where they differ from numpy's, and how they wait."""

import copy
import pickle
import threading

import numpy as np
import pytest
import sheave.compat.mxnet as mx
from sheave.compat.mxnet import test_utils
from sheave.compat.mxnet._pending import Pending, track


def test_manners():
    assert mx.nd.array(np.ones(2)).dtype is np.float32 and mx.nd.array(mx.nd.ones(2, dtype="int8")).dtype is np.int8
    a = mx.nd.arange(6).reshape((2, 3))
    assert (a.shape, a.size, a.ndim, len(a), a.stype) == ((2, 3), 6, 2, 2, "default")
    assert a[1][2].shape == (1,) and a.sum().shape == (1,) and a[1, 2].asscalar() == 5
    assert (a > 2).asnumpy().tolist() == [[0, 0, 0], [1, 1, 1]] and (a == a).dtype is np.float32
    half = mx.nd.ones(3, dtype="float16")
    for result in (half * 2.5, 2 - half, half / np.float64(3), -half, half**2, half % 2, abs(half)):
        assert result.dtype is np.float16
    assert (mx.nd.ones(2, dtype="int32") * 2.5).asnumpy().tolist() == [2, 2]
    shapes = [a.reshape((1.0, -1)).shape, a.reshape((0, -1)).shape, a.reshape(3, 2).shape, a.reshape(shape=(6,)).shape]
    assert shapes == [(1, 6), (2, 3), (3, 2), (6,)]
    assert (np.ones((2, 3), np.float32) - a).asnumpy()[0].tolist() == [1, 0, -1]
    assert a.T.shape == (3, 2) and a.norm().asscalar() == pytest.approx(55**0.5) and a.argmax(axis=1)[0] == 2
    for wrong in (lambda: a + mx.nd.ones(4), lambda: a.reshape((4, 4)), lambda: a.copyto(mx.nd.ones(2))):
        with pytest.raises(mx.MXNetError):
            wrong()
    with pytest.raises(TypeError):
        a + "text"
    with pytest.raises(ValueError, match="ambiguous"):
        bool(a)


def test_indices_give_views():
    a = mx.nd.zeros((3, 4))
    a[1] += 2
    a[0][1] = 5
    a[2, 1:3] = mx.nd.array([7, 8])
    a[:, 3] = 9
    a.reshape((12,))[8] = 1
    assert a.asnumpy().tolist() == [[0, 5, 0, 9], [2, 2, 2, 9], [1, 7, 8, 9]]
    a[:] = 3
    picked = a[mx.nd.array([0, 2])]
    picked += 1
    assert (a.asnumpy() == 3).all() and picked.shape == (2, 4)
    first, *_ = a
    assert first.shape == (4,) and hash(a) != hash(first)


def test_copies_and_contexts():
    a = mx.nd.ones(3, mx.gpu(1))
    assert a.context == mx.gpu(1) == a.ctx and a.as_in_context(mx.gpu(1)) is a
    assert repr(a).endswith("<NDArray 3 @gpu(1)>")
    moved = a.copyto(mx.cpu(2))
    moved += 1
    assert (moved.context, a.asnumpy().tolist()) == (mx.cpu(2), [1, 1, 1])
    for twin in (copy.deepcopy(a), pickle.loads(pickle.dumps(a)), a.copy()):
        twin += 1
        assert (twin.asnumpy() == 2).all() and twin.context == mx.gpu(1)
    assert (a.asnumpy() == 1).all() and mx.num_gpus() == 0 == mx.device.num_gpus()
    with pytest.raises(KeyError):
        mx.Context("tpu")


def test_functions():
    a, b = mx.nd.array([[1, 2], [3, 4]]), mx.nd.ones((2, 2))
    assert mx.nd.dot(a, b).asnumpy().tolist() == [[3, 3], [7, 7]]
    assert mx.nd.concat(a, b, dim=0).shape == (4, 2) and mx.nd.stack(a, b).shape == (2, 2, 2)
    assert mx.nd.add_n(a, b, b)[0, 0] == 3 and mx.nd.maximum(a, 2)[0, 0] == 2 and mx.nd.subtract(1, a)[0, 1] == -1
    assert mx.nd.sqrt(a * a, out=b) is b and (b == a).sum() == 4
    assert mx.nd.softmax(a).sum() == pytest.approx(2) and mx.nd.where(a > 2, a, b * 0).sum() == 7
    assert mx.nd.one_hot(mx.nd.array([1, 0]), 3).asnumpy().tolist() == [[0, 1, 0], [1, 0, 0]]
    assert mx.nd.clip(a, 2, 3).asnumpy().tolist() == [[2, 2], [3, 3]] and mx.nd.eye(2).sum() == 2
    mx.random.seed(3)
    first = mx.nd.random.normal(shape=(2, 3))
    state = np.random.get_state()[1].tolist()
    mx.random.seed(3)
    assert (mx.nd.random.normal(shape=(2, 3)) == first).sum() == 6 and np.random.get_state()[1].tolist() == state


@pytest.mark.parametrize("stype", ["default", "row_sparse", "csr"])
def test_every_kind_of_storage_is_the_same_array(tmp_path, stype):
    dense = np.random.default_rng(5).integers(0, 2, (5, 4)).astype(np.float32)
    dense[2] = 0
    a = mx.nd.array(dense).tostype(stype)
    assert (a.stype, a.shape) == (stype, (5, 4))
    mx.nd.save(str(tmp_path / "arrays"), [a])
    twins = [a.copyto(mx.cpu(1)), a.astype("float64"), pickle.loads(pickle.dumps(a)), copy.deepcopy(a)]
    twins += [mx.nd.array(a), mx.nd.load(str(tmp_path / "arrays"))[0], mx.nd.zeros((5, 4), stype=stype)]
    a.copyto(twins[-1])
    for twin in twins:
        assert twin.stype == stype
        np.testing.assert_array_equal(twin.asnumpy(), dense)
    for other in ("default", "row_sparse", "csr"):
        np.testing.assert_array_equal(a.tostype(other).asnumpy(), dense)
    np.testing.assert_array_equal((a - 1).asnumpy(), dense - 1)
    np.testing.assert_array_equal((a + a).asnumpy(), dense * 2)
    np.testing.assert_array_equal(a[1:3].asnumpy(), dense[1:3])


def test_rows():
    a = mx.nd.sparse.row_sparse_array(([[3, 4], [1, 2]], [4, 1]), shape=(6, 2))
    assert a.indices.asnumpy().tolist() == [1, 4] and a.data.asnumpy().tolist() == [[1, 2], [3, 4]]
    assert [(a * 2).stype, (a + a).stype, (a - 1).stype] == ["row_sparse", "row_sparse", "default"]
    assert mx.nd.sparse.retain(a, mx.nd.array([4, 5])).indices.asnumpy().tolist() == [4]
    a[:] = 0
    assert a.asnumpy().sum() == 0
    for wrong in (([[1]], [0, 1]), ([[1], [1]], [0, 0]), ([[1]], [9])):
        with pytest.raises(ValueError):
            mx.nd.sparse.row_sparse_array(wrong, shape=(6, 1))
    matrix = mx.nd.sparse.csr_matrix(([5, 6], [1, 0], [0, 1, 2]), shape=(2, 2))
    assert matrix.asnumpy().tolist() == [[0, 5], [6, 0]]


def test_named_arrays_in_files(tmp_path):
    path = str(tmp_path / "named")
    mx.nd.save(path, {"a:b": mx.nd.ones(2), "c": mx.nd.zeros(1)})
    assert {name: array.asnumpy().tolist() for name, array in mx.nd.load(path).items()} == {"a:b": [1, 1], "c": [0]}
    (tmp_path / "named").write_bytes(b"something else")
    with pytest.raises(mx.MXNetError):
        mx.nd.load(path)


def test_f31_what_is_saved_replaces_the_old_file_whole_or_not_at_all(tmp_path, monkeypatch):
    path, elsewhere = tmp_path / "arrays", tmp_path / "elsewhere"
    mx.nd.save(str(elsewhere), [mx.nd.ones(2)])
    elsewhere.chmod(0o640)
    path.symlink_to(elsewhere)

    def broken(file, **arrays):
        file.write(b"half of it")
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", broken)
        with pytest.raises(OSError, match="full"):
            mx.nd.save(str(path), [mx.nd.zeros(2)])
    assert mx.nd.load(str(path))[0].asnumpy().tolist() == [1, 1], "the old one is whole"
    mx.nd.save(str(path), [mx.nd.zeros(2)])
    assert path.is_symlink() and elsewhere.stat().st_mode & 0o777 == 0o640, "the file that it leads to is the new one"
    assert mx.nd.load(str(elsewhere))[0].asnumpy().tolist() == [0, 0]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["arrays", "elsewhere"]


def test_f31_states_are_written_as_a_whole_too(tmp_path, monkeypatch):
    path = tmp_path / "states"
    path.write_bytes(b"the old ones")
    store = mx.kv.create("local")
    store.init("w", mx.nd.ones(2))
    store.set_optimizer(Remembering())
    store.push("w", mx.nd.ones(2))

    def fails(*_):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fails)
        with pytest.raises(OSError, match="full"):
            store.save_optimizer_states(str(path))
    assert path.read_bytes() == b"the old ones"
    store.save_optimizer_states(str(path))
    assert path.read_bytes() != b"the old ones"
    assert [file.name for file in tmp_path.iterdir()] == ["states"]


class Remembering(mx.optimizer.Optimizer):
    """An optimizer that only Python can run."""

    def create_state(self, index, weight):
        return mx.nd.zeros(weight.shape)

    def update(self, index, weight, grad, state):
        state += grad
        weight -= state


class Late:
    """A work that ends when it is told to."""

    def __init__(self, error=None):
        self.ended, self.error = threading.Event(), error

    def done(self):
        return self.ended.is_set()

    def result(self):
        assert self.ended.wait(20)
        if self.error:
            raise self.error


def test_whoever_touches_an_array_waits_for_what_is_under_way():
    a, work = mx.nd.zeros((2, 2)), Late()
    a._await(Pending([work], lambda: a._raw.fill(7)))
    view, seen = a.detach(), []
    thread = threading.Thread(target=lambda: seen.append(view.asnumpy().tolist()))
    thread.start()
    assert a.shape == (2, 2) and not seen, "what it is does not depend on what it holds"
    work.ended.set()
    thread.join(20)
    assert seen == [[[7, 7], [7, 7]]] and (a.asnumpy() == 7).all()


def test_operations_on_one_array_end_in_their_order():
    a, first, second = mx.nd.zeros(2), Late(), Late()
    earlier = Pending([first], lambda: a._raw.fill(1))
    a._await(earlier)
    later = Pending([second], lambda: a._raw.fill(2), [earlier])
    a._await(later)
    second.ended.set()
    assert not later.done() and not later.ended_well()
    first.ended.set()
    later.result()
    assert earlier.over() and a.asnumpy().tolist() == [2, 2]


def test_what_fails_is_told_to_readers_and_to_waitall():
    mx.nd.waitall()
    a, work = mx.nd.zeros(2), Late(mx.MXNetError("lost"))
    pending = Pending([work])
    a._await(pending)
    track(pending)
    work.ended.set()
    with pytest.raises(mx.MXNetError, match="lost"):
        a.wait_to_read()
    assert a.asnumpy().tolist() == [0, 0], "it is told once"
    mx.nd.waitall()
    track(Pending([work]))
    track(Pending([]))
    with pytest.raises(mx.MXNetError, match="lost"):
        mx.nd.waitall()
    mx.nd.waitall()


def test_utilities(monkeypatch):
    test_utils.assert_almost_equal(mx.nd.ones(2), np.ones(2) * 1.0001)
    with pytest.raises(AssertionError):
        test_utils.assert_almost_equal(np.ones(2), np.ones(2) * 1.0001)
    test_utils.assert_exception(mx.kv.create, mx.MXNetError, "nothing")
    with pytest.raises(AssertionError):
        test_utils.assert_exception(mx.kv.create, mx.MXNetError, "local")
    monkeypatch.setenv("ONE", "1")
    monkeypatch.delenv("TWO", raising=False)
    import os

    with test_utils.environment({"ONE": None, "TWO": "2"}), test_utils.environment("THREE", "3"):
        assert "ONE" not in os.environ and (os.environ["TWO"], os.environ["THREE"]) == ("2", "3")
    assert os.environ["ONE"] == "1" and "TWO" not in os.environ
    sparse = test_utils.rand_ndarray((40, 2), "row_sparse", density=0.5)
    assert sparse.stype == "row_sparse" and 5 < len(sparse.indices) < 35
    assert test_utils.rand_ndarray((3, 4), "csr").stype == "csr"
