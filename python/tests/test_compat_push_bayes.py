"""PusH's Bayesian deep learning over sheave: shapes, mathematics, custom entries."""

import pytest

torch = pytest.importorskip("torch")

from sheave.compat import push  # noqa: E402
from sheave.compat.push.bayes import ensemble, infer, mc_dropout, stein_vgd, swag, utils  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

pytestmark = pytest.mark.timeout(120)
LOSS = torch.nn.MSELoss()


def rows(count=48, classes=None):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, generator=generator)
    return x, x.sum(dim=1, keepdim=True) if classes is None else (x.sum(dim=1) > 0).long()


def loader(x, y):
    return DataLoader(TensorDataset(x, y), batch_size=16)


def network(outputs=1):
    parts = [torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Dropout(0.5)]
    return torch.nn.Sequential(*parts, torch.nn.Linear(8, outputs))


def line():
    return torch.nn.Linear(3, 1)


def distance(one, other):
    return float((utils.flatten(one) - utils.flatten(other)).detach().norm())


def trained(kind, outputs, count, loss):
    x, y = rows(classes=None if outputs == 1 else outputs)
    batches = loader(x, y)
    if kind == "ensemble":
        return x, batches, ensemble.train_deep_ensemble(batches, loss, 2, network, outputs, num_ensembles=count)
    if kind == "swag":
        return x, batches, swag.train_mswag(batches, loss, 1, 3, network, outputs, num_models=count)
    return x, batches, stein_vgd.train_svgd(batches, loss, 2, count, network, outputs)


@pytest.mark.parametrize("kind", ["ensemble", "swag", "svgd"])
def test_shapes_of_predictions(kind):
    x, batches, model = trained(kind, 1, 3, LOSS)
    before = model.p_parameters()
    modes = ["mean", "median", "min", "max", "std", "pred"]
    result, by_batch = model.posterior_pred(x, mode=modes), model.posterior_pred(batches, mode=modes)
    assert {mode: tuple(value.shape) for mode, value in result.items()} == {
        **dict.fromkeys(modes, (48, 1)),
        "pred": (48, 3, 1),
    }
    for mode in modes:
        assert torch.allclose(result[mode], by_batch[mode], atol=1e-5)
    assert torch.equal(result["mean"], result["pred"].mean(dim=1))
    assert torch.equal(result["std"], result["pred"].std(dim=1))
    assert float(result["std"].min()) > 0, "18: members are not the same network"
    for one, other in zip(before, model.p_parameters(), strict=True):
        assert distance(one, other) == 0, "18: a prediction leaves the particles as they were"
    with pytest.raises(AssertionError, match="Mode prob not supported"):
        model.posterior_pred(x, mode=["prob"])
    with pytest.raises(ValueError, match="not supported"):
        model.posterior_pred([1.0])


@pytest.mark.parametrize("kind", ["ensemble", "swag", "svgd"])
def test_shapes_of_classifications(kind):
    x, batches, model = trained(kind, 4, 2, torch.nn.CrossEntropyLoss())
    modes = ["logits", "prob", "mean_prob", "mode", "std"]
    result = model.posterior_pred(x, f_reg=False, mode=modes)
    shapes = {mode: tuple(value.shape) for mode, value in result.items()}
    assert shapes == {"logits": (48, 2, 4), "prob": (48, 2, 4), "mean_prob": (48, 4), "mode": (48,), "std": (48, 4)}
    assert torch.allclose(result["prob"].sum(dim=-1), torch.ones(48, 2))
    assert torch.allclose(result["mean_prob"], result["prob"].mean(dim=1))
    assert model.posterior_pred(batches, f_reg=False, mode="mode")["mode"].shape == (48,)
    push.strict = False
    try:
        assert model.posterior_pred(x, f_reg=False, mode="mode").shape == (48,)
    finally:
        push.strict = True


