"""Particles with models of the library: caches, seeds, snapshots, and saves from which they go on."""

import json
import os

import numpy as np
import pytest
import sheave
from sheave.particle import FunctionModel, Particles, Snapshot
from test_particle import LIMIT_S, Line, squares, wait


def line(w=0.0):
    """y = w x with Adam."""
    parameters = {"w": np.array([w, w])}

    def gradient(parameters, loss, x, y):
        output = parameters["w"] * x
        return loss(output, y), {"w": 2 * (output - y) * x}

    return FunctionModel(parameters, lambda parameters, x: parameters["w"] * x, gradient, sheave.optim.Adam(lr=0.1))


def train(particle, steps):
    """Steps on data of its own."""
    for _ in range(steps):
        x = particle.generator.standard_normal(2)
        particle.step(squares, x, 3.0 * x).wait()
    particle.state["steps"] = particle.state.get("steps", 0) + steps
    return particle.get(particle.id).wait().flat.tolist()


def made(count, **settings):
    particles = Particles(seed=3, **settings)
    devices = len(particles.devices)
    particles.create_many(
        count, lambda index: {"model": line, "receive": {"train": train}, "device": index % devices}
    )
    return particles


def test_trap_10_what_models_compute_does_not_depend_on_the_cache():
    outcomes = []
    limited = [{"cache_size": size, "policy": policy} for size in (1, 2, 4) for policy in ("lru", "direct")]
    for settings in ({}, *limited):
        with made(4, **settings) as particles:
            assert wait(particles.send_all(particles.ids(), "train", 5)) != []
            outcomes.append(wait(particles.send_all(particles.ids(), "train", 5)))
            evictions = particles.cache_statistics()["evictions"]
            assert (evictions > 0) == (settings.get("cache_size", 4) < 4), settings
    assert all(outcome == outcomes[0] for outcome in outcomes) and len({str(flat) for flat in outcomes[0]}) == 4


def test_trap_10_a_loss_that_uses_particles_of_a_device_of_one_place():
    with Particles(cache_size=1, devices=2) as particles:
        other = particles.create(lambda: line(2.0), device=1)
        peek = {"peek": lambda particle: particle.get(other).wait().flat.tolist()}
        peer = particles.create(receive=peek)

        def go(particle):
            def loss(output, y):
                assert particle.send(peer, "peek").wait() == [2.0, 2.0]
                return squares(output, y)

            return particle.step(loss, np.ones(2), np.ones(2)).wait()

        id = particles.create(line, receive={"go": go}, device=0)
        assert particles.send(id, "go").wait() == 1.0


def test_trap_5_a_get_moves_nothing_and_does_not_change():
    with made(3, cache_size=1) as particles:
        ids = particles.ids()
        wait(particles.send_all(ids, "train", 1))
        before = particles.cache_statistics()
        first = particles.get(ids[0]).wait()
        assert isinstance(first, Snapshot) and first.version == 1 and first is particles.get(ids[0]).wait()
        after = particles.cache_statistics()
        assert (after["misses"], after["evictions"]) == (before["misses"], before["evictions"])
        flat = first.flat.copy()
        particles.send(ids[0], "train", 1).wait()
        assert first.flat.tolist() == flat.tolist() != particles.get(ids[0]).wait().flat.tolist()
        assert not first.flat.flags.writeable and first.gradient is None
        assert particles.get(ids[0], gradients=True).wait().gradient is not None


def test_trap_12_a_save_goes_on_where_it_was(tmp_path):
    folder = tmp_path / "made" / "there"
    with made(3, devices=2, cache_size=1) as particles:
        ids = particles.ids()
        plain = particles.create(state={"list": [1, (2.5, None)], "array": np.arange(3)})
        wait(particles.send_all(ids, "train", 4))
        particles.save(folder)
        particles.save(folder)
        expected = wait(particles.send_all(ids, "train", 4))
        assert len(os.listdir(folder)) == 5, "nothing is left of the first save"
    with made(3) as particles:
        ids = particles.ids()
        with pytest.raises(sheave.InvalidArgument, match=r"has particles \[0, 1, 2, 3\], and there are \[0, 1, 2\]"):
            particles.load(folder)
        plain = particles.create()
        wait(particles.send_all(ids, "train", 1))
        particles.load(folder)
        assert wait(particles.send_all(ids, "train", 4)) == expected
        state = particles._objects[plain.number].state
        assert state["list"] == [1, (2.5, None)] and state["array"].tolist() == [0, 1, 2]
        assert particles._objects[0].state == {"steps": 8}
        with pytest.raises(sheave.NotFound, match="no particles were saved there"):
            particles.load(tmp_path)


def test_trap_12_a_save_that_fails_leaves_the_one_before(tmp_path):
    with Particles() as particles:
        particles.create(state={"count": 1})
        id = particles.create(Line, state={"count": 2})
        particles.save(tmp_path)
        files = sorted(os.listdir(tmp_path))
        particles._objects[0].state["count"] = 7
        particles._objects[id.number].state["thing"] = object()
        with pytest.raises(sheave.InvalidArgument, match=r"state\.state\.thing is a object; expected an array"):
            particles.save(tmp_path)
        assert sorted(os.listdir(tmp_path)) == files
        particles.load(tmp_path)
        assert [particles._objects[number].state for number in (0, 1)] == [{"count": 1}, {"count": 2}]
        listed = json.loads((tmp_path / "particles.json").read_text())
        (tmp_path / listed["1"]).write_bytes(b"no file of this kind")
        with pytest.raises(sheave.SheaveError):
            particles.load(tmp_path)
        (tmp_path / "particles.json").write_text("[1, 2]")
        with pytest.raises(sheave.InvalidArgument, match="no list of particles"):
            particles.load(tmp_path)


def test_trap_11_torch_models_have_the_seeds_of_their_particles():
    torch = pytest.importorskip("torch")
    from sheave.particle import TorchModel

    def weights(master):
        before = torch.random.get_rng_state()
        with Particles(seed=master) as particles:
            particles.create_many(4, lambda index: {"model": lambda: TorchModel(torch.nn.Linear, 3, 2)})
            got = [particles.get(id).wait(LIMIT_S).flat.tolist() for id in particles.ids()]
        assert torch.equal(before, torch.random.get_rng_state())
        return got

    first = weights(5)
    assert first == weights(5) and len({str(flat) for flat in first + weights(6)}) == 8
