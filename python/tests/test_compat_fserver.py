"""StepMesh's fserver_lib over the exchange, with real processes: a scheduler, servers and workers, Python only."""

import importlib.util
import os
import signal
import textwrap
import time
from types import SimpleNamespace

import pytest
import sheave
from conftest import free_root, in_a_wait

HEAD = """
import os, pickle, signal, sys, threading, time
import numpy as np
if os.environ["ARRAYS"] == "torch":
    import torch
import sheave
import sheave.compat.fserver_lib as f

WITH_TORCH = "torch" in sys.modules
RANK = int(os.environ.get("DMLC_NODE_RANK", 0))

def full(shape, value, dtype="float32"):
    if WITH_TORCH:
        return torch.full(shape, value, dtype=getattr(torch, dtype))
    return np.full(shape, value, dtype)

def is_ours(array):
    return isinstance(array, torch.Tensor if WITH_TORCH else np.ndarray)

def raises(kind, text, act):
    try:
        act()
    except kind as error:
        assert text in str(error), error
        assert isinstance(error, (RuntimeError, TypeError, AttributeError)), error
        return error
    raise AssertionError(f"nothing of {text!r} was raised")
"""

SCHEDULE = "f.init(); f.stop()"

# Several processes that import torch at once may take their time.
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=["numpy", "torch"])
def arrays(request):
    """Whose arrays a program uses."""
    if request.param == "torch" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    return request.param


@pytest.fixture
def job(start):
    """Start a job: every worker runs one program, every server another one."""

    def launch(worker, server, *, workers=1, servers=1, group=1, arrays="numpy", scheduler=SCHEDULE, **environment):
        host, port = free_root().split(":")
        environment = {
            "ARRAYS": arrays,
            "OMP_NUM_THREADS": "1",
            "DMLC_PS_ROOT_URI": host,
            "DMLC_PS_ROOT_PORT": port,
            "DMLC_NUM_SERVER": str(servers),
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_GROUP_SIZE": str(group),
            **environment,
        }

        def run(role, program, **place):
            return start(HEAD + textwrap.dedent(program), DMLC_ROLE=role, **{**environment, **place})

        def run_all(role, program, count):
            places = [(rank, index) for rank in range(count) for index in range(group)]
            return [run(role, program, DMLC_NODE_RANK=str(rank), STEPMESH_GPU=str(at)) for rank, at in places]

        return SimpleNamespace(
            scheduler=run("scheduler", scheduler),
            servers=run_all("server", server, servers),
            workers=run_all("worker", worker, workers),
        )

    return launch


def succeed(job):
    """All processes end silently and well."""
    ended = [program.finish(90) for program in (*job.servers, *job.workers, job.scheduler)]
    assert [(status, err) for status, _, err in ended] == [(0, "")] * len(ended), "\n".join(err for _, _, err in ended)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 2)])
