"""The store on servers, with real processes: a scheduler, servers and workers, Python only."""

import os
import signal
import textwrap
import time
from types import SimpleNamespace

import pytest
import sheave
from conftest import in_a_wait

HEAD = """
import os, signal, sys, threading, time
import numpy as np
import sheave
from sheave import optim

def raises(kind, text, act):
    try:
        act()
    except kind as error:
        assert text in str(error), error
        return error
    raise AssertionError(f"nothing of {text!r} was raised")
"""

SERVE = "sheave.run_server()"


@pytest.fixture
def job(start):
    """Start a job: every worker runs one program, every server another one, and the scheduler waits."""

    def launch(worker, *, server=SERVE, servers=2, workers=3, **environment):
        environment = {
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(sheave._core._free_port()),
            "DMLC_NUM_SERVER": str(servers),
            "DMLC_NUM_WORKER": str(workers),
            **environment,
        }

        def run(role, program):
            return start(HEAD + textwrap.dedent(program), DMLC_ROLE=role, **environment)

        return SimpleNamespace(
            scheduler=run("scheduler", SERVE),
            servers=[run("server", server) for _ in range(servers)],
            workers=[run("worker", worker) for _ in range(workers)],
        )

    return launch


def succeed(job):
    """All processes end silently and well. Returns what the workers have printed."""
    said = [worker.succeed(40) for worker in job.workers]
    for program in (*job.servers, job.scheduler):
        program.succeed(20)
    return said


def run(job, *arguments, **settings):
    return succeed(job(*arguments, **settings))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_sync_equals_numpy(job, transport):
    """Values are cut and whole, sums are those in the order of the ranks, bit by bit, and optimizers step on them."""
    worker = """
        kv = sheave.KVStore("dist_sync", cut_elements=1000, slice_elements=300)
        assert (kv.kind, kv.num_workers) == ("dist_sync", 3) and kv.rank in range(3)
        shapes = {"small": (3,), 7: (10, 20), "cut": (40, 50), "none": (0, 3)}
        keys = list(shapes)

        def values(rank, turn):
            rng = np.random.default_rng([rank, turn])
            return [rng.standard_normal(shapes[key]).astype(np.float32) for key in keys]

        first = values(0, 99)
        kv.init(keys, first if kv.rank == 0 else None)
        outs = [np.full(shapes[key], -1, np.float32) for key in keys]
        assert kv.pull(keys, outs).wait() is outs
        assert all((out == value).all() for out, value in zip(outs, first))

        kv.set_updater("sum")
        kv.barrier()
        stored = first
        for turn in range(5):
            mine = values(kv.rank, turn)
            push = kv.push(keys, mine)
            for value in mine:
                value[:] = np.nan
            pull = kv.pull(keys, outs)
            assert push.wait() is None
            sums = [(one + two) + three for one, two, three in zip(*(values(rank, turn) for rank in range(3)))]
            stored = [value + total for value, total in zip(stored, sums)]
            pull.wait()
            assert all((out == value).all() for out, value in zip(outs, stored)), turn

        kv.barrier()
        kv.set_optimizer(optim.SGD(0.1, momentum=0.9))
        kv.barrier()
        velocity = [np.zeros_like(value) for value in stored]
        for turn in range(5, 10):
            kv.pushpull(keys, values(kv.rank, turn), outs).wait()
            sums = [(one + two) + three for one, two, three in zip(*(values(rank, turn) for rank in range(3)))]
            velocity = [0.9 * speed - 0.1 * slope for speed, slope in zip(velocity, sums)]
            stored = [value + speed for value, speed in zip(stored, velocity)]
        for out, value in zip(outs, stored):
            np.testing.assert_allclose(out, value, rtol=1e-5, atol=1e-5)
        assert kv.learning_rate == 0.1
        kv.barrier()
        kv.learning_rate = 0.0
        kv.barrier()
        assert kv.learning_rate == 0.0
        kv.close()
        kv.close()
        raises(sheave.Closed, "closed", lambda: kv.push("small", outs[0]))
    """
    run(job, worker, SHEAVE_TRANSPORT=transport)


