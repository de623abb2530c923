"""The store of MXNet's face, within one process."""

import doctest
import warnings

import numpy as np
import pytest
import sheave.compat
import sheave.compat.mxnet as mx
from conftest import lacks_torch, modules_of

SHAPE = (3, 4)
LOCAL = ["local", "local_update_cpu", "local_allreduce_cpu", "device", "local_allreduce_device"]


def filled(value, shape=SHAPE, **options):
    return mx.nd.full(shape, value, **options)


def pulled(store, key, shape=SHAPE, **options):
    place = mx.nd.full(shape, -1, **options)
    store.pull(key, out=place)
    return place.asnumpy()


def made(kind="local", **values):
    store = mx.kv.create(kind)
    for key, value in values.items():
        store.init(key, value if isinstance(value, mx.nd.NDArray) else filled(value))
    return store


def test_examples_run():
    results = [doctest.testmod(module) for module in modules_of(sheave.compat) if not lacks_torch(module)]
    assert sum(result.attempted for result in results) > 40 and not any(result.failed for result in results)


@pytest.mark.parametrize("kind", LOCAL)
def test_values_of_devices_are_summed_and_every_device_is_filled(kind):
    store = mx.kv.create(kind)
    assert (store.type, store.rank, store.num_workers, store.is_capable("optimizer")) == (kind, 0, 1, True)
    keys = [5, 7]
    store.init(keys, [filled(0)] * 2)
    store.push(keys, [[filled(device + key, ctx=mx.gpu(device)) for device in range(4)] for key in keys])
    places = [[mx.nd.empty(SHAPE, mx.gpu(device)) for device in range(4)] for _ in keys]
    store.pull(keys, out=places)
    for key, row in zip(keys, places, strict=True):
        assert all((place.asnumpy() == 6 + 4 * key).all() for place in row)


def test_equal_keys_are_one_push_and_updates_run_by_ascending_key():
    store = mx.kv.create()
    store.init([3, 4], [filled(0)] * 2)
    calls = []

    def updater(key, received, stored):
        calls.append((key, float(received.asnumpy()[0, 0])))
        stored += received

    store._set_updater(updater)
    store.push([4, 3, 4, 3], [filled(value) for value in (1, 2, 4, 8)])
    assert calls == [(3, 10.0), (4, 5.0)]
    assert (pulled(store, 3) == 10).all() and (pulled(store, 4) == 5).all()


def test_nothing_is_aliased():
    first, gradient = filled(1), filled(2)
    store = made(weight=first)
    first += 10
    assert (pulled(store, "weight") == 1).all()
    store.push("weight", gradient)
    gradient += 10
    assert (pulled(store, "weight") == 2).all()
    place = mx.nd.empty(SHAPE)
    store.pull("weight", out=place)
    place += 10
    assert (pulled(store, "weight") == 2).all()


def test_pulls_fill_whatever_array_there_is():
    store = mx.kv.create()
    value = mx.nd.array(np.arange(12).reshape(SHAPE))
    store.init([1, 2], [value, value + 100])
    whole = mx.nd.zeros((3, 8))
    halves, wide, half = whole[:, ::2], mx.nd.zeros(SHAPE, dtype="float64"), mx.nd.zeros(SHAPE, dtype="float16")
    store.pull(1, out=[halves, wide, half])
    for place in (halves, wide, half):
        np.testing.assert_array_equal(place.asnumpy(), value.asnumpy())
    assert (whole.asnumpy()[:, 1::2] == 0).all()
    # One place for two keys: the larger key has the last word, in whichever order they are given.
    store.pull([2, 1], out=[wide, wide])
    np.testing.assert_array_equal(wide.asnumpy(), value.asnumpy() + 100)
    same = mx.nd.zeros(SHAPE)
    store.pull([2, 1], out=[same, same])
    np.testing.assert_array_equal(same.asnumpy(), value.asnumpy() + 100)


@pytest.mark.parametrize("inplace", [True, False])
def test_pushpull_and_broadcast(inplace):
    store = mx.kv.create("device")
    place = mx.nd.empty(SHAPE)
    store.broadcast("a", filled(7), place)
    assert (place.asnumpy() == 7).all()
    with pytest.raises(mx.MXNetError, match="duplicate init"):
        store.broadcast("a", filled(7), place)
    values = [filled(device) for device in range(4)]
    outs = values if inplace else [mx.nd.empty(SHAPE) for _ in values]
    store.pushpull("a", values, None if inplace else outs)
    assert all((out.asnumpy() == 6).all() for out in outs)
    assert inplace or (values[3].asnumpy() == 3).all()


