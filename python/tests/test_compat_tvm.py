"""tvm.runtime.disco over sheave, as programs of TVM use it, and where it does better."""

import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import sheave
import sheave.compat.tvm as tvm
import sheave.compat.tvm.exec.disco_worker  # noqa: F401, registers what threads call
from sheave.compat import tvm_ffi
from sheave.compat.tvm.runtime import ShapeTuple, String
from sheave.compat.tvm.runtime import disco as di

KINDS = [di.ThreadedSession, di.ProcessSession]
kinds = pytest.mark.parametrize("session_kind", KINDS)

ENTRYPOINT = """
import os, sys, time
from sheave.compat import tvm
from sheave.compat.tvm.exec import disco_worker

@tvm.register_func("tests.fail_on", override=True)
def fail_on(worker_id, text):
    if tvm.get_global_func("runtime.disco.worker_rank")() == worker_id:
        raise ValueError(text)
    return "well"

@tvm.register_func("tests.die_on", override=True)
def die_on(worker_id):
    if tvm.get_global_func("runtime.disco.worker_rank")() == worker_id:
        os._exit(7)

@tvm.register_func("tests.sleep", override=True)
def sleep(span):
    time.sleep(span)

@tvm.register_func("tests.nothing", override=True)
def nothing():
    return None

@tvm.register_func("tests.echo", override=True)
def echo(value):
    return value

@tvm.register_func("tests.kind", override=True)
def kind(value):
    return type(value).__name__

if __name__ == "__main__":
    disco_worker.main()
"""


@pytest.fixture(scope="module")
def entrypoint(tmp_path_factory):
    """A module with functions for tests, which this process has imported and worker processes run."""
    folder = tmp_path_factory.mktemp("entrypoint")
    (folder / "tests_disco_entrypoint.py").write_text(ENTRYPOINT)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), before]))
    sys.path.insert(0, str(folder))
    __import__("tests_disco_entrypoint")
    yield "tests_disco_entrypoint"
    sys.path.remove(str(folder))
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture
def begin(entrypoint):
    """Begin sessions with functions for tests."""
    sessions = []

    def begin(kind, workers=2, groups=1):
        rest = {"entrypoint": entrypoint} if kind is di.ProcessSession else {}
        sessions.append(kind(num_workers=workers, num_groups=groups, **rest))
        return sessions[-1]

    yield begin
    for session in sessions:
        try:
            session.shutdown()
        except Exception:
            pass


def _check(session, name, argument, expected):
    result = session.get_global_func(name)(argument)
    for worker in range(session.num_workers):
        got = result.debug_get_from_remote(worker)
        assert got == expected
        yield got


# What TVM's own tests have.


@kinds
def test_int(session_kind):
    with session_kind(num_workers=4) as sess:
        assert list(_check(sess, "tests.disco.add_one", 1, 2)) == [2] * 4


@kinds
def test_float(session_kind):
    with session_kind(num_workers=4) as sess:
        assert list(_check(sess, "tests.disco.add_one_float", 1.5, 2.0)) == [2.0] * 4


@kinds
def test_tensor(session_kind):
    with session_kind(num_workers=4) as sess:
        array = np.arange(6).astype("float32").reshape([2, 3])
        result = sess.get_global_func("tests.disco.add_one_tensor")(tvm.nd.array(array))
        for worker in range(4):
            got = result.debug_get_from_remote(worker)
            assert isinstance(got, tvm.runtime.Tensor)
            assert (got.shape, got.dtype, str(got.device)) == (ShapeTuple([2, 3]), "float32", "cpu:0")
            tvm.testing.assert_allclose(got.numpy(), array + 1)


@kinds
def test_string(session_kind):
    with session_kind(num_workers=4) as sess:
        list(_check(sess, "tests.disco.str", "hello", "hello_suffix"))


@kinds
def test_string_obj(session_kind):
    with session_kind(num_workers=4) as sess:
        for got in _check(sess, "tests.disco.str_obj", String("hello"), "hello_suffix"):
            assert isinstance(got, String)


