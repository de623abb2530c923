"""How far a training is: a bar on standard error, or a function that is told."""

import sys
import time
from collections.abc import Callable
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

__all__ = ["Progress", "Report"]

_BAR_COLUMNS = 24
_SECONDS_BETWEEN = 0.1


class Report(NamedTuple):
    """What a function is told after each batch.

    >>> import numpy as np, sheave
    >>> sheave.bayes.Report(epoch=1, epochs=10, batch=3, batches=None, losses=np.zeros(2)).epoch
    1
    """

    #: The epoch, from 1.
    epoch: int
    #: How many epochs there are.
    epochs: int
    #: The batch of the epoch, from 1.
    batch: int
    #: How many batches an epoch has, once it is known.
    batches: int | None
    #: The loss of this batch of each member.
    losses: NDArray[np.float64]


Progress = bool | Callable[[Report], object] | None


class _Bar:
    """One line on a terminal, written over at most ten times a second."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._written = 0.0

    def __call__(self, report: Report) -> None:
        is_last = report.epoch == report.epochs and report.batch == report.batches
        now = time.monotonic()
        if not is_last and now - self._written < _SECONDS_BETWEEN:
            return
        self._written = now
        share = (report.epoch - 1 + (report.batch / report.batches if report.batches else 0.0)) / report.epochs
        bar = ("#" * round(share * _BAR_COLUMNS)).ljust(_BAR_COLUMNS, ".")
        loss = float(np.mean(report.losses))
        self._stream.write(f"\r[{bar}] epoch {report.epoch}/{report.epochs}, loss {loss:.4g}\x1b[K")
        self._stream.write("\n" if is_last else "")
        self._stream.flush()


def reporter(progress: Progress) -> Callable[[Report], object] | None:
    """Return the function that is told; none where nobody looks."""
    if callable(progress):
        return progress
    return _Bar(sys.stderr) if progress and sys.stderr.isatty() else None
