"""Objects whose futures can be waited for."""

from typing import Any

__all__ = ["Waitable"]


class Waitable:
    """An object that makes futures, and knows what has become of each."""

    def _wait(self, fid: int) -> Any:
        """Wait for the future of this number. Returns its result, or raises its error."""
        raise NotImplementedError(f"{type(self).__name__} makes no futures")
