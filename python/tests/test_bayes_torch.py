"""sheave.bayes on models of torch."""

import numpy as np
import pytest
import sheave
from bayes_models import batches, normals, of_models
from sheave import bayes

torch = pytest.importorskip("torch")

from sheave.particle import TorchModel  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    # Nothing draws from the generator of the process.
    assert torch.equal(torch.random.get_rng_state(), state)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def decay(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


def perceptron():
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


def normalised():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def dropped():
    return torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Dropout(0.25), torch.nn.Linear(64, 1))


def make(module, optimizer=adam, scheduler=None):
    return lambda seed: TorchModel(module, optimizer=optimizer, scheduler=scheduler, seed=seed)


@pytest.fixture(scope="module")
def data():
    x = normals(1, (60, 4), dtype=np.float32)
    labels = (x @ normals(2, (4, 3), dtype=np.float32)).argmax(1)
    return torch.from_numpy(x), torch.from_numpy(labels)


cross_entropy = torch.nn.functional.cross_entropy


@pytest.mark.parametrize("cache_size", [None, 1])
@pytest.mark.parametrize("module", [perceptron, normalised])
def test_an_ensemble_is_its_members_trained_alone_bit_for_bit(data, module, cache_size):
    dataset = torch.utils.data.TensorDataset(*data)
    loader = torch.utils.data.DataLoader(dataset, batch_size=20, generator=torch.Generator())
    settings = {"task": "classification", "seed": 3, "devices": ["cpu"], "cache_size": cache_size}
    with bayes.Ensemble(make(module, scheduler=decay), 3, **settings) as ensemble:
        ensemble.fit(loader, cross_entropy, 3)
        found = ensemble.parameters()
        logits = ensemble.predict(data[0], mode="logits")["logits"]
    for member in range(3):
        model = make(module)(bayes.seed_of(3, member))
        plain, optimizer = model.module, torch.optim.Adam(model.module.parameters(), lr=0.01)
        scheduler = decay(optimizer)
        for _ in range(3):
            for x, y in loader:
                optimizer.zero_grad()
                cross_entropy(plain(x), y).backward()
                optimizer.step()
            scheduler.step()
        expected = torch.cat([parameter.detach().reshape(-1) for parameter in plain.parameters()])
        np.testing.assert_array_equal(found[member], expected.numpy())
        np.testing.assert_array_equal(logits[:, member], plain.eval()(data[0]).detach().numpy())


def test_statistics_of_batches_are_refreshed_for_each_sample_of_swag_and_then_restored(data):
    pairs = batches(*data, 20)
    with bayes.MultiSwag(make(normalised), 2, task="classification", rank=3) as swag:
        swag.fit(pairs, cross_entropy, 2, swag_epochs=4)
        weights = swag.parameters()
        statistics = of_models(swag, lambda model: model.module[1].running_mean.clone())
        found = swag.predict(data[0], mode=["mean_prob", "logits"], samples=3)
        assert found["logits"].shape == (60, 6, 3)
        again = of_models(swag, lambda model: model.module[1].running_mean.clone())
        assert all(torch.equal(before, after) for before, after in zip(statistics, again, strict=True))
        np.testing.assert_array_equal(swag.parameters(), weights)
        # By hand: a sample's weights, means of the statistics over the batches, and then the outputs.
        (moments, _), seed = swag.moments(), bayes.seed_of(0, 0)
        flat = moments.sample(bayes.Generator(bayes.seed_of(bayes.seed_of(seed, 1), 0)))
        model = make(normalised)(0)
        model.set_flat(flat)
        hidden = [model.module[0](x).detach() for x, _ in pairs]
        model.module.eval()
        model.module[1].running_mean.copy_(torch.stack([part.mean(0) for part in hidden]).mean(0))
        model.module[1].running_var.copy_(torch.stack([part.var(0) for part in hidden]).mean(0))
        expected = model.module(data[0]).detach().numpy()
        np.testing.assert_allclose(found["logits"][:, 0], expected, rtol=1e-3, atol=1e-4)


