"""machin's pools over sheave, and pools of one's own kind."""

import gc
import multiprocessing
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest
import sheave
from conftest import Program
from sheave.compat.machin.parallel.exception import ExceptionWithTraceback
from sheave.compat.machin.parallel.pool import (
    AsyncResult,
    BasePool,
    CtxPool,
    CtxPoolStorage,
    CtxThreadPool,
    IMapIterator,
    IMapUnorderedIterator,
    MapResult,
    P2PPool,
    Pool,
    PoolStates,
    ThreadPool,
    TimeoutError,
    proxy_caller,
    proxy_ctx_caller,
    proxy_dumper,
)

pytestmark = pytest.mark.timeout(60)
PATIENCE = 30


class ThreadsOfMine(BasePool):
    """Threads, with queues of its own."""

    def setup_queues(self):
        self._inqueue, self._outqueue = queue.Queue(), queue.Queue()

    def repopulate_pool(self):
        while len(self._pool) < self._processes:
            setup = self._inqueue.get, self._outqueue.put, self._initializer, self._initargs, self._maxtasksperchild
            self._pool.append(threading.Thread(target=self.worker, args=setup, daemon=True))
            self._pool[-1].start()


class QueuesOfMine(BasePool):
    """Processes that share queues of multiprocessing."""

    def setup_queues(self):
        self._inqueue, self._outqueue = self._ctx.Queue(), self._ctx.Queue()

    def pool_outqueue_get(self, timeout):
        try:
            return self._outqueue.get(timeout=timeout)
        except queue.Empty:
            raise multiprocessing.TimeoutError from None


PROCESSES = [BasePool, Pool, QueuesOfMine]
KINDS = [*PROCESSES, ThreadPool, ThreadsOfMine]


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


def finish(pool):
    pool.close()
    pool.join()


@pytest.fixture(scope="module", params=[*KINDS, P2PPool])
def pool(request):
    with request.param(2) as pool:
        yield pool


def test_all_ways_to_ask(pool):
    offset = 3
    assert pool.size() == 2
    assert pool.apply(square, (3,)) == 9 and pool.apply(pow, (2,), {"exp": 5, "mod": 7}) == 4
    assert pool.map(lambda number: number + offset, range(50)) == list(range(3, 53))
    assert pool.starmap(pow, [(2, 3), [3, 2]], 1) == [8, 9]
    assert isinstance(pool.apply_async(square, (1,)), AsyncResult)
    mapped = pool.map_async(square, (number for number in range(5)), chunksize=2)
    assert isinstance(mapped, MapResult) and mapped.get(PATIENCE) == [0, 1, 4, 9, 16] and mapped.successful()
    assert pool.starmap_async(pow, [(2, 3)]).get(PATIENCE) == [8]
    for chunksize in (1, 3):
        ordered = pool.imap(square, range(10), chunksize)
        assert isinstance(ordered, IMapIterator) and len(ordered) == 10
        assert ordered.next(PATIENCE) == 0 and list(ordered) == [square(number) for number in range(1, 10)]
        unordered = pool.imap_unordered(square, range(10), chunksize)
        assert isinstance(unordered, IMapUnorderedIterator)
        assert sorted(unordered) == [square(number) for number in range(10)]


def test_nothing_to_do_is_done_at_once(pool):
    assert pool.map(square, []) == [] == pool.starmap(pow, ())
    assert list(pool.imap(square, [])) == [] == list(pool.imap_unordered(square, [], 2))


def test_errors_of_tasks_are_theirs(pool):
    with pytest.raises(Odd) as raised:
        pool.map(raises, range(6), 1)
    assert raised.value.one == 3
    results = pool.imap(raises, range(6))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(Odd):
        next(results)
    assert list(results) == [4, 5]
    for act in (lambda: sys.exit(3), lambda: exec("raise KeyboardInterrupt")):
        with pytest.raises(sheave.Remote, match="SystemExit|KeyboardInterrupt"):
            pool.apply(act)
    assert pool.apply(square, (2,)) == 4


def test_errors_of_the_iterable_surface_in_the_call(pool):
    def items():
        yield (1, 2)
        raise LookupError("no more")

    for ask in (pool.map, pool.map_async, pool.starmap, pool.imap, pool.imap_unordered):
        with pytest.raises(LookupError):
            ask(pow, items())
    with pytest.raises(TypeError):
        pool.imap(square, 5)
    with pytest.raises(ValueError, match="Chunksize"):
        pool.map(square, [1], 0)
    with pytest.raises(TypeError, match="func"):
        pool.apply(5)


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
        begin()
        assert told.wait(PATIENCE)
    assert heard[0] == 9 and isinstance(heard[1], Odd) and heard[2] == [1, 4] and isinstance(heard[3], Odd)


