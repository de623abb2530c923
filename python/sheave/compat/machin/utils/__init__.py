"""machin's utilities, as far as they are here: `logging`."""

from sheave.compat.machin.utils import logging

__all__ = ["logging"]
