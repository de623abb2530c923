"""Modules: functions of a file, by their names."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any

from sheave.compat.tvm.registry import Function, register_func
from sheave.compat.tvm.runtime.device import Device

__all__ = ["Module", "load_module", "register_module_loader"]


class Module:
    """Functions by their names."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]], kind: str, path: str):
        self._functions, self.kind, self.path = functions, kind, path

    def get_function(self, name: str, query_imports: bool = False) -> Function:
        """Returns the function of this name. Raises AttributeError if there is none."""
        found = self._functions.get(name)
        if found is None:
            known = ", ".join(sorted(self._functions)[:8])
            raise AttributeError(f"Module has no function {name!r}: {self.path}" + (f" has {known}" if known else ""))
        return found if isinstance(found, Function) else Function(found)

    __getitem__ = get_function

    def __repr__(self) -> str:
        return f"<tvm.runtime.Module {self.kind} {self.path}>"


_Loader = Callable[[str, Device], Module]
_LOADERS: dict[str, _Loader] = {}
_LOADED: dict[tuple[str, Device], Module] = {}
_LOADING = threading.Lock()


def register_module_loader(suffix: str, loader: _Loader) -> None:
    """Has files whose names end so loaded by this function, which gets the path and a device and returns a `Module`."""
    _LOADERS[suffix] = loader


def load_module(path: str, device: Device, content: bytes | None = None) -> Module:
    """Returns the module of a file, which is loaded once in each process.

    Where there is no such file it is made of `content`, in a folder of its own that is there while it is loaded.
    """
    path = os.path.abspath(path)
    suffix = os.path.splitext(path)[1]
    if os.path.exists(path):
        return _load_once(path, suffix, device, lambda loader: loader(path, device))
    if content is None:
        raise FileNotFoundError(f"load_vm_module: {path} does not exist where the worker runs, process {os.getpid()}")

    def load(loader: _Loader) -> Module:
        with tempfile.TemporaryDirectory(prefix="sheave-module-") as folder:
            made = os.path.join(folder, os.path.basename(path))
            with open(made, "xb") as file:
                file.write(content)
            return loader(made, device)

    return _load_once(f"{path}, sha256 {hashlib.sha256(content).hexdigest()}", suffix, device, load)


def _load_once(known_by: str, suffix: str, device: Device, load: Callable[[_Loader], Module]) -> Module:
    loader = _LOADERS.get(suffix)
    if loader is None:
        known = ", ".join(sorted(_LOADERS))
        what = f"no loader for {suffix!r} files such as {known_by}; there are some for {known}"
        raise ValueError(f"load_vm_module: {what}")
    with _LOADING:
        loaded = _LOADED.get((known_by, device))
        if loaded is None:
            loaded = _LOADED[known_by, device] = load(loader)
        return loaded


def _load_python(path: str, device: Device) -> Module:
    """The public functions of a file of Python's."""
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"load_vm_module: {path} is no module of Python's", path=path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    public = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
    return Module(public, "python", path)


def _load_shared(path: str, device: Device) -> Module:
    """The functions of a shared object: each is ``int name(DLTensor** tensors, int count)``, which
    returns 0 if all is well.

    Tensors are those of DLPack, and results go to where they are among the arguments.
    """
    from sheave.compat.tvm.runtime.shared import Symbols

    return Module(Symbols(path), "library", path)


register_module_loader(".py", _load_python)
register_module_loader(".so", _load_shared)


def _module_get_function(module: Module, name: str, query_imports: bool = False) -> Function:
    return module.get_function(name, query_imports)


for _name in ("ffi.ModuleGetFunction", "runtime.ModuleGetFunction"):
    register_func(_name, _module_get_function, override=True)
