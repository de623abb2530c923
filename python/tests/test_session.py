"""`sheave.session`: commands in order, results that stay as the very objects, and errors that come back."""

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import sheave
import sheave.session
from sheave.session import ProcessSession, ThreadedSession

KINDS = {"threads": ThreadedSession, "processes": ProcessSession}
PATIENCE = 30


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def session(kind):
    """A session of two workers, whose failures are told."""
    with kind(2) as session:
        yield session


class Own(Exception):
    """An exception that takes more than its text."""

    def __init__(self, code, text):
        super().__init__(code, text)
        self.code = code


@sheave.session.register_function("tests.identity", replace=True)
def identity(value):
    return value


def fail(code):
    raise Own(code, "no luck")


def fail_on(unlucky, code):
    if sheave.session.worker().id == unlucky:
        fail(code)
    return "well"


VALUES = [
    None, True, False, 0, -1, 2**62, 2**63, -(2**200), 1.5, float("inf"), "", "ä", "x" * 100_000, b"", b"\0" * 100_000,
    (),
    (1, (2,)), [], [1, ["a"]], {}, {"a": 1}, {1: "a", (2, 3): None}, {1, 2}, frozenset([1]), 1 + 2j, slice(1, None, 2),
    np.float32(1.5), np.int8(-3), np.bool_(True),
]  # fmt: skip


def pids(session):
    register = session.call(os.getpid)
    return [register.get(worker, PATIENCE) for worker in range(session.workers)]


def typed(value):
    return type(value).__name__, value


def test_types_are_kept_on_the_way_there_and_back(session):
    function = session.function(typed)
    for value in VALUES:
        register = session.call(function, value)
        for worker in range(2):
            name, got = register.get(worker, PATIENCE)
            assert (name, type(got), got) == (type(value).__name__, type(value), value)


def test_arrays_arrive_writable_and_private(session):
    def write(array):
        assert array.flags.writeable
        array += sheave.session.worker().id + 1
        return array

    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    register = session.call(write, array)
    session.sync(timeout=PATIENCE)
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    for worker in range(2):
        got = register.get(worker)
        assert got.dtype == np.int16 and (got == array + worker + 1).all()
        got[:] = 0
        assert (register.get(worker) == array + worker + 1).all(), "what was fetched is a copy"


def test_arrays_are_captured_when_the_command_is_issued(session):
    array = np.zeros(1 << 20)
    session.call(time.sleep, 0.2)
    register = session.call(np.sum, array)
    array += 1
    assert [register.get(worker, PATIENCE) for worker in range(2)] == [0, 0]


def test_commands_run_in_the_order_in_which_they_were_issued(session):
    log = session.call(list)
    append = session.function(list.append)
    for number in range(1000):
        session.call(append, log, number)
    assert [log.get(worker, PATIENCE) for worker in range(2)] == [list(range(1000))] * 2


def test_ten_thousand_calls_are_pipelined(session):
    add = session.function(lambda one, other: one + other)
    total = session.call(add, 0, 0)
    for _ in range(10_000):
        total = session.call(add, total, 1)
    assert [total.get(worker, PATIENCE) for worker in range(2)] == [10_000] * 2


class Thing:
    """Something that no pickle takes."""

    def __init__(self):
        self.lock = threading.Lock()


def test_what_a_function_returns_stays_the_very_object(session):
    thing = session.call(Thing)
    address = session.function(id)
    first, second = session.call(address, thing), session.call(address, session.call(identity, thing))
    held = session.call(lambda thing: thing.lock.acquire() and not thing.lock.acquire(blocking=False), thing)
    for worker in range(2):
        assert first.get(worker, PATIENCE) == second.get(worker, PATIENCE)
        assert held.get(worker) is True
    with pytest.raises(Exception, match="cannot be pickled"):
        thing.get(1, PATIENCE)


def test_an_array_in_a_register_is_never_copied_from_function_to_function(session):
    array = session.call(np.zeros, 3)
    session.call(lambda array: array.__setitem__(0, 7), array)
    assert [array.get(worker, PATIENCE).tolist() for worker in range(2)] == [[7, 0, 0]] * 2