def test_every_worker_and_server(job, arrays, workers, servers, transport):
    """Pushes go to all servers, batches are in the order of ranks, answers server by server, handlers count tensors."""
    server = f"""
        f.init(timeout=30)
        f.barrier(True, False)
        for turn in range(5):
            batch = f.get_batch(timeout=30)
            assert type(batch) is list and len(batch) == {workers}
            for rank, request in enumerate(batch):
                handler, tensors, keys = request
                assert (request[0], request.tensors, request.keys) == (handler, tensors, keys)
                assert handler == turn * {workers} + rank and type(handler) is int and keys == [7, 9]
                assert all(map(is_ours, tensors)) and tuple(tensors[0].shape) == (3, 4)
                assert tensors[0].flatten().tolist() == [turn + rank * 100] * 12, (turn, rank, tensors)
                assert "int32" in str(tensors[1].dtype) and tensors[1].tolist() == [rank, turn]
                f.respond([tensors[0] * (RANK + 2), tensors[1] + 1], handler, need_event=True)
        f.barrier(True, include_worker=True)
        f.stop()
    """
    worker = f"""
        f.init()
        f.barrier(include_server=False, include_client=True)
        clock = f.get_nanosecond()
        assert 0 <= f.get_nanosecond() - clock < 10**10
        y = [full(*each) for _ in range({servers}) for each in (((3, 4), -1, "float32"), ((2,), -1, "int32"))]
        for turn in range(5):
            x = full((3, 4), turn + RANK * 100.0)
            counts = full((2,), turn, "int32")
            counts[0] = RANK
            handler = f.push_pull([x, counts], [7, 9], y, [1, 2] * {servers}, need_event=True)
            assert handler == turn * 4
            handlers = f.get_all_handlers(handler)
            assert handlers == list(range(handler, handler + 4)) and f.get_all_handlers(handler + 1) == [handler + 1]
            f.wait(handler)
            f.wait(handler, 1)
            f.wait(handlers[-1], timeout_ms=1)
            assert f.get_all_handlers(handler) == [handler]
            for server in range({servers}):
                assert y[2 * server].flatten().tolist() == [(turn + RANK * 100) * (server + 2)] * 12
                assert y[2 * server + 1].tolist() == [RANK + 1, turn + 1]
            for each in handlers:
                trace = f.fetch_trace(each)
                assert len(trace) == 8 and trace[0] >= clock and trace == f.fetch_trace(handler)
                order = [trace[index] for index in (0, 1, 2, 3, 4, 5, 6, 7)]
                assert order == sorted(order) and trace[7] <= f.get_nanosecond()
            apart = [f.fetch_trace(handler, server) for server in range({servers})]
            assert f.fetch_trace(handler) == max(apart, key=lambda each: each[6])
        f.barrier(include_server=True, include_worker=True, instance_barrier=False)
        f.stop(timeout=30)
    """
    succeed(job(worker, server, workers=workers, servers=servers, arrays=arrays, SHEAVE_TRANSPORT=transport))


def test_groups_of_processes(job):
    """Process i of each worker group exchanges with process i of each server group, and ranks are those of groups."""
    server = """
        AT = int(os.environ["STEPMESH_GPU"])
        f.init()
        f.barrier(True, True)
        for turn in range(3):
            for rank, (handler, (x,), _) in enumerate(f.get_batch(30)):
                assert x.tolist() == [rank, AT, turn]
                f.respond([x * 10], handler)
        f.barrier(True, False, False)
        f.stop()
    """
    worker = """
        AT = int(os.environ["STEPMESH_GPU"])
        f.init()
        f.barrier(True, True)
        y = np.zeros(3)
        for turn in range(3):
            f.wait(f.push_pull([np.array([RANK, AT, turn], float)], [0], [y], [0]))
            assert y.tolist() == [RANK * 10, AT * 10, turn * 10]
        f.barrier(False, True, False)
        f.stop()
    """
    succeed(job(worker, server, workers=2, servers=1, group=2))


def test_single_tensors_and_requests_in_flight(job, arrays):
    """A lone push, a lone pull, and more requests than may be in flight, waited for in any order."""
    server = """
        f.init()
        [(handler, (x,), keys)] = f.get_batch(30)
        assert x.tolist() == [1, 2] and keys == [5]
        f.respond([], handler)
        [(handler, tensors, keys)] = f.get_batch(30)
        assert tensors == [] and keys == []
        f.respond([full((2,), 3.0)], handler)
        for _ in range(200):
            for handler, tensors, _ in f.get_batch(30):
                f.respond([sum(tensors)], handler)
        f.stop()
    """
    worker = """
        f.init()
        x = full((2,), 1.0)
        x[1] = 2
        assert f.push_pull([x], [5], [], []) == 0
        f.wait(0)
        y = full((2,), 0.0)
        assert f.push_pull([], [], [y], [5]) == 1
        f.wait(1)
        assert y.tolist() == [3, 3]
        answers = [full((2,), 0.0) for _ in range(200)]
        handlers = [f.push_pull([x, x], [0, 1], [answer], [0]) for answer in answers]
        assert handlers == list(range(2, 602, 3))
        for handler in reversed(handlers):
            f.wait(handler)
        assert all(answer.tolist() == [2, 4] for answer in answers)
        f.stop()
    """
    succeed(job(worker, server, arrays=arrays))


