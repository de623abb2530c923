"""How the ranks of a process group of torch become the members of a mesh.

They meet through the store of torch's that made the group, whatever it is, so under torchrun, `mp.spawn`, Ray Train and
elastic restarts alike. Every rank says there which host it is on; rank 0 decides how all of them listen, and says so.
One mesh serves the process: every later group is a group of that mesh, which asks nobody.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import sheave
from sheave.torch.errors import InvalidArgument, Mismatch

__all__ = ["Joined", "join"]

JOIN_TIMEOUT_S = 300.0
"""How long a join may take at most. All ranks are there already when it begins."""

_ANYWHERE = ("192.0.2.1", 9)
"""An address that no host has: the way there begins at the address that this host shows to others."""


@dataclass
class Joined:
    """A mesh, the ranks of torch's world that are in it, and how many groups use it."""

    mesh: sheave.Mesh
    ranks: list[int]
    name: str
    is_borrowed: bool
    is_new: bool = True
    users: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def group(self, ranks: list[int], label: str) -> sheave.Group:
        """Return the group of some ranks of torch's world, for threads whose order the program sees to."""
        places = [self.ranks.index(rank) for rank in ranks]
        made = self.mesh.group(places, f"torch:{self.name}:{label}").ordered_by_caller()
        with self.lock:
            self.users += 1
        return made

    def release(self) -> None:
        """Give up one group. With the last one this process leaves the mesh, unless that was there before."""
        with self.lock:
            self.users -= 1
            is_last = self.users == 0
        if is_last and not self.is_borrowed:
            self.mesh.close()

    def covers(self, ranks: list[int]) -> bool:
        """Return whether all these ranks of the world are in the mesh, and it is not left."""
        return not self.mesh.closed and set(ranks) <= set(self.ranks)


_world: Joined | None = None


def join(store: Any, rank: int, size: int, ranks: list[int], timeout: timedelta) -> Joined:
    """Return the mesh for a group whose members are these ranks of the world; none stand for the world itself.

    A group of a world that is sheave's too is a group of its mesh. Any other group makes a mesh of its own.
    """
    global _world
    if not ranks:
        _world = _meet(store, rank, list(range(size)), timeout)
        return _world
    if _world is not None and _world.covers(ranks):
        return _world
    return _meet(store, rank, ranks, timeout)


def _meet(store: Any, rank: int, ranks: list[int], timeout: timedelta) -> Joined:
    size = len(ranks)
    store.set(f"sheave/host/{rank}", _host())
    known = _default_mesh(rank, size)
    if rank == 0:
        hosts = {bytes(store.get(f"sheave/host/{other}")) for other in range(size)}
        how = "default" if known is not None else "one host" if len(hosts) == 1 else "several hosts"
        store.set("sheave/how", f"{secrets.token_hex(8)}\n{how}\n{_identity(known)}")
    name, how, identity = bytes(store.get("sheave/how")).decode().split("\n")
    if how == "default":
        if known is None or _identity(known) != identity:
            raise Mismatch(
                f"rank 0 has a default mesh of these ranks, {identity}, and rank {rank} "
                f"has {_identity(known) or 'none'}; "
                "hint: call sheave.init() on all ranks before init_process_group, or on none"
            )
        return Joined(known, ranks, name, is_borrowed=True)
    settings: dict[str, Any] = {"bind": "127.0.0.1:0", "insecure": False}
    if how == "several hosts":
        if os.environ.get("SHEAVE_INSECURE", "").strip() not in ("1", "true"):
            raise InvalidArgument(
                "the ranks of this job are on several hosts, and what travels between them is not encrypted; "
                "hint: set SHEAVE_INSECURE=1 on all ranks of a network that you trust"
            )
        settings = {"insecure": True, "bind": os.environ.get("SHEAVE_BIND") or f"{_address(store)}:0"}
    patience_s = min(timeout.total_seconds(), JOIN_TIMEOUT_S) if timeout > timedelta(0) else JOIN_TIMEOUT_S
    mesh = sheave.Mesh(rank=rank, size=size, meet=store, join_timeout=patience_s, **settings)
    return Joined(mesh, ranks, name, is_borrowed=False)


def _default_mesh(rank: int, size: int) -> sheave.Mesh | None:
    """Return the default mesh, if it is one of this many plain ranks in which this process has this rank."""
    try:
        mesh = sheave.default_mesh()
    except sheave.SheaveError:
        return None
    is_same = mesh.role == "rank" and (mesh.rank, mesh.size) == (rank, size) and len(mesh.members) == size
    return mesh if is_same else None


def _identity(mesh: sheave.Mesh | None) -> str:
    """Return what all members of a mesh know it by: its first member."""
    if mesh is None:
        return ""
    first = mesh.members[0]
    return f"that of process {first.pid} on {first.host}"


def _host() -> str:
    """Return what processes share that reach each other over loopback: kernel and network namespace."""
    with open("/proc/sys/kernel/random/boot_id") as boot_id:
        return f"{boot_id.read().strip()} {os.stat('/proc/self/ns/net').st_ino}"


def _address(store: Any) -> str:
    """Return the address of this host on the way to that of the store, or to others if the store has none."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host = getattr(store, "host", None)
    towards = [(host, getattr(store, "port", 1) or 1)] if isinstance(host, str) and host else []
    for target in (*towards, _ANYWHERE):
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(*target, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                own = str(probe.getsockname()[0])
        except OSError:
            continue
        if not own.startswith("127.") and own != "::1":
            return f"[{own}]" if ":" in own else own
    raise InvalidArgument("this host has no address that others could reach; hint: set SHEAVE_BIND to one")