def test_closures_and_other_callables_live_in_registers(session):
    def adder(by):
        return lambda number: number + by

    add = session.call(adder, 5)
    assert [session.call(add, 1).get(worker, PATIENCE) for worker in range(2)] == [6, 6]
    session.call(session.call(identity, 3))
    for worker in range(2):
        with pytest.raises(sheave.InvalidArgument, match="a call of an object of class int; expected a function"):
            session.sync(worker, PATIENCE)


def test_functions_are_found_by_name_or_sent(session):
    session.import_module(__name__)
    assert session.call(session.function("tests.identity"), "by name").get(1, PATIENCE) == "by name"
    assert session.call("tests.identity", "at once").get(1, PATIENCE) == "at once"
    unit = 3
    assert session.call(lambda number: number * unit, 2).get(1, PATIENCE) == 6
    with pytest.raises(sheave.InvalidArgument, match="an? int is no function"):
        session.function(3)


def test_a_name_that_no_worker_has_is_told_by_the_next_wait(session):
    missing = session.function("no such function")
    with pytest.raises(sheave.NotFound, match='worker 0: the worker has no function "no such function"'):
        session.sync(0, PATIENCE)
    with pytest.raises(sheave.NotFound):
        session.call(missing, 1).get(1, PATIENCE)
    with pytest.raises(sheave.SheaveError):
        session.sync(timeout=PATIENCE)


def test_modules_are_imported_on_workers(session):
    session.import_module("json.tool")
    loaded = session.call(lambda: "json.tool" in sys.modules)
    assert [loaded.get(worker, PATIENCE) for worker in range(2)] == [True, True]
    session.import_module("no_such_module")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        session.sync(1, PATIENCE)
    with pytest.raises(ModuleNotFoundError):
        session.sync(timeout=PATIENCE)


def test_each_worker_has_one_thread_whose_own_state_stays(session):
    def own():
        local = threading.current_thread().__dict__
        local["number"] = local.get("number", 0) + 1
        return local["number"], threading.get_ident()

    registers = [session.call(own) for _ in range(3)]
    for worker in range(2):
        got = [register.get(worker, PATIENCE) for register in registers]
        assert [number for number, _ in got] == [1, 2, 3]
        assert len({thread for _, thread in got}) == 1


def test_workers_know_who_they_are(kind):
    def identity():
        worker = sheave.session.worker()
        return worker.id, worker.workers, worker.groups, worker.group, worker.group_size

    with kind(4, num_groups=2) as session:
        assert (session.workers, session.groups) == (4, 2)
        register = session.call(identity)
        assert [register.get(worker, PATIENCE) for worker in range(4)] == [
            (0, 4, 2, 0, 2), (1, 4, 2, 0, 2), (2, 4, 2, 1, 2), (3, 4, 2, 1, 2),
        ]  # fmt: skip
    with pytest.raises(sheave.NotFound, match="no worker's"):
        sheave.session.worker()


def test_set_gives_one_worker_another_value(session):
    register = session.call(identity, 1)
    register.set(1, {"a": np.arange(3)})
    assert register.get(0, PATIENCE) == 1
    assert register.get(1, PATIENCE)["a"].tolist() == [0, 1, 2]
    assert session.call(lambda value: type(value).__name__, register).get(1, PATIENCE) == "dict"


def test_an_exception_comes_back_with_class_traceback_worker_function_and_number(session):
    session.sync(timeout=PATIENCE)
    register = session.call(fail, 7)
    with pytest.raises(Own) as raised:
        session.sync(1, PATIENCE)
    assert raised.value.code == 7 and raised.value.args == (7, "no luck")
    cause = raised.value.__cause__
    assert isinstance(cause, sheave.Remote)
    assert "worker 1: call of fail: it raised: Own" in str(cause) and cause.seq > 0
    assert 'raise Own(code, "no luck")' in cause.remote_traceback
    for _ in range(2):
        # The failure first, which nobody was told, and then what has poisoned the register.
        with pytest.raises(Own, match="7"):
            register.get(0, PATIENCE)


