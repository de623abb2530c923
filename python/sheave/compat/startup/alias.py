"""Resolves the imports of one package to its face. Read by `sitecustomize` before the program's first line, so it
imports nothing but the standard library, and sheave only when the program asks for the package.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType


class Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and loads `name` and `name.…` as `sheave.compat.name` and so on: both names are one module."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == self.name or fullname.startswith(self.name + "."):
            return importlib.util.spec_from_loader(fullname, self)
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The import system takes the module from where it is put here.
        try:
            face = importlib.import_module(f"sheave.compat.{module.__name__}")
        except ModuleNotFoundError as error:
            if error.name != f"sheave.compat.{module.__name__}":
                raise
            hint = f"no module named {module.__name__!r} in sheave's face of {self.name}"
            raise ModuleNotFoundError(hint, name=module.__name__) from None
        sys.modules[module.__name__] = face

    def get_code(self, fullname: str) -> CodeType | None:
        """The code of a module that is run as a program: `python -m`."""
        spec = importlib.util.find_spec(f"sheave.compat.{fullname}")
        get_code = getattr(spec.loader, "get_code", None) if spec is not None else None
        code: CodeType | None = get_code(f"sheave.compat.{fullname}") if get_code is not None else None
        return code


def install(directory: str, *others: str) -> None:
    """Lets the package that the directory is named after be its face, and others theirs, and runs the `sitecustomize`
    that the directory hides, if there is one."""
    for name in (os.path.basename(directory), *others):
        sys.meta_path.insert(0, Alias(name))
    hidden = [entry for entry in sys.path if os.path.abspath(entry) != directory]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", hidden)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
