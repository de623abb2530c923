"""Gradient servers: what is summed and stepped, what is dropped and lost, and what is left of servers that die."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import sheave
from conftest import free_root, in_a_wait, together
from sheave.learner import GradientClient, GradientServer, Parameter

PATIENCE = 60

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def mesh():
    with sheave.Mesh() as mesh:
        yield mesh


@pytest.fixture
def group(mesh, request):
    return mesh.rpc_group(request.node.name, timeout=PATIENCE)


def until(is_so, *said):
    """Waits until something is so."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, [each() for each in said]
        time.sleep(0.005)


def weights(value=0.0):
    return {"a": np.full((2, 3), value, np.float32), "b": np.full(4, value)}


def gradient(seed):
    """Small whole numbers, so that sums are the same in any order."""
    drawn = np.random.default_rng(seed)
    return {"a": drawn.integers(-9, 9, (2, 3)).astype(np.float32), "b": drawn.integers(-9, 9, 4).astype(np.float64)}


SGD = sheave.optim.SGD(lr=1.0)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("method", ["sum", "mean"])
def test_the_optimizer_steps_by_what_all_have_pushed(transport, method):
    published = []

    def act(mesh):
        group = mesh.rpc_group("learners", timeout=PATIENCE)
        # A batch is more than there is: one step has all of it, when it is flushed.
        settings = {"optimizer": SGD, "method": method, "batch": 8, "timeout": PATIENCE}
        keep = lambda parameters, version: published.append((version, parameters))  # noqa: E731
        with GradientServer(group, "gradients", weights(1.0), publish=keep, **settings) as server:
            group.barrier(timeout=PATIENCE)
            client = GradientClient(group, "gradients", timeout=PATIENCE)
            assert client.parameters == ["a", "b"]
            numbers = [client.push(gradient(10 * mesh.rank + at), timeout=PATIENCE) for at in range(4)]
            assert numbers == [1, 2, 3, 4]
            group.barrier(timeout=PATIENCE)
            if mesh.rank == 0:
                assert client.flush(timeout=PATIENCE) == 1
            group.barrier(timeout=PATIENCE)
            report = client.report(timeout=PATIENCE)
            assert (report.pushed, report.applied, report.pending, report.lost) == (4, 4, 0, 0)
            assert client.known() == report
            group.barrier(timeout=PATIENCE)
            return server.report()

    reports = together(act, transport=transport)
    assert sum(report.taken for report in reports) == sum(report.forwarded for report in reports) == 12
    assert (reports[0].primary.version, reports[0].primary.applied) == (1, 12)
    assert reports[1].primary is None
    all_of_them = [gradient(10 * rank + at) for rank in range(3) for at in range(4)]
    [(version, parameters)] = published
    assert version == 1
    for name, start in weights(1.0).items():
        total = sum(each[name] for each in all_of_them)
        expected = start - (total if method == "sum" else total / 12)
        np.testing.assert_allclose(parameters[name], expected, rtol=1e-6)
        assert parameters[name].dtype == start.dtype and not parameters[name].flags.writeable


def test_what_was_published_stays_as_it_is(group):
    kept = []
    keep = lambda parameters, _: kept.append(parameters["a"])  # noqa: E731
    with GradientServer(group, "gradients", {"a": np.zeros(2)}, optimizer=SGD, batch=1, publish=keep):
        client = GradientClient(group, "gradients")
        for _ in range(3):
            client.push({"a": np.array([1.0, 2.0])}, timeout=PATIENCE)
        assert client.flush(timeout=PATIENCE) == 3
    assert [array.tolist() for array in kept] == [[-1.0, -2.0], [-2.0, -4.0], [-3.0, -6.0]]


def test_a_step_of_ones_own(group):
    parameters, published = {"a": np.zeros(2)}, []

    def step(given, gradients):
        assert given is parameters and threading.current_thread() is not threading.main_thread()
        given["a"] -= 0.5 * gradients["a"]

    def publish(given, version):
        published.append((version, given["a"].tolist()))

    with GradientServer(group, "gradients", parameters, step=step, publish=publish, batch=2, version=7) as server:
        client = GradientClient(group, "gradients")
        for at in range(4):
            client.push({"a": np.array([at, 1.0])}, timeout=PATIENCE)
        assert client.flush(timeout=PATIENCE) == 8 and server.report().primary.applied == 4
    assert published == [(8, [-3.0, -2.0])]


