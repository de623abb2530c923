"""machin.parallel.distributed over sheave: worlds of real processes, with arrays of numpy and of torch."""

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import sheave
from conftest import free_root

# Several processes that import torch at once may take their time.
pytestmark = pytest.mark.timeout(150)

HEAD = """
import logging, os, pickle, signal, sys, time
import numpy as np
if os.environ["ARRAYS"] == "torch":
    import torch
import sheave
from machin.parallel.distributed import *

WITH_TORCH = "torch" in sys.modules
RANK, SIZE, PORT = int(os.environ["AT"]), int(os.environ["OF"]), os.environ["PORT"]

def full(shape, value, dtype="float32"):
    if WITH_TORCH:
        return torch.full(shape, value, dtype=getattr(torch, dtype))
    return np.full(shape, value, dtype)

def make_world(**settings):
    settings = {"name": str(RANK), "rank": RANK, "world_size": SIZE, "dist_timeout": 30, **settings}
    return World(dist_init_method=f"tcp://localhost:{PORT}", **settings)

def raises(kind, text, act):
    try:
        act()
    except kind as error:
        assert text in str(error), error
        assert isinstance(error, RuntimeError), error
        return error
    raise AssertionError(f"nothing of {text!r} was raised")
"""


@pytest.fixture(params=["numpy", "torch"])
def arrays(request):
    """Whose arrays a program uses."""
    if request.param == "torch" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    return request.param


class Job:
    """The processes of a world, each of which runs one program under the face."""

    def __init__(self, start, program, size, ranks, environment):
        port = free_root().split(":")[1]
        startup = os.path.join(os.path.dirname(sheave.__file__), "compat", "startup", "machin")
        environment = {
            "ARRAYS": "numpy",
            "OMP_NUM_THREADS": "1",
            "PORT": port,
            "OF": str(size),
            "PYTHONPATH": startup,
            **environment,
        }
        source = HEAD + textwrap.dedent(program)
        self.programs = [start(source, **{**environment, "AT": str(rank)}) for rank in ranks]

    def succeed(self):
        """All processes end silently and well. Returns what each has printed."""
        ended = [program.finish(100) for program in self.programs]
        failed = [(status, err) for status, _, err in ended if (status, err) != (0, "")]
        # Who only misses another process is not the first to look at.
        assert not failed, min((err for _, err in failed), key=lambda err: "PeerLost" in err)
        return [out for _, out, _ in ended]


@pytest.fixture
def job(start):
    """Start the processes of a world."""

    def launch(program, size=3, ranks=None, **environment):
        return Job(start, program, size, range(size) if ranks is None else ranks, environment)

    return launch


def test_a_world_knows_its_processes(job):
    job("""
        assert get_world() is None and not is_world_initialized()
        raises(RuntimeError, "Distributed environment not initialized!", get_cur_rank)
        raises(RuntimeError, "Distributed environment not initialized!", get_cur_name)
        world = make_world(name=f"process-{2 - RANK}")
        assert isinstance(world, World) and get_world() is world and is_world_initialized()
        assert (world.rank, world.world_size, world.name) == (RANK, 3, f"process-{2 - RANK}")
        assert (get_cur_rank(), get_cur_name()) == (RANK, world.name)
        assert world.rank_name_map == {0: "process-2", 1: "process-1", 2: "process-0"}
        assert world.get_ranks() == [0, 1, 2] and world.get_members() == ["process-0", "process-1", "process-2"]
        assert world.lut_manager == "process-2" and world.groups == {} and world.started
        raises(RuntimeError, "World could only be initialized once!", make_world)
        raises(RuntimeError, "World is not picklable, create it per process!", lambda: pickle.dumps(world))

        group = world.create_collective_group([2, 0], timeout=20)
        assert group.current_rank == {0: 0, 1: None, 2: 1}[RANK] and group.size() == (-1 if RANK == 1 else 2)
        raises(RuntimeError, "Group is not picklable, create it per process!", lambda: pickle.dumps(group))
        assert world.get_collective_group([0, 2]) is group and world.get_collective_group([0, 1]) is None
        group.destroy()
        group.destroy()
        assert group.destroyed and world.get_collective_group([0, 2]) is None
        raises(RuntimeError, "destroyed", group.barrier)

        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        debug_with_process("unseen")
        logging.getLogger("machin").setLevel(logging.DEBUG)
        debug_with_process("seen")
        world.stop()
        assert get_world() is None and not world.started
        raises(RuntimeError, "Cannot stop the world multiple times!", world.stop)
        print("over")
    """).succeed()