@kinds
def test_shape_tuple(session_kind):
    with session_kind(num_workers=4) as sess:
        for got in _check(sess, "tests.disco.shape_tuple", ShapeTuple([1, 2, 3]), ShapeTuple([1, 2, 3, 4, 5])):
            assert isinstance(got, tvm_ffi.Shape)


@kinds
@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_num_workers(session_kind, num_workers):
    with session_kind(num_workers=num_workers) as sess:
        assert sess.num_workers == num_workers


@kinds
def test_vm_module(session_kind, tmp_path):
    """A module of Python's in place of a compiled one."""
    (tmp_path / "model.py").write_text(
        "import os\n"
        "loaded = []\n"
        "loaded.append(os.getpid())\n"
        "def transpose(x):\n"
        "    return x.numpy().T\n"
        "def count():\n"
        "    return len(loaded)\n"
    )
    with session_kind(num_workers=4) as sess:
        mod = sess.load_vm_module(str(tmp_path / "model.py"), device=tvm.cpu())
        assert isinstance(mod, di.DModule)
        x = np.arange(32).astype("float32").reshape([4, 8])
        y = mod["transpose"](tvm.runtime.tensor(x))
        again = sess.load_vm_module(str(tmp_path / "model.py"))["count"]()
        for worker in range(4):
            sess._sync_worker(worker)
        tvm.testing.assert_allclose(y.debug_get_from_remote(0).numpy(), x.T)
        assert [again.debug_get_from_remote(worker) for worker in range(4)] == [1] * 4
        missing = mod["no_such"]
        with pytest.raises(AttributeError, match="no function 'no_such'.* has count, transpose"):
            missing().debug_get_from_remote(1)
        for worker in (0, 2, 3):
            with pytest.raises(AttributeError):
                sess._sync_worker(worker)


def test_a_vm_module_is_uploaded_to_nodes_that_lack_it(tmp_path, begin):
    (tmp_path / "model.py").write_text("def where():\n    return __file__\n")
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        # Only this process has such a file, and so worker 0.
        path = f"/proc/self/fd/{held}/model.py"
        sess = begin(di.ProcessSession, 3)
        lacking = sess.load_vm_module(path)["where"]()
        with pytest.raises(FileNotFoundError, match="does not exist where the worker runs"):
            lacking.debug_get_from_remote(1)
        with pytest.raises(FileNotFoundError):
            sess._sync_worker(2)
        files = []
        for _ in range(2):
            where = sess.load_vm_module(path, upload=True)["where"]()
            files.append([where.debug_get_from_remote(worker) for worker in range(3)])
        assert files[0][0] == path and files[0] == files[1], "each is loaded once"
        for file in files[0][1:]:
            assert os.path.basename(file) == "model.py" and not os.path.exists(os.path.dirname(file)), file
        (tmp_path / "model.py").write_text("def where():\n    return 'changed'\n")
        assert sess.load_vm_module(path, upload=True)["where"]().debug_get_from_remote(1) == "changed"
        with pytest.raises(FileNotFoundError, match="no_such"):
            sess.load_vm_module("no_such.py", upload=True)
        sess._sync_all()
    finally:
        os.close(held)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@kinds
