"""Sessions whose workers or controllers die, or whose programs end without a word."""

import os
import signal
import subprocess
import sys
import time

import pytest
import sheave
import sheave.session
from sheave.session import ProcessSession

PATIENCE = 30


def die_on(unlucky, how):
    if sheave.session.worker().id != unlucky:
        return "well"
    print("the last words", file=sys.stderr, flush=True)
    if how == "a signal":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(7)


def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def await_gone(pids, patience=10):
    until = time.monotonic() + patience
    while not all(map(is_gone, pids)):
        assert time.monotonic() < until, f"some of {pids} live on"
        time.sleep(0.01)


@pytest.mark.parametrize(("how", "status"), [("a signal", -signal.SIGKILL), ("an exit", 7)])
def test_item_3_a_death_is_told_within_a_second_with_status_and_last_lines(how, status):
    with ProcessSession(3, output="quiet") as session:
        session.sync(timeout=PATIENCE)
        begun = time.monotonic()
        result = session.call(die_on, 2, how)
        with pytest.raises(sheave.WorkerDied, match="worker 2") as died:
            session.sync(timeout=PATIENCE)
        assert time.monotonic() - begun < 1
        assert died.value.exit_status == status
        assert died.value.last_lines.splitlines()[-1] == "the last words"
        assert [result.get(worker, PATIENCE) for worker in range(2)] == ["well", "well"]
        for act in (lambda: result.get(2), lambda: session.sync(2), lambda: result.set(2, 1)):
            with pytest.raises(sheave.WorkerDied):
                act()
        # Commands leave the dead out.
        after = session.call(pow, 2, 5)
        assert after.get(1, PATIENCE) == 32
        with pytest.raises(sheave.WorkerDied):
            after.get(2)


def test_item_3_a_death_between_commands_is_told_by_the_next_wait_for_anybody():
    with ProcessSession(3, output="quiet") as session:
        pid = session.call(os.getpid).get(1, PATIENCE)
        os.kill(pid, signal.SIGKILL)
        await_gone([pid])
        until = time.monotonic() + 1
        with pytest.raises(sheave.WorkerDied, match="worker 1"):
            while time.monotonic() < until:
                session.sync(0)
        session.sync(0)
        session.sync(2)


def test_item_3_a_wait_ends_when_the_worker_dies_that_it_waits_for():
    with ProcessSession(2, output="quiet") as session:
        pid = session.call(os.getpid).get(1, PATIENCE)
        register = session.call(lambda: sheave.session.worker().id and time.sleep(600))
        killer = subprocess.Popen([sys.executable, "-c", f"import os, time; time.sleep(0.3); os.kill({pid}, 9)"])
        begun = time.monotonic()
        with pytest.raises(sheave.WorkerDied) as died:
            register.get(1)
        assert time.monotonic() - begun < 5 and died.value.exit_status == -signal.SIGKILL
        killer.wait(10)


def test_a_death_of_which_nobody_was_told_is_raised_by_shutdown():
    session = ProcessSession(2, output="quiet")
    pid = session.call(os.getpid).get(1, PATIENCE)
    os.kill(pid, signal.SIGKILL)
    await_gone([pid])
    time.sleep(0.2)
    with pytest.raises(sheave.WorkerDied):
        session.shutdown()
    session.shutdown()


def test_a_process_that_ends_before_it_has_joined_is_told(tmp_path, monkeypatch):
    (tmp_path / "tests_early.py").write_text("import sys; print('no luck', file=sys.stderr); sys.exit(5)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    begun = time.monotonic()
    with pytest.raises(sheave.WorkerDied) as died:
        ProcessSession(2, entrypoint="tests_early", output="quiet")
    assert (died.value.exit_status, died.value.last_lines.strip()) == (5, "no luck")
    assert time.monotonic() - begun < 10


CONTROLLER = """
    import os, sys, time
    import sheave.session

    session = sheave.session.ProcessSession(3)
    pids = session.call(os.getpid)
    print(*[pids.get(worker) for worker in range(1, 3)])
"""


def controller(start, end):
    program = start(CONTROLLER + end)
    return program, [int(pid) for pid in program.line().split()]


@pytest.mark.parametrize("state", ["waits", "is busy"])
def test_item_4_no_worker_outlives_a_controller_that_is_killed(start, state):
    busy = "time.sleep(600)" if state == "waits" else "session.call(time.sleep, 600); session.sync()"
    program, workers = controller(start, f"    {busy}\n")
    os.kill(program.pid, signal.SIGKILL)
    await_gone(workers, 5)


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("pass", 0),
        ("session.call(pow, 2, 3)", 0),
        ("session.shutdown()", 0),
        ("del session", 0),
        ("keep = [session, pids]; keep.append(keep)", 0),
        ("session.call(divmod, 1, 0)", 0),
        ("sys.exit(3)", 3),
        ("os._exit(4)", 4),
    ],
)
def test_item_4_a_program_that_ends_leaves_nothing_behind_and_says_nothing(start, end, status):
    program, workers = controller(start, f"    {end}\n")
    assert program.finish() == (status, "", "")
    await_gone(workers)


def test_a_program_that_an_exception_ends_leaves_nothing_behind(start):
    program, workers = controller(start, "    session.call(time.sleep, 600)\n    raise KeyError('mine')\n")
    begun = time.monotonic()
    status, out, err = program.finish()
    assert status == 1 and out == "" and err.strip().endswith("KeyError: 'mine'")
    assert time.monotonic() - begun < 8
    await_gone(workers)


def test_commands_that_were_issued_are_done_before_a_program_ends(start, tmp_path):
    path = tmp_path / "done"
    write = f"session.call(lambda: open({str(path)!r} + str(sheave.session.worker().id), 'w').close())"
    program, workers = controller(start, f"    session.call(time.sleep, 0.3); {write}\n")
    assert program.finish() == (0, "", "")
    assert sorted(tmp_path.iterdir()) == [tmp_path / f"done{worker}" for worker in range(3)]
    await_gone(workers)


def test_item_4_registers_may_be_dropped_while_the_interpreter_ends(start):
    program = start(
        """
        import sheave.session

        class Late:
            def __init__(self, register):
                self.register = register
            def __del__(self):
                try:
                    self.register.get()
                except Exception:
                    pass

        session = sheave.session.ThreadedSession(2)
        late = Late(session.call(int))
        circle = [late]
        circle.append(circle)
        """
    )
    assert program.finish() == (0, "", "")


def test_a_forked_child_does_not_end_the_session_of_its_parent():
    with ProcessSession(2) as session:
        register = session.call(pow, 2, 3)
        session.sync(timeout=PATIENCE)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                register.get(1)
            except sheave.Forked:
                del register
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert register.get(1, PATIENCE) == 8
