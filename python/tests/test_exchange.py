"""`sheave.exchange`: both ends as threads of this process, and as the processes of a job."""

import asyncio
import contextlib
import os
import signal
import textwrap
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import sheave
from conftest import free_root, in_a_wait
from sheave.exchange import Server, Take, Worker

SOON = 20


@contextlib.contextmanager
def exchange(workers=1, servers=1, window=64, **settings):
    """The ends of an exchange, all in this process: lists of workers and servers by rank."""
    root, meshes, ends, failures = free_root(), [], {}, []
    settings = {"arena_bytes": 64 << 20, "join_timeout": SOON, **settings}

    def join(role, rank):
        try:
            place = {"role": role, "rank": rank, "workers": workers, "servers": servers, "root": root}
            mesh = sheave.Mesh(**place, **settings)
            meshes.append(mesh)
            if role == "worker":
                ends[role, rank] = Worker(mesh, stamps=True, window=window, timeout=SOON)
            if role == "server":
                ends[role, rank] = Server(mesh, timeout=SOON)
            if role in ("worker", "server"):
                ends[role, rank].mesh = mesh
        except BaseException as failure:
            failures.append(failure)

    counts = {"scheduler": 1, "server": servers, "worker": workers}
    places = [(role, rank) for role, count in counts.items() for rank in range(count)]
    threads = [threading.Thread(target=join, args=place, daemon=True) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=2 * SOON)
    try:
        assert not failures, failures
        yield (
            [ends["worker", rank] for rank in range(workers)],
            [ends["server", rank] for rank in range(servers)],
        )
    finally:
        for end in ends.values():
            end.close()
        # All at once, for each asks the others to agree.
        leaving = [threading.Thread(target=mesh.close, daemon=True) for mesh in meshes]
        for thread in leaving:
            thread.start()
        for thread in leaving:
            thread.join(timeout=SOON)


def answer_all(server, make):
    """Answers one batch: `make(request)` gives the arrays."""
    for request in server.get_batch(timeout=SOON):
        server.respond(request, make(request))


