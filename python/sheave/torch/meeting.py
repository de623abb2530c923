"""How the ranks of a process group of torch become the members of a mesh.

They meet through the store of torch's that made the group, whatever it is, so under torchrun, `mp.spawn`, Ray Train and
elastic restarts alike. Every rank says there which host it is on; rank 0 decides how all of them listen, and says so
together with where it listens itself, or why it does not. One mesh serves the process: every later group is a group of
that mesh, which asks nobody.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from datetime import timedelta
from typing import Any

import sheave
from sheave import meet
from sheave.torch.errors import InvalidArgument, Mismatch, PeerLost

__all__ = ["Joined", "join"]

JOIN_TIMEOUT_S = 300.0
"""How long a join may take at most. All ranks are there already when it begins."""

REFUSAL_TIMEOUT_S = 20.0
"""How long rank 0 waits at most until all ranks know why they do not meet. They need no longer than to read it."""

WITHDRAWAL_TIMEOUT_S = 1.0
"""How long the others wait at most until what rank 0 has said is out of the store again, which takes a question."""

_ANYWHERE = ("192.0.2.1", 9)
"""An address that no host has: the way there begins at the address that this host shows to others."""

_DECISION = "sheave/decision"
"""The key of what rank 0 says: a name and a way, a line each, and what belongs to that way."""

_DEFAULT, _ONE_HOST, _SEVERAL_HOSTS = b"default", b"one host", b"several hosts"
_REFUSED, _FAILED = b"refused", b"failed"
"""The ways: the default mesh of these ranks, by its identity; a mesh of one host or of several, by the record of its
meeting; or none, for a reason that the caller or the machine is to blame for."""


class Joined:
    """A mesh, the ranks of torch's world that are in it, and how many groups use it."""

    def __init__(self, mesh: sheave.Mesh, ranks: list[int], name: str, is_borrowed: bool) -> None:
        self.mesh, self.ranks, self.name = mesh, ranks, name
        self.is_new = True
        self._is_borrowed = is_borrowed
        self._users = 0
        self._lock = threading.Lock()

    def group(self, ranks: list[int], label: str) -> sheave.Group:
        """Return the group of some ranks of torch's world, for threads whose order the program sees to."""
        places = [self.ranks.index(rank) for rank in ranks]
        made = self.mesh.group(places, f"torch:{self.name}:{label}").ordered_by_caller()
        with self._lock:
            self._users += 1
        return made

    def release(self) -> None:
        """Give up one group. With the last one this process leaves the mesh, unless that was there before."""
        with self._lock:
            self._users -= 1
            is_last = self._users == 0
        if is_last and not self._is_borrowed:
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


def _host_key(rank: int) -> str:
    """Return the key of what a rank says of its host."""
    return f"sheave/host/{rank}"


def _host_keys(size: int) -> list[str]:
    """Return those of all ranks but rank 0, which asks for them."""
    return [_host_key(rank) for rank in range(1, size)]


def _knows_key(rank: int) -> str:
    """Return the key of what a rank says that knows why there is no mesh."""
    return f"sheave/knows/{rank}"


def forget(store: Any, size: int) -> None:
    """Take out of the store what was said there, once all ranks have met.

    Ranks that torchrun restarts meet in the same store, and one that is quicker than rank 0 would believe what that
    said before.
    """
    _take_back(store, _DECISION, *_host_keys(size))


def _meet(store: Any, rank: int, ranks: list[int], timeout: timedelta) -> Joined:
    return _lead(store, ranks, timeout) if rank == 0 else _follow(store, rank, ranks, timeout)


def _lead(store: Any, ranks: list[int], timeout: timedelta) -> Joined:
    """Decide for all ranks as the one that they meet at, and join."""
    name, has_told = os.urandom(8).hex(), False

    def tell(way: bytes, what: bytes) -> bytes:
        nonlocal has_told
        has_told = True
        store.set(_DECISION, b"\n".join((name.encode(), way, what)))
        return what

    try:
        known = _default_mesh(0, len(ranks))
        if known is not None:
            tell(_DEFAULT, _identity(known).encode())
            return Joined(known, ranks, name, is_borrowed=True)
        way = _way(store, len(ranks))
        told = meet.bcast(lambda record, root: tell(way, record))
        return Joined(_mesh(store, 0, len(ranks), way, told, timeout), ranks, name, is_borrowed=False)
    except BaseException as error:
        # The others would wait for as long as the store does.
        if not has_told:
            is_refused = isinstance(error, sheave.InvalidArgument)
            # A store that has failed takes nothing any more, and its failure is raised already.
            with contextlib.suppress(Exception):
                tell(_REFUSED if is_refused else _FAILED, str(error).encode() or type(error).__name__.encode())
            if isinstance(error, Exception) and _do_followers_know(store, len(ranks)):
                _take_back(store, _DECISION)
        raise


def _follow(store: Any, rank: int, ranks: list[int], timeout: timedelta) -> Joined:
    """Do what rank 0 has decided."""
    try:
        return _joined(store, rank, ranks, timeout)
    except Exception:
        # Another attempt in this store is to hear nothing of this one.
        _take_back(store, _host_key(rank))
        raise


