"""Programs of torch that start at once: forks of a process that has imported it, which takes seconds each time.

`python torch_forks.py CONTROL` is that process. It gets the programs over the socket CONTROL, each with the three pipes
of its streams and a socket on which its number and then its exit status are told, and ends when that is closed. It has
one thread, knows nothing of sheave, and has made no process group: a fork is a process as if it had begun itself.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import types

IMPORTS = [
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch.utils.data",
]


WHOLE_END = "SHEAVE_TEST_WHOLE_END"
"""Set to 1 for a program whose interpreter is to be taken down at its end, as that of others is."""


def serve(control):
    """Fork for each program, until there are no more; returns in the forks, with what they are to run."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        said, files, _, _ = socket.recv_fds(control, 1 << 20, 4)
        if not said:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            return begin(json.loads(said), files)
        for file in files:
            os.close(file)


def begin(program, files):
    """Fork once more, so that there is somebody who tells of the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, report = files
    pid = os.fork()
    if pid != 0:
        for stream in (*streams, 0, 1, 2):
            os.close(stream)
        os.write(report, f"{pid}\n".encode())
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            os.write(report, f"{status}\n".encode())
        os._exit(0)
    os.setsid()
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    for file in files:
        os.close(file)
    os.environ.clear()
    os.environ.update(program["environment"])
    return program


def main():
    for name in IMPORTS:
        importlib.import_module(name)
    # What is shared stays so where it is not looked through: a fork would copy it all when it collects garbage.
    gc.freeze()
    program = serve(socket.socket(fileno=int(sys.argv[1])))
    import torch.distributed

    # It was read when torch was imported.
    torch.distributed.set_debug_level_from_env()
    sys.argv = ["-c", *program["arguments"]]
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    status = 0
    try:
        exec(compile(program["source"], "<program>", "exec"), module.__dict__)
    except BaseException:
        traceback.print_exc()
        status = 1
    if os.environ.get(WHOLE_END) == "1":
        gc.unfreeze()
        sys.exit(status)
    # To take down all that torch consists of takes longer than most programs.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)


class Fork:
    """The part of `subprocess.Popen` that tests need, for a fork."""

    def __init__(self, report, stdin, stdout, stderr):
        self.returncode, self._report = None, report.makefile("r")
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        report.settimeout(100)
        self.pid = int(self._report.readline())
        self._socket = report

    def kill(self):
        """Kill it, unless its end is known."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout=None):
        """Wait for its end; returns the exit status."""
        if self.returncode is None:
            self._socket.settimeout(timeout)
            try:
                self.returncode = int(self._report.readline())
            except TimeoutError:
                raise subprocess.TimeoutExpired("a fork", timeout) from None
        return self.returncode

    def communicate(self, timeout=None):
        """Close its input, and wait for its end; returns what it has written."""
        until = None if timeout is None else time.monotonic() + timeout
        if not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        written = {stream: b"" for stream in (self.stdout, self.stderr) if not stream.closed}
        with selectors.DefaultSelector() as selector:
            for stream in written:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise subprocess.TimeoutExpired("a fork", timeout)
                for key, _ in selector.select(left):
                    piece = os.read(key.fd, 1 << 16)
                    written[key.fileobj] += piece
                    if not piece:
                        selector.unregister(key.fileobj)
                        key.fileobj.close()
        self.wait(None if until is None else max(until - time.monotonic(), 0.001))
        return tuple(written.get(stream, b"").decode() for stream in (self.stdout, self.stderr))


class Forks:
    """Starts programs; the process that is forked begins with the first of them."""

    def __init__(self):
        self._control, self._process = None, None

    def start(self, source, *arguments, **environment):
        """Start a program; returns it as `Fork`."""
        if self._process is None:
            self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other:
                command = [sys.executable, "-u", __file__, str(other.fileno())]
                environment_of_all = {**os.environ, "OMP_NUM_THREADS": "1"}
                self._process = subprocess.Popen(command, pass_fds=[other.fileno()], env=environment_of_all)
        program = {
            "source": textwrap.dedent(source),
            "arguments": [str(argument) for argument in arguments],
            "environment": {**os.environ, "OMP_NUM_THREADS": "1", **environment},
        }
        report, its_report = socket.socketpair()
        (stdin, ours_in), (ours_out, stdout), (ours_err, stderr) = os.pipe(), os.pipe(), os.pipe()
        given = [stdin, stdout, stderr, its_report.detach()]
        socket.send_fds(self._control, [json.dumps(program).encode()], given)
        for file in given:
            os.close(file)
        return Fork(report, os.fdopen(ours_in, "w"), os.fdopen(ours_out, "rb", 0), os.fdopen(ours_err, "rb", 0))

    def close(self):
        """End the process that is forked."""
        if self._process is not None:
            self._control.close()
            self._process.wait(timeout=60)


if __name__ == "__main__":
    main()
