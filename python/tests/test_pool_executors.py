"""sheave.pool.Executor and sheave.pool.ThreadPool."""

import asyncio
import concurrent.futures
import gc
import itertools
import multiprocessing
import os
import pickle
import threading
import time
import weakref

import pytest
import sheave
import sheave.pool

PATIENCE = 60


def square(number):
    return number * number


@pytest.fixture(scope="module")
def executor():
    with sheave.pool.Executor(2) as executor:
        yield executor


def test_it_does_what_executors_do(executor):
    assert isinstance(executor, concurrent.futures.Executor)
    futures = [executor.submit(square, number) for number in range(20)]
    done, left = concurrent.futures.wait(futures, timeout=PATIENCE)
    assert len(done) == 20 and not left
    assert [future.result() for future in futures] == [number * number for number in range(20)]
    assert {future.result() for future in concurrent.futures.as_completed(futures)} == {n * n for n in range(20)}
    assert executor.submit(pow, 2, exp=5).result(PATIENCE) == 32
    assert list(executor.map(pow, [2, 3], [3, 2])) == [8, 9]
    assert list(executor.map(pow, range(10), range(10), chunksize=3)) == [number**number for number in range(10)]
    with pytest.raises(ValueError, match="chunksize"):
        executor.map(square, [1], chunksize=0)


def test_exceptions_and_timeouts_are_those_of_futures(executor):
    future = executor.submit(int, "x")
    assert isinstance(future.exception(PATIENCE), ValueError)
    with pytest.raises(ValueError, match="invalid literal"):
        future.result()
    with pytest.raises(concurrent.futures.TimeoutError):
        list(executor.map(time.sleep, [0.5], timeout=0.01))
    heard = threading.Event()
    executor.submit(square, 1).add_done_callback(lambda _: heard.set())
    assert heard.wait(PATIENCE)


def test_a_future_is_cancelled_until_a_worker_has_it():
    with sheave.pool.Executor(1) as executor:
        running = executor.submit(time.sleep, 0.3)
        waiting = [executor.submit(square, number) for number in range(50)]
        assert waiting[-1].cancel() and waiting[-1].cancelled()
        with pytest.raises(concurrent.futures.CancelledError):
            waiting[-1].result(PATIENCE)
        assert running.result(PATIENCE) is None and not running.cancel()
        assert [future.result(PATIENCE) for future in waiting[:-1]] == [number * number for number in range(49)]


def test_a_future_runs_once_a_worker_has_begun(tmp_path):
    def until(path):
        deadline = time.monotonic() + 10
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    with sheave.pool.Executor(1) as executor:
        first, second = (executor.submit(until, tmp_path / name) for name in ("one", "two"))
        deadline = time.monotonic() + PATIENCE
        while not first.running() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert first.running() and not second.running()
        (tmp_path / "one").touch()
        assert first.result(PATIENCE) is None and not first.running()
        while not second.running() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert second.running() and not second.done()
        (tmp_path / "two").touch()
        assert second.result(PATIENCE) is None and not second.running()


def test_it_runs_what_asyncio_gives_it(executor):
    async def both():
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(executor, square, number) for number in range(5)))

    assert asyncio.run(both()) == [0, 1, 4, 9, 16]


def test_a_worker_that_dies_fails_its_task_alone(executor):
    futures = [executor.submit(square, number) for number in range(50)]
    died = executor.submit(os._exit, 4)
    error = died.exception(PATIENCE)
    assert isinstance(error, sheave.WorkerDied) and error.exit_status == 4
    # As concurrent.futures says it.
    assert type(error) is sheave.pool.WorkerLost and isinstance(error, concurrent.futures.process.BrokenProcessPool)
    assert [future.result(PATIENCE) for future in futures] == [number * number for number in range(50)]
    assert executor.submit(square, 3).result(PATIENCE) == 9


class Unpicklable:
    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        raise self.error


