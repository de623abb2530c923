"""sheave.bayes: the mathematics on arrays, beside formulas in numpy."""

import pickle
import threading

import numpy as np
import pytest
import sheave
from sheave import bayes, optim


def softmax(logits):
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


FLOATS = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@FLOATS
def test_predictions_are_those_of_numpy(dtype):
    members = np.random.default_rng(1).standard_normal((5, 7, 3)).astype(dtype)
    near = {"rtol": 1e-5 if dtype is np.float32 else 1e-12, "atol": 1e-6 if dtype is np.float32 else 1e-12}
    for given in (members, list(members), tuple(members)):
        np.testing.assert_allclose(bayes.mean(given), members.mean(0), **near)
        np.testing.assert_allclose(bayes.std(given), members.std(0, ddof=1), **near)
        np.testing.assert_allclose(bayes.median(given), np.median(members, 0), **near)
        np.testing.assert_allclose(bayes.quantile(given, 0.3), np.quantile(members, 0.3, 0), **near)
        probabilities = softmax(members.astype(np.float64))
        np.testing.assert_allclose(bayes.mean_probabilities(given), probabilities.mean(0), **near)
        np.testing.assert_allclose(bayes.mean_log_probabilities(given), np.log(probabilities.mean(0)), **near)
        np.testing.assert_allclose(bayes.probability_std(given), probabilities.std(0, ddof=1), **near)
        votes = (members.argmax(-1)[..., None] == np.arange(3)).sum(0).argmax(-1)
        np.testing.assert_array_equal(bayes.mode(given), votes)
    np.testing.assert_allclose(bayes.log_softmax(members), np.log(probabilities), **near)
    np.testing.assert_array_equal(bayes.classify(members), members.argmax(-1))
    assert bayes.mean(members).dtype == dtype and bayes.mode(members).dtype == np.int64


def test_probabilities_are_averaged_and_never_logits():
    sure, other = np.array([[30.0, 0.0]]), np.array([[0.0, 10.0]])
    np.testing.assert_allclose(bayes.mean_probabilities([sure, other]), [[0.5, 0.5]], atol=1e-4)
    assert softmax((sure + other) / 2)[0, 0] > 0.99


def test_one_member_has_a_deviation_of_zero_and_not_none():
    one = np.ones((1, 4, 2))
    np.testing.assert_array_equal(bayes.std(one), np.zeros((4, 2)))
    np.testing.assert_array_equal(bayes.probability_std(one), np.zeros((4, 2)))


@FLOATS
def test_metrics(dtype):
    random = np.random.default_rng(2)
    probabilities = softmax(random.standard_normal((50, 4))).astype(dtype)
    labels = random.integers(0, 4, 50)
    hits = np.eye(4)[labels]
    assert bayes.accuracy(probabilities, labels) == (probabilities.argmax(1) == labels).mean()
    assert bayes.brier(probabilities, labels) == pytest.approx(((probabilities - hits) ** 2).sum(1).mean(), rel=1e-5)
    expected = -np.log(probabilities[np.arange(50), labels]).mean()
    assert bayes.nll(np.log(probabilities), labels.tolist()) == pytest.approx(expected, rel=1e-5)
    bins = bayes.reliability(probabilities, labels.astype(np.int32), bins=10)
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    places = np.ceil(confidence * 10).astype(int) - 1
    error = 0.0
    for place in range(10):
        inside = places == place
        assert bins.counts[place] == inside.sum()
        if inside.any():
            assert bins.confidence[place] == pytest.approx(confidence[inside].mean(), rel=1e-5)
            assert bins.accuracy[place] == pytest.approx(right[inside].mean())
            error += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert bins.error == pytest.approx(error, rel=1e-5) == bayes.calibration_error(probabilities, labels, bins=10)
    means, variances, targets = (random.random(9).astype(dtype) + 0.1 for _ in range(3))
    expected = 0.5 * (np.log(2 * np.pi * variances) + (targets - means) ** 2 / variances).mean()
    assert bayes.gaussian_nll(means, variances, targets) == pytest.approx(expected, rel=1e-5)
    assert bayes.gaussian_head_nll(means, np.log(variances), targets) == pytest.approx(expected, rel=1e-5)
    assert bayes.coverage(means - 0.3, means + 0.3, targets) == (abs(targets - means) <= 0.3).mean()


