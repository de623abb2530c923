"""machin's logger: Python's own of the name ``machin``, without colours or handlers until the program gives it some."""

import logging

__all__ = ["default_logger"]

default_logger = logging.getLogger("machin")
