"""Multi MC-dropout (Gal and Ghahramani 2016): networks whose dropout stays on at prediction.

What differs from PusH, on purpose:

- With `patch` or `freeze_on_eval` a sample draws one mask for all data, as one function of the posterior; what is
  kept is scaled by 1 / (1 - p), as in training. Without, each datum has masks of its own. All else is in evaluation.
- The training loop is `mc_entry`. Loaders are predicted with `num_samples` too.
- Of a classification the result is the class that most samples predict, and for "raw" the logits.
- Masks come from generators of the particles, and leave that of torch as it is.
"""

from collections.abc import Callable
from typing import Any

import torch
from sheave.bayes import seed_of
from sheave.bayes._modules import dropping, evaluating
from sheave.compat.push.bayes import _common
from sheave.compat.push.bayes.infer import Infer
from sheave.compat.push.lib.utils import detach_to_cpu, detach_to_device
from sheave.compat.push.particle import Particle

__all__ = ["MultiMCDropout", "mk_optim", "train_mc_dropout"]

MODES = ("mean", "median", "min", "max", "raw")


def mk_optim(params: Any) -> torch.optim.Optimizer:
    """Adam with a learning rate of 1e-4 and a weight decay of 1e-2."""
    return torch.optim.Adam(params, lr=1e-4, weight_decay=1e-2)


def _multimc_main(particle: Particle, dataloader: Any, loss_fn: Callable[..., Any], epochs: int) -> list[float]:
    """Train all particles. Returns the leader's mean loss in each epoch."""
    means = []
    for _ in range(epochs):
        losses = []
        for data, label in dataloader:
            futures = [particle.send(pid, "MULTIMC_STEP", loss_fn, data, label) for pid in particle.other_particles()]
            losses.append(_multimc_step(particle, loss_fn, data, label))
            particle.wait(futures)
        means.append(sum(losses) / max(len(losses), 1))
    return means


def _multimc_step(particle: Particle, loss_fn: Callable[..., Any], data: Any, label: Any, *args: Any) -> float:
    """Step this particle in training. Returns its loss."""
    particle.module.train()
    return float(particle.step(loss_fn, data, label, *args).wait())


def _multimc_pred(
    particle: Particle, data: Any, num_samples: int = 10, freeze_on_eval: bool = False
) -> list[torch.Tensor]:
    """What samples of this particle predict."""
    inputs = detach_to_device(particle.device, data)

    def predict(model: Any) -> list[torch.Tensor]:
        with evaluating(model):
            seeds = [seed_of(particle.pid, sample) for sample in range(num_samples)]
            return [_output(model, inputs, seed, freeze_on_eval) for seed in seeds]

    outputs: list[torch.Tensor] = particle.update(predict).wait()
    return outputs


def _output(model: Any, inputs: Any, seed: int, is_one_mask: bool) -> torch.Tensor:
    """What a module in evaluation predicts with dropout."""
    if is_one_mask:
        with dropping(model, seed):
            output: torch.Tensor = detach_to_cpu(model.forward(inputs, gradient=False))
        return output
    parts = [part for part in model.module.modules() if isinstance(part, torch.nn.modules.dropout._DropoutNd)]
    generators = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=generators):
        torch.manual_seed(seed % 2**63)
        for part in parts:
            part.training = True
        output = detach_to_cpu(model.forward(inputs, gradient=False))
        for part in parts:
            part.training = False
    return output


def _leader_pred(
    particle: Particle,
    data: Any,
    f_reg: bool = True,
    mode: str = "mean",
    num_samples: int = 10,
    freeze_on_eval: bool = False,
) -> torch.Tensor:
    """What samples of all particles predict together."""
    if mode not in MODES:
        raise ValueError(f"Mode {mode} not supported; expected one of {list(MODES)}")
    settings = (data, num_samples, freeze_on_eval)
    futures = [particle.send(pid, "MULTIMC_PRED", *settings) for pid in particle.other_particles()]
    outputs = [_multimc_pred(particle, *settings), *particle.wait(futures)]
    stacked = torch.stack([output for member in outputs for output in member], dim=1)
    if mode == "raw":
        return stacked
    return _common.combined(stacked, f_reg, mode if f_reg else "mode")[mode if f_reg else "mode"]


