"""The store within one process: values, keys, rows, updaters, optimizers, files."""

import gc
import threading
import weakref

import numpy as np
import pytest
import sheave
from sheave import optim


@pytest.fixture(params=["local", "device"])
def store(request):
    with sheave.KVStore(request.param) as store:
        yield store


def pulled(store, key, like):
    return store.pull(key, np.empty_like(like)).wait()


def test_kinds_have_mxnets_names():
    assert sheave.KVStore("LOCAL_allreduce_CPU").kind == "local"
    assert repr(sheave.KVStore("device")) == "<sheave.KVStore device, worker 0 of 1>"
    for name in ("", "foo", "horovod"):
        with pytest.raises(sheave.InvalidArgument, match="dist_sync"):
            sheave.KVStore(name)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64"])
def test_values_of_every_dtype_come_back(store, dtype):
    values = np.arange(12).reshape(3, 4).astype(dtype)
    store.init("w", values)
    kept = values.copy()
    values[:] = 0
    np.testing.assert_array_equal(pulled(store, "w", values), kept)
    store.push("w", kept[::-1])
    np.testing.assert_array_equal(pulled(store, "w", values), kept[::-1])


def test_numbers_and_texts_are_different_keys(store):
    store.init([1, "1", -1, 2**62, np.int64(5), ""], [np.full(2, at) for at in range(6)])
    for at, key in enumerate([1, "1", -1, 2**62, 5, ""]):
        assert pulled(store, key, np.empty(2, int)).tolist() == [at, at]
    for key in (True, 1.0, None, b"1", object()):
        with pytest.raises(TypeError, match="keys are int or str"):
            store.init(key, np.zeros(2))
    with pytest.raises(ValueError, match="64 bits"):
        store.init(2**63, np.zeros(2))


def test_a_store_that_its_own_updater_refers_to_is_collected():
    def used():
        store = sheave.KVStore("local")
        store.init("w", np.zeros(2))

        def update(key, received, stored):
            np.asarray(stored)[:] = np.asarray(received) * len(store.kind)

        store.set_updater(update)
        store.push("w", np.ones(2)).wait()
        assert pulled(store, "w", np.zeros(2)).tolist() == [5, 5]
        return weakref.ref(update), weakref.ref(store)

    function, store = used()
    gc.collect()
    assert function() is None and store() is None


def test_lists_of_keys_and_of_arrays(store):
    rng = np.random.default_rng(1)
    first, values = rng.standard_normal((3, 5)), rng.standard_normal((3, 4, 5))
    store.init(["a", "b", "c"], list(first))
    store.set_updater("sum")
    store.push(["a", "b", "c"], [list(arrays) for arrays in values]).wait()
    store.push("a", tuple(values[0]))
    outs = [[np.empty(5), np.empty(5)], np.empty(5), [np.empty(5)]]
    assert store.pull(["a", "b", "c"], outs).wait() is outs
    sums = values.sum(axis=1) * [[2], [1], [1]] + first
    np.testing.assert_allclose(outs[0][0], sums[0])
    assert (outs[0][0] == outs[0][1]).all()
    np.testing.assert_allclose(outs[1], sums[1])
    np.testing.assert_allclose(outs[2][0], sums[2])
    assert store.pull([], []).wait() == []


