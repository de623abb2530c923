"""The Laplace approximation of a last layer, on features."""

from typing import Any, NamedTuple

from sheave import _core
from sheave._core_bayes import ClassificationPosterior, RegressionPosterior

__all__ = ["Evidence", "LaplaceClassification", "LaplaceRegression"]


class Evidence(NamedTuple):
    """The settings of the largest evidence, by the fixed point of MacKay (1992), and the evidence there.

    >>> import numpy as np, sheave
    >>> layer = sheave.bayes.LaplaceRegression(1, 1)
    >>> layer.add(np.array([[1.0], [2.0], [3.0]]), np.array([[1.1], [1.9], [3.0]]))
    >>> layer.maximize_evidence().converged
    True
    """

    #: The precision of the prior, from 1e-12 to 1e12.
    prior_precision: float
    #: The variance of the noise of a regression; 1 for a classification.
    noise_variance: float
    #: The logarithm of the evidence, in nats.
    log_evidence: float
    #: How many weights the data determine.
    determined: float
    #: Whether the fixed point was found within 1,000 steps; else this is the last one.
    converged: bool


class LaplaceRegression:
    """The last layer of a regression: weights with a normal prior of a precision, data with normal noise.

    The loss is quadratic, so that this is the exact posterior of the layer on its features: of each output normal with
    the covariance inv(F.T @ F / noise_variance + prior_precision * I). A constant feature of 1 makes a bias. Batches
    are summed, and not kept; outputs have one precision and one noise in common.

    >>> import numpy as np, sheave
    >>> layer = sheave.bayes.LaplaceRegression(features=2, outputs=1)
    >>> layer.add(np.array([[0.0, 1], [1, 1], [2, 1]]), np.array([[1.0], [3.1], [4.9]]))
    >>> best = layer.maximize_evidence()
    >>> mean, variance = layer.posterior(best.prior_precision, best.noise_variance).predict(np.array([[1.5, 1.0]]))
    >>> mean.round(), bool(variance[0] > best.noise_variance)
    (array([[4.]]), True)
    """

    def __init__(self, features: int, outputs: int = 1) -> None:
        self._layer = _core.RegressionLayer(features, outputs)

    def add(self, features: Any, targets: Any) -> None:
        """Add a batch: features [B, features], targets [B, outputs], of one dtype, float32 or float64."""
        self._layer.add(features, targets)

    def log_evidence(self, prior_precision: float = 1.0, noise_variance: float = 1.0) -> float:
        """Return the logarithm of the evidence, in nats. The first call finds eigenvalues, in O(features**3)."""
        return self._layer.log_evidence(prior_precision, noise_variance)

    def maximize_evidence(self, prior_precision: float = 1.0, noise_variance: float = 1.0) -> Evidence:
        """Return the settings of the largest evidence, searched from these."""
        return Evidence(*self._layer.maximize_evidence(prior_precision, noise_variance))

    def posterior(self, prior_precision: float = 1.0, noise_variance: float = 1.0) -> RegressionPosterior:
        """Return the posterior of these settings."""
        return self._layer.posterior(prior_precision, noise_variance)


class LaplaceClassification:
    """The last layer of a classification, at trained weights [classes, features].

    The posterior is normal about the trained weights, with the covariance inv(H + prior_precision * I) of all of them,
    where H is the generalised Gauss-Newton matrix, the sum of kron(diag(p) - p p.T, f f.T) over data (MacKay 1992;
    Daxberger et al., NeurIPS 2021, arXiv:2106.14806). A constant feature of 1 makes a bias.

    >>> import numpy as np, sheave
    >>> layer = sheave.bayes.LaplaceClassification(np.array([[-1.0, 0.0], [1.0, 0.0]]))
    >>> layer.add(np.array([[-2.0, 1], [-1, 1], [1.5, 1]]), [0, 0, 1])
    >>> probabilities = layer.posterior(prior_precision=1.0).probit(np.array([[3.0, 1.0]]))
    >>> bool(0.5 < probabilities[0, 1] < 1 / (1 + np.exp(-6)))          # less sure than the weights alone
    True
    """

    def __init__(self, weights: Any) -> None:
        self._layer = _core.ClassificationLayer(weights)

    def add(self, features: Any, labels: Any) -> None:
        """Add a batch: features [B, features] of float32 or float64, and B labels."""
        self._layer.add(features, labels)

    def log_evidence(self, prior_precision: float = 1.0) -> float:
        """Return the logarithm of the evidence, in nats. The first call finds eigenvalues, in O(weights**3)."""
        return self._layer.log_evidence(prior_precision)

    def maximize_evidence(self, prior_precision: float = 1.0) -> Evidence:
        """Return the precision of the largest evidence, searched from this one."""
        return Evidence(*self._layer.maximize_evidence(prior_precision))

    def posterior(self, prior_precision: float = 1.0) -> ClassificationPosterior:
        """Return the posterior of this precision."""
        return self._layer.posterior(prior_precision)