def _leader_pred_dl(
    particle: Particle,
    dataloader: Any,
    f_reg: bool = True,
    mode: str = "mean",
    num_samples: int = 10,
    freeze_on_eval: bool = False,
) -> torch.Tensor:
    """What samples of all particles predict together, of the data of a loader."""
    settings = (f_reg, mode, num_samples, freeze_on_eval)
    return torch.cat([_leader_pred(particle, data, *settings) for data, _ in dataloader])


class MultiMCDropout(Infer):
    """Networks with dropout; `train_mc_dropout` makes them. With `patch` a sample has one mask for all data."""

    def __init__(
        self,
        mk_nn: Callable[..., torch.nn.Module],
        *args: Any,
        patch: bool = True,
        num_devices: int = 1,
        cache_size: int = 4,
        view_size: int = 4,
    ) -> None:
        super().__init__(mk_nn, *args, num_devices=num_devices, cache_size=cache_size, view_size=view_size)
        self.patch = patch

    def bayes_infer(  # type: ignore[override]
        self,
        dataloader: Any,
        epochs: int,
        loss_fn: Callable[..., Any] | None = None,
        size_ensemble: int = 2,
        mk_optim: Callable[..., Any] = mk_optim,
        mk_scheduler: Callable[..., Any] | None = None,
        f_save: bool = False,
        mc_entry: Callable[..., Any] = _multimc_main,
    ) -> None:
        """Make the particles, and have the first one run `mc_entry(particle, dataloader, loss_fn, epochs)`."""
        loss_fn = torch.nn.CrossEntropyLoss() if loss_fn is None else loss_fn
        leader: dict[str, Callable[..., Any]] = {
            "MULTIMC_MAIN": mc_entry,
            "LEADER_PRED_DL": _leader_pred_dl,
            "LEADER_PRED": _leader_pred,
        }
        member: dict[str, Callable[..., Any]] = {"MULTIMC_STEP": _multimc_step, "MULTIMC_PRED": _multimc_pred}
        for number in range(size_ensemble):
            self.push_dist.p_create(
                mk_optim, mk_scheduler, device=number % self.num_devices, receive=member if number else leader
            )
        self.push_dist.p_launch(0, "MULTIMC_MAIN", dataloader, loss_fn, epochs).wait()
        if f_save:
            self.push_dist.save()

    def posterior_pred(
        self, data: Any, f_reg: bool = True, mode: str = "mean", num_samples: int = 10, freeze_on_eval: bool = False
    ) -> torch.Tensor:
        """Predict with `num_samples` samples of each particle, of a tensor or a loader. Returns [B, out] for mean,
        median, min and max; [B, samples of all, out] for raw; and [B] of classes without `f_reg`."""
        is_one_mask = freeze_on_eval or self.patch
        result: torch.Tensor = _common.predicted(
            self.push_dist, data, None, f_reg, mode, num_samples, is_one_mask
        )
        return result

    @staticmethod
    def train_mc_dropout(
        dataloader: Any,
        loss_fn: Callable[..., Any],
        epochs: int,
        nn: Callable[..., torch.nn.Module],
        *args: Any,
        num_devices: int = 1,
        cache_size: int = 4,
        view_size: int = 4,
        size_ensemble: int = 2,
        mk_optim: Callable[..., Any] = mk_optim,
        mc_entry: Callable[..., Any] = _multimc_main,
        patch: bool = False,
    ) -> "MultiMCDropout":
        """Train `size_ensemble` networks that `nn(*args)` makes."""
        options = {"num_devices": num_devices, "cache_size": cache_size, "view_size": view_size}
        dropout = MultiMCDropout(nn, *args, patch=patch, **options)
        dropout.bayes_infer(dataloader, epochs, loss_fn, size_ensemble, mk_optim, mc_entry=mc_entry)
        return dropout


def train_mc_dropout(*args: Any, **kwargs: Any) -> MultiMCDropout:
    """Train networks with dropout, as `MultiMCDropout.train_mc_dropout` does."""
    return MultiMCDropout.train_mc_dropout(*args, **kwargs)
