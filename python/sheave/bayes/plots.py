"""Pictures of what is not known, as SVG text without dependencies.

>>> import numpy as np, sheave
>>> x = np.linspace(0, 1, 5)
>>> picture = sheave.bayes.plots.regression(x, np.sin(x), 0.1 + x)
>>> picture.startswith("<svg"), picture.count("<polygon")
(True, 2)
"""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sheave._core import InvalidArgument
from sheave.bayes._data import to_numpy
from sheave.bayes._metrics import Reliability

__all__ = ["regression", "reliability"]

_WIDTH, _HEIGHT, _MARGIN = 560, 320, 44
_BLUE, _RED, _INK = "#2b6cb0", "#c53030", "#1a202c"


def regression(
    x: Any,
    mean: Any,
    std: Any,
    *,
    points: tuple[Any, Any] | None = None,
    truth: Any = None,
    levels: Sequence[float] = (2.0, 1.0),
    title: str = "",
) -> str:
    """Draw predictions of one number from one: their mean, and bands of so many standard deviations about it.

    `x`, `mean` and `std` have n elements each, in any order and shape. `points` are data, inputs and targets; `truth`
    is a line to compare with. Returns the text of an SVG.

    >>> import numpy as np, sheave
    >>> x = np.linspace(0, 1, 5)
    >>> "<circle" in sheave.bayes.plots.regression(x, x, x, points=([0.5], [0.4]), title="a line")
    True
    """
    place, middle, width = _flat("x", x), _flat("mean", mean), _flat("std", std)
    lines = [middle] if truth is None else [middle, _flat("truth", truth)]
    for name, each in (("mean", middle), ("std", width), ("truth", lines[-1])):
        if len(each) != len(place):
            raise InvalidArgument(f"{name} has {len(each)} elements; expected as many as x, {len(place)}")
    order = np.argsort(place, kind="stable")
    place, middle, width = place[order], middle[order], width[order]
    seen = tuple(_flat("points", each) for each in points) if points is not None else (place[:0], place[:0])
    widest = max(levels, default=0.0)
    axes = _Axes(
        (place.min(), place.max()),
        _span([middle - widest * width, middle + widest * width, seen[1], *lines[1:]]),
    )
    parts = []
    for level in sorted(levels, reverse=True):
        upper, lower = middle + level * width, middle - level * width
        outline = axes.points(np.concatenate([place, place[::-1]]), np.concatenate([upper, lower[::-1]]))
        parts.append(f'<polygon points="{outline}" fill="{_BLUE}" fill-opacity="0.18"/>')
    if truth is not None:
        dashed = f'fill="none" stroke="{_INK}" stroke-dasharray="5 4"'
        parts.append(f'<polyline points="{axes.points(place, lines[1][order])}" {dashed}/>')
    parts.append(
        f'<polyline points="{axes.points(place, middle)}" fill="none" stroke="{_BLUE}" stroke-width="2"/>'
    )
    parts += [f'<circle cx="{cx}" cy="{cy}" r="2.5" fill="{_RED}"/>' for cx, cy in axes.places(*seen)]
    return axes.picture(parts, title)


def reliability(bins: Reliability, *, title: str = "") -> str:
    """Draw a reliability diagram: the accuracy of each bin, and how far its mean confidence is from that.

    On the dashed line both are the same. Returns the text of an SVG.

    >>> import sheave
    >>> bins = sheave.bayes.reliability([[0.75, 0.25], [0.25, 0.75]], [0, 0])
    >>> sheave.bayes.plots.reliability(bins).count("<rect")
    3
    """
    axes = _Axes((0.0, 1.0), (0.0, 1.0))
    count, parts = len(bins.counts), []
    for place in np.flatnonzero(bins.counts):
        left, right = place / count, (place + 1) / count
        accuracy, confidence = float(bins.accuracy[place]), float(bins.confidence[place])
        parts.append(axes.box(left, right, 0.0, accuracy, f'fill="{_BLUE}" fill-opacity="0.55"'))
        low, high = min(accuracy, confidence), max(accuracy, confidence)
        parts.append(axes.box(left, right, low, high, f'fill="{_RED}" fill-opacity="0.3"'))
    diagonal = axes.points(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    parts.append(f'<polyline points="{diagonal}" fill="none" stroke="{_INK}" stroke-dasharray="5 4"/>')
    return axes.picture(parts, title or f"expected calibration error {bins.error:.3f}")


def _flat(name: str, values: Any) -> NDArray[np.float64]:
    flat = np.ravel(to_numpy(values)).astype(np.float64)
    if not np.isfinite(flat).all():
        raise InvalidArgument(f"{name} has numbers that are not finite; expected finite ones")
    if name == "x" and not len(flat):
        raise InvalidArgument("x has no elements; expected one at least")
    return flat


def _span(arrays: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    whole = np.concatenate(arrays)
    return float(whole.min()), float(whole.max())


class _Axes:
    """Where numbers lie on the picture."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self._x, self._y = _apart(*x), _apart(*y)

    def places(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> list[tuple[str, str]]:
        """The columns and rows of points, in pixels."""
        (left, right), (low, high) = self._x, self._y
        columns = _MARGIN + (x - left) / (right - left) * (_WIDTH - 2 * _MARGIN)
        rows = _HEIGHT - _MARGIN - (y - low) / (high - low) * (_HEIGHT - 2 * _MARGIN)
        return [(f"{column:.1f}", f"{row:.1f}") for column, row in zip(columns, rows, strict=True)]

    def points(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
        """The points of a line."""
        return " ".join(f"{column},{row}" for column, row in self.places(x, y))

    def box(self, left: float, right: float, low: float, high: float, style: str) -> str:
        """A rectangle."""
        (x0, y0), (x1, y1) = self.places(np.array([left, right]), np.array([high, low]))
        size = f'width="{float(x1) - float(x0):.1f}" height="{float(y1) - float(y0):.1f}"'
        return f'<rect x="{x0}" y="{y0}" {size} {style}/>'

    def picture(self, parts: list[str], title: str) -> str:
        """The whole picture, with axes about its parts."""
        right, bottom = _WIDTH - _MARGIN, _HEIGHT - _MARGIN
        frame = f'<path d="M{_MARGIN} {_MARGIN}V{bottom}H{right}" fill="none" stroke="{_INK}"/>'
        words = [f'<text x="{_MARGIN}" y="{_MARGIN - 14}" font-size="13">{escape(title)}</text>']
        for value in _ticks(*self._x):
            ((column, _),) = self.places(np.array([value]), np.array([self._y[0]]))
            words.append(f'<text x="{column}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>')
        for value in _ticks(*self._y):
            ((_, row),) = self.places(np.array([self._x[0]]), np.array([value]))
            words.append(f'<text x="{_MARGIN - 6}" y="{row}" text-anchor="end">{value:g}</text>')
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            'font-family="sans-serif" font-size="11">'
        )
        ground = f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>'
        return "\n".join([head, ground, *parts, frame, *words, "</svg>"]) + "\n"


def _apart(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _ticks(low: float, high: float) -> list[float]:
    """Some round numbers in a range."""
    step = 10.0 ** math.floor(math.log10((high - low) / 2))
    while (high - low) / step > 6:
        step *= 2
    first = math.ceil(low / step - 1e-9)
    return [round(place * step, 12) for place in range(first, math.floor(high / step + 1e-9) + 1)]
