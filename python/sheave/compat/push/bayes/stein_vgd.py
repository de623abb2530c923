"""Stein variational gradient descent (Liu and Wang 2016): particles that descend, and keep apart.

What differs from PusH, on purpose:

- Particles are pushed apart, u_i = 1/n sum_j [k(t_j, t_i) grad_j - dk(t_j, t_i)/dt_j] of a *loss*, where PusH's sign
draws
  them together.
- `prior` counts: a function that returns the gradients of its log density by parameter, such as `normal_prior`. Then
the
  target is the posterior, N times the loss, a mean over the batch, less the log prior, for N data. True is PusH's
  randomised prior of networks.
- A `lengthscale` of None is chosen in each step, from the median of distances.
- With `bootstrap` each particle has a sample of the data of its own.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from sheave.bayes import Svgd
from sheave.compat.push.bayes import _common
from sheave.compat.push.bayes.ensemble import _ensemble_pred, _leader_pred, _leader_pred_dl
from sheave.compat.push.bayes.infer import Infer
from sheave.compat.push.bayes.utils import flatten
from sheave.compat.push.particle import Particle

__all__ = ["SteinVGD", "mk_empty_optim", "mk_empty_scheduler", "normal_prior", "torch_squared_exp_kernel"]
__all__ += ["torch_squared_exp_kernel_grad", "train_svgd"]


def mk_empty_optim(params: Any) -> None:
    """No optimizer: a step computes gradients."""


def mk_empty_scheduler(optim: Any) -> None:
    """No scheduler."""


def normal_prior(params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients of the log density of standard normal parameters.

    >>> import torch
    >>> normal_prior([torch.tensor([2.0, -1.0])])
    [tensor([-2.,  1.])]
    """
    return [-parameter.detach() for parameter in params]


def torch_squared_exp_kernel(x: torch.Tensor, y: torch.Tensor, length_scale: float) -> torch.Tensor:
    """exp(-|x - y|**2 / (2 l**2)) of two vectors."""
    difference = (x - y) / length_scale
    return torch.exp(-0.5 * torch.dot(difference, difference))


def torch_squared_exp_kernel_grad(x: torch.Tensor, y: torch.Tensor, length_scale: float) -> torch.Tensor:
    """The gradient of that kernel at x."""
    return -(x - y) / length_scale**2 * torch_squared_exp_kernel(x, y, length_scale)


def _rows(particle: Particle, prior: Any, count: int, others: list[int]) -> tuple[Any, Any]:
    """Parameters and gradients of all particles, this one first: float32 matrices [n, d], or float64 ones."""
    futures = [particle.get(pid) for pid in [particle.pid, *others]]
    rows, slopes = [], []
    for view in particle.wait(futures):
        parameters = list(view.view().parameters())
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        if callable(prior):
            pairs = zip(gradients, prior(parameters), strict=True)
            gradients = [count * gradient - of_prior for gradient, of_prior in pairs]
        rows.append(flatten(parameters).detach().cpu().numpy())
        slopes.append(flatten(gradients).detach().cpu().numpy())
    return np.stack(rows), np.stack(slopes)


def _svgd_leader(
    particle: Particle,
    prior: Any,
    loss_fn: Callable[..., Any],
    lengthscale: float | None,
    lr: float,
    dataloader: Any,
    epochs: int,
    bootstrap: bool = False,
) -> list[float]:
    """Move all particles. Returns the leader's mean loss in each epoch."""
    others = particle.other_particles()
    begun = _common.batches_of(dataloader, 1 + len(others), bootstrap)
    svgd = Svgd(lengthscale=lengthscale)
    count = len(dataloader.dataset) if callable(prior) else 0
    means = []
    for _ in range(epochs):
        losses = []
        for (data, label), *rest in begun():
            futures = [
                particle.send(pid, "SVGD_STEP", loss_fn, *batch) for pid, batch in zip(others, rest, strict=True)
            ]
            losses.append(float(particle.step(loss_fn, data, label).wait()))
            particle.wait(futures)
            rows, directions = _rows(particle, prior, count, others)
            svgd.directions(rows, directions)
            updates = [torch.from_numpy(each) for each in directions]
            sent = zip(others, updates[1:], strict=True)
            futures = [particle.send(pid, "SVGD_FOLLOW", lr, update) for pid, update in sent]
            _svgd_follow(particle, lr, updates[0])
            particle.wait(futures)
        means.append(sum(losses) / max(len(losses), 1))
    return means