def test_what_cannot_be_pickled_fails_its_future():
    with sheave.pool.Executor(1) as executor:
        refused = executor.submit(square, Unpicklable(pickle.PicklingError("not this")))
        with pytest.raises(pickle.PicklingError, match="not this") as raised:
            refused.result(PATIENCE)
        assert "cannot be pickled" in raised.value.__notes__[0]
        assert isinstance(executor.submit(square, threading.Lock()).exception(PATIENCE), TypeError)
        assert isinstance(executor.submit(square, Unpicklable(KeyError("x"))).exception(PATIENCE), KeyError)
        results = executor.map(square, [2, threading.Lock(), 3])
        assert next(results) == 4
        with pytest.raises(TypeError):
            next(results)
        behind = executor.submit(square, 3)
        failed = executor.submit(square, threading.Lock())
        executor.shutdown(wait=False)
        assert behind.result(PATIENCE) == 9 and isinstance(failed.exception(PATIENCE), TypeError)


class Told:
    """Sets an event of a manager when it goes."""

    def __init__(self, event):
        self.event = event

    def __del__(self):
        self.event.set()


def test_proxies_of_managers_are_arguments_which_go_with_their_task(executor):
    with multiprocessing.get_context("spawn").Manager() as manager:
        numbers, gone = manager.list(), manager.Event()
        executor.submit(numbers.append, 5).result(PATIENCE)
        assert list(numbers) == [5]
        told = Told(gone)
        executor.submit(id, told).result(PATIENCE)
        assert gone.wait(PATIENCE)
        told = None
        gc.collect()


def test_one_that_nobody_holds_ends_when_its_tasks_have():
    executor = sheave.pool.Executor(2)
    assert executor._max_workers == 2
    core = weakref.ref(executor._processes.core)
    futures = [executor.submit(time.sleep, 0.05) for _ in range(10)]
    del executor
    gc.collect()
    assert [future.result(PATIENCE) for future in futures] == [None] * 10
    until = time.monotonic() + PATIENCE
    while core() is not None and time.monotonic() < until:
        time.sleep(0.01)
    assert core() is None


def test_a_program_that_ends_waits_for_its_tasks(start):
    source = """
        import atexit, sys, time

        @atexit.register
        def submit():
            try:
                executor.submit(pow, 2, 3)
            except RuntimeError as error:
                print(error)

        import sheave.pool

        def say(text):
            time.sleep(0.3)
            # One write: `print` makes two where nothing is buffered, and three workers share this pipe.
            sys.stdout.write(text + "\\n")
            sys.stdout.flush()

        executor = sheave.pool.Executor(1, output="inherit")
        executor.submit(say, "one")
        other = sheave.pool.Executor(1, output="inherit")
        other.submit(say, "two")
        other.shutdown(wait=False)
        sheave.pool.Executor(1, output="inherit").submit(say, "three")
    """
    status, out, err = start(source).finish(PATIENCE)
    assert (status, err) == (0, "")
    *said, last = out.splitlines()
    assert sorted(said) == ["one", "three", "two"] and last == "cannot schedule new futures after shutdown"


def test_a_forked_child_that_ends_waits_for_nothing(start):
    source = """
        import os, sys, time
        import sheave.pool

        executor = sheave.pool.Executor(1)
        future = executor.submit(time.sleep, 0.5)
        child = os.fork()
        if child == 0:
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), future.done(), future.result())
    """
    status, out, err = start(source).finish(PATIENCE)
    assert (status, out, err) == (0, "3 False None\n", "")


def test_shutdown_waits_or_cancels():
    executor = sheave.pool.Executor(1)
    futures = [executor.submit(time.sleep, 0.01) for _ in range(10)]
    executor.shutdown()
    assert all(future.done() and future.exception() is None for future in futures)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(square, 1)
    executor.shutdown()
    executor = sheave.pool.Executor(1)
    futures = [executor.submit(time.sleep, 0.2) for _ in range(20)]
    executor.shutdown(cancel_futures=True)
    assert all(future.done() for future in futures) and futures[-1].cancelled()
    executor = sheave.pool.Executor(1)
    future = executor.submit(time.sleep, 0.1)
    executor.shutdown(wait=False)
    assert future.result(PATIENCE) is None


def test_an_initializer_that_raises_breaks_it(capfd):
    with sheave.pool.Executor(1, initializer=exec, initargs=("raise LookupError('none')",)) as executor:
        future = executor.submit(square, 1)
        with pytest.raises(sheave.pool.BrokenPool, match="none") as raised:
            future.result(PATIENCE)
        assert isinstance(raised.value, concurrent.futures.BrokenExecutor)
        with pytest.raises(sheave.pool.BrokenPool):
            executor.submit(square, 1)
    with pytest.raises(ValueError, match="max_workers"):
        sheave.pool.Executor(0)
    capfd.readouterr()


