"""sheave.bayes on particles of numpy: each algorithm beside what is known of it."""

import io
import sys
import threading
import time

import numpy as np
import pytest
import sheave
from bayes_models import (
    SGD,
    batches,
    both,
    cross_entropy,
    half_squares,
    joined_pair,
    line,
    line_gradient,
    make_line,
    make_network,
    normals,
    of_models,
    squares,
)
from sheave import bayes, optim
from sheave.bayes import plots
from sheave.bayes._data import several
from sheave.particle import FunctionModel, Particles

NOISE_VARIANCE = 0.25


@pytest.fixture(scope="module")
def problem():
    """A regression with a standard normal prior: inputs, targets, and its closed form."""
    x = np.hstack([np.ones((40, 1)), normals(1, (40, 1))])
    y = x @ [[1.0], [-2.0]] + 0.5 * normals(2, (40, 1))
    covariance = np.linalg.inv(x.T @ x / NOISE_VARIANCE + np.eye(2))
    return x, y, (covariance @ x.T @ y / NOISE_VARIANCE)[:, 0], covariance


def alone(make, seed, pairs, loss, epochs):
    """What a model becomes that is trained without particles."""
    model = make(seed)
    for _ in range(epochs):
        for x, y in pairs:
            model.step(loss, x, y)
    return np.array(model.flat())


@pytest.mark.parametrize("cache_size", [None, 1, 2])
def test_an_ensemble_is_its_members_trained_alone_bit_for_bit(cache_size):
    x, y = normals(3, (30, 4), dtype=np.float32), normals(4, (30, 2), dtype=np.float32)
    make, pairs = make_network(4, 8, 2, optim.Adam(lr=0.01)), batches(x, y, 10)
    with bayes.Ensemble(make, 4, devices=2, cache_size=cache_size, seed=5) as ensemble:
        losses = ensemble.fit(pairs, squares, 3)
        found = ensemble.parameters()
    assert losses.shape == (3, 4) and (losses[-1] < losses[0]).all()
    for member in range(4):
        expected = alone(make, bayes.seed_of(5, member), pairs, squares, 3)
        np.testing.assert_array_equal(found[member], expected)
    assert all((found[0] != other).any() for other in found[1:])


def test_members_of_one_device_step_on_the_thread_that_trains_them():
    """Others would find the device busy, and take the interpreter from it: steps last longer here than messages that
    nobody waits for are left alone."""
    steps = []

    def gradient(parameters, loss, x, y):
        steps.append(threading.get_ident())
        time.sleep(0.002)
        return line_gradient(parameters, loss, x, y)

    def make(seed):
        return FunctionModel({"w": normals(seed, (2, 1))}, line, gradient, optim.SGD(0.1))

    with bayes.Ensemble(make, 4) as ensemble:
        ensemble.fit([(np.ones((3, 2)), np.ones((3, 1)))] * 5, squares, 2)
    assert len(steps) == 40 and set(steps) == {threading.get_ident()}


def test_a_member_that_fails_keeps_the_others_from_nothing():
    failing, stepped = [], []

    def make(seed):
        def gradient(parameters, loss, x, y):
            stepped.append(seed)
            if seed in failing:
                raise ValueError("it has failed")
            return line_gradient(parameters, loss, x, y)

        return FunctionModel({"w": normals(seed, (2, 1))}, line, gradient, optim.SGD(0.1))

    with bayes.Ensemble(make, 4) as ensemble:
        failing.append(ensemble.seed_of(1))
        with pytest.raises(ValueError, match="it has failed"):
            ensemble.fit([(np.ones((3, 2)), np.ones((3, 1)))], squares, 1)
        # Behind what it has been sent.
        ensemble.parameters()
    assert sorted(stepped) == sorted(ensemble.seed_of(member) for member in range(4))