def test_a_step_may_return_others(group):
    published = []
    step = lambda parameters, gradients: {"a": parameters["a"] + gradients["a"]}  # noqa: E731
    publish = lambda parameters, _: published.append(parameters["a"].tolist())  # noqa: E731
    with GradientServer(group, "gradients", {"a": np.zeros(1)}, step=step, publish=publish, batch=1):
        client = GradientClient(group, "gradients")
        client.push({"a": np.array([2.0])}), client.push({"a": np.array([3.0])})
        assert client.flush(timeout=PATIENCE) == 2
    assert published == [[2.0], [5.0]]


def test_an_optimizer_of_torch_and_its_schedule(group):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    published = []

    def step(parameters, gradients):
        for name, parameter in parameters.items():
            parameter.grad = gradients[name]
        optimizer.step()
        schedule.step()

    def publish(parameters, _):
        published.append(parameters["bias"].item())

    parameters = dict(model.named_parameters())
    with GradientServer(group, "gradients", parameters, step=step, publish=publish, batch=1):
        client = GradientClient(group, "gradients")
        for _ in range(3):
            model_gradient = {"weight": torch.ones(1, 3), "bias": torch.ones(1, requires_grad=True)}
            client.push(model_gradient, timeout=PATIENCE)
        assert client.flush(timeout=PATIENCE) == 3
    assert published == [-1.0, -1.5, -1.75]


def test_partial_batches_go_on_after_a_time(group):
    published = threading.Event()
    settings = {"optimizer": SGD, "batch": 4, "flush_after": 0.02}
    with GradientServer(group, "gradients", weights(), publish=lambda *_: published.set(), **settings) as server:
        client = GradientClient(group, "gradients")
        client.push(gradient(1), timeout=PATIENCE)
        assert published.wait(PATIENCE)
        until(lambda: client.report(timeout=PATIENCE).applied == 1, client.known, server.report)


def test_what_a_full_queue_drops_is_reported(group):
    begun, free, told = threading.Event(), threading.Event(), []

    def step(*_):
        begun.set()
        assert free.wait(PATIENCE)

    settings = {"batch": 2, "queue_max": 3, "overflow": "drop_oldest"}
    server = GradientServer(group, "gradients", weights(), step=step, on_drop=told.extend, **settings)
    with server:
        client = GradientClient(group, "gradients")
        for at in range(4):
            client.push(gradient(at), timeout=PATIENCE)
        assert begun.wait(PATIENCE)
        for at in range(40):
            client.push(gradient(at), timeout=PATIENCE)
        assert server.report().dropped.count > 0
        free.set()
        client.flush(timeout=PATIENCE)
        report = client.report(timeout=PATIENCE)
        assert report.applied + report.dropped == report.pushed == 44 and report.dropped >= 20
        dropped = server.report().dropped
        assert dropped.count == report.dropped and server.report().primary.dropped.count == report.dropped
        until(lambda: len(told) == dropped.count, lambda: told)
        assert told == dropped.latest and {each.member for each in told} == {"rank-0"}


def test_a_full_queue_has_pushes_wait(group):
    begun, free = threading.Event(), threading.Event()

    def step(*_):
        begun.set()
        assert free.wait(PATIENCE)

    with GradientServer(group, "gradients", weights(), step=step, batch=1, queue_max=2) as server:
        client = GradientClient(group, "gradients")
        pushes = [client.push(gradient(at), async_op=True) for at in range(12)]
        assert begun.wait(PATIENCE)
        until(lambda: server.report().waiting > 0, server.report)
        with pytest.raises(sheave.DeadlineExceeded):
            client.push(gradient(12), timeout=0.01)
        assert not pushes[-1].done()
        free.set()
        assert [push.wait(PATIENCE) for push in pushes] == list(range(1, 13))
        client.flush(timeout=PATIENCE)
        report = client.report(timeout=PATIENCE)
        # The push that gave up counts as dropped, unless it was taken in its last moment.
        assert (report.applied + report.dropped, report.pending, report.lost) == (13, 0, 0) and report.applied >= 12