@pytest.mark.parametrize(
    ("keys", "values", "error"),
    [
        (1.5, "array", AssertionError),
        (np.int64(3), "array", AssertionError),
        (1 << 31, "array", OverflowError),
        ([1, "a"], ["array", "array"], AssertionError),
        ([1, 2], ["array"], AssertionError),
        ([1, 2], "array", AssertionError),
        (1, np.ones(SHAPE), AssertionError),
        (1, [["array"]], AssertionError),
    ],
)
def test_what_is_no_key_or_value_is_refused(keys, values, error):
    def arrays(given):
        if isinstance(given, list):
            return [arrays(one) for one in given]
        return filled(1) if isinstance(given, str) else given

    store = made(k=0)
    for operation in (store.init, store.push, store.pull):
        with pytest.raises(error):
            operation(keys, arrays(values))
    assert (pulled(store, "k") == 0).all()


def test_what_the_store_does_not_have_is_refused_before_anything_moves():
    store = made(k=0)
    with pytest.raises(mx.MXNetError, match="Mixed key types"):
        store.init(3, filled(1))
    with pytest.raises(mx.MXNetError, match="Mixed key types"):
        store.pull(3, filled(1))
    for act in (lambda: store.init("k", filled(1)), lambda: store.init("new", [filled(1), filled(2)])):
        with pytest.raises(mx.MXNetError, match="duplicate init"):
            act()
    for act in (lambda: store.push("none", [filled(1)] * 2), lambda: store.pull("none", filled(1))):
        with pytest.raises(mx.MXNetError, match="'none' has not been inited"):
            act()
    for array in (filled(1, (4, 3)), filled(1, dtype="float64")):
        with pytest.raises(mx.MXNetError):
            store.push("k", array)
    with pytest.raises(mx.MXNetError, match="shape mismatch"):
        store.pull("k", filled(1, (4, 3)))
    with pytest.raises(AssertionError):
        store.pull("k")
    store.push([], [])
    assert (pulled(store, "k") == 0).all()


def test_names_of_kinds():
    assert mx.kv.create("LOCAL").type == "local"
    for name in ("foo", "", "nccl", "p3"):
        with pytest.raises(mx.MXNetError, match="there is no kind"):
            mx.kv.create(name)
    with pytest.raises(TypeError):
        mx.kv.create(3)
    with pytest.raises(ValueError, match="Unknown capability"):
        mx.kv.create().is_capable("flying")


def test_the_test_store_and_stores_of_ones_own(monkeypatch):
    store = mx.kv.create("TestStore")
    assert (store.type, store.rank, store.num_workers) == ("teststore", 0, 1)
    assert not type(store).is_capable("optimizer")
    for act in (lambda: store.set_optimizer(None), lambda: store.save_optimizer_states("none")):
        with pytest.raises(NotImplementedError):
            act()
    monkeypatch.setattr(mx.kv.KVStoreBase, "kv_registry", dict(mx.kv.KVStoreBase.kv_registry))

    class Local(mx.kv.KVStoreBase):
        pass

    assert mx.kv.KVStoreBase.register(Local) is Local
    assert type(mx.kv.create("local")) is Local
    with pytest.warns(UserWarning, match="second time"):
        mx.kv.KVStoreBase.register(type("TestStore", (mx.kv.KVStoreBase,), {}))


def test_what_an_updater_raises_comes_out_of_push():
    store = made(k=1)

    def updater(key, received, stored):
        assert key == b"k"
        raise ZeroDivisionError("no good")

    store._set_updater(updater)
    with pytest.raises(mx.MXNetError, match="no good"):
        store.push("k", filled(1))
    assert (pulled(store, "k") == 1).all()
    with pytest.raises(mx.MXNetError):
        store._set_updater(None)


OPTIMIZERS = [
    ("sgd", {"learning_rate": 0.1}),
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01, "clip_gradient": 0.5}),
    ("nag", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}),
    ("adam", {"learning_rate": 0.1, "wd": 0.1, "clip_gradient": 0.7}),
    ("adamw", {"learning_rate": 0.1, "wd": 0.1}),
    ("lamb", {"learning_rate": 0.1, "wd": 0.1, "upper_bound": 2.0}),
    ("adagrad", {"learning_rate": 0.1, "wd": 0.1}),
    ("rmsprop", {"learning_rate": 0.1, "wd": 0.1}),
    ("rmsprop", {"learning_rate": 0.1, "centered": True}),
    ("test", {}),
    ("sgd", {"learning_rate": 0.4, "lr_scheduler": lambda: mx.lr_scheduler.FactorScheduler(2, 0.5)}),
    ("sgd", {"learning_rate": 0.4, "lr_scheduler": lambda: mx.lr_scheduler.MultiFactorScheduler([1, 3], 0.5)}),
    ("sgd", {"learning_rate": 0.4, "lr_scheduler": lambda: mx.lr_scheduler.PolyScheduler(4, pwr=2, warmup_steps=2)}),
    ("sgd", {"learning_rate": 0.4, "lr_scheduler": lambda: mx.lr_scheduler.CosineScheduler(5, final_lr=0.1)}),
]