def test_f64_a_wait_says_who_has_not_pushed_which_key(job):
    """Two workers that push keys in another order wait for ever. What they say after 10 s explains it."""
    worker = """
        kv = sheave.KVStore("dist_sync")
        zero = np.zeros(3, np.float32)
        kv.init(["a", "b"], [zero, zero] if kv.rank == 0 else None)
        kv.barrier()
        one, other = ("a", "b") if kv.rank == 0 else ("b", "a")
        push = kv.push(one, zero)
        # What the first of them does when its time is up is what the other one waits for.
        if kv.rank == 0:
            raises(sheave.DeadlineExceeded, "still running", lambda: push.wait(11.5))
        else:
            push.wait()
        rest = kv.push(other, zero)
        push.wait()
        rest.wait()
        kv.close()
    """
    started = job(worker, servers=1, workers=2)
    ended = [program.finish(60) for program in started.workers]
    said = "".join(err for _, _, err in ended)
    assert [status for status, _, _ in ended] == [0, 0], said
    for rank, key in enumerate("ab"):
        missing = f'server-0 (key "{key}", round 1: worker-{1 - rank} has not pushed it)'
        assert f"sheave: worker-{rank}: push has been waiting for {missing}, for 10 s\n" in said
    for program in (*started.servers, started.scheduler):
        program.succeed(20)


def test_rows_equal_numpy(job):
    worker = """
        with sheave.KVStore("dist_sync", cut_elements=50) as kv:
            rng = [np.random.default_rng(rank) for rank in range(3)]
            ids = np.array([3, 3, 99])
            rows = np.arange(12.0).reshape(3, 4)
            kv.init_rows("t", (100, 4), "float64", *((ids, rows) if kv.rank == 0 else (None, None)))
            table = np.zeros((100, 4))
            np.add.at(table, ids, rows)
            kv.set_updater("sum")
            kv.barrier()
            for turn in range(5):
                for rank in range(3):
                    ids = rng[rank].integers(0, 100, 8 * rank)
                    rows = rng[rank].standard_normal((8 * rank, 4))
                    np.add.at(table, ids, rows)
                    if rank == kv.rank:
                        push = kv.push_rows("t", ids, rows)
                wanted = np.random.default_rng(turn).integers(0, 100, (2, 9))
                out = np.empty((2, 9, 4))
                assert kv.pull_rows("t", wanted, out).wait() is out
                push.wait()
                np.testing.assert_allclose(out, table[wanted], atol=1e-12)
            raises(sheave.InvalidArgument, "100", lambda: kv.push_rows("t", [100], np.zeros((1, 4))))
    """
    run(job, worker)


SCALED = """
    kept = []

    def scaled(key, received, stored):
        # np.float32(0.5) and powers of two: the same bits in any order.
        weights = stored.numpy()
        assert weights.flags.writeable and not received.numpy().flags.writeable
        weights -= np.float32(0.5) * received.numpy()

    def hoards(key, received, stored):
        weights = stored.numpy()
        weights += received.numpy()
        kept.append(weights)
        for former in kept:
            former[:] = -1000 if former is not weights else former

    def fails(key, received, stored):
        weights = np.asarray(stored)
        raise ZeroDivisionError(f"no luck with {key}")

    def waits(key, received, stored):
        mesh.barrier()

    mesh = sheave.init()
    sheave.run_server(functions={"scaled": scaled, "hoards": hoards, "fails": fails, "waits": waits})
    mesh.leave()
"""


