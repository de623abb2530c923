"""Two real processes: tensors over every medium, death, Ctrl-C, the interpreter lock, fork and exit."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import sheave

ECHO = """
    import sys, sheave
    node = sheave.Node("echo", transport=sys.argv[2])
    link = node.connect(sys.argv[1])
    print("ready", flush=True)
    while True:
        tensor = node.recv(link)
        if tensor.nbytes == 0:
            break
        node.send(link, tensor, mode=sys.argv[3])
"""


@pytest.fixture(params=["shm", "tcp"])
def transport(request):
    return request.param


def hear(node, start, source, *arguments, **environment):
    """Start a program that connects to `node`; returns it and the link."""
    program = start(source, node.listen(), *arguments, **environment)
    return program, node.accept(timeout=20)


def within(seconds):
    """Polls until the deadline."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield
        time.sleep(0.005)
    pytest.fail(f"it did not happen within {seconds} s")


@pytest.mark.parametrize("mode", ["copy", "move"])
def test_round_trip(start, transport, mode):
    with sheave.Node("main") as node:
        program, link = hear(node, start, ECHO, transport, mode)
        assert node.medium(link) == transport
        assert (node.peer(link).name, node.peer(link).pid) == ("echo", program.pid)
        program.line()
        for count in (1, 100, 50_000, 3_000_000):
            values = np.random.default_rng(count).standard_normal(count, np.float32)
            node.send(link, values)
            received = node.recv(link, timeout=20)
            assert received.source == link
            np.testing.assert_array_equal(received.numpy(), values)
        target = np.empty_like(values)
        node.send(link, values)
        node.recv(link, out=target, timeout=20)
        np.testing.assert_array_equal(target, values)
        node.send(link, b"")
        program.succeed()


def test_move_between_processes_copies_nothing(start):
    with sheave.Node("main") as node:
        program, link = hear(node, start, ECHO, "shm", "move")
        program.line()
        tensor = node.empty(4 << 20, "uint8")
        tensor.numpy()[:] = 3
        address = tensor.data_ptr
        for round_trip in range(50):
            tensor.numpy()[round_trip] = round_trip
            node.send(link, tensor, mode="move")
            tensor = node.recv(link, timeout=20)
        view = tensor.numpy()
        assert view[:50].tolist() == list(range(50)) and view[50:].min() == 3
        assert tensor.data_ptr == address, "the block went out and came home"
        assert node.counts()["bytes_copied"] == 0
        del view
        node.send(link, b"")
        program.succeed()


def test_any_source(start):
    with sheave.Node("main") as node:
        programs = [hear(node, start, ECHO, transport, "copy") for transport in ("shm", "tcp")]
        for program, link in programs:
            program.line()
            node.send(link, np.full(3, link.id))
        sources = set()
        for _ in programs:
            tensor = node.recv(timeout=20)
            assert tensor.numpy()[0] == tensor.source.id
            sources.add(tensor.source)
        assert sources == {link for _, link in programs}


def test_a_killed_peer_is_named_within_a_second(start, transport):
    with sheave.Node("main") as node:
        program, link = hear(node, start, ECHO, transport, "copy")
        program.line()
        work = node.irecv(link, tag=9)
        caught = []

        def wait():
            try:
                node.recv(link)
            except sheave.SheaveError as error:
                caught.append((time.monotonic(), error))

        waiter = threading.Thread(target=wait)
        waiter.start()
        os.kill(program.pid, signal.SIGKILL)
        killed = time.monotonic()
        waiter.join(timeout=20)
        ended, error = caught[0]
        assert ended - killed < 1.0
        assert isinstance(error, sheave.PeerLost) and isinstance(error, ConnectionError)
        assert (error.kind, error.op, error.peer.name, error.peer.pid) == ("PeerLost", "recv", "echo", program.pid)
        assert isinstance(work.exception(timeout=1), sheave.PeerLost)
        with pytest.raises(sheave.PeerLost, match="echo"):
            node.send(link, b"too late")


def test_the_lock_may_be_held_for_ten_seconds(start, transport):
    """A thread that keeps the interpreter does not keep the node from showing that it lives."""
    holder = """
        import ctypes, sys, sheave
        node = sheave.Node("holder", liveness_timeout=3, transport=sys.argv[2])
        link = node.connect(sys.argv[1])
        print("ready", flush=True)
        sys.stdin.readline()
        ctypes.PyDLL(None).usleep(10_000_000)
        node.send(link, b"still here")
        node.recv(link)
    """
    with sheave.Node("main", liveness_timeout=3) as node:
        program, link = hear(node, start, holder, transport)
        program.line()
        program.tell()
        begun = time.monotonic()
        assert bytes(node.recv(link, timeout=30)) == b"still here"
        assert time.monotonic() - begun > 9.5
        node.send(link, b"done")
        program.succeed()