def test_nothing_grows(job):
    """Handlers are forgotten in time, and asking for old ones does no harm."""
    server = """
        f.init()
        for _ in range(1500):
            for handler, tensors, _ in f.get_batch(30):
                f.respond(tensors, handler)
        f.stop()
    """
    worker = """
        f.init()
        x, y = np.ones(4), np.zeros(4)
        for turn in range(1500):
            handler = f.push_pull([x], [0], [y], [0])
            if turn % 100:
                f.wait(handler)
        f.wait(handler)
        f.wait(0)
        assert f.get_all_handlers(0) == [0] and len(f._job.end._requests) == 1088
        raises(sheave.NotFound, "not among the last", lambda: f.fetch_trace(handler - 500))
        raises(sheave.InvalidArgument, "not among the last", lambda: f.fetch_trace(0))
        f.stop()
    """
    succeed(job(worker, server))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_registered_buffers_are_the_programs_own(job, arrays, transport):
    """Pushes of both workers lie side by side in the tensor that was registered, whatever is kept of former batches."""
    server = """
        f.init()
        merged = [full((4, 8), -1.0) for _ in range(3)]
        for slot in range(3):
            f.register_recv_buffer(merged[slot], [0, 1], [slot, slot])
        f.barrier(True, True)
        kept = []
        for turn in range(12):
            slot, rows = turn % 3, 2 if turn < 6 else 1
            requests = f.get_batch(timeout=30)
            for rank, (handler, (x, extra), _) in enumerate(requests):
                assert is_ours(x) and tuple(x.shape) == (rows, 8) and extra.tolist() == [turn]
                assert x[0].tolist() == merged[slot][2 * rank].tolist() == [turn + 100 * rank] * 8
                merged[slot][2 * rank, 0] = -5
                assert x[0, 0] == -5
                x[0, 1] = -6
                assert merged[slot][2 * rank, 1] == -6
            kept.append(requests)
            if turn < 6:
                handlers = [request.handler for request in requests]
                f.respond_vec(merged[slot] + 1, [request.tensors[0] for request in requests], handlers)
            else:
                for handler, (x, _), _ in requests:
                    f.respond([x + 1], handler)
        assert kept[0][0].tensors[0] is kept[3][0].tensors[0], "one array for each place and shape"
        raises(sheave.AlreadyExists, "has a place already", lambda: f.register_recv_buffer(merged[0], [0], [0]))
        raises(sheave.InvalidArgument, "no worker 2", lambda: f.register_recv_buffer(merged[0], [2], [9]))
        five = ([0] * 5, range(20, 25))
        raises(sheave.InvalidArgument, "equal parts", lambda: f.register_recv_buffer(full((3,), 0.0), *five))
        raises(sheave.InvalidArgument, "pairs", lambda: f.register_recv_buffer(full((3,), 0.0), [0], [1, 2]))
        gaps = full((4, 4), 0.0)[:, :2]
        raises(sheave.InvalidArgument, "not contiguous", lambda: f.register_recv_buffer(gaps, [0], [1]))
        f.stop()
    """
    worker = """
        f.init()
        f.barrier(True, True)
        ys = [full((2, 8), 0.0) for _ in range(3)]
        flying = []
        for turn in range(12):
            slot, rows = turn % 3, 2 if turn < 6 else 1
            x = full((rows, 8), turn + 100.0 * RANK)
            y = ys[slot][:rows]
            flying.append((turn, y, f.push_pull([x, full((1,), turn, "int64")], [slot, 50], [y], [slot])))
            if len(flying) == 3:
                number, y, handler = flying.pop(0)
                f.wait(handler)
                assert y[0].tolist() == [-4, -5] + [number + 100 * RANK + 1] * 6
        for _, _, handler in flying:
            f.wait(handler)
        f.stop()
    """
    succeed(job(worker, server, workers=2, arrays=arrays, SHEAVE_TRANSPORT=transport))


