"""Programs that say `import mxnet`, run as they are: alone, and as jobs of real processes."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest
import sheave


def run(arguments, folder, python=(), **environment):
    """Runs a program under the face; returns what it printed."""
    command = [sys.executable, *python, "-m", "sheave.compat", "mxnet", *map(str, arguments)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=50, cwd=folder, env={**os.environ, **environment}
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def write(folder, **files):
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


def test_a_script_finds_itself_as_python_would_run_it(tmp_path):
    write(
        tmp_path,
        script="""
        import os, sys
        import beside, mxnet, mxnet as mx, mxnet.ndarray.sparse
        from mxnet.test_utils import same
        assert __name__ == "__main__" and sys.argv == [__file__, "-m", "--flag"] and beside.value == 7
        assert sys.flags.dont_write_bytecode and sys.flags.optimize == 0 and "error" in sys.warnoptions
        assert mxnet is mx and sys.modules["mxnet"] is sys.modules["sheave.compat.mxnet"]
        assert mxnet.ndarray.sparse is mx.nd.sparse and mx.__name__ == "sheave.compat.mxnet"
        try:
            import mxnet.nowhere
        except ModuleNotFoundError as error:
            assert error.name == "mxnet.nowhere", error
        print(os.getpid(), os.getppid())
        """,
        beside="value = 7",
    )
    said = run([tmp_path / "script.py", "-m", "--flag"], "/", python=["-B", "-W", "error"])
    assert said.split()[1] == str(os.getpid()), "the runner became the program"
    assert run(["-c", "import mxnet; print(mxnet.__name__)"], "/", python=["-u"]) == "sheave.compat.mxnet\n"


def test_modules_and_tests(tmp_path):
    write(
        tmp_path,
        test_it="import mxnet as mx\ndef test_it(): assert mx.kv.create().type == 'local'",
        pack__inner="import sys, mxnet; print(__name__, sys.argv[1:])",
    )
    assert run(["-m", "pack.inner", "x"], tmp_path) == "__main__ ['x']\n"
    assert "1 passed" in run(["-m", "pytest", "-p", "no:cacheprovider", "test_it.py"], tmp_path)


def test_child_processes_and_what_would_hide_the_face(tmp_path):
    """A real package beside the script or where the script puts it on the path loses; so it does in children."""
    write(
        tmp_path,
        script="""
        import sys
        sys.path.insert(0, "real")
        import multiprocessing, subprocess

        def child(queue):
            import mxnet
            queue.put(mxnet.__name__)

        if __name__ == "__main__":
            import mxnet
            print(mxnet.__name__)
            print(subprocess.check_output([sys.executable, "-c", "import mxnet; print(mxnet.__name__)"], text=True))
            spawning = multiprocessing.get_context("spawn")
            queue = spawning.Queue()
            process = spawning.Process(target=child, args=(queue,))
            process.start()
            print(queue.get(timeout=30))
            process.join(30)
        """,
        real__mxnet____init__="raise AssertionError('the real one')",
        mxnet="raise AssertionError('the one beside the script')",
        more__sitecustomize="import builtins; builtins.hidden = 'is run too'",
    )
    more = os.pathsep.join([str(tmp_path / "more"), os.environ.get("PYTHONPATH", "")])
    assert set(run([tmp_path / "script.py"], tmp_path, PYTHONPATH=more).split()) == {"sheave.compat.mxnet"}
    assert run(["-c", "print(hidden)"], tmp_path, PYTHONPATH=more) == "is run too\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [([], "usage"), (["nothing", "x.py"], "there is no face"), (["mxnet", "-c", "raise SystemExit(3)"], "")],
)
def test_the_exit_status(arguments, says):
    ended = subprocess.run(
        [sys.executable, "-m", "sheave.compat", *arguments], capture_output=True, text=True, timeout=50
    )
    assert ended.returncode == (1 if says else 3) and says in ended.stderr


def test_without_an_environment_there_is_no_face():
    if os.environ.get("PYTHONPATH"):
        pytest.skip("without its environment Python would not find sheave here")
    ended = subprocess.run(
        [sys.executable, "-E", "-m", "sheave.compat", "mxnet", "x.py"], capture_output=True, text=True, timeout=50
    )
    assert ended.returncode == 1 and "-E" in ended.stderr


def test_a_job_by_the_launcher(tmp_path):
    """With the variables of sheave alone, and with those of DMLC beside them."""
    write(
        tmp_path,
        script="""
        import mxnet as mx
        kv = mx.kv.create("dist_sync")
        kv.init("w", mx.nd.zeros(2))
        place = mx.nd.zeros(2)
        kv.pushpull("w", mx.nd.full(2, kv.rank + 1), out=place)
        print(place.asnumpy().tolist())
        """,
    )
    for options in ([], ["--no-dmlc"]):
        launched = [sys.executable, "-m", "sheave", "launch", "-n", "2", "-s", "1", *options, "--", sys.executable]
        ended = subprocess.run(
            [*launched, "-m", "sheave.compat", "mxnet", "script.py"],
            capture_output=True,
            text=True,
            timeout=50,
            cwd=tmp_path,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert ended.stdout.count("[3.0, 3.0]") == 2


@pytest.fixture
def job(tmp_path, start):
    """Start a job whose processes all run the same script under the face, as `tools/launch.py` would."""

    def launch(script, *, servers=2, workers=2, **files):
        write(tmp_path, script=script, **files)
        environment = {
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(sheave._core._free_port()),
            "DMLC_NUM_SERVER": str(servers),
            "DMLC_NUM_WORKER": str(workers),
        }
        become = """
            import os, sys
            os.execv(sys.executable, [sys.executable, "-u", "-m", "sheave.compat", "mxnet", sys.argv[1]])
        """

        def run(role):
            return start(become, tmp_path / "script.py", DMLC_ROLE=role, **environment)

        return SimpleNamespace(
            scheduler=run("scheduler"),
            servers=[run("server") for _ in range(servers)],
            workers=[run("worker") for _ in range(workers)],
        )

    return launch


def succeed(job):
    said = [worker.succeed(40) for worker in job.workers]
    for program in (*job.servers, job.scheduler):
        program.succeed(20)
    return said


HEAD = """
import numpy as np
import mxnet as mx