def test_a_wait_lets_other_threads_run(start):
    with sheave.Node("main") as node:
        program, link = hear(node, start, ECHO, "shm", "copy")
        ticks, stop = [], threading.Event()

        def tick():
            while not stop.wait(0.005):
                ticks.append(time.monotonic())

        ticker = threading.Thread(target=tick)
        ticker.start()
        with pytest.raises(sheave.DeadlineExceeded) as caught:
            node.recv(link, timeout=0.5)
        stop.set()
        ticker.join()
        assert len(ticks) > 20
        assert max(after - before for before, after in zip(ticks, ticks[1:])) < 0.25
        assert isinstance(caught.value, TimeoutError) and 0.5 <= caught.value.elapsed < 1
        assert "tag" in caught.value.hint


@pytest.mark.parametrize("blocked_in", ["node.recv(link)", "node.irecv(link).wait()", "node.accept()"])
def test_ctrl_c_ends_a_wait(start, blocked_in):
    program = f"""
        import signal, sys, time, sheave
        # A shell starts what it puts in the background with this signal ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        node = sheave.Node("child")
        link = node.connect(sys.argv[1])
        print("blocks", flush=True)
        try:
            {blocked_in}
        except KeyboardInterrupt:
            print(time.monotonic(), flush=True)
        node.send(link, b"usable")
        print(bytes(node.recv(link, tag=1)))
    """
    with sheave.Node("main") as node:
        child, link = hear(node, start, program)
        child.line()
        for _ in within(10):
            with open(f"/proc/{child.pid}/syscall") as syscall:
                # Asleep below the interpreter: whatever the system call, the process is not running.
                if "running" not in syscall.read():
                    break
        interrupted = time.monotonic()
        os.kill(child.pid, signal.SIGINT)
        assert float(child.line()) - interrupted < 0.5
        assert bytes(node.recv(link, timeout=10)) == b"usable"
        node.send(link, b"and still", tag=1)
        assert child.succeed().strip() == "b'and still'"


def test_a_signal_handler_that_raises_nothing_does_not_end_the_wait(start):
    program = """
        import signal, sys, sheave
        signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
        node = sheave.Node("child")
        link = node.connect(sys.argv[1])
        print("ready", flush=True)
        print(bytes(node.recv(link)))
    """
    with sheave.Node("main") as node:
        child, link = hear(node, start, program)
        child.line()
        os.kill(child.pid, signal.SIGUSR1)
        assert child.line() == "handled"
        node.send(link, b"went on")
        assert child.succeed().strip() == "b'went on'"


def test_deadlines(start):
    with sheave.Node("main") as node:
        _, link = hear(node, start, ECHO, "shm", "copy")
        begun = time.monotonic()
        work = node.irecv(link)
        with pytest.raises(sheave.DeadlineExceeded, match="still running"):
            work.wait(timeout=0.1)
        assert not work.done() and time.monotonic() - begun < 1
        node.send(link, b"echo")
        assert bytes(work.wait(timeout=10)) == b"echo" and work.done()
        assert work.result() is work.wait() and work.exception() is None
        cancelled = node.irecv(link)
        cancelled.cancel()
        with pytest.raises(sheave.Cancelled):
            cancelled.wait(timeout=10)
        for timeout in (-1, float("nan")):
            with pytest.raises(ValueError):
                node.recv(link, timeout=timeout)
        with pytest.raises(sheave.DeadlineExceeded, match="connect"):
            node.connect("sheave://127.0.0.1:1/", timeout=0.2)


FORKS = {
    "os._exit": "os._exit(0)",
    "sys.exit": "sys.exit(0)",
    "collects": "del node, tensor, view; import gc; gc.collect(); sys.exit(0)",
}


@pytest.mark.parametrize("end", FORKS)
def test_a_forked_child_ends_silently(start, transport, end):
    program = f"""
        import os, sys, sheave
        node = sheave.Node("forker", transport=sys.argv[2])
        link = node.connect(sys.argv[1])
        tensor = node.recv(link)
        view = tensor.numpy()
        child = os.fork()
        if child == 0:
            {FORKS[end]}
        assert os.waitpid(child, 0)[1] == 0
        node.send(link, view + 1)
        node.recv(link)
    """
    with sheave.Node("main") as node:
        child, link = hear(node, start, program, transport)
        node.send(link, np.zeros(1 << 18, np.float32))
        assert (node.recv(link, timeout=20).numpy() == 1).all()
        node.send(link, b"bye")
        child.succeed()


