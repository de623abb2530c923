"""Models by name whose versions count up, at one member of a group."""

from collections.abc import Callable, Mapping
from typing import Any

from sheave._core import InvalidArgument, Mesh, Mismatch, RpcGroup
from sheave.versions import Pulled, Versions

__all__ = ["ModelClient", "ModelServer"]


def _number(version: Any, model: str) -> int:
    if version is None:
        return 0
    if type(version) is int and version > 0:
        return version
    what = f"version {version!r} of the model {model!r}; expected a number from 1 on"
    raise Mismatch(f"{what}; hint: let models be pushed by clients of models alone")


class ModelServer:
    """The models of a group at this member. Clients find it under its name.

    Each model is a dictionary: of arrays by the names of parameters, a state dictionary of torch, or whatever else has
    texts as keys. A push from a version is accepted if that is the newest; so of several who change a model one gets
    through, and the others learn what is newest. `depth` versions of a model are kept, and `bytes_max` bytes in all.

    >>> with sheave.init() as mesh:
    ...     group = mesh.rpc_group("models")
    ...     server = sheave.learner.ModelServer(mesh, group, "models")
    ...     policy = sheave.learner.ModelClient(group, "models", "policy")
    ...     policy.push({"w": np.ones(2)}), policy.version, server.newest("policy")
    (True, 1, 1)
    """

    def __init__(
        self, mesh: Mesh, group: RpcGroup, name: str, *, depth: int = 1, bytes_max: int | None = None,
        timeout: float | None = None,
    ) -> None:
        self._group = group
        self._name = name
        self._versions = Versions(mesh, depth=depth, bytes_max=bytes_max)
        self._versions.register(group, name, timeout=timeout)
        self._table = self._versions.client()

    def newest(self, model: str) -> int:
        """Return the newest version of a model; 0 if nobody has pushed it.

        >>> with sheave.init() as mesh:
        ...     sheave.learner.ModelServer(mesh, mesh.rpc_group("models"), "models").newest("policy")
        0
        """
        kept = self._table.versions(model)
        return _number(kept[-1] if kept else None, model)

    def publisher(self, model: str) -> Callable[[Mapping[str, Any], int], None]:
        """Return what publishes the parameters of a `GradientServer` as versions of a model, for its `publish`. It
        raises `Mismatch`, which stops that server, if somebody else has pushed the model meanwhile. Start the server
        from the version that is newest.

        >>> with sheave.init() as mesh:
        ...     server = sheave.learner.ModelServer(mesh, mesh.rpc_group("models"), "models")
        ...     server.publisher("policy")({"w": np.ones(2)}, 1)
        ...     server.newest("policy")
        1
        """

        def publish(parameters: Mapping[str, Any], version: int) -> None:
            previous = version - 1 if self.newest(model) > 0 else None
            pushed = self._table.push(model, dict(parameters), version, previous)
            if not pushed:
                newest = _number(pushed.newest, model)
                what = f"publish: version {version} of the model {model!r}, which has version {newest}"
                raise Mismatch(f"{what}; hint: start from the newest version, and let nobody else push the model")

        return publish

    def report(self) -> dict[str, int]:
        """Return what the server has and has done, as `Versions.report`.

        >>> with sheave.init() as mesh:
        ...     sheave.learner.ModelServer(mesh, mesh.rpc_group("models"), "models").report()["keys"]
        0
        """
        return self._versions.report()

    def stop(self, *, timeout: float | None = None) -> None:
        """Stop the server: calls of its clients raise `NotFound` from then on.

        >>> with sheave.init() as mesh:
        ...     sheave.learner.ModelServer(mesh, mesh.rpc_group("models"), "models").stop()
        """
        self._group.deregister(self._name, timeout=timeout)