@pytest.mark.parametrize("where", ["step", "publish"])
def test_what_raises_stops_the_servers(where):
    def act(mesh):
        group = mesh.rpc_group("learners", timeout=PATIENCE)

        def luckless(*_):
            raise KeyError("no luck")

        functions = {"step": lambda *_: None, "publish": lambda *_: None, where: luckless}
        server = GradientServer(group, "gradients", weights(), batch=1, timeout=PATIENCE, **functions)
        group.barrier(timeout=PATIENCE)
        # To its own server: another one may hear later that there will be no more steps.
        client = GradientClient(group, "gradients", choice=mesh.rank, timeout=PATIENCE)
        group.barrier(timeout=PATIENCE)
        if mesh.rank == 0:
            client.push(gradient(0), timeout=PATIENCE)
        with pytest.raises(sheave.SheaveError, match="no luck") as raised:
            server.watch(timeout=PATIENCE)
        assert f"{where} raised an exception" in str(raised.value), raised.value
        if mesh.rank == 0:
            assert raised.value.remote_class == "KeyError" or raised.value.__cause__.remote_class == "KeyError"
            assert "luckless" in raised.value.remote_traceback
        with pytest.raises(sheave.SheaveError, match="no luck"):
            client.push(gradient(0), timeout=PATIENCE)
        assert server.watch(async_op=True).done()
        group.barrier(timeout=PATIENCE)

    together(act)


def test_stopping(group):
    server = GradientServer(group, "gradients", weights(), optimizer=SGD)
    client, watch = GradientClient(group, "gradients"), server.watch(async_op=True)
    client.push(gradient(0), timeout=PATIENCE)
    with pytest.raises(sheave.DeadlineExceeded):
        server.watch(timeout=0.01)
    server.stop()
    server.stop()
    assert watch.wait(PATIENCE) is None and server.watch(timeout=PATIENCE) is None
    assert server.report().dropped.count == 1
    with pytest.raises(sheave.SheaveError):
        client.push(gradient(0), timeout=PATIENCE)
    with GradientServer(group, "gradients again", weights(), optimizer=SGD) as server, pytest.raises(RuntimeError):
        raise RuntimeError("out of it")
    assert server.watch(timeout=PATIENCE) is None
    server = GradientServer(group, "gradients dropped", weights(), optimizer=SGD)
    watch = server.watch(async_op=True)
    del server
    assert watch.wait(PATIENCE) is None, "nobody has it any more"


def test_what_is_refused(group):
    def refused(kind, text, **settings):
        with pytest.raises(kind, match=text):
            GradientServer(group, "gradients", settings.pop("parameters", weights()), **settings)

    refused(sheave.InvalidArgument, 'method is "median"; expected "sum" or "mean"', optimizer=SGD, method="median")
    refused(sheave.InvalidArgument, 'overflow is "all"; expected "push_back"', optimizer=SGD, overflow="all")
    refused(sheave.InvalidArgument, "a batch of 0", optimizer=SGD, batch=0)
    refused(sheave.InvalidArgument, "a primary needs an optimizer and parameters, or else a step")
    refused(sheave.InvalidArgument, "or else a step", optimizer=SGD, step=print)
    refused(sheave.InvalidArgument, "'a' is a list; expected an array", optimizer=SGD, parameters={"a": [1.0]})
    refused(sheave.Unsupported, "is i64; expected one of f16", optimizer=SGD, parameters={"a": np.zeros(2, np.int64)})
    refused(sheave.InvalidArgument, "no member of the mesh", optimizer=SGD, secondaries=["nobody"])
    with pytest.raises(sheave.NotFound):
        GradientClient(group, "gradients", timeout=PATIENCE)
    with GradientServer(group, "gradients", weights(), optimizer=SGD):
        refused(sheave.AlreadyExists, "gradients/rank-0", optimizer=SGD)
        with pytest.raises(sheave.InvalidArgument, match="secondary 1 of 1"):
            GradientClient(group, "gradients", choice=1)
        client = GradientClient(group, "gradients")
        with pytest.raises(sheave.Mismatch, match='nothing for "b"'):
            client.push({"a": weights()["a"]})
        with pytest.raises(sheave.Mismatch, match='for "a"'):
            client.push({**weights(), "a": np.zeros(2, np.float32)})
        assert client.report(timeout=PATIENCE).pending == 0


SECONDARY = """
    import sys, time, sheave
    from sheave.learner import GradientServer, Parameter
    mesh = sheave.Mesh(rank=1, size=2, root=sys.argv[1], join_timeout=60)
    group = mesh.rpc_group("all", timeout=60)
    parameters = {"a": Parameter("float32", (2, 3)), "b": Parameter("float64", (4,))}
    server = GradientServer(group, "gradients", parameters, batch=100, queue_max=200, timeout=60)
    group.barrier(timeout=60)
    print("ready")
    time.sleep(600)
"""


