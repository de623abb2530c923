"""Multi-SWAG (Maddox et al. 2019; Wilson and Izmailov 2020): a Gaussian about each of several networks.

What differs from PusH, on purpose:

- Each particle counts its own snapshots; deviations are divided by the root of how many are kept less 1. All particles
  are sampled with the same settings.
- Statistics of batch normalisation are computed again for each sample, from the loader of the training. Particles are
as
  they were after a prediction. Of a classification, probabilities are averaged over samples.
- Samples are drawn from a generator of each particle: the same ones in each prediction.
- `_mswag_sample` and its like sample the diagonal alone, as they do in PusH.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from sheave.bayes import Generator, Swag
from sheave.bayes._modules import evaluating, inputs_for, refresh, restored
from sheave.compat.push.bayes import _common
from sheave.compat.push.bayes._common import constant as mk_scheduler
from sheave.compat.push.bayes.infer import Infer
from sheave.compat.push.bayes.utils import unflatten_like
from sheave.compat.push.lib.utils import detach_to_cpu, detach_to_device
from sheave.compat.push.particle import Particle

__all__ = ["MultiSWAG", "create_optimizer", "mk_optim", "mk_scheduler", "train_mswag"]

#: Classes that the counts of `_mswag_sample` are of.
_CLASSES = 10


def create_optimizer(lr: float) -> Callable[[Any], torch.optim.Optimizer]:
    """A maker of Adam with this learning rate, and a thousandth of it as weight decay."""
    return lambda params: torch.optim.Adam(params, lr=lr, weight_decay=lr / 1000)


def mk_optim(params: Any) -> torch.optim.Optimizer:
    """Adam with a learning rate of 1e-4."""
    return torch.optim.Adam(params, lr=1e-4)


def _swag_step(particle: Particle, loss_fn: Callable[..., Any], data: Any, label: Any, *args: Any) -> float:
    """Step this particle. Returns its loss."""
    return float(particle.step(loss_fn, data, label, *args).wait())


def _swag_swag(particle: Particle, reset: bool, cov_mat_rank: int) -> None:
    """Begin the moments of this particle at its parameters, or add a snapshot of these."""

    def collect(model: Any) -> dict[str, Any]:
        flat = model.flat()
        swag = Swag(len(flat), cov_mat_rank, flat.dtype) if reset else particle.state[particle.pid]["swag"]
        swag.collect(flat)
        like = [parameter.detach() for parameter in model.module.parameters()]
        mean, variance = torch.from_numpy(swag.mean), torch.from_numpy(swag.variance)
        rows = [unflatten_like(torch.from_numpy(row), like) for row in np.asarray(swag.deviations)]
        return {
            "swag": swag,
            "n": swag.snapshots,
            "mom1": unflatten_like(mean, like),
            "mom2": unflatten_like(variance + mean**2, like),
            "cov_mat_sqrt": [
                torch.stack([row[place].flatten() for row in rows]) if rows else torch.zeros(0, each.numel())
                for place, each in enumerate(like)
            ],
        }

    particle.state[particle.pid] = particle.update(collect).wait()


def _mswag_particle(
    particle: Particle,
    dataloader: Any,
    loss_fn: Callable[..., Any],
    cov_mat_rank: int,
    pretrain_epochs: int,
    swag_epochs: int,
    swag_pids: Sequence[int],
    bootstrap: bool = False,
) -> list[float]:
    """Train all particles, and take snapshots at the end of the later epochs. Returns the leader's mean losses."""
    others = [pid for pid in swag_pids if pid != particle.pid]
    begun = _common.batches_of(dataloader, 1 + len(others), bootstrap)
    means = []
    for epoch in range(pretrain_epochs + swag_epochs):
        if epoch == pretrain_epochs:
            _snapshots(particle, others, True, cov_mat_rank)
        losses = []
        for (data, label), *rest in begun():
            parts = zip(others, rest, strict=True)
            futures = [particle.send(pid, "SWAG_STEP", loss_fn, *batch) for pid, batch in parts]
            losses.append(float(particle.step(loss_fn, data, label).wait()))
            particle.wait(futures)
        if epoch >= pretrain_epochs:
            _snapshots(particle, others, False, cov_mat_rank)
        means.append(sum(losses) / max(len(losses), 1))
    if swag_epochs == 0:
        _snapshots(particle, others, True, cov_mat_rank)
    return means


