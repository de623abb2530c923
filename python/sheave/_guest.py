"""What the processes of a `sheave.Fleet` run: `python -m sheave._guest SERVICE`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import sheave
from sheave import fleet


class _Runner:
    """Runs functions of the host's."""

    def run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function."""
        return fn(*args, **kwargs)


def main(service: str) -> None:
    """Run the program of the fleet whose host serves it under this name, and serve the host until it is gone."""
    with sheave.Guest() as guest:
        fleet._current = guest
        sys.path[:] = guest.call(f"{service}.path")
        call = guest.call(f"{service}.call")
        guest.serve("fleet", _Runner())
        if call is not None:
            fn, args, kwargs = call
            fn(*args, **kwargs)
        guest.ready()
        try:
            guest.until_gone()
        except sheave.PeerLost:
            # The host is there to say why.
            sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
