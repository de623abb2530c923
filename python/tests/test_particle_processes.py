"""Particles of several processes, and what ends programs: kills, Ctrl-C, the end of the interpreter."""

import asyncio
import os
import signal
import threading
import time

import numpy as np
import pytest
import sheave
from conftest import free_root, in_a_wait, together
from sheave.particle import DeadlockError, ParticleId, Particles, wait_all
from test_particle import LIMIT_S, Line, Odd, chain, raise_odd, squares, until

# A member with particles: rank 1 of two, which goes on until it is told to end.
PEER = """
import os, sys, threading, time
import numpy as np, sheave
from sheave.particle import ParticleId, Particles

class Strange(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")

def fail(particle, kind="own"):
    if kind == "own":
        raise Strange(1, 2)
    if kind == "unknown":
        raise sheave.NotFound("nobody knows it")
    raise {"value": ValueError, "exit": SystemExit}[kind]("as it is")

def stay(particle):
    print("stays", flush=True)
    time.sleep(1000)

def relay(particle, other, name, *args):
    return particle.send(ParticleId(*other), name, *args).wait()

def made(start=0, **given):
    handlers = {"echo": lambda particle, *args, **kwargs: (args, kwargs), "fail": fail, "stay": stay, "relay": relay,
                "count": lambda particle: particle.state["count"], "where": lambda particle: tuple(particle.id)}
    return {"receive": handlers, "state": {"count": start}, **given}

def refuse():
    raise LookupError("none of these")

mesh = sheave.Mesh(rank=1, size=2, root=sys.argv[1])
particles = Particles(mesh)
particles.offer("echo", made)
particles.offer("refuse", refuse)
first = particles.create(**made())
mesh.barrier()
print("ready", flush=True)
sys.stdin.readline()
mesh.leave()
"""


def count(particle):
    return particle.state["count"]


@pytest.fixture
def job(start):
    """Particles of this process, and a program that has others."""
    root = free_root()
    program = start(PEER, root)
    with sheave.Mesh(rank=0, size=2, root=root, join_timeout=LIMIT_S) as mesh, Particles(mesh) as particles:
        mesh.barrier(timeout=LIMIT_S)
        assert program.line() == "ready"
        yield particles, program


def test_trap_19_particles_are_made_and_reached_on_another_node(job):
    particles, program = job
    there = ParticleId(1, 0)
    assert particles.ids(1) == [there] and particles.ids() == particles.ids(0) == []
    assert "echo" in particles.names(there) and particles.waiting(there) == 0
    array = np.arange(100_000.0)
    answer = particles.send(there, "echo", array, [1, {"a": (2.5, "b")}], key=array[:3])
    array[:] = 0
    args, kwargs = answer.wait(timeout=LIMIT_S)
    np.testing.assert_array_equal(args[0], np.arange(100_000.0), "it is captured by the send")
    assert args[1] == [1, {"a": (2.5, "b")}] and kwargs["key"].tolist() == [0, 1, 2]
    assert answer.wait()[0][0] is args[0], "an answer is opened once"
    made = particles.create_on(1, "echo", 5)
    assert made == ParticleId(1, 1) and isinstance(made, ParticleId)
    other = particles.create_on(1, "echo", start=7, device=0)
    assert wait_all(particles.send_all([made, other], "count"), timeout=LIMIT_S) == [5, 7]
    assert particles.ids(1) == [there, made, other]
    assert particles.remove(made) is True and particles.remove(made) is False
    with pytest.raises(sheave.NotFound, match="no particle 1 on this node"):
        particles.send(made, "count").wait()
    # A handler there sends to a particle here.
    own = particles.create(receive={"double": lambda particle, number: 2 * number})
    assert particles.send(other, "relay", tuple(own), "double", 21).wait() == 42
    numbers = [particles.send(other, "echo", number) for number in range(200)]
    assert [args[0] for args, _ in wait_all(numbers, timeout=LIMIT_S)] == list(range(200))
    program.tell()
    program.succeed(LIMIT_S)


