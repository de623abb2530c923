"""The algorithms with the members of each device as one computation: as members that are stepped one by one."""

import time

import numpy as np
import pytest
import sheave
from bayes_models import SGD, both, joined_pair, make_line, normals, of_models, squares
from sheave import bayes, optim

torch = pytest.importorskip("torch")

from sheave.particle import Particles, TorchModel, wait_all  # noqa: E402
from torch.nn import functional  # noqa: E402

pytestmark = pytest.mark.timeout(120)

STEPS = 20
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


def halved(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


def maker(dtype, optimizer=None, scheduler=None, norm=False):
    def module():
        layers = [torch.nn.Linear(4, 8), *([torch.nn.BatchNorm1d(8)] if norm else []), torch.nn.Tanh()]
        return torch.nn.Sequential(*layers, torch.nn.Linear(8, 3)).to(dtype)

    return lambda seed: TorchModel(module, optimizer=optimizer, scheduler=scheduler, seed=seed)


def data(dtype=torch.float64, steps=STEPS // 2, rows=12):
    """Batches of classes: twice through them are twenty steps."""
    x = torch.from_numpy(normals(1, (steps * rows, 4))).to(dtype)
    y = (x @ torch.from_numpy(normals(2, (4, 3))).to(dtype)).argmax(1)
    return [(x[start : start + rows], y[start : start + rows]) for start in range(0, len(x), rows)]


def settings(**others):
    return {"task": "classification", "seed": 7, **others}


ALGORITHMS = {
    "ensemble": lambda dtype, **others: (bayes.Ensemble(maker(dtype, adam, halved), 4, **settings(**others)), {}),
    "bootstrap": lambda dtype, **others: (
        bayes.Ensemble(maker(dtype, adam, halved), 4, **settings(**others)),
        {"bootstrap": True},
    ),
    "normalised": lambda dtype, **others: (bayes.Ensemble(maker(dtype, sgd, norm=True), 4, **settings(**others)), {}),
    "multi-SWAG": lambda dtype, **others: (
        bayes.MultiSwag(maker(dtype, sgd, halved), 4, rank=3, **settings(**others)),
        {"swag_epochs": 2},
    ),
    "svgd": lambda dtype, **others: (
        bayes.SteinVgd(maker(dtype), 4, optimizer=optim.Adam(lr=0.01), **settings(**others)),
        {},
    ),
    "sgld": lambda dtype, **others: (bayes.Langevin(maker(dtype), 4, step_size=1e-4, thin=3, **settings(**others)), {}),
    "sghmc": lambda dtype, **others: (
        bayes.Langevin(maker(dtype), 4, step_size=1e-4, method="sghmc", **settings(**others)),
        {},
    ),
    "last layer": lambda dtype, **others: (bayes.LastLayerLaplace(maker(dtype, adam), 4, **settings(**others)), {}),
}


def outcome(name, dtype, batched, **others):
    """What a training leaves: losses, parameters, predictions."""
    pairs = data(dtype)
    posterior, keywords = ALGORITHMS[name](dtype, **others)
    with posterior:
        start = posterior.parameters()
        losses = posterior.fit(pairs, functional.cross_entropy, 2, batched=batched, **keywords)
        deterministic = {"batched": batched} if isinstance(posterior, bayes.Ensemble | bayes.SteinVgd) else {}
        predicted = posterior.predict(pairs[0][0], **deterministic)["mean_prob"]
        moved = [np.abs(now - before).max() for now, before in zip(posterior.parameters(), start, strict=True)]
        assert min(moved) > 1e-3, "members have moved"
        return losses, posterior.parameters(), predicted


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_twenty_steps_are_those_of_members_by_themselves(name, dtype):
    for found, expected in zip(outcome(name, dtype, True), outcome(name, dtype, False), strict=True):
        np.testing.assert_allclose(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["ensemble", "bootstrap", "svgd", "sgld", "multi-SWAG"])
def test_each_device_has_a_computation_of_its_own(name):
    expected = outcome(name, torch.float64, False)
    # Members take turns: those of a device are no neighbours.
    for found, one in zip(outcome(name, torch.float64, True, devices=["cpu", "cpu:0"]), expected, strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-9, atol=1e-9)


def test_devices_compute_at_the_same_time():
    # Each waits within its loss until the other one is there too.
    import threading

    barrier = threading.Barrier(2)

    def loss(output, target):
        barrier.wait(60)
        return functional.mse_loss(output, target)

    x, y = torch.ones(2, 4), torch.ones(2, 3)
    with bayes.Ensemble(maker(torch.float32, sgd), 4, devices=["cpu", "cpu:0"]) as ensemble:
        ensemble.fit([(x, y)], loss, 3, batched=True, timeout=60)


def test_what_comes_between_sees_what_was_computed_and_changes_nothing():
    pairs, seen = data(), []
    make = maker(torch.float64, adam)
    with bayes.Ensemble(make, 3, **settings()) as ensemble, bayes.Ensemble(make, 3, **settings()) as alone:

        def look(report):
            seen.append([ensemble.parameters(), ensemble.particles.get(ensemble.ids[0]).wait().flat])

        ensemble.fit(pairs, functional.cross_entropy, 1, batched=True, progress=look)
        for (parameters, flat), pair in zip(seen, pairs, strict=True):
            alone.fit([pair], functional.cross_entropy, 1)
            for member, row in enumerate(alone.parameters()):
                np.testing.assert_allclose(parameters[member], row, rtol=1e-9, atol=1e-9)
            np.testing.assert_array_equal(flat, parameters[0])
        assert of_models(ensemble, lambda model: model.version) == [len(pairs)] * 3


def test_models_are_together_for_a_whole_fit_and_then_let_go(monkeypatch):
    from sheave.particle import _batched

    made, built = [], _batched.BatchedModels.__init__
    monkeypatch.setattr(_batched.BatchedModels, "__init__", lambda self, of: (made.append(len(of)), built(self, of))[1])
    with bayes.Ensemble(maker(torch.float64, adam, halved), 3, cache_size=3, **settings()) as ensemble:
        ensemble.fit(data(), functional.cross_entropy, 4, batched=True)
        assert made == [3]
        assert ensemble.particles.cache_statistics()["pinned"] == 0


def test_a_cache_without_room_for_all_is_named_before_anything_is_trained():
    for room in ({"cache_size": 2}, {"particles": Particles(cache_bytes=2500)}):
        with bayes.Ensemble(maker(torch.float64, sgd), 3, **settings(**room)) as ensemble:
            before = ensemble.parameters()
            told = "the cache of device 0 has room for 2 of 3 models that are to be batched; hint: make it larger"
            with pytest.raises(sheave.LimitExceeded, match=told):
                ensemble.fit(data(), functional.cross_entropy, 1, batched=True)
            np.testing.assert_array_equal(ensemble.parameters(), before)
            assert of_models(ensemble, lambda model: model.version) == [0] * 3
            ensemble.fit(data(), functional.cross_entropy, 1)
        if "particles" in room:
            room["particles"].close()


def test_what_cannot_be_batched_is_refused_with_a_hint():
    class Asks(torch.nn.Linear):
        def forward(self, x):
            x = super().forward(x)
            return x if x.sum() > 0 else -x

    with bayes.Ensemble(make_line(optimizer=SGD), 2) as ensemble:
        with pytest.raises(sheave.Unsupported, match=r"models of \['FunctionModel'\] cannot be batched; hint: use"):
            ensemble.fit([(np.ones((2, 2)), np.ones((2, 1)))], squares, 1, batched=True)
    make = maker(torch.float64, sgd)
    with bayes.Ensemble(lambda seed: bayes.RandomizedPrior(make(seed), make(seed + 1)), 2) as ensemble:
        with pytest.raises(sheave.Unsupported, match=r"models of \['RandomizedPrior'\] cannot be batched"):
            ensemble.fit(data(), functional.cross_entropy, 1, batched=True)
    x, y = torch.ones(2, 4), torch.ones(2, 3)
    with bayes.Ensemble(lambda seed: TorchModel(Asks, 4, 3, optimizer=sgd, seed=seed), 2) as ensemble:
        before = ensemble.parameters()
        with pytest.raises(sheave.Unsupported, match="Asks cannot be batched: .*hint: step its models one by one"):
            ensemble.fit([(x, y)], functional.mse_loss, 1, batched=True)
        np.testing.assert_array_equal(ensemble.parameters(), before)
        assert ensemble.particles.cache_statistics()["pinned"] == 0
        ensemble.fit([(x, y)], functional.mse_loss, 1)
    with bayes.SteinVgd(maker(torch.float64, sgd), 2) as stein:
        with pytest.raises(sheave.InvalidArgument, match="the model has an optimizer; expected one without"):
            stein.fit(data(), functional.cross_entropy, 1, batched=True)


def test_what_a_loss_raises_is_raised_and_all_goes_on_from_the_step_before():
    pairs, calls = data(), []

    def broken(output, target):
        calls.append(1)
        if len(calls) == 4:
            raise ZeroDivisionError("no loss today")
        return functional.cross_entropy(output, target)

    make = maker(torch.float64, adam)
    with bayes.Ensemble(make, 3, **settings()) as ensemble, bayes.Ensemble(make, 3, **settings()) as alone:
        with pytest.raises(ZeroDivisionError, match="no loss today"):
            ensemble.fit(pairs, broken, 1, batched=True)
        alone.fit(pairs[:3], functional.cross_entropy, 1)
        np.testing.assert_allclose(ensemble.parameters(), alone.parameters(), rtol=1e-9, atol=1e-9)
        for one in (ensemble, alone):
            one.fit(pairs[3:], functional.cross_entropy, 1, batched=one is ensemble)
        np.testing.assert_allclose(ensemble.parameters(), alone.parameters(), rtol=1e-9, atol=1e-9)


def test_members_of_other_nodes_are_one_computation_there():
    pairs, make = data(), maker(torch.float64, adam, halved)
    with joined_pair() as meshes, Particles(meshes[0]) as here, Particles(meshes[1]) as there:
        for particles in (here, there):
            bayes.Ensemble.offer(particles, make)
        placed = settings(particles=here, nodes=[0, 1])
        with bayes.Ensemble(None, 4, **placed) as ensemble, bayes.Ensemble(make, 4, **settings()) as alone:
            for keywords in ({}, {"bootstrap": True}):
                losses = ensemble.fit(pairs, functional.cross_entropy, 2, batched=True, **keywords)
                expected = alone.fit(pairs, functional.cross_entropy, 2, **keywords)
                np.testing.assert_allclose(losses, expected, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(ensemble.parameters(), alone.parameters(), rtol=1e-9, atol=1e-9)
            found = ensemble.predict(pairs[0][0], mode="logits", batched=True)["logits"]
            np.testing.assert_allclose(found, alone.predict(pairs[0][0], mode="logits")["logits"], atol=1e-9)
            assert there.cache_statistics()["pinned"] == 0


def test_svgd_over_processes_is_batched_in_each_of_them():
    pairs, make = data(), maker(torch.float64)

    def run(rank):
        with bayes.SteinVgd(make, 2, group=meshes[rank].world, **settings()) as stein:
            stein.fit(pairs, functional.cross_entropy, 2, batched=True)
            return stein.parameters(), stein.predict(pairs[0][0], mode="logits", batched=True)["logits"]

    with joined_pair() as meshes:
        found = both(run)
    with bayes.SteinVgd(make, 4, **settings()) as alone:
        alone.fit(pairs, functional.cross_entropy, 2)
        np.testing.assert_allclose(found[0][0] + found[1][0], alone.parameters(), rtol=1e-9, atol=1e-9)
        expected = alone.predict(pairs[0][0], mode="logits")["logits"]
        for rank in range(2):
            np.testing.assert_allclose(found[rank][1], expected, atol=1e-9)


def test_predictions_are_in_evaluation_and_models_are_afterwards_as_they_were():
    x = data()[0][0]
    with bayes.Ensemble(maker(torch.float64, sgd, norm=True), 3, **settings()) as ensemble:
        ensemble.fit(data(), functional.cross_entropy, 1)
        before = of_models(ensemble, lambda model: model.state())
        found = ensemble.predict(x, mode="logits", batched=True)["logits"]
        np.testing.assert_allclose(found, ensemble.predict(x, mode="logits")["logits"], rtol=1e-9, atol=1e-9)
        by_parts = ensemble.predict(x, mode="logits", batched=True, batch_size=5)["logits"]
        np.testing.assert_allclose(by_parts, found, rtol=1e-9, atol=1e-9)
        after = of_models(ensemble, lambda model: model.state())
        for one, other in zip(before, after, strict=True):
            assert one["training"] and other["training"]
            torch.testing.assert_close(one["buffers"], other["buffers"], rtol=0, atol=0)


def test_particles_of_one_device_are_batched_in_the_order_of_that_device():
    make, (x, y) = maker(torch.float64, sgd), data()[0]

    def step(batched, particles):
        assert [particle.id for particle in particles] == ids[::-1]
        return batched.step(functional.cross_entropy, x, y)

    with Particles(devices=["cpu", "cpu:0"], cache_size=3) as particles:
        receive = {"step": lambda particle: particle.step(functional.cross_entropy, x, y).wait()}
        ids = [particles.create(lambda seed=seed: make(seed), receive=receive) for seed in range(3)]
        beside = particles.create(lambda: make(9), device="cpu:0")
        answers = []
        for _ in range(5):
            # Without a wait between them: single steps and those together come in turn.
            answers.append(particles.batched(ids[::-1], step))
            answers += particles.send_all(ids, "step")
        wait_all(answers, 60)
        models = [make(seed) for seed in range(3)]
        for model, id in zip(models, ids, strict=True):
            for _ in range(10):
                model.step(functional.cross_entropy, x, y)
            np.testing.assert_allclose(particles.get(id).wait().flat, model.flat(), rtol=1e-9, atol=1e-9)
            assert particles.get(id).wait().version == 10
        for wrong, told in (
            ([], r"particles \[\] to be batched; expected one or more"),
            ([ids[0], ids[0]], "expected one or more, each of them once"),
            ([ids[0], beside], r"particles of the devices \['cpu', 'cpu:0'\] to be batched; expected those of one"),
            ([ids[0], (1, 0)], r"particles of the nodes \[0, 1\] to be batched; expected those of one device"),
        ):
            with pytest.raises(sheave.InvalidArgument, match=told):
                particles.batched(wrong, step)
        with pytest.raises(sheave.NotFound, match="no particle 77 on this node"):
            particles.batched([(0, 77)], step)


def test_removed_and_saved_particles_end_that_they_are_together(tmp_path):
    make, (x, y) = maker(torch.float64, sgd), data()[0]

    def step(batched, particles):
        return batched.step(functional.cross_entropy, x, y)

    with Particles() as particles:
        ids = [particles.create(lambda seed=seed: make(seed)) for seed in range(3)]
        particles.batched(ids, step).wait()
        assert particles.cache_statistics()["pinned"] == 3
        particles.save(tmp_path)
        assert particles.cache_statistics()["pinned"] == 0
        expected = particles.get(ids[0]).wait().flat
        particles.batched(ids, step).wait()
        particles.load(tmp_path)
        np.testing.assert_array_equal(particles.get(ids[0]).wait().flat, expected)
        particles.batched(ids, step).wait()
        particles.remove(ids[1])
        with pytest.raises(sheave.NotFound, match="no particle 1 on this node"):
            particles.batched(ids, step)
        particles.batched([ids[0], ids[2]], step).wait()
        assert particles.cache_statistics()["known"] == 2


def test_a_timeout_ends_the_waits_of_fit_and_predict():
    import threading

    gate = threading.Event()

    def loss(output, target):
        gate.wait(60)
        return functional.cross_entropy(output, target)

    for batched in (False, True):
        gate.clear()
        with bayes.Ensemble(maker(torch.float64, sgd), 2, **settings()) as ensemble:
            begun = time.monotonic()
            with pytest.raises(sheave.DeadlineExceeded):
                ensemble.fit(data(), loss, 1, batched=batched, timeout=0.2)
            for wait in (
                lambda: ensemble.predict(data()[0][0], timeout=0.2),
                lambda: ensemble.predict(data()[0][0], timeout=0.2, batched=True),
                lambda: ensemble.ask("parameters", timeout=0.2),
            ):
                with pytest.raises(sheave.DeadlineExceeded):
                    wait()
            assert time.monotonic() - begun < 50, "waits end before the gate would"
            gate.set()
            ensemble.predict(data()[0][0], batched=batched, timeout=60)