def test_updaters_in_python_run_on_servers(job):
    worker = """
        with sheave.KVStore("dist_sync", cut_elements=100, slice_elements=40) as kv:
            kv.init(["w", 3], [np.arange(200, dtype=np.float32), np.zeros(2, np.float32)])
            kv.set_updater("scaled")
            kv.barrier()
            out = np.empty(200, np.float32)
            for turn in range(3):
                kv.pushpull("w", np.full(200, kv.rank, np.float32), out).wait()
            assert (out == np.arange(200) - 3 * 1.5).all()
            kv.barrier()
            kv.set_updater("hoards")
            kv.barrier()
            for turn in range(1, 4):
                kv.pushpull("w", np.ones(200, np.float32), out).wait()
                assert (out == np.arange(200) - 4.5 + 3 * turn).all(), out
            kv.barrier()
            kv.set_updater("fails")
            kv.barrier()
            work = kv.push([3], [np.ones(2, np.float32)])
            error = raises(sheave.Remote, "ZeroDivisionError: no luck with 3", work.wait)
            assert isinstance(error, RuntimeError) and "in fails)" in str(error) and "server-" in str(error)
            assert "\\n" not in str(error), "what takes several lines is no part of the text"
            kv.barrier()
            kv.set_updater("waits")
            kv.barrier()
            raises(sheave.Remote, "an updater on a server cannot wait", kv.push(3, np.ones(2, np.float32)).wait)
            kv.barrier()
            kv.set_updater("sum")
            kv.barrier()
            small = kv.pushpull(3, np.ones(2, np.float32)).wait()
            assert small.tolist() == [3, 3], "the server lives, and its values are as they were"
            if kv.rank == 0:
                raises(sheave.NotFound, "no-such", lambda: kv.set_updater("no-such"))
            raises(sheave.InvalidArgument, "on the servers", lambda: kv.register("x", print))
            kv.barrier()
    """
    run(job, worker, server=SCALED)


def test_a_failure_that_nobody_looks_at_is_raised_by_the_next_wait(job):
    worker = """
        with sheave.KVStore("dist_sync") as kv:
            kv.init("w", np.zeros(4, np.float32))
            kv.set_updater("fails")
            kv.barrier()
            out, ones = np.empty(4, np.float32), np.ones(4, np.float32)
            text = "nobody has looked at: the updater failed"
            kv.push("w", ones)
            pull = kv.pull("w", out)
            error = raises(sheave.Remote, text, pull.wait)
            assert raises(sheave.Remote, text, pull.wait).kind == error.kind == "Remote"
            assert kv.pull("w", out).wait() is out, "it is raised once"
            for turn in range(3):
                kv.push("w", ones)
                raises(sheave.Remote, "the updater failed", kv.wait)
                try:
                    # It may have been told of the work before the failure was noted.
                    kv.barrier()
                except sheave.Remote as error:
                    assert text in str(error)
            seen = kv.push("w", ones)
            raises(sheave.Remote, "key \\"w\\"", seen.wait)
            assert kv.push("w", ones).exception().kind == "Remote"
            del seen
            kv.barrier()
            kv.wait()
            kv.set_updater("scaled")
            kv.barrier()
            kv.push("w", ones)
            kv.pull("w", out).wait()
            kv.barrier()
    """
    run(job, worker, server=SCALED, servers=1)


def test_functions_travel_to_servers_that_allow_it(job):
    worker = """
        factor = 4.0

        class Counts:
            def __init__(self):
                self.calls = 0

            def __call__(self, key, received, stored):
                self.calls += 1
                stored.numpy()[:] = self.calls

        def bad():
            raise OSError("cannot be loaded")

        class Unloadable:
            def __reduce__(self):
                return bad, ()

            def __call__(self, *arguments):
                pass

        with sheave.KVStore("dist_sync") as kv:
            kv.init("w", np.zeros(4))
            kv.set_updater(lambda key, received, stored: np.multiply(received, factor, out=stored.numpy()))
            kv.barrier()
            assert kv.pushpull("w", np.ones(4)).wait().tolist() == [12.0] * 4
            kv.barrier()
            for turn in range(40):
                kv.set_updater(Counts())
            kv.barrier()
            for turn in range(1, 4):
                assert kv.pushpull("w", np.ones(4)).wait().tolist() == [turn] * 4
            kv.barrier()
            if kv.rank == 0:
                raises(sheave.Remote, "cannot be loaded", lambda: kv.set_updater(Unloadable()))
            kv.barrier()
            assert kv.pushpull("w", np.ones(4)).wait().tolist() == [4] * 4
    """
    run(job, worker, server="sheave.run_server(allow_pickle=True)")