def test_waits_end_in_time(pool):
    results = [pool.apply_async(time.sleep, (0.3,)) for _ in range(2)]
    with pytest.raises(TimeoutError):
        results[1].get(0.01)
    with pytest.raises(ValueError, match="not ready"):
        results[1].successful()
    with pytest.raises(multiprocessing.TimeoutError):
        pool.imap(square, [1]).next(timeout=0.01)
    assert [result.get(PATIENCE) for result in results] == [None, None]


def test_pools_are_not_pickled(pool):
    with pytest.raises(NotImplementedError, match="cannot be passed between processes or pickled"):
        pickle.dumps(pool)


@pytest.mark.parametrize("kind", PROCESSES)
def test_what_cannot_be_sent_is_an_error(kind):
    with kind(1) as pool:
        with pytest.raises(sheave.SheaveError, match="cannot be"):
            pool.apply(threading.Lock)
        with pytest.raises((sheave.SheaveError, TypeError), match="cannot"):
            pool.apply(square, (threading.Lock(),))
        assert pool.apply(square, (2,)) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_close_finishes_what_was_submitted(kind):
    pool = kind(2)
    with pytest.raises(ValueError, match="still running"):
        pool.join()
    results = [pool.apply_async(square, (number,)) for number in range(20)]
    late = pool.imap(square, range(200))
    mapped = pool.map_async(square, range(30), 1)
    pool.close()
    with pytest.raises(ValueError, match="not running"):
        pool.apply(square, (1,))
    pool.join()
    assert [result.get(0) for result in results] == [square(number) for number in range(20)]
    assert sum(late) == sum(map(square, range(200))) and mapped.get(0) == [square(number) for number in range(30)]
    assert pool._state == PoolStates.CLOSE == 1
    pool.join()
    pool.terminate()


@pytest.mark.parametrize("kind", [*PROCESSES, ThreadsOfMine])
def test_terminate_fails_what_has_not_ended(kind):
    pool = kind(1)
    assert pool.apply(square, (2,)) == 4
    results = [pool.apply_async(time.sleep, (1 if kind is ThreadsOfMine else PATIENCE,)) for _ in range(2)]
    begun = time.monotonic()
    pool.terminate()
    pool.join()
    for result in results:
        with pytest.raises(sheave.Closed):
            result.get(PATIENCE)
    assert time.monotonic() - begun < PATIENCE / 3 and pool._state == PoolStates.TERMINATE


@pytest.mark.parametrize("kind", KINDS)
def test_an_initializer_that_raises_breaks_the_pool(kind, tmp_path):
    def fails():
        (tmp_path / str(time.monotonic_ns())).touch()
        raise LookupError("none")

    with pytest.raises(TypeError, match="initializer"):
        kind(1, 5)
    with pytest.raises(ValueError, match="0"):
        kind(0)
    pool = kind(2, fails)
    with pytest.raises((LookupError, sheave.SheaveError), match="none"):
        pool.map(square, range(10))
    with pytest.raises((LookupError, sheave.SheaveError), match="none"):
        pool.apply(square, (1,))
    before = len(os.listdir(tmp_path))
    time.sleep(0.3)
    assert len(os.listdir(tmp_path)) <= before + 1 < 10
    finish(pool)


@pytest.mark.parametrize("kind", [BasePool, Pool, CtxPool])
def test_a_worker_that_dies_fails_its_task(kind, tmp_path):
    def hold(*_):
        (tmp_path / str(os.getpid())).touch()
        time.sleep(PATIENCE)

    with kind(2) as pool:
        held = pool.apply_async(hold)
        others = pool.map_async(lambda *args: 1, range(50), 1)
        until = time.monotonic() + PATIENCE
        while not os.listdir(tmp_path) and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(int(os.listdir(tmp_path)[0]), signal.SIGKILL)
        with pytest.raises(sheave.WorkerDied) as raised:
            held.get(PATIENCE)
        assert raised.value.exit_status == -signal.SIGKILL
        assert others.get(PATIENCE) == [1] * 50
        with pytest.raises(sheave.WorkerDied):
            pool.apply(lambda *_: os._exit(7))
        assert pool.map(lambda *args: 2, range(3)) == [2] * 3


def test_workers_that_die_while_they_are_set_up_break_the_pool():
    with BasePool(2, os._exit, (5,)) as pool, pytest.raises(sheave.WorkerDied, match="before its first task") as raised:
        pool.apply(square, (2,))
    assert raised.value.exit_status == 5


