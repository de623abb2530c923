"""Which optimizers run natively where the values are, and as which of sheave's rules."""

from typing import TYPE_CHECKING, Any

from sheave.compat.mxnet import lr_scheduler
from sheave.compat.mxnet.optimizer import rules
from sheave.compat.mxnet.optimizer.optimizer import Optimizer

if TYPE_CHECKING:
    import sheave.optim

__all__ = ["native_optimizer"]


def native_optimizer(optimizer: Optimizer) -> "sheave.optim.Optimizer | None":
    """The same optimizer natively, or None if only Python can run it: a class of the user's, factors of single
    parameters, or a schedule that sheave has not.

    >>> import sheave.compat.mxnet as mx
    >>> native_optimizer(mx.optimizer.SGD(learning_rate=0.5, momentum=0.9)).momentum
    0.9
    """
    # The class itself: a subclass may have changed anything.
    settings = _SETTINGS.get(type(optimizer))
    if settings is None or optimizer.param_dict or _differ(optimizer.lr_mult) or _differ(optimizer.wd_mult):
        return None
    schedule = _schedule(optimizer)
    if schedule is None:
        return None
    rate, decay = schedule
    common = {
        "lr": rate,
        "weight_decay": optimizer.wd,
        "rescale": optimizer.rescale_grad,
        # MXNet's own kernels clip only to bounds above zero.
        "clip_gradient": optimizer.clip_gradient if (optimizer.clip_gradient or 0) > 0 else None,
        "schedule": decay,
        "multi_precision": optimizer.multi_precision,
    }
    rule: sheave.optim.Optimizer | None = settings(optimizer, common)
    return rule


def _differ(factors: dict[Any, float]) -> bool:
    return any(factor != 1 for factor in factors.values())


def _schedule(optimizer: Optimizer) -> "tuple[float, Any] | None":
    """The base rate and how it changes, or None if sheave has no such schedule."""
    import sheave.optim

    scheduler = optimizer.lr_scheduler
    if scheduler is None:
        return optimizer.lr, None
    rate, warm_up = scheduler.base_lr, None
    if optimizer.begin_num_update or rate <= 0 or (scheduler.warmup_steps and scheduler.warmup_mode != "linear"):
        return None
    decay: Any
    if scheduler.warmup_steps:
        warm_up = sheave.optim.WarmUp(scheduler.warmup_steps, scheduler.warmup_begin_lr / rate)
    if type(scheduler) is lr_scheduler.FactorScheduler and not warm_up:
        floor = min(1.0, scheduler.stop_factor_lr / rate)
        decay = sheave.optim.StepDecay(scheduler.step, scheduler.factor, floor)
    elif type(scheduler) is lr_scheduler.MultiFactorScheduler:
        decay = sheave.optim.MultiStepDecay(scheduler.step, scheduler.factor)
    elif type(scheduler) is lr_scheduler.PolyScheduler:
        decay = sheave.optim.PolynomialDecay(scheduler.max_update, scheduler.power, scheduler.final_lr / rate)
    elif type(scheduler) is lr_scheduler.CosineScheduler:
        decay = sheave.optim.CosineDecay(scheduler.max_update, scheduler.final_lr / rate)
    else:
        return None
    return rate, sheave.optim.Schedule(decay, warm_up)


def _sgd(optimizer: Any, common: dict[str, Any]) -> Any:
    from sheave import optim

    return optim.SGD(momentum=optimizer.momentum, nesterov=isinstance(optimizer, rules.NAG), **common)


def _adam(optimizer: Any, common: dict[str, Any]) -> Any:
    from sheave import optim

    kind = optim.AdamW if isinstance(optimizer, rules.AdamW) else optim.Adam
    return kind(betas=(optimizer.beta1, optimizer.beta2), eps=optimizer.epsilon, **common)


def _lamb(optimizer: Any, common: dict[str, Any]) -> Any:
    from sheave import optim

    return optim.LAMB(
        betas=(optimizer.beta1, optimizer.beta2),
        eps=optimizer.epsilon,
        bias_correction=optimizer.bias_correction,
        lower_bound=optimizer.lower_bound,
        upper_bound=optimizer.upper_bound,
        **common,
    )


def _adagrad(optimizer: Any, common: dict[str, Any]) -> Any:
    from sheave import optim

    return optim.AdaGrad(eps=optimizer.float_stable_eps, **common)


def _rmsprop(optimizer: Any, common: dict[str, Any]) -> Any:
    from sheave import optim

    if optimizer.clip_weights:
        return None
    return optim.RMSProp(
        alpha=optimizer.gamma1,
        momentum=optimizer.gamma2,
        eps=optimizer.epsilon,
        centered=optimizer.centered,
        **common,
    )


def _test(optimizer: Any, common: dict[str, Any]) -> Any:
    from sheave import optim

    return optim.Test(rescale=common["rescale"], multi_precision=common["multi_precision"])


_SETTINGS = {
    rules.SGD: _sgd,
    rules.NAG: _sgd,
    rules.Adam: _adam,
    rules.AdamW: _adam,
    rules.LAMB: _lamb,
    rules.AdaGrad: _adagrad,
    rules.RMSProp: _rmsprop,
    rules.Test: _test,
}