def test_servers_take_no_pickles_unless_they_say_so(job):
    worker = """
        with sheave.KVStore("dist_async") as kv:
            raises(sheave.Unsupported, "allow_pickle", lambda: kv.set_updater(lambda *arguments: None))
    """
    run(job, worker, servers=1, workers=1)


@pytest.mark.parametrize("pickles", ["members", "never"])
@pytest.mark.parametrize("face", ["sheave", "mxnet"])
def test_f88_sheave_pickle_f29_servers_open_no_pickle_where_it_is_forbidden(job, face, pickles):
    worker = """
        class Updater:
            def __call__(self, key, received, stored):
                stored.numpy()[:] = received.numpy() + 1

        with sheave.KVStore("dist_async") as kv:
            kv.init("w", np.zeros(4))
            if os.environ["SHEAVE_PICKLE"] == "never":
                raises(sheave.Unsupported, "SHEAVE_PICKLE is never", lambda: kv.set_updater(Updater()))
                kv.set_updater("sum")
            else:
                kv.set_updater(Updater())
            kv.push("w", np.ones(4)).wait()
            print(kv.pull("w", np.empty(4)).wait().tolist() == [1 if os.environ["SHEAVE_PICKLE"] == "never" else 2] * 4)
    """
    theirs = """
        from sheave.compat.mxnet.kvstore.kvstore_server import KVStoreServer
        KVStoreServer().run()
    """
    server = "sheave.run_server(allow_pickle=True)" if face == "sheave" else theirs
    said = run(job, worker, server=server, servers=1, workers=1, SHEAVE_PICKLE=pickles)
    assert said[0].strip() == "True"


def test_what_does_not_fit_is_refused(job):
    worker = """
        with sheave.KVStore("dist_sync") as kv:
            kv.init(["a", 1], [np.zeros(3, np.float32), np.zeros((2, 2))])
            raises(LookupError, "not initialised", lambda: kv.push("b", np.zeros(3, np.float32)))
            raises(LookupError, "not initialised", lambda: kv.pull(2, np.zeros(3, np.float32)))
            raises(sheave.Mismatch, "f32[3]", lambda: kv.push("a", np.zeros(4, np.float32)))
            raises(sheave.Mismatch, "f32[3]", lambda: kv.push("a", np.zeros((3, 1), np.float32)))
            raises(sheave.Mismatch, "f64", lambda: kv.push(["a", 1], [np.zeros(3), np.zeros((2, 2))]))
            raises(sheave.Mismatch, "f64", lambda: kv.pull("a", np.zeros(3)))
            raises(ValueError, "read-only", lambda: kv.pull("a", b"123456789012"))
            raises(TypeError, "int or str", lambda: kv.push(1.5, np.zeros(3)))
            raises(sheave.AlreadyExists, "before", lambda: kv.init(1, np.zeros((2, 2))))
            kv.barrier()
            shape = (2,) if kv.rank else (3,)
            if kv.rank:
                raises(sheave.Mismatch, "f64[3]", lambda: kv.init("c", np.zeros(shape)))
            else:
                kv.init("c", np.zeros(shape))
            assert kv.pushpull("a", np.ones(3, np.float32)).wait().tolist() == [3, 3, 3]
            raises(sheave.InvalidArgument, "a worker cannot be a server", sheave.run_server)
    """
    run(job, worker)


@pytest.mark.parametrize("kind", ["dist_async", "dist_ssp"])
def test_the_kinds_that_do_not_wait(job, kind):
    worker = f"""
        with sheave.KVStore("{kind}", staleness=2) as kv:
            kv.init("w", np.zeros(1000))
            kv.set_updater("sum")
            kv.barrier()
            out = np.empty(1000)
            for turn in range(20):
                kv.push("w", np.full(1000, float(kv.rank + 1)))
                kv.pull("w", out).wait()
                assert out[0] >= (turn + 1) * (kv.rank + 1)
            kv.wait("w")
            kv.barrier()
            assert (kv.pull("w", out).wait() == 20 * 6).all()
            kv.barrier()
    """
    run(job, worker)


