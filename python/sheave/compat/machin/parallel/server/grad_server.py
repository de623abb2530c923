"""Servers that sum the gradients of learners and make steps of them.

What differs from machin, on purpose:

- A gradient is applied at most once, and is reported where it is not applied at all: `report` of the accessor and of
  the server tell what was dropped by a full queue or lost with a process, and each server logs what it drops.
- `flush_after` sends partial batches on after that many seconds; `overflow="push_back"` has pushes wait where a queue
  is full, instead of dropping the oldest.
- A mean is that of all gradients in a step, also where partial batches are unequal.
- The schedule of the learning rate is stepped after each step of the optimizer.
- The managed model stays on its device; sums are made on the host, whatever `reduce_device` says.
- Gradients go to the secondaries in turn, from a random one on, and to others where one has died. A push waits until
  all servers have been started.
- What the ordered server refuses, because somebody else has pushed, is pushed again on top of what is newest there.
- A primary that fails ends its secondaries and every push with its error; `watch` raises it. One that was stopped ends
  them too, which `watch` does not take for a failure.
- Gradients are zeros after a pull, and not None, as they were with the torch that machin was made for.
"""

import enum
import logging
import random
import threading
import time
from collections.abc import Mapping
from typing import Any, Literal

import sheave
from sheave.learner import ClientReport, GradientClient, GradientId, GradientServer, Parameter, ServerReport
from sheave.versions import Versions, VersionsClient

from sheave.compat.machin.parallel.distributed import current
from sheave.compat.machin.parallel.distributed.rpc_group import RpcGroup
from sheave.compat.machin.parallel.server.ordered_server import (
    OrderedServerBase,
    OrderedServerSimple,
    OrderedServerSimpleImpl,
)
from sheave.compat.machin.parallel.thread import Thread, ThreadException
from sheave.compat.runtime_errors import raising

_LOG = logging.getLogger("machin")

#: How long a secondary waits before it looks again for a primary that has not been made yet.
_LOOK_AGAIN_S = 0.05

#: How often a primary pushes a version again that others were faster with.
_PUSHES_MAX = 16


class ReduceType(enum.Enum):
    """Which of the two levels a gradient is for."""

    REDUCE_PRIMARY = 0
    REDUCE_SECONDARY = 1


class PushPullGradServer:
    """The accessor of a gradient server, which may be pickled.

    A model is whatever has `named_parameters`, `zero_grad`, `state_dict` and `load_state_dict`, as torch's modules do.
    """

    def __init__(
        self,
        server_name: str,
        group: RpcGroup,
        model_name: str,
        secondary_reducers: list[str],
        o_server: OrderedServerBase,
    ) -> None:
        self.server_name = server_name
        self.group = group
        self.model_name = model_name
        self.secondary_reducers = secondary_reducers
        self.o_server = o_server
        self.secondary_services = [_service(server_name, member) for member in secondary_reducers]
        self._client: GradientClient | None = None
        self._lock = threading.Lock()

    def push(self, model: Any) -> bool:
        """Pushes the gradients of a model, and pulls the newest parameters as `pull` does, whose result it returns.

        Raises RuntimeError for a parameter without gradient, and what has stopped a server.
        """
        gradients = {}
        for name, parameter in model.named_parameters():
            gradient = getattr(parameter, "grad", None)
            if gradient is None:
                raise RuntimeError(f"Parameter {name} doesn't have gradient to push!")
            gradients[name] = gradient
        with raising():
            self._connected().push(gradients, timeout=self.group._limit(-1))
        return self.pull(model)

    def pull(self, model: Any) -> bool:
        """Gives a model the newest parameters, and makes its gradients zero. Returns whether there are any parameters
        so far."""
        model.zero_grad(set_to_none=False)
        if isinstance(self.o_server, OrderedServerSimple):
            pulled = self.o_server._pull_newer(self.model_name, None)
            state = None if pulled is None else pulled.value
        else:
            newest = self.o_server.pull(self.model_name)
            state = None if newest is None else newest[0]
        if state is None:
            return False
        model.load_state_dict(state)
        return True

    def report(self) -> ClientReport:
        """What became of the gradients that were pushed with this accessor."""
        with raising():
            return self._connected().report(timeout=self.group._limit(-1))

    def flush(self) -> int:
        """Has all gradients applied that were pushed before, though no batch is full. Returns the version then."""
        with raising():
            return self._connected().flush(timeout=self.group._limit(-1))

    def _connected(self) -> GradientClient:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> GradientClient:
        limit = self.group._limit(-1)
        until = None if limit is None else time.monotonic() + limit

        def left() -> float | None:
            return None if until is None else max(0.0, until - time.monotonic())

        table = self.group.group.versions(_table_key(self.server_name), timeout=left())
        primary = table.watch("servers", timeout=left()).value["primary"]
        secondaries = [member for member in self.secondary_reducers if member not in _dead()]
        for member in secondaries:
            table.watch(f"started/{member}", timeout=left())
        random.shuffle(secondaries)
        return GradientClient(
            self.group.group,
            _learner_name(self.server_name),
            primary=primary,
            secondaries=secondaries,
            timeout=left(),
        )

    def __reduce__(self) -> Any:
        said = (self.server_name, self.group, self.model_name, self.secondary_reducers, self.o_server)
        return PushPullGradServer, said


