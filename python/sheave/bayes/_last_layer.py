"""The Laplace approximation of the last layer of models on particles."""

import sys
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from sheave import _core_bayes as native
from sheave._core import InvalidArgument, Unsupported
from sheave.bayes._data import inputs, pairs, to_numpy
from sheave.bayes._laplace import Evidence, LaplaceClassification, LaplaceRegression
from sheave.bayes._modules import evaluating, module_of
from sheave.bayes._outputs import modes_of
from sheave.bayes._posterior import BASIC, Handlers, Posterior
from sheave.bayes._progress import Progress

__all__ = ["LastLayerLaplace"]

Features = Callable[[Any, Any], tuple[Any, Any]]


def _torch_features(model: Any, x: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """What the last linear layer of a module gets, and its weights, with those of a constant feature for the bias."""
    torch, module = sys.modules["torch"], module_of(model)
    layers = [part for part in module.modules() if isinstance(part, torch.nn.Linear)]
    if not layers:
        raise Unsupported(f"{type(module).__name__} has no Linear layer; hint: give features=")
    layer, seen = layers[-1], []
    handle = layer.register_forward_pre_hook(lambda _, args: seen.append(to_numpy(args[0])))
    try:
        model.forward(x, gradient=False)
    finally:
        handle.remove()
    if len(seen) != 1:
        raise Unsupported(f"the last Linear layer ran {len(seen)} times; expected once; hint: give features=")
    features, weights = seen[0], to_numpy(layer.weight)
    if layer.bias is None:
        return features, weights
    ones = np.ones((len(features), 1), features.dtype)
    return np.hstack([features, ones]), np.hstack([weights, to_numpy(layer.bias)[:, None]])


def _features(model: Any, x: Any, features: Features | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Features [B, F] and weights [out, F], contiguous and of one dtype."""
    if features is None and module_of(model) is None:
        raise InvalidArgument("features is None; expected for this model a function of it and x: features, weights")
    found = _torch_features(model, x) if features is None else features(model, x)
    rows, weights = (np.ascontiguousarray(to_numpy(part)) for part in found)
    return rows, weights.astype(rows.dtype)


def _approximate(
    particle: Any, batches: list[Any], is_classes: bool, features: Features | None, settings: tuple[Any, Any]
) -> Evidence:
    def approximate(model: Any) -> Any:
        layer: Any = None
        with evaluating(model):
            for x, y in batches:
                rows, weights = _features(model, x, features)
                if layer is None and is_classes:
                    layer = LaplaceClassification(weights)
                elif layer is None:
                    layer = LaplaceRegression(rows.shape[1], len(weights))
                target = to_numpy(y)
                if not is_classes:
                    target = np.ascontiguousarray(target.reshape(len(rows), -1), rows.dtype)
                layer.add(rows, target)
        return layer

    layer = particle.update(approximate).wait()
    precision, noise = settings
    best: Evidence = layer.maximize_evidence()
    if precision is not None:
        evidence = layer.log_evidence(precision) if is_classes else layer.log_evidence(precision, noise or 1.0)
        best = Evidence(precision, 1.0 if is_classes else noise or 1.0, evidence, float("nan"), False)
    known = (best.prior_precision,) if is_classes else (best.prior_precision, best.noise_variance)
    particle.state["posterior"] = layer.posterior(*known)
    return best


def _predict_layer(
    particle: Any, batches: list[Any], features: Features | None, samples: int | None, seed: int
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    posterior = particle.state.get("posterior")
    if posterior is None:
        raise InvalidArgument(f"particle {particle.id.number} has no posterior; expected fit or approximate before")

    def predict(model: Any) -> NDArray[Any]:
        with evaluating(model):
            return np.concatenate([_features(model, x, features)[0] for x in batches])

    rows = particle.update(predict).wait()
    if isinstance(posterior, native.RegressionPosterior):
        return posterior.predict(rows)
    if samples is None:
        return posterior.probit(rows), None
    generator = native.Generator(native.seed_of(particle.seed, seed + 1))
    return posterior.sampled(rows, generator, samples), None


class LastLayerLaplace(Posterior):
    """The Laplace approximation of the last layer of trained models (MacKay 1992; Daxberger et al., NeurIPS 2021,
    arXiv:2106.14806): the layers below are fixed, and the weights of the last one have a normal posterior.

    `task` is "regression", where the posterior of the layer is exact, or "classification". `prior_precision` and
    `noise_variance`, which is a regression's, are by default those of the largest evidence. Of a model of torch the
    layer is its last Linear one, with its bias. For other models `features(model, x)` returns the features [B, F] of
    inputs and the weights [out, F] of the layer, of which a constant feature of 1 has the bias.

    `sheave.bayes.LaplaceRegression` and `LaplaceClassification` have the formulas.

    >>> import numpy as np, sheave
    >>> from sheave.particle import FunctionModel
    >>> def gradient(parameters, loss, x, y):
    ...     error = x @ parameters["w"] - y
    ...     return float((error**2).mean() / 2), {"w": x.T @ error / len(x)}
    >>> def make(seed):
    ...     sgd = sheave.optim.SGD(lr=0.5)
    ...     return FunctionModel({"w": np.zeros(1)}, lambda parameters, x: x @ parameters["w"], gradient, sgd)
    >>> features = lambda model, x: (x, model.flat()[None])
    >>> x = np.ones((9, 1))
    >>> with sheave.bayes.LastLayerLaplace(make, features=features, prior_precision=1.0, noise_variance=1.0) as laplace:
    ...     _ = laplace.fit([(x, np.ones(9))], None, epochs=30)
    ...     predicted = laplace.predict(x[:1], mode=["mean", "std"])
    >>> predicted["mean"].round(3), (predicted["std"] ** 2).round(3)         # noise of 1, and a posterior of 0.1
    (array([[0.9]]), array([[1.1]]))
    """

    HANDLERS: ClassVar[Handlers] = {**BASIC, "approximate": _approximate, "predict_layer": _predict_layer}

    def __init__(
        self,
        make: Callable[[int], Any] | None,
        members: int = 1,
        *,
        task: Literal["regression", "classification"] = "regression",
        features: Features | None = None,
        prior_precision: float | None = None,
        noise_variance: float | None = None,
        **settings: Any,
    ) -> None:
        if task not in ("regression", "classification"):
            raise InvalidArgument(f'task is {task!r}; expected "regression" or "classification"')
        self._features = features
        self._known = (prior_precision, noise_variance)
        super().__init__(make, members, task=task, **settings)

    def fit(
        self,
        loader: Iterable[Any],
        loss: Callable[..., Any],
        epochs: int,
        *,
        batched: bool = False,
        timeout: float | None = None,
        progress: Progress = None,
    ) -> NDArray[np.float64]:
        """Train all members, as `Posterior.fit`, and approximate their last layers on the same data."""
        losses = super().fit(loader, loss, epochs, batched=batched, timeout=timeout, progress=progress)
        self.approximate(loader, timeout=timeout)
        return losses

    def approximate(self, loader: Iterable[Any], *, timeout: float | None = None) -> list[Evidence]:
        """Approximate the last layers of members as they are, on all batches of a loader. Returns their evidence.

        With a `prior_precision` of one's own the evidence is that of it, and `determined` is not a number.
        """
        batches = list(pairs(loader))
        if not batches:
            raise InvalidArgument("the loader has no batches; expected one at least")
        is_of_classes = self.task == "classification"
        return self.ask("approximate", batches, is_of_classes, self._features, self._known, timeout=timeout)

    def predict(  # type: ignore[override]
        self,
        data: Any,
        *,
        mode: str | Iterable[str] | None = None,
        samples: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        timeout: float | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return what the posteriors of all members say together.

        A regression has the modes `mean` and `std` (of data and model together): [B, out]; and `pred`, the means:
        [B, M, out]. A classification has `mean_prob`, `log_prob`, `std`: [B, C]; `prob`: [B, M, C]; and `mode`: [B], by
        the probit approximation, or by so many `samples` of the logits. All are float64.
        """
        modes = modes_of(self.task, mode)
        batches = list(inputs(data, batch_size))
        if not batches:
            raise InvalidArgument("the data have no batches; expected one at least")
        found = self.ask("predict_layer", batches, self._features, samples, seed, timeout=timeout)
        rows = [mean for mean, _ in found]
        made: dict[str, Callable[[], NDArray[Any]]]
        if self.task == "classification":
            made = {
                "mean_prob": lambda: native.mean(rows),
                "log_prob": lambda: np.log(native.mean(rows)),
                "std": lambda: native.std(rows),
                "prob": lambda: np.stack(rows, 1),
                "mode": lambda: native.mode(rows),
            }
        else:
            variances = [np.repeat(variance[:, None], rows[0].shape[1], 1) for _, variance in found]
            made = {
                "mean": lambda: native.mean(rows),
                "std": lambda: np.sqrt(native.mixture(rows, variances)[1]),
                "pred": lambda: np.stack(rows, 1),
            }
        for name in modes:
            if name not in made:
                raise InvalidArgument(f"mode is {name!r}; expected some of {', '.join(map(repr, made))}")
        return {name: made[name]() for name in modes}