def pulled(kv, key, shape, dtype="float32"):
    place = mx.nd.full(shape, -1, dtype=dtype)
    kv.pull(key, out=place)
    return place.asnumpy()
"""


def program(text):
    return HEAD + textwrap.dedent(text)


def test_sync_training(job):
    """All kinds of values and keys, in two orders; and what everybody can compute alone."""
    said = succeed(
        job(
            program("""
            kv = mx.kv.create("Dist_Sync")
            rank, workers = kv.rank, kv.num_workers
            assert (kv.type, workers) == ("dist_sync", 3) and kv.get_num_dead_node(7, 60) == 0
            big, small = (1100, 1000), (2, 3)
            names = {"big": big, "small": small, "half": small}
            order = sorted(names, reverse=bool(rank % 2))
            kinds = ["float16" if name == "half" else "float32" for name in order]
            # Only worker 0's values count, and keys mean the same whatever the order.
            kv.init(order, [mx.nd.full(names[name], 1 + rank, dtype=kind) for name, kind in zip(order, kinds)])
            kv.push("half", mx.nd.full(small, rank, dtype="float16"))
            assert (pulled(kv, "half", small, "float16") == 3).all()
            kv.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.5, momentum=0.5))
            weight = {name: np.ones(names[name], np.float32) for name in ("big", "small")}
            momentum = {name: 0 for name in weight}
            for step in range(3):
                kv.push(list(weight), [[mx.nd.full(names[name], rank + step)] * 2 for name in weight])
                for name in weight:
                    momentum[name] = momentum[name] * 0.5 - 0.5 * 2 * (3 + 3 * step)
                    weight[name] += momentum[name]
                    assert (pulled(kv, name, names[name]) == weight[name]).all()
            outs = [mx.nd.empty(big), mx.nd.empty(big, mx.gpu(0), dtype="float64")]
            values = [mx.nd.ones(big)]
            kv.pushpull("big", values, out=outs)
            assert (outs[0] == outs[1].astype("float32")).asnumpy().all()
            # The same rule anew: its momentum has stayed.
            kv.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.0, momentum=0.5))
            before = pulled(kv, "small", small)
            kv.push("small", mx.nd.ones(small))
            assert (pulled(kv, "small", small) == before + momentum["small"] * 0.5).all()
            for wrong in (lambda: kv.init("small", mx.nd.ones(small)), lambda: kv.push("none", mx.nd.ones(1)),
                          lambda: kv.pull("none", mx.nd.ones(1)), lambda: kv.push("small", mx.nd.ones(4))):
                try:
                    wrong()
                except mx.MXNetError:
                    continue
                raise AssertionError("nothing was raised")
            kv._barrier()
            print("done", flush=True)
            """),
            workers=3,
        )
    )
    assert said == ["done\n"] * 3


def test_rows_and_compression(job):
    succeed(
        job(
            program("""
            kv = mx.kv.create("dist_sync")
            shape = (1000, 8)
            kv.init("rows", mx.nd.ones(shape).tostype("row_sparse"))
            kv.set_gradient_compression({"type": "1bit", "threshold": 0.5})
            kv.init("bits", mx.nd.zeros((33, 3)))
            kv.set_optimizer(mx.optimizer.create("test", rescale_grad=2))
            mine = [kv.rank, 500, 999 - kv.rank]
            gradient = mx.nd.sparse.row_sparse_array((np.ones((3, 8)), mine), shape=shape)
            expected = np.ones(shape, np.float32)
            for worker in range(2):
                np.add.at(expected, [worker, 500, 999 - worker], 2)
            kv.push("rows", gradient)
            out = mx.nd.zeros(shape, stype="row_sparse")
            kv.row_sparse_pull("rows", out=out, row_ids=mx.nd.array([500, 0, 0, 3]))
            assert out.indices.asnumpy().tolist() == [0, 3, 500]
            assert (out.data.asnumpy() == expected[[0, 3, 500]]).all()
            assert (pulled(kv, "rows", shape) == expected).all()
            kv.push("rows", mx.nd.sparse.zeros("row_sparse", shape))
            kv.row_sparse_pull("rows", out=out, row_ids=mx.nd.array([]))
            assert len(out.indices) == 0
            # One bit: above one half +1, else -1; what is left out comes with the next one.
            total, residual = 0, 0.0
            for value in (0.75, 0.0, 2.0, -3.0, 0.25):
                residual += value
                sent = 1 if residual > 0.5 else -1
                residual -= sent
                total += 2 * 2 * sent
                kv.push("bits", mx.nd.full((33, 3), value))
                assert (pulled(kv, "bits", (33, 3)) == total).all()
            """)
        )
    )


def test_async_and_commands(job):
    succeed(
        job(
            program("""
            import time
            kv = mx.kv.create("dist_async")
            kv.init(3, mx.nd.zeros(4))
            if kv.rank == 0:
                # Meanwhile the other worker must not push without it.
                time.sleep(0.3)
            kv.set_optimizer(mx.optimizer.create("test"))
            for _ in range(5):
                kv.push(3, mx.nd.ones(4))
            mx.nd.waitall()
            assert kv._send_command_to_servers(9, "body") == [b"", b""]
            kv._barrier()
            assert (pulled(kv, 3, 4) == 10).all()
            """)
        )
    )


def test_f08_states_of_slices_stay_theirs_while_answers_hold_the_values(job):
    """Values move in memory then: an optimizer in Python must not know slices by their places."""
    succeed(
        job(
            program("""
            class Heavy(mx.optimizer.Optimizer):
                def create_state(self, index, weight):
                    return mx.nd.zeros(weight.shape)

                def update(self, index, weight, grad, state):
                    state += grad
                    weight -= state

            kv = mx.kv.create("dist_sync")
            shape = (1100, 1000)
            start = np.arange(1_100_000, dtype=np.float32).reshape(shape) % 7
            kv.init("w", mx.nd.array(start))
            kv.set_optimizer(Heavy())
            outs = [mx.nd.zeros(shape) for _ in range(12)]
            for out in outs:
                # None of them is waited for.
                kv.pushpull("w", mx.nd.array(start), out=out)
            momentum, weight = 0, start
            for step, out in enumerate(outs):
                momentum = momentum + 2 * start
                weight = weight - momentum
                assert (out.asnumpy() == weight).all(), step
            kv._barrier()
            """)
        )
    )


def test_optimizers_of_the_user_run_on_servers(job):
    """One from the script and one from a module of the user's, which imports mxnet itself."""
    succeed(
        job(
            program("""
            import theirs

            class Mine(mx.optimizer.Optimizer):
                def create_state(self, index, weight):
                    return mx.nd.zeros(weight.shape)

                def update(self, index, weight, grad, state):
                    self._update_count(index)
                    state += grad
                    weight -= state * self._get_lr(index) * self.num_update

            kv = mx.kv.create("dist_sync")
            shape = (1100, 1000)
            start = np.arange(1_100_000, dtype=np.float32).reshape(shape) % 7
            kv.init("w", mx.nd.array(start))
            kv.set_optimizer(Mine(learning_rate=1.0))
            for _ in range(3):
                kv.push("w", mx.nd.array(start))
            # Two workers: the states are 2, 4 and 6 times the gradient, and steps are counted.
            assert (pulled(kv, "w", shape) == start - start * (2 + 8 + 18)).all()
            kv.init("rows", mx.nd.zeros((4, 2), stype="row_sparse"))
            try:
                kv.push("rows", mx.nd.sparse.zeros("row_sparse", (4, 2)))
            except mx.MXNetError as error:
                assert "push them dense" in str(error)
            else:
                raise AssertionError("nothing was raised")
            kv.set_optimizer(theirs.Theirs())
            kv.push("w", mx.nd.array(start))
            assert (pulled(kv, "w", shape) == start * 200).all()
            kv._set_updater(theirs.fail)
            kv.push("w", mx.nd.array(start))
            try:
                pulled(kv, "w", shape)
            except mx.MXNetError as error:
                assert "deliberately" in str(error), error
            else:
                raise AssertionError("nothing was raised")
            """),
            theirs="""
            import mxnet as mx
            from mxnet.optimizer import Optimizer

            class Theirs(Optimizer):
                def update(self, index, weight, grad, state):
                    weight[:] = grad * 100

            def fail(key, received, stored):
                assert key == b"w"
                raise ValueError("deliberately")
            """,
        )
    )