def test_members_of_a_bootstrap_have_data_of_their_own_and_the_same_again():
    x, y = normals(6, (20, 2)), normals(7, (20, 1))
    runs = []
    for _ in range(2):
        with bayes.Ensemble(make_line(optimizer=SGD), 3, seed=8) as ensemble:
            losses = ensemble.fit(batches(x, y, 8), squares, 4, bootstrap=True)
            assert losses.shape == (4, 3)
            runs.append(ensemble.parameters())
    np.testing.assert_array_equal(runs[0], runs[1])
    with bayes.Ensemble(lambda seed: make_line(optimizer=SGD)(1), 2, seed=8) as ensemble:
        ensemble.fit(batches(x, y, 8), squares, 4, bootstrap=True)
        one, other = ensemble.parameters()
    # The same weights at first: the data alone made them differ.
    assert (one != other).any()


class Scheduled(FunctionModel):
    """Counts the steps of its scheduler."""

    def scheduler_step(self):
        self.scheduled = getattr(self, "scheduled", 0) + 1


def test_the_schedulers_of_all_members_step_also_that_of_the_first():
    def make(seed):
        model = make_line(optimizer=SGD)(seed)
        model.__class__ = Scheduled
        return model

    x, y = normals(9, (8, 2)), normals(10, (8, 1))
    for bootstrap in (False, True):
        with bayes.Ensemble(make, 3) as ensemble:
            ensemble.fit(batches(x, y, 4), squares, 5, bootstrap=bootstrap)
            assert of_models(ensemble, lambda model: model.scheduled) == [5, 5, 5]


def test_predictions_have_the_shapes_of_their_modes():
    x = normals(11, (6, 3), dtype=np.float32)
    with bayes.Ensemble(make_network(3, 4, 2), 5) as ensemble:
        rows = np.stack(ensemble.outputs(x), 1)
        assert rows.shape == (6, 5, 2)
        found = ensemble.predict(x, mode=["mean", "std", "median", "min", "max", "quantile", "pred"], quantile=0.25)
        expected = {
            "mean": rows.mean(1),
            "std": rows.std(1, ddof=1),
            "median": np.median(rows, 1),
            "min": rows.min(1),
            "max": rows.max(1),
            "quantile": np.quantile(rows, 0.25, 1),
            "pred": rows,
        }
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
        several = ensemble.predict(x, mode="quantile", quantile=(0.1, 0.9))["quantile"]
        np.testing.assert_allclose(several, np.quantile(rows, (0.1, 0.9), 1), rtol=1e-5, atol=1e-6)
        # A loader of inputs, one of pairs, and parts of an array are the same data.
        for data, size in ((list(x.reshape(3, 2, 3)), None), (batches(x, x, 4), None), (x, 4)):
            again = ensemble.predict(data, batch_size=size)["mean"]
            np.testing.assert_allclose(again, found["mean"], rtol=1e-5, atol=1e-6)
        with pytest.raises(sheave.InvalidArgument, match="mode is 'average'; expected of a regression some of 'mean'"):
            ensemble.predict(x, mode="average")
        with pytest.raises(sheave.InvalidArgument, match="the data have no batches; expected one at least"):
            ensemble.predict([])


