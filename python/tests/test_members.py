"""`sheave.MemberFleet`: members of a job that are waited for, ended, and never heard in anybody else's name."""

import atexit
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import sheave
from sheave import _member


def rank_of():
    with sheave.init() as mesh:
        return mesh.rank, os.getpid()


def sleep_unless(lucky):
    if os.environ["SHEAVE_RANK"] == lucky:
        return lucky
    time.sleep(600)


def end_well_without_a_result(early):
    if os.environ["SHEAVE_RANK"] == early:
        os._exit(0)
    time.sleep(600)


def fail_at_the_exit(how):
    def fail():
        if how == "a signal":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(7)

    atexit.register(fail)
    return np.full(8 << 20, int(os.environ["SHEAVE_RANK"]), np.int64)


def leave_a_thread():
    _member.EXIT_PATIENCE_S = 0.2
    threading.Thread(target=time.sleep, args=(600,)).start()
    return "done"


def copy(how):
    """Ends the copy that it makes of the process in some way, as which it must not be heard."""
    pid = os.fork()
    if pid == 0:
        if how == "returns":
            return "the copy"
        raise ValueError("the copy")
    _, status = os.waitpid(pid, 0)
    return "the process itself"


def write_before(text):
    print(text, file=sys.stderr)
    os._exit(4)


def add_under(lock, path, times):
    for _ in range(times):
        with lock:
            with open(path) as file:
                number = int(file.read())
            with open(path, "w") as file:
                file.write(str(number + 1))


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_members_are_known_and_return_by_rank():
    with sheave.MemberFleet(rank_of, 3) as fleet:
        members = fleet.members
        assert [(member.name, member.rank) for member in members] == [(f"rank-{rank}", rank) for rank in range(3)]
        assert fleet.wait(timeout=40) == [(member.rank, member.pid) for member in members]
        assert fleet.wait() == [(member.rank, member.pid) for member in members], "it may be asked again"
    assert repr(fleet) == "<sheave.MemberFleet of 3 processes>"
    assert all(is_gone(member.pid) for member in members)


def test_servers_come_with_a_scheduler():
    with sheave.MemberFleet(rank_of, 2, servers=1, output="quiet") as fleet:
        assert [member.name for member in fleet.members] == ["scheduler", "server-0", "worker-0", "worker-1"]
        fleet.kill()
        assert all(is_gone(member.pid) for member in fleet.members)
        with pytest.raises(sheave.Closed, match="worker-0"):
            fleet.wait(timeout=20)


def test_a_wait_that_is_over_names_who_has_not_returned_and_ends_nobody():
    with sheave.MemberFleet(sleep_unless, 3, ("1",)) as fleet:
        until = time.monotonic() + 40
        while not is_gone(fleet.members[1].pid):
            assert time.monotonic() < until
            time.sleep(0.01)
        with pytest.raises(sheave.DeadlineExceeded, match=r"^rank-0, rank-2 did not return in time") as caught:
            fleet.wait(timeout=0.5)
        assert 0.5 <= caught.value.elapsed < 10 and caught.value.__cause__ is None
        assert not is_gone(fleet.members[0].pid)
        os.kill(fleet.members[2].pid, signal.SIGTERM)
        with pytest.raises(sheave.WorkerDied, match="rank-2.*SIGTERM") as caught:
            fleet.wait(timeout=30)
        assert caught.value.exit_status == -signal.SIGTERM
    assert all(is_gone(member.pid) for member in fleet.members)