def test_messages_of_debug_say_who_and_where(job):
    (said,) = job(
        """
        world = make_world()
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        logging.getLogger("machin").setLevel(logging.DEBUG)
        debug_with_process("a message")
        world.stop()
        """,
        size=1,
    ).succeed()
    assert said.startswith("Process [0]: <<string>,L") and said.endswith("> a message\n")


def test_collectives(job, arrays):
    """As machin's own tests have it, and what these leave out: every operation, both ways, by ranks of the world."""
    job(
        """
        world = make_world()
        group = world.create_collective_group([1, 3, 2])
        member = RANK > 0
        place = RANK - 1
        for async_op in (False, True):
            def run(operation, *arguments, **keywords):
                result = operation(*arguments, **keywords, async_op=async_op)
                if not async_op:
                    assert result is None
                elif member:
                    assert result.wait() is True and result.is_completed() and result.is_success()
                    assert result.wait(5) is True and result.exception() is None
                else:
                    assert result.wait() == -1 and result.is_completed()

            tensor = full((2, 2), RANK)
            run(group.broadcast, tensor, 2)
            assert (tensor == (2 if member else 0)).all()
            tensor = full((2, 2), RANK)
            run(group.all_reduce, tensor)
            assert (tensor == (6 if member else 0)).all()
            tensor = full((5,), RANK)
            run(group.reduce, tensor, 3, "PRODUCT")
            if RANK in (0, 3):
                assert (tensor == (6 if RANK == 3 else 0)).all()
            outs = [full((2, 3), 9) for _ in range(3)]
            run(group.all_gather, outs, full((2, 3), RANK))
            assert [float(out.max()) for out in outs] == ([1, 2, 3] if member else [9] * 3)
            outs = [full((4,), 9) for _ in range(3)] if RANK == 1 else None
            run(group.gather, full((4,), RANK), outs, 1)
            if RANK == 1:
                assert [float(out.max()) for out in outs] == [1, 2, 3]
            tensor = full((4,), 9)
            run(group.scatter, tensor, [full((4,), 10 + at) for at in range(3)] if RANK == 3 else None, 3)
            assert (tensor == (10 + place if member else 9)).all()
            run(group.barrier)
        world.stop()
        """,
        size=4,
        ARRAYS=arrays,
    ).succeed()


def test_messages(job, arrays):
    job(
        """
        world = make_world()
        group = world.create_collective_group([0, 2, 3])
        if RANK == 1:
            assert group.recv(full((3,), 0)) == -1 and group.irecv(full((3,), 0)).wait() == -1
            assert group.send(full((3,), 0), 0) is None and group.isend(full((3,), 0), 2).is_completed()
        if RANK == 0:
            got = {}
            for _ in range(2):
                tensor = full((3,), 0)
                source = group.recv(tensor)
                got[source] = float(tensor[0])
            assert got == {2: 2, 3: 3}, got
            tensors = [full((3,), 0) for _ in range(2)]
            handles = [group.irecv(tensor, tag=1) for tensor in tensors]
            sources = [handle.wait() for handle in handles]
            assert sorted(sources) == [2, 3] and [float(tensor[0]) for tensor in tensors] == sources
            tensor = full((3,), 0)
            assert group.recv(tensor, 3, 2) == 3 and (tensor == 6).all()
            assert group.irecv(tensor, src=2, tag=2).wait() == 2 and (tensor == 4).all()
        if RANK in (2, 3):
            assert group.send(full((3,), RANK), 0) is None
            handle = group.isend(full((3,), RANK), 0, tag=1)
            assert handle.wait() is True and handle.is_completed()
            group.isend(full((3,), 2 * RANK), dst=0, tag=2).wait()
            words = "rank 1 is outside a group of ranks [0, 2, 3]"
            error = raises(ValueError, words, lambda: group.send(full((3,), 0), 1))
            assert "not a place in the group" in error.hint
        world.stop()
        """,
        size=4,
        ARRAYS=arrays,
    ).succeed()