def test_f59_the_traceback_of_user_code_on_a_server_arrives(job):
    """What an updater and a controller raise, and what that was raised for, is the cause of the worker's error."""
    server = """
        class Unlucky(ValueError):
            pass

        def fails(key, received, stored):
            try:
                1 / 0
            except ZeroDivisionError as error:
                raise Unlucky(f"no luck with {key}\\nat all") from error

        def control(number, body):
            raise KeyError(number)

        sheave.run_server(functions={"fails": fails}, controller=control)
    """
    worker = """
        import traceback

        def check(error, kind, text, words):
            cause = error.__cause__
            assert type(cause) is sheave.Remote and cause.kind == "Remote", cause
            assert cause.remote_class == kind and str(cause).startswith(f"{kind}: {text}"), cause
            assert error.remote_class is None and error.remote_traceback == cause.remote_traceback
            assert cause.remote_traceback.startswith("Traceback (most recent call last):"), cause.remote_traceback
            assert all(word in cause.remote_traceback for word in words), cause.remote_traceback
            printed = "".join(traceback.format_exception(error))
            assert "raised on server-" in printed and all(word in printed for word in words), printed
            return cause

        kv = sheave.KVStore("dist_sync")
        kv.init(3, np.zeros(2, np.float32))
        kv.set_updater("fails")
        kv.barrier()
        error = raises(sheave.Remote, "the updater failed on key 3", kv.push(3, np.ones(2, np.float32)).wait)
        cause = check(error, "__main__.Unlucky", "no luck with 3", ["in fails", "Unlucky: no luck with 3", "at all"])
        root = cause.__cause__
        assert root.remote_class == "ZeroDivisionError" and str(root).startswith("ZeroDivisionError: division by zero")
        assert "1 / 0" not in cause.remote_traceback and "in fails" in root.remote_traceback, root.remote_traceback
        assert root.__cause__ is None
        kv.barrier()
        error = raises(sheave.Remote, "KeyError: 13", lambda: kv.send_command_to_servers(13))
        check(error, "KeyError", "13", ["in control"])
        kv.barrier()
        kv.close()
    """
    run(job, worker, server=server)


def test_what_else_workers_say(job, tmp_path):
    """Commands, files, compression, priorities, done, delete, dead nodes, and a device list of arrays."""
    server = """
        def control(number, body):
            if number == 13:
                raise RuntimeError("that number")
            return {0: None, 1: body + b"!", 2: body.decode()}.get(number, b"?")

        sheave.run_server(controller=control)
    """
    worker = """
        kv = sheave.KVStore("dist_sync", cut_elements=64)
        assert kv.send_command_to_servers(0, "x") == [b"", b""]
        assert kv.send_command_to_servers(1, b"body") == [b"body!"] * 2
        assert kv.send_command_to_servers(2, "größer") == ["größer".encode()] * 2
        raises(sheave.Remote, "RuntimeError: that number", lambda: kv.send_command_to_servers(13))
        assert kv.send_command_to_servers(-7) == [b"?"] * 2

        kv.init("w", np.zeros(100, np.float32))
        kv.set_updater("sum")
        kv.set_gradient_compression("2bit", 0.5)
        kv.set_pull_compression("bf16")
        kv.barrier()
        out = np.empty(100, np.float32)
        kv.push("w", [np.full(100, 0.4, np.float32), np.full(100, 0.3, np.float32)], priority=-1)
        assert (kv.pull("w", out, priority=5).wait() == 1.5).all(), "three workers, 0.5 each of 0.7"
        kv.set_gradient_compression("none")
        kv.set_gradient_compression("fp16", keys=["w"])
        raises(sheave.Unsupported, "1bit", lambda: kv.set_pull_compression("1bit"))
        kv.set_pull_compression("none")
        kv.pushpull("w", np.ones(100, np.float32), out).wait()
        assert (out == 4.5).all()

        many = [f"key {at}" for at in range(50)]
        kv.init(many, [np.full(2, float(at)) for at in range(50)])
        works = [kv.pushpull(key, np.ones(2), np.empty(2), priority=-at) for at, key in enumerate(many)]
        assert [work.wait()[0] for work in works] == [at + 3 for at in range(50)]
        kv.delete(many)
        raises(sheave.NotFound, "key 7", lambda: kv.pull("key 7", np.empty(2)))

        for batch in range(3 + kv.rank):
            kv.push("w", np.ones(100, np.float32)).wait()
        done = kv.done()
        assert done.wait() is None
        assert (kv.pull("w", out).wait() == 4.5 + 9 + 2 + 1).all()

        assert (kv.num_dead_node(7), kv.num_dead_node(9, timeout=0.2)) == (0, 0)
        raises(sheave.InvalidArgument, "1000", lambda: kv.num_dead_node(1000))
        path = os.environ["FILE"]
        kv.barrier()
        if kv.rank == 0:
            kv.set_optimizer(optim.Adam(0.1))
            kv.save(path)
        kv.barrier()
        kv.pushpull("w", np.ones(100, np.float32), out).wait()
        assert (out != 16.5).all()
        kv.barrier()
        if kv.rank == 0:
            kv.load(path)
            kv.save_optimizer_states(path, dump_optimizer=True)
            kv.load_optimizer_states(path)
        kv.barrier()
        assert (kv.pull("w", out).wait() == 16.5).all()
        kv.set_barrier_before_exit(True)
        kv.close()
    """
    run(job, worker, server=server, FILE=str(tmp_path / "store.safetensors"))


