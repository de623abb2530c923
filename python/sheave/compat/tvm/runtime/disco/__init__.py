"""``tvm.runtime.disco``: one controller, and workers that run its commands."""

from sheave.compat.tvm.runtime.disco import worker
from sheave.compat.tvm.runtime.disco.drefs import DModule, DPackedFunc, DRef
from sheave.compat.tvm.runtime.disco.session import ProcessSession, Session, ThreadedSession
from sheave.compat.tvm.runtime.module import register_module_loader

__all__ = [
    "DModule",
    "DPackedFunc",
    "DRef",
    "ProcessSession",
    "Session",
    "ThreadedSession",
    "register_module_loader",
    "worker",
]