@pytest.mark.parametrize(("name", "settings"), OPTIMIZERS)
def test_native_optimizers_step_as_those_in_python(name, settings):
    """Two implementations that share nothing, one in Rust and one in numpy."""

    def optimizer():
        arguments = {key: value() if callable(value) else value for key, value in settings.items()}
        return mx.optimizer.create(name, rescale_grad=0.5, **arguments)

    random = np.random.default_rng(7)
    weight = mx.nd.array(random.standard_normal(SHAPE))
    store = made(w=weight)
    store.set_optimizer(optimizer())
    assert store._updater is None, "it runs natively"
    updater = mx.optimizer.get_updater(optimizer())
    for _ in range(6):
        gradients = [mx.nd.array(random.standard_normal(SHAPE)) for _ in range(2)]
        store.push("w", gradients)
        updater("w", gradients[0] + gradients[1], weight)
        np.testing.assert_allclose(pulled(store, "w"), weight.asnumpy(), rtol=2e-5, atol=2e-6)


def test_halves_with_copies_in_single_precision():
    random = np.random.default_rng(8)
    weights = {precise: mx.nd.ones(SHAPE, dtype="float16") for precise in (True, False)}
    for precise, weight in weights.items():
        settings = {"learning_rate": 1e-4, "multi_precision": precise}
        store = made(w=weight)
        store.set_optimizer(mx.optimizer.create("sgd", **settings))
        updater = mx.optimizer.get_updater(mx.optimizer.create("sgd", **settings))
        gradient = mx.nd.array(random.uniform(1, 2, SHAPE), dtype="float16")
        for _ in range(20):
            store.push("w", gradient)
            updater("w", gradient, weight)
        np.testing.assert_array_equal(pulled(store, "w", dtype="float16"), weight.asnumpy())
    assert (weights[False].asnumpy() == 1).all(), "a step is less than a half can tell"
    assert (weights[True].asnumpy() < 1).all()


def test_settings_that_change_hold_from_the_next_push_on():
    optimizer = mx.optimizer.create("sgd", learning_rate=1.0, momentum=0.5)
    store = made(w=0)
    store.set_optimizer(optimizer)
    store.push("w", filled(1))
    optimizer.set_learning_rate(0.0)
    optimizer.rescale_grad = 5
    store.push("w", filled(1))
    # The momentum of the first step has stayed.
    np.testing.assert_allclose(pulled(store, "w"), -1.5)
    store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.0, momentum=0.5))
    store.push("w", filled(1))
    np.testing.assert_allclose(pulled(store, "w"), -1.75)


class Counting(mx.optimizer.Optimizer):
    """Only Python can run it."""

    def create_state(self, index, weight):
        return mx.nd.zeros(weight.shape)

    def update(self, index, weight, grad, state):
        assert weight.shape == grad.shape == state.shape
        state += 1
        weight -= grad * state * self._get_lr(index)


@pytest.mark.parametrize("native", [True, False])
def test_states_are_saved_and_loaded(tmp_path, native):
    path = str(tmp_path / "states")

    def store():
        fresh = made(w=10)
        with pytest.raises(AssertionError):
            fresh.save_optimizer_states(path)
        kind = mx.optimizer.SGD(learning_rate=1.0, momentum=0.5) if native else Counting(learning_rate=1.0)
        fresh.set_optimizer(kind)
        return fresh

    first = store()
    first.push("w", filled(1))
    first.save_optimizer_states(path, dump_optimizer=not native)
    second = store()
    if native:
        second.push("w", filled(0))
    second.load_optimizer_states(path)
    before = pulled(second, "w")
    second.push("w", filled(1))
    np.testing.assert_allclose(before - pulled(second, "w"), 1.5 if native else 2)


