"""Deep ensembles (Lakshminarayanan et al. 2017): networks that were trained from weights of their own.

What differs from PusH, on purpose: the leader's learning rate is scheduled as those of the others are, in a bootstrap
too; and a bootstrap is that of each particle.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sheave.compat.push.bayes import _common
from sheave.compat.push.bayes._common import constant as mk_scheduler
from sheave.compat.push.bayes.infer import Infer
from sheave.compat.push.particle import Particle

__all__ = ["Ensemble", "create_optimizer", "mk_optim", "mk_scheduler", "train_deep_ensemble"]


def create_optimizer(lr: float) -> Callable[[Any], torch.optim.Optimizer]:
    """A maker of Adam with this learning rate."""
    return lambda params: torch.optim.Adam(params, lr=lr)


def mk_optim(params: Any) -> torch.optim.Optimizer:
    """Adam with a learning rate of 0.03."""
    return torch.optim.Adam(params, lr=0.03)


def _deep_ensemble_main(
    particle: Particle, dataloader: Any, loss_fn: Callable[..., Any], epochs: int, bootstrap: bool = False
) -> list[float]:
    """Train all particles. Returns the leader's mean loss in each epoch."""
    others = particle.other_particles()
    begun = _common.batches_of(dataloader, 1 + len(others), bootstrap)
    means = []
    for _ in range(epochs):
        losses = []
        for (data, label), *rest in begun():
            futures = [
                particle.send(pid, "ENSEMBLE_STEP", loss_fn, *batch) for pid, batch in zip(others, rest, strict=True)
            ]
            losses.append(float(particle.step(loss_fn, data, label).wait()))
            particle.wait(futures)
        particle.wait([particle.scheduler_step(), *[particle.send(pid, "SCHEDULER_STEP") for pid in others]])
        means.append(sum(losses) / max(len(losses), 1))
    return means


def _ensemble_step(particle: Particle, loss_fn: Callable[..., Any], data: Any, label: Any, *args: Any) -> float:
    """Step this particle. Returns its loss."""
    return float(particle.step(loss_fn, data, label, *args).wait())


def _ensemble_scheduler_step(particle: Particle, *args: Any) -> None:
    """Schedule this particle's learning rate."""
    particle.scheduler_step(*args).wait()


def _ensemble_pred(particle: Particle, data: Any) -> torch.Tensor:
    """What this particle predicts."""
    return _common.evaluated(particle, data)


def _leader_pred(particle: Particle, data: Any, f_reg: bool = True, mode: Any = ("mean",)) -> dict[str, torch.Tensor]:
    """What all particles predict: tensors by mode."""
    _common.modes_of(mode, _common.REGRESSION if f_reg else _common.CLASSIFICATION)
    futures = [particle.send(pid, "ENSEMBLE_PRED", data) for pid in particle.other_particles()]
    outputs = [_common.evaluated(particle, data), *particle.wait(futures)]
    return _common.combined(torch.stack(outputs, dim=1), f_reg, mode)


def _leader_pred_dl(
    particle: Particle, dataloader: Any, f_reg: bool = True, mode: Any = ("mean",)
) -> dict[str, torch.Tensor]:
    """What all particles predict of the data of a loader: tensors by mode."""
    return _common.joined(_leader_pred(particle, data, f_reg, mode) for data, _ in dataloader)


class Ensemble(Infer):
    """A deep ensemble; `train_deep_ensemble` makes one."""

    def bayes_infer(  # type: ignore[override]
        self,
        dataloader: Any,
        epochs: int,
        loss_fn: Callable[..., Any] | None = None,
        lr: float = 0.01,
        num_ensembles: int = 2,
        mk_scheduler: Callable[..., Any] | None = mk_scheduler,
        prior: bool = False,
        random_seed: bool = False,
        bootstrap: bool = False,
        ensemble_entry: Callable[..., Any] = _deep_ensemble_main,
        ensemble_state: dict[Any, Any] | None = None,
        f_save: bool = False,
    ) -> None:
        """Make `num_ensembles` particles, and have the first one run
        `ensemble_entry(particle, dataloader, loss_fn, epochs, bootstrap)`. With `f_save` they are written to files."""
        loss_fn = torch.nn.MSELoss() if loss_fn is None else loss_fn
        leader: dict[str, Callable[..., Any]] = {
            "ENSEMBLE_MAIN": ensemble_entry,
            "LEADER_PRED_DL": _leader_pred_dl,
            "LEADER_PRED": _leader_pred,
        }
        member: dict[str, Callable[..., Any]] = {
            "ENSEMBLE_STEP": _ensemble_step,
            "ENSEMBLE_PRED": _ensemble_pred,
            "SCHEDULER_STEP": _ensemble_scheduler_step,
        }
        pids = []
        for number, key in enumerate(_common.keys(num_ensembles, random_seed)):
            pids.append(
                self.push_dist.p_create(
                    create_optimizer(lr),
                    mk_scheduler or _common.constant,
                    prior,
                    key,
                    device=number % self.num_devices,
                    receive=member if number else leader,
                    state=None if number else ensemble_state,
                )
            )
        self.push_dist.p_launch(pids[0], "ENSEMBLE_MAIN", dataloader, loss_fn, epochs, bootstrap).wait()
        if f_save:
            self.push_dist.save()

    def posterior_pred(
        self, data: Any, f_reg: bool = True, mode: str | Sequence[str] = ("mean",)
    ) -> Any:
        """Predict with all particles, of a tensor or a loader. Returns tensors by mode; see `_common.combined`.

        Regression: mean, median, min, max, std of shape [B, out], pred [B, M, out]. Classification: logits, prob
        [B, M, C], mean_prob, std [B, C], mode [B]. Raises AssertionError for another mode.
        """
        return _common.predicted(self.push_dist, data, mode, f_reg, mode)


def train_deep_ensemble(
    dataloader: Any,
    loss_fn: Callable[..., Any],
    epochs: int,
    nn: Callable[..., torch.nn.Module],
    *args: Any,
    lr: float = 0.01,
    num_devices: int = 1,
    cache_size: int = 4,
    view_size: int = 4,
    num_ensembles: int = 2,
    prior: bool = False,
    random_seed: bool = False,
    bootstrap: bool = False,
    ensemble_entry: Callable[..., Any] = _deep_ensemble_main,
    ensemble_state: dict[Any, Any] | None = None,
) -> Ensemble:
    """Train `num_ensembles` networks that `nn(*args)` makes, with Adam."""
    ensemble = Ensemble(nn, *args, num_devices=num_devices, cache_size=cache_size, view_size=view_size)
    ensemble.bayes_infer(
        dataloader,
        epochs,
        loss_fn=loss_fn,
        lr=lr,
        num_ensembles=num_ensembles,
        prior=prior,
        random_seed=random_seed,
        bootstrap=bootstrap,
        ensemble_entry=ensemble_entry,
        ensemble_state=ensemble_state,
    )
    return ensemble
