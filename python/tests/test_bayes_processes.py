"""Members of an ensemble in processes of their own, and what becomes of a training when one of those is gone."""

import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest
import sheave
from bayes_models import SGD, batches, make_line, normals, squares
from conftest import free_root
from sheave import bayes
from sheave.particle import Particles

pytestmark = pytest.mark.timeout(120)
LIMIT_S = 60

# A rank that offers members, and goes on until it is told to end.
PEER = """
import sys, time
import sheave
from sheave import bayes
from sheave.particle import Particles
sys.path.insert(0, sys.argv[3])
from bayes_models import SGD, make_line

mesh = sheave.Mesh(rank=int(sys.argv[2]), size=3, root=sys.argv[1])
particles = Particles(mesh)
bayes.Ensemble.offer(particles, make_line(optimizer=SGD))
mesh.barrier()
print("ready", flush=True)
sys.stdin.readline()
mesh.leave()
"""


@contextlib.contextmanager
def joined(start, liveness_s):
    """An ensemble of six over this process and two others, those, and batches."""
    root = free_root()
    peers = {"SHEAVE_LIVENESS_TIMEOUT_MS": str(1000 * liveness_s)}
    programs = [start(PEER, root, rank, os.path.dirname(__file__), **peers) for rank in (1, 2)]
    own = sheave.Mesh(rank=0, size=3, root=root, join_timeout=LIMIT_S, liveness_timeout=liveness_s)
    with own as mesh, Particles(mesh) as particles:
        bayes.Ensemble.offer(particles, make_line(optimizer=SGD))
        mesh.barrier(timeout=LIMIT_S)
        assert [program.line() for program in programs] == ["ready", "ready"]
        ensemble = bayes.Ensemble(None, 6, particles=particles, nodes=[0, 1, 2], seed=3)
        yield ensemble, programs, batches(normals(1, (60, 2)), normals(2, (60, 1)), 10)


@pytest.fixture
def job(start):
    """One whose processes are silent for as long as they like."""
    with joined(start, 2 * LIMIT_S) as made:
        yield made


def stays_in(pid):
    """A loss that never comes to an end in this process, which says so."""

    def loss(output, target):
        if os.getpid() == pid:
            print("stays", flush=True)
            time.sleep(1000)
        return float(np.mean((output - target) ** 2)), 2 * (output - target) / output.size

    return loss


def assert_others_go_on(ensemble):
    """Those of the other two processes do as they are told."""
    others = [id for id in ensemble.ids if id.node != 1]
    assert len(others) == 4
    particles = ensemble.particles
    assert [len(row) for row in particles.ask_all(others, "parameters", timeout=LIMIT_S)] == [2] * 4
    x, y = normals(3, (5, 2)), normals(4, (5, 1))
    ensemble.ids = others
    losses = ensemble.fit([(x, y)], squares, 2, timeout=LIMIT_S)
    assert losses.shape == (2, 4) and (losses > 0).all()
    assert ensemble.predict(x, timeout=LIMIT_S)["mean"].shape == (5, 1)


def test_members_of_three_processes_are_as_those_of_one(job):
    ensemble, programs, pairs = job
    assert [id.node for id in ensemble.ids] == [0, 1, 2, 0, 1, 2]
    losses = ensemble.fit(pairs, squares, 2, timeout=LIMIT_S)
    with bayes.Ensemble(make_line(optimizer=SGD), 6, seed=3) as alone:
        np.testing.assert_array_equal(losses, alone.fit(pairs, squares, 2))
        np.testing.assert_array_equal(ensemble.parameters(), alone.parameters())
        found, expected = (one.predict(pairs[0][0], mode="pred")["pred"] for one in (ensemble, alone))
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(sheave.NotFound, match='no handler of "nothing"; it has "normalises"'):
        ensemble.ask("nothing", timeout=LIMIT_S)
    for program in programs:
        program.tell()
        program.succeed(LIMIT_S)


def test_reports_come_in_order_and_a_loader_may_use_its_arrays_again(job):
    ensemble, _, pairs = job

    class Loader:
        def __iter__(self):
            x, y = (np.empty_like(array) for array in pairs[0])
            for rows, targets in pairs:
                x[:], y[:] = rows, targets
                yield x, y

    told, expected = [], []
    losses = ensemble.fit(Loader(), squares, 2, timeout=LIMIT_S, progress=told.append)
    with bayes.Ensemble(make_line(optimizer=SGD), 6, seed=3) as alone:
        np.testing.assert_array_equal(losses, alone.fit(pairs, squares, 2, progress=expected.append))
    assert len(told) == 2 * len(pairs)
    for one, other in zip(told, expected, strict=True):
        assert (one.epoch, one.batch, one.losses.tolist()) == (other.epoch, other.batch, other.losses.tolist())


def test_a_process_that_is_killed_between_two_batches_is_named_by_fit(job):
    ensemble, programs, pairs = job
    killed = []

    class Loader:
        def __iter__(self):
            for place, pair in enumerate(pairs):
                if place == 3:
                    killed.append(time.monotonic())
                    os.kill(programs[0].pid, signal.SIGKILL)
                yield pair

    with pytest.raises(sheave.PeerLost, match="rank-1") as raised:
        ensemble.fit(Loader(), squares, 2)
    took_s = time.monotonic() - killed[0]
    assert raised.value.peer.name == "rank-1"
    assert took_s < 5, "it is told at once, on a machine that others use too"
    with pytest.raises(sheave.PeerLost, match="rank-1"):
        ensemble.predict(pairs[0][0])
    assert_others_go_on(ensemble)


def test_a_process_that_is_killed_within_a_step_is_named_by_fit(job):
    ensemble, programs, pairs = job
    killed = []

    def kill():
        assert programs[0].line() == "stays"
        killed.append(time.monotonic())
        os.kill(programs[0].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(sheave.PeerLost, match="rank-1"):
        ensemble.fit(pairs, stays_in(programs[0].pid), 1)
    took_s = time.monotonic() - killed[0]
    killer.join(LIMIT_S)
    assert took_s < 5
    assert_others_go_on(ensemble)


def test_a_process_that_is_stopped_is_waited_for_no_longer_than_the_timeout(job):
    ensemble, programs, pairs = job
    ensemble.fit(pairs, squares, 1)
    programs[0].stop()
    for wait in (
        lambda: ensemble.fit(pairs, squares, 1, timeout=0.5),
        lambda: ensemble.predict(pairs[0][0], timeout=0.5),
        lambda: ensemble.ask("parameters", timeout=0.5),
    ):
        begun = time.monotonic()
        with pytest.raises(sheave.DeadlineExceeded):
            wait()
        assert 0.4 < time.monotonic() - begun < LIMIT_S / 2
    # The process goes on where it was stopped, and the others have not waited for it.
    os.kill(programs[0].pid, signal.SIGCONT)
    assert len(ensemble.ask("parameters", timeout=LIMIT_S)) == 6
    assert_others_go_on(ensemble)


def test_without_a_timeout_a_process_that_is_stopped_is_lost_once_it_has_been_silent_for_long(start):
    with joined(start, 5) as (ensemble, programs, pairs):
        ensemble.fit(pairs, squares, 1)
        programs[0].stop()
        begun = time.monotonic()
        with pytest.raises(sheave.PeerLost, match="rank-1"):
            ensemble.fit(pairs, squares, 1)
        assert time.monotonic() - begun < LIMIT_S
        assert_others_go_on(ensemble)