def test_a_head_with_a_variance_and_the_mixture_of_several():
    random = np.random.default_rng(3)
    mean, log_variance, targets = random.standard_normal((3, 5, 2))
    of_mean, of_log = bayes.gaussian_head_gradient(mean, log_variance, targets)
    for index in np.ndindex(5, 2):
        moved = np.zeros((5, 2))
        moved[index] = 1e-6
        nll = bayes.gaussian_head_nll
        slope = (nll(mean + moved, log_variance, targets) - nll(mean - moved, log_variance, targets)) / 2e-6
        assert slope == pytest.approx(of_mean[index], abs=1e-7)
        slope = (nll(mean, log_variance + moved, targets) - nll(mean, log_variance - moved, targets)) / 2e-6
        assert slope == pytest.approx(of_log[index], abs=1e-7)
    means, variances = random.standard_normal((4, 3)), random.random((4, 3))
    mean, variance = bayes.mixture(means, list(variances))
    np.testing.assert_allclose(mean, means.mean(0))
    np.testing.assert_allclose(variance, (variances + means**2).mean(0) - means.mean(0) ** 2)


def test_a_normal_prior():
    prior, place = bayes.Normal(0.5, 0.7), np.array([0.1, -1.3])
    expected = -0.5 * (((place - 0.5) / 0.7) ** 2).sum() - 2 * np.log(0.7 * np.sqrt(2 * np.pi))
    assert prior.log_density(place) == pytest.approx(expected)
    gradient = np.ones(2)
    prior.add_gradient(place, gradient)
    np.testing.assert_allclose(gradient, 1 + (place - 0.5) / 0.49)
    assert repr(pickle.loads(pickle.dumps(prior))) == "Normal(mean=0.5, deviation=0.7)"


def test_a_generator_is_private_and_goes_on_where_it_was():
    state = np.random.get_state()[1].copy()
    generator = bayes.Generator(bayes.seed_of(42, 3))
    generator.normal()
    same = pickle.loads(pickle.dumps(generator))
    one, other = np.empty(5, np.float32), np.empty(5, np.float32)
    generator.fill_normal(one)
    same.fill_normal(other)
    np.testing.assert_array_equal(one, other)
    assert bayes.Generator.load(generator.state()).uniform() == generator.uniform()
    assert 0 <= generator.below(7) < 7
    np.testing.assert_array_equal(np.random.get_state()[1], state)
    assert len({bayes.seed_of(0, index) for index in range(1000)}) == 1000


def test_bootstraps_and_masks():
    drawn = bayes.bootstrap(bayes.Generator(1), 10_000)
    assert drawn.dtype == np.int64 and drawn.min() >= 0 and drawn.max() < 10_000
    assert len(set(drawn.tolist())) / 10_000 == pytest.approx(1 - np.exp(-1), abs=0.02)
    mask = np.empty((100, 200), np.float32)
    bayes.dropout_mask(bayes.Generator(2), 0.2, mask)
    assert set(np.unique(mask)) == {np.float32(0), np.float32(1.25)}
    assert mask.mean() == pytest.approx(1, abs=0.02)


def directions(particles, gradients, length, kernel="rbf"):
    """The formula, by two loops."""
    count, moved = len(particles), np.zeros_like(particles)
    for i in range(count):
        for j in range(count):
            apart = particles[j] - particles[i]
            scaled = apart @ apart / length**2
            value = np.exp(-scaled / 2) if kernel == "rbf" else 1 / np.sqrt(1 + scaled)
            slope = -apart / length**2 * (value if kernel == "rbf" else value**3)
            moved[i] += (value * gradients[j] - slope) / count
    return moved


