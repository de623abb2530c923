from collections.abc import Sequence
from typing import final

__all__ = ["Placement", "place_models"]

@final
class Placement:
    """Which device each model is on, and how good that is. Printed it is a table, in a notebook a picture."""

    @property
    def device_of(self) -> list[int]: ...
    @property
    def by_name(self) -> dict[str, str]: ...
    @property
    def objective(self) -> float: ...
    @property
    def lower_bound(self) -> float: ...
    @property
    def gap(self) -> float: ...
    @property
    def exact(self) -> bool: ...
    def svg(self) -> str: ...
    def _repr_svg_(self) -> str: ...

def place_models(
    model_bytes: Sequence[int],
    model_complexity: Sequence[float],
    connections: Sequence[float],
    device_bytes: Sequence[int],
    device_complexity: Sequence[float],
    distances: Sequence[float],
    weights: tuple[float, float],
    names: tuple[Sequence[str], Sequence[str]],
    effort: int | None,
    seed: int,
) -> Placement: ...
