"""Models of one architecture, stepped as one computation.

Each parameter of n models is one tensor `[n, ...]`. A module is applied to all of them by `vmap`, which makes one
batched matrix product of n; gradients come from one backward pass, and the optimizer makes one fused step of all. That
pays where a model alone is too small to keep the machine busy. Rows of dense layers are applied without `vmap`.

**Equal, but not in all bits.** Each row depends on its own model and batch alone, and rules are those of torch.optim.
Batched products may add up in another order, though, so results agree with those of single models within rounding.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state

from sheave._core import InvalidArgument, Mismatch, Unsupported
from sheave.particle._torch_models import TorchModel, moved

__all__ = ["BatchedModels"]

# By optimizer, which of its tensors have a row for each model.
MOMENTS: dict[type, tuple[str, ...]] = {
    torch.optim.SGD: ("momentum_buffer",),
    torch.optim.Adam: ("exp_avg", "exp_avg_sq"),
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq"),
}

# Layers whose output has the shape of their input, each element of which it depends on alone.
OF_ELEMENTS: tuple[type, ...] = (torch.nn.ReLU, torch.nn.Tanh, torch.nn.Sigmoid, torch.nn.GELU, torch.nn.SiLU)
OF_ELEMENTS += (torch.nn.ELU, torch.nn.Softplus, torch.nn.LeakyReLU, torch.nn.Identity)

# Settings that would be another rule.
OTHER_RULES = ("amsgrad", "maximize", "differentiable", "capturable", "nesterov")


class BatchedModels:
    """Models of the same architecture on one device, all of which are stepped together.

    All are `TorchModel`s of modules with the same layers, with parameters of one dtype, none of them frozen, and with
    the same kind of optimizer: torch's SGD, Adam or AdamW with the same settings, or none. They are not touched while
    they are here; `finish`, or the end of a `with` block, gives parameters, gradients, buffers and moments back to
    them, which then go on where this has stopped. Meanwhile there are two of each of them in the device's memory.

    Modules that `vmap` refuses, such as those that ask for values of their input, raise Unsupported at the first step.
    Batch normalisation that trains keeps the statistics of each model. Dropout draws another mask for each model, from
    one generator, and so other ones than models by themselves. Results agree with those of single models within
    rounding: float32 parameters differ by less than 1e-4 of their scale after 20 steps. Rounding grows as it does in
    any training: Adam divides gradients by their size, also where they are nothing but rounding.

    >>> import torch
    >>> TorchModel = sheave.particle.TorchModel
    >>> models = [TorchModel(torch.nn.Linear, 2, 1, optimizer=torch.optim.SGD, seed=seed) for seed in range(3)]
    >>> with sheave.particle.BatchedModels(models) as batched:
    ...     losses = batched.step(torch.nn.functional.mse_loss, torch.ones(4, 2), torch.zeros(4, 1))
    >>> tuple(losses.shape), [model.version for model in models]
    ((3,), [1, 1, 1])
    """

    def __init__(self, models: Sequence[TorchModel]) -> None:
        self.models = list(models)
        first = _checked(self.models)
        self.device = first.device
        self._template = first.module
        self._parts = first.parts
        views = zip(*(model._parameters for model in self.models), strict=True)
        self._stacks = [torch.nn.Parameter(torch.stack([view.detach() for view in column])) for column in views]
        _, buffers = stack_module_state([model.module for model in self.models])
        self._buffers = {name: buffer.detach() for name, buffer in buffers.items()}
        self._optimizer = self._stacked_optimizer()
        self._generators = first._generators
        self._draws = first._draws
        self._is_plain = _is_plain(first.module)
        # Their momentum is one over the number of batches, which `vmap` cannot ask for.
        self._averaging = [(name, part) for name, part in first.module.named_modules() if _averages(part)]
        self._steps = 0
        self._assigned = 0
        self._is_finished = False

    def _named(self) -> dict[str, Tensor]:
        """The parameters of all models by name, `[n, ...]` each."""
        return {part.name: stack for part, stack in zip(self._parts, self._stacks, strict=True)}

    def _stacked_optimizer(self) -> Any:
        """One optimizer for the matrix, which goes on from the moments of all."""
        optimizers = [model.optimizer for model in self.models]
        if optimizers[0] is None:
            return None
        kind = type(optimizers[0])
        settings = {key: value for key, value in optimizers[0].param_groups[0].items() if key in optimizers[0].defaults}
        settings.pop("decoupled_weight_decay", None)
        settings.update(foreach=False, fused=True)
        stacked = kind(self._stacks, **settings)
        for column, stack in enumerate(self._stacks):
            entries = [model.optimizer.state.get(model._parameters[column], {}) for model in self.models]
            state = {key: torch.stack([entry[key] for entry in entries]) for key in _moments_of(kind, entries[0])}
            if "step" in entries[0]:
                state["step"] = entries[0]["step"].clone()
            if state:
                stacked.state[stack] = state
        return stacked

    def forward(self, x: Any, *args: Any, shared: bool = True) -> Tensor:
        """Apply all models, as they are, without gradients. `x` is one batch for all, or has one for each in its first
        dimension if it is not `shared`. Returns their outputs, `[n, ...]`."""
        x, args = moved((x, args), self.device)
        with torch.no_grad():
            return self._outputs(x, args, shared)

    def _outputs(self, x: Any, args: tuple[Any, ...], shared: bool) -> Tensor:
        self._require_open()
        if self._is_plain and not args and isinstance(x, Tensor) and x.dim() == (2 if shared else 3):
            return self._plainly(x.expand(len(self.models), *x.shape) if shared else x)
        named = self._named()
        dimension = None if shared else 0

        # A module without parameters is applied as often too.
        rows = torch.arange(len(self.models))

        def one(_: Tensor, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Any, args: Any) -> Any:
            return functional_call(self._template, (parameters, buffers), (x, *args))

        batched = torch.vmap(one, in_dims=(0, 0, 0, dimension, dimension), randomness="different")
        try:
            with self._generators.in_use() if self._draws else contextlib.nullcontext(), self._counting():
                return batched(rows, named, self._buffers, x, args)  # type: ignore[no-any-return]
        except RuntimeError as error:
            if "vmap" not in str(error) and "batching" not in str(error):
                raise
            name = type(self._template).__name__
            raise Unsupported(f"{name} cannot be batched: {error}; hint: step its models one by one") from error

    def step(self, loss: Callable[..., Tensor], x: Any, y: Any, *args: Any, shared: bool = True) -> Tensor:
        """Make a step of all models: the gradients of `loss(output, y)` of each, and that of their optimizers.

        `x`, `y` and `args` are one batch for all, or have one for each in their first dimension if they are not
        `shared`. Returns the losses, `[n]`, without a graph.
        """
        x, y, args = moved((x, y, args), self.device)
        outputs = self._outputs(x, args, shared)
        if not isinstance(outputs, Tensor):
            raise Unsupported(f"{type(self._template).__name__} returns a {type(outputs).__name__}; expected a tensor")
        losses = self._losses(loss, outputs, y, shared)
        # Each model has an effect on one of the losses alone, so the gradients of their sum are those of all.
        gradients = torch.autograd.grad(losses.sum(), self._stacks, allow_unused=True)
        for stack, gradient in zip(self._stacks, gradients, strict=True):
            # A fused optimizer takes its elements one after the other, as those of the parameters.
            stack.grad = None if gradient is None else gradient.contiguous()
        if self._optimizer is not None:
            self._optimizer.step()
        self._steps += 1
        return losses.detach()

    @contextlib.contextmanager
    def _counting(self) -> Iterator[None]:
        """Gives normalisations that average all batches the momentum of this one."""
        for name, part in self._averaging:
            if not part.training:
                continue
            counts = set(self._buffers[f"{name}.num_batches_tracked" if name else "num_batches_tracked"].tolist())
            if len(counts) > 1:
                raise InvalidArgument(f"{name} has averaged {sorted(counts)} batches; expected the same number in all")
            part.momentum = 1.0 / (counts.pop() + 1)
        try:
            yield
        finally:
            for _, part in self._averaging:
                part.momentum = None

    def _plainly(self, x: Tensor) -> Tensor:
        """What a row of layers does, without the detours of `vmap`."""
        stacks = iter(self._stacks)
        for layer in cast(torch.nn.Sequential, self._template):
            if isinstance(layer, torch.nn.Linear):
                weights = next(stacks).transpose(1, 2)
                is_biased = layer.bias is not None
                x = torch.baddbmm(next(stacks).unsqueeze(1), x, weights) if is_biased else torch.bmm(x, weights)
            else:
                x = layer(x)
        return x

    def _losses(self, loss: Callable[..., Tensor], outputs: Tensor, y: Any, shared: bool) -> Tensor:
        if _is_cross_entropy(loss) and outputs.dim() == 3 and not y.is_floating_point():
            labels = y.repeat(len(self.models)) if shared else y.flatten()
            of_each = torch.nn.functional.cross_entropy(outputs.flatten(0, 1), labels, reduction="none")
            return of_each.view(len(self.models), -1).mean(1)
        losses = torch.vmap(loss, in_dims=(0, None if shared else 0))(outputs, y)
        if losses.shape != (len(self.models),):
            raise InvalidArgument(f"losses of shape {tuple(losses.shape)}; expected a loss that is one number")
        return losses

    def scheduler_step(self) -> None:
        """Make a step of the schedulers of all, which have to agree about the learning rate."""
        self._require_open()
        for model in self.models:
            # Or else torch warns of optimizers whose steps were made here.
            model.optimizer._opt_called = self._steps > 0
            model.scheduler_step()
        rates = {model.optimizer.param_groups[0]["lr"] for model in self.models}
        if len(rates) > 1:
            raise InvalidArgument(f"learning rates {sorted(rates)} of models that are stepped together; expected one")
        self._optimizer.param_groups[0]["lr"] = rates.pop()

    def flat(self) -> Tensor:
        """The parameters of all, `[n, P]`: a copy."""
        return torch.cat([stack.detach().flatten(1) for stack in self._flattened(self._stacks)], dim=1)

    def flat_gradient(self, out: Tensor | None = None) -> Tensor:
        """The gradients of the last step, `[n, P]`, zero where there are none: a copy, in `out` if it is given."""
        gradients = [torch.zeros_like(stack) if stack.grad is None else stack.grad for stack in self._stacks]
        return torch.cat(self._flattened(gradients), dim=1, out=out)

    def set_flat(self, rows: Any) -> None:
        """Replace the parameters of all by those in a matrix `[n, P]` of torch or numpy."""
        self._require_open()
        values = torch.as_tensor(rows)
        dimension = self._parts[-1].stop if self._parts else 0
        if tuple(values.shape) != (len(self.models), dimension):
            raise Mismatch(f"rows of shape {tuple(values.shape)}; expected {(len(self.models), dimension)}")
        with torch.no_grad():
            for part, stack in zip(self._parts, self._stacks, strict=True):
                stack.copy_(values[:, part.start : part.stop].view_as(stack))
        self._assigned += 1

    def _flattened(self, stacks: Sequence[Tensor]) -> list[Tensor]:
        return [stack.reshape(len(self.models), -1) for stack in stacks]

    def _require_open(self) -> None:
        if self._is_finished:
            raise InvalidArgument("models that were given back; expected it to be used before finish()")

    def finish(self) -> None:
        """Give everything back to the models, which go on from here. Idempotent."""
        if self._is_finished:
            return
        self._is_finished = True
        with torch.no_grad():
            for row, model in enumerate(self.models):
                self._give_back(row, model)

    def _give_back(self, row: int, model: TorchModel) -> None:
        for name, buffer in model.module.named_buffers():
            buffer.copy_(self._buffers[name][row])
        for stack, parameter in zip(self._stacks, model._parameters, strict=True):
            parameter.copy_(stack[row])
            if self._steps:
                parameter.grad = None if stack.grad is None else stack.grad[row].clone()
            state = {} if self._optimizer is None else self._optimizer.state.get(stack, {})
            if model.optimizer is not None and state:
                # The number of steps is one for all, and everything else has a row for each.
                shared = {key: value.clone() for key, value in state.items() if key == "step"}
                rows = {key: value for key, value in state.items() if key != "step"}
                own = {key: None if value is None else value[row].clone() for key, value in rows.items()}
                model.optimizer.state[parameter] = own | shared
        model.version += self._assigned + (self._steps if model.optimizer is not None else 0)
        model._steps += self._steps
        model._gradient_version += 1

    def __enter__(self) -> "BatchedModels":
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def __len__(self) -> int:
        return len(self.models)


def _is_plain(module: torch.nn.Module) -> bool:
    """Whether it is a row of dense layers and functions of single elements, and nothing else happens in it."""
    # One that stands there twice is applied twice.
    layers = list(module) if type(module) is torch.nn.Sequential else []
    is_hooked = any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in module.modules())
    is_known = all(type(layer) is torch.nn.Linear or type(layer) in OF_ELEMENTS for layer in layers)
    # Tied parameters have one stack for several layers.
    count = sum(len(list(layer.parameters(recurse=False))) for layer in layers)
    return bool(layers) and is_known and not is_hooked and count == len(list(module.parameters()))


def _averages(part: torch.nn.Module) -> bool:
    """Whether it is a normalisation whose statistics are means over all batches."""
    is_normalisation = isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
    return is_normalisation and part.momentum is None and bool(part.track_running_stats)


def _is_cross_entropy(loss: Any) -> bool:
    """Whether it is the mean of the cross entropies of logits with labels, and nothing more."""
    if type(loss) is torch.nn.CrossEntropyLoss:
        plain = (loss.weight, loss.reduction, loss.ignore_index, loss.label_smoothing)
        return plain == (None, "mean", -100, 0.0)
    return loss is torch.nn.functional.cross_entropy


def _moments_of(kind: type, entry: dict[str, Any]) -> list[str]:
    return [key for key in MOMENTS[kind] if entry.get(key) is not None]


def _checked(models: list[TorchModel]) -> TorchModel:
    """The first of models that can be stepped together."""
    if not models or not all(isinstance(model, TorchModel) for model in models):
        kinds = sorted({type(model).__name__ for model in models})
        raise InvalidArgument(f"models of {kinds}; expected one or more TorchModels")
    first = models[0]
    for model in models:
        model._require_here("batch")
    layouts = {tuple(model.parts) for model in models}
    if len(layouts) > 1 or len({str(model.module) for model in models}) > 1:
        raise InvalidArgument("models of several architectures; expected the same modules and parameters in all")
    if len({(model.device, *model.dtypes) for model in models}) > 1 or len(first.dtypes) > 1:
        raise InvalidArgument("models of several devices or dtypes; expected one of each")
    if any(not parameter.requires_grad for model in models for parameter in model._parameters):
        raise Unsupported("models with frozen parameters; hint: step them one by one")
    if len({tuple(part.training for part in model.module.modules()) for model in models}) > 1:
        raise InvalidArgument("models that train and models that do not; expected the same mode of all")
    if first.clip_norm is not None or first.accumulate > 1 or first.autocast is not None:
        raise Unsupported("models that clip, accumulate or cast; hint: step them one by one")
    _check_optimizers(models)
    return first


def _check_optimizers(models: list[TorchModel]) -> None:
    first = models[0].optimizer
    if any(type(model.optimizer) is not type(first) for model in models):
        raise InvalidArgument("models with several kinds of optimizers; expected one kind")
    if first is None:
        return
    if type(first) not in MOMENTS:
        raise Unsupported(f"the optimizer {type(first).__name__} cannot be batched; expected SGD, Adam or AdamW")
    settings = []
    steps = set()
    for model in models:
        if len(model.optimizer.param_groups) > 1:
            raise Unsupported("an optimizer with several groups of parameters; hint: step its models one by one")
        group = model.optimizer.param_groups[0]
        settings.append({key: value for key, value in group.items() if key not in ("params", "foreach", "fused")})
        entries = [model.optimizer.state.get(parameter) for parameter in model._parameters]
        steps.add(tuple(float(entry["step"]) if entry and "step" in entry else bool(entry) for entry in entries))
    if any(other != settings[0] for other in settings) or any(settings[0].get(name) for name in OTHER_RULES):
        raise InvalidArgument(f"settings of optimizers {settings[:2]}; expected the same in all, none of {OTHER_RULES}")
    if len(steps) > 1 or len(set(steps.copy().pop())) > 1:
        raise InvalidArgument("models that have made several numbers of steps; expected the same number")