def test_registered_dtypes(job, arrays):
    """What lands has the dtype and shape of its push, not of the memory."""
    server = """
        f.init()
        memory = full((64,), 0, "uint8")
        f.register_recv_buffer(memory, [0, 0], [1, 2])
        f.barrier(True, True)
        for dtype in ("float64", "int16", "bool"):
            [(handler, (x, y), _)] = f.get_batch(timeout=30)
            assert dtype in str(x.dtype) and tuple(x.shape) == (2, 1, 2) and tuple(y.shape) == (0, 3)
            assert x.tolist() == [[[1, 1]], [[1, 1]]]
            memory[:32] = 0
            assert x.tolist() == [[[0, 0]], [[0, 0]]]
            f.respond([], handler)
        f.stop()
    """
    worker = """
        f.init()
        f.barrier(True, True)
        for dtype in ("float64", "int16", "bool"):
            f.wait(f.push_pull([full((2, 1, 2), 1, dtype), full((0, 3), 0, dtype)], [1, 2], [], []))
        f.stop()
    """
    succeed(job(worker, server, arrays=arrays))


def test_any_shape_follows_any_other(job, arrays):
    server = """
        f.init()
        rng = np.random.default_rng(5)
        for turn in range(60):
            rows = int(rng.integers(0, 200)) if turn % 10 else 1000
            for handler, (x,), _ in f.get_batch(timeout=30):
                assert tuple(x.shape) == (rows, 33) and (x == turn).all()
                f.respond([x[:, :16] * 2], handler)
        f.stop()
    """
    worker = """
        f.init()
        rng = np.random.default_rng(5)
        for turn in range(60):
            rows = int(rng.integers(0, 200)) if turn % 10 else 1000
            y = full((rows, 16), -1.0)
            f.wait(f.push_pull([full((rows, 66), float(turn))[:, ::2]], [3], [y], [3]))
            assert (y == 2 * turn).all()
        f.stop()
    """
    succeed(job(worker, server, arrays=arrays))


@pytest.mark.parametrize("mode", ["", "row0"])
def test_answers_from_rows_of_one_tensor(job, arrays, mode):
    server = """
        f.init()
        answers = full((10, 4), 0.0)
        for row in range(10):
            answers[row] = row
        for _ in range(3):
            requests = f.get_batch(timeout=30)
            tensors = [request.tensors[0] for request in requests]
            handlers = [request.handler for request in requests]
            invalid = sheave.InvalidArgument
            raises(invalid, "2 tensors and 1 handlers", lambda: f.respond_vec(answers, tensors, handlers[:1]))
            raises(invalid, "rows", lambda: f.respond_vec(answers[:2], tensors, handlers))
            f.respond_vec(answers, tensors, handlers)
        f.stop()
    """
    worker = """
        f.init()
        mine = [0, 1] if RANK == 0 else [2, 3, 4]
        if os.environ.get("STEPMESH_RESPOND_VEC") == "row0":
            mine = list(range(len(mine)))
        for _ in range(3):
            y = full((RANK + 2, 4), -1.0)
            f.wait(f.push_pull([full((RANK + 2, 1), 0.0)], [0], [y], [0]))
            assert y.tolist() == [[row] * 4 for row in mine], y
        f.stop()
    """
    succeed(job(worker, server, workers=2, arrays=arrays, STEPMESH_RESPOND_VEC=mode))


