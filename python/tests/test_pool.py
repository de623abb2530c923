"""sheave.pool.Pool: the interface of multiprocessing's, and what it adds."""

import contextlib
import functools
import gc
import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import types
import weakref

import numpy as np
import pytest
import sheave
import sheave.pool
from conftest import Program

PATIENCE = 60


@pytest.fixture(scope="module")
def pool():
    with sheave.pool.Pool(2) as pool:
        yield pool


def square(number):
    return number * number


class Odd(Exception):
    """An exception whose constructor takes what its arguments do not say."""

    def __init__(self, one, other):
        super().__init__(f"{one} {other}")
        self.one = one


def raises(number):
    if number == 3:
        raise Odd(number, "x")
    return number


def test_it_does_what_pools_of_the_standard_library_do(pool):
    assert pool.apply(square, (3,)) == 9
    assert pool.apply(pow, (2,), {"exp": 5, "mod": 7}) == 4
    assert pool.map(square, range(100)) == [number * number for number in range(100)]
    assert pool.map(square, range(10), chunksize=3) == [number * number for number in range(10)]
    assert pool.starmap(pow, [(2, 3), (3, 2)]) == [8, 9]
    assert list(pool.imap(square, range(10))) == [number * number for number in range(10)]
    assert list(pool.imap(square, range(10), chunksize=4)) == [number * number for number in range(10)]
    assert sorted(pool.imap_unordered(square, range(10))) == sorted(number * number for number in range(10))
    assert sorted(pool.imap_unordered(square, range(10), 3)) == sorted(number * number for number in range(10))
    result = pool.map_async(square, [1, 2])
    result.wait()
    assert result.ready() and result.successful() and result.get(timeout=1) == [1, 4]
    assert pool.starmap_async(pow, [(2, 3)]).get(PATIENCE) == [8]
    assert pool.apply_async(square, (4,)).get(PATIENCE) == 16


def test_functions_of_all_kinds_are_run(pool):
    factor = 3

    def local(number):
        return number * factor

    assert pool.map(local, [1, 2]) == [3, 6]
    assert pool.apply(lambda: factor) == 3
    assert pool.map(functools.partial(pow, 2), [3, 4]) == [8, 16]
    assert pool.map([10, 20, 30].__getitem__, [2, 0]) == [30, 10]


FACTOR = 2
TABLE = [1]


def scaled(number):
    return number * FACTOR


def nested(number):
    return scaled(number) + 1


def counted(_):
    return len(TABLE)


def recursive(number):
    return 1 if number == 0 else number * recursive(number - 1)


def test_functions_mean_what_they_mean_when_they_are_submitted(pool):
    """Functions of a script, as which those of this test stand here, travel by value, and are not sent in vain."""
    names = {"FACTOR": 2, "TABLE": [1], "__name__": "__main__"}
    for function in (scaled, nested, counted, recursive):
        own = types.FunctionType(function.__code__, names, function.__name__)
        own.__module__ = "__main__"
        names[function.__name__] = own
    assert pool.apply(names["nested"], (3,)) == 7
    names["FACTOR"] = 5
    assert pool.apply(names["nested"], (3,)) == 16
    assert pool.apply(names["counted"], (0,)) == 1
    names["TABLE"].append(2)
    assert pool.apply(names["counted"], (0,)) == 2, "a list may have changed"
    assert pool.apply(names["recursive"], (5,)) == 120

    def closed(_):
        return value

    for value in range(3):
        assert pool.apply(closed, (0,)) == value
    sent, made = [], pool._processes.core
    known = sheave.pool._functions.Known()
    for _ in range(3):
        known.get(names["nested"], lambda function: sent.append(function) or made.function(function))
        known.get(square, lambda function: sent.append(function) or made.function(function))
        known.get(names["counted"], lambda function: sent.append(function) or made.function(function))
    assert len(sent) == 5


