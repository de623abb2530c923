"""What an operation in flight is to torch.

Torch holds what a backend returns in a wrapper that hands on `wait` and `get_future` alone. Four things follow.

- A failure must be raised by `wait` itself: a work that torch makes of a future waits for that future without raising.
- A future is completed by a function that waits for the operation and raises what it has failed with. An exception
  that is *set* as the result of a future is a value to C++, which takes it for success.
- Futures are completed on threads that may block, one for each that does: hooks of DistributedDataParallel run there,
  and some of them wait for operations of their own.
- What is copied after the end is copied in the inference mode of the thread that has begun the operation.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Lock
from typing import Any

import torch
from torch._C._distributed_c10d import Work
from torch.futures import Future

import sheave
from sheave.torch.errors import torch_errors

__all__ = ["SheaveWork"]

COMPLETERS_MAX = 64
"""The most threads that complete futures; they are made as they are needed."""

_completers: ThreadPoolExecutor | None = None
_lock = Lock()


def _complete(future: Future[None]) -> None:
    """Complete a future on a thread that may block."""
    global _completers
    with _lock:
        if _completers is None:
            _completers = ThreadPoolExecutor(COMPLETERS_MAX, thread_name_prefix="sheave-torch")
    _completers.submit(future.set_result, None)


class SheaveWork(Work):
    """One or several operations of a group that torch sees as one."""

    def __init__(
        self, works: Sequence[sheave.Work[Any]], result: Any, finish: Callable[[], object] | None = None
    ) -> None:
        super().__init__()
        self._works, self._result, self._finish = works, result, finish
        # As long as it lives: while one thread finishes it, no other one may think that there is nothing to finish.
        self._has_finish = finish is not None
        self._finishing = Lock()
        self._is_inference = torch.is_inference_mode_enabled()
        _pending.add(self)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the end and raise what the operation has failed with.

        Raise DeadlineExceeded when the timeout has passed, if it is not zero; the operation goes on then.
        """
        until = time.monotonic() + timeout.total_seconds() if timeout > timedelta(0) else None
        with torch_errors():
            for work in self._works:
                work.wait(None if until is None else max(until - time.monotonic(), 0.0))
        if self._has_finish:
            with self._finishing, torch.inference_mode(self._is_inference):
                if self._finish is not None:
                    self._finish()
                    self._finish = None
        return True

    def is_completed(self) -> bool:
        """Return whether it has ended. Torch hands this on for point-to-point operations alone."""
        return all(work.done() for work in self._works)

    def is_success(self) -> bool:
        """Return whether it has ended well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return what it has failed with, if it has ended so."""
        if not self.is_completed():
            return None
        return next((failure for work in self._works if (failure := work.exception()) is not None), None)

    def result(self) -> Any:
        """Wait for the end and return the tensors."""
        self.wait()
        return self._result

    def synchronize(self) -> None:
        """Wait for the end."""
        self.wait()

    def source_rank(self) -> int:
        """Wait for the end of a receive and return the rank in the group of the sender."""
        self.wait()
        return int(self._works[0].wait())

    _source_rank = source_rank

    def get_future(self) -> Future[Any]:
        """Return a future of the tensors, which fails as `wait` does."""
        ended: Future[None] = Future()

        def value(_: Future[None]) -> Any:
            self.wait()
            return self._result

        future = ended.then(value)
        if self.is_completed():
            ended.set_result(None)
        else:
            self._works[-1].add_done_callback(lambda _: _complete(ended))
        return future

    def cancel(self) -> None:
        """Ask the operations to end."""
        for work in self._works:
            if not work.done():
                work.cancel()


_pending: weakref.WeakSet[SheaveWork] = weakref.WeakSet()


def _drop_pending() -> None:
    """Give up what nobody has waited for, while the interpreter can still free it."""
    for work in list(_pending):
        work._works, work._result, work._finish = (), None, None


atexit.register(_drop_pending)