def test_what_makes_no_sense_is_refused(job, arrays):
    """Nothing of it has any effect: the exchange goes on. All errors are RuntimeErrors, and of sheave's class."""
    server = """
        raises(sheave.Closed, "call init() first", f.get_batch)
        raises(RuntimeError, "call init() first", f.stop)
        raises(RuntimeError, "call init() first", lambda: f.barrier(True, False))
        f.init()
        raises(RuntimeError, "joined already", f.init)
        raises(RuntimeError, "this process is a server; hint: only workers call it", lambda: f.wait(0))
        raises(RuntimeError, "only workers", lambda: f.push_pull([], [], [], []))
        raises(RuntimeError, "not included", lambda: f.barrier(False, True))
        error = raises(TimeoutError, "worker 0 has made none", lambda: f.get_batch(timeout=0.05))
        assert error.peer.name == "worker-0" and error.op == "get_batch" and error.elapsed > 0.04
        f.barrier(True, True)
        [(handler, (x,), _)] = f.get_batch(timeout=30)
        raises(sheave.Mismatch, "0 answers for 1 pulls", lambda: f.respond([], handler))
        raises(sheave.Mismatch, "f32", lambda: f.respond([full((3,), 0.0)], handler))
        raises(sheave.Mismatch, "i32", lambda: f.respond([full((2,), 0, "int32")], handler))
        raises(sheave.NotFound, "no request 77", lambda: f.respond([x], 77))
        raises(sheave.Unsupported, "neither a buffer", lambda: f.respond([object()], handler))
        f.respond([x], handler)
        raises(sheave.NotFound, "answer each request", lambda: f.respond([x], handler))
        f.stop()
        for act in (f.init, f.stop, f.get_batch, lambda: f.barrier(True, True)):
            raises(RuntimeError, "joined already" if act is f.init else "left its job", act)
    """
    worker = """
        f.init()
        x, y = full((2,), 1.0), full((2,), 0.0)
        invalid = sheave.InvalidArgument
        raises(invalid, "no tensors", lambda: f.push_pull([], [], [], []))
        raises(invalid, "1 keys and 2 arrays", lambda: f.push_pull([x, x], [0], [], []))
        raises(invalid, "2 keys and 1 arrays", lambda: f.push_pull([x], [0], [y], [0, 1]))
        raises(invalid, "key 3 is pushed twice", lambda: f.push_pull([x, x], [3, 3], [], []))
        raises(invalid, "not row-major", lambda: f.push_pull([x], [0], [full((2, 2), 0.0)[:, 0]], [0]))
        raises(sheave.Unsupported, "neither a buffer", lambda: f.push_pull([3], [0], [], []))
        raises(invalid, "there is no handler 0; 0 were given", lambda: f.wait(0))
        raises(invalid, "no handler -1", lambda: f.wait(-1))
        raises(invalid, "no handler 5", lambda: f.fetch_trace(5))
        raises(RuntimeError, "only servers", f.get_batch)
        raises(RuntimeError, "not included", lambda: f.barrier(True, False))
        raises(TypeError, "include_client or include_worker", lambda: f.barrier(True))
        raises(TypeError, "include_client or include_worker", lambda: f.barrier(True, True, include_worker=True))
        raises(AttributeError, "needs a GPU build", lambda: f.SimpleNotify)
        raises(AttributeError, "no attribute 'nothing'", lambda: f.nothing)
        assert not hasattr(f, "map_pinned_tensor") and f.get_all_handlers(9) == [9]
        f.barrier(True, True)
        handler = f.push_pull([x], [0], [y], [0])
        f.wait(handler)
        assert y.tolist() == [1, 1]
        f.stop()
        raises(RuntimeError, "call it before stop()", lambda: f.wait(handler))
    """
    schedule = """
        f.init()
        raises(RuntimeError, "this process is a scheduler and not included", lambda: f.barrier(True, True))
        raises(RuntimeError, "this process is a scheduler", lambda: f.get_all_handlers(0))
        f.stop()
    """
    succeed(job(worker, server, arrays=arrays, scheduler=schedule))


def test_a_request_outlives_the_wait_for_it(job, arrays):
    """The error of a timeout is a TimeoutError, a RuntimeError and sheave's own, and travels by pickle."""
    server = """
        f.init()
        f.barrier(True, True)
        for handler, tensors, _ in f.get_batch(timeout=30):
            f.respond(tensors, handler)
        f.stop()
    """
    worker = """
        f.init()
        x, y = full((2,), 1.0), full((2,), 0.0)
        handler = f.push_pull([x], [0], [y], [0])
        assert handler == 0
        error = raises(TimeoutError, "no answer came", lambda: f.wait(handler, timeout_ms=50))
        assert isinstance(error, sheave.DeadlineExceeded) and isinstance(error, RuntimeError)
        assert (error.op, error.seq, error.peer.name) == ("push_pull", 0, "server-0") and 0.04 < error.elapsed < 5
        assert "wait again" in error.hint and error.__cause__ is None
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error) and str(copy) == str(error) and copy.op == "push_pull"
        assert f.get_all_handlers(handler) == [0, 1]
        raises(sheave.InvalidArgument, "there is no server 1", lambda: f.fetch_trace(handler, 1))
        f.barrier(True, True)
        f.wait(handler)
        assert y.tolist() == [1, 1]
        f.stop()
    """
    succeed(job(worker, server, arrays=arrays))