def test_vm_module_of_c(session_kind, tmp_path):
    source = """
        #include <stdint.h>
        typedef struct { void *data; int32_t device[2]; int32_t ndim; uint8_t code, bits; uint16_t lanes;
                         int64_t *shape, *strides; uint64_t offset; } DLTensor;
        int add_one(DLTensor **tensors, int count) {
            if (count != 2 || tensors[0]->bits != 32) return 3;
            for (int64_t i = 0; i < tensors[0]->shape[0]; i++)
                ((float *)tensors[1]->data)[i] = ((float *)tensors[0]->data)[i * tensors[0]->strides[0]] + 1;
            return 0;
        }
    """
    (tmp_path / "model.c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "model.so", tmp_path / "model.c"], check=True)
    with session_kind(num_workers=2) as sess:
        add_one = sess.load_vm_module(str(tmp_path / "model.so"))["add_one"]
        make = sess.get_global_func("tests.disco.add_one_tensor")
        x, y = make(np.arange(3, dtype="float32")), make(np.zeros(3, "float32"))
        add_one(x, y)
        for worker in range(2):
            assert y.debug_get_from_remote(worker).numpy().tolist() == [2, 3, 4]
        failed = add_one(x)
        for worker in range(2):
            with pytest.raises(RuntimeError, match="failed with status 3"):
                failed.debug_get_from_remote(worker)


@kinds
def test_callback(session_kind):
    with session_kind(num_workers=2) as sess:
        callback = sess.get_global_func("tests.disco.test_callback")(tvm.cpu(0))
        result = sess.call_packed(callback, "name", 2)
        for worker in range(2):
            assert result.debug_get_from_remote(worker).numpy().tolist() == [0, 1, 2, 3, 4, 5]


# Methods and functions of the interface.


@kinds
def test_debug_copy_from(session_kind, begin):
    sess = begin(session_kind)
    ref = sess.get_global_func("tests.disco.add_one_tensor")(np.zeros((2, 3), "float32"))
    ref.debug_copy_from(1, np.arange(6, dtype="float32").reshape(3, 2))
    got = [ref.debug_get_from_remote(worker).numpy() for worker in range(2)]
    assert got[0].tolist() == [[1, 1, 1]] * 2 and got[1].tolist() == [[0, 1, 2], [3, 4, 5]]
    ref.debug_copy_from(0, tvm.nd.array(np.full((2, 3), 9, "float32")))
    assert (ref.debug_get_from_remote(0).numpy() == 9).all()
    with pytest.raises(ValueError, match="32 bytes; expected 24"):
        ref.debug_copy_from(1, np.zeros(8, "float32"))
    other = sess.get_global_func("tests.nothing")()
    other.debug_copy_from(1, np.ones(2))
    assert other.debug_get_from_remote(0) is None
    assert other.debug_get_from_remote(1).numpy().tolist() == [1, 1]
    with pytest.raises(ValueError, match="worker 2 of 2"):
        ref.debug_copy_from(2, np.zeros(6))


@kinds
def test_what_arrives(session_kind, begin):
    sess = begin(session_kind)
    kind = sess.get_global_func("tests.kind")
    values = [None, True, 1, 1.5, "a", b"ab", ShapeTuple([1]), np.float32(2), tvm.cpu(0), 2**62, np.zeros(2), (1, 2)]
    names = ["NoneType", "bool", "int", "float", "str", "bytes", "Shape", "float", "Device", "int", "Tensor", "tuple"]
    got = [kind(value) for value in values]
    for worker in range(2):
        assert [ref.debug_get_from_remote(worker) for ref in got] == names


@kinds
def test_workers_of_groups_know_who_they_are(session_kind, begin):
    sess = begin(session_kind, 4, 2)
    ids = sess.get_global_func("runtime.disco.worker_id")()
    size = sess.get_global_func("runtime.disco.world_size")()
    device = sess.get_global_func("runtime.disco.device")()
    assert [ids.debug_get_from_remote(worker) for worker in range(4)] == [ShapeTuple([w]) for w in range(4)]
    assert (size.debug_get_from_remote(3), device.debug_get_from_remote(3)) == (4, tvm.cpu(0))
    again = di.DPackedFunc(sess.get_global_func("runtime.disco.worker_rank"), sess)
    assert again().debug_get_from_remote(2) == 2 and again.session is sess
    sess.import_python_module("json.tool")
    sess.sync_worker_0()
    sess._sync_all()


def test_threads_are_bound_to_cores(begin):
    sess = begin(di.ProcessSession)
    core = min(os.sched_getaffinity(0))
    sess.get_global_func("runtime.disco.bind_worker_to_cpu_core")(ShapeTuple([core, core]))
    sess._sync_all()
    assert len(os.sched_getaffinity(0)) == len(os.sched_getaffinity(os.getpid()))
    sess.get_global_func("runtime.disco.bind_worker_to_cpu_core")(ShapeTuple([core]))
    with pytest.raises(ValueError, match="1 cores"):
        sess._sync_worker(1)


def test_worker_0_gives_the_very_object(begin):
    sess = begin(di.ProcessSession)
    callback = sess.get_global_func("tests.disco.test_callback")(tvm.cpu(0))
    assert callback.debug_get_from_remote(0)("ab", 0).shape == (2,)
    tensor = sess.get_global_func("tests.disco.add_one_tensor")(np.zeros(2))
    assert tensor.debug_get_from_remote(0).same_as(tensor.debug_get_from_remote(0))


def test_registry():
    @tvm.register_func("tests.registry")
    def one():
        return 1

    with pytest.raises(ValueError, match="tests.registry"):
        tvm_ffi.register_global_func("tests.registry", lambda: 2)
    assert tvm.get_global_func("tests.registry")() == 1
    tvm_ffi.register_global_func("tests.registry", lambda: 2, override=True)
    assert tvm_ffi.get_global_func("tests.registry")() == 2
    assert "tests.registry" in tvm.list_global_func_names()
    tvm.remove_global_func("tests.registry")
    assert tvm.get_global_func("tests.registry", allow_missing=True) is None
    with pytest.raises(ValueError, match="Cannot find global function tests.registry"):
        tvm.get_global_func("tests.registry")


def test_values():
    tensor = tvm.nd.array(np.arange(4, dtype="int32"), tvm.cpu(0))
    assert tensor.copyfrom(np.ones(4)).numpy().tolist() == [1] * 4
    assert tvm.runtime.empty((2, 2), "bfloat16").dtype == "bfloat16"
    assert np.from_dlpack(tensor).tolist() == [1] * 4 and len(tensor) == 4
    with pytest.raises(ValueError, match="shape"):
        tensor.copyfrom(np.ones(3))
    assert tvm.device("cuda:1") == tvm.cuda(1) == tvm.device("cuda", 1)
    with pytest.raises(ValueError, match="Unknown device"):
        tvm.device("toaster")
    assert tvm.testing.run_with_gpu_lock(pow, 2, 3) == 8
    with pytest.raises(NotImplementedError, match="compiler"):
        tvm.script.relax.function(test_values)


# Items of what a better implementation should handle.


@kinds
def test_item_1_an_exception_comes_back_and_the_rest_goes_on(session_kind, begin):
    sess = begin(session_kind)
    bad = sess.get_global_func("tests.fail_on")(1, "no luck")
    echo = sess.get_global_func("tests.echo")
    worse = echo(bad)
    with pytest.raises(ValueError, match="no luck") as raised:
        sess._sync_worker(1)
    cause = raised.value.__cause__
    assert "worker 1: call of tests.fail_on" in str(cause) and "raise ValueError(text)" in cause.remote_traceback
    sess.sync_worker_0()
    assert worse.debug_get_from_remote(0) == "well"
    with pytest.raises(ValueError, match="no luck"):
        worse.debug_get_from_remote(1)
    assert echo("on").debug_get_from_remote(1) == "on"


@kinds
def test_item_2_a_missing_function_is_a_clean_error(session_kind, begin):
    sess = begin(session_kind)
    missing = sess.get_global_func("no.such")
    assert isinstance(missing, di.DPackedFunc)
    for worker in range(2):
        with pytest.raises(RuntimeError, match="no.such"):
            sess._sync_worker(worker)
    sess._sync_all()


def test_item_3_a_death_is_told(begin):
    sess = begin(di.ProcessSession, 3)
    sess._sync_all()
    begun = time.monotonic()
    sess.get_global_func("tests.die_on")(2)
    with pytest.raises(sheave.WorkerDied) as died:
        sess._sync_worker(2)
    assert died.value.exit_status == 7 and time.monotonic() - begun < 1
    assert isinstance(died.value, RuntimeError)
    assert sess.get_global_func("tests.echo")(1).debug_get_from_remote(1) == 1


@kinds
def test_item_4_after_shutdown_nothing_hangs(session_kind, begin):
    sess = begin(session_kind)
    ref = sess.get_global_func("tests.echo")(1)
    sess._sync_all()
    sess.shutdown()
    sess.shutdown()
    assert sess.num_workers == 2
    for act in (
        sess.sync_worker_0,
        lambda: sess._sync_worker(1),
        sess._sync_all,
        lambda: sess.get_global_func("x"),
        lambda: ref.debug_get_from_remote(1),
        lambda: sess.load_vm_module("x.py"),
        lambda: sess.import_python_module("json"),
    ):
        with pytest.raises(RuntimeError, match="shut down"):
            act()
    del ref


def test_item_4_a_session_ends_when_nobody_has_it(begin, entrypoint):
    gc.collect()
    gc.disable()
    try:
        sess = di.ProcessSession(2, entrypoint=entrypoint)
        sess._get_cached_method("tests.echo")
        sess.call_packed(sess.get_global_func("tests.echo"), 1).debug_copy_from(1, 2)
        pids = [int(pid) for pid in subprocess.check_output(["pgrep", "-f", "tests_disco_entrypoint"]).split()]
        assert pids
        del sess
        until = time.monotonic() + 10
        while any(os.path.exists(f"/proc/{pid}") for pid in pids):
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        gc.enable()


@kinds
def test_item_5_none_is_fetched_as_none(session_kind, begin):
    sess = begin(session_kind)
    nothing = sess.get_global_func("tests.nothing")()
    assert [nothing.debug_get_from_remote(worker) for worker in range(2)] == [None, None]


@kinds
def test_item_13_four_threads_issue_commands(session_kind, begin):
    sess = begin(session_kind)
    add_one, failures = sess.get_global_func("tests.disco.add_one"), []

    def run():
        try:
            for number in range(200):
                ref = add_one(number)
                if number % 20 == 0:
                    assert ref.debug_get_from_remote(number // 20 % 2) == number + 1
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert not failures


@kinds
def test_item_14_arguments_are_checked_before_anything_is_sent(session_kind, begin):
    for arguments in ((0,), (-1,), (3, 2), (2, 0)):
        with pytest.raises(ValueError):
            session_kind(*arguments)
    sess = begin(session_kind)
    for worker in (-1, 2):
        with pytest.raises(ValueError, match="of 2; they are counted from 0"):
            sess._sync_worker(worker)
    sess._sync_all()


@kinds
def test_item_15_an_argument_that_cannot_be_sent_leaves_no_trace(session_kind, begin):
    sess = begin(session_kind)
    echo = sess.get_global_func("tests.echo")
    for _ in range(3):
        with pytest.raises(RuntimeError, match="cannot be pickled"):
            echo(threading.Lock())
    assert [echo(1).debug_get_from_remote(worker) for worker in range(2)] == [1, 1]


@kinds
def test_item_17_issuing_is_not_held_up_by_a_slow_worker(session_kind, begin):
    sess = begin(session_kind)
    echo = sess.get_global_func("tests.echo")
    sess.get_global_func("tests.sleep")(1.0)
    begun = time.monotonic()
    for number in range(200):
        ref = echo(number)
    assert time.monotonic() - begun < 0.9
    assert ref.debug_get_from_remote(1) == 199


@kinds
def test_item_20_a_module_that_is_not_there_is_a_clear_error(session_kind, begin):
    sess = begin(session_kind)
    mod = sess.load_vm_module("/no/such/model.so")
    for worker in range(2):
        with pytest.raises(FileNotFoundError, match="load_vm_module: /no/such/model.so does not exist"):
            sess._sync_worker(worker)
    with pytest.raises(FileNotFoundError):
        mod["main"]().debug_get_from_remote(1)


# As a program that says `import tvm`.


def run(*arguments, **environment):
    command = [sys.executable, "-m", "sheave.compat", "tvm", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, env={**os.environ, **environment})


PROGRAM = """
import tvm, tvm_ffi
from tvm.runtime import ShapeTuple, String
from tvm.runtime import disco as di
from tvm.script import ir as I, relax as R
from tvm.exec import disco_worker as _
from tvm_ffi.core import String as same

assert same is String and tvm_ffi.Shape is ShapeTuple

def test_both():
    for kind in (di.ThreadedSession, di.ProcessSession):
        sess = kind(num_workers=2)
        result = sess.get_global_func("tests.disco.add_one")(1)
        assert [result.debug_get_from_remote(worker) for worker in range(2)] == [2, 2]
        sess.shutdown()

if __name__ == "__main__":
    test_both()
    print("well")
"""


def test_programs_that_import_tvm_run(tmp_path):
    (tmp_path / "test_program.py").write_text(PROGRAM)
    done = run(tmp_path / "test_program.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "well\n", "")
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path / "test_program.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_workers_and_nodes_are_modules_that_run():
    usages = {
        "disco_worker": "<worker_id> <num_workers> <num_groups> <read_fd> <write_fd>",
        "disco_remote_socket_session": "<server_host> <server_port> <num_workers>",
    }
    for module, usage in usages.items():
        done = run("-m", f"tvm.exec.{module}")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"Usage: {usage}\n", "")
    done = run("-m", "tvm.exec.disco_remote_socket_session", "localhost", "0", "1")
    assert done.returncode == 2 and "expected 1 to 65535" in done.stderr and "Traceback" not in done.stderr


SOCKETS = """
import subprocess, sys, threading
import numpy as np
import tvm
from tvm.exec import disco_worker as _
from tvm.runtime import disco as di

port, node = int(sys.argv[1]), "tvm.exec.disco_remote_socket_session"
thread = threading.Thread(target=lambda: globals().update(sess=di.SocketSession(2, 2, 1, "localhost", port)))
thread.start()
other = subprocess.Popen([sys.executable, "-m", node, "localhost", str(port), "2"])
thread.join()
sess.init_ccl("sheave", 0, 1)
result = sess.get_global_func("tests.disco.add_one_tensor")(tvm.runtime.tensor(np.zeros(2, "float32")))
total = sess.empty((2,), "float32")
sess.allreduce(result, total)
print([total.debug_get_from_remote(worker).numpy().tolist() for worker in range(sess.num_workers)])
sess.shutdown()
print(other.wait(20))
"""


def test_programs_that_import_tvm_start_nodes(tmp_path):
    (tmp_path / "program.py").write_text(SOCKETS)
    done = run(tmp_path / "program.py", sheave._core._free_port())
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{[[4.0, 4.0]] * 4}\n0\n", "")


def test_workers_do_not_outlive_a_program_that_is_killed(start):
    program = start(
        """
        import time
        from sheave.compat.tvm.runtime import disco
        session = disco.ProcessSession(2)
        pid = disco.DPackedFunc(session._session.function(__import__("os").getpid), session)()
        print(pid.debug_get_from_remote(1))
        session.get_global_func("runtime.disco.worker_id")()
        time.sleep(600)
        """
    )
    pid = int(program.line())
    os.kill(program.pid, signal.SIGKILL)
    until = time.monotonic() + 5
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_programs_of_before_0_20_find_what_they_import():
    from sheave.compat.tvm import _ffi, relax
    from sheave.compat.tvm.script import tir

    assert _ffi.register_func is tvm.register_func and _ffi.get_global_func is tvm.get_global_func
    for absent in (relax.build, tir.prim_func):
        with pytest.raises(NotImplementedError, match="needs TVM's compiler"):
            absent()