def _snapshots(particle: Particle, others: list[int], reset: bool, cov_mat_rank: int) -> None:
    futures = [particle.send(pid, "SWAG_SWAG", reset, cov_mat_rank) for pid in others]
    _swag_swag(particle, reset, cov_mat_rank)
    particle.wait(futures)


def _samples(particle: Particle, scale: float, var_clamp: float, count: int, rank: bool = True) -> Any:
    """Draws flat parameters: mean + sqrt(scale) (sqrt(max(variance, clamp)) z1 + deviations.T z2 / sqrt(K - 1))."""
    if particle.pid not in particle.state:
        raise ValueError(f"particle {particle.pid} has no moments; hint: train it with swag_epochs first")
    swag = particle.state[particle.pid]["swag"]
    generator = Generator(particle.pid)
    deviations = np.asarray(swag.deviations)
    spread = np.sqrt(np.maximum(swag.variance, var_clamp))
    for _ in range(count):
        draw = np.empty_like(swag.mean)
        generator.fill_normal(draw)
        draw *= spread
        if rank and len(deviations) > 1:
            weights = np.empty(len(deviations), swag.mean.dtype)
            generator.fill_normal(weights)
            draw += deviations.T @ weights / np.sqrt(len(deviations) - 1)
        yield swag.mean + scale**0.5 * draw