def test_failures_poison_what_is_computed_from_them_and_nothing_else(session):
    bad = session.call(fail_on, 1, 3)
    worse = session.call(identity, session.call(identity, bad))
    good = session.call(identity, "good")
    with pytest.raises(Own, match="3") as raised:
        session.sync(1, PATIENCE)
    assert "the first of 3 commands that failed" in str(raised.value.__cause__)
    session.sync(0, PATIENCE)
    assert worse.get(0, PATIENCE) == "well"
    assert [good.get(worker, PATIENCE) for worker in range(2)] == ["good", "good"]
    with pytest.raises(Own, match="3"):
        worse.get(1, PATIENCE)


def test_an_exception_that_would_end_the_program_is_remote(session):
    session.call(sys.exit, 3)
    for worker in range(2):
        with pytest.raises(sheave.Remote, match="SystemExit: 3") as raised:
            session.sync(worker, PATIENCE)
        assert raised.value.__cause__.remote_class == "SystemExit"


def test_shutdown_raises_what_nobody_was_told(kind):
    session = kind(2)
    session.call(fail, 1)
    with pytest.raises(Own):
        session.shutdown()
    session.shutdown()


def test_what_a_block_raises_counts_before_what_workers_have(kind):
    with pytest.raises(KeyError):
        with kind(2) as session:
            session.call(fail, 1)
            raise KeyError("the block")


def test_registers_inside_of_arguments_are_refused(session):
    register = session.call(identity, 1)
    with pytest.raises(sheave.InvalidArgument, match="stays with its controller"):
        session.call(identity, [register])
    with pytest.raises(sheave.InvalidArgument, match="stays with its controller"):
        pickle.dumps(register)
    with ThreadedSession(1) as other, pytest.raises(sheave.InvalidArgument, match="of another session"):
        other.call(identity, register)
    assert session.call(identity, register).get(1, PATIENCE) == 1


def test_references_of_a_mesh_are_refused(session):
    with sheave.Mesh(rank=0, size=1) as mesh:
        with pytest.raises(sheave.InvalidArgument, match="of a mesh"):
            session.call(identity, [mesh.export([1])])


def test_registered_functions():
    sheave.session.register_function("tests.once", identity)
    with pytest.raises(sheave.AlreadyExists, match="tests.once"):
        sheave.session.register_function("tests.once", fail)
    assert sheave.session.registered_function("tests.once") is identity
    with ThreadedSession(2) as session:
        held = session.function("tests.once")
        session.sync(timeout=PATIENCE)
        sheave.session.register_function("tests.once", typed, replace=True)
        assert session.call(held, 1).get(1, PATIENCE) == 1
        assert session.call("tests.once", 1).get(1, PATIENCE) == ("int", 1)
        # A function of Python's among the arguments is that function.
        assert session.call(lambda function: function is typed, session.function("tests.once")).get(1, PATIENCE)
    sheave.session.unregister_function("tests.once")
    assert sheave.session.registered_function("tests.once") is None
    with pytest.raises(sheave.NotFound):
        sheave.session.unregister_function("tests.once")
    with pytest.raises(sheave.InvalidArgument, match="no function"):
        sheave.session.register_function("tests.once", 3)


def test_functions_of_rust_are_called_from_python_and_by_commands(session):
    apply = session.function(lambda function, *args: (function.name, function(*args)))
    keep = session.function("python.keep")
    assert session.call(apply, keep, [1, 2]).get(1, PATIENCE) == ("python.keep", [1, 2])
    assert session.call(keep, "kept").get(0, PATIENCE) == "kept"


class Standing:
    """An object that stands for an array."""

    def __init__(self):
        self.array = np.arange(3)

    def __sheave_value__(self):
        return self.array


def test_an_object_is_fetched_as_what_it_stands_for(session):
    register = session.call(Standing)
    assert [register.get(worker, PATIENCE).tolist() for worker in range(2)] == [[0, 1, 2]] * 2
    assert session.call(lambda thing: type(thing).__name__, register).get(1, PATIENCE) == "Standing"


@pytest.mark.parametrize("arguments", [(0,), (-1,), (3, 2), (2, 0), (2**40,)])
def test_workers_and_groups_that_make_no_sense_are_refused(kind, arguments):
    with pytest.raises(sheave.InvalidArgument):
        kind(*arguments)


