"""How tasks come to workers that are processes, and results from them: over a pipe for each, so that a worker that is
killed leaves no lock behind, and it is known what it had begun.
"""

import io
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

import sheave
from sheave.compat.machin.parallel.exception import ExceptionWithTraceback
from sheave.compat.machin.parallel.pickle import dumps, loads

#: What a worker sends that wants a task, and no result.
_WANTS = b""

#: Seconds that a worker whose pipe has ended has to end itself.
_GRACE_S = 5.0

_REAP_S = 0.5

#: So many workers in a row that die before they want a task break the pool.
_STARTS_MAX = 3


class Carried:
    """A value that crosses to another process, or stays in this one as it is. Neither its pickling nor its opening ever
    fails: what they raise is raised by `open`, wherever that is called."""

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error

    def open(self) -> Any:
        """The value."""
        if self.error is not None:
            raise self.error
        return self.value

    def __call__(self) -> Any:
        """Call the function that it is, with its arguments."""
        function, args = self.open()
        return function(*args)

    def __reduce__(self) -> Any:
        try:
            if self.error is None:
                return _arrived, (dumps(self.value),)
            error = self.error
        except Exception as raised:
            error = sheave.Remote(f"a {type(self.value).__name__} cannot be sent: {raised}")
        return _failed, (dumps(ExceptionWithTraceback(error)),)


def _arrived(data: bytes) -> Carried:
    try:
        return Carried(loads(data))
    except Exception as raised:
        return Carried(error=raised)


def _failed(data: bytes) -> Carried:
    return Carried(error=loads(data))


class WorkerEnd:
    """The end of a line that a worker has."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self) -> Any:
        """The next task; None if there are no more. Raises EOFError when the pool has ended."""
        self._connection.send_bytes(_WANTS)
        return pickle.loads(self._connection.recv_bytes())

    def put(self, result: Any) -> None:
        """Send a result."""
        self._connection.send_bytes(dumps(result))


class _Line:
    """The pool's end of a line."""

    def __init__(self, connection: Connection, other: Connection) -> None:
        self.connection = connection
        self.other: Connection | None = other
        self.worker: Any = None
        self.has_begun = False
        self.task: Any = None


class Lines:
    """All lines of a pool: a queue of tasks, and one of results."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._turn = threading.RLock()
        self._lines: dict[Connection, _Line] = {}
        self._idle: deque[_Line] = deque()
        self._tasks: deque[tuple[Any, bytes]] = deque()
        self._results: deque[Any] = deque()
        self._failed_starts = 0

    def start(self, make: Callable[[WorkerEnd], Any]) -> Any:
        """Make a worker over a new line, and start it."""
        own, other = self._context.Pipe()
        line = _Line(own, other)
        line.worker = make(WorkerEnd(other))
        line.worker.start()
        # From here on the line ends with the worker.
        other.close()
        with self._turn:
            self._lines[own] = line
        return line.worker

    def put(self, task: Any) -> None:
        """Give a task to the next worker that wants one; None lets one worker end."""
        data = io.BytesIO()
        ForkingPickler(data, pickle.HIGHEST_PROTOCOL).dump(task)
        with self._turn:
            self._tasks.append((task, data.getvalue()))
            self._feed()

    def get(self, timeout: float) -> Any:
        """The next result, which is a failure for what a worker had begun that has died. Raises TimeoutError."""
        if not self._results:
            with self._turn:
                connections = list(self._lines)
            for connection in wait(connections, timeout):
                self._read(self._lines[connection])  # type: ignore[index]
        if not self._results:
            raise TimeoutError("no task has ended")
        return self._results.popleft()

    def _read(self, line: _Line) -> None:
        try:
            data = line.connection.recv_bytes()
        except (EOFError, OSError):
            self._ended(line)
            return
        with self._turn:
            line.has_begun = True
            self._failed_starts = 0
            if data == _WANTS:
                self._idle.append(line)
                self._feed()
                return
            line.task = None
        self._results.append(loads(data))

    def _ended(self, line: _Line) -> None:
        with self._turn:
            del self._lines[line.connection]
            if line in self._idle:
                self._idle.remove(line)
            task = line.task
        line.connection.close()
        line.worker.join(_GRACE_S)
        if task is not None:
            self._results.append((task[0], task[1], (False, died(line.worker, "before its task was done"))))
        elif not line.has_begun:
            self._failed_starts += 1
            if self._failed_starts < _STARTS_MAX:
                return
            self._results.append((None, None, (False, died(line.worker, "before its first task"))))

    def _feed(self) -> None:
        while self._idle and self._tasks:
            line, (task, data) = self._idle.popleft(), self._tasks.popleft()
            try:
                line.connection.send_bytes(data)
            except OSError:
                # The worker has died, and this task is for another one.
                self._tasks.appendleft((task, data))
            else:
                line.task = task


def died(worker: Any, when: str) -> sheave.WorkerDied:
    """The error for a worker that has ended."""
    until = time.monotonic() + _REAP_S
    while (status := getattr(worker, "exitcode", 0)) is None and time.monotonic() < until:
        # Another thread has just reaped it.
        time.sleep(0.001)
    name = getattr(worker, "name", "a worker")
    error = sheave.WorkerDied(f"{name} has ended {when}, with exit status {status}")
    error.__dict__.update(exit_status=status, last_lines=[])
    return error