def test_idle_workers_may_die():
    with BasePool(2) as pool:
        pids = set(pool.map(lambda _: os.getpid(), range(100), 1))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.3)
        assert pool.map(square, range(20), 1) == [square(number) for number in range(20)]


def test_a_death_among_queues_of_ones_own_breaks_the_pool():
    with QueuesOfMine(2) as pool:
        assert pool.apply(square, (2,)) == 4
        with pytest.raises(sheave.WorkerDied, match="7"):
            pool.map(lambda number: os._exit(7) if number == 5 else number, range(10), 1)
        with pytest.raises(sheave.WorkerDied):
            pool.apply(square, (2,))
    pool = QueuesOfMine(1)
    last = pool.apply_async(os._exit, (7,))
    pool.close()
    with pytest.raises(sheave.WorkerDied):
        last.get(PATIENCE)
    pool.join()


@pytest.mark.parametrize("kind", ["BasePool", "Pool"])
def test_a_program_that_just_ends_leaves_nothing(kind):
    source = f"""
from sheave.compat.machin.parallel.pool import {kind} as Kind
pool = Kind(2)
print(pool.map(abs, [-1]))
busy = pool.apply_async(__import__("time").sleep, (60,))
"""
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=PATIENCE)
    assert (run.returncode, run.stdout, run.stderr) == (0, "[1]\n", "")


@pytest.mark.parametrize("kind", PROCESSES)
def test_a_worker_is_replaced_after_its_tasks(kind):
    with kind(2, maxtasksperchild=3) as pool:
        pids = pool.map(lambda _: os.getpid(), range(12), 1)
        assert max(pids.count(pid) for pid in pids) <= 3
    with pytest.raises(ValueError, match="0"):
        kind(1, maxtasksperchild=0)


def test_a_worker_of_ones_own():
    class Doubling(ThreadsOfMine):
        @staticmethod
        def worker(get, put, initializer=None, initargs=(), maxtasks=None):
            initializer(*initargs)
            while (task := get()) is not None:
                job, number, func, args, kwds = task
                try:
                    result = True, 2 * func(*args, **kwds)
                except Exception as error:
                    result = False, ExceptionWithTraceback(error)
                put((job, number, result))

    heard = []
    with Doubling(2, heard.append, ("begun",)) as pool:
        assert pool.apply(square, (3,)) == 18 and heard == ["begun"] * 2
        with pytest.raises(Odd):
            pool.apply(raises, (3,))

    class Processes(BasePool):
        @staticmethod
        def worker(get, put, *setup):
            while (task := get()) is not None:
                put((task[0], task[1], (True, f"{task[2](*task[3])} here")))

    pool = Processes(1, context=multiprocessing.get_context("fork"))
    assert pool.apply(square, (3,)) == "9 here"
    finish(pool)


def test_hooks_that_raise_break_the_pool():
    class Deaf(ThreadsOfMine):
        def pool_outqueue_get(self, timeout):
            raise EOFError("no results")

    class Careless(ThreadsOfMine):
        def maintain_pool(self):
            raise LookupError("not maintained")

    class Early(BasePool):
        def repopulate_pool(self):
            raise LookupError("not begun")

    with Deaf(1) as pool, pytest.raises(EOFError):
        pool.apply(square, (1,))
    with Careless(1) as pool, pytest.raises(LookupError, match="not maintained"):
        while True:
            pool.apply(square, (1,))
    with pytest.raises(LookupError, match="not begun"):
        Early(1)


@pytest.mark.parametrize("kind", [BasePool, Pool, ThreadsOfMine])
def test_a_pool_that_nobody_holds_ends(kind):
    pool = kind(1)
    pid = pool.apply(os.getpid)
    gone = weakref.ref(pool)
    del pool
    until = time.monotonic() + PATIENCE
    while (gone() is not None or (pid != os.getpid() and os.path.exists(f"/proc/{pid}"))) and time.monotonic() < until:
        gc.collect()
        multiprocessing.active_children()
        time.sleep(0.01)
    assert gone() is None and (pid == os.getpid() or not os.path.exists(f"/proc/{pid}"))


@pytest.mark.parametrize("kind", ["BasePool", "Pool"])
def test_workers_go_with_a_parent_that_is_killed(kind):
    program = Program(f"""
        import os, time
        from sheave.compat.machin.parallel.pool import {kind} as Kind
        if __name__ == "__main__":
            pool = Kind(2)
            print(*set(pool.map(lambda _: time.sleep(0.05) or os.getpid(), range(10), 1)))
            pool.apply(time.sleep, (60,))
    """)
    pids = program.line().split()
    os.kill(program.pid, signal.SIGKILL)
    program.finish()
    until = time.monotonic() + PATIENCE
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < until:
        time.sleep(0.01)
    assert pids and not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.parametrize("is_daemon", [True, False])
