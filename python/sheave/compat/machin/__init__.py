"""machin's ``machin.parallel`` over sheave.

``import sheave.compat.machin.parallel.distributed`` in a program of one's own, or ``python -m sheave.compat machin
script.py`` for one that says ``from machin.parallel.distributed import World`` (see `sheave.compat`). What differs from
machin is listed in each package's documentation. There are no frameworks, models or environments.
"""

from sheave.compat.machin import parallel, utils

__all__ = ["parallel", "utils"]
