"""`sheave.spawn`: results, failures, ends, and what is left behind: nothing."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import sheave


def add_up(count, note=None):
    mesh = sheave.init()
    array = np.full(count, mesh.rank + 1.0)
    sheave.all_reduce(array)
    mesh.finish()
    return mesh.closed, array.tolist(), note, os.environ["SHEAVE_RANK"]


def fail_at(bad):
    with sheave.init() as mesh:
        if mesh.rank == bad:
            raise ValueError("on purpose")
        sheave.barrier()


def add_views_in_a_full_arena():
    """Private memory passes through a window of the arena, for which there is no room; the arena's own needs none."""
    mesh = sheave.init(arena_bytes=32 << 20)
    mesh.world.all_reduce(np.ones(2))
    count = 1 << 20
    whole = sheave.empty(2 * count)
    rest = []
    for length_bytes in (8 << 20, 1 << 20, 64 << 10):
        with contextlib.suppress(sheave.LimitExceeded):
            while True:
                rest.append(sheave.empty(length_bytes, "uint8"))
    view = whole.numpy()
    view[:] = np.arange(2 * count) % 1000 + mesh.rank
    # A part that begins anywhere, a view that is not numpy's own, one part out of place, and two of one tensor at once.
    sheave.all_reduce(view[3:count])
    sheave.all_reduce(np.from_dlpack(whole)[count : count + 100_000])
    sheave.all_gather(view[-100_000:], out=view[count + 100_000 : count + 300_000])
    parts = [view[count + 300_000 : count + 400_000], view[count + 400_000 : count + 500_000]]
    sheave.all_reduce(parts)
    works = [sheave.all_reduce(part, "max", async_op=True) for part in parts]
    del whole
    for work in works:
        work.wait(timeout=20)
    result = view.copy()
    # Memory of this process alone, for which the full arena has no room, goes over links.
    assert sheave.all_reduce(np.ones(count, np.float32), timeout=20).tolist() == [2.0] * count
    return result


def ask(number):
    with sheave.init() as mesh, sheave.exchange.Worker() as worker:
        return mesh.role, worker.push_pull({0: np.full(2, number)}, {0: np.zeros(2, int)}).wait(timeout=20)[0].tolist()


def answer(number):
    with sheave.init(), sheave.exchange.Server() as server:
        for batch in server:
            for request in batch:
                server.respond(request, [request.tensors[0].numpy() + request.worker + number])


def fail_as_a_server(number):
    sheave.init()
    raise ValueError("a server's")


def die_at(bad):
    mesh = sheave.init()
    if mesh.rank == bad:
        os.kill(os.getpid(), signal.SIGKILL)
    sheave.barrier()


def end_at(bad, how):
    mesh = sheave.init()
    if mesh.rank == bad:
        if how == "sys.exit":
            sys.exit(3)
        if how == "os._exit":
            os._exit(3)
        if how == "exit 0":
            os._exit(0)
        if how == "interrupt":
            raise KeyboardInterrupt
        raise ValueError("on purpose")
    try:
        sheave.barrier()
    except sheave.PeerLost:
        raise RuntimeError("no barrier") from None


def read_environment():
    return dict(os.environ)


def save_after_serving(folder):
    sheave.init()
    sheave.run_server()
    with open(os.path.join(folder, "checkpoint"), "wb") as file:
        for _ in range(12):
            file.write(bytes(16 << 20))
    time.sleep(0.3)
    pathlib.Path(folder, "saved").touch()


def work_with_a_server(folder):
    with sheave.init():
        sheave.KVStore("dist_sync").close()


def note_and_sleep(folder):
    pathlib.Path(folder, str(os.getpid())).touch()
    time.sleep(600)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def none_runs(pids, seconds):
    until = time.monotonic() + seconds
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.01)
    return not any(map(is_running, pids))


def test_views_of_the_arena_are_used_where_they_lie():
    count = 1 << 20
    ranks = [(np.arange(2 * count) % 1000 + rank).astype(np.float32) for rank in range(2)]
    gathered = np.concatenate([rank[-100_000:] for rank in ranks])
    total = ranks[0] + ranks[1]
    for rank in ranks:
        for part in (slice(3, count + 100_000), slice(count + 300_000, count + 500_000)):
            rank[part] = total[part]
        rank[count + 100_000 : count + 300_000] = gathered
    for result, expected in zip(sheave.spawn(add_views_in_a_full_arena, 2), ranks, strict=True):
        np.testing.assert_array_equal(result, expected)


