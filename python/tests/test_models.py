"""Servers of models: who gets through, what moves, and what gradient servers publish into them."""

import numpy as np
import pytest
import sheave
from conftest import together
from sheave.learner import GradientClient, GradientServer, ModelClient, ModelServer

PATIENCE = 30


@pytest.fixture(scope="module")
def mesh():
    with sheave.Mesh() as mesh:
        yield mesh


@pytest.fixture
def served(mesh, request):
    """A group, and a server of models in it."""

    def made(**settings):
        group = mesh.rpc_group(request.node.name, timeout=PATIENCE)
        return group, ModelServer(mesh, group, "models", timeout=PATIENCE, **settings)

    return made


def test_one_of_those_who_push_from_a_version_is_accepted(served):
    group, server = served()
    one, other = (ModelClient(group, "models", "policy", timeout=PATIENCE) for _ in range(2))
    assert one.pull() is None and (one.version, server.newest("policy")) == (0, 0)
    assert one.push({"w": np.ones(3, np.float32)}) and one.version == 1
    assert not other.push({"w": np.zeros(3, np.float32)}) and other.version == 0
    assert other.pull()["w"].tolist() == [1, 1, 1] and other.version == 1
    assert other.pull() is None, "it has the newest"
    assert other.push({"w": np.full(3, 2, np.float32)}) and server.newest("policy") == 2
    assert one.pull()["w"].tolist() == [2, 2, 2] and one.version == 2
    assert repr(one) == "ModelClient(model='policy', version=2)"
    assert (server.report()["accepted"], server.report()["refused"]) == (2, 1)


def test_changes_move_alone_and_unlike_things_are_refused(mesh, served):
    group, server = served(depth=2)
    one, other = (ModelClient(group, "models", "policy", timeout=PATIENCE) for _ in range(2))
    with pytest.raises(sheave.InvalidArgument, match="'policy' has not been pulled or pushed"):
        one.push_changes({"steps": 1})
    assert one.push({"w": np.ones(3), "steps": 0}) and set(other.pull()) == {"w", "steps"}
    assert one.push_changes({"steps": 7}) and other.pull() == {"steps": 7}
    assert ModelClient(group, "models", "policy").pull()["steps"] == 7
    table = group.versions("models")
    assert table.push("text", "no model", 1) and table.push("named", {}, "first")
    with pytest.raises(sheave.Mismatch, match="version 1 of the model 'text' is a str"):
        ModelClient(group, "models", "text").pull()
    with pytest.raises(sheave.Mismatch, match="version 'first' of the model 'named'; expected a number"):
        server.newest("named")
    server.stop(timeout=PATIENCE)
    with pytest.raises(sheave.NotFound):
        one.pull()


def test_a_gradient_server_goes_on_behind_the_newest_version(served):
    group, server = served()
    for start, name in [(0, "first"), (2, "second")]:
        client = ModelClient(group, "models", "policy", timeout=PATIENCE)
        parameters = client.pull() or {"w": np.full(2, 10.0)}
        assert client.version == start
        optimizer = sheave.optim.SGD(lr=1.0)
        with GradientServer(
            group, name, parameters, optimizer=optimizer, batch=1, version=start, publish=server.publisher("policy"),
            timeout=PATIENCE,
        ):
            learner = GradientClient(group, name, timeout=PATIENCE)
            for _ in range(2):
                learner.push({"w": np.ones(2)})
            learner.flush(timeout=PATIENCE)
            assert client.pull()["w"].tolist() == [8.0 - start] * 2 and client.version == start + 2
    other = ModelClient(group, "models", "policy", timeout=PATIENCE)
    with GradientServer(
        group, "third", other.pull(), optimizer=sheave.optim.SGD(lr=1.0), batch=1, version=4,
        publish=server.publisher("policy"), timeout=PATIENCE,
    ) as gradients:
        assert other.push({"w": np.zeros(2)}) and other.version == 5
        learner = GradientClient(group, "third", timeout=PATIENCE)
        learner.push({"w": np.ones(2)})
        with pytest.raises(sheave.SheaveError, match="version 5 of the model 'policy', which has version 5"):
            gradients.watch(timeout=PATIENCE)


def test_torch_state_dictionaries_travel(served):
    torch = pytest.importorskip("torch")
    group, _server = served()
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    client = ModelClient(group, "models", "net", timeout=PATIENCE)
    assert client.push(model.state_dict())
    pulled = ModelClient(group, "models", "net", timeout=PATIENCE).pull()
    other = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    other.load_state_dict({name: torch.as_tensor(value) for name, value in pulled.items()})
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_nobody_overwrites_another(transport):
    rounds = 20

    def act(mesh):
        group = mesh.rpc_group("counting", timeout=PATIENCE)
        server = ModelServer(mesh, group, "models", timeout=PATIENCE) if mesh.rank == 0 else None
        group.barrier(timeout=PATIENCE)
        client = ModelClient(group, "models", "sum", timeout=PATIENCE)
        state, done = {"sum": np.zeros(1, np.int64)}, 0
        while done < rounds:
            state = client.pull() or state
            new = {"sum": state["sum"] + mesh.rank + 1}
            if client.push(new):
                state, done = new, done + 1
        group.barrier(timeout=PATIENCE)
        state = client.pull() or state
        assert server is None or server.newest("sum") == 3 * rounds
        group.barrier(timeout=PATIENCE)
        return int(state["sum"][0]), client.version

    assert together(act, transport=transport) == [(6 * rounds, 3 * rounds)] * 3