def test_several_tensors_of_each_process(job, arrays):
    """On CPUs, where machin's need a GPU for each tensor. Results of all_gather go to k * inputs + j."""
    job(
        """
        world = make_world()
        group = world.create_collective_group([0, 1, 2])
        for async_op in (False, True):
            def run(operation, *arguments, **keywords):
                result = operation(*arguments, **keywords, async_op=async_op)
                assert result.wait() is True if async_op else result is None

            tensors = [full((3,), 10 * RANK + device) for device in range(2)]
            run(group.all_reduce_multigpu, tensors)
            assert all((tensor == 63).all() for tensor in tensors)
            tensors = [full((3,), 10 * RANK + device) for device in range(2)]
            run(group.broadcast_multigpu, tensors, 1, src_tensor=1)
            assert all((tensor == 11).all() for tensor in tensors)
            tensors = [full((3,), 10 * RANK + device) for device in range(2)]
            run(group.reduce_multigpu, tensors, 2, "MAX", dst_tensor=1)
            if RANK == 2:
                assert (tensors[0] == 20).all() and (tensors[1] == 21).all()
            inputs = [full((2, 2), 10 * RANK + device) for device in range(2)]
            outputs = [[full((2, 2), -1) for _ in range(6)] for _ in range(2)]
            run(group.all_gather_multigpu, outputs, inputs)
            for tensors in outputs:
                assert [int(tensor.max()) for tensor in tensors] == [0, 1, 10, 11, 20, 21]
                assert [int(tensor.min()) for tensor in tensors] == [0, 1, 10, 11, 20, 21]
        wrong = [full((2, 2), 0, "float64" if at == 4 else "float32") for at in range(6)]
        gather = lambda outputs: group.all_gather_multigpu(outputs, [full((2, 2), 0), full((2, 2), 0)])
        raises(ValueError, "tensor 4 of output_tensor_lists[1] is", lambda: gather([wrong[:4] + wrong[:2], wrong]))
        raises(ValueError, "output_tensor_lists[0] has 5 tensors; expected 6", lambda: gather([wrong[:5]]))
        raises(ValueError, "src_tensor is 2", lambda: group.broadcast_multigpu(wrong[:2], 0, src_tensor=2))
        group.barrier()
        world.stop()
        """,
        ARRAYS=arrays,
    ).succeed()


def test_reduce_operations_of_torch_and_by_name(job, arrays):
    job(
        """
        world = make_world()
        group = world.create_collective_group([0, 1])
        expected = {"SUM": 7, "PRODUCT": 12, "MIN": 3, "MAX": 4, "BAND": 0, "BOR": 7, "BXOR": 7}
        for name, value in expected.items():
            ops = [name, name.lower()]
            if WITH_TORCH:
                import torch.distributed
                of_torch = getattr(torch.distributed.ReduceOp, name)
                ops += [of_torch, torch.distributed.ReduceOp(of_torch)]
            for op in ops:
                tensor = full((2,), 3 + RANK, "int64")
                group.all_reduce(tensor, op)
                assert (tensor == value).all(), (op, tensor)
        tensor = full((2,), 3 + RANK)
        group.all_reduce(tensor, op="AVG")
        assert (tensor == 3.5).all()
        raises(ValueError, "there is no operation 3", lambda: group.all_reduce(tensor, 3))
        raises(ValueError, "there is no operation 'MEDIAN'", lambda: group.all_reduce(tensor, "MEDIAN"))
        if WITH_TORCH:
            tensor = torch.ones(3, requires_grad=True)
            group.all_reduce(tensor)
            assert tensor.tolist() == [2, 2, 2] and tensor.requires_grad
            half = torch.full((3,), 1.5 + RANK, dtype=torch.bfloat16)
            group.all_reduce(half)
            assert half.tolist() == [4, 4, 4]
        group.barrier()
        world.stop()
        """,
        size=2,
        ARRAYS=arrays,
    ).succeed()


