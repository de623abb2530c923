"""Objects that stay on their node: promised, passed on, called, dropped, lost."""

import asyncio
import ctypes
import gc
import os
import signal
import threading
import time
import weakref
from typing import ClassVar

import numpy as np
import pytest
import sheave
from conftest import free_root, together
from test_calls import Two, called, fail


#: References in each round, and rounds.
MANY, ROUNDS = 10_000, 12


class Counter:
    """Counts, and which counters there are in this process."""

    #: Their identities. Unlike a number, a set can be changed by several threads.
    living: ClassVar[set[int]] = set()

    def __init__(self, start=0):
        Counter.living.add(id(self))
        self.count = start

    def add(self, number):
        self.count += number
        return self.count

    def __call__(self):
        return self.count

    def __reduce__(self):
        return Counter, (self.count,)

    def __del__(self):
        Counter.living.discard(id(self))


@pytest.fixture
def alone():
    with sheave.Mesh(rank=0, size=1, root=free_root()) as mesh:
        mesh.serve("counter", Counter)
        mesh.serve("echo", lambda value: value)
        yield mesh


def serve(mesh):
    mesh.serve("counter", Counter)
    mesh.serve("echo", lambda value: value)
    mesh.serve("add", lambda ref, number: ref.call("add", (number,)))
    mesh.serve("fail", fail)
    mesh.serve("slow", lambda: time.sleep(0.05) or np.arange(3))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_object_is_used_where_it_lives(transport):
    def act(mesh):
        ref = mesh.remote(1, "counter", (5,))
        assert (ref.owner.name, ref.is_owner) == ("rank-1", False) and "rank-1" in repr(ref)
        assert ref.call("add", (2,), timeout=20) == 7
        assert ref.call("", timeout=20) == 7
        work = ref.call("add", (1,), async_op=True)
        assert work.wait(timeout=20) == 8
        copy = ref.get(timeout=20)
        assert copy.count == 8 and copy.add(1) == 9 and ref.call("", timeout=20) == 8
        assert ref.remote("add", (2,)).get(timeout=20) == 10
        assert ref.get(async_op=True).wait(timeout=20).count == 10

        async def awaited():
            return await ref

        assert asyncio.run(awaited()).count == 10
        for hidden in ("_secret", "nothing", "count"):
            with pytest.raises(sheave.NotFound, match=f'has no method "{hidden}"'):
                ref.call(hidden, timeout=20)

    called(act, serve, transport=transport)


def test_a_reference_is_used_and_passed_on_before_its_object_exists():
    def act(mesh):
        slow = mesh.remote(1, "slow")
        assert mesh.call(2, "echo", (slow,), timeout=20) == slow
        np.testing.assert_array_equal(mesh.call(2, "echo", ([slow],), timeout=20)[0].get(timeout=20), [0, 1, 2])
        counter = mesh.remote(1, "counter")
        for number in range(1, 11):
            assert mesh.call(2, "add", (counter, 1), timeout=20) == number
        # In what is pickled they are counted too.
        inside = mesh.call(2, "echo", ({"ref": counter, "f": lambda: 1},), timeout=20)
        assert inside["ref"] == counter and inside["f"]() == 1 and len({inside["ref"], counter}) == 1

    called(act, serve, size=3)


def test_an_object_that_is_not_made_raises_why(alone):
    alone.serve("fail", fail)
    ref = alone.remote(0, "fail", ("two",))
    for use in (ref.get, lambda timeout: ref.call("x", timeout=timeout), lambda timeout: ref.remote("x").get(timeout)):
        with pytest.raises(Two, match="it has code 7") as raised:
            use(timeout=20)
        assert raised.value.code == 7
    with pytest.raises(sheave.NotFound, match="nobody"):
        alone.remote(0, "nobody").get(timeout=20)


def test_what_others_raise_arrives_from_afar_too():
    def act(mesh):
        ref = mesh.remote(1, "fail", ("key",))
        with pytest.raises(KeyError) as raised:
            ref.get(timeout=20)
        assert isinstance(raised.value.__cause__, sheave.SheaveError)
        with pytest.raises(KeyError):
            mesh.call(2, "add", (ref, 1), timeout=20)
        for missing in (mesh.remote(1, "nobody"), mesh.remote(1, "counter.nothing")):
            with pytest.raises(sheave.NotFound):
                missing.get(timeout=20)

    called(act, serve, size=3)


