"""Servers of models; those of gradients are in `grad_server`, and are found here too."""

from typing import Any

from sheave.compat.machin.parallel.distributed.rpc_group import RpcGroup
from sheave.compat.machin.parallel.server.grad_server import PushPullGradServer, PushPullGradServerImpl, ReduceType
from sheave.compat.machin.parallel.server.ordered_server import (
    OrderedServerBase,
    OrderedServerSimple,
    OrderedServerSimpleImpl,
)

__all__ = ["PushPullGradServer", "PushPullGradServerImpl", "PushPullModelServer", "PushPullModelServerImpl"]
__all__ += ["ReduceType"]


class PushPullModelServer:
    """The accessor of a model server, which may be pickled.

    A model is whatever has `state_dict` and `load_state_dict`, as torch's modules do. Its attribute `pp_version` is the
    version that it has.
    """

    def __init__(self, model_name: str, o_server: OrderedServerBase | None = None) -> None:
        self.model_name = model_name
        self.o_server = o_server

    def push(self, model: Any, pull_on_fail: bool = True) -> bool:
        """Pushes the parameters of a model as the version behind its own, and returns whether they were accepted: if
        not, somebody else was faster, and the model gets what is newest, unless `pull_on_fail` is false."""
        server = self._server()
        if not hasattr(model, "pp_version"):
            model.pp_version = 0
        known = model.pp_version
        if server.push(self.model_name, _state(model), known + 1, known):
            model.pp_version = known + 1
            return True
        if pull_on_fail:
            newest = server.pull(self.model_name)
            if newest is None:
                raise RuntimeError("Pull failed.")
            _load(model, *newest)
        return False

    def pull(self, model: Any) -> bool:
        """Gives a model the newest parameters, if it has not got them. Returns whether there are any. Gradients stay as
        they are."""
        server, known = self._server(), getattr(model, "pp_version", None)
        if isinstance(server, OrderedServerSimple):
            pulled = server._pull_newer(self.model_name, known)
            if pulled is None:
                return False
            state, version, is_known = pulled.value, pulled.version, pulled.is_unchanged
        else:
            newest = server.pull(self.model_name)
            if newest is None:
                return False
            (state, version), is_known = newest, False
        if not is_known and (known is None or known < version):
            _load(model, state, version)
        return True

    def _server(self) -> OrderedServerBase:
        if self.o_server is None:
            what = f"the model server of {self.model_name!r} has no ordered server"
            raise RuntimeError(f"{what}; give it one as o_server")
        return self.o_server


class PushPullModelServerImpl:
    """A server of one model. Its accessor is paired under its name; without an ordered server it starts one of its own,
    `<server_name>_o_server`."""

    def __init__(
        self,
        server_name: str,
        group: RpcGroup,
        model_name: str = "model",
        o_server: OrderedServerBase | None = None,
    ) -> None:
        self.server_name = server_name
        self.group = group
        self.model_name = model_name
        self.o_server_impl: OrderedServerSimpleImpl | None = None
        if o_server is None:
            self.o_server_impl = OrderedServerSimpleImpl(server_name + "_o_server", group)
            o_server = OrderedServerSimple(server_name + "_o_server", group)
        self.o_server = o_server
        self.accessor = PushPullModelServer(model_name, o_server)
        self.group.pair(server_name, self.accessor)


def _state(model: Any) -> dict[str, Any]:
    """The parameters of a model, on the host."""

    def on_host(value: Any) -> Any:
        return value.detach().cpu() if hasattr(value, "detach") else value

    return {name: on_host(value) for name, value in model.state_dict().items()}


def _load(model: Any, state: dict[str, Any], version: Any) -> None:
    model.load_state_dict(state)
    model.pp_version = version