class ModelClient:
    """The access to one model of a `ModelServer`. Its `version` is the one that its user has: the last that it pulled,
    or that was accepted from it; 0 for none.

    All methods block, and raise `PeerLost` when the server is gone and `DeadlineExceeded` after the timeout, which is
    that of the client unless they are given one. A push that ends so may have been accepted: pull before the next.

    >>> with sheave.init() as mesh:
    ...     group = mesh.rpc_group("models")
    ...     server = sheave.learner.ModelServer(mesh, group, "models")
    ...     one, other = (sheave.learner.ModelClient(group, "models", "policy") for _ in range(2))
    ...     one.push({"w": np.ones(2)}), other.push({"w": np.zeros(2)}), other.pull(), other.pull()
    (True, False, {'w': array([1., 1.])}, None)
    """

    def __init__(self, group: RpcGroup, server: str, model: str, *, timeout: float | None = None) -> None:
        self.model = model
        self.version = 0
        self._timeout = timeout
        self._table = group.versions(server, timeout=timeout)

    def __repr__(self) -> str:
        return f"ModelClient(model={self.model!r}, version={self.version})"

    def _limit(self, timeout: float | None) -> float | None:
        return self._timeout if timeout is None else timeout

    def push(self, parameters: Mapping[str, Any], *, timeout: float | None = None) -> bool:
        """Push parameters that were made from the version that this client has, and return whether they are the next
        version. If not, somebody else was faster: pull what is newest and decide what to make of it.

        >>> with sheave.init() as mesh:
        ...     group = mesh.rpc_group("models")
        ...     server = sheave.learner.ModelServer(mesh, group, "models")
        ...     sheave.learner.ModelClient(group, "models", "policy").push({"w": np.ones(2)})
        True
        """
        known, timeout = self.version, self._limit(timeout)
        pushed = self._table.push(self.model, dict(parameters), known + 1, known or None, timeout=timeout)
        return self._accepted(bool(pushed), known + 1)

    def push_changes(self, changed: Mapping[str, Any], *, timeout: float | None = None) -> bool:
        """Push those parameters that differ from the version that this client has, as `push`.

        >>> with sheave.init() as mesh:
        ...     group = mesh.rpc_group("models")
        ...     server = sheave.learner.ModelServer(mesh, group, "models")
        ...     policy = sheave.learner.ModelClient(group, "models", "policy")
        ...     policy.push({"w": np.ones(2), "steps": 0}), policy.push_changes({"steps": 5}), policy.version
        (True, True, 2)
        """
        known, timeout = self.version, self._limit(timeout)
        if known == 0:
            what = f"push changes: the model {self.model!r} has not been pulled or pushed by this client"
            raise InvalidArgument(f"{what}; hint: push or pull all of it first")
        pushed = self._table.push_changes(self.model, dict(changed), known + 1, known, timeout=timeout)
        return self._accepted(bool(pushed), known + 1)

    def _accepted(self, is_accepted: bool, version: int) -> bool:
        if is_accepted:
            self.version = version
        return is_accepted

    def pull(self, *, share: bool = False, timeout: float | None = None) -> dict[str, Any] | None:
        """Return the parameters of the newest version that may differ from those of the version that this client has;
        `None` if that is the newest, or if nobody has pushed the model. All of them come, unless the server keeps more
        than one version. With `share`, arrays are the memory of the server where that can be reached, and must not be
        written.

        >>> with sheave.init() as mesh:
        ...     group = mesh.rpc_group("models")
        ...     server = sheave.learner.ModelServer(mesh, group, "models")
        ...     sheave.learner.ModelClient(group, "models", "policy").pull()
        """
        timeout = self._limit(timeout)
        pulled = self._table.pull(self.model, newer_than=self.version or None, share=share, timeout=timeout)
        return None if pulled is None else self._taken(pulled)

    def watch(self, *, share: bool = False, timeout: float | None = None) -> dict[str, Any]:
        """Wait for a version that this client does not have, and return what `pull` does.

        >>> with sheave.init() as mesh:
        ...     group = mesh.rpc_group("models")
        ...     server = sheave.learner.ModelServer(mesh, group, "models")
        ...     server.publisher("policy")({"w": np.ones(2)}, 1)
        ...     sheave.learner.ModelClient(group, "models", "policy").watch()
        {'w': array([1., 1.])}
        """
        timeout = self._limit(timeout)
        pulled = self._table.watch(self.model, self.version or None, share=share, timeout=timeout)
        return self._taken(pulled) or {}

    def _taken(self, pulled: Pulled) -> dict[str, Any] | None:
        version = _number(pulled.version, self.model)
        if pulled.is_unchanged:
            return None
        if not isinstance(pulled.value, dict) or pulled.removed:
            what = f"pull: version {version} of the model {self.model!r} is a {type(pulled.value).__name__}"
            if pulled.removed:
                what = f"pull: version {version} of the model {self.model!r} has no {pulled.removed[0]!r} any more"
            raise Mismatch(f"{what}; expected a dictionary of all parameters")
        self.version = version
        return pulled.value