@contextlib.contextmanager
def serving(*servers, make):
    """Servers that answer on threads of their own, until their workers have left; that is seen at the end."""

    def serve(server):
        for batch in server:
            for request in batch:
                server.respond(request, make(request))
        ended.append(server)

    ended = []
    threads = [threading.Thread(target=serve, args=(server,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(timeout=SOON)
    assert len(ended) == len(servers)


def double(request):
    return [tensor.numpy() * 2 for tensor in request.tensors]


def test_a_work_is_the_pulled_arrays():
    with exchange() as ([worker], [server]):
        x, counts = np.arange(6.0).reshape(2, 3), np.array([4, 5], np.int32)
        y, z = np.zeros((2, 3)), np.zeros(2, np.int32)
        work = worker.push_pull({0: x, 9: counts}, {3: y, 1: z}, step=7)
        assert not work.done()
        [request] = server.get_batch(timeout=SOON)
        assert (request.handler, request.worker, request.number, request.step, request.keys) == (0, 0, 0, 7, [0, 9])
        assert request.pulls == [(3, "float64", (2, 3)), (1, "int32", (2,))]
        assert [tensor.shape for tensor in request.tensors] == [(2, 3), (2,)]
        assert server.unanswered == 1
        server.respond(request.handler, double(request))
        result = work.wait(timeout=SOON)
        assert list(result) == [3, 1] and result[3] is y and result[1] is z and work.result() is result
        np.testing.assert_array_equal(y, 2 * x)
        np.testing.assert_array_equal(z, 2 * counts)
        assert server.unanswered == 0
        [stamps] = worker.stamps(0)
        assert len(stamps) == 8 and stamps == sorted(stamps)


def test_several_servers_give_lists():
    with exchange(workers=2, servers=2) as (workers, servers):
        ys = [[np.zeros(2) for _ in servers] for _ in workers]
        works = [
            worker.push_pull({0: np.full(2, worker.rank + 1.0)}, {5: y, 6: [Take("float64", (2,))] * 2})
            for worker, y in zip(workers, ys, strict=True)
        ]
        for server in servers:
            batch = server.get_batch(timeout=SOON)
            assert [request.worker for request in batch] == [0, 1]
            for request in batch:
                x = request.tensors[0].numpy()
                server.respond(request, [x * (10 + server.rank), x * (20 + server.rank)])
        for rank, work in enumerate(works):
            result = work.wait(timeout=SOON)
            assert all(one is other for one, other in zip(result[5], ys[rank], strict=True))
            assert [array.tolist() for array in result[5]] == [[10 * (rank + 1)] * 2, [11 * (rank + 1)] * 2]
            assert [taken.numpy().tolist() for taken in result[6]] == [[20 * (rank + 1)] * 2, [21 * (rank + 1)] * 2]
        for wrong in (np.zeros(2), [np.zeros(2)], Take("float64", (2,)), [np.zeros(2)] * 3):
            with pytest.raises(sheave.InvalidArgument, match="pulled from 2 servers"):
                workers[0].push_pull({}, {5: wrong})


def test_works_are_awaited():
    async def main(worker):
        ys = [np.zeros(3) for _ in range(30)]
        results = await asyncio.gather(*(worker.push_pull({0: np.full(3, float(i))}, {0: y}) for i, y in enumerate(ys)))
        assert [result[0].tolist() for result in results] == [[2 * i] * 3 for i in range(30)]

    with exchange() as ([worker], [server]), serving(server, make=double):
        asyncio.run(main(worker))
        worker.close()


def test_moved_tensors_are_the_same_memory():
    """A tensor goes to the server, is written there, and comes back: on one host it stays where it is."""
    with exchange(transport="shm") as ([worker], [server]):
        count = 1 << 16
        tensor = worker.mesh.empty(count, "float32")
        view, address = tensor.numpy(), tensor.data_ptr
        view[:] = 3
        with pytest.raises(sheave.BufferInUse, match="views"):
            worker.push_pull({0: tensor}, {0: Take("float32", (count,))}, move=True)
        assert tensor.data_ptr == address
        del view
        work = worker.push_pull({0: tensor}, {0: Take("float32", (count,))}, move=True)
        with pytest.raises(sheave.InvalidArgument, match="sent by move"):
            tensor.numpy()
        [request] = server.get_batch(timeout=SOON)
        array = request.tensors[0].numpy()
        array += 1
        del array
        server.respond(request, request.tensors, move=True)
        back = work.wait(timeout=SOON)[0]
        assert back.data_ptr == address and (back.numpy() == 4).all()

        number = worker.submit({0: np.ones(3)}, {0: Take("float64", (3,)), 1: np.zeros(3), 2: Take("float64", (1, 3))})
        answer_all(server, lambda request: [np.full(3, value) for value in (1.0, 2.0, 3.0)])
        worker.wait(number, SOON)
        taken = worker.take(number)
        assert [tensor.numpy().tolist() for tensor in taken] == [[1] * 3, [[3] * 3]]
        assert worker.take(number) == []


def test_refusals_end_a_request():
    with exchange() as ([worker], [server]):
        work = worker.push_pull({0: np.ones(1)}, {0: np.zeros(1)})
        [request] = server.get_batch(timeout=SOON)
        server.refuse(request, "it is not finite")
        with pytest.raises(sheave.Mismatch, match="server 0 refused it: it is not finite") as caught:
            work.wait(timeout=SOON)
        assert (caught.value.op, caught.value.peer.name) == ("push_pull", "server-0")
        with pytest.raises(sheave.NotFound):
            server.refuse(request, "twice")
        work = worker.push_pull({0: np.ones(1)}, {0: np.zeros(1)})
        answer_all(server, double)
        assert work.wait(timeout=SOON)[0] == 2


def test_steps_must_agree():
    with exchange(workers=2) as (workers, [server]):
        works = [worker.push_pull({0: np.ones(1)}, {}, step=worker.rank) for worker in workers]
        with pytest.raises(sheave.Mismatch, match="step 1 at worker 1 and step 0 at worker 0"):
            server.get_batch(timeout=SOON)
        for work in works:
            with pytest.raises(sheave.Mismatch, match="step 1 at worker 1"):
                work.wait(timeout=SOON)
        works = [worker.push_pull({0: np.ones(1)}, {}, step=4) for worker in workers]
        answer_all(server, lambda request: [])
        for work in works:
            assert work.wait(timeout=SOON) == {}


def test_registered_memory():
    """Parts of all workers lie side by side; who still holds an array of them when the next push comes is told."""
    with exchange(workers=2) as (workers, [server]):
        memory = np.zeros((4, 3))
        landing = server.register(memory, [0, 1], [7, 7])
        assert landing.places == [(0, 7), (1, 7)]

        def push(value):
            parts = [np.full((2, 3), value + worker.rank) for worker in workers]
            return [worker.push_pull({7: x}, {7: np.zeros((2, 3))}) for worker, x in zip(workers, parts, strict=True)]

        works = push(1.0)
        batch = server.get_batch(timeout=SOON)
        merged = landing.merged([request.tensors[0] for request in batch])
        assert merged.data_ptr == memory.ctypes.data == batch[0].tensors[0].data_ptr
        looked = merged.numpy()
        assert looked.tolist() == [[1] * 3] * 2 + [[2] * 3] * 2 and not looked.flags.writeable
        with pytest.raises(sheave.Mismatch, match="side by side|behind"):
            landing.merged([request.tensors[0] for request in reversed(batch)])
        server.respond_rows(looked + 10, batch)
        assert [work.wait(timeout=SOON)[7][0, 0] for work in works] == [11, 12]

        works = push(3.0)
        with pytest.raises(sheave.BufferInUse, match="cannot land: its place is being looked at") as caught:
            server.get_batch(timeout=SOON)
        assert "drop the views" in caught.value.hint and caught.value.peer.name in ("worker-0", "worker-1")
        del looked
        batch = server.get_batch(timeout=SOON)
        with pytest.raises(sheave.BufferInUse, match="was answered"):
            merged.numpy()
        with pytest.raises(sheave.BufferInUse, match="answer it first"):
            server.unregister(landing)
        server.respond_rows(np.arange(12.0).reshape(4, 3), batch, rows=[2, 2])
        assert [work.wait(timeout=SOON)[7].tolist()[0] for work in works] == [[0, 1, 2], [6, 7, 8]]
        del batch
        server.unregister(landing)
        with pytest.raises(sheave.Closed):
            landing.merged([merged])
        assert memory.tolist() == [[3] * 3] * 2 + [[4] * 3] * 2


def test_what_does_not_fit_is_refused():
    with exchange() as ([worker], [server]):
        server.register(np.zeros(2), [0], [1])
        with pytest.raises(sheave.AlreadyExists):
            server.register(np.zeros(2), [0], [1])
        with pytest.raises(sheave.InvalidArgument, match="no worker 3"):
            server.register(np.zeros(2), [3], [1])
        with pytest.raises(sheave.InvalidArgument, match="no tensors"):
            worker.push_pull({}, {})
        with pytest.raises(sheave.InvalidArgument, match="read-only"):
            worker.push_pull({}, {0: np.broadcast_to(np.zeros(1), (2,))})
        with pytest.raises(sheave.AlreadyExists, match="open end"):
            Worker(worker.mesh)
        with pytest.raises(sheave.InvalidArgument, match="is a server and not a worker"):
            Worker(server.mesh)
        work = worker.push_pull({1: np.zeros(3)}, {})
        with pytest.raises(sheave.Mismatch, match="24 bytes"):
            server.get_batch(timeout=SOON)
        with pytest.raises(sheave.Mismatch, match="24 bytes"):
            work.wait(timeout=SOON)
        work = worker.push_pull({0: np.ones(2)}, {0: np.zeros(2)})
        [request] = server.get_batch(timeout=SOON)
        with pytest.raises(sheave.Mismatch, match="2 answers for 1 pulls"):
            server.respond(request, [np.zeros(2)] * 2)
        with pytest.raises(sheave.InvalidArgument, match="rows"):
            server.respond_rows(np.zeros((2, 2)), [request.handler])
        server.respond(request, [np.ones(2)])
        assert work.wait(timeout=SOON)[0].tolist() == [1, 1]


def test_timeouts_leave_requests_going():
    with exchange(window=2) as ([worker], [server]):
        with pytest.raises(sheave.DeadlineExceeded, match="worker 0 has made none") as caught:
            server.get_batch(timeout=0.05)
        assert caught.value.peer.name == "worker-0"
        y = np.zeros(1)
        works = [worker.push_pull({0: np.ones(1)}, {0: y}), worker.push_pull({0: np.ones(1)}, {1: np.zeros(1)})]
        with pytest.raises(sheave.DeadlineExceeded, match="2 requests are in flight already") as caught:
            worker.push_pull({0: np.ones(1)}, {}, timeout=0.05)
        assert caught.value.peer.name == "server-0"
        with pytest.raises(TimeoutError):
            works[0].wait(timeout=0.05)
        number = 1
        with pytest.raises(sheave.DeadlineExceeded, match="no answer came"):
            worker.wait(number, timeout=0.05)
        assert not worker.is_done(number)
        for _ in works:
            answer_all(server, double)
        assert works[0].wait(timeout=SOON)[0] is y and y == 2
        worker.wait(number, timeout=SOON)
        assert worker.is_done(number)
        with pytest.raises(sheave.NotFound, match="there is no request 9"):
            worker.wait(9)
        with pytest.raises(sheave.DeadlineExceeded):
            server.barrier("all", timeout=0.05)


def test_close_ends_everything_and_says_so():
    with exchange(workers=2) as (workers, [server]):
        work = workers[0].push_pull({0: np.ones(1)}, {0: np.zeros(1)})
        with workers[1]:
            pass
        with pytest.raises(sheave.Closed, match="worker 1 has left") as caught:
            work.wait(timeout=SOON)
        assert caught.value.peer.name == "worker-1"
        with pytest.raises(sheave.Closed, match="worker 1 has left"):
            server.get_batch(timeout=SOON)
        with pytest.raises(sheave.Closed, match="this worker has left"):
            workers[1].push_pull({0: np.ones(1)}, {})
        closing = threading.Timer(0.2, workers[0].close)
        closing.start()
        assert list(server) == []
        closing.join()
        with pytest.raises(sheave.Closed, match="all workers have left"):
            server.get_batch(timeout=SOON)
        server.close()
        server.close()
        with pytest.raises(sheave.Closed, match="this server has left"):
            server.get_batch(timeout=SOON)


def test_a_server_that_leaves_is_named():
    with exchange(servers=2) as ([worker], servers):
        work = worker.push_pull({0: np.ones(1)}, {})
        servers[1].close()
        with pytest.raises(sheave.Closed, match="server 1 has left") as caught:
            work.wait(timeout=SOON)
        assert caught.value.peer.name == "server-1"
        with pytest.raises(sheave.Closed, match="server 1 has left"):
            worker.push_pull({0: np.ones(1)}, {})


HEAD = """
import os, signal, sys, threading, time
import numpy as np
import sheave
from sheave.exchange import Server, Take, Worker

def stopped(act):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print("waits", flush=True)
    try:
        act()
    except KeyboardInterrupt:
        print(time.monotonic(), flush=True)

def lost(act):
    act()
    print("ready", flush=True)
    try:
        while True:
            act()
    except sheave.PeerLost as error:
        print(time.monotonic(), error.peer.name, error.op, flush=True)
"""

#: Answers until all workers have left.
SERVE = """
with sheave.init() as mesh, Server() as server:
    for batch in server:
        for request in batch:
            server.respond(request, request.tensors)
"""


@pytest.fixture
def job(start):
    """Start a job: every worker runs one program, every server another one, and the scheduler waits."""

    def launch(worker, server=SERVE, *, workers=1, servers=1, scheduler="sheave.init().until_gone()", **environment):
        counts = {"SHEAVE_WORKERS": str(workers), "SHEAVE_SERVERS": str(servers), "SHEAVE_ROOT": free_root()}

        def run(role, program, count):
            program = HEAD + textwrap.dedent(program)
            place = {**counts, "SHEAVE_ROLE": role, **environment}
            return [start(program, **place, SHEAVE_RANK=str(rank)) for rank in range(count)]

        return SimpleNamespace(
            scheduler=run("scheduler", scheduler, 1)[0],
            servers=run("server", server, servers),
            workers=run("worker", worker, workers),
        )

    return launch


def succeed(job):
    """All processes end silently and well."""
    ended = [program.finish(40) for program in (*job.servers, *job.workers, job.scheduler)]
    assert [(status, err) for status, _, err in ended] == [(0, "")] * len(ended), "\n".join(err for _, _, err in ended)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_processes(job, transport):
    """Every size, several in flight, into arrays, into memory of the mesh and into nothing in particular."""
    worker = """
        with sheave.init() as mesh, Worker() as worker:
            for count in (0, 1, 7, 300, 5000, 300_000):
                plain = [np.zeros(count, np.float32) for _ in range(2)]
                shared = [mesh.empty(count, "float32").numpy() for _ in range(2)]
                pulls = {0: plain, 1: shared, 2: [Take("float32", (count,))] * 2}
                rng = np.random.default_rng([worker.rank, count])
                for turn in range(3):
                    x = [rng.standard_normal(count, np.float32) for _ in range(3)]
                    result = worker.push_pull(dict(enumerate(x)), pulls, step=turn).wait(timeout=30)
                    for key in range(3):
                        for server in range(2):
                            np.testing.assert_array_equal(result[key][server], x[key])
            worker.barrier(timeout=30)
    """
    succeed(job(worker, workers=2, servers=2, SHEAVE_TRANSPORT=transport))


@pytest.mark.parametrize("victim", ["worker-1", "server-1"])
def test_a_death_is_an_error_that_names_it(job, victim):
    worker = """
        worker = Worker()
        y = [np.zeros(4) for _ in range(2)]
        lost(lambda: worker.push_pull({0: np.ones(4)}, {0: y}).wait())
        worker.close()
        sheave.default_mesh().close()
    """
    server = """
        server = Server()

        def serve():
            for request in server.get_batch():
                server.respond(request, request.tensors)

        lost(serve)
        server.close()
        sheave.default_mesh().close()
    """
    schedule = """
        try:
            sheave.init().until_gone()
        except sheave.PeerLost as error:
            print(error.peer.name)
    """
    running = job(worker, server, workers=2, servers=2, scheduler=schedule)
    programs = {f"worker-{rank}": program for rank, program in enumerate(running.workers)}
    programs |= {f"server-{rank}": program for rank, program in enumerate(running.servers)}
    for program in programs.values():
        assert program.line() == "ready"
    killed = time.monotonic()
    os.kill(programs.pop(victim).pid, signal.SIGKILL)
    for name, program in programs.items():
        told, peer, op = program.line().split()
        # A server hears of the other one's death from the workers that leave for it, where it waits for them or answers
        # them.
        assert peer == victim, (name, op)
        assert op in (["push_pull"] if name.startswith("worker") else ["get_batch", "respond"]), name
        assert float(told) - killed < 1.5, name
    for program in programs.values():
        program.succeed(10)
    assert running.scheduler.succeed(10).strip() == victim


def test_ctrl_c_ends_every_wait(job):
    worker = """
        with sheave.init() as mesh, Worker() as worker:
            y = np.zeros(1)
            sys.stdin.readline()
            work = worker.push_pull({0: np.ones(1)}, {0: y})
            stopped(work.wait)
            stopped(lambda: worker.wait(0))
            sys.stdin.readline()
            worker.barrier("all", timeout=30)
            assert work.wait(timeout=30)[0] == 1
    """
    server = """
        with sheave.init() as mesh, Server() as server:
            stopped(server.get_batch)
            stopped(lambda: next(iter(server)))
            [request] = server.get_batch(timeout=30)
            server.barrier("all", timeout=30)
            server.respond(request, request.tensors)
    """
    running = job(worker, server)
    for program in (running.servers[0], running.workers[0]):
        if program is running.workers[0]:
            program.tell()
        for _ in range(2):
            in_a_wait(program)
            interrupted = time.monotonic()
            os.kill(program.pid, signal.SIGINT)
            assert float(program.line()) - interrupted < 0.5
    running.workers[0].tell()
    succeed(running)


def test_waits_let_other_threads_run(job):
    worker = """
        with sheave.init() as mesh, Worker() as worker:
            sys.stdin.readline()
            worker.push_pull({0: np.ones(1)}, {}).wait(timeout=30)
    """
    server = """
        with sheave.init() as mesh, Server() as server:
            ticks, over = [], threading.Event()

            def tick():
                while not over.wait(0.01):
                    ticks.append(1)
                    if len(ticks) == 21:
                        print("ticks", flush=True)

            ticker = threading.Thread(target=tick)
            ticker.start()
            [request] = server.get_batch()
            assert len(ticks) > 20, len(ticks)
            over.set()
            ticker.join()
            server.respond(request, [])
    """
    running = job(worker, server)
    assert running.servers[0].line() == "ticks"
    running.workers[0].tell()
    succeed(running)


def test_a_forked_child_has_no_part(job):
    worker = """
        with sheave.init() as mesh, Worker() as worker:
            child = os.fork()
            if child == 0:
                for act in (lambda: worker.push_pull({0: np.ones(1)}, {}), lambda: worker.wait(0), worker.close):
                    try:
                        act()
                    except sheave.Forked:
                        continue
                    os._exit(1)
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            y = np.zeros(1)
            assert worker.push_pull({0: np.ones(1)}, {0: y}).wait(timeout=30)[0] == 1
    """
    succeed(job(worker))