def test_what_does_not_fit_is_refused_before_anything_moves(store):
    store.init(["a", "b"], [np.zeros(3, np.float32), np.zeros((2, 2))])
    refused = [
        (LookupError, "not initialised", lambda: store.push("c", np.zeros(3, np.float32))),
        (LookupError, "not initialised", lambda: store.pull("c", np.zeros(3, np.float32))),
        (sheave.Mismatch, "f32", lambda: store.push("a", np.ones(4, np.float32))),
        (sheave.Mismatch, "f64", lambda: store.push(["b", "a"], [np.ones((2, 2)), np.ones(3)])),
        (sheave.Mismatch, "f64", lambda: store.pull("a", np.ones(3))),
        (sheave.AlreadyExists, "before", lambda: store.init("a", np.zeros(3))),
        (ValueError, "2 keys and 1 values", lambda: store.push(["a", "b"], [np.zeros(3)])),
        (ValueError, "needs a list", lambda: store.push(["a", "b"], np.zeros(2))),
        (TypeError, "a list is neither", lambda: store.push(["a"], [[[1.0]]])),
        (ValueError, "read-only", lambda: store.pull("a", np.broadcast_to(np.float32(0), 3))),
        (ValueError, "contiguous", lambda: store.pull("b", np.zeros((2, 4))[:, ::2])),
        (ValueError, "needs the values", lambda: store.init("d")),
        (BufferError, "overlap", lambda: store.pull(["a", "a"], [np.zeros(3, np.float32)] * 2)),
    ]
    for kind, text, attempt in refused:
        with pytest.raises(kind, match=text) as caught:
            attempt()
        assert isinstance(caught.value, sheave.SheaveError)
    assert not pulled(store, "a", np.zeros(3, np.float32)).any()
    assert not pulled(store, "b", np.zeros((2, 2))).any()


def test_keys_are_deleted_and_made_anew(store):
    store.init([1, 2], [np.zeros(2), np.zeros(2)])
    store.delete([1, 2])
    with pytest.raises(sheave.NotFound):
        store.delete(1)
    store.init(1, np.ones((3, 3), int))
    assert pulled(store, 1, np.empty((3, 3), int)).sum() == 9


def test_pushpull_overwrites_the_values(store):
    store.init("w", np.full(3, 10.0))
    store.set_updater("sum")
    gradient = np.array([1.0, 2.0, 3.0])
    assert store.pushpull("w", gradient).wait() is gradient
    assert gradient.tolist() == [11, 12, 13]
    out = np.empty(3)
    assert store.pushpull(["w"], [gradient], [out], priority=-3).wait()[0] is out
    assert out.tolist() == [22, 24, 26] and gradient.tolist() == [11, 12, 13]
    assert store.broadcast("v", np.ones(2), np.empty(2)).wait().tolist() == [1, 1]


def test_rows(store):
    rng = np.random.default_rng(3)
    table = np.zeros((50, 4), np.float32)
    ids, rows = rng.integers(0, 50, 20), rng.standard_normal((20, 4)).astype(np.float32)
    np.add.at(table, ids, rows)
    store.init_rows("t", (50, 4), ids=ids, rows=rows)
    store.set_updater("sum")
    for _ in range(5):
        ids, rows = rng.integers(0, 50, 9), rng.standard_normal((9, 4)).astype(np.float32)
        np.add.at(table, ids, rows)
        wanted = rng.integers(0, 50, (3, 4))
        out = store.push_pull_rows("t", ids, rows, wanted, np.empty((3, 4, 4), np.float32)).wait()
        np.testing.assert_allclose(out, table[wanted], rtol=1e-5, atol=1e-6)
    store.push_rows(["t"], [[]], [np.empty((0, 4), np.float32)]).wait()
    np.testing.assert_allclose(pulled(store, "t", table), table, rtol=1e-5, atol=1e-6)
    store.init_rows(["u", "v"], [(3,), (2, 2)], ["int64", "float16"])
    assert store.pull_rows("u", range(3), np.empty(3, int)).wait().tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="ids"):
        store.init_rows("x", (3, 2), rows=np.zeros((1, 2), np.float32))
    with pytest.raises(sheave.InvalidArgument, match="50"):
        store.pull_rows("t", [50], np.empty((1, 4), np.float32))
    with pytest.raises(sheave.Mismatch, match="i64"):
        store.pull_rows("t", np.array([1], np.int32), np.empty((1, 4), np.float32))
    for ids in ([1.7], [True, False, True], ["1"]):
        with pytest.raises(sheave.InvalidArgument, match="ids that numpy makes .* of; expected integers"):
            store.pull_rows("t", ids, np.empty((len(ids), 4), np.float32))


