"""`PusH`: distributions over networks, made of particles.

What differs from PusH, on purpose:

- `devices` are the numbers of the GPUs, and 16 that stand for the CPU on a machine without one, unless a count or a
list
  of numbers says otherwise.
- `p_launch` returns at once in both modes; `p_wait` takes a timeout, and raises what the handler has raised.
- With `multi` there are `ranks` node event loops, each in a process of its own that has a part of the devices. Handlers
  and arguments travel as `sheave.pickling` says, lambdas too. A process that dies fails whatever is waited for there
  within a second.
- `save` takes a path, and `load` reads what it has written.
- A particle without `state` has one of its own, as has one without `receive`.
- `train_key` is the seed of a particle's network; without one, and for -1, it has one of its own that is made from
`seed`,
  which is that of torch if nobody says so.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from sheave import InvalidArgument
from sheave.compat import push
from sheave.compat.push import _ranks
from sheave.compat.push.lib import messages
from sheave.compat.push.lib.node_event_loop import NodeEventLoop
from sheave.compat.push.lib.utils import gpus
from sheave.compat.push.lib.waitable import Waitable
from sheave.compat.push.pfuture import PFuture
from sheave.compat.push.pqueue import SinglePQueue
from sheave.fleet import current_guest

__all__ = ["PusH", "init_node_event_loop"]

#: Numbers that stand for the CPU: as many as the GPUs of one host at the most, so that programs find theirs.
CPU_DEVICES = 16
#: Seconds that a node event loop may take to leave its loop.
_END_S = 5.0


def init_node_event_loop(
    mk_module: Callable[..., torch.nn.Module],
    args: Sequence[Any],
    in_queues: Mapping[int, Any],
    out_queues: Mapping[int, Any],
    rank: int,
    devices: Sequence[int],
    cache_size: int,
    view_size: int,
    *,
    strict: bool = True,
    is_served: bool = False,
    **options: Any,
) -> None:
    """Run the node event loop of a rank in this process, until it is told to end. If `is_served`, this process is one
    of a `sheave.Fleet`, whose host calls the loop too."""
    push.strict = strict
    made = (in_queues[rank], out_queues[rank], rank, devices, cache_size, view_size)
    try:
        loop = NodeEventLoop(mk_module, args, *made, **options)
    except Exception as error:
        out_queues[rank].put(messages.NodeEvtLoopInitMSG(error))
        return
    loop._in_queues, loop._out_queues = dict(in_queues), dict(out_queues)
    if is_served:
        current_guest().serve(_ranks.SERVICE, _ranks.Service(loop))
    out_queues[rank].put(messages.NodeEvtLoopInitMSG())
    loop._start_event_loop()


class PusH(Waitable):
    """A distribution over the networks that `mk_module(*args)` makes.

    - cache_size: so many particles lie on a device at a time. view_size: taken, and means nothing.
    - multi: node event loops are processes of their own, `ranks` of them.
    - devices: how many, or their numbers. seed: what the particles' seeds are made from.
    - reentrant: True lets particles handle any next message while their handlers wait; False has a circle of handlers
      that wait for each other fail; None leaves that to `push.strict`, as its table says.

    A context manager, which ends what it has begun.
    """

    def __init__(
        self,
        mk_module: Callable[..., torch.nn.Module],
        *args: Any,
        cache_size: int = 4,
        view_size: int = 4,
        multi: bool = False,
        devices: int | Sequence[int] | None = None,
        ranks: int = 1,
        seed: int | None = None,
        reentrant: bool | None = None,
    ) -> None:
        self.mk_module = mk_module
        self.args = args
        self.multi = multi
        self.cache_size = cache_size
        self.view_size = view_size
        self.devices = _devices(devices)
        self._particle_to_device: dict[int, int] = {}
        self._particle_to_rank: dict[int, int] = {}
        self._futures = itertools.count()
        self._running: list[Any] = []
        self._creating = threading.Lock()
        self._ranks: list[_ranks.Rank] = []
        self._told: set[int] = set()
        options = {"seed": torch.initial_seed() if seed is None else seed, "reentrant": reentrant}
        if cache_size < 1:
            raise InvalidArgument(f"cache_size is {cache_size}; expected 1 at least")
        if multi:
            self._start(ranks, options)
        elif ranks != 1:
            raise InvalidArgument(f"ranks is {ranks}; expected 1 without multi")
        else:
            in_queue, out_queue = SinglePQueue(), SinglePQueue()
            self.nel = NodeEventLoop(
                mk_module, args, in_queue, out_queue, 0, self.devices, cache_size, view_size,
                **options,  # type: ignore[arg-type]
            )
            in_queue._nel = out_queue._nel = self.nel
            self._in_queues, self._out_queues = {0: in_queue}, {0: out_queue}

    def _start(self, ranks: int, options: dict[str, Any]) -> None:
        if not 1 <= ranks <= len(self.devices):
            raise InvalidArgument(f"ranks is {ranks}; expected 1 to {len(self.devices)}, the number of devices")
        bounds = [len(self.devices) * n // ranks for n in range(ranks + 1)]
        parts = [self.devices[start:stop] for start, stop in zip(bounds, bounds[1:])]
        self._rank_of_device = {device: rank for rank, part in enumerate(parts) for device in part}
        given = (self.mk_module, self.args, self.cache_size, self.view_size)
        kwargs = {**options, "strict": push.strict}
        self._mesh, self._fleet, self._ranks = _ranks.start(ranks, init_node_event_loop, parts, given, kwargs)
        try:
            for rank in self._ranks:
                rank.wait_for_start()
        except BaseException:
            self._cleanup()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cleanup()

    def _cleanup(self) -> None:
        """End all particles. Idempotent."""
        if not self.multi:
            self.nel.close()
            return
        ranks, self._ranks = self._ranks, []
        if ranks:
            for rank in ranks:
                rank.end(_END_S)
            self._fleet.close()
            for rank in ranks:
                rank.in_queue.close()
                rank.out_queue.close()
            self._mesh.close()

    def close(self) -> None:
        """End all particles. Idempotent."""
        self._cleanup()

    def particle_ids(self) -> list[int]:
        """All particles, in the order in which they were made."""
        return list(self._particle_to_rank)

    def num_particles(self) -> int:
        """How many particles there are."""
        return len(self._particle_to_rank)

    def p_create(
        self,
        mk_optim: Callable[..., Any] | None = None,
        mk_scheduler: Callable[..., Any] | None = None,
        prior: bool = False,
        train_key: int | None = -1,
        device: int = 0,
        receive: Mapping[str, Callable[..., Any]] | None = None,
        state: dict[Any, Any] | None = None,
    ) -> int:
        """Make a particle. Returns its number.

        `mk_optim(params)` makes its optimizer, or None, and `mk_scheduler(optim)` the scheduler of that. `receive` has
        its handlers, `fn(particle, *args)` by message. With `prior` the network is one with a part `trainable`, whose
        `init_weights` is applied and which alone is trained.

        Raises InvalidArgument for a device that there is not.
        """
        if device not in self.devices:
            raise InvalidArgument(f"device is {device!r}; expected one of {self.devices}")
        with self._creating:
            pid = len(self._particle_to_rank)
            message = messages.ReceiveParticleInitPDMSG(
                device, pid, mk_optim, mk_scheduler, prior, train_key, dict(receive or {}), state
            )
            rank = self._rank_of_device[device] if self.multi else 0
            self._told_to(rank, message)
            self._particle_to_device[pid], self._particle_to_rank[pid] = device, rank
            for other in self._ranks:
                if other.number != rank and not other.is_lost():
                    news = messages.NELBroadcastParticlesMSG(None, None, {pid: device}, {pid: rank}, is_more=True)
                    other.ask(news).wait()
        return pid

    def p_register(self, pid: int, msg: str, fn: Callable[..., Any], state: dict[Any, Any] | None = None) -> None:
        """Have a particle handle messages `msg` by `fn(particle, *args)`: those that are sent from now on."""
        self._told_to(self._rank_of(pid), messages.ReceiveRegisterPDMSG(pid, msg, fn, state))

    def p_parameters(self, pid: int, sync: bool = True) -> Any:
        """Get a particle's parameters, as tensors on the CPU, after all that was launched before. Returns the future of
        them if not `sync`. Raises ValueError for a particle that there is not."""
        rank, fid = self._rank_of(pid), next(self._futures)
        self._drain()
        future = self._asked(rank, pid, fid, messages.ReceiveParametersPDMSG((pid, fid), pid))
        return future.wait() if sync else future

    def p_launch(self, pid_to: int, msg: str, *args: Any, sync: bool = False) -> Any:
        """Have a particle handle a message. Returns the future of what its handler returns; with `sync` waits for it,
        and returns None. Raises ValueError for a particle that there is not."""
        rank, fid = self._rank_of(pid_to), next(self._futures)
        if self.multi:
            future = PFuture(self, -1, pid_to, fid, t=self._ranks[rank].launch(pid_to, msg, args))
        else:
            try:
                running: Any = self.nel._launch(pid_to, msg, args)
            except Exception as error:
                running = _Failed(error)
            self._running = [each for each in self._running if not each.done()] + [running]
            future = PFuture(self, -1, pid_to, fid, t=running)
        if not sync:
            return future
        future.wait()
        return None

    def p_wait(self, futures: Iterable[PFuture], timeout: float | None = None) -> Any:
        """Wait for all futures. Returns their results, as a dict by the futures' numbers if ``push.strict``, and else
        as a list in order. Raises what the first one that failed has raised; DeadlineExceeded if one has not ended
        after `timeout` seconds."""
        waited = [(future._fid, future.wait(timeout)) for future in futures]
        return dict(waited) if push.strict else [result for _, result in waited]

    def save(self, sync: bool = True, path: str | None = None) -> Any:
        """Write all particles, after all that was launched before, into the directory `path`, "./particles" if it is
        None: ``device{device}_particle{pid}.pth`` has the parameters. Returns a future if not `sync`."""
        return self._stored(sync, path, False)

    def load(self, sync: bool = True, path: str | None = None) -> Any:
        """Read what `save` has written into the particles that there are, which go on from there."""
        return self._stored(sync, path, True)

    def _wait(self, fid: int) -> Any:
        raise NotImplementedError("hint: hold the future itself, and wait for that")

    def _stored(self, sync: bool, path: str | None, is_load: bool) -> Any:
        self._drain()
        fids = [next(self._futures) for _ in self._ranks or (0,)]
        asked = [
            self._asked(rank, -1, fid, messages.NELSaveModel((-1, fid), path, is_load)) for rank, fid in enumerate(fids)
        ]
        future = asked[0] if len(asked) == 1 else PFuture(self, -1, -1, next(self._futures), t=_Together(asked))
        return future.wait() if sync else future

    def _rank_of(self, pid: int) -> int:
        rank = self._particle_to_rank.get(pid)
        if rank is None:
            raise ValueError(f"particle {pid} does not exist; there are {self.particle_ids()}")
        return rank

    def _drain(self) -> None:
        """Waits for what was launched in this process: PusH's launches have ended when they return."""
        running, self._running = self._running, []
        for each in running:
            try:
                each.wait()
            except Exception:
                # Whoever waits for the launch is told.
                continue

    def _told_to(self, rank: int, message: Any) -> Any:
        """Asks for something whose answer has no number, and waits for it."""
        if self.multi:
            return self._ranks[rank].ask(message).wait()
        self._in_queues[0].put(message)
        return _result(self._out_queues[0]._queue.pop())

    def _asked(self, rank: int, pid: int, fid: int, message: Any) -> PFuture:
        if self.multi:
            return PFuture(self, -1, pid, fid, t=self._ranks[rank].ask(message))
        self._in_queues[0].put(message)
        answer = self._out_queues[0]._queue.pop()
        future = PFuture(self, -1, pid, fid)
        future._outcome = getattr(answer, "params", None), answer.error
        return future


class _Failed:
    """A launch that has failed before it began."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def wait(self, timeout: float | None = None) -> Any:
        raise self.error

    def done(self) -> bool:
        return True


class _Together:
    """Several futures as one, of None."""

    def __init__(self, futures: list[PFuture]) -> None:
        self.futures = futures

    def wait(self, timeout: float | None = None) -> None:
        for future in self.futures:
            future.wait(timeout)

    def done(self) -> bool:
        return all(future.done() for future in self.futures)


def _result(answer: Any) -> None:
    error = answer if isinstance(answer, BaseException) else answer.error
    if error is not None:
        raise error


def _devices(devices: int | Sequence[int] | None) -> list[int]:
    """The numbers of the devices that are meant."""
    if devices is None:
        devices = gpus() or CPU_DEVICES
    numbers = list(range(devices)) if isinstance(devices, int) else list(devices)
    has_gpus = gpus() > 0
    known = all(isinstance(each, int) and each >= 0 for each in numbers)
    if not numbers or not known or (has_gpus and max(numbers) >= gpus()):
        what = "expected a count from 1 on, or numbers of devices that there are"
        raise InvalidArgument(f"devices is {devices!r}; {what}")
    return numbers
