"""The event loop of this process in which handlers that are coroutines run.

There is one, on a daemon thread, from the first of them on. A forked child gets one of its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any

__all__ = ["submit"]

_lock = threading.Lock()
_known: tuple[int, asyncio.AbstractEventLoop] | None = None


def submit(coroutine: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
    """Have `coroutine` run in the loop. Never waits; may be called from any thread.

    >>> import asyncio, sheave.loops
    >>> sheave.loops.submit(asyncio.sleep(0, "done")).result(timeout=10)
    'done'
    """
    return asyncio.run_coroutine_threadsafe(coroutine, _loop())


def _loop() -> asyncio.AbstractEventLoop:
    global _known
    with _lock:
        if _known is None or _known[0] != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(loop,), name="sheave-loop", daemon=True).start()
            _known = (os.getpid(), loop)
        return _known[1]


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.Lock()))
