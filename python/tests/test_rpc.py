"""Groups of rpc: functions that are sent along, services and values by key, handles, deaths."""

import functools
import os
import signal
import threading
import time

import numpy as np
import pytest
import sheave
from conftest import together


class Counter:
    def __init__(self, start=0):
        self.count = start

    def add(self, number):
        self.count += number
        return self.count

    def __call__(self):
        return self.count


class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")
        self.one, self.two = one, two


def raise_odd():
    raise Odd(1, 2)


def down(groups, depth):
    """Calls the other one, which calls this one, and so on."""
    return 0 if depth == 0 else 1 + groups[depth % 2].rpc_sync(depth % 2, down, (groups, depth - 1), timeout=60)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_functions_are_sent_and_called(transport):
    def act(mesh):
        group = mesh.rpc_group("all", timeout=20)
        assert [member.name for member in group.members] == ["rank-0", "rank-1", "rank-2"]
        assert (group.size, group.is_member, group.name) == (3, True, "all")
        offset = mesh.rank
        for target in (2, "rank-2", mesh.members[2]):
            assert group.rpc_sync(target, pow, (2, 10), timeout=20) == 1024
            added = group.rpc_sync(target, lambda number, plus=0: number + plus + offset, (1,), {"plus": 2})
            assert added == 3 + offset
        array = np.arange(100_000.0)
        doubled = group.rpc_async(1, np.multiply, (array, 2), timeout=20)
        array[:] = 0
        np.testing.assert_array_equal(doubled.wait(timeout=20), 2.0 * np.arange(100_000))
        with pytest.raises(Odd, match="1 and 2") as raised:
            group.rpc_sync(1, raise_odd, timeout=20)
        assert (raised.value.one, raised.value.two) == (1, 2)
        assert "raise_odd" in raised.value.__cause__.remote_traceback
        counter = group.remote(2, Counter, (5,))
        assert counter.call("add", (2,), timeout=20) == 7
        assert counter.to_here(timeout=20).count == 7 and counter.owner_name == "rank-2"
        with pytest.raises(sheave.DeadlineExceeded):
            group.rpc_sync(1, time.sleep, (1,), timeout=0.05)

    together(act, transport=transport)


def test_services_are_found_and_called_by_key():
    def act(mesh):
        group = mesh.rpc_group("actors", [0, 1, 2], timeout=20)
        key = ("counter", mesh.rank)
        group.register(key, Counter(10 * mesh.rank), timeout=20)
        group.register(f"add {mesh.rank}", lambda one, other=0: one + other, timeout=20)
        group.barrier(timeout=20)
        for rank in range(3):
            assert group.registered_sync(("counter", rank), timeout=20) == 10 * rank
            assert group.registered_sync(f"add {rank}", (1,), {"other": 2}, timeout=20) == 3
            array = np.ones(50_000, "float32")
            work = group.registered_async(f"add {rank}", (array, array), timeout=20)
            array[:] = 7
            np.testing.assert_array_equal(work.wait(timeout=20), np.full(50_000, 2, "float32"))
        group.barrier(timeout=20)
        assert group.registered_sync(("counter", 0), (1,), method="add", timeout=20) in (1, 2, 3)
        made = group.registered_remote("add 1", ([1],), {"other": [2]}, timeout=20)
        assert (made.to_here(timeout=20), made.owner_name) == ([1, 2], "rank-1")
        group.barrier(timeout=20)
        for act in (
            lambda: group.registered_sync("nobody's", timeout=20),
            lambda: group.registered_async("nobody's", timeout=20).wait(timeout=20),
            lambda: group.registered_remote("nobody's", timeout=20),
            lambda: group.deregister("nobody's", timeout=20),
        ):
            with pytest.raises(sheave.NotFound, match="nobody's"):
                act()
        with pytest.raises(sheave.AlreadyExists, match="counter"):
            group.register(key, Counter(), timeout=20)
        assert group.is_registered(key, timeout=20) is True
        group.barrier(timeout=20)
        if mesh.rank == 1:
            group.deregister(key, timeout=20)
        group.barrier(timeout=20)
        assert group.is_registered(("counter", 1), timeout=20) is False
        group.barrier(timeout=20)
        if mesh.rank == 2:
            group.register(("counter", 1), Counter(77), timeout=20)
        group.barrier(timeout=20)
        assert group.registered_sync(("counter", 1), timeout=20) == 77
        group.barrier(timeout=20)

    together(act)