def test_threads_do_what_processes_do():
    with sheave.pool.ThreadPool(2) as pool:
        assert pool.apply(square, (3,)) == 9
        assert pool.map(square, range(10)) == [number * number for number in range(10)]
        assert pool.starmap(pow, [(2, 3)]) == [8]
        assert list(pool.imap(square, range(10), 3)) == [number * number for number in range(10)]
        assert sorted(pool.imap_unordered(square, range(10))) == sorted(number * number for number in range(10))
        assert pool.map(square, []) == [] and list(pool.imap(square, [])) == []
        endless = pool.imap(square, itertools.count())
        assert [next(endless) for _ in range(100)] == [number * number for number in range(100)]
        with pytest.raises(ZeroDivisionError):
            pool.apply(lambda: 1 / 0)
        with pytest.raises(sheave.Remote, match="SystemExit"):
            pool.apply(exit)
        kept = object()
        assert pool.apply(lambda: kept) is kept
        heard = threading.Event()
        pool.map_async(square, [1], callback=lambda results: results == [1] and heard.set())
        assert heard.wait(PATIENCE)
        with pytest.raises(sheave.pool.TimeoutError):
            pool.apply_async(time.sleep, (0.3,)).get(0.01)


def test_threads_are_set_up_and_have_contexts():
    begun = []
    with sheave.pool.ThreadPool(initializer=begun.append, initargs=(1,), contexts="ab") as pool:
        assert set(pool.map(lambda _: time.sleep(0.01) or sheave.pool.context(), range(20), 1)) == {"a", "b"}
    assert begun == [1, 1]


def test_a_task_that_waits_for_its_own_pool_does_what_it_waits_for():
    with sheave.pool.ThreadPool(2) as pool:

        def total(depth):
            return 1 if depth == 0 else sum(pool.map(total, [depth - 1] * 2, 1))

        assert pool.apply_async(total, (6,)).get(PATIENCE) == 64
        nested = pool.map_async(lambda number: pool.apply(square, (number,)), range(20), 1)
        assert nested.get(PATIENCE) == [number * number for number in range(20)]


def test_threads_are_closed_and_terminated():
    pool = sheave.pool.ThreadPool(1)
    results = [pool.apply_async(time.sleep, (0.01,)) for _ in range(5)]
    pool.close()
    pool.join()
    assert all(result.successful() for result in results)
    with pytest.raises(ValueError, match="not running"):
        pool.apply(square, (1,))
    pool = sheave.pool.ThreadPool(1)
    begun, goes_on = threading.Event(), threading.Event()
    running = pool.apply_async(lambda: begun.set() or goes_on.wait(PATIENCE))
    waiting = pool.apply_async(square, (1,))
    assert begun.wait(PATIENCE)
    pool.terminate()
    with pytest.raises(sheave.Cancelled):
        waiting.get(PATIENCE)
    goes_on.set()
    assert running.get(PATIENCE) is True


def test_a_wait_with_a_deadline_ends_in_time_in_a_worker_too():
    with sheave.pool.ThreadPool(1) as pool:
        goes_on = threading.Event()

        def waits():
            behind = pool.apply_async(goes_on.wait, (PATIENCE,))
            with pytest.raises(sheave.pool.TimeoutError):
                behind.get(0.05)
            goes_on.set()
            return behind.get()

        assert pool.apply_async(waits).get(PATIENCE) is True


def test_a_worker_does_tasks_of_its_own_pool_alone():
    with sheave.pool.ThreadPool(contexts="a") as one, sheave.pool.ThreadPool(contexts="b") as other:
        assert one.apply(lambda: other.apply(sheave.pool.context)) == "b"


def test_joblib_runs_over_it():
    joblib = pytest.importorskip("joblib", reason="joblib is not installed")
    import sheave.pool.joblib

    with joblib.parallel_backend("sheave", n_jobs=2):
        assert joblib.Parallel()(joblib.delayed(square)(number) for number in range(50)) == [n * n for n in range(50)]
        lazily = joblib.Parallel(return_as="generator")(joblib.delayed(square)(number) for number in range(5))
        assert list(lazily) == [0, 1, 4, 9, 16]
        with pytest.raises(ZeroDivisionError):
            joblib.Parallel()(joblib.delayed(lambda: 1 / 0)() for _ in range(3))