def test_what_does_not_fit_is_refused_before_it_moves(job):
    job(
        """
        world = make_world()
        raises(ValueError, "ranks are [0, 2]", lambda: world.create_collective_group([0, 2]))
        raises(ValueError, "ranks are [1, 1]", lambda: world.create_collective_group([1, 1]))
        raises(ValueError, "ranks are []", lambda: world.create_collective_group([]))
        raises(ValueError, "no backend 'smoke'", lambda: world.create_collective_group([0], backend="smoke"))
        group = world.create_collective_group([0, 1], backend="gloo")
        other = 1 - RANK
        raises(ValueError, "gather_list is None", lambda: group.gather(full((2,), 0), None, RANK))
        raises(ValueError, "gather_list is given", lambda: group.gather(full((2,), 0), [full((2,), 0)] * 2, other))
        raises(ValueError, "scatter_list is None", lambda: group.scatter(full((2,), 0), None, RANK))
        raises(ValueError, "scatter_list is given", lambda: group.scatter(full((2,), 0), [full((2,), 0)] * 2, other))
        lists = [full((2,), 0), full((3,), 0)]
        raises(ValueError, "input 1 has 3 elements; expected 2", lambda: group.scatter(full((2,), 0), lists, RANK))
        raises(ValueError, "a list of 1 outputs", lambda: group.all_gather([full((2,), 0)], full((2,), 0)))
        raises(ValueError, "output 0 is f64", lambda: group.all_gather([full((2,), 0, "float64")] * 2, full((2,), 0)))
        raises(ValueError, "rank 2 is outside", lambda: group.broadcast(full((2,), 0), 2))
        raises(sheave.Unsupported, "str", lambda: group.broadcast("text", 0))
        # Nobody has entered anything.
        group.barrier()
        error = raises(sheave.Mismatch, "makes a group of ranks", lambda: world.create_collective_group([RANK]))
        assert "[0]" in str(error) and "[1]" in str(error)
        world.create_collective_group([0, 1]).barrier()
        world.stop()
        """,
        size=2,
    ).succeed()


def test_a_world_may_be_made_again(job):
    """In one process, with other names and ranks, and without a trace of the one before."""
    job("""
        for turn in range(3):
            rank = (RANK + turn) % SIZE
            world = make_world(name=f"{turn}-{rank}", rank=rank, init_rpc=bool(turn % 2))
            assert get_cur_rank() == rank and world.get_members() == [f"{turn}-{other}" for other in range(SIZE)]
            group = world.create_collective_group(range(SIZE))
            tensor = full((1000,), rank)
            group.all_reduce(tensor)
            assert (tensor == 3).all()
            world.stop()
            raises(RuntimeError, "has stopped", lambda: world.create_collective_group([0]))
        world = make_world(init_dist=False, rpc_init_method=f"tcp://127.0.0.1:{PORT}")
        raises(RuntimeError, "init_dist=False", lambda: world.create_collective_group([0]))
        world.stop()
    """).succeed()


