"""Node event loops: the particles of a rank, and the messages that drive them.

A loop is driven by what is put into its `in_queue`, and answers in its `out_queue`. If the first is a `SinglePQueue`,
all of that has happened when `put` returns; otherwise `_start_event_loop` takes message after message, hands what
handlers have to do to `sheave.particle`, and goes on.

What differs from PusH, on purpose:

- Every message is answered, with an error if need be, and the loop goes on. A message that is none, or whose class a
  loop does not take, is answered with an exception.
- Particles of other ranks are sent messages, and got, as those of this one are. A particle of this rank gets the
  arguments themselves, tensors apart; one of another rank gets copies.
- A view takes no place of a cache: `view_size` is taken, and means nothing.
"""

import collections
import copy
import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from sheave import Closed, InvalidArgument, NotFound, PeerLost
from sheave.compat import push
from sheave.compat.push import _files
from sheave.compat.push._launches import Arriving, Circles, Launch, Pending, Running, Sent, current, handling
from sheave.compat.push._ranks import Reply
from sheave.compat.push._model import ModuleModel, seed_for
from sheave.compat.push.lib import messages
from sheave.compat.push.lib.utils import detach_to_cpu, detach_to_device
from sheave.compat.push.lib.waitable import Waitable
from sheave.compat.push.particle import Copied, Particle, ParticleView
from sheave.compat.push.pfuture import PFuture
from sheave.compat.push.pqueue import MultiPQueue, SinglePQueue
from sheave.particle import DeadlockError, ParticleId, Particles

__all__ = ["NodeEventLoop"]

#: What runs a function in the turn of a particle.
_DO = "push.do"
#: Seconds that one wait for a message takes: one of 10 s says what it waits for.
_IDLE_S = 5.0
#: A table of messages on their way is looked through when it has so many.
_SENT_MAX = 4096


def _do(particle: Any, function: Callable[[Any], Any]) -> Any:
    return function(particle)


