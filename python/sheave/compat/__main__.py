"""The runner: ``python -m sheave.compat NAME [script.py | -m module] arguments…``.

It becomes another Python (`os.execve`), so process id, arguments, ``sys.path``, ``__main__`` and exit status are those
of a program that was started without it. What differs is one directory on ``PYTHONPATH``, which every child process
inherits: Python imports the module ``sitecustomize`` from there when it starts, and that one resolves the imports. It
wins over an installed package of the same name and over whatever the program puts on ``sys.path``.
"""

import os
import sys
from pathlib import Path

STARTUP = Path(__file__).parent / "startup"


def names() -> list[str]:
    """The packages that there are faces of."""
    return sorted(entry.name for entry in STARTUP.iterdir() if (entry / "sitecustomize.py").is_file())


def interpreter_options(command: list[str], arguments: int) -> list[str]:
    """Python's own options in the command that started this process, such as ``-u`` or ``-W error``.

    `command` is `sys.orig_argv`; its last `arguments` entries are the program's.
    """
    options = command[1 : len(command) - arguments]
    name = "sheave.compat"
    if options and options[-1].endswith(name):
        options[-1] = options[-1].removesuffix(name)
        if not options[-1]:
            options.pop()
        # What is left is "-m", perhaps together with others, as in "-um".
        flags = options.pop().removesuffix("m") if options else "-"
        options += [flags] if flags != "-" else []
    return options


def main(arguments: list[str]) -> str | None:
    """Becomes the program; returns only to say why it cannot."""
    known = ", ".join(names())
    if not arguments or arguments[0] in ("-h", "--help"):
        return f"usage: python -m sheave.compat NAME [script.py | -m module] arguments…\nnames: {known}"
    name, *program = arguments
    if name not in names():
        return f"there is no face of {name!r}; hint: names are {known}"
    if sys.flags.ignore_environment or sys.flags.no_site:
        return "python was started with -I, -E or -S, so no program can be given a face; hint: start it without"
    paths = [str(STARTUP / name), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
    command = [sys.executable, *interpreter_options(sys.orig_argv, len(arguments)), *program]
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
