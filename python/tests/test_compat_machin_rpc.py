"""machin.parallel.distributed's groups for remote procedure calls over sheave, among real processes."""

import os
import signal

import pytest
from test_compat_machin import Job

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def job(start):
    """Runs a program as the processes of a world."""

    def launch(program, size=3, ranks=None, **environment):
        return Job(start, program, size, range(size) if ranks is None else ranks, environment)

    return launch


SETUP = """
class Counter:
    def __init__(self, start=0):
        self.count = start

    def add(self, number):
        self.count += number
        return self.count

def key_error(text, act):
    try:
        act()
    except KeyError as error:
        assert error.args == (text,), error
        return
    raise AssertionError(f"nothing of {text!r} was raised")

world = make_world()
group = world.create_rpc_group("group", ["2", "0", "1"])
"""


def program(text):
    import textwrap

    return SETUP + textwrap.dedent(text)


def test_calls(job):
    job(
        program("""
        assert group.get_group_members() == ["0", "1", "2"] and group.get_group_name() == "group"
        assert group.size() == 3 and group.is_member() and group.is_member("2") and not group.is_member("3")
        assert group.get_cur_name() == str(RANK) and world.get_rpc_group("group") is group
        other = str((RANK + 1) % 3)
        assert group.rpc_sync(other, pow, args=(2, 5)) == 32
        assert group.rpc_sync(int(other), lambda one, two=0: one + two, timeout=20, args=(1,), kwargs={"two": 2}) == 3
        future = group.rpc_async(other, np.multiply, args=(np.arange(3), 2))
        assert list(future.wait()) == [0, 2, 4] and future.done() and list(future.value()) == [0, 2, 4]
        assert future.then(lambda future: sum(future.value())).then(lambda future: future.value() + 1).wait() == 7
        raises(RuntimeError, "RPC target is not a member of group.", lambda: group.rpc_sync("3", pow, args=(2, 5)))
        raises(RuntimeError, "deadline", lambda: group.rpc_sync(other, time.sleep, timeout=0.05, args=(1,)))
        try:
            group.rpc_sync(other, int, args=("x",))
            raise AssertionError("it is no number")
        except ValueError as error:
            assert "invalid literal" in str(error)
        counter = group.remote(other, Counter, args=(5,))
        assert counter.rpc_sync().add(2) == 7 and counter.rpc_async().add(1).wait() == 8
        assert counter.remote().add(2).to_here() == 10 and counter.to_here(20).count == 10
        assert counter.owner().name == counter.owner_name() == other and counter.owner().id == int(other)
        assert not counter.is_owner()
        raises(RuntimeError, "the object is", counter.local_value)
        assert group.rpc_sync(other, lambda ref: ref.is_owner() and ref.local_value().count, args=(counter,)) == 10
        while not counter.confirmed_by_owner():
            time.sleep(0.001)
        group.barrier()
        world.stop()
        """)
    ).succeed()


def test_values_and_services(job):
    job(
        program("""
        group.pair(RANK, {"rank": RANK})
        group.register(f"add {RANK}", lambda one, two=0: one + two + RANK)
        group.barrier()
        for rank in range(3):
            ref = group.get_paired(rank)
            assert ref.to_here() == {"rank": rank} and ref.is_owner() == (rank == RANK) and group.is_paired(rank)
            assert group.registered_sync(f"add {rank}", args=(1,), kwargs={"two": 2}) == 3 + rank
            assert group.registered_async(f"add {rank}", (1,)).wait() == 1 + rank
            assert group.registered_remote(f"add {rank}", (1,)).to_here() == 1 + rank
            assert group.is_registered(f"add {rank}")
        key_error(f'Value with key "{RANK}" already paired to Group [group]', lambda: group.pair(RANK, 1))
        other = (RANK + 1) % 3
        key_error(f'Value with key "{other}" already paired to Group [group]', lambda: group.pair(other, 1))
        text = f'Value with key "{other}" not paired to Group [group] on Process[{RANK}]'
        key_error(text, lambda: group.unpair(other))
        key_error("Value with key [x] not found on Group [group]", lambda: group.get_paired("x"))
        text = f'Service with key "add {other}" already registered in Group [group]'
        key_error(text, lambda: group.register(f"add {other}", pow))
        text = f'Service with key "x" not registered in Group [group] on Process[{RANK}]'
        key_error(text, lambda: group.deregister("x"))
        for call in (group.registered_sync, group.registered_async, group.registered_remote):
            key_error("Service with key [x] not found on Group [group]", lambda: call("x"))
        assert not group.is_paired("x") and not group.is_registered("x")
        group.barrier()
        group.unpair(RANK)
        group.deregister(f"add {RANK}")
        group.barrier()
        assert not group.is_paired(other) and not group.is_registered(f"add {other}")
        world.stop()
        """)
    ).succeed()


def test_groups_are_made_destroyed_and_handed_on(job):
    job(
        program("""
        raises(RuntimeError, "Group group already exists!", lambda: world.create_rpc_group("group", ["0", "1", "2"]))
        text = f"Creator Process [{RANK}] not in Group [others]"
        raises(RuntimeError, text, lambda: world.create_rpc_group("others", [str((RANK + 1) % 3)]))
        if RANK < 2:
            pair = world.create_rpc_group("pair", ["0", "1"])
            if RANK == 1:
                pair.register("double", lambda number: 2 * number)
                group.pair("pair", pair)
        group.barrier()
        handle = group.get_paired("pair").to_here()
        assert handle.registered_sync("double", (21,)) == 42 and handle.is_member() == (RANK < 2)
        if RANK == 2:
            for name, act in {
                "register": lambda: handle.register("mine", pow),
                "pair": lambda: handle.pair("mine", 1),
                "barrier": handle.barrier,
                "destroy": handle.destroy,
            }.items():
                text = f"You should not execute function {name} when current process is not a member of the group"
                raises(RuntimeError, text, act)
        group.barrier()
        last = group
        for _ in range(5):
            last.destroy()
            last.destroy()
            assert last.destroyed and world.get_rpc_group("group") is None
            last = world.create_rpc_group("group", ["0", "1", "2"])
            last.register(RANK, pow)
        last.barrier()
        world.stop()
        again = make_world()
        assert again.create_rpc_group("group", ["0", "1", "2"]).rpc_sync("0", pow, args=(2, 3)) == 8
        again.stop()
        """)
    ).succeed()


def test_who_calls_one_that_dies_is_told(job):
    programs = job(
        program("""
        group.register("hang", lambda: time.sleep(60)) if RANK == 1 else None
        group.register(RANK, lambda: RANK)
        group.barrier()
        # Its service is found when this returns, and the call waits there.
        future = group.registered_async("hang") if RANK != 1 else None
        print("ready", flush=True)
        if RANK == 1:
            time.sleep(60)
        error = raises(RuntimeError, "lost", future.wait)
        assert error.peer.name == "1", error
        assert group.registered_sync(0) == 0 and group.registered_sync(2) == 2
        begun = time.monotonic()
        while group.is_registered(1):
            assert time.monotonic() - begun < 10
        for act in (group.registered_sync, group.registered_async, group.registered_remote):
            error = raises(RuntimeError, "lost", lambda: act(1))
            assert error.peer.name == "1", error
        raises(RuntimeError, "1", group.barrier)
        print("told", flush=True)
        sys.stdin.readline()
        """)
    ).programs
    for each in programs:
        assert each.line() == "ready"
    os.kill(programs[1].pid, signal.SIGKILL)
    for each in (programs[0], programs[2]):
        assert each.line() == "told"