def test_a_program_that_ends_without_stop_ends_silently(job):
    said = job("""
        world = make_world()
        group = world.create_collective_group([0, 1, 2])
        handle = group.all_reduce(full((10,), RANK), async_op=True)
        handle.wait()
        group.barrier()
        print("over")
    """).succeed()
    assert said == ["over\n"] * 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("rank=3, world_size=3", "rank 3 is outside a world of 3"),
        ("rank=-2, world_size=3", "rank -2 is outside a world of 3"),
        ("", "no launcher has set them"),
        ("rank=1", "no launcher has set them"),
        ("rank=0, world_size=1, dist_backend='smoke'", "no backend 'smoke'"),
        ("rank=0, world_size=1, dist_init_method='file:///tmp/x'", "the init method is 'file:///tmp/x'"),
        ("rank=0, world_size=1, dist_init_method='tcp://localhost'", "the init method is 'tcp://localhost'"),
    ],
)
def test_a_world_that_makes_no_sense_is_refused(start, settings, words):
    program = start(
        f"""
        from sheave.compat.machin.parallel.distributed import World, get_world
        try:
            World("me", {settings})
        except ValueError as error:
            assert isinstance(error, RuntimeError) and {words!r} in str(error), error
        else:
            raise AssertionError("it was made")
        # It was as if nothing had been asked for.
        assert get_world() is None
        world = World("me", rank=0, world_size=1, dist_init_method="tcp://localhost:{free_root().split(":")[1]}")
        world.stop()
        """
    )
    program.succeed()


def test_a_missing_process_is_named(job):
    job(
        """
        begun = time.monotonic()
        words = "missing: 1 of 3 ranks (rank 1); joined: 0 from"
        error = raises(sheave.DeadlineExceeded, words, lambda: make_world(dist_timeout=2))
        assert 1.5 < time.monotonic() - begun < 10 and isinstance(error, TimeoutError), error
        """,
        ranks=[0, 2],
    ).succeed()


def test_two_processes_of_one_rank_are_refused(job):
    """Whoever comes second is told; the other one waits for the missing one."""
    first = job(
        "error = raises(sheave.SheaveError, 'rank', lambda: make_world(name=str(os.getpid()), dist_timeout=3))",
        ranks=[0, 1, 1],
    )
    first.succeed()


def test_a_group_waits_for_all_and_says_who_is_missing(job):
    job("""
        world = make_world(dist_timeout=20)
        whole = world.create_collective_group([0, 1, 2])
        if RANK != 1:
            # Whose deadline is later by a moment learns it from the other one.
            kinds = (sheave.DeadlineExceeded, sheave.Cancelled)
            error = raises(kinds, "not entered: rank 1", lambda: world.create_collective_group([0], timeout=1))
            assert 0.5 < error.elapsed < 5, error.elapsed
        whole.barrier()
        if RANK != 1:
            raises(sheave.DeadlineExceeded, "waiting for 1 to enter", lambda: world.stop(timeout=1))
            try:
                world.stop(timeout=-1)
            except ValueError:
                pass
            assert world.started and get_world() is world
        whole.barrier()
        world.stop()
    """).succeed()