def test_a_program_waits_for_a_pool_that_is_no_daemon(is_daemon, tmp_path):
    source = f"""
import time, pathlib
from sheave.compat.machin.parallel.pool import Pool
pool = Pool(1, is_daemon={is_daemon})
pool.apply_async(lambda: time.sleep(0.5) or pathlib.Path({str(tmp_path / "mark")!r}).touch())
"""
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=PATIENCE)
    assert (run.returncode, run.stderr) == (0, "") and (tmp_path / "mark").exists() != is_daemon


def test_it_is_found_under_machins_name_and_in_the_members_of_a_job():
    source = """
from machin.parallel.pool import CtxPool, Pool
from machin.parallel import pool, pickle, process, thread, event, exception, util
from machin.utils.logging import default_logger
default_logger.info("not seen")
class Own(pool.BasePool):
    pass
if __name__ == "__main__":
    with Own(1) as one, CtxPool(1, worker_contexts=["a"]) as two:
        print(one.apply(pow, (2, 3)), two.apply(lambda *given: given, (1,)))
"""
    os_environ = {**os.environ, "SHEAVE_RANK": "1", "SHEAVE_WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "sheave.compat", "machin", "-c", source]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=os_environ)
    assert (run.returncode, run.stdout, run.stderr) == (0, "8 ('a', 1)\n", "")


def with_context(context, number):
    return context, number


@pytest.mark.parametrize("kind", [CtxPool, CtxThreadPool])
def test_workers_have_contexts(kind):
    with pytest.raises(ValueError, match="Context number is not equal to the number of pool workers"):
        kind(2, worker_contexts=[1])
    with kind(worker_contexts=["a", "b"]) as pool, kind(2, initializer=square, initargs=[1]) as other:
        assert pool.size() == 2
        results = pool.map(with_context, range(2000), 1)
        assert [number for _, number in results] == list(range(2000)) and {context for context, _ in results} <= {*"ab"}
        assert pool.starmap(with_context, [(1,)])[0][1] == 1 and list(pool.imap(with_context, [5]))[0][1] == 5
        assert pool.apply(with_context, (1,))[0] in "ab" and other.map(with_context, [3]) == [(None, 3)]


def test_a_replaced_worker_has_the_context_of_its_place():
    with CtxPool(1, worker_contexts=["mine"]) as pool:
        with pytest.raises(sheave.WorkerDied):
            pool.apply(lambda _: os._exit(1))
        assert pool.apply(lambda context: (context, CtxPoolStorage.storage)) == ("mine", "mine")


def test_functions_as_bytes():
    assert proxy_caller(proxy_dumper(True, True, lambda number: number + 1), 2) == 3 and proxy_caller(square, 3) == 9
    assert proxy_ctx_caller(proxy_dumper(False, True, with_context), 2) == (None, 2)


@pytest.mark.parametrize("kind", [Pool, P2PPool, CtxPool])
def test_what_is_not_a_way_to_share_is_refused(kind):
    with pytest.raises(RuntimeError, match='Invalid share method: "None"'):
        kind(1, is_copy_tensor=False)
    with pytest.raises(RuntimeError, match='Invalid share method: "disk"'):
        kind(1, is_copy_tensor=False, share_method="disk")
    with kind(1, is_copy_tensor=False, share_method="cpu") as pool:
        assert pool.apply(lambda *args: 5) == 5


def test_tensors_are_copied_or_shared():
    torch = pytest.importorskip("torch")

    def change(tensor):
        tensor += 1
        captured.add_(1)
        return tensor, tensor * 2

    for is_shared in (False, True):
        # What comes back does not end with the worker.
        with Pool(1, None, (), 2 if is_shared else None, is_copy_tensor=not is_shared, share_method="cpu") as pool:
            tensor, captured = torch.zeros(5000), torch.zeros(3)
            for _ in range(2):
                found, made = pool.apply(change, (tensor,))
            assert tensor.sum() == (10_000 if is_shared else 0) and captured.sum() == (6 if is_shared else 0)
            assert tensor.is_shared() == is_shared and (found.data_ptr() == tensor.data_ptr()) == is_shared
            assert made[0] == (4 if is_shared else 2)
            results = pool.map(lambda tensor: tensor + 1, [torch.ones(5)] * 4, 4)
            pool.close()
            pool.join()
            assert sum(float(result.sum()) for result in results) == 40
