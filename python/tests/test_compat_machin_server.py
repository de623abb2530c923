"""machin.parallel.server's ordered and model servers over sheave, among real processes."""

import os
import signal
import textwrap

import numpy as np
import pytest
from sheave.compat.machin.parallel.server import (
    OrderedServerBase,
    OrderedServerSimple,
    OrderedServerSimpleImpl,
    PushPullModelServer,
    PushPullModelServerImpl,
)
from test_compat_machin import Job

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def job(start):
    """Runs a program as the processes of a world."""

    def launch(program, size=3, **environment):
        return Job(start, SETUP + textwrap.dedent(program), size, range(size), environment)

    return launch


SETUP = """
from sheave.compat.machin.parallel.server import *

class Model:
    def __init__(self, *numbers):
        self.weights = [np.full(1000, float(number)) for number in numbers]

    def state_dict(self):
        return {str(at): weight for at, weight in enumerate(self.weights)}

    def load_state_dict(self, state):
        assert len(state) == len(self.weights)
        for at, weight in enumerate(self.weights):
            weight[:] = state[str(at)]

    def numbers(self):
        assert all((weight == weight[0]).all() for weight in self.weights)
        return [weight[0] for weight in self.weights]

world = make_world()
group = world.create_rpc_group("group", ["0", "1", "2"])
"""


class FakeGroup:
    """What a server asks of a group, with nobody in it."""

    def __init__(self):
        self.paired, self.registered = {}, {}

    def is_member(self, target=None):
        return True

    def pair(self, key, value):
        self.paired[key] = value

    def register(self, key, service):
        self.registered[key] = service


def test_which_pushes_are_accepted():
    group = FakeGroup()
    server = OrderedServerSimpleImpl("server", group)
    assert set(group.registered) == {"server/_push_service", "server/_pull_service"}
    assert isinstance(group.paired["server"], OrderedServerBase)
    assert server._pull_service("a") is None
    assert server._push_service("a", "one", 1, "whatever"), "an unknown key takes any push"
    assert not server._push_service("a", "two", 2, 0) and server._pull_service("a") == ("one", 1)
    assert server._push_service("a", "two", 2, 1) and server._push_service("a", "minus", -1, 2)
    assert server._pull_service("a", None) == ("minus", -1) and server._pull_service("a", 2) == ("two", 2)
    assert server._pull_service("a", 1) is None, "two are kept"
    assert server._push_service("a", "two again", 2, -1), "it is overwritten where it stands"
    assert server._pull_service("a") == ("minus", -1) and server._pull_service("a", 2) == ("two again", 2)
    assert server._push_service("a", "newest again", -1, -1) and server._pull_service("a") == ("newest again", -1)


def test_depths_and_values():
    server = OrderedServerSimpleImpl("server", FakeGroup(), version_depth=3, anything="is ignored")
    for version in range(6):
        assert server._push_service(("a", 1), {"number": version, "array": np.full(3, version)}, version, version - 1)
    assert [version for version in range(6) if server._pull_service(("a", 1), version)] == [2, 3, 4, 5]
    value, version = server._pull_service(("a", 1))
    assert (version, value["number"], list(value["array"])) == (5, 5, [5, 5, 5])
    value["array"][:] = 0
    assert list(server._pull_service(("a", 1))[0]["array"]) == [5, 5, 5], "each has its own"
    for depth in (0, -1, 1.5, "2"):
        with pytest.raises(AssertionError):
            OrderedServerSimpleImpl("server", FakeGroup(), version_depth=depth)


def test_an_ordered_server_among_processes(job):
    job("""
        if RANK == 0:
            server = OrderedServerSimpleImpl("server", group, version_depth=1)
        group.barrier()
        server = group.get_paired("server").to_here()
        assert isinstance(server, OrderedServerBase) and server.pull("none") is None
        assert group.registered_sync("server/_pull_service", ("none", None)) is None
        group.barrier()
        wins = 0
        while wins < 20:
            newest = server.pull("count")
            count, version = newest if newest else (0, None)
            if newest is None and RANK != 1:
                continue
            wins += server.push("count", count + 1, 0 if version is None else version + 1, version)
        group.barrier()
        # The very first push was of rank 1.
        assert server.pull("count") == (60, 59) and server.pull("count", 58) == (59, 58)
        assert server.pull("count", 57) is None
        handle = pickle.loads(pickle.dumps(server))
        assert handle.pull("count") == (60, 59)
        if RANK == 2:
            assert server.push("arrays", {"a": np.arange(100_000), "b": "text"}, "v", None)
        group.barrier()
        value, version = server.pull("arrays")
        assert version == "v" and value["a"].sum() == 4999950000 and value["b"] == "text" and value["a"].flags.writeable
        group.barrier()
        world.stop()
    """).succeed()