def test_all_are_asked_at_once_wherever_they_are(job):
    particles, _ = job
    away = [particles.create_on(1, "echo", number) for number in range(3)]
    receive = {"count": count, "stay": count}
    own = [particles.create(state={"count": 10 + number}, receive=receive) for number in range(2)]
    mixed = [away[2], own[0], away[0], own[1], away[1], away[2]]
    assert particles.ask_all(mixed, "count", timeout=LIMIT_S) == [2, 10, 0, 11, 1, 2]
    assert particles.ask_all([], "count") == []
    with pytest.raises(Exception, match="^1 and 2$") as raised:
        particles.ask_all(away, "fail", timeout=LIMIT_S)
    assert type(raised.value).__name__ == "Strange"
    with pytest.raises(sheave.NotFound, match="no particle 99"):
        particles.ask_all([*away, ParticleId(1, 99)], "count", timeout=LIMIT_S)
    with pytest.raises(sheave.DeadlineExceeded):
        particles.ask_all([own[0], away[0]], "stay", timeout=0.05)


async def awaits(answer):
    return await answer


def test_a_circle_between_nodes_ends_by_its_timeout(job):
    particles, _ = job
    there = ParticleId(1, 0)
    ask = {"ask": lambda particle: particle.send(there, "relay", tuple(particle.id), "echo").wait(timeout=0.1)}
    asker = particles.create(receive={"echo": lambda particle: "here", **ask})
    expected = r'particle 0 \("ask"\) still waits for "relay" of particle 0 of rank-1 \[after 100.*in a circle'
    with pytest.raises(sheave.DeadlineExceeded, match=expected):
        particles.send(asker, "ask").wait()
    assert particles.send(there, "relay", tuple(asker), "echo").wait(LIMIT_S) == "here", "all go on"


def test_errors_come_from_another_node(job):
    particles, _ = job
    there = ParticleId(1, 0)
    with pytest.raises(Exception, match="^1 and 2$") as raised:
        particles.send(there, "fail").wait()
    assert type(raised.value).__name__ == "Strange", "a class of that program alone comes with it"
    assert isinstance(raised.value.__cause__, sheave.Remote) and "in fail" in raised.value.__cause__.remote_traceback
    answer = particles.send(there, "fail", "value")
    for _ in range(2):
        with pytest.raises(ValueError, match="^as it is$") as raised:
            answer.wait()
        assert "in fail" in raised.value.__cause__.remote_traceback
    assert answer.exception() is raised.value
    # What ends programs ends none from afar.
    with pytest.raises(sheave.Remote, match="SystemExit: as it is"):
        particles.send(there, "fail", "exit").wait()
    with pytest.raises(sheave.NotFound, match='no handler of "nothing"; it has "count", "echo"'):
        particles.send(there, "nothing").wait()
    for number, said in ((0, "particle 0 has no model"), (99, "no particle 99 on this node")):
        # As it is here, and says where.
        with pytest.raises(sheave.NotFound, match=rf"{said}.*\(said by rank-1 ") as raised:
            particles.get(ParticleId(1, number)).wait()
        assert isinstance(raised.value.__cause__, sheave.Remote)
        with pytest.raises(sheave.NotFound, match=said):
            asyncio.run(awaits(particles.get(ParticleId(1, number))))
    with pytest.raises(sheave.Remote, match="nobody knows it") as raised:
        particles.send(there, "fail", "unknown").wait()
    assert isinstance(raised.value.__cause__, sheave.NotFound), "what handlers raise is what they say"
    with pytest.raises(sheave.NotFound, match=r"no kind 'kind' of particles on this node, which offers \['echo', 'ref"):
        particles.create_on(1, "kind")
    with pytest.raises(LookupError, match="none of these"):
        particles.create_on(1, "refuse")
    with pytest.raises(TypeError, match="unexpected"):
        particles.create_on(1, "echo", unknown=3)
    with pytest.raises(sheave.NotFound, match="particle 0 lives on another node"):
        particles.register(there, "name", print)
    with pytest.raises(Exception, match="pickle|lock"):
        particles.send(there, "echo", threading.Lock())