@pytest.mark.parametrize("kernel", ["rbf", "imq"])
def test_the_directions_of_svgd_are_those_of_the_double_loop(kernel):
    random = np.random.default_rng(4)
    particles, gradients = random.standard_normal((2, 6, 2500))
    for length in (40.0, None):
        svgd = bayes.Svgd(kernel=kernel, lengthscale=length)
        apart = np.sqrt(((particles[:, None] - particles) ** 2).sum(-1))[np.triu_indices(6, 1)]
        by_median = np.median(apart) / np.sqrt(2 * np.log(7))
        expected = directions(particles, gradients, length or by_median, kernel)
        found = gradients.copy()
        assert svgd.directions(particles, found) == pytest.approx(length or by_median) == svgd.lengthscale
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        # The same by two owners of a slice each, who sum their Gram matrices alone.
        slices = [slice(0, 700), slice(700, None)]
        parts = [np.ascontiguousarray(particles[:, part]) for part in slices]
        gram = sum(svgd.gram(part) for part in parts)
        for part, own in zip(slices, parts):
            found = np.ascontiguousarray(gradients[:, part])
            svgd.directions(own, found, gram=gram)
            np.testing.assert_allclose(found, expected[:, part], rtol=1e-9, atol=1e-12)


def test_svgd_pushes_particles_apart_where_upstream_drew_them_together():
    particles = np.array([[0.0], [1.02]])
    svgd = bayes.Svgd(lengthscale=1.0, optimizer=optim.SGD(lr=0.1))
    for _ in range(20):
        svgd.step(particles, np.zeros((2, 1)))
    assert particles[1, 0] - particles[0, 0] > 1.5