def test_a_model_server(job):
    job("""
        if RANK == 0:
            impl = PushPullModelServerImpl("models", group)
        group.barrier()
        server = group.get_paired("models").to_here()
        assert isinstance(server, PushPullModelServer)
        model, other = Model(1, 2, 3), Model(0, 0, 0)
        if RANK == 1:
            assert server.pull(other) is False and not hasattr(other, "pp_version")
            for version in range(1, 11):
                for weight in model.weights:
                    weight += 1
                assert server.push(model) and model.pp_version == version
            assert server.pull(model) and model.pp_version == 10, "it has it already"
        group.barrier()
        assert server.pull(other) is True and other.numbers() == [11, 12, 13] and other.pp_version == 10
        other.weights[0][:] = 99
        assert server.pull(other) is True and other.numbers() == [99, 12, 13], "it is of that version"
        group.barrier()
        if RANK == 2:
            late = Model(5, 5, 5)
            assert server.push(late, pull_on_fail=False) is False
            assert late.numbers() == [5, 5, 5] and late.pp_version == 0
            assert server.push(late) is False and late.numbers() == [11, 12, 13] and late.pp_version == 10
            assert server.push(late) is True and late.pp_version == 11
        group.barrier()
        world.stop()
    """).succeed()


def test_a_model_server_over_a_server_of_ones_own(job):
    job("""
        class Own(OrderedServerBase):
            def __init__(self):
                self.kept = {}
            def push(self, key, value, version, prev_version):
                self.kept[key] = (value, version)
                return True
            def pull(self, key, version=None):
                return self.kept.get(key)
        if RANK == 0:
            own = Own()
            PushPullModelServerImpl("models", group, model_name="mine", o_server=own)
            server = PushPullModelServer("mine", own)
            model, other = Model(7), Model(0)
            assert server.pull(other) is False and server.push(model) and server.pull(other) and other.numbers() == [7]
            try:
                PushPullModelServer("mine").push(model)
            except RuntimeError as error:
                assert "o_server" in str(error)
            else:
                raise AssertionError("it has no server")
        group.barrier()
        world.stop()
    """).succeed()


def test_modules_of_torch(job):
    pytest.importorskip("torch")
    job("""
        import torch
        if RANK == 0:
            PushPullModelServerImpl("models", group)
        group.barrier()
        server = group.get_paired("models").to_here()
        model = torch.nn.Linear(300, 200)
        if RANK == 1:
            with torch.no_grad():
                model.weight.fill_(2.0)
            assert server.push(model) and model.pp_version == 1
        group.barrier()
        model.weight.grad = torch.ones_like(model.weight)
        assert server.pull(model) and bool((model.weight == 2.0).all()) and float(model.weight.grad.sum()) == 60_000
        with torch.no_grad():
            model.weight.add_(1.0)
        group.barrier()
        fresh = torch.nn.Linear(300, 200)
        assert server.pull(fresh) and bool((fresh.weight == 2.0).all()), "nobody wrote into the server's"
        group.barrier()
        world.stop()
    """).succeed()


def test_a_server_that_is_killed_is_named(job):
    processes = job("""
        if RANK == 0:
            OrderedServerSimpleImpl("server", group)
        group.barrier()
        server = group.get_paired("server").to_here()
        assert RANK != 1 or server.push("a", 1, 1, None)
        group.barrier()
        assert server.pull("a") == (1, 1)
        group.barrier()
        print("ready", flush=True)
        if RANK == 0:
            time.sleep(600)
        try:
            while True:
                server.pull("a")
        except ConnectionError as error:
            assert "peer 0 (rank 0" in str(error), error
        print("told", flush=True)
        # The other one is to miss rank 0 alone.
        sys.stdin.readline()
        os._exit(0)
    """)
    for program in processes.programs:
        assert program.line() == "ready"
    os.kill(processes.programs[0].pid, signal.SIGKILL)
    for program in processes.programs[1:]:
        assert program.line() == "told"


GRADIENTS = """
import torch
torch.set_num_threads(1)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = (torch.nn.Linear(1, 1, bias=False) for _ in range(3))
        with torch.no_grad():
            for number, layer in enumerate((self.fc1, self.fc2, self.fc3), 1):
                layer.weight.fill_(number)

    def forward(self, x):
        return self.fc3(self.fc2(self.fc1(x)))

    def numbers(self):
        return [parameter.item() for parameter in self.parameters()]

class Optimizer:
    def __init__(self, parameters):
        self.parameters = list(parameters)

    def zero_grad(self):
        pass

    def step(self):
        with torch.no_grad():
            for parameter in self.parameters:
                parameter -= parameter.grad

class Schedule:
    steps = 0

    def step(self):
        self.steps += 1

def push(server, model):
    model.zero_grad()
    model(torch.ones([1, 1])).backward()
    return server.push(model)

def until(is_so):
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)
"""


@pytest.fixture
def learning(job):
    """As `job`, with models of torch."""
    pytest.importorskip("torch")
    return lambda program, **environment: job(GRADIENTS + textwrap.dedent(program), **environment)