def test_nothing_to_do_is_done_at_once(pool):
    assert pool.map(square, []) == []
    assert list(pool.imap(square, [])) == []
    assert list(pool.imap_unordered(square, [], 2)) == []
    assert pool.starmap_async(pow, []).get(PATIENCE) == []


def test_exceptions_come_back_as_what_they_were(pool):
    with pytest.raises(ZeroDivisionError) as raised:
        pool.apply(lambda: 1 / 0)
    assert "in <lambda>" in raised.value.__cause__.__cause__.remote_traceback
    with pytest.raises(Odd) as raised:
        pool.map(raises, range(6), 1)
    assert raised.value.one == 3
    results = pool.imap(raises, range(6))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(Odd):
        next(results)
    assert list(results) == [4, 5], "the iteration goes on"
    result = pool.apply_async(raises, (3,))
    result.wait(PATIENCE)
    assert not result.successful()


def test_results_and_arguments_that_cannot_be_sent_are_errors_of_their_tasks(pool):
    with pytest.raises(sheave.Remote, match="the result cannot be sent"):
        pool.apply(threading.Lock)
    with pytest.raises(sheave.InvalidArgument, match="cannot be pickled"):
        pool.apply(square, (threading.Lock(),))

    def unpicklable():
        class Local(Exception):
            def __init__(self):
                super().__init__("kept")
                self.lock = threading.Lock()

        raise Local

    with pytest.raises(Exception, match="kept"):
        pool.apply(unpicklable)
    with pytest.raises(sheave.Remote, match="SystemExit"):
        pool.apply(sys.exit, (3,))
    with pytest.raises(sheave.Remote, match="KeyboardInterrupt"):
        pool.apply(functools.partial(exec, "raise KeyboardInterrupt"))
    assert pool.apply(square, (2,)) == 4


def test_waits_end_in_time():
    with sheave.pool.Pool(1) as pool:
        result = pool.apply_async(time.sleep, (PATIENCE,))
        with pytest.raises(multiprocessing.TimeoutError):
            result.get(timeout=0.05)
        assert not result.ready()
        with pytest.raises(ValueError, match="not ready"):
            result.successful()
        with pytest.raises(sheave.pool.TimeoutError):
            pool.map_async(square, [1]).get(timeout=0.05)
        results = pool.imap(square, [1])
        with pytest.raises(sheave.pool.TimeoutError):
            results.next(timeout=0.05)
        # Nor does anybody wait for another one who waits for longer.

        def read():
            # Until the pool ends.
            with contextlib.suppress(sheave.SheaveError, ValueError):
                results.next()

        threading.Thread(target=read, daemon=True).start()
        while not results._turn.locked():
            time.sleep(0.001)
        with pytest.raises(sheave.pool.TimeoutError):
            results.next(timeout=0.05)


def test_callbacks_are_called(pool):
    heard, told = [], threading.Event()

    def hear(what):
        heard.append(what)
        told.set()

    for begin in (
        lambda: pool.apply_async(square, (3,), callback=hear),
        lambda: pool.apply_async(raises, (3,), error_callback=hear),
        lambda: pool.map_async(square, [1, 2], callback=hear),
        lambda: pool.map_async(raises, [3, 1], error_callback=hear),
    ):
        told.clear()
        begin().wait(PATIENCE)
        assert told.wait(PATIENCE)
    assert heard[0] == 9 and isinstance(heard[1], Odd) and heard[2] == [1, 4] and isinstance(heard[3], Odd)


def test_errors_of_the_iterable_surface_where_they_are_looked_for(pool):
    def items():
        yield 1
        yield 2
        raise LookupError("no more")

    with pytest.raises(LookupError):
        pool.map(square, items())
    with pytest.raises(LookupError):
        pool.starmap_async(pow, items())
    results = pool.imap(square, items())
    assert [next(results), next(results)] == [1, 4]
    with pytest.raises(LookupError):
        next(results)
    with pytest.raises(StopIteration):
        next(results)
    with pytest.raises(TypeError):
        pool.map(square, 5)


