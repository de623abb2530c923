"""Models of one architecture that are stepped as one computation."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import sheave  # noqa: E402
from sheave.particle import BatchedModels, TorchModel  # noqa: E402
from torch.nn import functional  # noqa: E402

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def one_thread():
    """Small modules gain nothing by several threads, which wait for each other where others need the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def dense():
    tanh = torch.nn.Tanh()
    layers = [torch.nn.Linear(6, 16), tanh, torch.nn.Linear(16, 16, bias=False), tanh, torch.nn.Linear(16, 3)]
    return torch.nn.Sequential(*layers)


class Convolutional(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(1, 4, 3, padding=1)
        self.norm = torch.nn.GroupNorm(2, 4)
        self.last = torch.nn.Linear(64, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x.view(-1, 1, 4, 4))))
        return self.last(x.flatten(1))


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9, weight_decay=1e-3),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, weight_decay=1e-2),
}


def made(module, optimizer, count=3):
    return [TorchModel(module, optimizer=OPTIMIZERS.get(optimizer), seed=seed) for seed in range(count)]


def batches(features, steps, rows=20):
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        yield torch.randn(rows, features, generator=generator), torch.randint(0, 3, (rows,), generator=generator)


def assert_close(models, others, tolerance):
    for model, other in zip(models, others, strict=True):
        np.testing.assert_allclose(model.flat(), other.flat(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("module", "features"), [(dense, 6), (Convolutional, 16)])
def test_twenty_steps_equal_those_of_single_models(module, features, optimizer):
    together, alone = made(module, optimizer), made(module, optimizer)
    start = [model.flat().copy() for model in together]
    with BatchedModels(together) as batched:
        for x, y in batches(features, 20):
            losses = batched.step(functional.cross_entropy, x, y)
            expected = [model.step(functional.cross_entropy, x, y) for model in alone]
            torch.testing.assert_close(losses, torch.stack(expected), rtol=1e-4, atol=1e-5)
        rows = [type("Row", (), {"flat": lambda _, row=row: row.numpy()})() for row in batched.flat()]
        assert_close(alone, rows, 1e-4)
    assert_close(together, alone, 1e-4)
    assert all(np.abs(model.flat() - before).max() > 1e-3 for model, before in zip(together, start, strict=True))
    # Moments were given back: single steps go on as they would have.
    for x, y in batches(features, 10):
        for model in (*together, *alone):
            model.step(functional.cross_entropy, x, y)
    assert_close(together, alone, 2e-4)
    assert [model.version for model in together] == [30] * 3


def test_in_float64_hundreds_of_steps_of_adam_are_equal():
    together, alone = (
        [TorchModel(lambda: dense().double(), optimizer=OPTIMIZERS["adam"], seed=seed) for seed in range(3)]
        for _ in range(2)
    )
    with BatchedModels(together) as batched:
        for x, y in batches(6, 300):
            batched.step(functional.cross_entropy, x.double(), y)
            for model in alone:
                model.step(functional.cross_entropy, x.double(), y)
    assert_close(together, alone, 1e-9)


def test_moments_that_are_there_are_taken_along():
    together, alone = made(dense, "adam"), made(dense, "adam")
    for x, y in batches(6, 5):
        for model in (*together, *alone):
            model.step(functional.cross_entropy, x, y)
    with BatchedModels(together) as batched:
        for x, y in batches(6, 10):
            batched.step(functional.cross_entropy, x, y)
            for model in alone:
                model.step(functional.cross_entropy, x, y)
    assert_close(together, alone, 1e-4)


def test_each_may_have_its_own_batch_and_another_loss():
    together, alone = made(dense, "momentum"), made(dense, "momentum")
    x, y = torch.randn(3, 10, 6), torch.randn(3, 10, 3)
    with BatchedModels(together) as batched:
        for _ in range(5):
            losses = batched.step(functional.mse_loss, x, y, shared=False)
            expected = [model.step(functional.mse_loss, x[i], y[i]) for i, model in enumerate(alone)]
        torch.testing.assert_close(losses, torch.stack(expected), rtol=1e-4, atol=1e-5)
        outputs = batched.forward(x, shared=False)
        torch.testing.assert_close(outputs[1], alone[1].forward(x[1], gradient=False), rtol=1e-4, atol=1e-4)
        labels = torch.randint(0, 3, (3, 10))
        of_labels = batched.step(torch.nn.CrossEntropyLoss(), x, labels, shared=False)
        expected = [model.step(functional.cross_entropy, x[i], labels[i]) for i, model in enumerate(alone)]
        torch.testing.assert_close(of_labels, torch.stack(expected), rtol=1e-4, atol=1e-5)
    assert_close(together, alone, 1e-4)


def normed_rows(**settings):
    norm = torch.nn.BatchNorm1d(8, **settings)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), norm, torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()


