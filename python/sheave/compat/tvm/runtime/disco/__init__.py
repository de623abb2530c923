"""``tvm.runtime.disco``: one controller, and workers that run its commands."""

from sheave.compat.tvm.runtime.disco import loader, moves, worker
from sheave.compat.tvm.runtime.disco.drefs import DModule, DPackedFunc, DRef
from sheave.compat.tvm.runtime.disco.session import ProcessSession, Session, SocketSession, ThreadedSession
from sheave.compat.tvm.runtime.module import register_module_loader

__all__ = [
    "DModule",
    "DPackedFunc",
    "DRef",
    "ProcessSession",
    "Session",
    "SocketSession",
    "ThreadedSession",
    "loader",
    "moves",
    "register_module_loader",
    "worker",
]