def test_18_an_ensemble_is_trainings_of_its_own():
    x, y = rows()
    for size in (1, 3):
        model = ensemble.train_deep_ensemble(
            loader(x, y), LOSS, 3, line, num_ensembles=3, cache_size=size, num_devices=2
        )
        fresh = ensemble.train_deep_ensemble(loader(x, y), LOSS, 0, line, num_ensembles=3)
        for start, found in zip(fresh.p_parameters(), model.p_parameters(), strict=True):
            alone = line()
            alone.load_state_dict(dict(zip(("weight", "bias"), start, strict=True)))
            optimizer = torch.optim.Adam(alone.parameters(), lr=0.01)
            for _ in range(3):
                for data, label in loader(x, y):
                    optimizer.zero_grad()
                    LOSS(alone(data), label).backward()
                    optimizer.step()
            assert distance(alone.parameters(), found) == 0


def test_18_all_learning_rates_are_scheduled():
    x, y = rows()
    rates = {}

    def halved(optimizer):
        rates[len(rates)] = optimizer
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)

    for is_bootstrap in (False, True):
        rates.clear()
        model = ensemble.Ensemble(line)
        model.bayes_infer(loader(x, y), 2, lr=0.4, num_ensembles=3, mk_scheduler=halved, bootstrap=is_bootstrap)
        assert [each.param_groups[0]["lr"] for each in rates.values()] == [0.1] * 3


def test_a_bootstrap_is_that_of_each_particle():
    x, y = rows()
    parts = [ensemble._common.batches_of(loader(x, y), 2, True) for _ in range(2)]
    seen = [[torch.cat([batch[member][0] for batch in begun()]) for member in range(2)] for begun in parts]
    for one in seen[0]:
        assert one.shape == x.shape
        kept = {tuple(row.tolist()) for row in one}
        assert len(kept) < len(x) and kept <= {tuple(row.tolist()) for row in x}
    assert set(map(tuple, seen[0][0].tolist())) != set(map(tuple, seen[0][1].tolist()))
    assert set(map(tuple, seen[0][0].tolist())) == set(map(tuple, seen[1][0].tolist())), "drawn from the seed"


def test_18_svgd_keeps_particles_apart():
    x, y = rows(16)

    def no_loss(output, label):
        return (output * 0).sum()

    start = stein_vgd.train_svgd(loader(x, y), no_loss, 0, 2, line, lr=0.1).p_parameters()
    moved = stein_vgd.train_svgd(loader(x, y), no_loss, 20, 2, line, lr=0.1).p_parameters()
    assert distance(*moved) > 1.5 * distance(*start)


def test_18_a_step_of_svgd_is_the_double_loop():
    x, y = rows(16)
    model = stein_vgd.train_svgd(loader(x, y), LOSS, 0, 3, line)
    start = [utils.flatten(each) for each in model.p_parameters()]
    gradients = []
    for each in model.p_parameters():
        alone = line()
        alone.load_state_dict(dict(zip(("weight", "bias"), each, strict=True)))
        LOSS(alone(x), y).backward()
        gradients.append(utils.flatten([parameter.grad for parameter in alone.parameters()]))
    moved = stein_vgd.train_svgd(loader(x, y), LOSS, 1, 3, line, lr=0.5, lengthscale=0.7).p_parameters()
    for place, found in enumerate(moved):
        update = torch.zeros(4)
        for own, gradient in zip(start, gradients, strict=True):
            update += stein_vgd.torch_squared_exp_kernel(own, start[place], 0.7) * gradient
            update -= stein_vgd.torch_squared_exp_kernel_grad(own, start[place], 0.7)
        assert torch.allclose(utils.flatten(found), start[place] - 0.5 * update / 3, atol=1e-5)


def test_18_the_prior_of_svgd_counts():
    x, y = torch.zeros(16, 3), torch.zeros(16, 1)
    model = stein_vgd.train_svgd(loader(x, y), LOSS, 400, 20, line, prior=stein_vgd.normal_prior, lr=0.05)
    weights = torch.stack([parameters[0].flatten() for parameters in model.p_parameters()])
    # The data say nothing about weights: these are normal, about 0 with a deviation of 1.
    assert float(weights.mean(dim=0).abs().max()) < 0.3
    assert 0.5 < float(weights.std(dim=0).mean()) < 1.3
    assert torch.equal(stein_vgd.normal_prior([torch.tensor([2.0])])[0], torch.tensor([-2.0]))