def test_predictions_of_classes():
    x = normals(12, (6, 3), 3.0, np.float32)
    with bayes.Ensemble(make_network(3, 4, 5), 3, task="classification") as ensemble:
        logits = np.stack(ensemble.outputs(x), 1)
        modes = ["logits", "prob", "mean_prob", "log_prob", "std", "mode"]
        found = ensemble.predict(x, mode=modes)
        assert list(ensemble.predict(x)) == ["mean_prob"]
    exponentials = np.exp(logits.astype(np.float64))
    probabilities = exponentials / exponentials.sum(-1, keepdims=True)
    near = {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_array_equal(found["logits"], logits)
    np.testing.assert_allclose(found["prob"], probabilities, **near)
    np.testing.assert_allclose(found["mean_prob"], probabilities.mean(1), **near)
    np.testing.assert_allclose(found["log_prob"], np.log(probabilities.mean(1)), **near)
    np.testing.assert_allclose(found["std"], probabilities.std(1, ddof=1), **near)
    assert found["mode"].shape == (6,) and found["mode"].dtype == np.int64


def test_one_member_has_a_std_of_zero_and_not_none():
    x = normals(13, (4, 2))
    with bayes.Ensemble(make_line(), 1) as ensemble:
        np.testing.assert_array_equal(ensemble.predict(x, mode="std")["std"], np.zeros((4, 1)))


def test_a_gaussian_head_learns_its_noise():
    x = np.hstack([np.ones((400, 1)), normals(14, (400, 1))])
    y = x[:, 1:] + 0.3 * normals(15, (400, 1))

    def loss(output, target):
        mean, log_variance = np.ascontiguousarray(output[:, :1]), np.ascontiguousarray(output[:, 1:])
        slopes = bayes.gaussian_head_gradient(mean, log_variance, target)
        return bayes.gaussian_head_nll(mean, log_variance, target), np.hstack(slopes)

    with bayes.Ensemble(make_line(2, 2, optim.Adam(lr=0.05)), 3, task="gaussian") as ensemble:
        ensemble.fit([(x, y)], loss, 1000)
        found = ensemble.predict(x, mode=["mean", "std", "model_std", "noise_std", "pred"])
        outputs = ensemble.outputs(x)
    assert found["pred"].shape == (400, 3, 4 // 2) and found["mean"].shape == (400, 1)
    assert found["noise_std"].mean() == pytest.approx(0.3, rel=0.05)
    means, variances = np.stack([o[:, :1] for o in outputs]), np.stack([np.exp(o[:, 1:]) for o in outputs])
    np.testing.assert_allclose(found["std"] ** 2, (variances + means**2).mean(0) - means.mean(0) ** 2, rtol=1e-6)
    value = bayes.gaussian_loss(outputs[0], y)
    assert float(value) == pytest.approx(loss(outputs[0], y)[0])


def test_randomised_priors_are_fixed_and_seen_by_the_loss():
    x, y = normals(16, (12, 2)), normals(17, (12, 1))

    def make(seed):
        return bayes.RandomizedPrior(make_line(optimizer=SGD)(seed), make_line()(seed + 1), scale=3.0)

    with bayes.Ensemble(make, 2, seed=9) as ensemble:
        ensemble.fit([(x, y)], squares, 400)
        outputs, found = ensemble.outputs(x), ensemble.parameters()
    best = x @ np.linalg.lstsq(x, y, rcond=None)[0]
    for member in range(2):
        prior = make_line()(bayes.seed_of(9, member) + 1).flat()
        np.testing.assert_allclose(outputs[member], best, atol=1e-5)
        np.testing.assert_allclose(x @ (found[member] + 3 * prior), best[:, 0], atol=1e-5)


def test_swag_matches_the_moments_of_the_trajectory_it_saw(problem):
    """A linear regression with a constant rate: the trajectory is known, and the moments of its snapshots with it."""
    x, y, _, _ = problem
    make, pairs = make_line(optimizer=optim.SGD(lr=0.2)), batches(x, y, 10)
    with bayes.MultiSwag(make, 3, rank=4, seed=10) as swag:
        losses = swag.fit(pairs, squares, 2, swag_epochs=7)
        moments, before = swag.moments(), swag.parameters()
        assert losses.shape == (9, 3)
        for member, found in enumerate(moments):
            model = make(bayes.seed_of(10, member))
            snapshots = []
            for epoch in range(9):
                for pair in pairs:
                    model.step(squares, *pair)
                if epoch >= 2:
                    snapshots.append(np.array(model.flat()))
            np.testing.assert_allclose(found.mean, np.mean(snapshots, 0))
            np.testing.assert_allclose(found.variance, np.var(snapshots, 0), rtol=1e-9, atol=1e-18)
            assert (found.snapshots, found.deviations.shape) == (7, (4, 2))
        # Samples of all members spread, also of the first.
        rows = np.stack([o[:, 0] for o in swag._outputs([np.eye(2)], (400, 0.5, 1, []))]).reshape(3, 400, 2)
        for found, samples in zip(moments, rows):
            columns = found.deviations
            expected = 0.5 * (np.diag(found.variance) + columns.T @ columns / 3)
            np.testing.assert_allclose(samples.mean(0), found.mean, atol=4 * np.sqrt(expected.max() / 400))
            np.testing.assert_allclose(np.cov(samples.T), expected, atol=0.3 * expected.max())
        predicted = swag.predict(x, mode=["mean", "std", "pred"], samples=5)
        assert predicted["pred"].shape == (40, 15, 1)
        # The same samples again, and the weights of before.
        np.testing.assert_array_equal(swag.predict(x, samples=5)["mean"], predicted["mean"])
        assert (swag.predict(x, samples=5, seed=1)["mean"] != predicted["mean"]).any()
        np.testing.assert_array_equal(swag.parameters(), before)
        assert np.isfinite(swag.predict(x, samples=1)["mean"]).all()


def test_members_of_multi_swag_begin_apart_and_count_their_own_snapshots(problem):
    x, y, _, _ = problem
    with bayes.MultiSwag(make_line(optimizer=SGD), 2) as swag:
        first = swag.parameters()
        assert (first[0] != first[1]).all()
        swag.fit([(x, y)], squares, 0, swag_epochs=3)
        assert [found.snapshots for found in swag.moments()] == [3, 3]
        # A second call goes on.
        swag.fit([(x, y)], squares, 1, swag_epochs=2)
        assert [found.snapshots for found in swag.moments()] == [5, 5]
    with bayes.MultiSwag(make_line(optimizer=SGD), 1) as swag:
        with pytest.raises(sheave.InvalidArgument, match="has no snapshots; expected fit with swag_epochs before"):
            swag.predict(x)


@pytest.mark.parametrize("method", ["sgld", "sghmc"])
def test_chains_match_the_posterior_of_a_regression(problem, method):
    x, y, mean, covariance = problem
    settings = {"sgld": {"step_size": 4e-3}, "sghmc": {"step_size": 1e-3, "friction": 0.2}}[method]
    with bayes.Langevin(
        make_line(), 4, method=method, burn_in=100, thin=2, capacity=2000, seed=11, **settings
    ) as langevin:
        langevin.fit([(x, y)], half_squares(NOISE_VARIANCE), 1500)
        chains, before = langevin.samples(), langevin.parameters()
        assert [chain.shape for chain in chains] == [(700, 2)] * 4
        found = langevin.predict(x, mode=["mean", "std"])
        np.testing.assert_array_equal(langevin.parameters(), before)
    samples = np.concatenate(chains)
    np.testing.assert_allclose(samples.mean(0), mean, atol=0.4 * np.sqrt(np.diag(covariance)).max())
    np.testing.assert_allclose(np.cov(samples.T), covariance, atol=0.35 * covariance.max())
    np.testing.assert_allclose(found["mean"][:, 0], x @ samples.mean(0), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found["std"][:, 0], (x @ samples.T).std(1, ddof=1), rtol=1e-6)


def test_cyclical_chains_sample_at_the_end_of_each_cycle(problem):
    x, y, _, _ = problem
    with bayes.Langevin(make_line(), 2, step_size=2e-3, steps=40, cycles=4, exploration=0.8) as langevin:
        langevin.fit([(x, y)], half_squares(NOISE_VARIANCE), 40)
        assert [len(chain) for chain in langevin.samples()] == [8, 8]


def test_svgd_matches_the_posterior_of_a_regression(problem):
    """Batches are scaled to the data and the prior is in the gradient: without either the moments would be others."""
    x, y, mean, covariance = problem
    with bayes.SteinVgd(make_line(), 40, optimizer=optim.Adam(lr=0.05), seed=12) as stein:
        stein.fit(batches(x, y, 40), half_squares(NOISE_VARIANCE), 600)
        particles = np.stack(stein.parameters())
        assert stein.lengthscale > 0
        predicted = stein.predict(x)["mean"]
    np.testing.assert_allclose(particles.mean(0), mean, atol=0.02)
    np.testing.assert_allclose(np.cov(particles.T), covariance, atol=0.2 * covariance.max())
    np.testing.assert_allclose(predicted[:, 0], x @ particles.mean(0))


def test_svgd_is_the_mathematics_on_flat_vectors(problem):
    x, y, _, _ = problem
    pairs, loss = batches(x, y, 10), half_squares(NOISE_VARIANCE)
    with bayes.SteinVgd(make_line(), 5, optimizer=optim.AdaGrad(lr=0.1), lengthscale=0.7, seed=13) as stein:
        stein.fit(pairs, loss, 3)
        found = np.stack(stein.parameters())
    rows = np.stack([normals(bayes.seed_of(13, member), 2) for member in range(5)])
    svgd = bayes.Svgd(optimizer=optim.AdaGrad(lr=0.1), lengthscale=0.7)
    for _ in range(3):
        for a, b in pairs:
            slopes = (40 * (a.T @ (a @ rows.T - b)) / NOISE_VARIANCE / len(b)).T + rows
            svgd.step(rows, np.ascontiguousarray(slopes))
    np.testing.assert_allclose(found, rows, rtol=1e-9)


def test_models_with_an_optimizer_are_refused_where_others_make_the_steps(problem):
    x, y, _, _ = problem
    for made in (bayes.SteinVgd(make_line(optimizer=SGD), 2), bayes.Langevin(make_line(optimizer=SGD), step_size=0.1)):
        with made, pytest.raises(sheave.InvalidArgument, match="the model has an optimizer; expected one without"):
            made.fit([(x, y)], squares, 1)


@pytest.fixture
def pair():
    with joined_pair() as meshes:
        yield meshes


def test_svgd_cut_over_processes_is_the_one_in_one(problem, pair):
    x, y, _, _ = problem
    pairs, loss = batches(x, y, 20), half_squares(NOISE_VARIANCE)
    make = make_network(2, 3, 1, dtype=np.float64)
    counts = [2, 3]

    def run(rank):
        with bayes.SteinVgd(make, counts[rank], seed=14, group=pair[rank].world) as stein:
            stein.fit(pairs, loss, 4)
            return stein.parameters(), stein.predict(x, mode="pred")["pred"]

    with bayes.SteinVgd(make, 5, seed=14) as stein:
        stein.fit(pairs, loss, 4)
        expected, predicted = stein.parameters(), stein.predict(x, mode="pred")["pred"]
    (one, of_one), (other, of_other) = both(run)
    np.testing.assert_allclose(np.stack(one + other), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(of_one, predicted, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(of_one, of_other)


def test_members_live_on_other_nodes(problem, pair):
    x, y, _, _ = problem
    make = make_line(optimizer=SGD)
    with Particles(pair[0]) as here, Particles(pair[1]) as there:
        bayes.Ensemble.offer(here, make)
        bayes.Ensemble.offer(there, make)
        with bayes.Ensemble(None, 4, particles=here, nodes=[0, 1], seed=15) as ensemble:
            assert [id.node for id in ensemble.ids] == [0, 1, 0, 1]
            ensemble.fit(batches(x, y, 10), squares, 2)
            found = ensemble.parameters()
    for member in range(4):
        expected = alone(make, bayes.seed_of(15, member), batches(x, y, 10), squares, 2)
        np.testing.assert_array_equal(found[member], expected)


def test_dropout_draws_one_mask_for_all_data_and_scales_what_is_kept():
    x = normals(18, (50, 2))
    with bayes.MonteCarloDropout(make_network(2, 64, 1, dtype=np.float64), 2, seed=16) as dropout:
        found = dropout.predict(x, mode=["pred", "mean"], samples=400)
        assert found["pred"].shape == (50, 800, 1)
        # Of one sample the same mask serves each part of the data.
        parts = dropout.predict(x, mode="pred", samples=400, batch_size=7)["pred"]
        np.testing.assert_allclose(parts, found["pred"], rtol=1e-9, atol=1e-12)
        with bayes.Ensemble(make_network(2, 64, 1, dtype=np.float64), 2, seed=16) as plain:
            without = plain.outputs(x)
    for member in range(2):
        samples = found["pred"][:, 400 * member : 400 * (member + 1)]
        bound = 5 * samples.std(1).max() / 20
        np.testing.assert_allclose(samples.mean(1), without[member], atol=bound)
        assert samples.std(1).min() > 0


def test_a_last_layer_is_the_posterior_of_a_linear_model(problem):
    x, y, mean, covariance = problem
    settings = {"features": lambda model, x: (x, model.flat()[None]), "prior_precision": 1.0}
    with bayes.LastLayerLaplace(make_line(optimizer=SGD), noise_variance=NOISE_VARIANCE, **settings) as laplace:
        laplace.fit(batches(x, y, 10), squares, 3)
        found = laplace.predict(x, mode=["mean", "std"])
    np.testing.assert_allclose(found["mean"][:, 0], x @ mean)
    variance = NOISE_VARIANCE + np.einsum("bi,ij,bj->b", x, covariance, x)
    np.testing.assert_allclose(found["std"][:, 0] ** 2, variance)
    with bayes.LastLayerLaplace(make_line(optimizer=SGD), features=settings["features"]) as laplace:
        laplace.fit(batches(x, y, 10), squares, 3)
        (evidence,) = laplace.approximate([(x, y)])
        layer = bayes.LaplaceRegression(2)
        layer.add(x, y)
        assert evidence.log_evidence == pytest.approx(layer.maximize_evidence().log_evidence)


def test_a_last_layer_of_classes():
    x = np.hstack([normals(19, (60, 2)), np.ones((60, 1))])
    labels = (x[:, 0] > 0).astype(np.int64)
    features = lambda model, x: (x, model.flat().reshape(3, 2).T)  # noqa: E731
    make = make_line(3, 2, optim.Adam(lr=0.1))
    with bayes.LastLayerLaplace(make, 2, task="classification", features=features) as laplace:
        laplace.fit([(x, labels)], cross_entropy, 40)
        found = laplace.predict(x, mode=["mean_prob", "prob", "log_prob", "mode", "std"])
        sampled = laplace.predict(x, samples=300)["mean_prob"]
        far = laplace.predict(x * 30)["mean_prob"]
        plain, weights = bayes.mean_probabilities(laplace.outputs(x)), laplace.parameters()
    assert found["prob"].shape == (60, 2, 2)
    np.testing.assert_allclose(found["mean_prob"].sum(1), 1)
    assert (found["mode"] == labels).mean() > 0.9
    # Beside weights that are drawn from the whole posterior.
    drawn = []
    for flat in weights:
        layer = bayes.LaplaceClassification(np.ascontiguousarray(flat.reshape(3, 2).T))
        layer.add(x, labels)
        posterior, generator = layer.posterior(layer.maximize_evidence().prior_precision), bayes.Generator(20)
        drawn += [x @ posterior.sample(generator).T for _ in range(1000)]
    np.testing.assert_allclose(sampled, bayes.mean_probabilities(drawn), atol=0.06)
    assert found["mean_prob"].max(1).mean() < plain.max(1).mean()
    assert far.max(1).min() > 0.4


def test_what_a_loss_raises_is_raised_by_fit_and_all_goes_on(problem):
    x, y, _, _ = problem

    def broken(output, target):
        raise ZeroDivisionError("no loss today")

    with bayes.Ensemble(make_line(optimizer=SGD), 2) as ensemble:
        with pytest.raises(ZeroDivisionError, match="no loss today"):
            ensemble.fit([(x, y)], broken, 1)
        assert ensemble.fit([(x, y)], squares, 1).shape == (1, 2)


@pytest.mark.parametrize(
    ("loader", "epochs", "told"),
    [
        (iter([]), 2, "the loader is an iterator, which gives its batches once; expected 2 epochs"),
        ([], 1, "the loader had no batches in epoch 1; expected one at least"),
        ([np.ones(3)], 1, "batch 0 of the loader is a ndarray; expected a pair"),
        ([], -1, "epochs is -1; expected 0 or more"),
    ],
)
def test_loaders_that_are_none_are_named(loader, epochs, told):
    with bayes.Ensemble(make_line(optimizer=SGD), 1) as ensemble:
        with pytest.raises(sheave.InvalidArgument, match=told):
            ensemble.fit(loader, squares, epochs)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: bayes.Ensemble(make_line(), 0), "the number of members is 0; expected 1 or more"),
        (lambda: bayes.Ensemble(make_line(), 1, task="ranking"), "task is 'ranking'; expected one of 'regression'"),
        (lambda: bayes.Ensemble(None, 1), "make is None; expected a function of a seed"),
        (lambda: bayes.Langevin(make_line(), step_size=0.1, method="hmc"), "method is 'hmc'; expected"),
        (lambda: bayes.Langevin(make_line(), step_size=-0.1), "step_size is -0.1; expected"),
        (lambda: bayes.Langevin(make_line(), step_size=0.1, cycles=2), "steps is None and cycles is 2; expected both"),
        (lambda: bayes.Langevin(make_line(), step_size=0.1, thin=0), "thin is 0; expected 1 or more"),
    ],
)
def test_settings_without_a_meaning_are_refused(wrong, told):
    with pytest.raises(sheave.InvalidArgument, match=told):
        wrong()


def test_progress_is_told_and_drawn_on_terminals_alone(problem, monkeypatch):
    x, y, _, _ = problem
    told = []
    with bayes.Ensemble(make_line(optimizer=SGD), 2) as ensemble:
        ensemble.fit(batches(x, y, 10), squares, 2, progress=told.append)
        assert [(report.epoch, report.batch, report.batches) for report in told[:2]] == [(1, 1, 4), (1, 2, 4)]
        assert len(told) == 8 and told[-1].losses.shape == (2,) and told[-1].epochs == 2
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        ensemble.fit(batches(x, y, 10), squares, 1, progress=True)
        assert stream.getvalue() == ""
        stream.isatty = lambda: True
        ensemble.fit(batches(x, y, 10), squares, 1, progress=True)
        assert "epoch 1/1, loss" in stream.getvalue() and stream.getvalue().endswith("\n")


def test_pictures_are_svg_of_what_they_are_given():
    import xml.dom.minidom

    x = np.linspace(-3, 3, 20)
    picture = plots.regression(x, np.sin(x), 0.2 + 0 * x, points=([0.0, 1.0], [0.1, 0.9]), truth=x, title="a < b & c")
    tree = xml.dom.minidom.parseString(picture)
    assert [len(tree.getElementsByTagName(tag)) for tag in ("polygon", "circle", "polyline")] == [2, 2, 2]
    assert "a &lt; b &amp; c" in picture
    bins = bayes.reliability(np.array([[0.9, 0.1], [0.6, 0.4]]), [0, 1], bins=10)
    tree = xml.dom.minidom.parseString(plots.reliability(bins))
    assert len(tree.getElementsByTagName("rect")) == 5
    with pytest.raises(sheave.InvalidArgument, match="std has 3 elements; expected as many as x, 20"):
        plots.regression(x, x, np.ones(3))
    with pytest.raises(sheave.InvalidArgument, match="mean has numbers that are not finite"):
        plots.regression(x, x * np.nan, x)


def test_batches_are_taken_some_at_a_time_as_copies_and_others_alone():
    x = np.zeros(2)
    loader = [(x, x), ([1.0], x), (x, x), (x, x), (x, x)]

    def batches():
        for number, pair in enumerate(loader):
            x[:] = number
            yield pair

    taken = several(batches(), 2)
    sizes, first = [], []
    for pairs in taken:
        sizes.append(len(pairs))
        first.append(float(pairs[0][1][0]))
    assert (sizes, first) == ([1, 1, 2, 1], [0.0, 1.0, 2.0, 4.0])
    assert [len(pairs) for pairs in several(loader, 1)] == [1] * 5
    assert all(pairs[0][0] is pair[0] for pairs, pair in zip(several(loader, 1), loader, strict=True))