def test_what_a_function_misses_is_not_taken_for_a_service():
    def act(mesh):
        group = mesh.rpc_group("actors", timeout=20)
        calls = []

        def miss():
            calls.append(1)
            raise sheave.NotFound("something of its own")

        if mesh.rank == 0:
            group.register("miss", miss, timeout=20)
        group.barrier(timeout=20)
        with pytest.raises((sheave.NotFound, sheave.Remote), match="something of its own"):
            group.registered_sync("miss", timeout=20)
        group.barrier(timeout=20)
        assert len(calls) == (2 if mesh.rank == 0 else 0)

    together(act, size=2)


def test_values_are_paired_and_stay_where_they_are():
    def act(mesh):
        group = mesh.rpc_group("values", timeout=20)
        own = {"rank": mesh.rank, "array": np.full(10_000, mesh.rank)}
        group.pair(mesh.rank, own, timeout=20)
        group.barrier(timeout=20)
        for rank in range(3):
            ref = group.get_paired(rank, timeout=20)
            assert (ref.owner_name, ref.is_owner) == (f"rank-{rank}", rank == mesh.rank)
            value = ref.to_here(timeout=20)
            np.testing.assert_array_equal(value["array"], np.full(10_000, rank))
            if rank == mesh.rank:
                assert ref.local_value() is own and value is own and ref.confirmed_by_owner()
            else:
                with pytest.raises(sheave.InvalidArgument, match=f"the object is rank-{rank}'s"):
                    ref.local_value()
                until = time.monotonic() + 20
                while not ref.confirmed_by_owner():
                    assert time.monotonic() < until
        # A chain over three nodes: from rank 0 by rank 1 to rank 2.
        if mesh.rank == 0:
            named = group.get_paired(2, timeout=20)
            assert group.rpc_sync(1, lambda ref: ref.call("get", ("rank",)), (named,), timeout=20) == 2
        group.barrier(timeout=20)
        assert group.is_paired(1, timeout=20)
        group.barrier(timeout=20)
        group.unpair(mesh.rank, timeout=20)
        group.barrier(timeout=20)
        assert not group.is_paired(1, timeout=20)
        with pytest.raises(sheave.NotFound, match="value 1"):
            group.get_paired(1, timeout=20)
        with pytest.raises(sheave.NotFound, match=f"this node has no value {mesh.rank}"):
            group.unpair(mesh.rank)
        group.barrier(timeout=20)

    together(act)


def test_a_group_that_travels_is_a_handle():
    def act(mesh):
        if mesh.rank < 2:
            group = mesh.rpc_group("pair", ["rank-0", mesh.members[1]], timeout=20)
            if mesh.rank == 1:
                group.register("double", lambda number: 2 * number, timeout=20)
                group.pair("list", [1, 2], timeout=20)
            mesh.serve("pair", lambda: group)
        mesh.barrier(timeout=20)
        handle = mesh.call(0, "pair", timeout=20)
        assert handle.is_member is (mesh.rank < 2) and handle.name == "pair"
        assert handle.registered_sync("double", (21,), timeout=20) == 42
        assert handle.get_paired("list", timeout=20).to_here(timeout=20) == [1, 2]
        if mesh.rank == 2:
            for act in (
                lambda: handle.register("mine", pow),
                lambda: handle.pair("mine", 1),
                lambda: handle.barrier(),
                lambda: handle.deregister("double"),
            ):
                with pytest.raises(sheave.NotPermitted, match='not in the group "pair"'):
                    act()
            with pytest.raises(sheave.InvalidArgument, match="is not in the group"):
                handle.rpc_sync(2, pow, (2, 2))
        mesh.barrier(timeout=20)

    together(act)