def test_a_job_around_it_means_nothing_in_it(monkeypatch):
    """Whatever `sheave launch` says to a process or takes from it, spawn takes from its own."""
    names = sheave._core._variables_of_jobs()
    assert {"SHEAVE_ROOT", "SHEAVE_SECRET", "SHEAVE_SECRET_FILE", "DMLC_PS_ROOT_URI"} < set(names)
    for name in names:
        monkeypatch.setenv(name, "of another job")
    assert [result[1] for result in sheave.spawn(add_up, 2, (1,))] == [[3.0]] * 2
    assert {os.environ[name] for name in names} == {"of another job"}


def test_results_come_by_rank():
    results = sheave.spawn(add_up, 3, (2,), {"note": "here"})
    assert results == [(True, [6.0, 6.0], "here", str(rank)) for rank in range(3)]
    assert "SHEAVE_RANK" not in os.environ


def test_servers_run_what_is_given():
    results = sheave.spawn(ask, 2, (5,), servers=1, server=answer)
    assert results == [("worker", [10, 10]), ("worker", [11, 11])]
    with pytest.raises(sheave.InvalidArgument, match="no servers"):
        sheave.spawn(ask, 2, (5,), server=answer)
    with pytest.raises(sheave.Remote, match="server-0 failed") as caught:
        sheave.spawn(ask, 1, (5,), servers=1, server=fail_as_a_server)
    assert "ValueError: a server's" in str(caught.value)


def act_among_workers():
    mesh = sheave.init()
    total = sheave.all_reduce(np.array([mesh.rank + 1.0]), timeout=20)[0]
    sheave.barrier(timeout=20)
    pair = mesh.group([1, 0], "pair")
    return mesh.rank, mesh.size, mesh.world.rank, mesh.world.size, total, pair.rank


def test_f65_functions_without_a_group_act_among_workers():
    results = sheave.spawn(act_among_workers, 2, servers=1)
    assert results == [(0, 2, 2, 4, 3.0, 1), (1, 2, 3, 4, 3.0, 0)]


def test_a_failure_names_its_rank_and_has_its_traceback():
    with pytest.raises(sheave.Remote, match="rank-1 failed") as caught:
        sheave.spawn(fail_at, 3, (1,))
    assert "fail_at" in str(caught.value) and "ValueError: on purpose" in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
    assert (caught.value.peer.name, caught.value.peer.rank) == ("rank-1", 1)


@pytest.mark.parametrize(
    "how, named",
    [
        ("sys.exit", "SystemExit: 3"),
        ("os._exit", "exit code 3"),
        ("exit 0", "exit code 0"),
        ("interrupt", "KeyboardInterrupt"),
        ("raise", "ValueError: on purpose"),
    ],
)
def test_f66_the_first_to_end_is_named_and_not_those_who_fail_for_it(how, named):
    with pytest.raises((sheave.Remote, sheave.PeerLost), match="rank-1") as caught:
        sheave.spawn(end_at, 3, (1, how))
    assert named in str(caught.value) and caught.value.peer.name == "rank-1"


def test_f80_a_server_that_saves_after_the_workers_return_is_waited_for(tmp_path):
    sheave.spawn(work_with_a_server, 1, (str(tmp_path),), servers=1, server=save_after_serving)
    assert (tmp_path / "checkpoint").stat().st_size == 12 << 24 and (tmp_path / "saved").exists()


def test_f32_the_secret_is_in_no_environment():
    results = sheave.spawn(read_environment, 1)
    assert "SHEAVE_SECRET" not in results[0] and results[0]["SHEAVE_SECRET_FILE"].startswith("/proc/")


def test_a_killed_process_is_named():
    with pytest.raises(sheave.PeerLost, match="rank-2.*SIGKILL") as caught:
        sheave.spawn(die_at, 3, (2,))
    assert caught.value.peer.rank == 2
    assert isinstance(caught.value, sheave.WorkerDied) and caught.value.exit_status == -signal.SIGKILL


def test_the_time_is_limited_and_nothing_is_left(tmp_path):
    with pytest.raises(sheave.DeadlineExceeded, match="rank-0, rank-1"):
        sheave.spawn(note_and_sleep, 2, (str(tmp_path),), timeout=8)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2 and none_runs(pids, 5)


def test_bad_arguments():
    with pytest.raises(sheave.InvalidArgument):
        sheave.spawn(add_up, 0, (1,))
    with pytest.raises(sheave.Remote, match="TypeError"):
        sheave.spawn(add_up, 1)