@FLOATS
def test_svgd_steps_particles_in_place_where_they_lie(dtype):
    random = np.random.default_rng(5)
    matrix = random.standard_normal((4, 9)).astype(dtype)
    rows, start = list(matrix.copy()), matrix.copy()
    gradients = random.standard_normal((4, 9)).astype(dtype)
    one, other = (bayes.Svgd(lengthscale=2.0, optimizer=optim.SGD(lr=0.5)) for _ in range(2))
    one.step(matrix, gradients.copy())
    other.step(rows, list(gradients.copy()))
    np.testing.assert_array_equal(matrix, np.stack(rows))
    expected = start - 0.5 * directions(start.astype(np.float64), gradients.astype(np.float64), 2.0)
    np.testing.assert_allclose(matrix, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", [None, optim.Adam(lr=0.05)], ids=["adagrad", "adam"])
def test_svgd_finds_the_moments_of_a_gaussian(optimizer):
    covariance = np.array([[1.0, 0.6], [0.6, 0.8]])
    precision, middle = np.linalg.inv(covariance), np.array([1.0, -2.0])
    particles = np.random.default_rng(6).standard_normal((50, 2))
    svgd = bayes.Svgd(optimizer=optimizer)
    for _ in range(1500):
        svgd.step(particles, (particles - middle) @ precision)
    np.testing.assert_allclose(particles.mean(0), middle, atol=0.03)
    np.testing.assert_allclose(np.cov(particles.T), covariance, atol=0.12)


def test_svgd_finds_both_modes_of_a_mixture():
    """1/3 N(-2, 1) + 2/3 N(2, 1), which is the example of the paper; all particles begin at -10."""
    particles = np.random.default_rng(7).standard_normal((100, 1)) - 10
    svgd = bayes.Svgd(optimizer=optim.AdaGrad(lr=2.0))
    for _ in range(1500):
        weights = np.array([1, 2]) * np.exp(-((particles - [-2, 2]) ** 2) / 2)
        svgd.step(particles, (weights * (particles - [-2, 2])).sum(1, keepdims=True) / weights.sum(1, keepdims=True))
    assert particles.mean() == pytest.approx(2 / 3, abs=0.15)
    assert (particles**2).mean() == pytest.approx(5, abs=0.4)
    assert (particles > 0).mean() == pytest.approx(2 / 3, abs=0.06)


def regression(count=40, noise=0.5, seed=8):
    """Features, targets, and the posterior of a regression with a standard normal prior."""
    random = np.random.default_rng(seed)
    features = np.stack([np.ones(count), random.uniform(-1, 1, count)], 1)
    targets = features @ [1.0, -2.0] + noise * random.standard_normal(count)
    precision = features.T @ features / noise**2 + np.eye(2)
    covariance = np.linalg.inv(precision)
    return features, targets, covariance @ features.T @ targets / noise**2, covariance


def test_sgld_and_sghmc_match_a_closed_form_posterior():
    features, targets, mean, covariance = regression()
    prior = bayes.Normal()

    def gradient(place):
        slope = features.T @ (features @ place - targets) / 0.25
        prior.add_gradient(place, slope)
        return slope

    for sampler in (bayes.Sgld(step_size=2e-3), bayes.Sghmc(step_size=1e-3, friction=0.2)):
        generator, place, velocity = bayes.Generator(9), np.zeros(2), np.zeros(2)
        chain = bayes.Chain(2, burn_in=500, thin=1, capacity=15_000, dtype="float64")
        for _ in range(15_000):
            if isinstance(sampler, bayes.Sgld):
                sampler.step(generator, place, gradient(place))
            else:
                sampler.step(generator, place, velocity, gradient(place))
            chain.offer(place)
        # Samples are correlated: some hundreds of independent ones leave a tenth of a deviation, and a fifth of it.
        np.testing.assert_allclose(chain.mean(), mean, atol=0.35 * np.sqrt(np.diag(covariance)).max())
        np.testing.assert_allclose(chain.variance(), np.diag(covariance), rtol=0.35)
        found = np.cov(chain.samples().T)
        np.testing.assert_allclose(found, covariance, atol=0.35 * np.diag(covariance).max())


def test_cyclical_steps_explore_and_then_sample():
    cyclical = bayes.Cyclical(step_size=0.1, steps=100, cycles=4, exploration=0.5)
    for step in (1, 7, 13, 25, 26, 130):
        place = ((step - 1) % 25) / 25
        size, temperature, samples, ends = cyclical.at(step)
        assert size == pytest.approx(0.05 * (np.cos(np.pi * place) + 1))
        assert (temperature, samples, ends) == (float(place >= 0.5), place >= 0.5, step % 25 == 0)


@FLOATS
def test_swag_has_the_moments_of_its_snapshots(dtype):
    snapshots = np.random.default_rng(10).standard_normal((6, 3)).astype(dtype)
    swag = bayes.Swag(3, rank=3, dtype=dtype)
    means = []
    for snapshot in snapshots:
        swag.collect(snapshot)
        means.append(swag.mean)
    np.testing.assert_allclose(swag.mean, snapshots.mean(0), rtol=1e-4)
    np.testing.assert_allclose(swag.variance, snapshots.var(0), rtol=1e-4)
    np.testing.assert_allclose(swag.deviations, (snapshots - means)[-3:], rtol=1e-3, atol=1e-6)
    assert (swag.snapshots, swag.rank) == (6, 3)
    loaded = pickle.loads(pickle.dumps(swag))
    one = loaded.sample(bayes.Generator(1))
    np.testing.assert_array_equal(one, swag.sample(bayes.Generator(1), out=np.empty(3, dtype)))
    np.testing.assert_allclose(swag.sample(bayes.Generator(1), scale=0.0), swag.mean)


def test_samples_of_swag_have_the_papers_covariance():
    """At the scale of a half: 1/2 (diagonal + D'D / (K - 1)), with the number of columns that are kept."""
    snapshots = np.random.default_rng(11).standard_normal((9, 2)) @ [[1.0, 0.5], [0.0, 0.7]]
    swag = bayes.Swag(2, rank=4, dtype="float64")
    for snapshot in snapshots:
        swag.collect(snapshot)
    generator = bayes.Generator(12)
    samples = np.stack([swag.sample(generator) for _ in range(20_000)])
    columns = swag.deviations
    expected = 0.5 * (np.diag(swag.variance) + columns.T @ columns / (len(columns) - 1))
    np.testing.assert_allclose(samples.mean(0), swag.mean, atol=0.03)
    np.testing.assert_allclose(np.cov(samples.T), expected, atol=0.05 * expected.max())


def test_laplace_is_exact_for_a_linear_regression():
    features, targets, mean, covariance = regression()
    layer = bayes.LaplaceRegression(2)
    for part in (slice(0, 15), slice(15, None)):
        layer.add(features[part], targets[part, None])
    posterior = layer.posterior(prior_precision=1.0, noise_variance=0.25)
    np.testing.assert_allclose(posterior.mean, mean[None])
    np.testing.assert_allclose(posterior.covariance, covariance)
    places = np.array([[1.0, 0.3], [1.0, 2.0]])
    predicted, variance = posterior.predict(places)
    np.testing.assert_allclose(predicted[:, 0], places @ mean)
    np.testing.assert_allclose(variance, 0.25 + np.einsum("bi,ij,bj->b", places, covariance, places))
    marginal = 0.25 * np.eye(40) + features @ features.T
    expected = -0.5 * (np.linalg.slogdet(2 * np.pi * marginal)[1] + targets @ np.linalg.solve(marginal, targets))
    assert layer.log_evidence(1.0, 0.25) == pytest.approx(expected)
    best = layer.maximize_evidence()
    assert best.converged and best.noise_variance == pytest.approx(0.25, rel=0.5)
    for factor in (0.9, 1.1):
        assert layer.log_evidence(best.prior_precision * factor, best.noise_variance) < best.log_evidence
        assert layer.log_evidence(best.prior_precision, best.noise_variance * factor) < best.log_evidence
    generator = bayes.Generator(13)
    samples = np.stack([posterior.sample(generator)[0] for _ in range(5000)])
    np.testing.assert_allclose(np.cov(samples.T), covariance, atol=0.1 * covariance.max())


def test_laplace_of_a_classification_is_its_curvature():
    random = np.random.default_rng(14)
    features, labels, weights = random.standard_normal((30, 3)), random.integers(0, 2, 30), np.zeros((2, 3))
    layer = bayes.LaplaceClassification(weights)
    layer.add(features, labels)
    curvature = sum(np.kron([[0.25, -0.25], [-0.25, 0.25]], np.outer(row, row)) for row in features)
    posterior = layer.posterior(prior_precision=2.0)
    np.testing.assert_allclose(posterior.covariance, np.linalg.inv(curvature + 2 * np.eye(6)), atol=1e-12)
    np.testing.assert_array_equal(posterior.mean, weights)
    # Both ways to predict, which agree where the logits are narrow; at these weights all classes are alike.
    np.testing.assert_allclose(posterior.probit(features), 0.5)
    np.testing.assert_allclose(posterior.sampled(features, bayes.Generator(1), samples=2000), 0.5, atol=0.03)
    sign = np.linalg.slogdet(np.eye(6) + curvature / 2)[1]
    assert layer.log_evidence(2.0) == pytest.approx(30 * np.log(0.5) - sign / 2)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: bayes.mean(np.ones((2, 3), np.int64)), r"members is an array of int64 of shape \(2, 3\); expected"),
        (lambda: bayes.mean([np.ones(2), np.ones(3)]), r"members\[1\] is an array of float64 of shape \(3,\); exp"),
        (lambda: bayes.mean([]), "members is an empty list; expected one array at least"),
        (lambda: bayes.quantile(np.ones((2, 2)), 1.5), "quantile is 1.5; expected a number from 0 to 1"),
        (lambda: bayes.accuracy([[0.5, 0.4]], [0]), "row 0, is .*; expected probabilities from 0 to 1 that sum to 1"),
        (lambda: bayes.nll([[0.0, -9.0]], [2]), r"labels\[0\] is 2; expected below 2"),
        (lambda: bayes.nll([[0.0, -9.0]], [-1]), r"labels\[0\] is -1; expected 0 or more"),
        (lambda: bayes.nll([[0.0, -9.0]] * 2, [0, 1.7]), r"labels\[1\] is 1.7; expected an integer, 0 or more"),
        (lambda: bayes.nll([[0.0, -9.0]], ("1",)), r"labels\[0\] is '1'; expected an integer, 0 or more"),
        (lambda: bayes.reliability([[1.0, 0.0]], [0], bins=0), "bins is 0; expected 1 to"),
        (lambda: bayes.Swag(2).collect(np.ones(2)), r"parameters is an array of float64 .* expected float32 of"),
        (lambda: bayes.Svgd(kernel="box"), 'kernel is "box"; expected "rbf" or "imq"'),
        (lambda: bayes.Svgd(lengthscale=-1.0), "lengthscale is -1; expected a number above zero"),
        (lambda: bayes.Svgd().step(np.ones((2, 3)), np.ones((2, 2))), "gradients is 2 rows of 2 elements of float64; "),
        (lambda: bayes.Normal(deviation=0), "deviation is 0; expected a finite number above zero"),
        (lambda: bayes.Sgld(-1.0), "step_size is -1; expected a finite number that is not negative"),
        (lambda: bayes.Cyclical(0.1, 3, 4), "cycles is 4; expected 1 to the number of steps, 3"),
        (lambda: bayes.Chain(1, thin=0), "thin is 0; expected 1 or more"),
        (lambda: bayes.LaplaceRegression(2).add(np.ones((3, 3)), np.ones((3, 1))), r"features is .* \(3, 3\); exp"),
        (lambda: bayes.LaplaceRegression(2).log_evidence(), "the number of data is 0; expected one at least"),
    ],
)
def test_what_is_wrong_is_named_with_what_was_expected(wrong, told):
    with pytest.raises(sheave.InvalidArgument, match=told):
        wrong()