def test_an_infinite_iterable_is_taken_as_far_as_it_is_read(pool):
    taken = []

    def numbers():
        for number in itertools.count():
            taken.append(number)
            yield number

    results = pool.imap(square, numbers())
    assert [next(results) for _ in range(500)] == [number * number for number in range(500)]
    assert len(taken) < 700
    unordered = pool.imap_unordered(square, itertools.count(), 10)
    assert len({next(unordered) for _ in range(100)}) == 100


def test_an_iterator_has_the_length_of_what_it_maps(pool):
    assert len(pool.imap(square, range(7))) == 7
    with pytest.raises(TypeError):
        len(pool.imap(square, iter(range(7))))
    seen = []
    assert pool.map(square, range(5), progress=lambda done, total: seen.append((done, total))) == [0, 1, 4, 9, 16]
    assert seen == [(done, 5) for done in range(1, 6)]


def test_arrays_are_captured_and_are_the_workers_own(pool):
    for elements in (10, 1 << 20):
        array = np.arange(elements, dtype=np.float64)
        result = pool.apply_async(lambda array: (array.flags.writeable, float(array.sum())), (array,))
        array[:] = 0
        assert result.get(PATIENCE) == (True, elements * (elements - 1) / 2)

        def change(array):
            array += 1
            return array

        before = np.zeros(elements)
        after = pool.apply(change, (before,))
        assert before.sum() == 0 and after.sum() == elements and after.flags.writeable
        after += 1


def test_what_is_read_only_stays_so(pool):
    array = np.arange(1000)
    array.setflags(write=False)

    def look(array, other):
        other += 1
        array = array[:10]
        return array.flags.writeable, array, other

    assert pool.apply(look, (array, np.zeros(3)))[0] is False
    fixed = pool.apply(lambda: np.frombuffer(bytes(8)))
    assert not fixed.flags.writeable


def test_an_array_may_be_shared(pool):
    tensor = sheave.empty(1 << 20, "float64")
    tensor.numpy()[:] = 1

    def write(array, at):
        array[at] = at
        return float(array.sum())

    shared = sheave.pool.Share(tensor)
    assert pool.apply(write, (shared, 5)) == (1 << 20) + 4
    assert tensor.numpy()[5] == 5
    assert pool.apply(write, (shared, 1)) == (1 << 20) + 4
    small = sheave.empty(2, "int64")
    pool.apply(write, (sheave.pool.Share(small), 1))
    assert small.numpy()[1] == 1
    fixed = sheave.pool.Share(small, read_only=True)
    with pytest.raises(ValueError, match="read-only"):
        pool.apply(write, (fixed, 0))
    assert pool.apply(lambda array: int(array[1]), (fixed,)) == 1
    with pytest.raises(sheave.InvalidArgument, match="ndarray is not shared"):
        sheave.pool.Share(np.zeros(3))


def test_wrong_arguments_are_refused():
    for processes in (0, -1):
        with pytest.raises(ValueError, match=f"{processes}"):
            sheave.pool.Pool(processes)
    with pytest.raises(TypeError, match="must be an int, and is a str"):
        sheave.pool.Pool("x")
    with pytest.raises(TypeError, match="initializer"):
        sheave.pool.Pool(1, initializer=5)
    with pytest.raises(ValueError, match="2 contexts for 1"):
        sheave.pool.Pool(1, contexts=[1, 2])
    with pytest.raises(ValueError, match="0"):
        sheave.pool.Pool(1, maxtasksperchild=0)


def test_what_cannot_be_called_or_cut_is_refused(pool):
    with pytest.raises(TypeError, match="func"):
        pool.apply(5)
    with pytest.raises(ValueError, match="Chunksize"):
        pool.map(square, [1], 0)
    with pytest.raises(NotImplementedError):
        pickle.dumps(pool)