def test_a_name_is_used_again():
    def act(mesh):
        last = 0
        for _ in range(10):
            group = mesh.rpc_group("again", timeout=20)
            assert group.generation > last
            last = group.generation
            group.register(mesh.rank, mesh.name.upper, timeout=20)
            with pytest.raises(sheave.AlreadyExists, match="again"):
                mesh.rpc_group("again", timeout=20)
            group.destroy()
            group.destroy()
            assert not group.is_member
        with pytest.raises(sheave.NotFound, match="no member"):
            group.registered_sync(0, timeout=20)

    together(act)


def test_groups_that_cannot_be_made_say_why():
    def act(mesh):
        if mesh.rank < 2:
            with pytest.raises(sheave.DeadlineExceeded, match="rank-2"):
                mesh.rpc_group("late", timeout=0.3)
        mesh.barrier(timeout=20)
        for members, text in (([1 - min(mesh.rank, 1)], "not among"), ([7], "no member"), ([], "not among")):
            with pytest.raises(sheave.InvalidArgument, match=text):
                mesh.rpc_group("wrong", members)
        mesh.barrier(timeout=20)

    together(act)


def test_a_thousand_calls_nest_between_two_members():
    def act(mesh):
        groups = [mesh.rpc_group("one", timeout=20), mesh.rpc_group("other", timeout=20)]
        if mesh.rank == 0:
            assert groups[0].rpc_sync(1, down, (groups, 1000), timeout=60) == 1000
        mesh.barrier(timeout=60)

    together(act, size=2)


def test_a_slow_service_delays_no_other():
    def act(mesh):
        group = mesh.rpc_group("actors", timeout=20)
        gate = threading.Event()
        if mesh.rank == 0:
            group.register("slow", lambda: gate.wait(30), timeout=20)
            group.register("quick", os.getpid, timeout=20)
            group.register("open", gate.set, timeout=20)
        group.barrier(timeout=20)
        if mesh.rank == 1:
            slow = [group.registered_async("slow") for _ in range(200)]
            for _ in range(20):
                assert group.registered_sync("quick", timeout=20) == os.getpid()
            assert not any(work.done() for work in slow)
            group.registered_sync("open", timeout=20)
            assert all(work.wait(timeout=20) for work in slow)
        group.barrier(timeout=20)

    together(act, size=2)