def test_an_updater_writes_where_the_value_lies(store):
    seen = []

    def average(key, received, stored):
        weights = stored.numpy()
        seen.append((key, stored.data_ptr, received.shape, threading.current_thread()))
        weights += received.numpy()
        weights /= 2

    store.init(["w", 3], [np.zeros((2, 3)), np.ones(2)])
    store.set_updater(average)
    store.push("w", [np.full((2, 3), 4.0), np.full((2, 3), 2.0)])
    store.push(["w", 3], [np.full((2, 3), 5.0), np.zeros(2)])
    assert (pulled(store, "w", np.empty((2, 3))) == 4).all()
    assert pulled(store, 3, np.empty(2)).tolist() == [0.5, 0.5]
    assert [(key, shape) for key, _, shape, _ in seen] == [("w", (6,)), ("w", (6,)), (3, (2,))]
    assert seen[0][1] == seen[1][1], "the same memory, without a copy"
    assert {thread for *_, thread in seen} == {threading.current_thread()}


@pytest.mark.parametrize("keep", ["stored", "stored.numpy()", "memoryview(stored)", "received.numpy()"])
def test_what_an_updater_keeps_is_never_the_stores(store, keep):
    kept = []

    def updater(key, received, stored):
        stored.numpy()[:] += received.numpy()
        kept.append(eval(keep))

    store.init("w", np.zeros(4))
    store.set_updater(updater)
    gradient = np.ones(4)
    for count in range(1, 4):
        store.push("w", gradient)
        assert pulled(store, "w", gradient).tolist() == [count] * 4
        if "stored" in keep:
            np.asarray(kept[-1])[:] = -100
            assert pulled(store, "w", gradient).tolist() == [count] * 4
            assert np.asarray(kept[0]).tolist() == [-100] * 4
    store.set_updater("sum")
    store.push("w", np.ones(4))
    assert pulled(store, "w", np.empty(4)).tolist() == [4] * 4


def test_the_sum_is_read_only(store):
    def spoil(key, received, stored):
        received.numpy()[:] = 0

    store.init("w", np.zeros(2))
    store.set_updater(spoil)
    pushed = np.ones(2)
    with pytest.raises(sheave.Remote, match="read-only"):
        store.push("w", pushed)
    assert pushed.tolist() == [1, 1]


def test_what_an_updater_raises_comes_out_of_the_push(store):
    def fails(key, received, stored):
        stored.numpy()[0] = 7
        raise ZeroDivisionError("no such luck")

    store.init(["a", "b"], [np.zeros(2), np.zeros(2)])
    store.set_updater(fails)
    with pytest.raises(sheave.Remote) as caught:
        store.push("a", np.ones(2))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    text = str(caught.value)
    assert 'key "a"' in text and "ZeroDivisionError: no such luck" in text and "in fails)" in text and __file__ in text
    with pytest.raises(sheave.Remote):
        store.pushpull("b", np.ones(2), np.empty(2))
    store.set_updater("sum")
    store.push("a", np.ones(2))
    assert pulled(store, "a", np.empty(2)).tolist() == [1, 1], "what it wrote before it raised is gone"

    def stops(key, received, stored):
        raise KeyboardInterrupt

    store.set_updater(stops)
    with pytest.raises(KeyboardInterrupt):
        store.push("a", np.ones(2))


def test_an_updater_cannot_use_its_own_store(store):
    store.init("w", np.zeros(2))
    store.set_updater(lambda key, received, stored: store.pull("w", np.empty(2)))
    with pytest.raises(sheave.Remote, match="cannot use the store that it updates"):
        store.push("w", np.ones(2))
    store.set_updater("assign")


def test_registered_names(store):
    store.register("product", lambda key, received, stored: np.multiply(stored, received, out=stored.numpy()))
    store.init("w", np.full(2, 3.0))
    store.set_updater("product")
    store.push("w", np.array([2.0, 5.0]))
    assert pulled(store, "w", np.empty(2)).tolist() == [6, 15]
    with pytest.raises(sheave.NotFound, match="quotient"):
        store.set_updater("quotient")
    with pytest.raises(ValueError, match="its own"):
        store.register("sum", print)
    for wrong in (None, 3, b"sum"):
        with pytest.raises(TypeError):
            store.set_updater(wrong)


