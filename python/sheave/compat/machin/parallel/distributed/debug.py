"""Messages that say who has logged them."""

import logging
import sys

from sheave.compat.machin.parallel.distributed.current import get_cur_rank

logger = logging.getLogger("machin")


def debug_with_process(message: str) -> None:
    """Logs a message of the logger `machin` at DEBUG, with this process's rank and the caller's file and line."""
    if logger.isEnabledFor(logging.DEBUG):
        caller = sys._getframe(1)
        place = f"<{caller.f_code.co_filename},L{caller.f_lineno}>"
        logger.debug("Process [%s]: %s %s", get_cur_rank(), place, message)
