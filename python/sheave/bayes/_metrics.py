"""Calibration of classifications."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sheave import _core

__all__ = ["Reliability", "calibration_error", "reliability"]


class Reliability(NamedTuple):
    """The bins of a reliability diagram: data by their confidence, the probability of their most probable class.

    Of B bins the bin b, from 0, has the data whose confidence is above b / B and at most (b + 1) / B.

    >>> import sheave
    >>> bins = sheave.bayes.reliability([[0.75, 0.25], [0.25, 0.75]], [0, 0], bins=2)
    >>> bins.counts.tolist(), bins.confidence.tolist(), bins.accuracy.tolist(), bins.error
    ([0, 2], [0.0, 0.75], [0.0, 0.5], 0.25)
    """

    #: How many data are in each bin: int64 of shape [bins].
    counts: NDArray[np.int64]
    #: The mean confidence of those in each bin; 0 where there are none.
    confidence: NDArray[np.float64]
    #: The share of them whose most probable class is the label; 0 where there are none.
    accuracy: NDArray[np.float64]
    #: The expected calibration error.
    error: float


def reliability(probabilities: Any, labels: Any, *, bins: int = 15) -> Reliability:
    """Sort data into `bins` bins of equal width by their confidence.

    `probabilities` has classes along its last axis, float32 or float64; `labels` one integer for each datum. Raises
    `sheave.InvalidArgument` for rows that do not sum to 1 within 0.01, and labels that are no class.

    >>> import sheave
    >>> sheave.bayes.reliability([[1.0, 0.0]], [0], bins=3).counts.tolist()
    [0, 0, 1]
    """
    error, counts, confidence, accuracy = _core._calibration(probabilities, labels, bins)
    return Reliability(counts, confidence, accuracy, error)


def calibration_error(probabilities: Any, labels: Any, *, bins: int = 15) -> float:
    """Expected calibration error: sum_b count_b / n * abs(accuracy_b - confidence_b) (Guo et al., ICML 2017).

    The arguments are those of `reliability`.

    >>> import sheave
    >>> sheave.bayes.calibration_error([[0.75, 0.25], [0.25, 0.75]], [0, 0])
    0.25
    """
    return reliability(probabilities, labels, bins=bins).error