def test_updaters_are_let_go():
    class Function:
        def __call__(self, key, received, stored):
            pass

    store, function, finalized = sheave.KVStore(), Function(), []
    weakref.finalize(function, finalized.append, True)
    store.set_updater(function)
    del function
    gc.collect()
    assert not finalized
    store.set_updater("sum")
    gc.collect()
    assert finalized


def sgd(weights, gradients, lr, momentum):
    velocity = np.zeros_like(weights)
    for gradient in gradients:
        velocity = momentum * velocity - lr * gradient
        weights = weights + velocity
    return weights


def adam(weights, gradients, lr, betas, eps):
    mean, variance = np.zeros_like(weights), np.zeros_like(weights)
    for step, gradient in enumerate(gradients, 1):
        mean = betas[0] * mean + (1 - betas[0]) * gradient
        variance = betas[1] * variance + (1 - betas[1]) * gradient**2
        rate = lr * np.sqrt(1 - betas[1] ** step) / (1 - betas[0] ** step)
        weights = weights - rate * mean / (np.sqrt(variance) + eps)
    return weights


def test_optimizers_step_as_written_down(store):
    rng = np.random.default_rng(5)
    weights, gradients = rng.standard_normal(100), rng.standard_normal((6, 100))
    store.init("w", weights)
    store.set_optimizer(optim.SGD(lr=0.1, momentum=0.9))
    for gradient in gradients:
        store.push("w", gradient)
    np.testing.assert_allclose(pulled(store, "w", weights), sgd(weights, gradients, 0.1, 0.9))
    store.init("a", weights)
    store.set_updater(optim.Adam(0.01, (0.8, 0.99), eps=1e-6))
    for gradient in gradients:
        store.push("a", gradient)
    np.testing.assert_allclose(pulled(store, "a", weights), adam(weights, gradients, 0.01, (0.8, 0.99), 1e-6))


