"""Results that are on their way."""

import concurrent.futures
from collections.abc import Callable
from typing import Any

from sheave import SheaveError, Work

from sheave.compat.runtime_errors import raised, raising


class Future:
    """The result of a call that is on its way, as torch's futures are used."""

    def __init__(self, work: "Work[Any]") -> None:
        self._work = work

    def wait(self) -> Any:
        """Waits for the result. Raises what the function has raised, or why the call has failed."""
        with raising():
            return self._work.wait()

    def value(self) -> Any:
        """The result, which must be there."""
        if not self.done():
            raise RuntimeError("the future is not complete; hint: wait for it first")
        return self.wait()

    def done(self) -> bool:
        """Whether the result is there, or the call has failed."""
        return self._work.done()

    def exception(self) -> BaseException | None:
        """Why the call has failed; None while it has not."""
        error = self._work.exception() if self.done() else None
        return raised(error) if isinstance(error, SheaveError) else error

    def then(self, callback: Callable[[Any], Any]) -> "ChainedFuture":
        """A future of what `callback` makes of this one when it has ended. Callbacks share one thread, which they must
        not keep."""
        chained = ChainedFuture()
        self.add_done_callback(lambda future: chained.fill(callback, future))
        return chained

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """Calls `callback` with this future when it has ended, on the thread of callbacks."""
        self._work.add_done_callback(lambda _: callback(self))


class ChainedFuture:
    """The result of a callback that is called when another future has ended."""

    def __init__(self) -> None:
        self._ending: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def fill(self, callback: Callable[[Any], Any], future: Any) -> None:
        """Ends with what the callback comes to."""
        try:
            self._ending.set_result(callback(future))
        except BaseException as error:
            self._ending.set_exception(error)

    def wait(self) -> Any:
        """Waits for the result. Raises what the callback has raised."""
        return self._ending.result()

    def value(self) -> Any:
        """The result, which must be there."""
        if not self.done():
            raise RuntimeError("the future is not complete; hint: wait for it first")
        return self.wait()

    def done(self) -> bool:
        """Whether the callback has ended."""
        return self._ending.done()

    def then(self, callback: Callable[[Any], Any]) -> "ChainedFuture":
        """As `Future.then`."""
        chained = ChainedFuture()
        self.add_done_callback(lambda future: chained.fill(callback, future))
        return chained

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """As `Future.add_done_callback`."""
        self._ending.add_done_callback(lambda _: callback(self))