def test_factors_of_single_parameters():
    optimizer = mx.optimizer.create("sgd", learning_rate=1.0, wd=0.5, param_idx2name={0: "a_weight", 1: "a_bias"})
    optimizer.set_lr_mult({"a_weight": 0.25})
    store = mx.kv.create()
    store.init([0, 1], [filled(2)] * 2)
    store.set_optimizer(optimizer)
    store.push([0, 1], [filled(1)] * 2)
    assert (pulled(store, 0) == 2 - 0.25 * 2).all() and (pulled(store, 1) == 1).all()


def rows(ids, value, shape=SHAPE, **options):
    values = np.full((len(ids), *shape[1:]), value, np.float32)
    return mx.nd.sparse.row_sparse_array((values, ids), shape=shape, **options)


def test_rows():
    store = mx.kv.create()
    store.init("e", filled(1).tostype("row_sparse"))
    places = [mx.nd.zeros(SHAPE, stype="row_sparse") for _ in range(3)]
    wanted = [mx.nd.array([[2, 0], [2, 2]]), mx.nd.array([1], dtype="int64"), mx.nd.array([])]
    store.row_sparse_pull("e", out=places, row_ids=wanted)
    assert [place.indices.asnumpy().tolist() for place in places] == [[0, 2], [1], []]
    assert [place.asnumpy().sum() for place in places] == [8, 4, 0]
    store.row_sparse_pull("e", out=places, row_ids=mx.nd.array([2]))
    assert all(place.indices.asnumpy().tolist() == [2] for place in places)
    # Without an updater what is not pushed vanishes; rows of several devices are united.
    store.push("e", [rows([0, 2], 3), rows([2], 4)])
    np.testing.assert_array_equal(pulled(store, "e")[:, 0], [3, 0, 7])
    store.pull("e", out=places[0], ignore_sparse=False)
    assert places[0].indices.asnumpy().tolist() == [0, 2]
    with pytest.raises(mx.MXNetError):
        store.row_sparse_pull("e", out=places[0], row_ids=mx.nd.array([3]))
    with pytest.raises(mx.MXNetError):
        store.row_sparse_pull("e", out=filled(0), row_ids=wanted[0])
    store.init("dense", filled(0))
    with pytest.raises(mx.MXNetError):
        store.row_sparse_pull("dense", out=places[0], row_ids=wanted[0])


def test_pull_leaves_sparse_arrays_as_they_are_and_says_so_once():
    store = made(w=5)
    place, dense = rows([1], 9), mx.nd.zeros(SHAPE)
    with pytest.warns(UserWarning, match="leaves its sparse outputs"):
        store.pull("w", out=[place, dense])
    assert place.asnumpy().sum() == 36 and (dense.asnumpy() == 5).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.pull("w", out=place)


@pytest.mark.parametrize("dense", [True, False])
def test_rows_reach_optimizers_and_updaters(dense):
    gradients = [rows([0, 2], 1), rows([2], 1)]
    given = gradients if not dense else [gradient.tostype("default") for gradient in gradients]
    store = made(w=filled(0).tostype("row_sparse"))
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, momentum=0.5))
    for _ in range(2):
        store.push("w", given)
    np.testing.assert_allclose(pulled(store, "w")[:, 0], [-2.5, 0, -5])
    seen = []

    def updater(key, received, stored):
        seen.append((received.stype, received.shape, stored.shape))
        stored += received

    store._set_updater(updater)
    store.push("w", given)
    np.testing.assert_allclose(pulled(store, "w")[:, 0], [-1.5, 0, -3])
    assert seen == [("default" if dense else "row_sparse", SHAPE, SHAPE)]


def test_compression():
    store = mx.kv.create("device")
    for parameters in ({"threshold": 0.5}, {"type": "3bit"}, {"type": "2bit", "threshold": -1}):
        with pytest.raises(mx.MXNetError):
            store.set_gradient_compression(parameters)
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5, "unknown": 1})
    store.init(1, filled(7))
    assert (pulled(store, 1) == 7).all()
    # Each value keeps what it could not send: 0.3 and 0.6, then 0.6 and 0.7.
    for expected in (0.5, 1.0):
        store.push(1, [filled(0.3), filled(0.6)])
        assert (pulled(store, 1) == expected).all()
    with pytest.raises(Exception, match="not supported for this type"):
        mx.kv.create("local").set_gradient_compression({"type": "2bit"})


def test_a_store_of_this_process_has_the_members_of_a_job():
    store = made(w=1)
    store._barrier()
    assert store._send_command_to_servers(7, "body") == []
    assert store.get_num_dead_node(7, 1) == 0
    store._set_barrier_before_exit(False)
    store.close()
    store.close()
