"""PusH's node event loops in processes of their own."""

import os
import signal
import time

import pytest

torch = pytest.importorskip("torch")

import sheave  # noqa: E402
from sheave.compat.push.push import PusH  # noqa: E402

pytestmark = pytest.mark.timeout(120)
LIMIT_S = 60
LOSS = torch.nn.MSELoss()


def adam(params):
    return torch.optim.Adam(params, lr=0.1)


def train(particle, steps):
    x, y = torch.ones(4, 3), torch.zeros(4, 1)
    return [float(particle.step(LOSS, x, y).wait()) for _ in range(steps)]


def lead(particle, steps):
    others = particle.other_particles()
    losses = particle.wait([particle.send(pid, "TRAIN", steps) for pid in others])
    views = particle.wait([particle.get(pid) for pid in others])
    weights = [[each.detach() for each in view.view().parameters()] for view in views]
    return os.getpid(), losses, weights


def fail(particle):
    raise ValueError("no handler")


def ask(particle, other, message):
    return particle.send(other, message).wait()


def sleep(particle):
    time.sleep(LIMIT_S)


@pytest.fixture(scope="module")
def pair():
    """A distribution of two ranks, with a leader on the first, and followers on both."""
    with PusH(torch.nn.Linear, 3, 1, multi=True, devices=4, ranks=2, seed=3) as distribution:
        receive = {"LEAD": lead, "ASK": ask, "PID": lambda particle: os.getpid(), "SELF": lambda particle: particle}
        distribution.p_create(adam, device=0, receive=receive)
        for device in (1, 2, 3):
            distribution.p_create(adam, device=device, receive={**receive, "TRAIN": train, "FAIL": fail})
        yield distribution


def test_particles_of_all_ranks_are_reached(pair):
    pids = [pair.p_launch(pid, "PID").wait() for pid in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3] and os.getpid() not in pids
    process, losses, weights = pair.p_launch(0, "LEAD", 5).wait()
    assert process == pids[0] and all(len(set(each)) == 5 for each in losses)
    for pid, seen in zip((1, 2, 3), weights, strict=True):
        own = pair.p_parameters(pid)
        assert all(torch.equal(one, other) for one, other in zip(own, seen, strict=True))


def test_launches_are_waited_for_together(pair):
    futures = [pair.p_launch(pid, "PID") for pid in (3, 0, 2, 1) for _ in range(10)]
    results = pair.p_wait(reversed(futures), timeout=LIMIT_S)
    assert list(results) == [future._fid for future in reversed(futures)] and len(set(results.values())) == 2


def test_results_are_those_of_one_process(pair):
    with PusH(torch.nn.Linear, 3, 1, devices=4, seed=3) as alone:
        for device in range(4):
            alone.p_create(adam, device=device)
        fresh = [alone.p_parameters(pid) for pid in range(4)]
    with PusH(torch.nn.Linear, 3, 1, multi=True, devices=4, seed=3) as other:
        for device in range(4):
            other.p_create(adam, device=device)
        found = [other.p_parameters(pid) for pid in range(4)]
    for one, same in zip(fresh, found, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))


def test_7_errors_come_with_the_traceback_of_their_process(pair):
    for pid, message, args in ((1, "FAIL", ()), (0, "ASK", (1, "FAIL")), (0, "ASK", (2, "FAIL"))):
        with pytest.raises(ValueError, match="no handler") as raised:
            pair.p_wait([pair.p_launch(pid, message, *args)])
        assert any("in fail" in note for note in raised.value.__notes__), raised.value.__notes__
    for pid, message, args in ((1, "NONE", ()), (0, "ASK", (2, "NONE"))):
        with pytest.raises(sheave.NotFound, match="NONE"):
            pair.p_launch(pid, message, *args).wait()
    with pytest.raises(sheave.InvalidArgument, match="cannot be sent"):
        pair.p_launch(0, "SELF").wait()
    assert len({pair.p_launch(pid, "PID").wait() for pid in range(4)}) == 2, "the loops go on"


def test_12_ranks_save_and_load(pair, tmp_path):
    before = [pair.p_parameters(pid) for pid in range(4)]
    pair.save(path=str(tmp_path))
    names = {f"device{pid}_particle{pid}{end}" for pid in range(4) for end in (".pth", ".training.pth")}
    assert set(os.listdir(tmp_path)) == names
    pair.p_launch(0, "LEAD", 1).wait()
    assert pair.load(sync=False, path=str(tmp_path)).wait() is None
    for pid, saved in enumerate(before):
        assert all(torch.equal(a, b) for a, b in zip(saved, pair.p_parameters(pid), strict=True))


def test_7_the_end_of_a_process_fails_what_is_waited_for_within_a_second():
    with PusH(torch.nn.Linear, 3, 1, multi=True, devices=2, ranks=2) as distribution:
        receive = {"PID": lambda particle: os.getpid(), "SLEEP": sleep, "ASK": ask}
        pids = [distribution.p_create(device=device, receive=receive) for device in range(2)]
        process = distribution.p_launch(pids[1], "PID").wait()
        future = distribution.p_launch(pids[1], "SLEEP")
        across = distribution.p_launch(pids[0], "ASK", pids[1], "SLEEP")
        assert not future.done()
        began = time.monotonic()
        os.kill(process, signal.SIGKILL)
        with pytest.raises(sheave.PeerLost) as raised:
            distribution.p_wait([future])
        assert time.monotonic() - began < 1.0
        assert "node event loop 1 of PusH ran in this process" in raised.value.__notes__
        with pytest.raises(sheave.PeerLost):
            distribution.p_wait([across], timeout=LIMIT_S)
        with pytest.raises(sheave.PeerLost):
            distribution.p_launch(pids[1], "PID").wait()
        assert distribution.p_launch(pids[0], "PID").wait() != process, "the other rank goes on"


def test_a_network_that_cannot_be_made_is_told_and_nothing_is_left():
    def broken():
        raise ValueError("no network")

    with PusH(broken, multi=True, devices=1) as distribution:
        with pytest.raises(ValueError, match="no network"):
            distribution.p_create(adam)
    with pytest.raises(sheave.InvalidArgument, match="ranks is 3; expected 1 to 2"):
        PusH(torch.nn.Linear, 3, 1, multi=True, devices=2, ranks=3)