def test_a_function_that_pickle_cannot_pickle():
    secret = 41
    assert sheave.spawn(lambda: secret + 1, 2) == [42, 42]
    with pytest.raises(sheave.InvalidArgument, match="cannot be pickled"):
        sheave.spawn(add_up, 1, (threading.Lock(),))


def test_results_may_be_of_local_classes():
    class Found(Exception):
        pass

    def find():
        return Found("it"), Found

    for found, kind in sheave.spawn(find, 2):
        assert isinstance(found, Found) and kind is Found and found.args == ("it",)


def lose():
    raise OSError("it cannot be opened")


class Unloadable:
    def __reduce__(self):
        return lose, ()


def test_a_result_that_cannot_be_opened_is_told_as_that():
    with pytest.raises(sheave.Remote, match="rank-0 cannot be unpickled: it cannot be opened"):
        sheave.spawn(Unloadable, 1)


def test_f70_results_may_be_tensors_of_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def train():
        module = torch.nn.Linear(300, 300)
        return module.state_dict(), torch.arange(3), module

    for state, counted, module in sheave.spawn(train, 2):
        assert torch.equal(state["weight"], module.weight) and counted.tolist() == [0, 1, 2]


def test_f70_a_program_from_standard_input():
    program = """
        import sheave

        def rank():
            with sheave.init() as mesh:
                return mesh.rank

        print(sheave.spawn(rank, 2))
    """
    said = subprocess.run(
        [sys.executable, "-"], input=textwrap.dedent(program), capture_output=True, text=True, timeout=50
    )
    assert (said.returncode, said.stdout) == (0, "[0, 1]\n"), said.stderr


def place_and_sum(offset):
    with sheave.init() as mesh:
        values = np.full(3, mesh.rank + offset, np.int64)
        sheave.all_reduce(values)
        return mesh.rank, mesh.size, int(values[0])


def test_f71_several_threads_spawn_at_once():
    outcomes = {}

    def job(number):
        outcomes[number] = sheave.spawn(place_and_sum, 2, (10 * number,))

    threads = [threading.Thread(target=job, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {number: [(rank, 2, 20 * number + 1) for rank in range(2)] for number in range(4)}
    assert not any(name in os.environ for name in ("SHEAVE_ROOT", "SHEAVE_RANK"))


SPAWNER = """
    import sys, time
    sys.path.insert(0, sys.argv[1])
    import sheave, test_spawn
    if __name__ == "__main__":
        sheave.spawn(test_spawn.note_and_sleep, 2, (sys.argv[2],))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "SIGKILL"])
def test_the_processes_end_with_their_parent(tmp_path, number):
    script = tmp_path / "script.py"
    script.write_text("import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n")
    with script.open("a") as file:
        file.write(textwrap.dedent(SPAWNER))
    notes = tmp_path / "notes"
    notes.mkdir()
    arguments = [sys.executable, str(script), os.path.dirname(__file__), str(notes)]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as parent:
        try:
            until = time.monotonic() + 30
            while len(list(notes.iterdir())) < 2 and parent.poll() is None and time.monotonic() < until:
                time.sleep(0.01)
            pids = [int(path.name) for path in notes.iterdir()]
            assert len(pids) == 2
            parent.send_signal(number)
            assert "KeyboardInterrupt" in parent.communicate(timeout=20)[1] or number == signal.SIGKILL
            assert none_runs(pids, 10)
        finally:
            parent.kill()


def test_processes_of_multiprocessing(tmp_path):
    """Ranks that a program starts with multiprocessing's spawn itself."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import multiprocessing, sys, sheave, numpy as np

            def work(rank, root, outbox):
                with sheave.Mesh(rank=rank, size=2, root=root, secret=b"only this test knows it") as mesh:
                    outbox.put(mesh.world.all_reduce(np.ones(3)).tolist())
                    mesh.barrier(20)

            if __name__ == "__main__":
                mesh = sheave.init()
                context = multiprocessing.get_context("spawn")
                outbox = context.Queue()
                ranks = [context.Process(target=work, args=(rank, sys.argv[1], outbox)) for rank in range(2)]
                for rank in ranks:
                    rank.start()
                print([outbox.get(timeout=30) for _ in ranks], [rank.join(30) or rank.exitcode for rank in ranks])
                mesh.finish()
        """)
    )
    from conftest import free_root

    ended = subprocess.run(
        [sys.executable, str(script), free_root()], capture_output=True, text=True, timeout=50
    )
    assert (ended.stdout.strip(), ended.stderr) == ("[[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]] [0, 0]", "")