def test_dropout_stays_on_with_one_mask_and_scales_what_is_kept(data):
    with bayes.MonteCarloDropout(make(dropped), 1, seed=4) as dropout:
        found = dropout.predict(data[0], mode="pred", samples=300)["pred"][:, :, 0]
        parts = dropout.predict(data[0], mode="pred", samples=300, batch_size=7)["pred"][:, :, 0]
        np.testing.assert_allclose(parts, found, rtol=1e-4, atol=1e-5)
        module = make(dropped)(bayes.seed_of(4, 0)).module.eval()
        plain = module(data[0]).detach().numpy()[:, 0]
        # A linear network: the mean over masks is the network without any, if what is kept is scaled.
        np.testing.assert_allclose(found.mean(1), plain, atol=5 * found.std(1).max() / 300**0.5)
        assert found.std(1).min() > 0
        # One mask for all data: a sample of a linear network is linear.
        middle = dropout.predict((data[0][:1] + data[0][1:2]) / 2, mode="pred", samples=300)["pred"][0, :, 0]
        np.testing.assert_allclose(middle, (found[0] + found[1]) / 2, rtol=1e-4, atol=1e-5)


def test_svgd_pushes_torch_models_apart_and_learns(data):
    with bayes.SteinVgd(
        make(perceptron, None), 4, task="classification", optimizer=sheave.optim.Adam(lr=0.02), seed=5
    ) as stein:
        stein.fit(batches(*data, 20), cross_entropy, 40)
        found = stein.predict(data[0])["mean_prob"]
        particles = np.stack(stein.parameters())
    assert bayes.accuracy(found, data[1]) > 0.9
    assert all(np.abs(particles[0] - other).max() > 0.01 for other in particles[1:])


def test_chains_of_torch_models_learn(data):
    settings = {"step_size": 1e-3, "burn_in": 60, "thin": 5, "task": "classification", "seed": 6}
    with bayes.Langevin(make(perceptron, None), 2, **settings) as langevin:
        langevin.fit(batches(*data, 20), cross_entropy, 60)
        assert [len(chain) for chain in langevin.samples()] == [24, 24]
        assert bayes.accuracy(langevin.predict(data[0])["mean_prob"], data[1]) > 0.85


def test_the_last_layer_of_a_module_is_found(data):
    x, labels = data
    with bayes.LastLayerLaplace(make(perceptron), 2, task="classification", seed=7) as laplace:
        laplace.fit(batches(x, labels, 20), cross_entropy, 60)
        found = laplace.predict(x, mode=["mean_prob", "prob"])
        plain = bayes.mean_probabilities(laplace.outputs(x))
    assert found["prob"].shape == (60, 2, 3)
    assert bayes.accuracy(found["mean_prob"], labels) > 0.85
    assert found["mean_prob"].max(1).mean() < plain.max(1).mean()
    with bayes.LastLayerLaplace(make(perceptron), seed=7) as laplace:
        laplace.fit([(x, x[:, :3])], torch.nn.functional.mse_loss, 100)
        # The mean is that of ridge regression on the features, with the bias as a constant one.
        (hidden,) = of_models(laplace, lambda model: model.module[:2](x).detach().double())
        features = torch.hstack([hidden, torch.ones(60, 1)]).numpy()
        (evidence,) = laplace.approximate([(x, x[:, :3])])
        ridge = features.T @ features + evidence.prior_precision * evidence.noise_variance * np.eye(17)
        expected = features @ np.linalg.solve(ridge, features.T @ x[:, :3].double().numpy())
        np.testing.assert_allclose(laplace.predict(x)["mean"], expected, rtol=1e-3, atol=1e-4)


def test_a_loss_of_torch_for_heads_with_a_variance(data):
    output = torch.randn(5, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)
    target = torch.ones(5, 2)
    value = bayes.gaussian_loss(output, target)
    value.backward()
    expected = torch.nn.functional.gaussian_nll_loss(output[:, :2], target, output[:, 2:].exp(), full=True)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert output.grad.abs().min() > 0