def test_what_a_killed_secondary_had_is_lost_and_others_take_over(start):
    root, published = free_root(), []
    secondary = start(SECONDARY, root)
    with sheave.Mesh(rank=0, size=2, root=root, join_timeout=PATIENCE) as mesh:
        group = mesh.rpc_group("all", timeout=PATIENCE)
        settings = {"optimizer": SGD, "batch": 100, "queue_max": 200, "timeout": PATIENCE}
        keep = lambda parameters, _: published.append(parameters)  # noqa: E731
        with GradientServer(group, "gradients", weights(), publish=keep, **settings) as server:
            group.barrier(timeout=PATIENCE)
            assert secondary.line() == "ready"
            client = GradientClient(group, "gradients", choice=1, timeout=PATIENCE)
            assert [client.push(gradient(at), timeout=PATIENCE) for at in range(3)] == [1, 2, 3]
            os.kill(secondary.pid, signal.SIGKILL)
            assert client.push(gradient(7), timeout=PATIENCE) == 4
            until(lambda: client.report(timeout=PATIENCE).lost == 3, client.known)
            assert client.flush(timeout=PATIENCE) == 1
            report = client.report(timeout=PATIENCE)
            assert (report.applied, report.lost, report.lost_numbers) == (1, 3, [1, 2, 3])
            assert report.gone == ["rank-1"]
            lost = server.report().primary.lost
            assert lost.count == 3 and [each.number for each in lost.latest] == [1, 2, 3]
    np.testing.assert_array_equal(published[0]["b"], -gradient(7)["b"])


PRIMARY = """
    import sys, time, numpy as np, sheave
    from sheave.learner import GradientServer
    mesh = sheave.Mesh(rank=0, size=2, root=sys.argv[1], join_timeout=60)
    group = mesh.rpc_group("all", timeout=60)
    table = sheave.versions.Versions(mesh, depth=1)
    table.register(group, "models", timeout=60)
    models, version = table.client(), int(sys.argv[2])
    def publish(parameters, version):
        models.push("model", dict(parameters), version, None if version == begun + 1 else version - 1)
    begun = version
    parameters = {"a": np.full(3, float(sys.argv[3]))}
    server = GradientServer(
        group, "gradients", parameters, secondaries=[1], optimizer=sheave.optim.SGD(lr=1.0), batch=1, version=version,
        publish=publish, timeout=60,
    )
    group.barrier(timeout=60)
    print("ready")
    time.sleep(600)
"""


def test_a_primary_is_killed_and_started_again(start):
    version, value = 0, 0.0
    for _ in range(2):
        root = free_root()
        primary = start(PRIMARY, root, version, value)
        with sheave.Mesh(rank=1, size=2, root=root, join_timeout=PATIENCE) as mesh:
            group = mesh.rpc_group("all", timeout=PATIENCE)
            parameters = {"a": Parameter("float64", (3,))}
            server = GradientServer(group, "gradients", parameters, secondaries=[1], batch=1, timeout=PATIENCE)
            group.barrier(timeout=PATIENCE)
            assert primary.line() == "ready"
            client = GradientClient(group, "gradients", secondaries=[1], timeout=PATIENCE)
            for _ in range(2):
                client.push({"a": np.ones(3)}, timeout=PATIENCE)
            assert client.flush(timeout=PATIENCE) == version + 2
            pulled = group.versions("models", timeout=PATIENCE).pull("model", timeout=PATIENCE)
            assert pulled.version == version + 2 and pulled.value["a"].tolist() == [value - 2] * 3
            version, value = pulled.version, pulled.value["a"][0]
            os.kill(primary.pid, signal.SIGKILL)
            with pytest.raises(sheave.PeerLost, match="rank-0"):
                server.watch(timeout=PATIENCE)
            with pytest.raises(sheave.PeerLost, match="rank-0"):
                client.push({"a": np.ones(3)}, timeout=PATIENCE)
            with pytest.raises(sheave.PeerLost, match="rank-0"):
                client.report(timeout=PATIENCE)
    assert (version, value) == (4, -4.0)


WATCHER = """
    import numpy as np, sheave
    from sheave.learner import GradientServer
    with sheave.Mesh() as mesh:
        group = mesh.rpc_group("all", timeout=60)
        with GradientServer(group, "gradients", {"a": np.zeros(2)}, optimizer=sheave.optim.SGD()) as server:
            print("ready")
            try:
                server.watch()
            except KeyboardInterrupt:
                print("interrupted")
"""


def test_waits_end_at_control_c(start):
    watcher = start(WATCHER)
    in_a_wait(watcher)
    os.kill(watcher.pid, signal.SIGINT)
    assert watcher.succeed(PATIENCE) == "interrupted\n"
