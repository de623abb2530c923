"""machin's utilities, as far as they are here: `logging`, and `Object` of `helper_classes`."""

from sheave.compat.machin.utils import helper_classes, logging

__all__ = ["helper_classes", "logging"]