def test_18_swag_counts_the_snapshots_of_each_particle():
    x, y = rows()
    state = {"own": 1}
    model = swag.train_mswag(
        loader(x, y), LOSS, 1, 3, line, num_models=2, cov_mat_rank=2, mswag_state=state, lr=0.1
    )
    for pid in model.swag_pids:
        assert state[pid]["n"] == 4, "the first one, and one of each epoch"
        assert [tuple(each.shape) for each in state[pid]["cov_mat_sqrt"]] == [(2, 3), (2, 1)]
    assert distance(state[0]["mom1"], state[1]["mom1"]) > 1e-3
    with pytest.raises(ValueError, match="Cannot run with state n"):
        swag.train_mswag(loader(x, y), LOSS, 1, 1, line, mswag_state=state)
    for _ in range(2):
        swag.train_mswag(loader(x, y), LOSS, 0, 1, line)


def test_18_samples_of_swag_have_its_moments():
    x, y = rows()
    state = {}
    model = swag.train_mswag(
        loader(x, y), LOSS, 1, 8, line, num_models=2, cov_mat_rank=8, mswag_state=state, lr=0.1
    )

    def drawn(particle, count):
        samples = torch.stack([torch.from_numpy(each) for each in swag._samples(particle, 0.5, 1e-30, count)])
        return samples.mean(dim=0), samples.var(dim=0)

    for pid in model.swag_pids:
        model.push_dist.p_register(pid, "DRAW", drawn)
        mean, variance = model.push_dist.p_launch(pid, "DRAW", 4000).wait()
        moments = state[pid]
        rank = utils.flatten([(each**2).sum(dim=0) / (len(each) - 1) for each in moments["cov_mat_sqrt"]])
        diagonal = utils.flatten(moments["mom2"]) - utils.flatten(moments["mom1"]) ** 2
        expected = (diagonal + rank) / 2
        assert torch.allclose(variance, expected, rtol=0.15), "all particles are sampled with the same settings"
        assert torch.all((mean - utils.flatten(moments["mom1"])).abs() < 5 * (expected / 4000) ** 0.5 + 1e-6)


def test_18_one_sample_of_swag_is_a_number():
    x, y = rows()
    model = swag.train_mswag(loader(x, y), LOSS, 1, 3, network, num_models=2)
    result = model.posterior_pred(x, num_samples=1, mode=["mean", "std"])
    assert bool(torch.isfinite(result["mean"]).all()) and bool(torch.isfinite(result["std"]).all())


def test_legacy_samples_of_swag():
    x, y = rows(classes=10)
    batches = loader(x, y)
    loss = torch.nn.CrossEntropyLoss()
    model = swag.train_mswag(batches, loss, 1, 2, network, 10, num_models=2)
    first, second = model.push_dist.p_launch(0, "SWAG_SAMPLE_ENTRY", batches, loss, 1.0, 1e-30, 3, 2).wait()
    for counts in (first, second):
        assert len(counts) == 10 and sum(map(sum, counts.values())) == 48
    x, y = rows()
    batches = loader(x, y)
    entries = {"mswag_sample_entry": swag._mswag_sample_entry_regression, "mswag_sample": swag._mswag_sample_regression}
    model = swag.train_mswag(batches, LOSS, 1, 2, network, num_models=2, **entries)
    means = model.push_dist.p_launch(0, "SWAG_SAMPLE_ENTRY", batches, LOSS, 1.0, 1e-30, 3, 2).wait()
    assert means.shape == (48, 1)


@pytest.mark.parametrize("patch", [False, True])
def test_shapes_and_masks_of_mc_dropout(patch):
    x, y = rows()
    model = mc_dropout.train_mc_dropout(loader(x, y), LOSS, 2, network, size_ensemble=2, patch=patch)
    before = torch.get_rng_state()
    raw = model.posterior_pred(x, mode="raw", num_samples=7)
    assert raw.shape == (48, 14, 1) and float(raw.std(dim=1).max()) > 0, "dropout is on"
    assert torch.equal(torch.get_rng_state(), before)
    assert model.posterior_pred(loader(x, y), mode="raw", num_samples=7).shape == (48, 14, 1)
    for mode in ("mean", "median", "min", "max"):
        assert model.posterior_pred(x, mode=mode).shape == (48, 1)
    one = torch.ones(5, 3)
    spread = model.posterior_pred(one, mode="raw", num_samples=20).std(dim=0).max()
    assert (float(spread) < 1e-6) == patch, "with patch a sample is one function"
    assert float(model.posterior_pred(one, mode="raw", freeze_on_eval=True).std(dim=0).max()) < 1e-6
    assert model.posterior_pred(x, f_reg=False).shape == (48,)
    with pytest.raises(ValueError, match="Mode pred not supported"):
        model.posterior_pred(x, mode="pred")