def normed_images(**settings):
    first = [torch.nn.Unflatten(1, (1, 4, 4)), torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4, **settings)]
    return torch.nn.Sequential(*first, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 3)).double()


NORMS = [{}, {"affine": False}, {"momentum": None}, {"momentum": 0.3}, {"track_running_stats": False}]


@pytest.mark.parametrize("settings", NORMS, ids=str)
@pytest.mark.parametrize(("module", "features"), [(normed_rows, 6), (normed_images, 16)])
def test_batch_normalisation_trains_and_keeps_the_statistics_of_each(module, features, settings):
    together, alone = (made(lambda: module(**settings), "momentum") for _ in range(2))
    # Statistics and counts that are there are gone on from.
    for model in (*together, *alone):
        model.forward(torch.ones(2, features).double())
    with BatchedModels(together) as batched:
        for x, y in batches(features, 20):
            batched.step(functional.cross_entropy, x.double(), y)
            for model in alone:
                model.step(functional.cross_entropy, x.double(), y)
    assert_close(together, alone, 1e-9)
    before = made(lambda: module(**settings), "momentum")[0].buffers_flat()
    for model, other in zip(together, alone, strict=True):
        found, expected = model.buffers_flat(), other.buffers_flat()
        assert found.keys() == expected.keys() == before.keys()
        assert bool(found) == settings.get("track_running_stats", True)
        for name, values in found.items():
            np.testing.assert_allclose(values, expected[name], rtol=1e-9, atol=1e-9)
            assert np.abs(values - before[name]).max() > 0.01
        assert all(part.momentum == settings.get("momentum", 0.1) for part in model.module if hasattr(part, "momentum"))
        model.eval(), other.eval()
        np.testing.assert_allclose(model.forward(x.double()).detach(), other.forward(x.double()).detach(), atol=1e-9)


def test_parameters_are_set_from_rows_and_gradients_written_into_some():
    models = made(dense, None)
    rows = np.stack([model.flat() * 2 for model in models])
    with BatchedModels(models) as batched:
        batched.set_flat(rows)
        np.testing.assert_array_equal(batched.flat().numpy(), rows)
        batched.step(functional.cross_entropy, *next(batches(6, 1)))
        slopes = np.full_like(rows, np.nan)
        assert batched.flat_gradient(out=torch.from_numpy(slopes)) is not None
    for model, row, slope in zip(models, rows, slopes, strict=True):
        np.testing.assert_array_equal(model.flat(), row)
        np.testing.assert_array_equal(model.flat_gradient(), slope)
        assert np.abs(slope).max() > 0 and model.version == 1


def test_hooks_are_run_and_dropout_differs_from_model_to_model():
    before = torch.get_rng_state()
    seen = []

    def watched():
        module = torch.nn.Sequential(torch.nn.Linear(6, 3))
        module[0].register_forward_hook(lambda *_: seen.append(1))
        return module

    BatchedModels(made(watched, "sgd")).step(functional.cross_entropy, *next(batches(6, 1)))
    assert seen
    dropped = [TorchModel(lambda: torch.nn.Dropout(0.5), seed=3) for _ in range(4)]
    outputs = BatchedModels(dropped).forward(torch.ones(1, 64))
    assert len({tuple(row.flatten().tolist()) for row in outputs}) == 4
    assert torch.equal(torch.get_rng_state(), before)


