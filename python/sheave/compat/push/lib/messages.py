"""The messages to and from node event loops.

Fields are those of PusH, in its order. All else has a default: every answer has an `error`, which is None where all
went well, a node event loop is told of particles of others by their rank too, and files go where `path` says. What PusH
calls PD ("push distribution") passes between `PusH` and a node event loop; the others pass between node event loops.
"""

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sheave
from sheave import pickling

__all__ = ["MSG", "NELBroadcastParticlesAckMSG", "NELBroadcastParticlesMSG", "NELRankLostMSG", "NELSaveModel"]
__all__ += ["NELSaveModelAckPDMSG", "NodeEvtLoopCleanupMSG", "NodeEvtLoopInitMSG", "ReceiveFuncAckMSG"]
__all__ += ["ReceiveFuncAckPDMSG", "ReceiveFuncMSG", "ReceiveFuncPDMSG", "ReceiveGetAckMSG", "ReceiveGetMSG"]
__all__ += ["ReceiveParametersAckPDMSG", "ReceiveParametersPDMSG", "ReceiveParticleInitAckPDMSG"]
__all__ += ["ReceiveParticleInitPDMSG", "ReceiveRegisterAckPDMSG", "ReceiveRegisterPDMSG"]

#: The particle and the number of a future.
PidFid = tuple[int, int]
Receive = Mapping[str, Callable[..., Any]]


class MSG:
    """A message. Its `error` comes to another process with the text of its traceback as a note."""

    def __getstate__(self) -> dict[str, Any]:
        fields = dict(vars(self))
        error = fields.get("error")
        if isinstance(error, BaseException):
            text = "".join(traceback.format_exception(error))
            summary = "".join(traceback.format_exception_only(error)).strip()
            fields["error"] = (pickling.pack_exception(error), summary, text)
        return fields

    def __setstate__(self, fields: dict[str, Any]) -> None:
        error = fields.get("error")
        if isinstance(error, tuple):
            fields["error"] = _unpacked(*error)
        vars(self).update(fields)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"


class NodeEvtLoopInitMSG(MSG):
    """A node event loop is up, or could not be made for an `error`."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class NodeEvtLoopCleanupMSG(MSG):
    """The node event loop is to end. It has no answer."""


class NELBroadcastParticlesMSG(MSG):
    """What a node event loop is to know of the others: queues by rank, and devices and ranks of particles.

    Tables replace those that it has, but with `is_more` they are added to them. One that is None stays as it is.
    """

    def __init__(
        self,
        in_queues: Mapping[int, Any] | None,
        out_queues: Mapping[int, Any] | None,
        particle_to_device: Mapping[int, Any],
        particle_to_rank: Mapping[int, int] | None = None,
        is_more: bool = False,
    ) -> None:
        self.in_queues = in_queues
        self.out_queues = out_queues
        self.particle_to_device = particle_to_device
        self.particle_to_rank = particle_to_rank
        self.is_more = is_more


class NELBroadcastParticlesAckMSG(MSG):
    """The answer to `NELBroadcastParticlesMSG`."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class NELRankLostMSG(MSG):
    """The node event loop of a rank is gone: whatever is waited for there fails with `error`. PusH has no such message,
    for its waits go on."""

    def __init__(self, rank: int, error: BaseException) -> None:
        self.rank = rank
        self.error = error


class NELSaveModel(MSG):
    """All particles are to be written to files in the directory `path`, or read from them."""

    def __init__(self, pid_fid: PidFid, path: str | None = None, is_load: bool = False) -> None:
        self.pid_fid = pid_fid
        self.path = path
        self.is_load = is_load


class NELSaveModelAckPDMSG(MSG):
    """The answer to `NELSaveModel`."""

    def __init__(self, pid_fid: PidFid, error: BaseException | None = None) -> None:
        self.pid_fid = pid_fid
        self.error = error