class NodeEventLoop(Waitable):
    """The particles of a rank.

    - mk_module, args: `mk_module(*args)` makes the network of each particle.
    - in_queue, out_queue: messages to it, and its answers: what has `get()` and `put(message)`.
    - rank: its number. devices: the numbers of its devices.
    - cache_size: how many particles lie on each device at a time.
    - seed: what seeds of particles are made from; that of torch if None. reentrant: as `PusH` has it.
    """

    def __init__(
        self,
        mk_module: Callable[..., torch.nn.Module],
        args: Sequence[Any],
        in_queue: Any,
        out_queue: Any,
        rank: int,
        devices: Sequence[int],
        cache_size: int,
        view_size: int = 4,
        *,
        seed: int | None = None,
        reentrant: bool | None = None,
    ) -> None:
        self.mk_module, self.args = mk_module, args
        self.in_queue, self.out_queue = in_queue, out_queue
        self.rank = rank
        self.devices = list(devices)
        self.seed = torch.initial_seed() if seed is None else seed
        self.reentrant = bool(reentrant)
        self._enters = push.strict if reentrant is None else reentrant
        self._is_single = isinstance(in_queue, SinglePQueue)
        policy = "direct" if push.strict else "lru"
        self._particles = Particles(devices=self.devices, cache_size=cache_size, policy=policy)
        self._helper = self._particles.create(receive={_DO: _do}, reentrant=True)
        self._in_queues: dict[int, Any] = {}
        self._out_queues: dict[int, Any] = {}
        self._particle_to_device: dict[int, int] = {}
        self._particle_to_rank: dict[int, int] = {}
        self._particle_to_state: dict[int, dict[Any, Any]] = {}
        self._handlers: dict[int, dict[str, Callable[..., Any]]] = {}
        self._ids: dict[int, ParticleId] = {}
        self._handles: dict[int, Any] = {}
        self._models: dict[int, ModuleModel] = {}
        self._numbers = itertools.count()
        # The messages that one particle has sent to another one; those that have ended leave it now and then.
        self._sent: dict[tuple[int, int], collections.deque[Sent]] = {}
        self._circles = Circles()
        self._remote: dict[int, Arriving] = {}
        self._lost: dict[int, BaseException] = {}
        self._remote_lock = threading.Lock()
        self._skeleton: torch.nn.Module | None = None
        self._actions: Mapping[type, Callable[[Any, Any], None]] = {
            messages.NELBroadcastParticlesMSG: self._on_broadcast,
            messages.NELRankLostMSG: self._on_lost,
            messages.NELSaveModel: self._on_save,
            messages.ReceiveParticleInitPDMSG: self._on_init,
            messages.ReceiveRegisterPDMSG: self._on_register,
            messages.ReceiveFuncPDMSG: self._on_launch,
            messages.ReceiveParametersPDMSG: self._on_parameters,
            messages.ReceiveFuncMSG: self._on_func,
            messages.ReceiveFuncAckMSG: self._on_func_ack,
            messages.ReceiveGetMSG: self._on_get,
            messages.ReceiveGetAckMSG: self._on_get_ack,
        }

    # The loop.

    def _start_event_loop(self) -> None:
        """Take and handle messages until one says that it is over, or the queue is."""
        is_over = False
        while not is_over:
            try:
                is_over = not self._dispatch(self._next())
            except queue.Empty:
                continue
            except (PeerLost, Closed):
                # Whoever has made the queues is gone.
                is_over = True
        self.close()

    def _next(self) -> Any:
        """The next message. Who has nothing to do waits for no longer than is nothing to be told of."""
        is_between = isinstance(self.in_queue, MultiPQueue)
        return self.in_queue.get(timeout=_IDLE_S) if is_between else self.in_queue.get()

    def _dispatch(self, msg: Any, where: Any = None) -> bool:
        """Handle a message. Returns whether there is to be another one. Its answer goes to the `out_queue`, or `where`
        is said."""
        where = self.out_queue if where is None else where
        if isinstance(msg, messages.NodeEvtLoopCleanupMSG):
            return False
        action = self._actions.get(type(msg))
        if action is None:
            takes = ", ".join(sorted(kind.__name__ for kind in self._actions))
            what = f"a node event loop takes no {type(msg).__name__}; it takes {takes}"
            self._answer(where, TypeError(what))
        else:
            action(msg, where)
        return True

    def close(self) -> None:
        """End all particles; messages that have not begun fail with Closed. Idempotent."""
        self._particles.close()
        with self._remote_lock:
            arriving = list(self._remote.values())
            self._remote.clear()
        for each in arriving:
            each.fail(Closed(f"node event loop {self.rank} is closed"))

    def _cleanup(self) -> None:
        self.close()

    def _answer(self, where: Any, answer: Any) -> None:
        """Puts an answer; one that cannot travel becomes an error that can."""
        try:
            where.put(answer)
        except (PeerLost, Closed):
            # There is nobody who waits for it.
            return
        except Exception as error:
            if isinstance(answer, messages.MSG) and hasattr(answer, "result"):
                answer.result = None
            answer.error = InvalidArgument(f"what a handler has returned cannot be sent: {error}")
            where.put(answer)

    def _later(self, where: Any, function: Callable[[], None]) -> None:
        """Runs what waits: here, on the thread that has called, or beside the loop."""
        if self._is_single:
            function()
        elif isinstance(where, Reply):
            where.rest = function
        else:
            self._particles.send(self._helper, _DO, lambda _: function())

    # Messages of PusH.

    def _on_broadcast(self, msg: messages.NELBroadcastParticlesMSG, where: Any) -> None:
        ranks = msg.particle_to_rank
        if not msg.is_more:
            self._particle_to_device = {**msg.particle_to_device}
            known = {pid: self.rank for pid in self._ids}
            self._particle_to_rank = known if ranks is None else {**ranks}
        else:
            self._particle_to_device.update(msg.particle_to_device)
            self._particle_to_rank.update(ranks or {})
        self._in_queues = self._in_queues if msg.in_queues is None else {**msg.in_queues}
        self._out_queues = self._out_queues if msg.out_queues is None else {**msg.out_queues}
        self._answer(where, messages.NELBroadcastParticlesAckMSG())

    def _on_init(self, msg: messages.ReceiveParticleInitPDMSG, where: Any) -> None:
        error: BaseException | None = None
        try:
            self._made(msg)
        except Exception as failed:
            error = failed
        self._answer(where, messages.ReceiveParticleInitAckPDMSG(error=error))

    def _made(self, msg: messages.ReceiveParticleInitPDMSG) -> None:
        pid, device = msg.pid, msg.device
        if device not in self.devices:
            raise InvalidArgument(f"device of particle {pid} is {device!r}; expected one of {self.devices}")
        if pid in self._ids:
            raise InvalidArgument(f"there is a particle {pid} already")
        seed = seed_for(self.seed, pid, msg.train_key)
        model = ModuleModel(
            self.mk_module, self.args, msg.mk_optim, msg.mk_scheduler, prior=msg.prior, seed=seed, device=device
        )
        state: dict[Any, Any] = {} if msg.state is None else msg.state
        receive = self._handlers[pid] = {
            name: self._handler(pid, fn, None) for name, fn in dict(msg.receive or {}).items()
        }
        self._models[pid], self._particle_to_state[pid] = model, state
        self._particle_to_device[pid], self._particle_to_rank[pid] = device, self.rank
        id = self._particles.create(
            model, receive={**receive, _DO: _do}, state=state, device=device, reentrant=self.reentrant, seed=seed
        )
        self._handles[pid] = self._particles.send(id, _DO, lambda particle: particle).wait()
        self._ids[pid] = id

    def _on_register(self, msg: messages.ReceiveRegisterPDMSG, where: Any) -> None:
        error: BaseException | None = None
        try:
            self.register_receive(msg.pid, msg.msg, msg.fn, msg.state)
        except Exception as failed:
            error = failed
        self._answer(where, messages.ReceiveRegisterAckPDMSG(error=error))

    def _on_launch(self, msg: messages.ReceiveFuncPDMSG, where: Any) -> None:
        def answered(result: Any, error: BaseException | None) -> messages.MSG:
            return messages.ReceiveFuncAckPDMSG(msg.pid_fid, result, error)

        self._replied(where, lambda: self._launch(msg.pid_to, msg.msg, msg.args), answered)

    def _on_parameters(self, msg: messages.ReceiveParametersPDMSG, where: Any) -> None:
        def answered(result: Any, error: BaseException | None) -> messages.MSG:
            return messages.ReceiveParametersAckPDMSG(msg.pid_fid, result, error)

        self._replied(where, lambda: self._parameters(msg.pid), answered)

    def _on_save(self, msg: messages.NELSaveModel, where: Any) -> None:
        def answered(_: Any, error: BaseException | None) -> messages.MSG:
            return messages.NELSaveModelAckPDMSG(msg.pid_fid, error)

        self._replied(where, lambda: self._stored(msg.path, msg.is_load), answered)

    def _replied(
        self, where: Any, begin: Callable[[], Any], answered: Callable[[Any, BaseException | None], messages.MSG]
    ) -> None:
        """Begins something in the order of the loop, and puts the answer when it has ended."""
        try:
            begun = begin()
        except Exception as error:
            self._answer(where, answered(None, error))
            return

        def reply() -> None:
            try:
                answer = answered(self._settled(begun.wait()), None)
            except Exception as error:
                answer = answered(None, error)
            self._answer(where, answer)

        self._later(where, reply)

    def _settled(self, value: Any) -> Any:
        """What may leave this process: no future, and nothing of a graph."""
        if self._is_single:
            return value
        while isinstance(value, PFuture):
            value = value.wait()
        return detach_to_cpu(value)

    # Messages of other ranks.

    def _on_func(self, msg: messages.ReceiveFuncMSG, where: Any) -> None:
        sender, fid = msg.pid_fid

        def begin() -> Running:
            return self._launch(msg.pid, msg.msg_name, self._moved(msg.pid, msg.args))

        def answered(result: Any, error: BaseException | None) -> messages.MSG:
            return messages.ReceiveFuncAckMSG(fid, result, error)

        self._replied(self._queue_of(sender), begin, answered)

    def _on_func_ack(self, msg: messages.ReceiveFuncAckMSG, where: Any) -> None:
        arriving = self._arrived(msg.fid)
        if arriving is not None:
            if msg.error is not None:
                arriving.fail(msg.error)
            else:
                arriving.resolve(msg.result)

    def _on_get(self, msg: messages.ReceiveGetMSG, where: Any) -> None:
        fid = msg.pid_fid[1]

        def copied(model: ModuleModel) -> tuple[list[Any], list[Any], list[Any]]:
            parameters = list(model.module.parameters())
            gradients = [each.grad for each in parameters]
            parts = (parameters, gradients, list(model.module.buffers()))
            copies = [[None if one is None else one.detach().to("cpu", copy=True) for one in part] for part in parts]
            return copies[0], copies[1], copies[2]

        def begin() -> Any:
            self._id(msg.pid)
            return self._in_turn(msg.pid, copied)

        def answered(result: Any, error: BaseException | None) -> messages.MSG:
            parameters, gradients, buffers = (None, None, None) if result is None else result
            return messages.ReceiveGetAckMSG(fid, msg.pid, parameters, gradients, buffers, error)

        self._replied(self._queue_of(msg.pid_caller), begin, answered)

    def _on_get_ack(self, msg: messages.ReceiveGetAckMSG, where: Any) -> None:
        arriving = self._arrived(msg.fid)
        if arriving is None:
            return
        if msg.error is not None:
            arriving.fail(msg.error)
            return
        try:
            arriving.resolve(ParticleView(Copied(self._filled(msg), 0), msg.pid))
        except Exception as error:
            arriving.fail(error)

    def _on_lost(self, msg: messages.NELRankLostMSG, where: Any) -> None:
        with self._remote_lock:
            self._lost[msg.rank] = msg.error
            gone = [fid for fid, each in self._remote.items() if each.rank == msg.rank]
            arriving = [self._remote.pop(fid) for fid in gone]
        for each in arriving:
            each.fail(msg.error)

    def _queue_of(self, pid: int) -> Any:
        """The queue of the rank of a particle; the way out if that is not known."""
        return self._in_queues.get(self._particle_to_rank.get(pid, -1), self.out_queue)

    def _arrived(self, fid: int | None) -> Arriving | None:
        with self._remote_lock:
            return None if fid is None else self._remote.pop(fid, None)

    def _asked(self, fid: int, rank: int, message: Any) -> Arriving:
        """Asks another rank for something."""
        arriving = Arriving(rank)
        with self._remote_lock:
            lost = self._lost.get(rank)
            if lost is None:
                self._remote[fid] = arriving
        if lost is not None:
            arriving.fail(lost)
        elif rank not in self._in_queues:
            self._arrived(fid)
            raise NotFound(f"no queue of rank {rank}; hint: it comes with NELBroadcastParticlesMSG")
        else:
            self._in_queues[rank].put(message)
        return arriving

    def _filled(self, msg: messages.ReceiveGetAckMSG) -> torch.nn.Module:
        """A module with what has come from another rank."""
        if self._skeleton is None:
            pid = next(iter(self._models), None)
            made = ModuleModel(self.mk_module, self.args, None) if pid is None else self._models[pid]
            self._skeleton = made.viewed("cpu")
        device = self.devices[0]
        parts = detach_to_device(device, [msg.params, msg.params_grad, msg.buffers])
        return _with_tensors(self._skeleton, *parts)

    # Handlers.

    def _id(self, pid: int) -> ParticleId:
        if pid not in self._ids:
            raise NotFound(f"no particle {pid} on rank {self.rank}, which has {sorted(self._ids)}")
        return self._ids[pid]

    def _handler(self, pid: int, fn: Callable[..., Any], own: dict[Any, Any] | None) -> Callable[..., Any]:
        """What handles messages of a particle by `fn`."""

        def handle(_: Any, launch: Launch, args: Sequence[Any]) -> Any:
            state = self._particle_to_state[pid] if own is None else own
            particle = Particle(self, self._particle_to_device[pid], pid, self._models[pid].module, state)
            launched, handled = current.set(launch), handling.set(pid)
            try:
                return fn(particle, *args)
            finally:
                current.reset(launched)
                handling.reset(handled)

        return handle

    def _deliver(self, pid: int, msg: str, launch: Launch, args: Sequence[Any]) -> Any:
        """Sends a message to a particle of this rank."""
        id = self._id(pid)
        if msg not in self._handlers[pid]:
            raise NotFound(f"particle {pid} handles no message {msg!r}; it handles {sorted(self._handlers[pid])}")
        return self._particles.send(id, msg, launch, args)

    def _launch(self, pid: int, msg: str, args: Sequence[Any]) -> Running:
        """Has a particle handle a message that comes from outside."""
        launch = Launch()
        return Running(self._deliver(pid, msg, launch, args), launch)

    def _moved(self, pid: int, args: Sequence[Any]) -> list[Any]:
        device = self._particle_to_device.get(pid)
        return list(args) if device is None or not args else detach_to_device(device, list(args))

    def _in_turn(self, pid: int, function: Callable[[ModuleModel], Any]) -> Any:
        """Asks for something of a model after the messages that its particle has got so far."""
        return self._particles.send(self._id(pid), _DO, lambda particle: particle.update(function).wait())

    def _parameters(self, pid: int) -> Any:
        return self._in_turn(pid, lambda model: model.parameters())

    def _stored(self, path: str | None, is_load: bool) -> Any:
        """Has each particle write itself, or read."""
        directory = _files.DIRECTORY if path is None else path
        answers = [self._in_turn(pid, self._storing(pid, directory, is_load)) for pid in list(self._ids)]
        return _All(answers)

    def _storing(self, pid: int, directory: str, is_load: bool) -> Callable[[ModuleModel], None]:
        device, state = self._particle_to_device[pid], self._particle_to_state[pid]

        def store(model: ModuleModel) -> None:
            if not is_load:
                _files.save(model, directory, device, pid, state)
                return
            loaded = _files.load(model, directory, device, pid)
            if loaded is not None:
                state.clear()
                state.update(loaded)

        return store

    # What particles ask for.

    def _future(self, pid_curr: int, pid: int, answer: Any, fid: int | None = None) -> PFuture:
        """The future of something that was begun by the handler that runs here."""
        fid = next(self._numbers) if fid is None else fid
        pending = Pending(answer)
        launch = current.get()
        if launch is not None:
            launch.add(pending)
        return PFuture(self, pid_curr, pid, fid, t=pending)

    def _wait(self, fid: int) -> Any:
        raise NotImplementedError("hint: hold the future itself, and wait for that")

    def _handle(self, pid: int) -> Any:
        self._id(pid)
        return self._handles[pid]

    def _module(self, pid: int) -> torch.nn.Module:
        """The module of a particle, on its device, when what was begun with it has ended."""
        handle = self._handle(pid)
        try:
            module: torch.nn.Module = handle.update(lambda model: model.module).wait()
        except DeadlockError:
            # The device waits for whoever asks, such as a loss function: it lies there.
            module = self._models[pid].module
        return module

    def particles(self) -> list[int]:
        """All particles of all ranks that are known here, in the order in which they were made."""
        return sorted(list(self._particle_to_rank))

    def register_receive(
        self, pid: int, msg: str, fn: Callable[..., Any], state: dict[Any, Any] | None = None
    ) -> None:
        """Handle messages `msg` to a particle of this rank by `fn(particle, *args)`, with `state` unless it is None:
        those that are sent from now on."""
        id = self._id(pid)
        if msg == _DO:
            raise InvalidArgument(f"the message {_DO!r} is taken")
        handler = self._handler(pid, fn, state)
        self._particles.register(id, msg, handler)
        self._handlers[pid][msg] = handler

    def send(self, send_particle: Particle | None, pid_curr: int, pid: int, msg_name: str, *args: Any) -> PFuture:
        """Send a message from particle `pid_curr` to `pid`. Returns the future of what its handler returns."""
        rank = self._particle_to_rank.get(pid)
        if rank is None:
            raise NotFound(f"no particle {pid}; there are {self.particles()}")
        fid = next(self._numbers)
        if rank == self.rank:
            launch, moved = current.get() or Launch(), self._moved(pid, args)
            sent = self._deliver(pid, msg_name, launch, moved)
            handler = self._handlers[pid][msg_name]
            answer = self._in_line(pid_curr, pid, sent, lambda: handler(None, launch, moved))
        else:
            message = messages.ReceiveFuncMSG((pid_curr, fid), pid, msg_name, detach_to_cpu(list(args)))
            answer = self._asked(fid, rank, message)
        return self._future(pid_curr, pid, answer, fid)

    def _line(self, pid_curr: int, pid: int) -> "collections.deque[Sent]":
        """The messages on their way from one particle to another one."""
        line = self._sent.get((pid_curr, pid))
        if line is None:
            if len(self._sent) >= _SENT_MAX:
                self._sent = {pair: line for pair, line in list(self._sent.items()) if line and not line[-1].done()}
            line = self._sent.setdefault((pid_curr, pid), collections.deque())
        try:
            while line and line[0].done():
                line.popleft()
        except IndexError:
            # Another handler of the sender has done so meanwhile.
            pass
        return line

    def _in_line(self, pid_curr: int, pid: int, answer: Any, enter: Callable[[], Any]) -> Any:
        """What was sent from one particle to another one, handled by `enter` where a circle would keep it for ever."""
        line = self._line(pid_curr, pid)
        sent = Sent(answer, pid, self._circles, line, enter if self._enters and not self.reentrant else None)
        line.append(sent)
        return sent

    def get(self, pid_curr: int, pid: int) -> PFuture:
        """Get the parameters and gradients of `pid` for `pid_curr`, after what that has sent to it. Returns the future
        of a `ParticleView`."""
        rank = self._particle_to_rank.get(pid)
        if rank is None:
            raise NotFound(f"no particle {pid}; there are {self.particles()}")
        fid = next(self._numbers)
        if rank != self.rank:
            answer: Any = self._asked(fid, rank, messages.ReceiveGetMSG((pid_curr, fid), pid_curr, pid))
            return self._future(pid_curr, pid, answer, fid)
        device = self._particle_to_device.get(pid_curr, self._particle_to_device[pid])

        def viewed(model: ModuleModel) -> ParticleView:
            return ParticleView(Copied(model.viewed(device), model.version), pid)

        # Its device has whatever its handlers have begun; a message that is on its way goes first.
        if not self._line(pid_curr, pid):
            answer = self._handle(pid).update(viewed)
        else:
            enter = lambda: self._handle(pid).update(viewed).wait()  # noqa: E731
            answer = self._in_line(pid_curr, pid, self._in_turn(pid, viewed), enter)
        return self._future(pid_curr, pid, answer, fid)

    def wait(self, pfutures: Iterable[PFuture]) -> list[Any]:
        """Wait for all futures. Returns their results, in order."""
        return [future.wait() for future in pfutures]

    def zero_grad(self, pid: int) -> PFuture:
        """Set the gradients of a particle to none."""
        return self._future(pid, pid, self._handle(pid).zero_grad())

    def forward(self, pid: int, x: Any, *args: Any, gradient: bool = True, **kwargs: Any) -> PFuture:
        """Apply the network of a particle. Returns the future of its output."""
        return self._future(pid, pid, self._handle(pid).forward(x, *args, gradient=gradient, **kwargs))

    def step(
        self, pid: int, loss_fn: Callable[..., torch.Tensor], data: Any, label: Any, *args: Any, **kwargs: Any
    ) -> PFuture:
        """Compute the gradients of a particle, and let its optimizer step. Returns the future of the loss."""
        return self._future(pid, pid, self._handle(pid).step(loss_fn, data, label, *args, **kwargs))

    def scheduler_step(self, pid: int, *args: Any) -> PFuture:
        """Advance the scheduler of a particle's learning rate."""
        return self._future(pid, pid, self._handle(pid).update(lambda model: model.scheduler_step(*args)))

    def update(self, pid: int, function: Callable[[ModuleModel], Any]) -> PFuture:
        """Call `function(model)` in the order of the particle's device. Returns the future of what it returns. PusH has
        no such method: its handlers write modules."""
        return self._future(pid, pid, self._handle(pid).update(function))


class _All:
    """Several answers as one."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers

    def wait(self, timeout: float | None = None) -> None:
        for answer in self.answers:
            answer.wait(timeout)


def _with_tensors(
    skeleton: torch.nn.Module, parameters: Sequence[Any], gradients: Sequence[Any], buffers: Sequence[Any] | None
) -> torch.nn.Module:
    """A copy of a module that has these tensors."""
    memo: dict[int, Any] = {}
    own = list(skeleton.parameters())
    if len(own) != len(parameters):
        raise InvalidArgument(f"{len(parameters)} parameters have come; expected {len(own)}, as mk_module makes here")
    for parameter, value, gradient in zip(own, parameters, gradients, strict=True):
        memo[id(parameter)] = torch.nn.Parameter(value, parameter.requires_grad)
        memo[id(parameter)].grad = gradient
    for buffer, value in zip(skeleton.buffers(), buffers or (), strict=False):
        memo[id(buffer)] = value
    return copy.deepcopy(skeleton, memo)