@pytest.mark.parametrize(("method", "weights"), [("mean", [-5, -1, 1]), ("sum", [-23, -10, -5])])
def test_a_gradient_server(learning, method, weights):
    learning(f"""
        if RANK == 0:
            server = PushPullGradServerImpl(
                "server", group, primary_reducer="0", secondary_reducers=["0"], reduce_method="{method}",
                reduce_batch_size=2,
            )
            assert (server.REDUCE_MASTER, server.REDUCE_SLAVE, ReduceType.REDUCE_SECONDARY.value) == (0, 1, 1)
        group.barrier()
        if RANK == 0:
            model, schedule = Net(), Schedule()
            server.manage_model(model, Optimizer(model.parameters()), schedule)
            assert model.pp_version == 0
            server.start()
            server.start()
        else:
            accessor = group.get_paired("server").to_here()
            assert isinstance(accessor, PushPullGradServer)
            model = Net()
            model.zero_grad()
            raises(RuntimeError, "Parameter fc1.weight doesn't have gradient to push!", lambda: accessor.push(model))
            # What is pulled after a push may be new: it is the gradient of the first model that is pushed twice.
            for _ in range(2):
                model = Net()
                push(accessor, model)
                assert [parameter.grad.item() for parameter in model.parameters()] == [0, 0, 0]
        group.barrier()
        if RANK == 0:
            until(lambda: server.report().primary.version == 1)
            server.watch()
            assert schedule.steps == 1 and model.pp_version == 1
        group.barrier()
        if RANK != 0:
            assert accessor.pull(model) is True and model.numbers() == {weights}, model.numbers()
            report = accessor.report()
            assert (report.applied, report.dropped, report.lost) == (2, 0, 0), report
            pickle.loads(pickle.dumps(accessor)).pull(Net())
        group.barrier()
        if RANK == 0:
            server.stop()
            server.watch()
        group.barrier()
        world.stop()
    """).succeed()


def test_partial_batches_and_secondaries_of_a_gradient_server(learning):
    learning("""
        server = PushPullGradServerImpl("server", group, flush_after=0.02)
        assert server.primary_reducer == "0" and server.secondary_reducers == ["0", "1", "2"]
        if RANK != 0:
            raises(RuntimeError, "Current worker is not the reduce master", lambda: server.manage_model(Net(), None))
            # Before the primary, for which it waits.
            server.start()
        group.barrier()
        if RANK == 0:
            raises(RuntimeError, "call manage_model before start", server.start)
            model = Net()
            server.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
            server.start()
        accessor = group.get_paired("server").to_here()
        own = Net()
        push(accessor, own)
        until(lambda: accessor.report().applied == 1)
        server.watch()
        group.barrier()
        group.registered_sync(f"server/{RANK}/_push_service", (
            {name: torch.zeros(1, 1) for name, _ in own.named_parameters()}, ReduceType.REDUCE_SECONDARY
        ))
        assert accessor.flush() >= 1 and accessor.pull(own)
        group.barrier()
        if RANK == 0:
            server.stop()
        server.watch()
        group.barrier()
        server.stop()
        world.stop()
    """).succeed()


def test_a_step_that_raises_ends_a_gradient_server(learning):
    learning("""
        from machin.parallel.thread import ThreadException

        class Luckless(Optimizer):
            def step(self):
                raise KeyError("no luck")

        server = PushPullGradServerImpl("server", group, reduce_batch_size=2)
        group.barrier()
        if RANK == 0:
            model = Net()
            server.manage_model(model, Luckless(model.parameters()))
        server.start()
        accessor = group.get_paired("server").to_here()
        group.barrier()
        try:
            while True:
                push(accessor, Net())
        except RuntimeError as error:
            assert "no luck" in str(error), error

        def watch_fails():
            try:
                server.watch()
            except ThreadException as error:
                assert "no luck" in str(error), error
                return True
        until(watch_fails)
        group.barrier()
        server.stop()
        world.stop()
    """).succeed()


def test_a_gradient_server_that_is_killed(learning):
    processes = learning("""
        server = PushPullGradServerImpl(
            "server", group, primary_reducer="0", secondary_reducers=["0", "1"], reduce_batch_size=2
        )
        group.barrier()
        if RANK == 0:
            model = Net()
            server.manage_model(model, Optimizer(model.parameters()))
        server.start()
        accessor = group.get_paired("server").to_here()
        if RANK == 2:
            push(accessor, Net())
        group.barrier()
        print("ready", flush=True)
        if RANK == 1:
            time.sleep(600)
        sys.stdin.readline()
        if RANK == 2:
            until(lambda: [death.member.name for death in world.mesh.deaths()] == ["1"])
            for _ in range(8):
                push(accessor, Net())
            accessor.flush()
            report = accessor.report()
            assert report.applied + report.lost == 9 and report.lost <= 1 and report.gone == ["1"], report
            # One that comes later does without it.
            late = group.get_paired("server").to_here()
            push(late, Net())
        print("told", flush=True)
        sys.stdin.readline()
        os._exit(0)
    """)
    for program in processes.programs:
        assert program.line() == "ready"
    os.kill(processes.programs[1].pid, signal.SIGKILL)
    for program in (processes.programs[0], processes.programs[2]):
        program.tell()
    for program in (processes.programs[0], processes.programs[2]):
        assert program.line() == "told"