def test_workers_that_there_are_not_are_refused(session):
    register = session.call(identity, 1)
    for act in (lambda: register.get(2), lambda: register.get(-1), lambda: session.sync(9), lambda: register.set(3, 1)):
        with pytest.raises(sheave.InvalidArgument, match=r"worker -?\d of 2; they are counted from 0"):
            act()


def test_after_shutdown_everything_is_closed_and_nothing_hangs(kind):
    session = kind(2)
    register = session.call(identity, 1)
    session.shutdown()
    assert session.workers == 2
    for act in (
        lambda: session.call(identity, 1),
        lambda: session.function("tests.identity"),
        lambda: session.sync(),
        lambda: session.sync(1),
        lambda: session.import_module("json"),
        lambda: register.get(1),
        lambda: register.set(1, 2),
    ):
        with pytest.raises(sheave.Closed):
            act()
    session.shutdown()
    del register


def test_a_timeout_ends_a_wait_and_loses_no_failure(session):
    session.call(time.sleep, 0.4)
    session.call(fail, 2)
    with pytest.raises(sheave.DeadlineExceeded):
        session.sync(timeout=0.05)
    with pytest.raises(Own):
        session.sync(0, timeout=PATIENCE)
    with pytest.raises(Own):
        session.sync(1, timeout=PATIENCE)


def test_control_c_ends_a_wait_and_not_the_session(session):
    session.sync(timeout=PATIENCE)
    for wait in (session.sync, lambda: session.sync(1), session.call(identity, 1).get):
        session.call(time.sleep, 0.8)
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            wait()
        assert time.monotonic() - begun < 0.6
        timer.join()
    assert session.call(identity, "alive").get(1, PATIENCE) == "alive"


def test_control_c_ends_a_wait_for_room(kind, tmp_path):
    mark = tmp_path / "mark"

    def hold():
        # However slow the machine is, worker 1 takes nothing until it may.
        while sheave.session.worker().id and not mark.exists():
            time.sleep(0.01)

    with kind(2) as session:
        try:
            sleep = session.function(time.sleep)
            session.call(hold)
            timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                while True:
                    session.call(sleep, 0)
            timer.join()
            begun = time.monotonic()
            # Long enough for worker 0 to have done all.
            with pytest.raises(sheave.DeadlineExceeded, match="worker 1 takes no more commands"):
                while time.monotonic() < begun + 20:
                    session.call(sleep, 0, timeout=2)
        finally:
            mark.touch()
        session.sync(timeout=PATIENCE)


def test_other_threads_run_while_one_waits(session):
    session.call(time.sleep, 0.5)
    ticks = []
    thread = threading.Thread(target=lambda: [ticks.append(time.sleep(0.01)) for _ in range(20)])
    thread.start()
    session.sync(timeout=PATIENCE)
    assert len(ticks) == 20
    thread.join()