def test_arrays_that_share_memory_are_refused_and_stay():
    matrix = np.ones((3, 2))
    with pytest.raises(sheave.InvalidArgument, match="gradients is in the same memory as particles"):
        bayes.Svgd().step(matrix, matrix)
    with pytest.raises(sheave.InvalidArgument, match=r"particles\[1\] is in the same memory as particles\[0\]"):
        bayes.Svgd().step([matrix[0], matrix[0]], [matrix[1], matrix[2]])
    with pytest.raises(sheave.InvalidArgument, match="gradient is in the same memory as parameters"):
        bayes.Sgld(0.1).step(bayes.Generator(1), matrix[0], matrix[0])
    # Overlapping rows: one that begins inside another.
    flat = np.ones(5)
    with pytest.raises(sheave.InvalidArgument, match="in the same memory"):
        bayes.Svgd().directions([np.ones(3), np.zeros(3)], [flat[:3], flat[2:]])
    np.testing.assert_array_equal(matrix, np.ones((3, 2)))
    # What is only read may be shared.
    np.testing.assert_array_equal(bayes.mean([matrix, matrix]), matrix)


def test_what_cannot_be_written_in_place_is_refused():
    frozen = np.ones(2)
    frozen.flags.writeable = False
    with pytest.raises(sheave.InvalidArgument, match="read-only") as caught:
        bayes.Sgld(0.1).step(bayes.Generator(1), frozen, np.ones(2))
    assert caught.value.__notes__ == ["the argument is parameters"]
    with pytest.raises(sheave.InvalidArgument, match="not row-major and contiguous"):
        bayes.Sgld(0.1).step(bayes.Generator(1), np.ones((2, 2))[:, 0], np.ones(2))
    # To read, any layout will do.
    np.testing.assert_array_equal(bayes.mean([np.arange(4.0)[::2]]), [0.0, 2.0])


