"""One class per kind of error, each also of the builtin that people catch."""

import pickle

import pytest
import sheave

BUILTINS = {
    "AlreadyExists": ValueError,
    "BufferInUse": BufferError,
    "Closed": RuntimeError,
    "DeadlineExceeded": TimeoutError,
    "Deadlock": RuntimeError,
    "DeclaredDead": ConnectionError,
    "Forked": RuntimeError,
    "Internal": RuntimeError,
    "Interrupted": InterruptedError,
    "InvalidArgument": ValueError,
    "Io": OSError,
    "LimitExceeded": RuntimeError,
    "Mismatch": ValueError,
    "NotFound": LookupError,
    "NotPermitted": PermissionError,
    "PeerLost": ConnectionError,
    "Protocol": ConnectionError,
    "Remote": RuntimeError,
    "Unauthenticated": PermissionError,
    "Unsupported": TypeError,
    "WorkerDied": sheave.PeerLost,
}


def test_every_kind_has_a_class():
    kinds = {name for name, value in vars(sheave).items() if isinstance(value, type) and value.__base__ is not object}
    kinds = {name for name in kinds if issubclass(getattr(sheave, name), sheave.SheaveError)} - {"SheaveError"}
    assert kinds == {*BUILTINS, "Cancelled"}
    assert set(sheave.__all__) >= kinds
    for name, builtin in BUILTINS.items():
        error = getattr(sheave, name)
        assert issubclass(error, builtin) and issubclass(error, sheave.SheaveError)
        assert (error.kind, error.__module__, error.peer, error.hint) == (name, "sheave", None, None)


def test_whoever_died_is_lost():
    assert sheave.WorkerDied.__bases__ == (sheave.PeerLost,) and issubclass(sheave.WorkerDied, ConnectionError)
    for field in ("remote_class", "remote_traceback", "exit_status", "last_lines"):
        assert getattr(sheave.WorkerDied("it ended"), field) is None


def test_errors_survive_pickling():
    with sheave.Node("lonely") as node, pytest.raises(sheave.DeadlineExceeded) as caught:
        node.recv(timeout=0.01)
    caught.value.peer = sheave.Peer("worker-1", rank=1, host="here", pid=7)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is sheave.DeadlineExceeded and str(again) == str(caught.value)
    assert (again.peer, again.hint, again.op) == (caught.value.peer, caught.value.hint, "recv")
    assert str(again.peer) == "worker-1 (rank 1, host here, pid 7)"


def test_bad_arguments():
    for arguments in ({"liveness_timeout": 0}, {"liveness_timeout": float("nan")}, {"transport": "pigeon"}):
        with pytest.raises(sheave.InvalidArgument):
            sheave.Node("node", **arguments)
    with sheave.Node("node") as node:
        with pytest.raises(sheave.Unsupported, match="float33"):
            node.empty(3, "float33")
        with pytest.raises(sheave.InvalidArgument):
            node.connect("nonsense", timeout=1)
        with pytest.raises(sheave.InvalidArgument):
            node.listen("nonsense")
        with pytest.raises(sheave.InvalidArgument, match="other hosts"):
            node.listen("0.0.0.0:0")
    with pytest.raises(sheave.LimitExceeded):
        sheave.Node("small", arena_bytes=4096).empty(1 << 20)