def _joined(store: Any, rank: int, ranks: list[int], timeout: timedelta) -> Joined:
    store.set(_host_key(rank), f"{_host()}\n{_trusts_network()}")
    name, way, what = bytes(store.get(_DECISION)).split(b"\n", 2)
    if way in (_REFUSED, _FAILED):
        _await_withdrawal(store, rank)
    if way == _REFUSED:
        raise InvalidArgument(f"rank 0 has refused to make the group: {what.decode()}")
    if way == _FAILED:
        raise PeerLost(f"rank 0 has failed to make the group: {what.decode()}")
    known = _default_mesh(rank, len(ranks))
    if way != _DEFAULT:
        told = meet.bcast(lambda record, root: what)
        mesh = _mesh(store, rank, len(ranks), way, told, timeout)
        return Joined(mesh, ranks, name.decode(), is_borrowed=False)
    if known is None or _identity(known).encode() != what:
        raise Mismatch(
            f"rank 0 has a default mesh of these ranks, {what.decode()}, and rank {rank} "
            f"has {_identity(known) or 'none'}; "
            "hint: call sheave.init() on all ranks before init_process_group, or on none"
        )
    return Joined(known, ranks, name.decode(), is_borrowed=True)


def _mesh(store: Any, rank: int, size: int, way: bytes, told: meet.Store, timeout: timedelta) -> sheave.Mesh:
    settings: dict[str, Any] = {"bind": "127.0.0.1:0", "insecure": False}
    if way == _SEVERAL_HOSTS:
        settings = {"insecure": True, **_listening(store)}
    patience_s = min(timeout.total_seconds(), JOIN_TIMEOUT_S) if timeout > timedelta(0) else JOIN_TIMEOUT_S
    return sheave.Mesh(rank=rank, size=size, meet=told, join_timeout=patience_s, **settings)


def _way(store: Any, size: int) -> bytes:
    """Return whether the ranks are on one host or on several, once all have said it. Rank 0 is this one.

    Raise InvalidArgument where they are on several, and not all of them permit what that means.
    """
    keys = _host_keys(size)
    # As one question, in a store that can answer it.
    found = store.multi_get(keys) if keys and store.has_extended_api() else map(store.get, keys)
    said = [(_host(), str(_trusts_network())), *(bytes(text).decode().split("\n") for text in found)]
    if len({host for host, _ in said}) == 1:
        return _ONE_HOST
    lacking = [rank for rank, (_, trusts) in enumerate(said) if trusts != "True"]
    if lacking:
        whose = "" if len(lacking) == size else f", which rank {lacking[0]} does not permit"
        raise InvalidArgument(
            f"the ranks of this job are on several hosts, and what travels between them is not encrypted{whose}; "
            "hint: set SHEAVE_INSECURE=1 on all ranks of a network that you trust"
        )
    return _SEVERAL_HOSTS


def _trusts_network() -> bool:
    """Return whether the user permits to send over a network what everybody there can read."""
    return os.environ.get("SHEAVE_INSECURE", "").strip().lower() in ("1", "true", "yes", "on")


def _do_followers_know(store: Any, size: int) -> bool:
    """Wait until the others know why there is no mesh: the store is often in this process, which may end now."""
    keys = [_knows_key(rank) for rank in range(1, size)]
    # Whatever fails here, there is an error to raise already.
    with contextlib.suppress(Exception):
        store.wait(keys, timedelta(seconds=REFUSAL_TIMEOUT_S))
        _take_back(store, *keys)
        return True
    return False


def _await_withdrawal(store: Any, rank: int) -> None:
    """Say that this rank knows why there is no mesh, and wait a moment until no other attempt can find that."""
    _take_back(store, _host_key(rank))
    with contextlib.suppress(Exception):
        store.set(_knows_key(rank), b"")
        end = time.monotonic() + WITHDRAWAL_TIMEOUT_S
        while store.check([_DECISION]) and time.monotonic() < end:
            time.sleep(0.005)


def _take_back(store: Any, *keys: str) -> None:
    """Take out of the store what was said there, as far as it can do that."""
    with contextlib.suppress(Exception):
        for key in keys:
            store.delete_key(key)


def _listening(store: Any) -> dict[str, str]:
    """Return where a mesh of several hosts listens on this one, and the host that the others are told."""
    bind = os.environ.get("SHEAVE_BIND", "").strip()
    if not bind:
        host = _address(store)
        return {"bind": f"[{host}]:0" if ":" in host else f"{host}:0"}
    if _is_any(bind) and not os.environ.get("SHEAVE_HOST"):
        # Of all addresses of this host the others can reach that towards the store.
        return {"bind": bind, "host": _address(store)}
    return {"bind": bind}


def _is_any(bind: str) -> bool:
    """Return whether an address to listen on, alone or with a port, stands for all that this host has."""
    # Its import takes a tenth of a start of a group, which seldom needs it.
    import ipaddress

    bracketed = bind.startswith("[")
    host = bind[1:].partition("]")[0] if bracketed else bind.partition(":")[0] if bind.count(":") == 1 else bind
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


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
            return own
    raise InvalidArgument("this host has no address that others could reach; hint: set SHEAVE_BIND to one")