def test_4_patched_dropout_is_scaled():
    def only():
        return torch.nn.Sequential(torch.nn.Dropout(0.5))

    model = mc_dropout.MultiMCDropout(only, patch=True)
    model.push_dist.p_create(None, receive={"LEADER_PRED": mc_dropout._leader_pred})
    raw = model.posterior_pred(torch.ones(1, 400), mode="raw", num_samples=50)
    assert set(raw.unique().tolist()) == {0.0, 2.0} and abs(float(raw.mean()) - 1) < 0.05


def test_entries_of_ones_own():
    """In the style of PusH's experiments: sends that nobody waits for, gets, writes of modules."""
    x, y = rows()

    def entry(particle, dataloader, loss_fn, epochs, bootstrap):
        others = list(filter(lambda pid: pid != particle.pid, particle.particle_ids()))
        for _ in range(epochs):
            losses = []
            for data, label in dataloader:
                losses += [particle.step(loss_fn, data, label).wait()]
                for pid in others:
                    particle.send(pid, "ENSEMBLE_STEP", loss_fn, data, label)
        particle.state["losses"] = losses

    state = {}
    own = ensemble.train_deep_ensemble(loader(x, y), LOSS, 3, line, ensemble_entry=entry, ensemble_state=state)
    usual = ensemble.train_deep_ensemble(loader(x, y), LOSS, 3, line)
    for one, other in zip(own.p_parameters(), usual.p_parameters(), strict=True):
        assert distance(one, other) == 0
    assert len(state["losses"]) == 3

    def leader(particle, prior, loss_fn, lengthscale, lr, dataloader, epochs, bootstrap):
        for data, label in dataloader:
            future = particle.step(loss_fn, data, label)
            futures = [particle.send(pid, "SVGD_STEP", loss_fn, data, label) for pid in particle.other_particles()]
            future.wait(), [each.wait() for each in futures]
            views = {pid: particle.get(pid).wait() for pid in particle.other_particles()}
            mean = utils.flatten(particle.module.parameters())
            for view in views.values():
                mean = mean + utils.flatten(view.view().parameters())
            mean = mean / (1 + len(views))
            for pid, view in views.items():
                gap = utils.flatten(view.view().parameters()) - mean
                particle.send(pid, "SVGD_FOLLOW", 1.0, gap).wait()
            with torch.no_grad():
                parts = utils.unflatten_like(mean.unsqueeze(0), list(particle.module.parameters()))
                for parameter, part in zip(particle.module.parameters(), parts, strict=True):
                    parameter.data = part

    model = stein_vgd.train_svgd(loader(x, y), LOSS, 1, 3, line, svgd_entry=leader)
    first, *others = model.p_parameters()
    assert all(distance(first, other) < 1e-5 for other in others), "all have come to their mean"


def test_a_prior_is_frozen_and_what_is_trained_is_drawn():
    class Prior(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.prior, self.trainable = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
            self.trainable.init_weights = self.init_weights

        @staticmethod
        def init_weights(part):
            if isinstance(part, torch.nn.Linear):
                torch.nn.init.ones_(part.weight)

        def forward(self, x):
            return self.prior(x) + self.trainable(x)

    x, y = rows()
    start = ensemble.train_deep_ensemble(loader(x, y), LOSS, 0, Prior, prior=True)
    model = ensemble.train_deep_ensemble(loader(x, y), LOSS, 2, Prior, prior=True)
    for one, other in zip(start.p_parameters(), model.p_parameters(), strict=True):
        assert torch.equal(one[2], torch.ones(1, 3)) and not torch.equal(other[2], one[2])
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_what_inference_is():
    with infer.Infer(line) as model:
        for call in (lambda: model.bayes_infer(None, 1), lambda: model.posterior_pred(None)):
            with pytest.raises(NotImplementedError):
                call()
        assert torch.equal(model.get_var([torch.zeros(2), torch.ones(2)]), torch.full((2,), 0.5))