def test_workers_forked_like_those_of_a_data_loader(start):
    program = """
        import multiprocessing, sys, sheave
        import numpy as np

        def work(inbox, outbox):
            for item in iter(inbox.get, None):
                outbox.put(np.full(4, item).sum())

        node = sheave.Node("loader")
        link = node.connect(sys.argv[1])
        context = multiprocessing.get_context("fork")
        inbox, outbox = context.Queue(), context.Queue()
        workers = [context.Process(target=work, args=(inbox, outbox)) for _ in range(2)]
        for worker in workers:
            worker.start()
        for item in range(8):
            inbox.put(item)
        node.send(link, np.array(sorted(outbox.get() for _ in range(8))))
        for worker in workers:
            inbox.put(None)
        for worker in workers:
            worker.join(10)
            assert worker.exitcode == 0, worker
        node.recv(link)
    """
    with sheave.Node("main") as node:
        child, link = hear(node, start, program)
        assert node.recv(link, timeout=30).numpy().tolist() == [0, 4, 8, 12, 16, 20, 24, 28]
        node.send(link, b"bye")
        child.succeed()


def test_a_node_is_refused_in_a_forked_child(start):
    program = """
        import os, sys, sheave
        node = sheave.Node("forker")
        link = node.connect(sys.argv[1])
        work = node.irecv(link, tag=3)
        child = os.fork()
        if child == 0:
            attempts = [lambda: node.send(link, b"x"), lambda: node.recv(link, timeout=1), lambda: work.wait(1),
                        node.listen, lambda: node.empty(3), lambda: sheave.Node("new").listen()]
            for attempt in attempts:
                try:
                    attempt()
                except sheave.Forked as error:
                    assert isinstance(error, RuntimeError) and "spawn" in error.hint
                else:
                    os._exit(1)
            os._exit(0)
        print(os.waitpid(child, 0)[1])
        node.send(link, b"fine")
    """
    with sheave.Node("main") as node:
        child, link = hear(node, start, program)
        assert child.line() == "0"
        assert bytes(node.recv(link, timeout=10)) == b"fine"
        child.succeed()


@pytest.mark.parametrize("pending", ["node.irecv(link)", "thread(lambda: node.recv(link))", "thread(node.accept)"])
def test_exit_with_operations_in_flight(start, transport, pending):
    program = f"""
        import sys, threading, time, sheave
        import numpy as np

        def thread(wait):
            threading.Thread(target=wait, daemon=True).start()

        threading.excepthook = lambda arguments: None
        node = sheave.Node("leaver", transport=sys.argv[2])
        link = node.connect(sys.argv[1])
        works = [{pending}, node.isend(link, np.zeros(1 << 20), tag=4)]
        print(time.monotonic(), flush=True)
    """
    with sheave.Node("main") as node:
        child, link = hear(node, start, program, transport)
        left = float(child.line())
        child.succeed()
        assert time.monotonic() - left < 5
        with pytest.raises(sheave.PeerLost):
            node.recv(link, tag=5, timeout=10)


def test_closing_ends_the_waits_of_other_threads(start, transport):
    with sheave.Node("main") as node:
        _, link = hear(node, start, ECHO, transport, "copy")
        ended = []

        def wait():
            try:
                node.recv(link)
            except sheave.SheaveError as error:
                ended.append(error.kind)

        waiter = threading.Thread(target=wait)
        waiter.start()
        for _ in within(10):
            if node.counts()["waits_parked"]:
                break
        node.close()
        waiter.join(timeout=10)
        assert ended == ["Closed"]
        with pytest.raises(sheave.Closed):
            node.send(link, b"x")
        node.close()


def test_another_secret_is_refused(start):
    program = """
        import sys, sheave
        try:
            sheave.Node("stranger").connect(sys.argv[1], timeout=10)
        except sheave.Unauthenticated as error:
            print(isinstance(error, PermissionError), "secret" in str(error))
    """
    with sheave.Node("main") as node:
        child = start(program, node.listen(), SHEAVE_SECRET="another secret, long enough to be one")
        assert child.succeed().strip() == "True True"


def test_a_link_belongs_to_its_node(start):
    with sheave.Node("main") as node, sheave.Node("another") as another:
        link = node.link_to(another)
        with pytest.raises(sheave.InvalidArgument, match="another node"):
            another.send(link, b"x")


def test_accept_after_a_timeout_loses_no_link(start):
    with sheave.Node("main") as node:
        with pytest.raises(sheave.DeadlineExceeded):
            node.accept(timeout=0.05)
        program, link = hear(node, start, ECHO, "shm", "copy")
        assert node.peer(link).name == "echo"