class ReceiveParticleInitPDMSG(MSG):
    """A particle is to be made."""

    def __init__(
        self,
        device: int,
        pid: int,
        mk_optim: Callable[..., Any] | None,
        mk_scheduler: Callable[..., Any] | None = None,
        prior: bool = False,
        train_key: int | None = None,
        receive: Receive | None = None,
        state: dict[Any, Any] | None = None,
    ) -> None:
        self.device = device
        self.pid = pid
        self.mk_optim = mk_optim
        self.mk_scheduler = mk_scheduler
        self.prior = prior
        self.train_key = train_key
        self.receive = receive
        self.state = state


class ReceiveParticleInitAckPDMSG(MSG):
    """The answer to `ReceiveParticleInitPDMSG`."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class ReceiveRegisterPDMSG(MSG):
    """A particle is to handle messages `msg` by `fn(particle, *args)`; its state is `state` then, unless that is
    None."""

    def __init__(self, pid: int, msg: str, fn: Callable[..., Any], state: dict[Any, Any] | None = None) -> None:
        self.pid = pid
        self.msg = msg
        self.fn = fn
        self.state = state


class ReceiveRegisterAckPDMSG(MSG):
    """The answer to `ReceiveRegisterPDMSG`."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class ReceiveFuncPDMSG(MSG):
    """A particle is to handle a message of `PusH`. One that is called has no number: its answer is that of the call."""

    def __init__(self, pid_fid: PidFid | None, pid_to: int, msg: str, args: Sequence[Any]) -> None:
        self.pid_fid = pid_fid
        self.pid_to = pid_to
        self.msg = msg
        self.args = args


class ReceiveFuncAckPDMSG(MSG):
    """The answer to `ReceiveFuncPDMSG`: what the handler has returned, or its `error`."""

    def __init__(self, pid_fid: PidFid | None, result: Any = None, error: BaseException | None = None) -> None:
        self.pid_fid = pid_fid
        self.result = result
        self.error = error


class ReceiveParametersPDMSG(MSG):
    """The parameters of a particle are asked for."""

    def __init__(self, pid_fid: PidFid, pid: int) -> None:
        self.pid_fid = pid_fid
        self.pid = pid


class ReceiveParametersAckPDMSG(MSG):
    """The answer to `ReceiveParametersPDMSG`: tensors on the CPU, in the order of the module's parameters."""

    def __init__(
        self, pid_fid: PidFid, params: Sequence[Any] | None = None, error: BaseException | None = None
    ) -> None:
        self.pid_fid = pid_fid
        self.params = params
        self.error = error


class ReceiveFuncMSG(MSG):
    """A particle is to handle a message of a particle of another rank."""

    def __init__(self, pid_fid: PidFid, pid: int, msg_name: str, args: Sequence[Any]) -> None:
        self.pid_fid = pid_fid
        self.pid = pid
        self.msg_name = msg_name
        self.args = args


class ReceiveFuncAckMSG(MSG):
    """The answer to `ReceiveFuncMSG`: what the handler has returned, or its `error`."""

    def __init__(self, fid: int | None = None, result: Any = None, error: BaseException | None = None) -> None:
        self.fid = fid
        self.result = result
        self.error = error


class ReceiveGetMSG(MSG):
    """The parameters and gradients of a particle are asked for by one of another rank."""

    def __init__(self, pid_fid: PidFid, pid_caller: int, pid: int) -> None:
        self.pid_fid = pid_fid
        self.pid_caller = pid_caller
        self.pid = pid


class ReceiveGetAckMSG(MSG):
    """The answer to `ReceiveGetMSG`: tensors on the CPU, gradients None where there are none."""

    def __init__(
        self,
        fid: int,
        pid: int,
        params: Sequence[Any] | None,
        params_grad: Sequence[Any] | None,
        buffers: Sequence[Any] | None = None,
        error: BaseException | None = None,
    ) -> None:
        self.fid = fid
        self.pid = pid
        self.params = params
        self.params_grad = params_grad
        self.buffers = buffers
        self.error = error


def _unpacked(packed: bytes | None, summary: str, text: str) -> BaseException:
    """An error of another process; if its class is not known here, or takes nothing of what it was, it is a
    `sheave.Remote`."""
    error: BaseException = sheave.Remote(summary)
    if packed is not None:
        try:
            error = pickling.unpack_exception(packed)
        except Exception:
            pass
    error.add_note(f"in a node event loop of another process:\n{text}")
    return error