def test_the_waiters_of_a_killed_node_are_told_within_a_second(job):
    particles, program = job
    there = ParticleId(1, 0)
    relay = particles.create(receive={"relay": lambda particle: particle.send(there, "count").wait()})
    stays = particles.send(there, "stay")
    assert program.line() == "stays"
    answers = [particles.send(there, "count") for _ in range(10)] + [particles.send(relay, "relay")]
    told = []

    def await_one(answer):
        told.append((answer.exception(), time.monotonic()))

    threads = [threading.Thread(target=await_one, args=(answer,)) for answer in (stays, *answers)]
    for thread in threads:
        thread.start()
    until(lambda: particles.waiting(relay) == 0)
    killed = time.monotonic()
    os.kill(program.pid, signal.SIGKILL)
    for thread in threads:
        thread.join(LIMIT_S)
    assert len(told) == 12
    for error, when in told:
        assert isinstance(error, sheave.PeerLost) and error.peer.name == "rank-1" and "rank-1" in str(error)
        assert when - killed < 1
    for act in (
        lambda: particles.send(there, "count").wait(),
        lambda: particles.create_on(1, "echo"),
        lambda: particles.ids(1),
        lambda: particles.remove(there),
        lambda: particles.get(there).wait(),
    ):
        with pytest.raises(sheave.PeerLost, match="rank-1"):
            act()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_models_are_got_from_other_nodes(transport):
    def act(mesh):
        with Particles(mesh) as particles:
            own = particles.create(lambda: Line(mesh.rank), receive={"add": lambda particle, *numbers: sum(numbers)})
            mesh.barrier(timeout=LIMIT_S)
            got = [particles.get(ParticleId(rank, own.number), gradients=True) for rank in range(3)]
            values = [(version, w.tolist(), gradient.tolist()) for version, w, gradient in wait_all(got, LIMIT_S)]
            assert values == [(0, [float(rank)], [0.0]) for rank in range(3)]
            sums = [particles.send(ParticleId(rank, 0), "add", mesh.rank, 10) for rank in range(3)]
            assert wait_all(sums) == [10 + mesh.rank] * 3
            assert particles.node == mesh.rank and own.node == mesh.rank
            mesh.barrier(timeout=LIMIT_S)

    together(act, transport=transport)


def test_a_chain_over_nodes_and_back_needs_re_entrant_particles_alone():
    def hop(particle, route):
        return [particle.id.node] + (particle.send(ParticleId(*route[0]), "hop", route[1:]).wait() if route else [])

    def act(mesh):
        with Particles(mesh) as particles:
            particles.create(receive={"hop": hop}, reentrant=True)
            mesh.barrier(timeout=LIMIT_S)
            route = [((mesh.rank + step) % 3, 0) for step in range(1, 13)]
            visited = particles.send((mesh.rank, 0), "hop", route).wait()
            assert visited == [(mesh.rank + step) % 3 for step in range(13)]
            mesh.barrier(timeout=LIMIT_S)

    together(act)


def test_a_node_that_opens_no_pickles_takes_plain_messages(start):
    root = free_root()
    program = start(PEER, root, SHEAVE_PICKLE="never")
    with sheave.Mesh(rank=0, size=2, root=root, join_timeout=LIMIT_S) as mesh, Particles(mesh) as particles:
        mesh.barrier(timeout=LIMIT_S)
        assert program.line() == "ready"
        made = particles.create_on(1, "echo", 5)
        assert particles.send(made, "echo", np.ones(2), 3).wait()[0][1] == 3
        for sent in (Odd(1, 2), print):
            with pytest.raises(sheave.NotPermitted, match="this process opens no pickles"):
                particles.send(made, "echo", [sent]).wait()
        assert particles.send(made, "where").wait() == made
        program.tell()
        program.succeed(LIMIT_S)


INTERRUPTED = """
import signal, sys, threading, time, traceback
import sheave
from sheave.particle import Particles
signal.signal(signal.SIGINT, signal.default_int_handler)
gate, entered = threading.Event(), threading.Event()
def hold(particle):
    entered.set()
    gate.wait()
    return "held"
def is_here():
    return threading.current_thread() is threading.main_thread()
def wait_here(particle):
    if is_here():
        print("handles", flush=True)
        time.sleep(1000)
def relay(particle):
    if is_here():
        print("handles", flush=True)
        particle.send(id, "hold").wait()
with Particles() as particles:
    id = particles.create(receive={"hold": hold, "here": wait_here, "go": lambda particle: "goes"})
    relay = particles.create(receive={"relay": relay})
    where = sys.argv[1]
    if where != "here":
        # A thread of the node handles it.
        answer = particles.send(id, "hold")
        entered.wait()
    try:
        if where == "there":
            print("waits", flush=True)
            answer.wait()
        while True:
            # Until this thread comes to it before one of the node's.
            answer = particles.send(*(id, "here") if where == "here" else (relay, "relay"))
            answer.wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    gate.set()
    print(particles.send(id, "go").wait(), answer.wait() if where == "there" else answer.exception().__class__.__name__)
"""