class PushPullGradServerImpl:
    """A server of gradients, made on the primary reducer and on each secondary. The primary pairs its accessor under
    the server's name and, without an ordered server, starts one of its own, `<server_name>_o_server`."""

    REDUCE_MASTER = 0
    REDUCE_SLAVE = 1

    def __init__(
        self,
        server_name: str,
        group: RpcGroup,
        model_name: str = "model",
        primary_reducer: str | None = None,
        secondary_reducers: list[str] | None = None,
        o_server: OrderedServerBase | None = None,
        reduce_method: Literal["sum", "mean"] = "sum",
        reduce_device: Any = "cpu",
        reduce_batch_size: int = 4,
        max_queue_size: int = 64,
        *,
        flush_after: float | None = None,
        overflow: Literal["push_back", "drop_oldest"] = "drop_oldest",
    ) -> None:
        primary = group.get_group_members()[0] if primary_reducer is None else primary_reducer
        assert group.is_member(primary)
        assert group.is_member()
        assert reduce_method in ("mean", "sum")
        assert max_queue_size > 1
        assert reduce_batch_size > 1
        assert max_queue_size > reduce_batch_size
        self.server_name = server_name
        self.group = group
        self.model_name = model_name
        self.primary_reducer = primary
        self.secondary_reducers = group.get_group_members() if secondary_reducers is None else secondary_reducers
        self.primary_service = _service(server_name, primary)
        self.secondary_services = [_service(server_name, member) for member in self.secondary_reducers]
        self.reduce_method = reduce_method
        self.reduce_device = reduce_device
        self.reduce_batch_size = reduce_batch_size
        self.max_queue_size = max_queue_size
        self.flush_after = flush_after
        self.overflow = overflow
        self.started = False
        self.model: Any = None
        self.optimizer: Any = None
        self.lr_scheduler: Any = None
        self.o_server_impl: OrderedServerSimpleImpl | None = None
        self._server: GradientServer | None = None
        self._ended: Any = None
        self._starter: Thread | None = None
        self._stopped = threading.Event()
        self._table: VersionsClient | None = None
        is_primary = self._is_primary()
        if o_server is None:
            if is_primary:
                self.o_server_impl = OrderedServerSimpleImpl(server_name + "_o_server", group)
            o_server = OrderedServerSimple(server_name + "_o_server", group)
        self.o_server = o_server
        self._accessor = PushPullGradServer(server_name, group, model_name, self.secondary_reducers, o_server)
        self._offer(is_primary)

    def _offer(self, is_primary: bool) -> None:
        """Lets others find what they need of this process."""
        me = self.group.get_cur_name()
        self.group.register(_service(self.server_name, me), self._push_service)
        if is_primary:
            world = current.get_world()
            assert world is not None
            with raising():
                # Who is a server, what the model is, and who has been started.
                versions = Versions(world.mesh)
                versions.register(self.group.group, _table_key(self.server_name), timeout=self.group._limit(-1))
                self._table = versions.client()
            # Last: who finds the accessor finds the rest.
            self.group.pair(self.server_name, self._accessor)

    def manage_model(self, model: Any, optimizer: Any, lr_scheduler: Any = None) -> None:
        """Has the primary step this model by an optimizer, and then the schedule of its learning rate. To be called
        before `start`, with another model than those of learners. Raises RuntimeError on other processes."""
        if not self._is_primary():
            raise RuntimeError("Current worker is not the reduce master, and cannot manage the model.")
        self.model, self.optimizer, self.lr_scheduler = model, optimizer, lr_scheduler
        self.model.pp_version = 0

    def start(self) -> None:
        """Begins to serve; nothing happens the second time. Where this is not the primary, that happens once the
        primary has been started. Raises RuntimeError for a primary that manages no model."""
        if self.started:
            return
        if not self._is_primary():
            self._starter = Thread(target=self._start_secondary, name=f"{self.server_name}-start", daemon=True)
            self._starter.start()
        elif self.model is None or self.optimizer is None:
            raise RuntimeError("the reduce master manages no model yet; call manage_model before start")
        else:
            with raising():
                self._start_primary()
        self.started = True

    def stop(self) -> None:
        """Stops the server, for good. With the primary the secondaries end."""
        self._stopped.set()
        if self._starter is not None:
            self._starter.join()
        if self._server is not None:
            self._server.stop()

    def watch(self) -> None:
        """Raises what has ended the server, as a ThreadException, if something has. Does not wait."""
        if self._starter is not None:
            self._starter.watch()
        if self._ended is None or not self._ended.done():
            return
        error = self._ended.exception()
        # A primary that was stopped is no failure of its secondaries.
        if error is not None and not isinstance(error, sheave.Closed):
            raise ThreadException(Thread.format_exceptions([error])) from error

    def report(self) -> ServerReport:
        """What this server has done, dropped and lost."""
        return ServerReport() if self._server is None else self._server.report()

    def _is_primary(self) -> bool:
        return self.group.get_cur_name() == self.primary_reducer

    def _push_service(self, grad_dict: Mapping[str, Any], level: ReduceType) -> None:
        """Takes gradients that are pushed by a call, in place of the accessor."""
        if level != ReduceType.REDUCE_SECONDARY:
            raise ValueError(f"Unknown push level: {level}")
        with raising():
            self._accessor._connected().push(grad_dict, timeout=self.group._limit(-1))

    def _start_primary(self) -> None:
        assert self._table is not None
        parameters = dict(self.model.named_parameters())
        self._serve(parameters, step=self._step, publish=self._publish)
        described = [(name, str(parameter.dtype), list(parameter.shape)) for name, parameter in parameters.items()]
        self._table.push("servers", {"primary": self.primary_reducer, "parameters": described}, 1)

    def _start_secondary(self) -> None:
        """Waits for the primary, whose model this process need not have, and begins to serve."""
        while self._table is None:
            if self._stopped.is_set():
                return
            try:
                self._table = self.group.group.versions(_table_key(self.server_name))
            except sheave.NotFound:
                self._stopped.wait(_LOOK_AGAIN_S)
        watched = self._table.watch("servers", async_op=True)
        ended = threading.Event()
        watched.add_done_callback(lambda _: ended.set())
        while not ended.wait(_LOOK_AGAIN_S):
            if self._stopped.is_set():
                watched.cancel()
                return
        described = watched.wait().value["parameters"]
        self._serve({name: Parameter(dtype, tuple(shape)) for name, dtype, shape in described})

    def _serve(self, parameters: Mapping[str, Any], **functions: Any) -> None:
        self._server = GradientServer(
            self.group.group,
            _learner_name(self.server_name),
            parameters,
            primary=self.primary_reducer,
            secondaries=self.secondary_reducers,
            on_drop=self._log_drops,
            method=self.reduce_method,
            batch=self.reduce_batch_size,
            queue_max=self.max_queue_size,
            overflow=self.overflow,
            flush_after=self.flush_after,
            timeout=self.group._limit(-1),
            **functions,
        )
        self._ended = self._server.watch(async_op=True)
        me = self.group.get_cur_name()
        if me in self.secondary_reducers:
            assert self._table is not None
            self._table.push(f"started/{me}", True, 1)

    def _step(self, parameters: Mapping[str, Any], gradients: dict[str, Any]) -> None:
        self.optimizer.zero_grad()
        for name, parameter in parameters.items():
            gradient = gradients[name]
            parameter.grad = gradient if gradient.device == parameter.device else gradient.to(parameter.device)
        self.optimizer.step()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()

    def _publish(self, _parameters: Mapping[str, Any], _version: int) -> None:
        state = {name: self._on_host(value) for name, value in self.model.state_dict().items()}
        for _ in range(_PUSHES_MAX):
            known = self.model.pp_version
            if self.o_server.push(self.model_name, state, known + 1, known):
                self.model.pp_version = known + 1
                return
            newest = self.o_server.pull(self.model_name)
            self.model.pp_version = 0 if newest is None else newest[1]
        raise RuntimeError(f"the ordered server has refused model {self.model_name!r} {_PUSHES_MAX} times")

    def _on_host(self, value: Any) -> Any:
        if not hasattr(value, "detach"):
            return value
        value = value.detach()
        # Sheave's own server has its copy; another one may keep what it is given.
        is_ours = isinstance(self.o_server, OrderedServerSimple)
        return value.cpu() if is_ours or value.device.type != "cpu" else value.clone()

    def _log_drops(self, gradients: list[GradientId]) -> None:
        _LOG.warning("gradient server %s has dropped gradients, the latest is %s", self.server_name, gradients[-1])


def _service(server_name: str, member: str) -> str:
    return f"{server_name}/{member}/_push_service"


def _table_key(server_name: str) -> str:
    return server_name + "/_servers"


def _learner_name(server_name: str) -> str:
    return server_name + "/_gradients"


def _dead() -> set[str]:
    """The names of processes of the world that are gone."""
    world = current.get_world()
    return set() if world is None else {death.member.name for death in world.mesh.deaths()}
