"""What the face raises: errors of sheave that are RuntimeErrors too, which is what upstream's checks raise."""

import sheave
from sheave import SheaveError

from sheave.compat.runtime_errors import CLASSES, described, invalid, raised

__all__ = ["CLASSES", "invalid", "misuse", "raised"]


def misuse(op: str, what: str, hint: str) -> SheaveError:
    """A function was called when, or where, it means nothing."""
    return described(sheave.Closed, op, what, hint)
