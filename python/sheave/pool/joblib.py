"""joblib over `sheave.pool`, and with it what is built on joblib, such as scikit-learn: importing this registers the
backend `sheave`.

>>> import joblib, sheave.pool.joblib
>>> with joblib.parallel_backend("sheave", n_jobs=2):
...     joblib.Parallel()(joblib.delayed(pow)(number, 2) for number in range(5))
[0, 1, 4, 9, 16]

Functions are batched as joblib does. Workers stay for as long as the `Parallel` does that they were started for.
"""

from __future__ import annotations

import os
from abc import ABCMeta
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from joblib.parallel import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    AutoBatchingMixin,
    ParallelBackendBase,
    register_parallel_backend,
)
from sheave.pool._executor import Executor

__all__ = ["Backend"]


class Backend(AutoBatchingMixin, ParallelBackendBase, metaclass=ABCMeta):  # type: ignore[misc, unused-ignore]
    """Runs joblib's tasks in the processes of a `sheave.pool.Executor`."""

    supports_retrieve_callback = True
    supports_return_generator = True
    supports_timeout = True

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many workers `n_jobs` means: those of -1 are as many as this process has processors."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        processors = len(os.sched_getaffinity(0))
        if n_jobs is None:
            return 1
        return max(processors + 1 + n_jobs, 1) if n_jobs < 0 else n_jobs

    def configure(self, n_jobs: int = 1, parallel: Any = None, **options: Any) -> int:
        """Start the workers, and return how many there are. Options are those of `sheave.pool.Executor`."""
        count = self.effective_n_jobs(n_jobs)
        self.parallel = parallel
        known = {name: options[name] for name in ("mesh", "tries", "env", "output", "timeout") if name in options}
        self._executor = Executor(count, **known)
        return count

    def submit(self, func: Callable[[], Any], callback: Callable[[Future[Any]], Any] | None = None) -> Future[Any]:
        """Begin a task."""
        future = self._executor.submit(func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, future: Future[Any]) -> Any:
        """Return what came of a task."""
        return future.result()

    def terminate(self) -> None:
        """End the workers."""
        self._executor.shutdown(cancel_futures=True)

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Kill the workers, and start others if there is more to come."""
        self._executor._processes.core.terminate()
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel)


register_parallel_backend("sheave", Backend)
