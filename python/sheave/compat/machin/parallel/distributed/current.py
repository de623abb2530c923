"""The one world of this process, and what functions ask of it."""

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sheave.compat.machin.parallel.distributed.world import World

_lock = threading.Lock()
_is_taken = False
_world: "World | None" = None
_has_left_one = False


def take() -> None:
    """Takes the place of the one world, before it has joined."""
    global _is_taken
    with _lock:
        if _is_taken:
            raise RuntimeError("World could only be initialized once!")
        _is_taken = True


def fill(world: "World") -> None:
    """Makes a world that has joined the one that functions mean."""
    global _world
    _world = world


def free() -> None:
    """Gives the place back: the next world may be made."""
    global _has_left_one, _is_taken, _world
    with _lock:
        _has_left_one = _has_left_one or _world is not None
        _is_taken, _world = False, None


def has_left_one() -> bool:
    """Whether this process was in a world before."""
    return _has_left_one


def get_world() -> "World | None":
    """The world of this process, or None before it has joined and after it has stopped."""
    return _world


def is_world_initialized() -> bool:
    """Whether there is a world."""
    return _world is not None


def get_cur_rank() -> int:
    """This process's rank in the world."""
    return _joined().rank


def get_cur_name() -> str:
    """This process's name in the world."""
    return _joined().name


def _joined() -> "World":
    if _world is None:
        raise RuntimeError("Distributed environment not initialized!")
    return _world