def _svgd_leader_memeff(
    particle: Particle,
    prior: Any,
    loss_fn: Callable[..., Any],
    lengthscale: float | None,
    lr: float,
    dataloader: Any,
    epochs: int,
    bootstrap: bool = False,
) -> list[float]:
    """Move all particles, as `_svgd_leader` does, which needs no more memory."""
    return _svgd_leader(particle, prior, loss_fn, lengthscale, lr, dataloader, epochs, bootstrap)


def _svgd_step(particle: Particle, loss_fn: Callable[..., Any], data: Any, label: Any) -> float:
    """Compute this particle's gradients. Returns its loss."""
    return float(particle.step(loss_fn, data, label).wait())


def _svgd_follow(particle: Particle, lr: float, update: torch.Tensor) -> None:
    """Move this particle against a flat update."""
    particle.update(lambda model: model.add_flat(update, -lr)).wait()


class SteinVGD(Infer):
    """Particles of Stein variational gradient descent; `train_svgd` makes them."""

    def bayes_infer(  # type: ignore[override]
        self,
        dataloader: Any,
        epochs: int,
        prior: Any = None,
        random_seed: bool = False,
        bootstrap: bool = False,
        loss_fn: Callable[..., Any] | None = None,
        num_particles: int = 1,
        lengthscale: float | None = 1.0,
        lr: float = 1e-3,
        svgd_entry: Callable[..., Any] = _svgd_leader,
        svgd_state: dict[Any, Any] | None = None,
    ) -> None:
        """Make the particles, and have the first one run
        `svgd_entry(particle, prior, loss_fn, lengthscale, lr, dataloader, epochs, bootstrap)`."""
        loss_fn = torch.nn.MSELoss() if loss_fn is None else loss_fn
        leader: dict[str, Callable[..., Any]] = {
            "SVGD_LEADER": svgd_entry,
            "LEADER_PRED_DL": _leader_pred_dl,
            "LEADER_PRED": _leader_pred,
        }
        member: dict[str, Callable[..., Any]] = {
            "SVGD_STEP": _svgd_step,
            "SVGD_FOLLOW": _svgd_follow,
            "ENSEMBLE_PRED": _ensemble_pred,
        }
        state = {} if svgd_state is None else svgd_state
        pids = []
        for number, key in enumerate(_common.keys(num_particles, random_seed)):
            pids.append(
                self.push_dist.p_create(
                    mk_empty_optim,
                    mk_empty_scheduler,
                    prior is True,
                    key,
                    device=number % self.num_devices,
                    receive=member if number else leader,
                    state=state,
                )
            )
        settings = (prior, loss_fn, lengthscale, lr, dataloader, epochs, bootstrap)
        self.push_dist.p_launch(pids[0], "SVGD_LEADER", *settings).wait()

    def posterior_pred(
        self, data: Any, f_reg: bool = True, mode: str | Sequence[str] = ("mean",)
    ) -> Any:
        """Predict with all particles, as `Ensemble.posterior_pred` does."""
        return _common.predicted(self.push_dist, data, mode, f_reg, mode)


def train_svgd(
    dataloader: Any,
    loss_fn: Callable[..., Any],
    epochs: int,
    num_particles: int,
    nn: Callable[..., torch.nn.Module],
    *args: Any,
    lengthscale: float | None = 1.0,
    lr: float = 1e-3,
    prior: Any = None,
    num_devices: int = 1,
    cache_size: int = 4,
    view_size: int = 4,
    svgd_entry: Callable[..., Any] = _svgd_leader,
    svgd_state: dict[Any, Any] | None = None,
) -> SteinVGD:
    """Move `num_particles` networks that `nn(*args)` makes: plain steps of the size `lr`."""
    stein_vgd = SteinVGD(nn, *args, num_devices=num_devices, cache_size=cache_size, view_size=view_size)
    stein_vgd.bayes_infer(
        dataloader,
        epochs,
        prior=prior,
        loss_fn=loss_fn,
        num_particles=num_particles,
        lengthscale=lengthscale,
        lr=lr,
        svgd_entry=svgd_entry,
        svgd_state=svgd_state,
    )
    return stein_vgd
