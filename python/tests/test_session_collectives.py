"""Operations of sessions that move arrays among workers, and sessions of several nodes."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import sheave
import sheave.session
from sheave.session import ProcessSession, SocketSession, ThreadedSession

PATIENCE = 30

OPERATORS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def start_node(port, workers, *options, **settings):
    """The process of another node."""
    command = [sys.executable, "-m", "sheave.session_node", "localhost", str(port), str(workers), *options]
    return subprocess.Popen(command, text=True, **settings)


@contextlib.contextmanager
def sockets(workers, groups=1, nodes=2, **options):
    """A session of some nodes with as many workers each, whose processes end well with it."""
    port, each = sheave._core._free_port(), workers // nodes
    others = [start_node(port, each) for _ in range(1, nodes)]
    try:
        with SocketSession(nodes, each, groups, "localhost", port, **options) as session:
            yield session
        assert [other.wait(20) for other in others] == [0] * len(others)
    finally:
        for other in others:
            other.kill()
            other.wait()


KINDS = {"threads": ThreadedSession, "processes": ProcessSession, "sockets": sockets}


@pytest.fixture(params=KINDS)
def begin(request):
    return KINDS[request.param]


def own(length=3, by=1.0):
    """An array on each worker, of its number times `by`, and one more for each element."""
    return np.arange(length) + sheave.session.worker().id * by


def got(register):
    return [register.get(worker, PATIENCE) for worker in range(4)]


def lists(register):
    return [None if array is None else array.tolist() for array in got(register)]


# Operations.


def test_broadcast_and_scatter_go_to_every_group_or_to_all(begin):
    with begin(4, 2) as session:
        array = np.arange(4, dtype="int16").reshape(2, 2)
        for scope in ("group", "world"):
            everywhere = session.broadcast(array, scope=scope)
            assert all(one.dtype == np.int16 and (one == array).all() for one in got(everywhere))
        assert lists(session.scatter(array)) == [[0, 1], [2, 3]] * 2
        assert lists(session.scatter(np.arange(4), scope="world")) == [0, 1, 2, 3]
        with pytest.raises(sheave.InvalidArgument, match="expected 4 rows, one for each worker"):
            session.scatter(array, scope="world")
        with pytest.raises(sheave.InvalidArgument, match="expected 2 rows, one for each worker of a group"):
            session.scatter(np.arange(4))


def test_what_the_first_have_goes_to_the_others_and_comes_back(begin):
    with begin(4, 2) as session:
        ids = session.call(own)
        assert lists(session.broadcast_from_first(ids)) == [[0, 1, 2]] * 2 + [[2, 3, 4]] * 2
        assert lists(session.broadcast_from_first(ids, scope="world")) == [[0, 1, 2]] * 4
        pairs = session.call(own, 4, 10.0)
        assert lists(session.scatter_from_first(pairs)) == [[0, 1], [2, 3], [20, 21], [22, 23]]
        flat = session.scatter_from_first(pairs, scope="world")
        assert lists(flat) == [0, 1, 2, 3]
        gathered = session.gather_to_first(ids, scope="world")
        assert lists(gathered) == [[[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]], None, None, None]
        assert lists(session.gather_to_first(ids)) == [[[0, 1, 2], [1, 2, 3]], None, [[2, 3, 4], [3, 4, 5]], None]
        assert lists(session.all_gather(ids))[1] == [[0, 1, 2], [1, 2, 3]]
        assert got(session.all_gather(ids, scope="world"))[3].shape == (4, 3)


@pytest.mark.parametrize("op", [*OPERATORS, "avg"])
def test_all_reduce(begin, op):
    with begin(4, 2) as session:
        arrays = session.call(own, 5, 2.0)
        parts = [np.arange(5) + worker * 2.0 for worker in range(4)]

        def reduced(parts):
            return np.mean(parts, axis=0) if op == "avg" else OPERATORS[op].reduce(parts)

        expected = [reduced(parts[:2])] * 2 + [reduced(parts[2:])] * 2
        assert np.array_equal(got(session.all_reduce(arrays, op=op)), expected)
        assert np.array_equal(got(session.all_reduce(arrays, op=op, scope="world")), [reduced(parts)] * 4)
        with pytest.raises(sheave.InvalidArgument, match="no operator"):
            session.all_reduce(arrays, op="median")
        with pytest.raises(sheave.InvalidArgument, match='expected "group" or "world"'):
            session.all_reduce(arrays, scope="all")


def test_a_target_is_written_in_place(begin):
    with begin(4, 1) as session:
        target = session.call(np.zeros, 3)
        same = session.call(lambda array: array, target)
        arrays = session.call(own)
        session.all_reduce(arrays, target, "max")
        assert lists(same) == [[3, 4, 5]] * 4
        session.broadcast(np.full((3, 1), 7.0), target)
        assert lists(same) == [[7, 7, 7]] * 4
        session.all_reduce(arrays, arrays)
        assert lists(arrays) == [[6, 10, 14]] * 4


def test_a_target_that_cannot_be_written_in_place_is_refused(begin):
    with begin(4, 1) as session:
        base = session.call(np.zeros, (2, 3))
        for make in (lambda base: base.T, lambda base: np.broadcast_to(0.0, 6), lambda base: b"123456"):
            target = session.call(make, base)
            session.broadcast(np.ones((3, 2)), target)
            for worker in range(4):
                with pytest.raises((sheave.SheaveError, ValueError), match="the target"):
                    session.sync(worker, PATIENCE)
        assert lists(base) == [[[0, 0, 0]] * 2] * 4
        session.all_reduce(session.call(lambda: np.ones((3, 2)).T), base)
        assert lists(base) == [[[4, 4, 4]] * 2] * 4


def test_messages_between_workers_and_groups(begin):
    with begin(4, 2) as session:
        arrays = session.call(own)
        assert lists(session.send_between(2, arrays, 0)) == [[2, 3, 4], None, None, None]
        assert lists(session.pass_to_next_group(arrays)) == [None, None, [0, 1, 2], [1, 2, 3]]
        target = session.call(np.zeros, 3)
        session.send_between(1, arrays, 3, target)
        assert lists(target) == [[0, 0, 0]] * 3 + [[1, 2, 3]]
        for sender, receiver in ((1, 1), (0, 4), (-1, 0)):
            with pytest.raises(sheave.InvalidArgument):
                session.send_between(sender, arrays, receiver)


def test_copies_to_and_from_the_first_worker(begin):
    with begin(4, 2) as session:
        array = np.arange(6.0).reshape(2, 3)
        first = session.copy_to_first(array)
        array[:] = 0
        assert lists(first) == [[[0, 1, 2], [3, 4, 5]], None, None, None]
        back = np.zeros(6)
        session.copy_from_first(back, first)
        session.sync(0, PATIENCE)
        assert back.tolist() == [0, 1, 2, 3, 4, 5]
        session.copy_to_first(np.full(6, 9.0), first)
        assert (first.get(0, PATIENCE) == 9).all()
        with pytest.raises(sheave.SheaveError):
            session.copy_from_first(np.broadcast_to(0.0, 6), first)


def test_empty_arrays_are_where_they_are_wanted(begin):
    with begin(4, 2) as session:
        for placement, has in (("all", [1, 1, 1, 1]), ("leaders", [1, 0, 1, 0]), ("first", [1, 0, 0, 0])):
            made = got(session.empty((2, 3), "float16", placement=placement))
            assert [array is not None for array in made] == [bool(one) for one in has]
            assert (made[0].shape, made[0].dtype) == ((2, 3), np.float16)
        assert session.empty(4).get(0).dtype == np.float32
        with pytest.raises(sheave.InvalidArgument, match="placement"):
            session.empty(4, placement="some")


@pytest.mark.parametrize("begin", [ThreadedSession, ProcessSession])
def test_dtypes(begin):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    names = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
    with begin(2) as session:
        for dtype in [*map(np.dtype, names), np.dtype(ml_dtypes.bfloat16)]:
            array = session.broadcast(np.arange(4).astype(dtype))
            assert array.get(1, PATIENCE).dtype == dtype
            assert session.all_reduce(array).get(1, PATIENCE).astype(float).tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("begin", [ThreadedSession, ProcessSession])
def test_torch_tensors_go_in_and_out(begin):
    torch = pytest.importorskip("torch")
    with begin(2) as session:
        rows = session.scatter(torch.arange(4.0).reshape(2, 2))
        assert lists_of_two(session.all_reduce(rows)) == [[2, 4]] * 2
        target = session.call(lambda: __import__("torch").zeros(2))
        session.all_reduce(rows, target)
        assert torch.equal(target.get(1, PATIENCE), torch.tensor([2.0, 4.0]))
        back = torch.zeros(2)
        session.copy_from_first(back, target)
        session.sync(0, PATIENCE)
        assert back.tolist() == [2, 4]


def lists_of_two(register):
    return [register.get(worker, PATIENCE).tolist() for worker in range(2)]


@pytest.mark.parametrize("begin", [ThreadedSession, ProcessSession])
def test_an_array_is_shared_where_that_can_be(begin):
    with begin(2) as session:
        numbers = session.broadcast(np.zeros(1000))
        shared = [numbers.get(worker, PATIENCE, share=True) for worker in range(2)]
        copy = numbers.get(1, PATIENCE)
        session.call(lambda numbers: numbers.fill(5), numbers)
        session.sync(timeout=PATIENCE)
        assert [(array == 5).all() for array in shared] == [True, True] and (copy == 0).all()
        # What Python has made lies where no other process can see it.
        private = session.call(np.zeros, 3).get(1, PATIENCE, share=True)
        assert private.tolist() == [0, 0, 0]
        assert session.call(lambda: "text").get(1, share=True) == "text"


def test_item_11_what_does_not_fit_fails_on_all_before_anything_moves(begin):
    with begin(4, 1) as session:
        unequal = session.call(lambda: np.ones(2 + (sheave.session.worker().id == 2)))
        target = session.call(np.zeros, 2)
        for issue in (
            lambda: session.all_reduce(unequal, target),
            lambda: session.all_gather(unequal),
            lambda: session.broadcast(np.ones(3), target),
            lambda: session.all_reduce(target, session.call(np.zeros, 2, "float32")),
        ):
            issue()
            for worker in range(4):
                with pytest.raises(sheave.Mismatch):
                    session.sync(worker, PATIENCE)
            assert lists(target) == [[0, 0]] * 4
        session.all_reduce(session.call(np.ones, 2), target)
        assert lists(target) == [[4, 4]] * 4


def test_item_12_an_array_is_captured_and_a_copy_that_cannot_be_is_an_error(begin):
    with begin(4, 1) as session:
        array = np.ones(1 << 18)
        session.call(time.sleep, 0.2)
        first = session.copy_to_first(array)
        array[:] = 2
        assert (first.get(0, PATIENCE) == 1).all()
        back = np.zeros(3)
        session.copy_from_first(back, first)
        with pytest.raises(sheave.Mismatch):
            session.sync(0, PATIENCE)
        session.copy_from_first(back, session.call(lambda: None))
        with pytest.raises(sheave.InvalidArgument):
            session.sync(0, PATIENCE)
        assert back.tolist() == [0, 0, 0]


def test_item_16_a_copy_that_fails_does_not_shift_those_behind_it(begin):
    with begin(4, 1) as session:
        bad, good, last = np.zeros(3), np.zeros(2), np.zeros(4)
        first, other = session.copy_to_first(np.ones(2)), session.copy_to_first(np.full(4, 4.0))
        session.copy_from_first(bad, first)
        session.copy_from_first(good, first)
        with pytest.raises(sheave.SheaveError):
            session.copy_to_first(threading.Lock())
        session.copy_from_first(last, other)
        with pytest.raises(sheave.Mismatch):
            session.sync(0, PATIENCE)
        assert (bad.tolist(), good.tolist(), last.tolist()) == ([0] * 3, [1] * 2, [4] * 4)


@pytest.mark.parametrize("begin", [ThreadedSession, ProcessSession])
def test_item_21_a_limit_ends_an_operation_that_not_all_have_called(begin):
    with begin(2) as session:
        session.limit_collectives(0.3)
        reduce = session.function("sheave.all_reduce")

        def one_alone(reduce, array):
            if sheave.session.worker().id == 0:
                reduce("world", "sum", array)

        session.call(one_alone, reduce, session.call(np.ones, 2))
        with pytest.raises(sheave.Remote, match="not entered: rank 1"):
            session.sync(0, PATIENCE)
        session.sync(1, PATIENCE)
        session.limit_collectives(None)
        session.renew_collectives()
        assert lists_of_two(session.all_reduce(session.call(np.ones, 2))) == [[2, 2]] * 2


@pytest.mark.parametrize("begin", [ThreadedSession, ProcessSession])
def test_item_22_averages_of_integers_are_cut_off_and_sums_wrap(begin):
    with begin(2) as session:
        numbers = session.call(lambda: np.array([-3, 100, 3], "int8") * (1 + 0 * sheave.session.worker().id))
        assert lists_of_two(session.all_reduce(numbers, op="sum")) == [[-6, -56, 6]] * 2
        halves = session.call(lambda: np.array([-3, 3], "int32") * sheave.session.worker().id)
        assert lists_of_two(session.all_reduce(halves, op="avg")) == [[-1, 1]] * 2
        truths = session.call(lambda: np.array([True, sheave.session.worker().id == 0]))
        assert lists_of_two(session.all_reduce(truths, op="min")) == [[True, False]] * 2
        session.all_reduce(truths, op="sum")
        with pytest.raises(sheave.Unsupported):
            session.sync(0, PATIENCE)
        with pytest.raises(sheave.Unsupported):
            session.sync(1, PATIENCE)


def test_a_poisoned_argument_fails_on_all_and_is_told_by_each(begin):
    with begin(4, 1) as session:
        arrays = session.call(lambda: 1 // (sheave.session.worker().id - 1) + np.zeros(2))
        total = session.all_reduce(arrays)
        for worker in range(4):
            with pytest.raises((ZeroDivisionError, sheave.SheaveError), match="zero"):
                session.sync(worker, PATIENCE)
        with pytest.raises((ZeroDivisionError, sheave.SheaveError)):
            total.get(3, PATIENCE)
        assert lists(session.all_reduce(session.call(np.ones, 1))) == [[4]] * 4


# Sessions of several nodes.


def where():
    worker = sheave.session.worker()
    return worker.id, worker.node, worker.local_id, worker.group


def test_workers_of_nodes_know_where_they_are():
    with sockets(6, 3, nodes=3) as session:
        assert (session.workers, session.groups) == (6, 3)
        told = session.call(where)
        told = [told.get(worker, PATIENCE) for worker in range(6)]
        assert told == [(worker, worker // 2, worker % 2, worker // 2) for worker in range(6)]
        pids = session.call(os.getpid)
        assert len({pids.get(worker, PATIENCE) for worker in range(6)}) == 6


def test_item_6_arrays_come_from_and_go_to_other_nodes():
    with sockets(4) as session:
        arrays = session.call(np.ones, 100_000)
        assert (arrays.get(3, PATIENCE) == 1).all()
        arrays.set(2, np.full(70_000, 0.5), PATIENCE)
        assert arrays.get(2, PATIENCE, share=True).sum() == 35_000
        assert [arrays.get(worker, PATIENCE).size for worker in range(4)] == [100_000, 100_000, 70_000, 100_000]


def test_item_7_other_threads_run_while_nodes_are_waited_for():
    port, sessions = sheave._core._free_port(), []
    thread = threading.Thread(target=lambda: sessions.append(SocketSession(2, 1, 1, "localhost", port)))
    thread.start()
    time.sleep(0.3)
    assert not sessions
    node = start_node(port, 1)
    thread.join(PATIENCE)
    with sessions[0] as session:
        assert session.call(where).get(1, PATIENCE) == (1, 1, 0, 0)
    assert node.wait(20) == 0


def test_item_7_the_wait_for_nodes_ends_by_control_c_and_by_its_deadline(start):
    program = start(
        """
        import sys, sheave.session
        print("waits")
        try:
            sheave.session.SocketSession(2, 2, 1, "localhost", int(sys.argv[1]))
        except KeyboardInterrupt:
            print("interrupted")
        """,
        sheave._core._free_port(),
    )
    program.line()
    time.sleep(0.5)
    os.kill(program.pid, signal.SIGINT)
    assert program.line() == "interrupted"
    assert program.finish()[0] == 0
    program = start(
        """
        import sys, sheave.session
        try:
            sheave.session.SocketSession(2, 1, 1, "localhost", int(sys.argv[1]))
        except sheave.DeadlineExceeded:
            print("nobody came")
        """,
        sheave._core._free_port(),
        SHEAVE_JOIN_TIMEOUT_MS="600",
    )
    assert program.line() == "nobody came"


def test_item_8_no_delay_of_the_network_is_waited_for(monkeypatch):
    monkeypatch.setenv("SHEAVE_TRANSPORT", "tcp")
    with sockets(2) as session:
        spans = []
        for _ in range(30):
            begun = time.monotonic()
            session.call(abs, -1)
            session.sync(timeout=PATIENCE)
            spans.append(time.monotonic() - begun)
        # An acknowledgement that is waited for takes 40 ms each time.
        assert min(spans) < 0.03, spans


def test_item_18_nodes_stand_in_the_order_of_their_numbers_and_fit():
    port = sheave._core._free_port()
    nodes = [start_node(port, 1, "--node", str(number)) for number in (2, 1)]
    with SocketSession(3, 1, 1, "localhost", port) as session:
        pids = session.call(os.getpid)
        assert [pids.get(worker, PATIENCE) for worker in (1, 2)] == [nodes[1].pid, nodes[0].pid]
    assert [node.wait(20) for node in nodes] == [0, 0]
    port = sheave._core._free_port()
    # As many workers in all, so that everybody comes.
    nodes = [start_node(port, workers, stderr=subprocess.DEVNULL) for workers in (1, 3)]
    with pytest.raises(sheave.Mismatch, match="workers; expected 2"):
        SocketSession(3, 2, 1, "localhost", port)
    assert 0 not in [node.wait(20) for node in nodes]


def test_item_18_who_does_not_know_the_secret_is_turned_away():
    port = sheave._core._free_port()
    stranger = start_node(port, 1, stderr=subprocess.PIPE, env={**os.environ, "SHEAVE_JOIN_TIMEOUT_MS": "3000"})
    with SocketSession(1, 1, 1, "localhost", port, secret="only this session knows it") as session:
        session.sync(timeout=PATIENCE)
        said = stranger.communicate(timeout=20)[1]
    assert stranger.returncode == 1 and "secret" in said and "Traceback" not in said
    node = start_node(port, 1, env={**os.environ, "SHEAVE_SECRET": "only this session knows it"})
    with SocketSession(2, 1, 1, "localhost", port, secret=b"only this session knows it") as session:
        session.sync(timeout=PATIENCE)
    assert node.wait(20) == 0


@pytest.mark.parametrize(
    "arguments", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 3, 2), (1, 1, 1, "a b"), (1, 1, 1, "localhost", 0)]
)
def test_arguments_that_make_no_sense_are_refused(arguments):
    defaults = (1, 1, 1, "localhost", 7000)
    with pytest.raises(sheave.InvalidArgument):
        SocketSession(*arguments, *defaults[len(arguments) :])


@pytest.mark.parametrize(
    "arguments", [(), ("localhost", "x", "1"), ("localhost", "0", "1"), ("localhost", "7000", "0"),
                  ("localhost", "7000", "1", "--node", "0")]
)  # fmt: skip
def test_a_node_with_arguments_that_make_no_sense_ends_with_2(arguments):
    command = [sys.executable, "-m", "sheave.session_node", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "sheave.session_node: " in done.stderr and "Traceback" not in done.stderr


def test_a_node_ends_by_control_c_and_with_its_controller(start):
    port = sheave._core._free_port()
    node = start_node(port, 2, stderr=subprocess.PIPE)
    time.sleep(1)
    node.send_signal(signal.SIGINT)
    assert (node.wait(10), node.stderr.read()) == (130, "")
    node = start_node(port, 2, stderr=subprocess.PIPE)
    program = start(
        """
        import sys, os, time, sheave.session
        session = sheave.session.SocketSession(2, 2, 1, "localhost", int(sys.argv[1]))
        print(session.call(os.getpid).get(3))
        time.sleep(600)
        """,
        port,
    )
    worker = int(program.line())
    os.kill(program.pid, signal.SIGKILL)
    said = node.communicate(timeout=20)[1]
    assert node.returncode == 1 and "Traceback" not in said
    assert not os.path.exists(f"/proc/{worker}")


def test_item_3_a_death_on_another_node_has_its_status():
    port = sheave._core._free_port()
    node = start_node(port, 2, stderr=subprocess.PIPE)
    with SocketSession(2, 2, 1, "localhost", port) as session:
        session.call(lambda: sheave.session.worker().id == 3 and os._exit(7))
        begun = time.monotonic()
        with pytest.raises(sheave.WorkerDied) as died:
            session.sync(3, PATIENCE)
        assert died.value.exit_status == 7 and time.monotonic() - begun < 2
        session.sync(2, PATIENCE)
    # It has lost a worker of its own, and says so.
    said = node.communicate(timeout=20)[1]
    assert node.returncode == 1 and "Traceback" not in said


SCRIPT = """
import subprocess, sys, sheave.session
@sheave.session.register_function("mine")
def mine(number):
    return number + sheave.session.worker().node, __name__ == "__main__"
