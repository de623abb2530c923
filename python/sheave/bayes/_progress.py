"""How far a training is: a bar on standard error, or a function that is told."""

import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self, TextIO

import numpy as np
from numpy.typing import NDArray
from sheave._core import InvalidArgument
from sheave.particle._particle import Outstanding

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


class EpochLosses:
    """The losses of the batches of one epoch, in order, of which the last may still be on its way.

    `tell` is told of each, with its number and what the members have lost. `count` is how many there were.
    """

    def __init__(self, members: int, tell: Callable[[int, NDArray[np.float64]], object]) -> None:
        self._sums = np.zeros(members)
        self.count = 0
        self._tell = tell
        self._begun: deque[Outstanding] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            while self._begun:
                self._settle()
        for begun in self._begun:
            begun.look()

    def add(self, begun: Outstanding) -> None:
        """Count batches. Waits for those before them, and for these where nothing of them is outstanding."""
        self._begun.append(begun)
        while len(self._begun) > 1 or self._begun and not self._begun[0]:
            self._settle()

    def _settle(self) -> None:
        of_members = np.asarray(self._begun.popleft().wait(), np.float64)
        for losses in of_members.T:
            self._sums += losses
            self.count += 1
            self._tell(self.count, losses)

    def means(self, epoch: int) -> NDArray[np.float64]:
        """The mean of all; `epoch` is for the error of one without batches."""
        if self.count == 0:
            raise InvalidArgument(f"the loader had no batches in epoch {epoch}; expected one at least")
        return self._sums / self.count