def test_an_exported_object_is_itself_at_home(alone):
    counter = Counter(3)
    ref = alone.export(counter)
    assert ref.is_owner and ref.get() is counter and ref.call("add", (1,)) == 4 and counter.count == 4
    assert alone.call(0, "echo", (ref,)).get() is counter
    with pytest.raises(sheave.InvalidArgument, match="references travel in calls alone"):
        sheave.pickling.dumps(ref)
    with pytest.raises(sheave.DeadlineExceeded):
        alone.serve("never", lambda: threading.Event().wait(5))
        alone.remote(0, "never").get(timeout=0.05)


def until(holds, seconds=20):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)


def resident_kib():
    # What is free, in the heaps of dozens of threads, says nothing.
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:"))


def test_nothing_is_left_of_a_hundred_thousand_references():
    """Neither on the node that holds them nor on their owner's, both of this process."""

    def act(mesh):
        serve(mesh)
        mesh.barrier(timeout=20)
        resident = []
        if mesh.rank == 0:
            gc.collect()
            before = len(Counter.living)
            for _ in range(ROUNDS):
                refs = [mesh.remote(1, "counter", (number,)) for number in range(MANY)]
                assert [ref.call("", timeout=20) for ref in refs[::500]] == list(range(0, MANY, 500))
                until(lambda: len(Counter.living) == before + MANY)
                del refs
                until(lambda: len(Counter.living) == before)
                resident.append(resident_kib())
            assert mesh.call(1, "echo", (1,), timeout=20) == 1
            # About 200 bytes for each reference of the later rounds. Heaps of threads grow for some hundred thousand.
            assert resident[-1] - resident[3] < 16 << 10, resident
        mesh.barrier(timeout=60)

    together(act, size=2)


def test_the_last_reference_frees_the_object_on_its_node(start):
    root = free_root()
    program = start(
        """
        import sys, weakref, sheave
        class Thing:
            def touch(self):
                return "made"
        gone = []
        def make():
            thing = Thing()
            weakref.finalize(thing, gone.append, None)
            return thing
        mesh = sheave.Mesh(rank=1, size=2, root=sys.argv[1])
        mesh.serve("make", make)
        mesh.barrier()
        for _ in sys.stdin:
            print(len(gone), flush=True)
        """,
        root,
    )

    def count():
        program.tell()
        return int(program.line())

    with sheave.Mesh(rank=0, size=2, root=root) as mesh:
        mesh.barrier(timeout=20)
        refs = [mesh.remote(1, "make") for _ in range(10)]
        assert [ref.call("touch", timeout=20) for ref in refs] == ["made"] * 10 and count() == 0
        del refs[5:]
        until(lambda: count() == 5)
        refs.clear()
        until(lambda: count() == 10)


def test_whose_owner_is_killed_is_told(start):
    root = free_root()
    program = start(
        """
        import sys, time, sheave
        mesh = sheave.Mesh(rank=1, size=2, root=sys.argv[1])
        mesh.serve("list", list)
        mesh.serve("wait", lambda: time.sleep(60))
        mesh.barrier()
        time.sleep(60)
        """,
        root,
    )
    with sheave.Mesh(rank=0, size=2, root=root) as mesh:
        mesh.barrier(timeout=20)
        made, waiting = mesh.remote(1, "list"), mesh.remote(1, "wait")
        assert made.get(timeout=20) == []
        work = waiting.get(async_op=True)
        os.kill(program.pid, signal.SIGKILL)
        killed = time.monotonic()
        for use in (work.wait, made.get, waiting.get):
            with pytest.raises(sheave.PeerLost, match="rank-1"):
                use(timeout=20)
        assert time.monotonic() - killed < 1


def test_a_reference_outlives_its_mesh_as_an_error():
    with sheave.Mesh(rank=0, size=1, root=free_root()) as mesh:
        thing = Counter()
        held = weakref.ref(thing)
        ref = mesh.export(thing)
        del thing
        assert held() is not None
    for use in (ref.get, lambda: ref.owner, lambda: ref.call("add", (1,)), lambda: ref.remote("add", (1,))):
        with pytest.raises(sheave.Closed):
            use()
    assert "left" in repr(ref)


def test_references_between_all_nodes():
    def act(mesh):
        serve(mesh)
        mesh.barrier(timeout=20)
        refs = [mesh.remote(rank, "counter", (mesh.rank,)) for rank in range(3)]
        for ref in refs:
            for rank in range(3):
                mesh.call(rank, "add", (ref, 1), timeout=20)
        return [ref.call("", timeout=20) for ref in refs]

    assert together(act) == [[rank + 3] * 3 for rank in range(3)]