if __name__ == "__main__":
    with sheave.session.SocketSession(2, 1, 1, "localhost", int(sys.argv[1])) as session:
        register = session.call("mine", 3)
        print(register.get(0), register.get(1))
"""


def test_the_program_is_prepared_on_other_nodes(tmp_path):
    port = sheave._core._free_port()
    (tmp_path / "script.py").write_text(SCRIPT)
    node = start_node(port, 1, cwd="/")
    command = [sys.executable, tmp_path / "script.py", str(port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "(3, True) (4, False)\n")
    assert node.wait(20) == 0


def test_a_program_that_is_not_on_another_node_is_named(tmp_path):
    port, script = sheave._core._free_port(), tmp_path / "script.py"
    script.write_text(SCRIPT)
    program = subprocess.Popen([sys.executable, script, str(port)], stderr=subprocess.PIPE, text=True)
    # It listens, and waits for the node, which will not find it.
    listens, until = re.compile(f":{port:04X} 0+:0000 0A"), time.monotonic() + 50
    while not any(listens.search(open(f"/proc/net/{kind}").read()) for kind in ("tcp", "tcp6")):
        assert time.monotonic() < until and program.poll() is None
        time.sleep(0.01)
    script.unlink()
    node = start_node(port, 1, stderr=subprocess.DEVNULL)
    said = program.communicate(timeout=50)[1]
    assert program.returncode == 1
    assert f"FileNotFoundError: the program {script} is not on node 1, " in said
    assert node.wait(20) == 0


def test_nodes_import_the_entrypoint(tmp_path, monkeypatch):
    (tmp_path / "tests_node_entrypoint.py").write_text(
        "import sheave.session\n"
        "sheave.session.register_function('entry.node', lambda: sheave.session.worker().node, replace=True)\n"
        "if __name__ == '__main__':\n"
        "    sheave.session.work()\n"
    )
    with pytest.raises(ModuleNotFoundError, match="the entrypoint tests_node_entrypoint is not installed on node 1, "):
        with sockets(2, entrypoint="tests_node_entrypoint"):
            pass
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with sockets(4, entrypoint="tests_node_entrypoint") as session:
        nodes = session.call("entry.node")
        assert [nodes.get(worker, PATIENCE) for worker in (1, 2, 3)] == [0, 1, 1]
        with pytest.raises(sheave.NotFound):
            session.sync(0, PATIENCE)