RULES = [
    optim.SGD(0.1, 0.9, nesterov=True, weight_decay=0.1, rescale=0.5, clip_gradient=1.0),
    optim.Adam(weight_decay=0.1),
    optim.AdamW(clip_gradient=3),
    optim.AdaGrad(0.1, weight_decay=0.01),
    optim.RMSProp(0.01, centered=True, momentum=0.5),
    optim.LAMB(0.01, lower_bound=0.1, upper_bound=10, bias_correction=False),
    optim.Test(2.0),
    optim.SGD(schedule=optim.Schedule(optim.CosineDecay(10), optim.WarmUp(2))),
    optim.SGD(schedule=optim.MultiStepDecay([2, 4], 0.5)),
    optim.SGD(schedule=optim.PolynomialDecay(steps=10, power=2)),
    optim.SGD(schedule=optim.StepDecay(2, 0.5), multi_precision=True),
    optim.SGD(np.float32(0.5), np.float64(0.25), rescale=np.float16(1)),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_every_setting_is_read(rule):
    store = sheave.KVStore()
    store.init("w", np.ones(4, np.float16))
    store.set_optimizer(rule)
    store.push("w", np.arange(1, 5).astype(np.float16))
    after = pulled(store, "w", np.empty(4, np.float16))
    assert np.isfinite(after).all() and not (after == 1).all()
    assert repr(rule) == repr(eval(repr(rule), vars(optim) | {"np": np}))


def test_settings_without_a_meaning_are_refused(store):
    for rule in (optim.SGD(-1.0), optim.SGD(momentum=1.5), optim.Adam(eps=0), optim.SGD(float("nan"))):
        with pytest.raises(sheave.InvalidArgument):
            store.set_optimizer(rule)
    with pytest.raises(TypeError, match="sheave.optim"):
        store.set_optimizer("sgd")
    with pytest.raises(sheave.InvalidArgument, match="factor"):
        store.set_optimizer(optim.SGD(schedule=optim.StepDecay(1, 2.0)))


def test_the_learning_rate_changes(store):
    with pytest.raises(sheave.NotFound):
        store.learning_rate
    store.init("w", np.zeros(1))
    store.set_optimizer(optim.SGD(1.0, momentum=0.5))
    store.push("w", np.ones(1))
    store.learning_rate = 0.1
    assert store.learning_rate == 0.1
    store.push("w", np.ones(1))
    assert pulled(store, "w", np.empty(1)).tolist() == [-1 + (-0.5 - 0.1)]
    with pytest.raises(sheave.InvalidArgument):
        store.learning_rate = -1


def test_files(store, tmp_path):
    values = [np.arange(3.0), np.ones((2, 2), np.float32)]
    store.init(["a", 1], values)
    store.set_optimizer(optim.Adam(0.1))
    for _ in range(3):
        store.push(["a", 1], [np.ones(3), np.full((2, 2), 2, np.float32)])
    path, states = tmp_path / "store.safetensors", str(tmp_path / "states.safetensors")
    store.save(path)
    store.save_optimizer_states(states, dump_optimizer=True)
    store.push("a", np.ones(3))
    after = pulled(store, "a", np.empty(3)).copy()
    other = sheave.KVStore()
    other.init(["a", 1], values)
    with pytest.raises(sheave.NotFound, match="no-such"):
        other.load(tmp_path / "no-such")
    other.load(path)
    assert other.learning_rate == 0.1
    other.push("a", np.ones(3))
    np.testing.assert_array_equal(pulled(other, "a", np.empty(3)), after)
    other.load_optimizer_states(states)
    (tmp_path / "torn").write_bytes(path.read_bytes()[:-3])
    with pytest.raises(sheave.InvalidArgument, match="torn"):
        other.load(tmp_path / "torn")


def test_compression_of_the_kind_device():
    store = sheave.KVStore("device")
    store.set_gradient_compression("2bit", 0.5)
    store.init("w", np.zeros(1, np.float32))
    store.set_updater("assign")
    # What MXNet's store gives: two sources with a residual each.
    for expected in (0.5, 1.0):
        store.push("w", [np.full(1, value, np.float32) for value in (0.3, 0.6)])
        assert pulled(store, "w", np.empty(1, np.float32)).tolist() == [expected]
    for kind, threshold in (("3bit", None), ("2bit", 0.0), ("fp16", 0.5)):
        with pytest.raises(sheave.InvalidArgument):
            store.set_gradient_compression(kind, threshold)
    with pytest.raises(sheave.InvalidArgument, match="kinds device"):
        sheave.KVStore().set_gradient_compression("fp16")
    with pytest.raises(sheave.Unsupported):
        store.set_pull_compression("1bit")


def test_torch_tensors_in_place():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    store = sheave.KVStore()
    layer = torch.nn.Linear(3, 2)
    weights = layer.weight.detach().clone()
    store.init("w", layer.weight.data)
    store.set_optimizer(optim.SGD(0.1))
    layer(torch.ones(1, 3)).sum().backward()
    store.push("w", layer.weight.grad)
    assert store.pull("w", layer.weight.data).wait() is not None
    assert torch.allclose(layer.weight, weights - 0.1)
    half = torch.ones(4, dtype=torch.bfloat16)
    store.init("h", half)
    assert store.pull("h", torch.zeros(4, dtype=torch.bfloat16)).wait().tolist() == [1] * 4


def test_threads_share_a_store():
    store = sheave.KVStore()
    store.init("w", np.zeros(100))
    store.set_updater(lambda key, received, stored: np.add(stored, received, out=stored.numpy()))

    def push():
        for _ in range(100):
            store.push("w", np.ones(100))

    threads = [threading.Thread(target=push) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (pulled(store, "w", np.empty(100)) == 400).all()


def test_a_store_is_the_parents_after_a_fork(start):
    program = """
        import os, sheave
        import numpy as np
        store = sheave.KVStore()
        store.init("w", np.ones(2))
        child = os.fork()
        if child == 0:
            try:
                store.pull("w", np.empty(2))
            except sheave.Forked as error:
                del store
                os._exit(0 if "store" in str(error) else 1)
            os._exit(2)
        print(os.waitpid(child, 0)[1], store.pull("w", np.empty(2)).wait())
    """
    assert start(program).succeed().strip() == "0 [1. 1.]"