PROGRAM = """
import os, signal, sys, time, sheave

mesh = sheave.init()
group = mesh.rpc_group("actors", timeout=20)
group.register(mesh.rank, lambda: mesh.rank)
group.register(("hang", mesh.rank), lambda: time.sleep(60))
group.pair(mesh.rank, mesh.rank)
group.barrier(timeout=20)
victim = int(sys.argv[1])
if mesh.rank == victim:
    print("ready", flush=True)
    time.sleep(60)
# A call whose service is not found yet would not be found any more.
assert group.is_registered(("hang", victim)) and group._finds(("hang", victim))
works = [group.registered_async(("hang", victim)), group.rpc_async(victim, time.sleep, (60,))]
held = group.remote(victim, list)
print("ready", flush=True)
sys.stdin.readline()
begun = time.monotonic()
for work in works:
    try:
        work.wait(timeout=20)
        raise AssertionError("it has answered")
    except sheave.PeerLost as error:
        assert error.peer.name == f"rank-{victim}", error
try:
    held.get(timeout=20)
    raise AssertionError("it is there")
except sheave.PeerLost as error:
    assert error.peer.name == f"rank-{victim}", error
lasted = time.monotonic() - begun
for rank in range(3):
    if rank == victim:
        # Nobody finds what the dead had once the index has heard of the death.
        while group.is_registered(rank, timeout=20) or group.is_paired(rank, timeout=20):
            assert time.monotonic() - begun < 10
        # It was called before; what an index has paired nobody else knows of who has not got it.
        for act, key in ((group.registered_sync, ("hang", rank)), (group.get_paired, rank)):
            try:
                act(key, timeout=20)
                raise AssertionError("it is there")
            except sheave.PeerLost as error:
                assert error.peer.name == f"rank-{victim}", error
            except sheave.NotFound:
                assert victim == 0 and act == group.get_paired
    else:
        assert group.registered_sync(rank, timeout=20) == rank
        assert group.get_paired(rank, timeout=20).to_here(timeout=20) == rank
left = mesh.rpc_group("left", [rank for rank in range(3) if rank != victim], timeout=20)
left.barrier(timeout=20)
print(lasted, flush=True)
left.barrier(timeout=20)
mesh.leave()
"""


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_who_waits_for_a_member_that_dies_is_told(start, victim):
    from conftest import free_root

    root = free_root()
    place = {"SHEAVE_WORLD_SIZE": "3", "SHEAVE_ROOT": root}
    programs = [start(PROGRAM, victim, SHEAVE_RANK=str(rank), **place) for rank in range(3)]
    for program in programs:
        assert program.line() == "ready"
    os.kill(programs[victim].pid, signal.SIGKILL)
    survivors = [program for rank, program in enumerate(programs) if rank != victim]
    for program in survivors:
        program.tell()
    lasted = [float(program.line()) for program in survivors]
    assert max(lasted) < 1.0, lasted
    for program in survivors:
        assert program.finish()[0] == 0


def test_partial_functions_and_methods_are_sent():
    def act(mesh):
        group = mesh.rpc_group("all", timeout=20)
        assert group.rpc_sync(1, functools.partial(pow, 2), (5,), timeout=20) == 32
        assert group.rpc_sync(1, "a,b".split, (",",), timeout=20) == ["a", "b"]
        mesh.barrier(timeout=20)

    together(act, size=2)


def test_functions_travel_by_name_where_they_can(start):
    """What can be imported is no pickle: an array in its arguments is one, and the module is imported there."""

    def act(mesh):
        group = mesh.rpc_group("all", timeout=20)
        assert group.rpc_sync(1, functools.reduce, (max, [3, 1, 2]), timeout=20) == 3
        assert group.rpc_sync(1, Counter, (5,), timeout=20).count == 5
        assert group.rpc_sync(1, isinstance, (Counter(), Counter), timeout=20)
        kept = group.remote(1, sorted, ([3, 1, 2],)).to_here(timeout=20)
        assert kept == [1, 2, 3]
        mesh.serve("echo", lambda value: value)
        mesh.barrier(timeout=20)
        for value in (pow, Counter, [os.getpid, {"key": Counter.add}], np.add):
            assert mesh.call(1, "echo", (value,), timeout=20) == value
        for value, result in (("a,b,c".split, ["a,b,c"]), (lambda: 1, 1)):
            assert mesh.call(1, "echo", (value,), timeout=20)() == result
        assert mesh.call(1, "echo", (pow,), timeout=20) is pow
        mesh.barrier(timeout=20)

    together(act, size=2)


def test_named_functions_are_opened_where_pickles_are(start):
    program = """
import sheave
with sheave.Mesh() as mesh:
    group = mesh.rpc_group("alone", [0])
    group.register("echo", lambda value: value)
    assert group.registered_sync("echo", (7,)) == 7
    for call in (lambda: group.rpc_sync(0, pow, (2, 3)), lambda: group.registered_sync("echo", (pow,))):
        try:
            call()
            raise AssertionError("it was called")
        except sheave.NotPermitted as error:
            assert "opens no pickles" in str(error), error
"""
    start(program, SHEAVE_PICKLE="never").succeed()
