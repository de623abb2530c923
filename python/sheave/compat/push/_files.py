"""Particles in files.

``device0_particle3.pth`` is the `state_dict` of the module, as PusH's is, and ``device0_particle3.training.pth`` what
is needed to go on: those of optimizer and scheduler, and the particle's state. Each is written beside its place and
moved there when it is whole, so a file is one or the other whatever happens meanwhile.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from sheave import NotFound, pickling
from sheave.compat.push._model import ModuleModel

__all__ = ["DIRECTORY", "load", "save"]

#: Where particles are written to if nobody says so.
DIRECTORY = "./particles"


def save(model: ModuleModel, directory: str | os.PathLike[str], device: Any, pid: int, state: Any = None) -> Path:
    """Write a particle, in the order of its device. Makes the directory. Returns the file of the module."""
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    whole = model.state()
    module = {name: value.detach().to("cpu", copy=True) for name, value in model.module.state_dict().items()}
    # These are the module's.
    del whole["parameters"], whole["buffers"]
    path = place / f"device{device}_particle{pid}.pth"
    _written(path, lambda file: torch.save(module, file))
    rest = pickling.dumps({"training": whole, "state": state})
    _written(_beside(path), lambda file: file.write(rest))
    return path


def load(model: ModuleModel, directory: str | os.PathLike[str], device: Any, pid: int) -> Any:
    """Read what `save` has written into a model, in the order of its device. Returns the state of the particle.

    Without the second file it is the module alone that is read. Raises NotFound if there is none of this particle.
    """
    path = Path(directory) / f"device{device}_particle{pid}.pth"
    if not path.is_file():
        raise NotFound(f"no file {path} of particle {pid}; hint: save with the same devices before")
    module: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    if not _beside(path).is_file():
        model.load_module(module)
        return None
    rest = pickling.loads(_beside(path).read_bytes())
    tensors = {"parameters": model.module.named_parameters(), "buffers": model.module.named_buffers()}
    # What is not of the module's state stays as it is.
    parts = {kind: {name: module.get(name, own) for name, own in of} for kind, of in tensors.items()}
    model.load({**rest["training"], **parts})
    return rest["state"]


def _beside(path: Path) -> Path:
    return path.with_suffix(".training.pth")


def _written(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