def test_commands_are_members_too():
    program = "import sheave; print('here', file=__import__('sys').stderr); sheave.init().finish()"
    with sheave.MemberFleet([sys.executable, "-c", program], 2, output="quiet") as fleet:
        assert fleet.wait(timeout=40) == [None, None]
    with sheave.MemberFleet(["sh", "-c", "echo $WORDS >&2; exit $SHEAVE_RANK"], 2, env={"WORDS": "no"}) as fleet:
        with pytest.raises(sheave.WorkerDied, match="rank-1") as caught:
            fleet.wait(timeout=40)
        assert (caught.value.exit_status, caught.value.last_lines) == (1, "no")
    with pytest.raises(sheave.NotFound, match="no-such-program"):
        sheave.MemberFleet(["no-such-program"], 1)
    wrong = ((["true"], (1,), "arguments for a command"), ("sleep 1", (), "list of words"), ([], (), "empty command"))
    for what, args, text in wrong:
        with pytest.raises(sheave.InvalidArgument, match=text):
            sheave.MemberFleet(what, 1, args)


def test_an_end_without_a_result_is_a_failure_at_once():
    with sheave.MemberFleet(end_well_without_a_result, 2, ("1",)) as fleet:
        with pytest.raises(sheave.WorkerDied, match="rank-1.*exit code 0") as caught:
            fleet.wait(timeout=40)
        assert caught.value.exit_status == 0 and caught.value.peer.pid == fleet.members[1].pid


def test_what_a_process_said_last_is_told():
    with pytest.raises(sheave.WorkerDied, match="out of luck") as caught:
        sheave.spawn(write_before, 1, ("out of luck",))
    assert (caught.value.exit_status, caught.value.last_lines) == (4, "out of luck")


@pytest.mark.parametrize("how", ["a signal", "a status"])
def test_a_result_that_was_told_is_not_lost_by_the_end(how):
    for rank, result in enumerate(sheave.spawn(fail_at_the_exit, 2, (how,))):
        assert result.shape == (8 << 20,) and (result == rank).all()


def test_threads_that_go_on_keep_nobody_waiting():
    assert sheave.spawn(leave_a_thread, 2, timeout=40) == ["done"] * 2


@pytest.mark.parametrize("how", ["returns", "fails"])
def test_a_copy_of_a_process_is_not_heard_in_its_name(how):
    assert sheave.spawn(copy, 1, (how,)) == ["the process itself"]


def test_locks_may_be_arguments_and_queues_may_not(tmp_path):
    context = multiprocessing.get_context("spawn")
    counter = tmp_path / "counter"
    counter.write_text("0")
    sheave.spawn(add_under, 3, (context.Lock(), str(counter), 100))
    assert counter.read_text() == "300"
    with pytest.raises(sheave.InvalidArgument, match="queues of multiprocessing"):
        sheave.spawn(add_under, 1, (context.Queue(), "", 1))
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(context.Lock())


class Trap:
    """What must not be opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def offer(path):
    """What a process can reach of its own channel, and what a process that it starts can."""
    from sheave import pickling

    evil = pickling.dumps(Trap(path))
    tried = f"""
        import os
        evil = {evil!r}
        for fd in list(map(int, os.listdir("/proc/self/fd"))):
            try:
                kind = os.readlink(f"/proc/self/fd/{{fd}}")
            except OSError:
                continue
            if "sheave-sheet" in kind:
                print(kind)
                os.pwrite(fd, b"sheave 2" + len(evil).to_bytes(8, "little") + evil, 0)
    """
    started = [sys.executable, "-c", textwrap.dedent(tried)]
    reached = subprocess.run(started, stdout=subprocess.PIPE, close_fds=False, text=True, check=True).stdout
    return reached, sys.stdin.read(), [name for name in os.environ if "SHEET" in name]


def give_no_pickle(path):
    """Writes into its channel what is no result."""
    for fd in os.listdir("/proc/self/fd"):
        name = f"/proc/self/fd/{fd}"
        if os.path.exists(name) and "sheave-sheet" in os.readlink(name):
            # An answer that is not whole, of which only the state is missing.
            from sheave import pickling

            evil = pickling.dumps(Trap(path))
            os.pwrite(int(fd), bytes(8) + len(evil).to_bytes(8, "little") + evil, 0)
    os._exit(0)


def test_door_results_of_spawn(tmp_path, monkeypatch):
    """Nothing but what the process itself has answered is opened: its channel has no name, and nobody inherits it."""
    path = tmp_path / "opened"
    assert sheave.spawn(offer, 1, (str(path),)) == [("", "", [])]
    with pytest.raises(sheave.WorkerDied, match="exit code 0"):
        sheave.spawn(give_no_pickle, 1, (str(path),))
    assert not path.exists()
    # This is about what comes over a mesh, from whoever has come in; no mesh is between a process and its own channel.
    monkeypatch.setenv("SHEAVE_PICKLE", "never")
    assert sheave.spawn(offer, 1, (str(path),)) == [("", "", [])]
    assert not path.exists()


SCRIPT = """
    import os, sys, sheave

    class Found:
        def __init__(self, number):
            self.number = number

    def find(number):
        # It was imported, and as what multiprocessing calls it.
        assert sys.modules["__main__"].Found is Found and __name__ == "__mp_main__"
        return Found(number), sys.argv[1:], os.getcwd()

    if __name__ == "__main__":
        for found, arguments, folder in sheave.spawn(find, 2, (4,)):
            print(type(found) is Found, found.number, arguments, folder == os.getcwd())