@pytest.mark.parametrize("where", ["there", "here", "nested"])
def test_ctrl_c_ends_a_wait(start, where):
    program = start(INTERRUPTED, where)
    in_a_wait(program)
    interrupted = time.monotonic()
    os.kill(program.pid, signal.SIGINT)
    assert program.line() == "interrupted"
    assert time.monotonic() - interrupted < 5
    assert program.line().split() == ["goes", "held" if where == "there" else "KeyboardInterrupt"]
    assert program.succeed(LIMIT_S) == ""


ENDS = """
import sys, threading, time
from sheave.particle import Particles
how = sys.argv[1]
entered = threading.Semaphore(0)
def sleep(particle):
    entered.release()
    time.sleep(1000)
def spin(particle):
    entered.release()
    while True:
        pass
def wait(particle, other):
    entered.release()
    return particle.send(other, "sleep").wait()
particles = Particles(devices=2)
handlers = {"sleep": sleep, "spin": spin, "wait": wait, "go": lambda particle: 1}
ids = [particles.create(receive=handlers) for _ in range(4)]
assert particles.send(ids[0], "go").wait() == 1
if how == "idle":
    sys.exit()
answers = [particles.send(ids[0], "sleep"), particles.send(ids[1], "spin"), particles.send(ids[2], "wait", ids[0])]
threading.Thread(target=lambda: particles.send(ids[0], "go").exception(), daemon=True).start()
for _ in range(3):
    entered.acquire()
print("runs", flush=True)
if how == "raise":
    raise ValueError("the end")
if how == "close":
    particles.close()
"""


@pytest.mark.parametrize("how", ["idle", "return", "raise", "close"])
def test_trap_20_a_program_ends_though_handlers_run(start, how):
    program = start(ENDS, how)
    if how != "idle":
        assert program.line() == "runs"
    begun = time.monotonic()
    status, out, err = program.finish(LIMIT_S)
    assert time.monotonic() - begun < 10
    if how == "raise":
        assert status == 1 and err.endswith("ValueError: the end\n")
    else:
        assert (status, out, err) == (0, "", "")


def test_a_forked_child_has_no_particles(start):
    program = start(
        """
        import os, sys, sheave
        from sheave.particle import Particles
        with Particles() as particles:
            id = particles.create(receive={"go": lambda particle: 1})
            answer = particles.send(id, "go")
            assert answer.wait() == 1
            child = os.fork()
            if child == 0:
                for act in (lambda: particles.send(id, "go"), answer.wait, particles.create, particles.ids):
                    try:
                        act()
                        print("no error")
                    except sheave.Forked:
                        pass
                sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            assert particles.send(id, "go").wait() == 1
        """
    )
    assert program.succeed(LIMIT_S) == ""


def test_kinds_are_made_of_particles_of_other_nodes():
    def act(mesh):
        with Particles(mesh) as particles:
            tell = {"tell": lambda particle: particle.state}
            other = 1 - mesh.rank
            # Each node makes one for the other in the midst of one that the other makes for it.
            particles.offer("leaf", lambda: {"state": mesh.rank, "receive": tell})
            particles.offer("inner", lambda: {"state": tuple(particles.create_on(other, "leaf")), "receive": tell})
            particles.offer("outer", lambda: {"state": tuple(particles.create_on(other, "inner")), "receive": tell})
            mesh.barrier(timeout=LIMIT_S)
            outer = particles.create_on(mesh.rank, "outer")
            inner = particles.send(outer, "tell").wait()
            leaf = particles.send(inner, "tell").wait()
            assert (outer.node, inner[0], leaf[0]) == (mesh.rank, other, mesh.rank)
            assert particles.send(leaf, "tell").wait() == mesh.rank
            mesh.barrier(timeout=LIMIT_S)

    together(act, size=2)