class AsksForValues(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)

    def forward(self, x):
        x = self.layer(x)
        return x if x.sum() > 0 else -x


def test_what_cannot_be_batched_is_said():
    x, y = next(batches(6, 1))
    with pytest.raises(sheave.Unsupported, match="AsksForValues cannot be batched: .*step its models one by one"):
        BatchedModels(made(AsksForValues, "sgd")).step(functional.cross_entropy, x, y)
    normed = made(lambda: normed_rows(momentum=None), "sgd")
    normed[1].eval()
    with pytest.raises(sheave.InvalidArgument, match="models that train and models that do not; expected the same"):
        BatchedModels(normed)
    evaluated = BatchedModels([model.eval() for model in normed]).forward(x.double())
    torch.testing.assert_close(evaluated[2], normed[2].forward(x.double(), gradient=False))
    normed[2].train().forward(x.double())
    with pytest.raises(sheave.InvalidArgument, match=r"1 has averaged \[0, 1\] batches; expected the same"):
        BatchedModels([model.train() for model in normed]).forward(x.double())
    with pytest.raises(sheave.Mismatch, match=r"rows of shape \(2, 6\); expected \(3, 419\)"):
        BatchedModels(made(dense, "sgd")).set_flat(np.zeros((2, 6)))
    with pytest.raises(sheave.InvalidArgument, match="several architectures"):
        BatchedModels([*made(dense, "sgd"), *made(AsksForValues, "sgd")])
    with pytest.raises(sheave.InvalidArgument, match="several kinds of optimizers"):
        BatchedModels([*made(dense, "sgd"), *made(dense, "adam")])
    uneven = made(dense, "adam")
    uneven[1].step(functional.cross_entropy, x, y)
    with pytest.raises(sheave.InvalidArgument, match="several numbers of steps"):
        BatchedModels(uneven)
    with pytest.raises(sheave.InvalidArgument, match="a loss that is one number"):
        BatchedModels(made(dense, "sgd")).step(lambda output, _: output, x, y)
    with pytest.raises(sheave.InvalidArgument, match="expected one or more TorchModels"):
        BatchedModels([])
    parked = made(dense, "sgd")
    parked[0].park()
    with pytest.raises(sheave.InvalidArgument, match="parked"):
        BatchedModels(parked)


def test_what_is_finished_is_used_no_more():
    models = made(dense, None)
    batched = BatchedModels(models)
    x, y = next(batches(6, 1))
    batched.step(functional.cross_entropy, x, y)
    batched.finish()
    batched.finish()
    alone = made(dense, None)
    for model, other in zip(models, alone, strict=True):
        other.step(functional.cross_entropy, x, y)
        np.testing.assert_allclose(model.flat_gradient(), other.flat_gradient(), rtol=1e-4, atol=1e-6)
        assert model.version == 0 and np.array_equal(model.flat(), other.flat())
    with pytest.raises(sheave.InvalidArgument, match="given back"):
        batched.forward(x)


def test_schedulers_go_along():
    def model(seed):
        return TorchModel(
            dense,
            optimizer=OPTIMIZERS["sgd"],
            scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
            seed=seed,
        )

    together, alone = [[model(seed) for seed in range(2)] for _ in range(2)]
    with BatchedModels(together) as batched:
        for x, y in batches(6, 6):
            batched.step(functional.cross_entropy, x, y)
            batched.scheduler_step()
            for other in alone:
                other.step(functional.cross_entropy, x, y)
                other.scheduler_step()
    assert_close(together, alone, 1e-5)
    assert together[0].optimizer.param_groups[0]["lr"] == pytest.approx(0.05 / 64)