def test_operations_have_the_deadline_of_their_group(job):
    job(
        """
        world = make_world()
        groups = [world.create_collective_group([0, 1], timeout=1) for _ in range(3)]
        whole = world.create_collective_group([0, 1])
        if RANK == 0:
            for start in (
                lambda: groups[0].all_reduce(full((3,), 0)),
                lambda: groups[1].all_reduce(full((3,), 0), async_op=True).wait(),
                lambda: groups[2].recv(full((3,), 0), 1),
                lambda: groups[2].irecv(full((3,), 0), 1).wait(),
            ):
                begun = time.monotonic()
                error = raises(sheave.DeadlineExceeded, "rank 1", start)
                assert 0.5 < time.monotonic() - begun < 5
            handle = groups[2].irecv(full((3,), 0))
            raises(sheave.DeadlineExceeded, "", lambda: handle.wait(0.05))
            assert not handle.is_completed()
            raises(sheave.DeadlineExceeded, "", handle.wait)
            assert handle.is_completed() and not handle.is_success()
            assert isinstance(handle.exception(), (RuntimeError, TimeoutError))
        whole.barrier()
        world.stop()
        """,
        size=2,
    ).succeed()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_killed_process_is_named_in_the_middle_of_an_all_reduce(job, transport):
    """Within about a second, and World can be stopped and made again after that."""
    killed = job(
        """
        world = make_world()
        group = world.create_collective_group([0, 1, 2])
        tensor = full((200_000,), 1)
        for turn in range(5):
            group.all_reduce(tensor)
        print("under way", flush=True)
        try:
            while True:
                group.all_reduce(tensor)
        except RuntimeError as error:
            assert isinstance(error, sheave.PeerLost) and error.peer.rank == 1 and error.peer.name == "1", error
            print("lost", flush=True)
        error = raises(sheave.PeerLost, "all_reduce", lambda: group.all_reduce(tensor, async_op=True).wait())
        error = raises(sheave.PeerLost, "1", world.stop)
        assert get_world() is None
        world = World("alone", 0, 1, dist_init_method=sys.stdin.readline().strip())
        world.stop()
        """,
        SHEAVE_TRANSPORT=transport,
    )
    for program in killed.programs:
        assert program.line() == "under way"
    os.kill(killed.programs[1].pid, signal.SIGKILL)
    begun = time.monotonic()
    survivors = [killed.programs[0], killed.programs[2]]
    for program in survivors:
        assert program.line() == "lost"
        # The bound is a second; the machine may be busy.
        assert time.monotonic() - begun < 4
    for program in survivors:
        program.tell(f"tcp://localhost:{free_root().split(':')[1]}")
        program.succeed()


def test_ranks_of_a_launcher(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import os, sys
        import numpy as np
        from machin.parallel.distributed import World
        import machin.parallel.distributed as distributed
        assert sys.modules["machin"] is sys.modules["sheave.compat.machin"]
        world = World(name=f"process-{os.getpid()}")
        assert world.world_size == 3 and world.name == f"process-{os.getpid()}"
        group = world.create_collective_group([0, 1, 2])
        tensor = np.array([world.rank])
        group.all_reduce(tensor)
        assert tensor[0] == 3, tensor
        world.stop()
        print("rank", distributed.get_world())
        """)
    )
    command = [sys.executable, "-m", "sheave", "launch", "-n", "3", "--"]
    command += [sys.executable, "-m", "sheave.compat", "machin", str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("rank None") == 3


def test_ranks_of_torchrun(start):
    """Its variables are enough: the world meets beside torch's own store, whose port stays free."""
    port = free_root().split(":")[1]
    source = """
        import os
        from sheave.compat.machin.parallel.distributed import World
        world = World(name="process-" + os.environ["RANK"])
        assert world.rank_name_map == {0: "process-0", 1: "process-1"} and world.rank == int(os.environ["RANK"])
        world.create_collective_group([0, 1]).barrier()
        world.stop()
        try:
            World("again-" + os.environ["RANK"], rank=5)
        except ValueError as error:
            assert "rank is 5, and " in str(error) and isinstance(error, RuntimeError), error
        else:
            raise AssertionError("it is another rank")
    """
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    programs = [start(source, RANK=str(rank), LOCAL_RANK=str(rank), **place) for rank in range(2)]
    for program in programs:
        program.succeed(60)


def test_spawned_processes_may_make_a_world():
    # By value, since the modules of tests give each process a secret of its own.
    def member(port):
        import os

        from sheave.compat.machin.parallel.distributed import World

        rank = int(os.environ["SHEAVE_RANK"])
        world = World(str(rank), rank, 2, dist_init_method=f"tcp://localhost:{port}")
        members = world.get_members()
        world.stop()
        return members

    assert sheave.spawn(member, 2, (free_root().split(":")[1],), timeout=60) == [["0", "1"]] * 2
