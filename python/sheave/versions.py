"""Keys whose values have versions, at one process, for the members of a group.

A `Versions` is the table in the process that serves it. It is registered in an `RpcGroup`, and found there by
`RpcGroup.versions` as a `VersionsClient`, which pushes and pulls, waits for what is newer, and keeps versions while
they are read. A push names the version that it was made from, and is accepted if that is the newest: so of several
processes that change a value one gets through, and the others learn what is newest. The processes of a `sheave.Fleet`
use a table of their host's that was made with `has_guests`: there `Guest.versions` is the client.

>>> with sheave.init() as mesh:
...     group = mesh.rpc_group("training")
...     sheave.versions.Versions(mesh, depth=2).register(group, "models")
...     models = group.versions("models")
...     models.push("policy", {"weights": np.zeros(2), "steps": 0}, version=0)
...     models.push("policy", {"weights": np.ones(2), "steps": 9}, version=1, previous=0)
...     models.pull("policy").value["steps"], models.versions("policy")
Pushed(outcome='accepted', newest=0, dropped=[])
Pushed(outcome='accepted', newest=1, dropped=[])
(9, [0, 1])
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sheave._core import Pin, Versions, VersionsClient

__all__ = ["Pin", "Pulled", "Pushed", "Versions", "VersionsClient"]


@dataclass(frozen=True)
class Pushed:
    """What became of a push. It is true if the push was accepted.

    The `outcome` is "accepted"; "overwritten", where the rules are machin's and the version was there; "stale" if it
    was made from another version than the newest; "already_exists" if the version is there; "pinned" if it would be
    overwritten and somebody has pinned it. `newest` is the newest version of the key from then on, and `dropped` has
    the key and the version of each that was dropped to make room.

    >>> bool(sheave.versions.Pushed("accepted", 2)), bool(sheave.versions.Pushed("stale", 5))
    (True, False)
    """

    outcome: str
    newest: Any
    dropped: list[tuple[Any, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.outcome in ("accepted", "overwritten")


@dataclass(frozen=True)
class Pulled:
    """A version, and what of it has moved.

    `kind` is "whole", and then `value` is all of it; "unchanged", if it is the one that the caller has; or "changes",
    and then `value` has the entries of a dictionary that differ from the version that the caller has, and `removed` the
    names of those that are not there any more.

    >>> pulled = sheave.versions.Pulled(2, "changes", {"steps": 3}, ["rate"])
    >>> pulled.applied_to({"weights": 0.5, "rate": 0.1, "steps": 2})
    {'weights': 0.5, 'steps': 3}
    """

    version: Any
    kind: str
    value: Any = None
    removed: list[str] = field(default_factory=list)

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing has moved, because the caller has the newest version."""
        return self.kind == "unchanged"

    def applied_to(self, before: Any) -> Any:
        """Return the value of this version, of which `before` is what the caller has: a new dictionary, where changes
        have moved."""
        if self.kind == "unchanged":
            return before
        if self.kind == "whole":
            return self.value
        if not isinstance(before, Mapping):
            raise TypeError(f"changes of a {type(before).__name__}; expected the dictionary that was pulled before")
        removed = set(self.removed)
        return {name: entry for name, entry in before.items() if name not in removed} | self.value