def test_four_threads_issue_commands_at_once(session):
    log, append = session.call(list), session.function(list.append)
    failures = []

    def run(thread):
        try:
            for number in range(500):
                session.call(append, log, (thread, number))
                if number % 100 == 0:
                    session.sync(number // 100 % 2, PATIENCE)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert not failures
    first, second = (log.get(worker, PATIENCE) for worker in range(2))
    assert first == second, "all workers have one order"
    for thread in range(4):
        assert [number for whose, number in first if whose == thread] == list(range(500))


def test_what_a_dropped_register_held_is_freed(session):
    class Dropped:
        pass

    def count():
        return sum(type(thing).__name__ == "Dropped" for thing in gc.get_objects())

    made = session.call(lambda kind: [kind() for _ in range(3)], Dropped)
    session.sync(timeout=PATIENCE)
    counted = session.function(count)
    assert [session.call(counted).get(worker, PATIENCE) for worker in range(2)] == [6 // len(set(pids(session)))] * 2
    del made
    until = time.monotonic() + 10
    while any(session.call(counted).get(worker, PATIENCE) for worker in range(2)):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_register_may_be_dropped_by_the_collector_on_any_thread_and_at_any_time(session):
    class Circle:
        def __init__(self, register):
            self.register, self.itself = register, self

    for _ in range(200):
        Circle(session.call(identity, 1))
    gc.collect()
    dropped = [session.call(identity, number) for number in range(100)]
    thread = threading.Thread(target=dropped.clear)
    thread.start()
    thread.join(10)
    circle = Circle(session.call(identity, 1))
    session.shutdown()
    del circle
    gc.collect()


def test_a_session_ends_when_the_last_register_of_it_is_dropped():
    session = ProcessSession(2)
    pid = session.call(os.getpid).get(1, PATIENCE)
    register = session.call(identity, 1)
    del session
    gc.collect()
    assert register.get(1, PATIENCE) == 1, "the register keeps it"
    begun = time.monotonic()
    del register
    assert time.monotonic() - begun < 0.5
    until = time.monotonic() + 10
    while time.monotonic() < until and os.path.exists(f"/proc/{pid}"):
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid}")


def test_workers_of_one_session_are_one_process_each():
    with ProcessSession(3) as session:
        pids = session.call(os.getpid)
        got = [pids.get(worker, PATIENCE) for worker in range(3)]
        assert got[0] == os.getpid() and len(set(got)) == 3
        settings = session.call(lambda: [name for name in os.environ if name.startswith("SHEAVE_R")])
        assert settings.get(1, PATIENCE) == [], "a worker may join a mesh of its own"
        alone = session.call(lambda: sheave.Mesh(rank=0, size=1).size)
        assert alone.get(1, PATIENCE) == 1


def test_processes_get_variables():
    with ProcessSession(2, env={"TESTS_OWN": "yes"}, output="quiet") as session:
        assert session.call(os.getenv, "TESTS_OWN").get(1, PATIENCE) == "yes"
    with pytest.raises(sheave.InvalidArgument, match="output"):
        ProcessSession(2, output="loud")


ENTRYPOINT = """
import sys
import sheave.session

@sheave.session.register_function("entry.arguments")
def arguments():
    return sys.argv[1:]

if __name__ == "__main__":
    sheave.session.work()
"""


def test_an_entrypoint_registers_functions_and_works(tmp_path, monkeypatch):
    (tmp_path / "tests_entrypoint.py").write_text(ENTRYPOINT)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        with ProcessSession(3, entrypoint="tests_entrypoint") as session:
            arguments = session.function("entry.arguments")
            with pytest.raises(sheave.NotFound):
                session.call(arguments).get(0, PATIENCE)
            assert session.call(arguments).get(2, PATIENCE) == ["2", "3", "1", "0", "1"]
            with pytest.raises(sheave.NotFound):
                session.sync(0, PATIENCE)


def test_a_script_has_its_functions_found_on_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sheave.session\n"
        "@sheave.session.register_function('mine')\n"
        "def mine(number):\n"
        "    return number, __name__ == '__main__', sheave.session.worker().id\n"
        "if __name__ == '__main__':\n"
        "    with sheave.session.ProcessSession(2) as session:\n"
        "        register = session.call('mine', 3)\n"
        "        print(register.get(0), register.get(1))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == "(3, True, 0) (3, False, 1)"


def test_built_in_operations_work_on_arrays_of_python_where_they_lie(session):
    arrays = session.call(lambda: np.full(3, sheave.session.worker().id + 1.0))
    totals = session.call("sheave.all_reduce", "world", "sum", arrays)
    assert [totals.get(worker, PATIENCE).tolist() for worker in range(2)] == [[3, 3, 3]] * 2
    target = session.call(np.zeros, 3)
    session.call("sheave.all_reduce", "world", "max", arrays, target)
    same = session.call(lambda array: array.tolist(), target)
    assert [same.get(worker, PATIENCE) for worker in range(2)] == [[2, 2, 2]] * 2


def test_a_worker_whose_function_waits_keeps_no_other_one_from_its_own():
    met = threading.Event()

    @sheave.session.register_function("tests.meet", replace=True)
    def meet():
        if sheave.session.worker().id == 0:
            return met.wait(20)
        met.set()
        return True

    with ThreadedSession(2) as session:
        for _ in range(20):
            met.clear()
            both = session.call(session.function("tests.meet"))
            assert both.get(0, PATIENCE) and both.get(1, PATIENCE)