def test_torch_tensors_are_used_where_they_lie():
    torch = pytest.importorskip("torch")
    parameters = torch.nn.Parameter(torch.ones(3))
    bayes.Sgld(0.5, temperature=0.0).step(bayes.Generator(1), parameters, torch.ones(3))
    assert parameters.tolist() == [0.75, 0.75, 0.75]
    particles = [torch.zeros(2, requires_grad=True), torch.ones(2, requires_grad=True)]
    bayes.Svgd(optimizer=optim.SGD(lr=1.0)).step(particles, [torch.ones(2), torch.ones(2)])
    assert particles[0][0].item() < 0
    assert bayes.accuracy(torch.tensor([[0.9, 0.1]]), torch.tensor([0])) == 1.0


def test_other_threads_run_during_long_work():
    """The interpreter is let go: a thread counts on while one call computes."""
    matrix = np.random.default_rng(15).standard_normal((64, 60_000)).astype(np.float32)
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        svgd, calls = bayes.Svgd(), 0
        before = counted[0]
        # One call that never lets go would end with the count where it was.
        while counted[0] - before < 1000 and calls < 200:
            before = counted[0]
            svgd.gram(matrix)
            calls += 1
        assert counted[0] - before >= 1000
    finally:
        stop.set()
        thread.join()
