"""The classes of `sheave._core` that sessions have: this module is there for their stubs."""

from sheave._core import (
    Function,
    ProcessSession,
    Register,
    Session,
    SessionWorker,
    SocketSession,
    ThreadedSession,
    WorkerObject,
)

__all__ = [
    "Function",
    "ProcessSession",
    "Register",
    "Session",
    "SessionWorker",
    "SocketSession",
    "ThreadedSession",
    "WorkerObject",
]