def test_close_and_join_let_tasks_end():
    pool = sheave.pool.Pool(2)
    results = [pool.apply_async(square, (number,)) for number in range(50)]
    with pytest.raises(ValueError, match="still running"):
        pool.join()
    pids = pool.pids()
    pool.close()
    with pytest.raises(ValueError, match="not running"):
        pool.apply(square, (1,))
    with pytest.raises(ValueError, match="not running"):
        pool.map(square, [])
    pool.join()
    assert [result.get(0) for result in results] == [number * number for number in range(50)]
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    pool.join()
    pool.terminate()


def test_terminate_fails_what_runs():
    pool = sheave.pool.Pool(1)
    running, waiting = pool.apply_async(time.sleep, (PATIENCE,)), pool.apply_async(square, (1,))
    pool.terminate()
    pool.join()
    for result in (running, waiting):
        with pytest.raises(sheave.Closed, match="terminated"):
            result.get(PATIENCE)


def test_workers_are_set_up_and_have_contexts():
    with sheave.pool.Pool(initializer=os.putenv, initargs=("HELLO", "1"), contexts=["a", "b"]) as pool:
        assert pool.size == 2
        seen = set(pool.map(lambda _: sheave.pool.worker(), range(400), 1))
        assert seen <= {(0, "a"), (1, "b")} and seen
        # The one that replaces it has what it had.
        slot = pool.apply(lambda: sheave.pool.worker().slot)
        with pytest.raises(sheave.WorkerDied):
            pool.apply(lambda: os._exit(1))
        assert {pool.apply(sheave.pool.context) for _ in range(20)} <= {"a", "b"} and slot in (0, 1)
    with pytest.raises(sheave.Closed, match="no worker"):
        sheave.pool.worker()


def test_what_workers_are_set_up_by_may_be_of_any_module_that_is_found_here():
    with sheave.pool.Pool(1, print, (Odd,), contexts=[Odd]) as pool:
        assert pool.apply(sheave.pool.context) is Odd
    with sheave.pool.Pool(1, square, (3,)) as pool:
        assert pool.apply(square, (3,)) == 9


def test_an_initializer_that_fails_breaks_a_pool_of_threads():
    def fails():
        raise LookupError("none")

    with sheave.pool.ThreadPool(2, fails) as pool:
        with pytest.raises((LookupError, sheave.Closed), match="none"):
            pool.map(square, range(10), 1)
        with pytest.raises(sheave.Closed, match="none"):
            pool.apply(square, (1,))


@pytest.mark.parametrize("how", ["raises", "dies"])
def test_an_initializer_that_fails_breaks_the_pool(how, capfd):
    fails = functools.partial(os._exit, 5) if how == "dies" else functools.partial(exec, "raise LookupError('none')")
    with sheave.pool.Pool(2, fails) as pool:
        begun = time.monotonic()
        with pytest.raises(sheave.WorkerDied if how == "dies" else LookupError):
            pool.apply(square, (1,))
        with pytest.raises(sheave.SheaveError):
            pool.apply_async(square, (1,))
        assert time.monotonic() - begun < PATIENCE / 2
    capfd.readouterr()


def test_a_worker_is_replaced_after_its_tasks():
    with sheave.pool.Pool(2, maxtasksperchild=5) as pool:
        pids = pool.map(lambda _: os.getpid(), range(40), 1)
        assert max(pids.count(pid) for pid in pids) <= 5


def test_a_task_that_ends_its_worker_fails_alone(pool):
    before = pool.map_async(square, range(200), 1)
    died = pool.apply_async(lambda: os._exit(7))
    after = pool.map_async(square, range(200), 1)
    with pytest.raises(sheave.WorkerDied) as raised:
        died.get(PATIENCE)
    assert raised.value.exit_status == 7 and "rank-0.worker-" in str(raised.value)
    assert before.get(PATIENCE) == after.get(PATIENCE) == [number * number for number in range(200)]


