"""Meshes of real processes: joining, ends, deaths, deadlines, strangers, Ctrl-C, fork and exit."""

import os
import re
import signal
import threading
import time

import numpy as np
import pytest
import sheave
from conftest import free_root, together


def rank(start, source, number, size, root, **environment):
    """A program that is one rank of a job of its own."""
    place = {"SHEAVE_RANK": str(number), "SHEAVE_WORLD_SIZE": str(size), "SHEAVE_ROOT": root}
    return start(source, **place, **environment)


def join(number, size, root, **settings):
    return sheave.Mesh(rank=number, size=size, root=root, join_timeout=20, **settings)


def within(seconds):
    """Polls until the deadline."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield
        time.sleep(0.005)
    pytest.fail(f"it did not happen within {seconds} s")


PARTNER = """
    import sys, numpy as np, sheave
    # A shell starts what it puts in the background with this signal ignored.
    import signal; signal.signal(signal.SIGINT, signal.default_int_handler)
    mesh = sheave.init()
    print("joined", flush=True)
    for line in sys.stdin:
        exec(line)
        print("ok", flush=True)
"""


class Partner:
    """The other rank of a job of two, which does what it is told."""

    def __init__(self, start, **environment):
        self.root = free_root()
        self.program = rank(start, PARTNER, 1, 2, self.root, **environment)

    def tell(self, line):
        self.program.tell(line)

    def do(self, line):
        self.tell(line)
        assert self.program.line() == "ok"


@pytest.fixture
def partner(start):
    partner = Partner(start)
    with join(0, 2, partner.root) as mesh:
        partner.mesh = mesh
        assert partner.program.line() == "joined"
        yield partner


def test_a_process_that_nobody_launched_is_a_job_of_its_own():
    with sheave.Mesh() as mesh:
        assert (mesh.rank, mesh.size, mesh.role, mesh.name, mesh.closed) == (0, 1, "rank", "rank-0", False)
        assert mesh.members[0].pid == os.getpid() and mesh.identity.pid == os.getpid()
        assert mesh.world.all_gather(np.ones(2)).tolist() == [[1, 1]]
        mesh.barrier()
    assert mesh.closed and "left" in repr(mesh)
    for attempt in (mesh.barrier, lambda: mesh.world, lambda: mesh.group([0]), mesh.until_gone, lambda: mesh.empty(3)):
        with pytest.raises(sheave.Closed):
            attempt()
    mesh.close()
    mesh.leave()


def test_what_was_known_when_a_mesh_was_left_stays_known(partner):
    def facts():
        deaths = [(death.member, death.left, death.epoch, death.reason) for death in mesh.deaths()]
        who = (mesh.rank, mesh.role_rank, mesh.size, mesh.role, mesh.name, mesh.members, mesh.identity)
        return (*who, mesh.epoch, deaths)

    mesh, world = partner.mesh, partner.mesh.world
    os.kill(partner.program.pid, signal.SIGKILL)
    with pytest.raises(sheave.PeerLost):
        world.barrier()
    before = facts()
    mesh.leave()
    assert mesh.closed and facts() == before
    (member, left, epoch, _), rank = before[-1][0], partner.program.pid
    assert (member.rank, member.pid, left, epoch) == (1, rank, False, before[-2]) and epoch > 0
    assert before[:5] == (0, 0, 2, "rank", "rank-0") and "rank-0" in repr(mesh) and "left" in repr(mesh)
    assert (world.rank, world.size, world.label) == (0, 2, "world")
    with pytest.raises(sheave.SheaveError):
        world.barrier()


def test_a_job_finds_itself_by_the_environment(partner):
    mesh = partner.mesh
    assert [member.name for member in mesh.members] == ["rank-0", "rank-1"]
    assert mesh.members[1].pid == partner.program.pid
    partner.tell("sheave.all_reduce(np.full(4, 2.0), timeout=20)")
    assert mesh.world.all_reduce(np.ones(4), timeout=20).tolist() == [3] * 4
    assert partner.program.line() == "ok"
    partner.tell("mesh.finish(); assert mesh.closed; sys.exit()")
    mesh.finish(timeout=20)
    assert mesh.closed
    partner.program.succeed()


@pytest.mark.parametrize(
    ("launcher", "variables"),
    [
        ("torchrun", "RANK WORLD_SIZE MASTER_ADDR MASTER_PORT"),
        ("mpirun", "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE SHEAVE_ROOT"),
    ],
)
def test_the_environment_of_other_launchers(start, launcher, variables):
    program = """
        import sheave
        with sheave.init() as mesh:
            print(mesh.rank, mesh.size)
            mesh.barrier(timeout=20)
    """
    root = free_root()
    host, port = root.split(":")
    values = {"MASTER_ADDR": host, "MASTER_PORT": str(min(int(port), 55000) + 9000), "SHEAVE_ROOT": root}
    for name in variables.split():
        if name.endswith("SIZE"):
            values[name] = "2"
    programs = []
    for number in range(2):
        ranks = {name: str(number) for name in variables.split() if name.endswith("RANK")}
        place = {name: value for name, value in {**values, **ranks}.items() if name in variables}
        programs.append(start(program, **place))
    assert sorted(program.succeed().strip() for program in programs) == ["0 2", "1 2"], launcher


@pytest.mark.parametrize("name", ["JOB_COMPLETION_INDEX", "PMIX_RANK"])
def test_a_process_of_unknown_many_is_not_silently_alone(start, name):
    program = """
        import os, sheave
        try:
            sheave.init()
        except sheave.InvalidArgument as error:
            print(error)
        os.environ["SHEAVE_WORLD_SIZE"] = "1"
        with sheave.init() as mesh:
            print(mesh.size)
    """
    refused, alone = start(program, **{name: "2"}).succeed().splitlines()
    assert f'{name} is "2"' in refused and "SHEAVE_WORLD_SIZE" in refused
    assert alone == "1"


def test_bad_arguments():
    for arguments, words in [
        ({"rank": 5, "size": 2, "root": "127.0.0.1:7000"}, "5"),
        ({"rank": 0, "size": 2}, "SHEAVE_ROOT"),
        ({"rank": 0, "size": 2, "root": "nowhere"}, "nowhere"),
        ({"role": "pilot"}, "pilot"),
        ({"transport": "pigeon"}, "pigeon"),
        ({"join_timeout": 0}, "join timeout"),
        ({"secret": "short"}, "secret"),
    ]:
        with pytest.raises(sheave.InvalidArgument, match=words):
            sheave.Mesh(**arguments)
    with pytest.raises(TypeError):
        sheave.Mesh(speed="fast")
    with pytest.raises(sheave.NotFound, match="init"):
        sheave.all_reduce(np.zeros(3))


def test_the_default_mesh():
    with pytest.raises(sheave.NotFound):
        sheave.default_mesh()
    for _ in range(2):
        with sheave.init() as mesh:
            assert sheave.default_mesh() is mesh and sheave.init() is mesh
            with pytest.raises(sheave.AlreadyExists):
                sheave.init(name="another")
            assert sheave.empty((2, 3), "int32").shape == (2, 3)
            assert sheave.all_reduce(np.ones(2)).tolist() == [1, 1]
            group = mesh.group([0], "alone")
            assert sheave.all_reduce(np.ones(2), group=group, async_op=True).wait(10).tolist() == [1, 1]


def test_meshes_side_by_side():
    def act(mesh):
        root = mesh.world.broadcast(np.frombuffer(free_root().encode().ljust(32), np.uint8).copy())
        with join(1 - mesh.rank, 2, bytes(root).decode().strip()) as other:
            for round_trip in range(10):
                assert mesh.world.all_reduce(np.array([round_trip])).tolist() == [2 * round_trip]
                assert other.world.all_reduce(np.array([1])).tolist() == [2]
            assert other.rank == 1 - mesh.rank
            other.barrier(20)
        assert mesh.world.all_reduce(np.array([1])).tolist() == [2]

    for _ in range(2):
        together(act, 2)


def test_a_killed_member_is_named_within_a_second(partner):
    mesh = partner.mesh
    partner.tell("mesh.world.barrier()")
    mesh.world.barrier()
    assert partner.program.line() == "ok"
    work = mesh.world.all_reduce(np.zeros(3), async_op=True)
    caught = []

    def wait():
        try:
            mesh.world.recv(np.zeros(3), 1)
        except sheave.SheaveError as error:
            caught.append((time.monotonic(), error))

    waiter = threading.Thread(target=wait)
    waiter.start()
    os.kill(partner.program.pid, signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(sheave.PeerLost, match="rank-1"):
        work.wait(20)
    waiter.join(20)
    ended, error = caught[0]
    assert ended - killed < 1.0
    assert (error.peer.name, error.peer.rank, error.peer.pid) == ("rank-1", 1, partner.program.pid)
    assert (error.op, error.group) == ("recv", "world") and isinstance(error, ConnectionError)
    with pytest.raises(sheave.PeerLost):
        mesh.world.barrier()
    assert isinstance(mesh.world.broken, sheave.PeerLost) and mesh.epoch > 0
    (death,) = mesh.deaths()
    assert (death.member.rank, death.left) == (1, False)
    survivors = mesh.world.shrink()
    assert survivors.size == 1 and survivors.all_reduce(np.ones(2)).tolist() == [1, 1]


def test_a_deadline_says_who_is_missing(partner):
    begun = time.monotonic()
    with pytest.raises(sheave.DeadlineExceeded, match="rank-1") as caught:
        partner.mesh.world.all_reduce(np.zeros(3), timeout=0.3)
    assert isinstance(caught.value, TimeoutError) and time.monotonic() - begun < 5
    assert (caught.value.op, caught.value.group, caught.value.seq) == ("all_reduce", "world", 0)
    assert caught.value.elapsed >= 0.3 and caught.value.hint
    # The group is broken, a message is another matter: it ends alone.
    group = partner.mesh.group([0, 1], "messages")
    with pytest.raises(sheave.DeadlineExceeded):
        group.recv(np.zeros(3), timeout=0.05)
    partner.do('mesh.group([0, 1], "messages").send(np.ones(3), 0, timeout=20)')
    assert group.recv(np.zeros(3), timeout=20) == 1


def test_a_mismatch_shows_both_sides(partner):
    partner.tell("mesh.world.all_reduce(np.zeros(5, 'float32'), timeout=20)")
    with pytest.raises(sheave.Mismatch) as caught:
        partner.mesh.world.all_reduce(np.zeros(3), timeout=20)
    assert isinstance(caught.value, ValueError)
    assert "f64[3]" in str(caught.value) and "f32[5]" in str(caught.value)
    assert "Mismatch" in partner.program.finish()[2]


def test_a_stranger_is_not_let_in(start):
    program = """
        import sheave
        try:
            sheave.init(join_timeout=20)
        except sheave.Unauthenticated as error:
            print(isinstance(error, PermissionError), "secret" in str(error))
    """
    root = free_root()
    stranger = rank(start, program, 1, 2, root, SHEAVE_SECRET="another secret, long enough to be one")
    with pytest.raises(sheave.DeadlineExceeded, match="rank-1|1 rank"):
        sheave.Mesh(rank=0, size=2, root=root, join_timeout=3)
    assert stranger.succeed().strip() == "True True"


def test_a_secret_given_in_the_program(start):
    root = free_root()
    secret = os.urandom(16).hex()
    program = f'import sheave; print(sheave.init(secret="{secret}", join_timeout=20).size)'
    other = rank(start, program, 1, 2, root)
    with join(0, 2, root, secret=secret.encode()) as mesh:
        assert mesh.size == 2
        assert other.succeed().strip() == "2"


WAITS = {
    "all_reduce": "mesh.world.all_reduce(np.zeros(3))",
    "work": "mesh.world.all_reduce(np.zeros(3), async_op=True).wait()",
    "recv": "mesh.world.recv(np.zeros(3), 0)",
    "barrier": "mesh.barrier()",
    "group barrier": "mesh.world.barrier()",
    "finish": "mesh.finish()",
    "until_gone": "mesh.until_gone()",
    "split": "mesh.world.split(0)",
    "send": "mesh.world.send(np.zeros(1 << 20), 0)",
}


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_wait(start, wait):
    program = f"""
        import signal, sys, time, numpy as np, sheave
        # A shell starts what it puts in the background with this signal ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        mesh = sheave.init()
        print("blocks", flush=True)
        try:
            {WAITS[wait]}
        except KeyboardInterrupt:
            print(time.monotonic(), flush=True)
        group = mesh.group([0, 1], "usable")
        print(group.all_reduce(np.array([1]), timeout=20)[0], flush=True)
        sys.stdin.readline()
    """
    root = free_root()
    child = rank(start, program, 1, 2, root)
    with join(0, 2, root) as mesh:
        assert child.line() == "blocks"
        for _ in within(10):
            with open(f"/proc/{child.pid}/syscall") as syscall:
                if "running" not in syscall.read():
                    break
        interrupted = time.monotonic()
        os.kill(child.pid, signal.SIGINT)
        assert float(child.line()) - interrupted < 1.0
        assert mesh.group([0, 1], "usable").all_reduce(np.array([2]), timeout=20).tolist() == [3]
        assert child.line() == "3"
        child.tell()
        child.succeed()


def test_ctrl_c_ends_a_join(start):
    program = """
        import signal, sheave, time
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("joins", flush=True)
        try:
            sheave.init()
        except KeyboardInterrupt:
            print(time.monotonic(), flush=True)
        with sheave.Mesh(rank=0, size=1) as mesh:
            print(mesh.size, flush=True)
    """
    child = rank(start, program, 0, 2, free_root())
    child.line()
    for _ in within(10):
        with open(f"/proc/{child.pid}/syscall") as syscall:
            if "running" not in syscall.read():
                break
    interrupted = time.monotonic()
    os.kill(child.pid, signal.SIGINT)
    assert float(child.line()) - interrupted < 1.0
    assert child.line() == "1"
    child.succeed()


def test_an_interrupted_cell_leaves_a_usable_mesh(partner):
    """As in a notebook: the operation that Ctrl-C left goes on, and all stay in step."""
    mesh, array = partner.mesh, np.ones(3)
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        mesh.world.all_reduce(array)
    timer.join()
    partner.do("mesh.world.all_reduce(np.ones(3), timeout=20)")
    for _ in within(10):
        if (array == 2).all():
            break
    partner.tell("mesh.world.all_reduce(np.full(3, 5.0), timeout=20)")
    assert mesh.world.all_reduce(np.ones(3), timeout=20).tolist() == [6] * 3


def test_a_receive_that_ctrl_c_ends_loses_no_message(partner):
    mesh = partner.mesh
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        mesh.world.recv(np.zeros(3), 1, 5)
    timer.join()
    partner.do("mesh.world.send(np.ones(3), 0, tag=5, timeout=20)")
    array = np.zeros(3)
    assert mesh.world.recv(array, 1, 5, timeout=20) == 1 and array.tolist() == [1] * 3


def test_a_finish_can_be_tried_again(partner):
    mesh = partner.mesh
    for _ in range(2):
        with pytest.raises(sheave.DeadlineExceeded, match="end"):
            mesh.finish(timeout=0.1)
    assert not mesh.closed
    partner.tell("mesh.world.all_reduce(np.ones(3), timeout=20)")
    assert mesh.world.all_reduce(np.ones(3), timeout=20).tolist() == [2] * 3
    assert partner.program.line() == "ok"
    partner.tell("mesh.finish(timeout=20); sys.exit()")
    mesh.finish(timeout=20)
    partner.program.succeed()


def test_an_exception_inside_with_is_a_death(partner):
    partner.tell("with mesh: raise RuntimeError('on purpose')")
    with pytest.raises(sheave.PeerLost, match="rank-1"):
        partner.mesh.world.all_reduce(np.zeros(3), timeout=20)
    for _ in within(10):
        if partner.mesh.deaths():
            break
    assert [death.left for death in partner.mesh.deaths()] == [False]


def test_a_wait_lets_other_threads_run(partner):
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.wait(0.005):
            ticks.append(time.monotonic())

    ticker = threading.Thread(target=tick)
    ticker.start()
    group = partner.mesh.group([0, 1], "slow")
    with pytest.raises(sheave.DeadlineExceeded):
        group.all_reduce(np.zeros(3), timeout=1.5)
    with pytest.raises(sheave.DeadlineExceeded):
        partner.mesh.group([0, 1], "late").barrier(async_op=True).wait(1.5)
    stop.set()
    ticker.join()
    assert len(ticks) > 20
    assert max(after - before for before, after in zip(ticks, ticks[1:])) < 1.0


def test_a_forked_child_is_refused_and_ends_silently(start):
    program = """
        import os, sys, numpy as np, sheave
        mesh = sheave.init()
        world, work = mesh.world, mesh.world.irecv(np.zeros(3), 0)
        child = os.fork()
        if child == 0:
            attempts = [lambda: world.all_reduce(np.zeros(3)), lambda: mesh.barrier(), lambda: work.wait(1),
                        lambda: mesh.rank, lambda: mesh.empty(3), lambda: world.send(np.zeros(3), 0), mesh.finish,
                        lambda: work.add_done_callback(print), lambda: mesh.group([0, 1]), lambda: world.broken]
            for number, attempt in enumerate(attempts):
                try:
                    attempt()
                except sheave.Forked as error:
                    assert "spawn" in error.hint
                else:
                    os._exit(10 + number)
            mesh.close()
            try:
                sheave.Mesh(rank=0, size=1)
            except sheave.Forked as error:
                assert "spawn" in error.hint
            else:
                os._exit(9)
            del mesh, world, work
            sys.exit(0)
        print(os.waitpid(child, 0)[1])
        assert sheave.all_reduce(np.ones(2), timeout=20).tolist() == [2, 2]
        sheave.default_mesh().finish(timeout=20)
    """
    root = free_root()
    child = rank(start, program, 1, 2, root)
    with join(0, 2, root) as mesh:
        assert child.line() == "0", child.finish()
        mesh.world.all_reduce(np.ones(2), timeout=20)
        mesh.finish(timeout=20)
        child.succeed()


@pytest.mark.parametrize(
    "pending",
    [
        "mesh.world.all_reduce(np.zeros(3), async_op=True)",
        "thread(lambda: mesh.world.all_reduce(np.zeros(3)))",
        "thread(mesh.barrier)",
        "mesh.world.irecv(np.zeros(3)).add_done_callback(print)",
        "thread(lambda: asyncio.run(awaited(mesh.world.irecv(np.zeros(3)))))",
    ],
)
def test_exit_with_operations_in_flight(start, pending):
    program = f"""
        import asyncio, sys, threading, time, numpy as np, sheave

        def thread(wait):
            threading.Thread(target=wait, daemon=True).start()

        async def awaited(work):
            return await work

        threading.excepthook = lambda arguments: None
        mesh = sheave.init()
        works = [{pending}, mesh.world.isend(np.zeros(1 << 20), 0, tag=4)]
        print(time.monotonic(), flush=True)
    """
    root = free_root()
    child = rank(start, program, 1, 2, root)
    with join(0, 2, root) as mesh:
        left = float(child.line())
        child.succeed()
        assert time.monotonic() - left < 5
        with pytest.raises(sheave.PeerLost, match="left"):
            mesh.world.recv(np.zeros(3), 1, timeout=10)
        assert [death.left for death in mesh.deaths()] == [True]


@pytest.mark.parametrize("below", ["mesh.world.all_reduce(Slow())", "Loop().run_until_complete(awaited())"])
def test_exit_while_python_code_runs_below_a_call(start, below):
    """A thread that comes back to an interpreter that has ended is killed there, and our frames end the process."""
    program = f"""
        import asyncio, threading, time, numpy as np, sheave

        mesh, entered = sheave.init(), threading.Event()

        def pause():
            entered.set()
            until = time.monotonic() + 0.2
            while time.monotonic() < until:
                pass

        class Slow:
            array = np.zeros(3)

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

            def __dlpack__(self, **terms):
                pause()
                return self.array.__dlpack__(**terms)

        class Loop(asyncio.SelectorEventLoop):
            is_slow = False

            def create_future(self):
                if self.is_slow:
                    pause()
                return super().create_future()

        async def awaited():
            Loop.is_slow = True
            await mesh.world.irecv(np.zeros(3))

        def run():
            {below}

        threading.excepthook = lambda arguments: None
        threading.Thread(target=run, daemon=True).start()
        entered.wait()
    """
    rank(start, program, 0, 1, free_root()).succeed()


def test_who_ends_by_an_exception_is_found_dead(start):
    root = free_root()
    child = rank(start, "import sheave; mesh = sheave.init(); raise RuntimeError('on purpose')", 1, 2, root)
    with join(0, 2, root) as mesh:
        with pytest.raises(sheave.PeerLost, match="rank-1"):
            mesh.world.all_reduce(np.zeros(3), timeout=20)
        for _ in within(10):
            if mesh.deaths():
                break
        assert [death.left for death in mesh.deaths()] == [False]
        assert "on purpose" in child.finish()[2]


def test_servers_and_workers_have_groups_of_their_own(start):
    program = """
        import sheave, numpy as np
        with sheave.init() as mesh:
            if mesh.role == "scheduler":
                mesh.until_gone()
            else:
                group = mesh.role_group()
                total = group.all_reduce(np.ones(1), timeout=20)[0]
                print(mesh.role, mesh.role_rank, mesh.rank, mesh.size, mesh.world.rank, mesh.world.size, total)
                group.barrier()
    """
    root = free_root()
    common = {"SHEAVE_WORKERS": "2", "SHEAVE_SERVERS": "1", "SHEAVE_ROOT": root}
    places = [("scheduler", None), ("server", "0"), ("worker", "0"), ("worker", "1")]
    programs = [
        start(program, **common, SHEAVE_ROLE=role, **({"SHEAVE_RANK": number} if number else {}))
        for role, number in places
    ]
    said = sorted(line for one in programs for line in one.succeed().splitlines())
    assert said == ["server 0 0 1 1 4 1.0", "worker 0 0 2 2 4 2.0", "worker 1 1 2 3 4 2.0"]


FAILURES = {
    "exits with a status": ("sys.exit(3)", 3, "rank-1 failed: its program ended with exit status 3"),
    "exits with a status after a callback": (
        "mesh.group([1], 'own').barrier(async_op=True).add_done_callback(print); sys.exit(3)",
        3,
        "rank-1 failed: its program ended with exit status 3",
    ),
    "exits with a text": ("sys.exit('the disk is full')", 1, "rank-1 failed: its program ended with exit status 1"),
    "raises": ("raise ValueError('no')", 1, "rank-1 failed: an exception that nobody caught ended its program"),
    "aborts": ("os.abort()", -signal.SIGABRT, "rank-1 looks dead: "),
    "is gone at once": ("os._exit(0)", 0, "rank-1 looks dead: "),
    "drops its mesh": (
        "del mesh; gc.collect(); sys.stdin.readline()",
        0,
        "rank-1 failed: its mesh was dropped without `leave` or `finish`",
    ),
    "exits inside of a block": ("with mesh: sys.exit(3)", 3, "rank-1 failed: SystemExit: 3"),
}


@pytest.mark.parametrize("how", FAILURES)
def test_f66_whatever_does_not_leave_in_order_has_failed(start, how):
    act, status, words = FAILURES[how]
    root = free_root()
    program = "import gc, os, sys, sheave\nmesh = sheave.Mesh(rank={}, size=2, root={!r})\n"
    child = start(program.format(1, root) + "mesh.barrier(timeout=20)\n" + act)
    with join(0, 2, root) as mesh:
        mesh.barrier(timeout=20)
        with pytest.raises(sheave.PeerLost, match=re.escape(words)) as caught:
            mesh.barrier(timeout=20)
        assert caught.value.peer.name == "rank-1"
        assert [(death.member.name, death.left) for death in mesh.deaths()] == [("rank-1", False)]
        if "readline" in act:
            child.tell()
        assert child.finish()[0] == status


@pytest.mark.parametrize("act", ["", "sys.exit(0)", "sys.exit()", "with mesh: sys.exit(0)"])
def test_f66_a_program_that_ends_well_has_left(start, act):
    root = free_root()
    program = f"import sys, sheave\nmesh = sheave.Mesh(rank=1, size=2, root={root!r})\nmesh.barrier(timeout=20)\n{act}"
    child = start(program)
    with join(0, 2, root) as mesh:
        mesh.barrier(timeout=20)
        mesh.until_gone()
        assert [(death.member.name, death.left) for death in mesh.deaths()] == [("rank-1", True)]
        child.succeed()


@pytest.mark.parametrize("leave", ["leave", "close", "__exit__"])
def test_ctrl_c_ends_the_wait_of_who_leaves(start, leave):
    """The first member, who is to agree, is stopped, and would be waited for as long as silence is allowed."""
    root = free_root()
    first = rank(start, PARTNER, 0, 2, root, SHEAVE_LIVENESS_TIMEOUT_MS="60000")
    with join(1, 2, root, liveness_timeout=60) as mesh:
        assert first.line() == "joined"
        first.stop()

        def interrupt():
            # It is left as soon as the call has begun, which is long before it ends.
            for _ in within(20):
                if mesh.closed:
                    os.kill(os.getpid(), signal.SIGINT)
                    return

        thread = threading.Thread(target=interrupt)
        thread.start()
        before = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            mesh.__exit__(None, None, None) if leave == "__exit__" else getattr(mesh, leave)()
        assert time.monotonic() - before < 10
        thread.join()
        assert mesh.closed
        os.kill(first.pid, signal.SIGCONT)
        first.tell("mesh.leave()")
        assert first.line() == "ok"