@pytest.mark.parametrize(("kind", "servers"), [("horovod", 0), ("byteps", 1)])
def test_stores_of_collective_operations(job, kind, servers):
    succeed(
        job(
            program(f"""
            kv = mx.kv.create("{kind}")
            assert (kv.type, kv.num_workers, kv.local_rank, kv.is_capable("optimizer")) == ("{kind}", 2, kv.rank, False)
            place = mx.nd.zeros((2, 3))
            kv.broadcast("a", mx.nd.full((2, 3), kv.rank + 5), out=place)
            assert (place.asnumpy() == 5).all()
            values = [mx.nd.full((2, 3), kv.rank + 1)]
            kv.pushpull("a", values[0])
            kv.pushpull("a", values, [place])
            assert (values[0].asnumpy() == 3).all() and (place.asnumpy() == 6).all()
            try:
                kv.set_optimizer(mx.optimizer.SGD())
            except NotImplementedError:
                assert kv.type == "byteps"
            """),
            servers=servers,
        )
    )


def test_a_worker_that_ends_earlier_is_waited_for_no_more(job):
    said = succeed(
        job(
            program("""
            kv = mx.kv.create("dist_sync")
            kv.init("w", mx.nd.zeros(4))
            for batch in range(2 + 3 * kv.rank):
                kv.push("w", mx.nd.full(4, kv.rank + 1))
            print(kv.rank, pulled(kv, "w", 4)[0])
            """)
        )
    )
    assert sorted(said) == ["0 3.0\n", "1 2.0\n"]


def test_a_worker_that_dies_is_an_error_for_the_other(job):
    started = job(
        program("""
        kv = mx.kv.create("dist_sync")
        kv.init("w", mx.nd.zeros(4))
        print("ready", kv.rank, flush=True)
        kv.push("w", mx.nd.ones(4))
        if kv.rank == 1:
            import time
            time.sleep(600)
        import time
        begun = time.monotonic()
        place = mx.nd.zeros(4)
        kv.push("w", mx.nd.ones(4))
        kv.pull("w", out=place)
        print("pulling", flush=True)
        try:
            place.wait_to_read()
        except mx.MXNetError as error:
            print(type(error.__cause__).__name__, error, flush=True)
            raise
        """)
    )
    by_rank = dict(sorted((worker.line(), worker) for worker in started.workers))
    survivor, victim = by_rank["ready 0"], by_rank["ready 1"]
    assert survivor.line() == "pulling"
    os.kill(victim.pid, signal.SIGKILL)
    begun = time.monotonic()
    assert survivor.line().startswith("PeerLost")
    assert time.monotonic() - begun < 3
    status, _, err = survivor.finish(20)
    assert status == 1 and "MXNetError" in err
    for program_of in (*started.servers, started.scheduler):
        program_of.finish(20)
