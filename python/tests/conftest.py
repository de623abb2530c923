"""What all tests share: nodes, links of every medium, and peers in processes of their own."""

import contextlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import sheave

# Tests neither read nor make the user's cookie file; child processes inherit this.
os.environ["SHEAVE_SECRET"] = os.urandom(16).hex()


SUITES = ("soak", "adversity")
"""Tests that take long or need root are marked with their suite and why, as in `@pytest.mark.soak("minutes")`."""


DEATH_BOUND_S = 5.0
"""The time within which ranks say that another has died: a second, and more for a machine with fewer cores than ranks.
It is far below the silence that they would wait for."""

LIVENESS = {"SHEAVE_LIVENESS_TIMEOUT_MS": "3000", "SHEAVE_LIVENESS_BEAT_MS": "500"}

SILENCE_BOUND_S = 3.0 + 2 * 0.5 + DEATH_BOUND_S
"""The silence that is borne, a beat in which the last sign of life came and one until somebody looks, and the time
within which all know of a death."""


def pytest_addoption(parser):
    parser.addoption("--suite", choices=SUITES, help="run the tests of this suite and no others")


def pytest_configure(config):
    # Interrupts are ignored from the start where tests run in the background; child processes would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for suite in SUITES:
        config.addinivalue_line("markers", f"{suite}(why): one of the {suite} suite, which is run by its name")


def pytest_collection_modifyitems(config, items):
    """Keep the tests of the suite that was asked for; without one, skip those that belong to any."""
    asked, kept, others = config.getoption("--suite"), [], []
    for item in items:
        marks = [mark for suite in SUITES if (mark := item.get_closest_marker(suite)) is not None]
        (kept if asked is None or asked in [mark.name for mark in marks] else others).append(item)
        for mark in marks if asked is None else []:
            item.add_marker(pytest.mark.skip(reason=f"{mark.name} suite: {mark.args[0]}"))
    items[:] = kept
    config.hook.pytest_deselected(items=others)


@pytest.fixture(params=["inproc", "shm"])
def pair(request):
    """Two linked nodes of this process: (one, its link, other, its link)."""
    with sheave.Node("one") as one, sheave.Node("other") as other:
        link = one.link_to(other, request.param)
        yield one, link, other, other.accept(timeout=10)


class Program:
    """A Python program in a process of its own, which is gone when the test is over; it may run `on` another host."""

    def __init__(self, source, *arguments, forks=None, on=None, **environment):
        if forks is not None:
            self.process = forks.start(source, *arguments, **environment)
            return
        command = [sys.executable, "-u", "-c", textwrap.dedent(source), *map(str, arguments)]
        self.process = subprocess.Popen(
            command if on is None else on.command(*command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )

    @property
    def pid(self):
        return self.process.pid

    def stop(self):
        """Stop it, and wait until all of its threads have: beside others that want the cores that takes its time."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def line(self):
        """The next line that it prints, or its last words if there is none."""
        line, pipe = b"", self.process.stdout.fileno()
        # One by one: what was read beyond the line would be lost to `communicate`.
        while not line.endswith(b"\n") and (byte := os.read(pipe, 1)):
            line += byte
        assert line, f"the program ended: {self.process.communicate(timeout=20)[1]}"
        return line.decode().strip()

    def tell(self, line=""):
        """Give it a line to read."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def finish(self, timeout=20):
        """Wait for its end; returns exit status, the rest of its output, and what it wrote to standard error."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    def succeed(self, timeout=20):
        """Wait for its end, which must be silent and successful. Returns the rest of its output."""
        status, out, err = self.finish(timeout)
        assert (status, err) == (0, ""), f"status {status}, it said: {err}"
        return out


def in_a_wait(program):
    """Waits until the process has printed a line and sleeps below the interpreter."""
    program.line()
    wait_until_asleep(program)


def wait_until_asleep(program):
    """Waits until the main thread of a process sleeps below the interpreter."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with open(f"/proc/{program.pid}/syscall") as syscall:
            if "running" not in syscall.read():
                return
        time.sleep(0.005)
    pytest.fail("it does not wait")


@pytest.fixture(scope="session")
def forks():
    """Forks of one process that has imported torch."""
    import torch_forks

    with contextlib.closing(torch_forks.Forks()) as made:
        yield made


@pytest.fixture
def start():
    """Start programs that are killed at the end of the test, if they still run."""
    yield from launching()


@pytest.fixture
def start_torch(forks):
    """As `start`, for programs that import torch, as forks of a process that has done so."""
    yield from launching(forks=forks)


def launching(**how):
    """Yield what starts programs, and then end them."""
    programs = []

    def launch(source, *arguments, **environment):
        programs.append(Program(source, *arguments, **how, **environment))
        return programs[-1]

    try:
        yield launch
    finally:
        for program in programs:
            # With whatever it forked, which would keep the pipes open; it leads a process group of its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.process.communicate()


HAS_TORCH = importlib.util.find_spec("torch") is not None


def lacks_torch(documented):
    """Whether its examples want torch, and there is none."""
    return not HAS_TORCH and "import torch" in (inspect.getdoc(documented) or "")


def modules_of(package):
    """A package and the modules in it, without those that want torch where there is none."""
    yield package
    names = [info.name for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    for name in names:
        try:
            if not name.endswith("__main__"):
                yield importlib.import_module(name)
        except ModuleNotFoundError as missing:
            if HAS_TORCH or not (missing.name or "").startswith("torch"):
                raise


def free_root():
    """An address that nobody listens on now."""
    return f"127.0.0.1:{sheave._core._free_port()}"


def together(act, size=3, **settings):
    """Call `act(mesh)` for each rank of a mesh whose nodes are threads of this process; returns the results by rank."""
    root, results, failures = free_root(), [None] * size, []

    def run(rank):
        try:
            with sheave.Mesh(rank=rank, size=size, root=root, join_timeout=20, **settings) as mesh:
                results[rank] = act(mesh)
                mesh.barrier(timeout=20)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=50)
        assert not thread.is_alive(), "a rank does not come to its end"
    if failures:
        # Who only misses another rank comes last.
        raise min(failures, key=lambda failure: isinstance(failure, sheave.PeerLost))
    return results