def test_killed_workers_fail_what_they_had_begun_within_a_second(tmp_path):
    def hold(path):
        (tmp_path / path).write_text("")
        time.sleep(PATIENCE)

    with sheave.pool.Pool(2) as pool:
        held = [pool.apply_async(hold, (path,)) for path in "ab"]
        others = pool.map_async(square, range(50))
        until = time.monotonic() + PATIENCE
        while len(os.listdir(tmp_path)) < 2 and time.monotonic() < until:
            time.sleep(0.002)
        killed = time.monotonic()
        for pid in pool.pids():
            os.kill(pid, signal.SIGKILL)
        for result in held:
            with pytest.raises(sheave.WorkerDied) as raised:
                result.get(PATIENCE)
            assert raised.value.exit_status == -signal.SIGKILL
        assert time.monotonic() - killed < 1
        assert others.get(PATIENCE) == [number * number for number in range(50)]


def test_a_task_may_be_tried_again(tmp_path):
    def stumbles():
        if not (tmp_path / "mark").exists():
            (tmp_path / "mark").write_text("")
            os._exit(1)
        return 7

    with sheave.pool.Pool(1, tries=1) as pool:
        assert pool.apply(stumbles) == 7


def test_uneven_tasks_are_balanced():
    with sheave.pool.Pool(2) as pool:
        pool.map(square, range(1000), 1)
        long = pool.apply_async(time.sleep, (PATIENCE,))
        assert pool.map(square, range(100)) == [number * number for number in range(100)]
        assert not long.ready()


def test_it_may_be_used_from_threads_and_asyncio(pool):
    import asyncio

    results = {}
    threads = [
        threading.Thread(target=lambda at=at: results.update({at: pool.map(square, range(at, at + 50), 1)}))
        for at in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert results == {at: [number * number for number in range(at, at + 50)] for at in range(4)}

    async def both():
        return await asyncio.gather(pool.apply_async(square, (2,)).work, pool.apply_async(square, (3,)).work)

    assert asyncio.run(both()) == [4, 9]


def test_a_pool_that_nobody_holds_ends():
    pool = sheave.pool.Pool(1)
    assert pool.apply(square, (2,)) == 4
    (pid,), gone = pool.pids(), weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None
    until = time.monotonic() + PATIENCE
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid}")


def test_pools_may_be_made_in_workers(pool):
    def within(numbers):
        with sheave.pool.Pool(1) as own:
            return own.map(lambda number: number + 1, numbers)

    assert pool.apply(within, ([1, 2],)) == [2, 3]


def test_workers_go_with_a_parent_that_is_killed():
    program = Program("""
        import sheave.pool, time
        pool = sheave.pool.Pool(2)
        pool.map(abs, range(10))
        print(*pool.pids())
        pool.apply(time.sleep, (60,))
    """)
    pids = program.line().split()
    os.kill(program.pid, signal.SIGKILL)
    program.finish()
    until = time.monotonic() + PATIENCE
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_control_c_ends_a_wait_and_not_the_workers():
    program = Program("""
        import sheave.pool, time
        with sheave.pool.Pool(1) as pool:
            pool.apply(abs, (1,))
            result = pool.apply_async(time.sleep, (0.5,))
            try:
                print("begun")
                result.get()
            except KeyboardInterrupt:
                print("interrupted", result.get(), pool.apply(abs, (-2,)))
    """)
    assert program.line() == "begun"
    os.killpg(program.pid, signal.SIGINT)
    status, out, err = program.finish()
    assert (status, out.strip()) == (0, "interrupted None 2"), err


def test_a_program_that_just_ends_leaves_nothing():
    source = "import sheave.pool; pool = sheave.pool.Pool(2); print(pool.map(abs, [-1]), *pool.pids())"
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0 and run.stdout.startswith("[1]"), run.stderr
    assert not any(os.path.exists(f"/proc/{pid}") for pid in run.stdout.split()[1:])
    assert run.stderr == ""
