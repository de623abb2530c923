"""What is done to the modules of torch for a prediction. A model of another kind goes through as it is."""

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from sheave import _core_bayes as native
from sheave._core import Unsupported
from sheave.bayes._data import inputs

__all__: list[str] = []


def module_of(model: Any) -> Any:
    """The module of a model of torch; None of another one."""
    torch = sys.modules.get("torch")
    module = getattr(model, "module", None)
    return module if torch is not None and isinstance(module, torch.nn.Module) else None


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Has all parts of a module in evaluation, and afterwards as they were."""
    module = module_of(model)
    parts = [] if module is None else [(part, part.training) for part in module.modules()]
    if module is not None:
        module.eval()
    try:
        yield
    finally:
        for part, was_training in parts:
            part.training = was_training


@contextlib.contextmanager
def restored(model: Any) -> Iterator[None]:
    """Gives a model its parameters and statistics back afterwards."""
    flat = np.array(model.flat())
    module = module_of(model)
    buffers = [] if module is None else [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        model.set_flat(flat)
        for buffer, former in buffers:
            buffer.copy_(former)


def batch_norms(model: Any) -> list[Any]:
    """The parts of a module that keep statistics of batches."""
    module = module_of(model)
    if module is None:
        return []
    kind = sys.modules["torch"].nn.modules.batchnorm._BatchNorm
    return [part for part in module.modules() if isinstance(part, kind) and part.track_running_stats]


def refresh(model: Any, batches: Iterable[Any]) -> None:
    """Compute the statistics of batch normalisation again, as means over these batches of inputs."""
    norms = batch_norms(model)
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    with evaluating(model):
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
            norm.training = True
        try:
            for x in batches:
                model.forward(x, gradient=False)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum


def inputs_for(model: Any, loader: Any) -> Iterable[Any]:
    """What `refresh` needs of a loader."""
    return inputs(loader, None) if batch_norms(model) else ()


@contextlib.contextmanager
def dropping(model: Any, seed: int) -> Iterator[dict[str, Any]]:
    """Has dropout in a module as one mask for all data, which the seed draws.

    Yields the keywords of `forward`: of a model of another kind its generator.
    """
    module = module_of(model)
    if module is None:
        yield {"dropout": native.Generator(seed)}
        return
    functional = sys.modules["torch"].nn
    plain = (functional.Dropout,)
    by_channel = (functional.Dropout1d, functional.Dropout2d, functional.Dropout3d)
    parts = [part for part in module.modules() if isinstance(part, functional.modules.dropout._DropoutNd)]
    for part in parts:
        if not isinstance(part, plain + by_channel):
            raise Unsupported(f"{type(part).__name__} has no mask for all data; expected Dropout or Dropout1d to 3d")
    try:
        for number, part in enumerate(parts):
            part.forward = _masked(part, native.seed_of(seed, number), isinstance(part, by_channel))
        yield {}
    finally:
        for part in parts:
            vars(part).pop("forward", None)


def _masked(part: Any, seed: int, by_channel: bool) -> Any:
    """A forward that multiplies by the mask of a seed, the same for each datum."""
    torch, masks = sys.modules["torch"], {}

    def forward(x: Any) -> Any:
        shape = (1, x.shape[1], *([1] * (x.dim() - 2))) if by_channel else (1, *x.shape[1:])
        if shape not in masks:
            drawn = np.empty(shape, np.float32)
            native.dropout_mask(native.Generator(seed), float(part.p), drawn)
            masks[shape] = torch.from_numpy(drawn).to(x)
        return x * masks[shape]

    return forward
