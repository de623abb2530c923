"""The program `sheave`, as `python -m sheave` and as the command that the package installs."""

import signal
import sys

from sheave import _core


def main() -> None:
    """Run the program with the arguments of this process, and end with its exit code."""
    # Nothing of Python runs meanwhile that could raise KeyboardInterrupt.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_core.main([sys.executable, "-m", "sheave"], sys.argv[1:]))


if __name__ == "__main__":
    main()