def test_dtypes_beyond_numpy(job):
    """Torch may push what numpy cannot name; a numpy server gets a tensor to answer with or to take apart."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    server = """
        sys.modules["ml_dtypes"] = None
        f.init()
        [(handler, (x,), _)] = f.get_batch(timeout=30)
        assert isinstance(x, sheave.Tensor) and x.dtype == "bfloat16" and x.shape == (3, 2)
        f.respond([x], handler)
        f.stop()
    """
    worker = """
        import torch
        f.init()
        x, y = torch.arange(6, dtype=torch.bfloat16).reshape(3, 2), torch.zeros(3, 2, dtype=torch.bfloat16)
        x.requires_grad_()
        f.wait(f.push_pull([x], [0], [y], [0]))
        assert torch.equal(x, y)
        f.stop()
    """
    succeed(job(worker, server))


ENDLESS = """
    f.init()

    def answer():
        for handler, tensors, _ in f.get_batch():
            f.respond(tensors, handler)

    answer()
    print("ready", flush=True)
    try:
        while True:
            answer()
    except RuntimeError as error:
        print(time.monotonic(), type(error).__name__, error.peer.name, error.op, flush=True)
    raises(sheave.PeerLost, "", f.stop)
"""
ASKING = """
    f.init()
    x, y = np.ones(4), [np.zeros(4) for _ in range(int(os.environ["DMLC_NUM_SERVER"]))]

    def ask():
        f.wait(f.push_pull([x], [0], y, [0] * len(y)))

    ask()
    print("ready", flush=True)
    try:
        while True:
            ask()
    except RuntimeError as error:
        assert isinstance(error, sheave.PeerLost) and isinstance(error, ConnectionError)
        print(time.monotonic(), type(error).__name__, error.peer.name, error.op, flush=True)
    begun = time.monotonic()
    raises(sheave.PeerLost, "", f.stop)
    assert time.monotonic() - begun < 1