def _mswag_pred(
    particle: Particle, data: Any, scale: float, var_clamp: float, num_samples: int, training: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Means over samples of this particle's outputs, and of their probabilities: [B, out] both."""
    inputs = detach_to_device(particle.device, data)

    def predict(model: Any) -> list[torch.Tensor]:
        outputs = []
        with evaluating(model), restored(model):
            for sample in _samples(particle, scale, var_clamp, num_samples):
                model.set_flat(sample)
                refresh(model, () if training is None else inputs_for(model, training))
                outputs.append(detach_to_cpu(model.forward(inputs, gradient=False)))
        return outputs

    outputs = torch.stack(particle.update(predict).wait())
    return outputs.mean(dim=0), outputs.softmax(dim=-1).mean(dim=0)


def _leader_pred(
    particle: Particle,
    data: Any,
    scale: float,
    var_clamp: float,
    num_samples: int,
    mode: Any,
    num_models: int,
    f_reg: bool = True,
    training: Any = None,
) -> dict[str, torch.Tensor]:
    """What all particles predict: tensors by mode."""
    _common.modes_of(mode, _common.REGRESSION if f_reg else _common.CLASSIFICATION)
    settings = (scale, var_clamp, num_samples, training)
    futures = [particle.send(pid, "SWAG_PRED", data, *settings) for pid in particle.other_particles()]
    pairs = [_mswag_pred(particle, data, *settings), *particle.wait(futures)]
    outputs, probabilities = (torch.stack(list(each), dim=1) for each in zip(*pairs, strict=True))
    return _common.combined(outputs, f_reg, mode, probabilities)


def _leader_pred_dl(
    particle: Particle,
    dataloader: Any,
    scale: float,
    var_clamp: float,
    num_samples: int,
    mode: Any,
    num_models: int,
    f_reg: bool = True,
    training: Any = None,
) -> dict[str, torch.Tensor]:
    """What all particles predict of the data of a loader: tensors by mode."""
    settings = (scale, var_clamp, num_samples, mode, num_models, f_reg, training)
    return _common.joined(_leader_pred(particle, data, *settings) for data, _ in dataloader)


def _sampled(
    particle: Particle, dataloader: Any, scale: float, var_clamp: float, num_samples: int
) -> tuple[list[Any], list[torch.Tensor], list[list[torch.Tensor]]]:
    """Batches, this particle's outputs of each, and those of each of its samples, which are of the diagonal alone."""
    batches = list(dataloader)

    def outputs(model: Any) -> list[torch.Tensor]:
        inputs = (detach_to_device(particle.device, data) for data, _ in batches)
        return [detach_to_cpu(model.forward(each, gradient=False)) for each in inputs]

    def predict(model: Any) -> tuple[list[torch.Tensor], list[list[torch.Tensor]]]:
        with evaluating(model), restored(model):
            own, drawn = outputs(model), []
            for sample in _samples(particle, scale, var_clamp, num_samples, rank=False):
                model.set_flat(sample)
                drawn.append(outputs(model))
        return own, drawn

    own, drawn = particle.update(predict).wait()
    return batches, own, drawn


def _counts(predictions: Sequence[torch.Tensor], batches: Sequence[Any]) -> dict[int, list[int]]:
    """How often data of each class were taken for each."""
    classes = {label: [0] * _CLASSES for label in range(_CLASSES)}
    for predicted, (_, labels) in zip(predictions, batches, strict=True):
        for one, label in zip(predicted.tolist(), labels.tolist(), strict=True):
            classes[label][one] += 1
    return classes


def _majority(votes: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(votes)).mode(dim=0).values


def _mswag_sample(
    particle: Particle, dataloader: Any, loss_fn: Callable[..., Any], scale: float, var_clamp: float, num_samples: int
) -> dict[str, Any]:
    """Classes that this particle predicts, and those of its samples, batch by batch. The loader must not shuffle."""
    batches, own, drawn = _sampled(particle, dataloader, scale, var_clamp, num_samples)
    losses = [loss_fn(output, label) for output, (_, label) in zip(own, batches, strict=True)]
    preds = {number: [output.argmax(dim=1) for output in outputs] for number, outputs in enumerate(drawn)}
    return {
        "classes": _counts([output.argmax(dim=1) for output in own], batches),
        "losses": torch.stack(losses).mean(),
        "preds": preds,
        "max_preds": [_majority(votes) for votes in zip(*preds.values(), strict=True)],
    }


def _mswag_sample_entry(
    particle: Particle,
    dataloader: Any,
    loss_fn: Callable[..., Any],
    scale: float,
    var_clamp: float,
    num_samples: int,
    num_models: int,
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """How often data of each class were taken for each, by the majority of the particles' majorities, and by that of
    all samples."""
    settings = (dataloader, loss_fn, scale, var_clamp, num_samples)
    futures = [particle.send(pid, "SWAG_SAMPLE", *settings) for pid in range(1, num_models)]
    answers = [_mswag_sample(particle, *settings), *particle.wait(futures)]
    batches = list(dataloader)
    by_model = zip(*[answer["max_preds"] for answer in answers], strict=True)
    by_sample = zip(*[preds for answer in answers for preds in answer["preds"].values()], strict=True)
    first = _counts([_majority(votes) for votes in by_model], batches)
    return first, _counts([_majority(votes) for votes in by_sample], batches)


def _mswag_sample_regression(
    particle: Particle, dataloader: Any, loss_fn: Callable[..., Any], scale: float, var_clamp: float, num_samples: int
) -> dict[str, Any]:
    """The mean of what this particle's samples predict, of all data: [N, out]."""
    batches, own, drawn = _sampled(particle, dataloader, scale, var_clamp, num_samples)
    labels = [label for _, label in batches]
    return {
        "losses": torch.stack([loss_fn(*pair) for pair in zip(own, labels, strict=True)]).mean(),
        "mean_preds": torch.stack([torch.cat(outputs) for outputs in drawn]).mean(dim=0),
        "swag_losses": [loss_fn(*pair) for pair in zip(drawn[-1], labels, strict=True)] if drawn else [],
    }


def _mswag_sample_entry_regression(
    particle: Particle,
    dataloader: Any,
    loss_fn: Callable[..., Any],
    scale: float,
    var_clamp: float,
    num_samples: int,
    num_models: int,
) -> torch.Tensor:
    """The mean of what all particles' samples predict, of all data: [N, out]. The others' SWAG_SAMPLE is
    `_mswag_sample_regression`."""
    settings = (dataloader, loss_fn, scale, var_clamp, num_samples)
    futures = [particle.send(pid, "SWAG_SAMPLE", *settings) for pid in range(1, num_models)]
    answers = [_mswag_sample_regression(particle, *settings), *particle.wait(futures)]
    return torch.stack([answer["mean_preds"] for answer in answers]).mean(dim=0)


class MultiSWAG(Infer):
    """Gaussians about several networks; `train_mswag` makes them."""

    def __init__(
        self,
        mk_nn: Callable[..., torch.nn.Module],
        *args: Any,
        num_devices: int = 1,
        cache_size: int = 4,
        view_size: int = 4,
    ) -> None:
        super().__init__(mk_nn, *args, num_devices=num_devices, cache_size=cache_size, view_size=view_size)
        self.swag_pids: list[int] = []
        self.sample_pids: list[int] = []
        self._training: Any = None

    def bayes_infer(  # type: ignore[override]
        self,
        dataloader: Any,
        pretrain_epochs: int,
        swag_epochs: int,
        loss_fn: Callable[..., Any] | None = None,
        lr: float = 0.01,
        num_models: int = 1,
        cov_mat_rank: int = 20,
        prior: bool = False,
        random_seed: bool = False,
        bootstrap: bool = False,
        mswag_entry: Callable[..., Any] = _mswag_particle,
        mswag_state: dict[Any, Any] | None = None,
        f_save: bool = False,
        mswag_sample_entry: Callable[..., Any] = _mswag_sample_entry,
        mswag_sample: Callable[..., Any] = _mswag_sample,
    ) -> None:
        """Make the particles, which share the state, and have the first one run `mswag_entry(particle, dataloader,
        loss_fn, cov_mat_rank, pretrain_epochs, swag_epochs, pids, bootstrap)`.

        Raises ValueError for a state that has "n" or the number of a particle.
        """
        loss_fn = torch.nn.MSELoss() if loss_fn is None else loss_fn
        state = {} if mswag_state is None else mswag_state
        for taken in ("n", *range(num_models)):
            if taken in state:
                raise ValueError(f"Cannot run with state {taken}. Please rename.")
        state["n"] = 1
        leader: dict[str, Callable[..., Any]] = {"SWAG_PARTICLE": mswag_entry, "SWAG_SAMPLE_ENTRY": mswag_sample_entry}
        leader |= {"LEADER_PRED": _leader_pred, "LEADER_PRED_DL": _leader_pred_dl}
        member: dict[str, Callable[..., Any]] = {"SWAG_STEP": _swag_step, "SWAG_SWAG": _swag_swag}
        member |= {"SWAG_SAMPLE": mswag_sample, "SWAG_PRED": _mswag_pred}
        for number, key in enumerate(_common.keys(num_models, random_seed)):
            self.swag_pids.append(
                self.push_dist.p_create(
                    create_optimizer(lr),
                    mk_scheduler,
                    prior,
                    key,
                    device=number % self.num_devices,
                    receive=member if number else leader,
                    state=state,
                )
            )
        self._training = dataloader
        settings = (dataloader, loss_fn, cov_mat_rank, pretrain_epochs, swag_epochs, self.swag_pids, bootstrap)
        self.push_dist.p_launch(self.swag_pids[0], "SWAG_PARTICLE", *settings).wait()
        if f_save:
            self.push_dist.save()

    def posterior_pred(
        self,
        data: Any,
        loss_fn: Any = None,
        num_samples: int = 20,
        scale: float = 1.0,
        var_clamp: float = 1e-30,
        mode: str | Sequence[str] = ("mean",),
        f_reg: bool = True,
    ) -> Any:
        """Predict with samples of all particles, of a tensor or a loader. Returns tensors by mode, of shapes as those
        of `Ensemble.posterior_pred`, where a particle's part is a mean over its samples.

        `scale` of a sample's deviation from the mean, squared, is a half in the paper, and 1 in PusH. Raises
        AssertionError for a mode that there is not.
        """
        settings = (scale, var_clamp, num_samples, mode, len(self.swag_pids), f_reg, self._training)
        return _common.predicted(self.push_dist, data, mode, *settings)


def train_mswag(
    dataloader: Any,
    loss_fn: Callable[..., Any],
    pretrain_epochs: int,
    swag_epochs: int,
    nn: Callable[..., torch.nn.Module],
    *args: Any,
    lr: float = 0.01,
    num_devices: int = 1,
    cache_size: int = 4,
    view_size: int = 4,
    num_models: int = 1,
    cov_mat_rank: int = 20,
    prior: bool = False,
    random_seed: bool = False,
    bootstrap: bool = False,
    mswag_entry: Callable[..., Any] = _mswag_particle,
    mswag_state: dict[Any, Any] | None = None,
    f_save: bool = False,
    mswag_sample_entry: Callable[..., Any] = _mswag_sample_entry,
    mswag_sample: Callable[..., Any] = _mswag_sample,
) -> MultiSWAG:
    """Train `num_models` networks that `nn(*args)` makes, and a Gaussian about each."""
    mswag = MultiSWAG(nn, *args, num_devices=num_devices, cache_size=cache_size, view_size=view_size)
    mswag.bayes_infer(
        dataloader,
        pretrain_epochs,
        swag_epochs,
        loss_fn=loss_fn,
        lr=lr,
        num_models=num_models,
        cov_mat_rank=cov_mat_rank,
        prior=prior,
        random_seed=random_seed,
        bootstrap=bootstrap,
        mswag_entry=mswag_entry,
        mswag_state=mswag_state,
        f_save=f_save,
        mswag_sample_entry=mswag_sample_entry,
        mswag_sample=mswag_sample,
    )
    return mswag
