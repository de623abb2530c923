"""What the algorithms share: batches, predictions of members, and what is made of them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from sheave.bayes import Generator, bootstrap, seed_of
from sheave.bayes._modules import evaluating
from sheave.compat import push
from sheave.compat.push.lib.utils import detach_to_cpu, detach_to_device
from sheave.compat.push.particle import Particle
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

__all__ = ["batches_of", "combined", "constant", "evaluated", "joined", "keys", "modes_of", "predicted"]

REGRESSION = ("mean", "median", "min", "max", "std", "pred")
CLASSIFICATION = ("logits", "prob", "mean_prob", "mode", "std")


def constant(optimizer: Any) -> Any:
    """A scheduler that leaves the learning rate as it is."""
    return lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=1.0, total_iters=1)


def keys(count: int, is_random: bool) -> list[int]:
    """Seeds of particles: -1, which stands for one of their own, or numbers that torch draws."""
    drawn: list[int] = torch.randint(0, 10**9, (count,)).tolist() if is_random else [-1] * count
    return drawn


def batches_of(loader: Any, members: int, is_bootstrap: bool) -> Callable[[], Iterator[list[Any]]]:
    """Epochs of batches: what is returned begins one. Each item has the batch of each member.

    Members share the batches of the loader. With a bootstrap each has a sample of the data of its own, drawn once with
    replacement, in batches of the same size and a new order in each epoch.
    """
    if not is_bootstrap:
        return lambda: ([batch] * members for batch in loader)
    loaded = list(loader)
    inputs, labels = torch.cat([batch[0] for batch in loaded]), torch.cat([batch[1] for batch in loaded])
    own = []
    for member in range(members):
        rows = torch.from_numpy(bootstrap(Generator(seed_of(torch.initial_seed() % 2**64, member)), len(inputs)))
        dataset = TensorDataset(inputs[rows], labels[rows])
        own.append(DataLoader(dataset, batch_size=loader.batch_size, shuffle=True))
    return lambda: (list(batches) for batches in zip(*own, strict=True))


def evaluated(particle: Particle, data: Any) -> torch.Tensor:
    """What the network predicts in evaluation, on the CPU."""
    inputs = detach_to_device(particle.device, data)

    def predict(model: Any) -> Any:
        with evaluating(model):
            return model.forward(inputs, gradient=False)

    output: torch.Tensor = detach_to_cpu(particle.update(predict).wait())
    return output


def modes_of(mode: Any, valid: Sequence[str]) -> list[str]:
    """The modes that are asked for. Raises AssertionError for one that there is not."""
    modes = [mode] if isinstance(mode, str) else list(mode)
    for each in modes:
        assert each in valid, f"Mode {each} not supported. Valid modes are {list(valid)}."
    return modes


def combined(
    outputs: torch.Tensor, f_reg: bool, mode: Any, probabilities: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """What the outputs of members, [B, M, ...], say together: by mode.

    Of a regression, over members: mean, median, min, max, std (of a sample), and pred, the outputs. Of a
    classification: logits, the outputs [B, M, C]; prob, their probabilities [B, M, C]; mean_prob [B, C]; mode, the
    class that most members predict [B]; std, of the probabilities [B, C].
    """
    modes = modes_of(mode, REGRESSION if f_reg else CLASSIFICATION)
    made: dict[str, Callable[[], torch.Tensor]]
    if f_reg:
        made = {
            "mean": lambda: outputs.mean(dim=1),
            "median": lambda: outputs.median(dim=1).values,
            "min": lambda: outputs.min(dim=1).values,
            "max": lambda: outputs.max(dim=1).values,
            "std": lambda: outputs.std(dim=1),
            "pred": lambda: outputs,
        }
    else:
        prob = outputs.softmax(dim=-1) if probabilities is None else probabilities
        made = {
            "logits": lambda: outputs,
            "prob": lambda: prob,
            "mean_prob": lambda: prob.mean(dim=1),
            "mode": lambda: prob.argmax(dim=-1).mode(dim=1).values,
            "std": lambda: prob.std(dim=1),
        }
    return {each: made[each]() for each in modes}


def joined(parts: Iterable[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Predictions of batches as those of all data."""
    listed = list(parts)
    return {mode: torch.cat([part[mode] for part in listed]) for mode in listed[0]} if listed else {}


def predicted(distribution: Any, data: Any, mode: Any, *args: Any) -> Any:
    """Has the first particle predict: tensors by LEADER_PRED, loaders by LEADER_PRED_DL."""
    if not isinstance(data, torch.Tensor | DataLoader):
        raise ValueError(f"Data of type {type(data)} not supported; expected a torch.Tensor or a DataLoader")
    message = "LEADER_PRED" if isinstance(data, torch.Tensor) else "LEADER_PRED_DL"
    result = distribution.p_launch(0, message, data, *args).wait()
    is_one = isinstance(mode, str) and isinstance(result, dict) and not push.strict
    return result[mode] if is_one else result