WAITS = """
    kv = sheave.KVStore("dist_sync")
    kv.init("w", np.zeros(4))
    kv.pushpull("w", np.ones(4)).wait()
    print(kv.rank, flush=True)
    sys.stdin.readline()
    begun = time.monotonic()
    attempts = {"push": lambda: kv.push("w", np.ones(4)).wait(), "barrier": kv.barrier}
    error = raises(sheave.PeerLost, "", attempts[os.environ["ATTEMPT"]])
    print(time.monotonic(), error.peer.name, isinstance(error, ConnectionError), flush=True)
    sys.exit(0)
"""


@pytest.mark.parametrize("attempt", ["push", "barrier"])
def test_a_killed_worker_is_named(job, attempt):
    """Who waits for it, and who serves it, learn within three seconds who is gone."""
    server = """
        try:
            sheave.run_server()
        except sheave.PeerLost as error:
            print(error.peer.name, flush=True)
    """
    running = job(WAITS, server=server, ATTEMPT=attempt)
    by_rank = dict(sorted((int(worker.line()), worker) for worker in running.workers))
    for rank in (0, 1):
        by_rank[rank].tell()
    killed = time.monotonic()
    os.kill(by_rank[2].pid, signal.SIGKILL)
    for rank in (0, 1):
        ended, name, is_builtin = by_rank[rank].line().split()
        assert float(ended) - killed < 3 and (name, is_builtin) == ("worker-2", "True")
    for server in running.servers:
        assert server.line() == "worker-2"
    assert time.monotonic() - killed < 5


def test_a_killed_server_is_named(job):
    running = job(WAITS, ATTEMPT="push", server='print("serves", flush=True); sheave.run_server()')
    for worker in running.workers:
        worker.line()
    for server in running.servers:
        server.line()
    os.kill(running.servers[0].pid, signal.SIGKILL)
    os.kill(running.servers[1].pid, signal.SIGKILL)
    killed = time.monotonic()
    for worker in running.workers:
        worker.tell()
    for worker in running.workers:
        ended, name, is_builtin = worker.line().split()
        assert float(ended) - killed < 3 and name.startswith("server-") and is_builtin == "True"


def test_a_store_that_shrinks_goes_on(job):
    worker = """
        kv = sheave.KVStore("dist_sync", on_worker_loss="shrink")
        kv.init("w", np.zeros(4))
        kv.set_updater("sum")
        kv.barrier()
        kv.pushpull("w", np.ones(4)).wait()
        kv.barrier()
        if kv.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        out = np.empty(4)
        for turn in range(5):
            kv.pushpull("w", np.ones(4), out).wait()
        print(out[0], kv.num_workers, flush=True)
        kv.close()
    """
    running = job(worker)
    ended = [worker.finish(30) for worker in running.workers]
    assert sorted(status for status, *_ in ended) == [-signal.SIGKILL, 0, 0]
    assert [out.strip() for _, out, _ in ended if out] == ["13.0 2"] * 2, ended
    for server in running.servers:
        server.succeed()


