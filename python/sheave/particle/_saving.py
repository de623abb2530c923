"""Particles in a folder: one file for each, and a list that says which files belong together.

The files of a save have names that no other save has, and the list replaces that of the save before it in one step when
they are there: so a folder has the particles of one save, whole, at any time. Files that no list names are removed by
the next save.
"""

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheave._core import InvalidArgument, NotFound
from sheave.particle._files import load_state, save_state

if TYPE_CHECKING:
    from sheave.particle._particle import Particle

__all__ = ["files_of", "load_particle", "replace_files", "save_particle"]

LIST = "particles.json"
SUFFIX = ".particle.safetensors"


def save_particle(path: Path, particle: "Particle", model: Any) -> None:
    """Write a particle: its model, its state, and its generator."""
    generator = particle.generator.bit_generator.state
    whole = {
        "model": None if model is None else model.state(),
        "state": particle.state,
        # Numbers of 128 bits.
        "generator": json.dumps(generator),
        "seed": str(particle.seed),
    }
    save_state(path, whole)


def load_particle(path: Path, particle: "Particle", model: Any) -> None:
    """Give a particle what a file has."""
    whole = load_state(path)
    if (whole["model"] is None) != (model is None):
        has, is_given = ("no model", "one") if whole["model"] is None else ("a model", "none")
        raise InvalidArgument(f"{path}: has {has} of particle {particle.id.number}, which has {is_given}")
    if model is not None:
        model.load(whole["model"])
    particle.state = whole["state"]
    particle.seed = int(whole["seed"])
    particle.generator.bit_generator.state = json.loads(whole["generator"])


def replace_files(folder: str | os.PathLike[str], numbers: list[int], write: Callable[[int, Path], None]) -> None:
    """Write a file for each number, all of them in place of those that are there."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    token = uuid.uuid4().hex[:12]
    names = {number: f"{number}.{token}{SUFFIX}" for number in numbers}
    try:
        for number, name in names.items():
            write(number, place / name)
        listed = place / f"{LIST}.{token}"
        with open(listed, "w", encoding="utf-8") as file:
            json.dump({str(number): name for number, name in names.items()}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(listed, place / LIST)
    except BaseException:
        _remove(place, lambda name: token in name)
        raise
    kept = set(names.values())
    _remove(place, lambda name: name.endswith(SUFFIX) and name not in kept)


def files_of(folder: str | os.PathLike[str], numbers: list[int]) -> dict[int, Path]:
    """The files of the particles of these numbers, which are all that there are."""
    place = Path(folder)
    try:
        names = json.loads((place / LIST).read_text(encoding="utf-8"))
        files = {int(number): place / name for number, name in names.items()}
    except FileNotFoundError:
        raise NotFound(f"{place}: no particles were saved there; expected {LIST}") from None
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidArgument(f"{place / LIST}: no list of particles; {error}") from None
    if sorted(files) != sorted(numbers):
        raise InvalidArgument(
            f"{place}: has particles {sorted(files)}, and there are {sorted(numbers)}; expected the same ones"
        )
    return files


def _remove(place: Path, is_meant: Callable[[str], bool]) -> None:
    for path in place.iterdir():
        if is_meant(path.name):
            path.unlink(missing_ok=True)