"""


@pytest.mark.parametrize("how", ["a script", "a module"])
def test_functions_of_the_program_are_found_by_import(tmp_path, how):
    (tmp_path / "program.py").write_text(textwrap.dedent(SCRIPT))
    command = ["program.py"] if how == "a script" else ["-m", "program"]
    ended = subprocess.run(
        [sys.executable, *command, "one", "two"], cwd=tmp_path, capture_output=True, text=True, timeout=50
    )
    assert (ended.stdout, ended.stderr) == ("True 4 ['one', 'two'] True\n" * 2, "")


def test_a_program_that_starts_processes_whenever_it_is_imported_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sheave\nsheave.spawn(print, 1)\n")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=50)
    assert ended.returncode == 1 and "rank-0 failed" in ended.stderr
    assert 'if __name__ == "__main__"' in ended.stderr.replace("'", '"')


def test_sheave_is_found_where_the_program_has_found_it(tmp_path):
    """By a path that only the program knows: its processes look there too."""
    script = tmp_path / "script.py"
    home = os.path.dirname(os.path.dirname(sheave.__file__))
    packages = os.path.dirname(os.path.dirname(np.__file__))
    script.write_text(
        textwrap.dedent(f"""
            import sys
            sys.path[:0] = [{home!r}, {packages!r}]
            import sheave
            if __name__ == "__main__":
                print(sheave.spawn(sum, 1, ([1, 2],)), end="")
        """)
    )
    ended = subprocess.run([sys.executable, "-S", script], capture_output=True, text=True, timeout=50)
    assert (ended.stdout, ended.stderr) == ("[3]", "")


@pytest.mark.parametrize("output, said", [("prefix", "rank-0 | it\n"), ("inherit", "it\n"), ("quiet", "")])
def test_output_goes_where_it_is_told(start, output, said):
    program = f"""
        import sheave
        with sheave.MemberFleet(print, 1, ("it",), output={output!r}) as fleet:
            fleet.wait()
    """
    assert start(program).succeed(timeout=40) == said


def test_an_interrupted_wait_ends_nobody(start):
    program = """
        import os, signal, sheave, time
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with sheave.MemberFleet(time.sleep, 1, (600,)) as fleet:
            print("waits", flush=True)
            try:
                fleet.wait()
            except KeyboardInterrupt:
                os.kill(fleet.members[0].pid, 0)
            fleet.kill()
            print("over")
    """
    process = start(program)
    from conftest import in_a_wait

    in_a_wait(process)
    process.process.send_signal(signal.SIGINT)
    assert process.succeed(timeout=20) == "over\n"