def test_f63_workers_with_uneven_numbers_of_steps_close(job):
    worker = """
        kv = sheave.KVStore("dist_sync")
        kv.init("w", np.zeros(4))
        kv.set_updater("sum")
        kv.barrier()
        out = np.empty(4)
        for step in range(3 + kv.rank):
            kv.pushpull("w", np.ones(4), out).wait()
        kv.close()
        print(kv.rank, out[0])
    """
    ended = [worker.finish(20) for worker in job(worker, workers=2).workers]
    assert sorted(out.strip() for _, out, _ in ended) == ["0 6.0", "1 7.0"], ended


CTRL_C = """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    def stopped(act):
        print("waits", flush=True)
        try:
            act()
        except KeyboardInterrupt:
            print(time.monotonic(), flush=True)
"""


def test_ctrl_c_ends_run_server(job):
    server = CTRL_C + "    stopped(sheave.run_server)"
    worker = """
        kv = sheave.KVStore("dist_sync", open_timeout=50)
        print("open", flush=True)
        kv.init("w", np.zeros(4))
        kv.pushpull("w", np.ones(4)).wait()
        print("pushed", flush=True)
        sys.stdin.readline()
    """
    running = job(worker, server=server, servers=1, workers=1)
    assert running.workers[0].line() == "open" and running.workers[0].line() == "pushed"
    in_a_wait(running.servers[0])
    interrupted = time.monotonic()
    os.kill(running.servers[0].pid, signal.SIGINT)
    assert float(running.servers[0].line()) - interrupted < 0.5
    running.servers[0].succeed()


@pytest.mark.parametrize(
    "act", ["kv.barrier()", "kv.init('x', np.zeros(3))", "kv.push('w', np.ones(4)).wait()", "kv.delete('w')"]
)
def test_ctrl_c_ends_the_waits_of_a_worker(job, act):
    """What was begun goes on: once the other worker comes too, both have done it."""
    worker = CTRL_C + f"""
    kv = sheave.KVStore("dist_sync")
    kv.init("w", np.zeros(4))
    print(kv.rank, flush=True)
    sys.stdin.readline()
    if kv.rank == 0:
        stopped(lambda: {act})
    else:
        {act}
    sys.stdin.readline()
    kv.barrier()
    kv.init("y", np.ones(2))
    assert kv.pushpull("y", np.ones(2)).wait().tolist() == [2, 2]
    kv.close()
    """
    running = job(worker, servers=1, workers=2)
    by_rank = {int(worker.line()): worker for worker in running.workers}
    by_rank[0].tell()
    in_a_wait(by_rank[0])
    interrupted = time.monotonic()
    os.kill(by_rank[0].pid, signal.SIGINT)
    assert float(by_rank[0].line()) - interrupted < 0.5
    by_rank[1].tell()
    for worker in running.workers:
        worker.tell()
    succeed(running)


def test_a_slow_updater_does_not_make_its_server_look_dead(job):
    server = """
        def slow(key, received, stored):
            time.sleep(3)
            stored.numpy()[:] = received.numpy()

        sheave.run_server(functions={"slow": slow})
    """
    worker = """
        with sheave.KVStore("dist_sync") as kv:
            kv.init("w", np.zeros(4))
            kv.set_updater("slow")
            kv.barrier()
            assert kv.pushpull("w", np.ones(4)).wait().tolist() == [2] * 4
    """
    liveness = {"SHEAVE_LIVENESS_TIMEOUT_MS": "1000", "SHEAVE_LIVENESS_BEAT_MS": "200"}
    running = job(worker, server=server, servers=1, workers=2, **liveness)
    for program in (*running.workers, running.scheduler):
        program.succeed(40)
    status, _, err = running.servers[0].finish(20)
    told = "sheave: a callback of updater has been running for 1 s, and other callbacks wait for it; hint: "
    assert status == 0 and all(line.startswith(told) for line in err.splitlines()), err
    assert err.startswith(told), err