"""


@pytest.mark.parametrize("victim", ["worker-1", "server-1"])
def test_a_death_is_an_error_that_names_it(job, victim):
    running = job(ASKING, ENDLESS, workers=2, servers=2, scheduler='f.init(); raises(sheave.PeerLost, "", f.stop)')
    programs = {f"worker-{rank}": program for rank, program in enumerate(running.workers)}
    programs |= {f"server-{rank}": program for rank, program in enumerate(running.servers)}
    for program in programs.values():
        assert program.line() == "ready"
    killed = time.monotonic()
    os.kill(programs.pop(victim).pid, signal.SIGKILL)
    # A server does not need the other server; it hears of it when the workers leave.
    for name, program in programs.items():
        told, kind, peer, op = program.line().split()
        assert (kind, peer) == ("PeerLost", victim), name
        # A worker may die between the batch that a server has taken and the answer.
        assert op in (["push_pull"] if name.startswith("worker") else ["get_batch", "respond"]), name
        assert float(told) - killed < 1.5, name
    for program in (*programs.values(), running.scheduler):
        program.succeed(10)


def test_who_stops_is_waited_for_no_more(job):
    """A server that waits for the next batch is told when a worker stops, and can stop then."""
    server = """
        f.init()
        error = raises(sheave.Closed, "worker 1 has left", lambda: f.get_batch(timeout=30))
        assert error.peer.name == "worker-1"
        raises(TimeoutError, "not all members", lambda: f.stop(timeout=0.05))
        print("late", flush=True)
        f.stop()
    """
    worker = """
        f.init()
        if RANK == 0:
            sys.stdin.readline()
        f.stop()
    """
    running = job(worker, server, workers=2)
    assert running.servers[0].line() == "late"
    running.workers[0].tell()
    succeed(running)


def test_waits_let_other_threads_run_and_end_at_ctrl_c(job):
    server = """
        signal.signal(signal.SIGINT, signal.default_int_handler)
        f.init()
        ticks, over = [], threading.Event()

        def tick():
            while not over.wait(0.01):
                ticks.append(1)
                if len(ticks) == 21:
                    print("waits", flush=True)

        ticker = threading.Thread(target=tick)
        ticker.start()
        try:
            f.get_batch()
        except KeyboardInterrupt:
            print(time.monotonic(), flush=True)
        over.set()
        ticker.join()
        assert len(ticks) > 20, len(ticks)
        for handler, tensors, _ in f.get_batch(30):
            f.respond(tensors, handler)
        f.stop()
    """
    worker = """
        signal.signal(signal.SIGINT, signal.default_int_handler)
        f.init()
        y = np.zeros(1)
        sys.stdin.readline()
        handler = f.push_pull([np.ones(1)], [0], [y], [0])
        f.wait(handler)
        print("waits", flush=True)
        try:
            f.barrier(True, True)
        except KeyboardInterrupt:
            print(time.monotonic(), flush=True)
        f.stop()
    """
    running = job(worker, server)
    for program, let_go in ((running.servers[0], running.workers[0]), (running.workers[0], None)):
        in_a_wait(program)
        interrupted = time.monotonic()
        os.kill(program.pid, signal.SIGINT)
        assert float(program.line()) - interrupted < 0.5
        if let_go is not None:
            let_go.tell()
    succeed(running)


def test_defaults_of_the_environment(start):
    """Without a role a process is a server, and there is one of each."""
    host, port = free_root().split(":")
    place = {"DMLC_PS_ROOT_URI": host, "DMLC_PS_ROOT_PORT": port, "ARRAYS": "numpy"}
    server = """
        f.init()
        assert "DMLC_ROLE" not in os.environ and "DMLC_NUM_WORKER" not in os.environ
        for handler, tensors, _ in f.get_batch(30):
            f.respond(tensors, handler)
        f.stop()
    """
    worker = """
        f.init()
        y = np.zeros(1)
        f.wait(f.push_pull([np.ones(1)], [0], [y], [0]))
        assert y == 1
        f.stop()
    """
    programs = [
        start(HEAD + textwrap.dedent(server), **place, STEPMESH_BAKCEND="CPU"),
        start(HEAD + textwrap.dedent(worker), **place, DMLC_ROLE="worker", STEPMESH_BACKEND="cpu", STEPMESH_GPU="0"),
        start(HEAD + SCHEDULE, **place, DMLC_ROLE="scheduler"),
    ]
    for program in programs:
        program.succeed(20)


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"STEPMESH_BAKCEND": "GPU"}, "STEPMESH_BAKCEND=CPU"),
        ({"STEPMESH_BACKEND": "TPU"}, "it may be `CPU`"),
        ({"DMLC_ROLE": "joint"}, "DMLC_ROLE"),
        ({"DMLC_PS_ROOT_URI": ""}, "DMLC_PS_ROOT_URI"),
        ({"SHEAVE_RANK": "0", "SHEAVE_WORLD_SIZE": "1"}, "this process is a rank, neither worker"),
        ({"SHEAVE_JOIN_TIMEOUT_MS": "200"}, "missing"),
    ],
)
def test_environments_that_are_no_job(start, environment, text):
    host, port = free_root().split(":")
    program = f"""
        error = raises(RuntimeError, {text!r}, f.init)
        assert isinstance(error, sheave.SheaveError)
        raises(RuntimeError, {text!r}, f.init)
    """
    place = {"DMLC_PS_ROOT_URI": host, "DMLC_PS_ROOT_PORT": port, "DMLC_ROLE": "scheduler", "ARRAYS": "numpy"}
    start(HEAD + textwrap.dedent(program), **{**place, **environment}).succeed(20)


def test_all_errors_are_runtime_errors():
    from sheave.compat.fserver_lib.errors import CLASSES, raised

    kinds = [*sheave.SheaveError.__subclasses__(), sheave.WorkerDied]
    assert {kind for kind in kinds if not issubclass(kind, RuntimeError)} == set(CLASSES)
    for kind in kinds:
        error = kind("what happened")
        error.op, error.elapsed = "wait", 1.5
        error.__cause__ = sheave.Remote("why")
        error.add_note("a note")
        made = raised(error)
        assert made.__cause__ is error.__cause__ and made.__notes__ == ["a note"]
        assert isinstance(made, kind) and isinstance(made, RuntimeError)
        assert (str(made), made.op, made.elapsed, made.peer) == ("what happened", "wait", 1.5, None)