@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_f22_a_server_answers_while_an_updater_runs(job, kind, tmp_path):
    door = tmp_path / "door"
    server = f"""
        def slow(key, received, stored):
            end = time.monotonic() + 30
            while key == "slow" and not os.path.exists({str(door)!r}) and time.monotonic() < end:
                time.sleep(0.01)
            stored.numpy()[:] += received.numpy()

        sheave.run_server(functions={{"slow": slow}})
    """
    worker = f"""
        with sheave.KVStore("{kind}") as kv:
            kv.init(["slow", "fast"], [np.zeros(4)] * 2)
            kv.set_updater("slow")
            kv.barrier()
            pushed = kv.push("slow", np.ones(4))
            assert kv.pull("fast", np.empty(4)).wait().tolist() == [0] * 4
            kv.init("other", np.ones(4))
            assert kv.pull("other", np.empty(4)).wait().tolist() == [1] * 4
            assert not pushed.done()
            kv.barrier()
            open({str(door)!r}, "w").close()
            pushed.wait()
            kv.barrier()
            assert kv.pull("slow", np.empty(4)).wait().tolist() == [2] * 4
    """
    liveness = {"SHEAVE_LIVENESS_TIMEOUT_MS": "1000", "SHEAVE_LIVENESS_BEAT_MS": "200"}
    run(job, worker, server=server, servers=1, workers=2, **liveness)


def test_an_updater_that_never_returns_keeps_nobody(job):
    """Its server answers Ctrl-C and ends, and the worker is told."""
    server = CTRL_C + """
    def stuck(key, received, stored):
        print("stuck", flush=True)
        threading.Event().wait()

    stopped(lambda: sheave.run_server(functions={"stuck": stuck}))
    """
    worker = """
        kv = sheave.KVStore("dist_sync")
        kv.init("w", np.zeros(4))
        kv.set_updater("stuck")
        error = raises(sheave.PeerLost, "", kv.push("w", np.ones(4)).wait)
        print(error.peer.name)
    """
    running = job(worker, server=server, servers=1, workers=1)
    assert [running.servers[0].line() for _ in range(2)] == ["waits", "stuck"]
    interrupted = time.monotonic()
    os.kill(running.servers[0].pid, signal.SIGINT)
    assert float(running.servers[0].line()) - interrupted < 0.5
    assert running.servers[0].finish(10)[0] == 0
    assert running.workers[0].succeed(10).strip() == "server-0"


def test_many_works_in_asyncio(job):
    worker = """
        import asyncio

        async def main():
            keys = list(range(200))
            outs = await asyncio.gather(*(kv.pushpull(key, np.ones(8), np.empty(8)) for key in keys))
            assert all((out == 2).all() for out in outs)

        with sheave.KVStore("dist_sync") as kv:
            kv.init(list(range(200)), [np.zeros(8)] * 200)
            asyncio.run(main())
    """
    run(job, worker, workers=2, servers=1)


def test_a_wait_lets_other_threads_run(job):
    worker = """
        with sheave.KVStore("dist_sync") as kv:
            kv.init("w", np.zeros(4))
            ticks, over = [], threading.Event()

            def tick():
                while not over.wait(0.01):
                    ticks.append(time.monotonic())

            ticker = threading.Thread(target=tick)
            if kv.rank == 0:
                ticker.start()
                kv.barrier()
                assert len(ticks) > 20, len(ticks)
                assert kv.pushpull("w", np.ones(4)).wait().tolist() == [2] * 4
                assert len(ticks) > 40, len(ticks)
                over.set()
                ticker.join()
            else:
                time.sleep(0.8)
                kv.barrier()
                time.sleep(0.8)
                kv.pushpull("w", np.ones(4)).wait()
    """
    run(job, worker, workers=2, servers=1)
