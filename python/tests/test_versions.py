"""Versioned objects: what is accepted, what moves, who waits, and what is left of a server that dies."""

import os
import signal
import time

import numpy as np
import pytest
import sheave
from conftest import free_root, together
from sheave.fleet import current_guest
from sheave.versions import Pulled, Pushed, Versions

PATIENCE = 30


def until(is_so):
    """Wait for something to be so."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def mesh():
    with sheave.Mesh() as mesh:
        yield mesh


@pytest.fixture
def table(mesh, request):
    """A table of this process, and its server."""

    def made(**settings):
        group = mesh.rpc_group(request.node.name, timeout=PATIENCE)
        Versions(mesh, **settings).register(group, "objects", timeout=PATIENCE)
        return group.versions("objects", timeout=PATIENCE)

    return made


def test_a_push_says_what_it_was_made_from(table):
    table = table(depth=2)
    assert table.pull("w") is None and table.versions("w") == []
    assert table.push("w", "one", 1, previous=0).outcome == "stale", "nothing is there"
    assert table.push("w", "one", 1) == Pushed("accepted", 1)
    stale = table.push("w", "two", 2, previous=0)
    assert not stale and (stale.outcome, stale.newest) == ("stale", 1)
    assert table.push("w", "again", 1, previous=1).outcome == "already_exists"
    assert table.push("w", "two", "second", previous=1).newest == "second"
    third = table.push("w", "three", -3, previous="second")
    assert third and third.dropped == [("w", 1)] and table.versions("w") == ["second", -3]
    assert table.pull("w") == Pulled(-3, "whole", "three")
    assert table.pull("w", "second").value == "two" and table.pull("w", 1) is None
    report = table.report()
    assert (report["accepted"], report["refused"], report["dropped_for_depth"]) == (3, 3, 1)
    assert table.remove("w") and not table.remove("w") and table.pull("w") is None


def test_the_rules_of_machin(table):
    table = table(rules="machin", depth=2)
    assert table.push("w", "one", 1, previous=7), "an unknown key takes any push"
    assert table.push("w", "two", 2, previous=1)
    assert table.push("w", "one again", 1, previous=2).outcome == "overwritten"
    assert table.pull("w").value == "two" and table.pull("w", 1).value == "one again"


def test_values_are_kept_as_they_were_pushed(table):
    table = table()
    array = np.arange(5.0)
    value = {"array": array, "nested": [array[:2], {"text": "x"}], "number": 2.5, "none": None}
    table.push("w", value, 1)
    array[:] = -1
    pulled = table.pull("w").value
    np.testing.assert_array_equal(pulled["array"], np.arange(5.0))
    np.testing.assert_array_equal(pulled["nested"][0], np.arange(2.0))
    assert (pulled["nested"][1], pulled["number"], pulled["none"]) == ({"text": "x"}, 2.5, None)
    pulled["array"][:] = 7
    np.testing.assert_array_equal(table.pull("w").value["array"], np.arange(5.0))
    table.push("w", KeyError("any object"), 2, previous=1)
    assert repr(table.pull("w").value) == "KeyError('any object')"


def test_torch_comes_back_as_torch(table):
    torch = pytest.importorskip("torch")
    table = table()
    table.push("w", {"weight": torch.arange(3.0)}, 1)
    for share in (False, True):
        pulled = table.pull("w", share=share).value["weight"]
        assert isinstance(pulled, torch.Tensor) and pulled.tolist() == [0.0, 1.0, 2.0]


def test_changes_alone_move(table):
    table = table(depth=3)
    first = {"big": np.zeros(100_000), "small": np.ones(2), "gone": 5}
    table.push("w", first, 1)
    bytes_before = table.report()["bytes"]
    assert table.push_changes("w", {"small": np.full(2, 3.0), "new": "here"}, 2, previous=1, removed=["gone"])
    assert table.report()["bytes"] - bytes_before < 1_000, "what has not changed is there once"
    assert table.push_changes("w", {"small": 0}, 3, previous=1).outcome == "stale"
    pulled = table.pull("w", newer_than=1)
    assert (pulled.version, pulled.kind, pulled.removed) == (2, "changes", ["gone"])
    assert set(pulled.value) == {"small", "new"}
    whole = pulled.applied_to(first)
    assert list(whole) == ["big", "small", "new"] and whole["big"] is first["big"]
    np.testing.assert_array_equal(whole["small"], np.full(2, 3.0))
    assert table.pull("w", newer_than=2).is_unchanged and table.pull("w", newer_than=2).applied_to(whole) is whole
    assert table.pull("w", newer_than="unknown").kind == "whole"
    with pytest.raises(sheave.NotFound, match="nothing"):
        table.push_changes("w", {}, 3, previous=2, removed=["nothing"])
    with pytest.raises(sheave.InvalidArgument, match="expected one of them"):
        table.pull("w", 1, newer_than=1)
    with pytest.raises(TypeError, match="changes of a list"):
        pulled.applied_to([])


def test_a_pin_keeps_a_version(table):
    table = table()
    table.push("w", "one", 1)
    with table.pin("w") as pin:
        assert pin.version == 1 and table.push("w", "two", 2, previous=1)
        assert table.versions("w") == [1, 2] and table.report()["pins"] == 1
    assert table.versions("w") == [2] and pin.release() is False
    assert table.pin("w", 1) is None
    with pytest.raises(sheave.InvalidArgument, match="lease"):
        table.pin("w", lease=0)
    pin = table.pin("w", lease=3600)
    del pin
    assert table.report()["pins"] == 0


def test_bounds_are_said(table):
    table = table(bytes_max=10_000, keys_max=2, depth=4)
    table.push("a", np.zeros(500), 1)
    pushed = table.push("a", np.zeros(1_000), 2, previous=1)
    assert pushed.dropped == [("a", 1)] and table.report()["dropped_for_bytes"] == 1
    with pytest.raises(sheave.LimitExceeded):
        table.push("b", np.zeros(1_000), 1)
    table.push("b", 1, 1)
    with pytest.raises(sheave.LimitExceeded):
        table.push("c", 1, 1)
    assert table.versions("a") == [2] and table.versions("b") == [1] and table.versions("c") == []


def test_what_makes_no_sense_is_refused(mesh, table):
    with pytest.raises(sheave.InvalidArgument, match="depth is 0"):
        Versions(mesh, depth=0)
    with pytest.raises(sheave.InvalidArgument, match='rules is "loose"; expected "strict" or "machin"'):
        Versions(mesh, rules="loose")
    table = table()
    with pytest.raises(sheave.InvalidArgument, match="ndarray.* as a key; expected a number"):
        table.push("w", 1, version=np.zeros(2))
    with pytest.raises(sheave.DeadlineExceeded):
        table.watch("never", timeout=0.01)
    assert table.report()["watches"] == 0
    with pytest.raises(sheave.NotFound):
        mesh.rpc_group("empty", timeout=PATIENCE).versions("none", timeout=PATIENCE)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_several_push_and_each_version_is_of_one(transport):
    rounds = 40

    def act(mesh):
        group = mesh.rpc_group("counters", timeout=PATIENCE)
        if mesh.rank == 0:
            Versions(mesh).register(group, "objects", timeout=PATIENCE)
        group.barrier(timeout=PATIENCE)
        table = group.versions("objects", timeout=PATIENCE)
        if mesh.rank == 0:
            assert table.push("count", {"count": 0}, 0, timeout=PATIENCE)
        done, known = 0, table.watch("count", timeout=PATIENCE).version
        while done < rounds:
            count = table.pull("count", timeout=PATIENCE)
            known = count.version
            value = {"count": count.value["count"] + 1}
            done += bool(table.push("count", value, known + 1, previous=known, timeout=PATIENCE))
        group.barrier(timeout=PATIENCE)
        return table.pull("count", timeout=PATIENCE)

    for count in together(act, transport=transport):
        assert (count.version, count.value) == (3 * rounds, {"count": 3 * rounds})


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_watch_ends_when_there_is_more(transport):
    def act(mesh):
        group = mesh.rpc_group("watched", timeout=PATIENCE)
        if mesh.rank == 0:
            Versions(mesh).register(group, "objects", timeout=PATIENCE)
        group.barrier(timeout=PATIENCE)
        table = group.versions("objects", timeout=PATIENCE)
        watch = table.watch("w", async_op=True)
        group.barrier(timeout=PATIENCE)
        if mesh.rank == 1:
            table.push("w", {"array": np.arange(10_000)}, "first", timeout=PATIENCE)
        seen = watch.wait(PATIENCE)
        assert seen.version == "first" and seen.value["array"].sum() == 49_995_000
        shared = table.pull("w", share=True, timeout=PATIENCE).value["array"]
        assert shared.sum() == 49_995_000 and not shared.flags.writeable
        group.barrier(timeout=PATIENCE)

    together(act, transport=transport)


SERVER = """
    import sys, time, sheave
    mesh = sheave.Mesh(rank=0, size=2, root=sys.argv[1], join_timeout=30)
    group = mesh.rpc_group("all", timeout=30)
    versions = sheave.versions.Versions(mesh)
    versions.register(group, "objects", timeout=30)
    group.barrier(timeout=30)
    print("ready")
    time.sleep(600)
"""


def test_a_server_that_is_killed_ends_all_waits(start):
    root = free_root()
    server = start(SERVER, root)
    with sheave.Mesh(rank=1, size=2, root=root, join_timeout=PATIENCE) as mesh:
        group = mesh.rpc_group("all", timeout=PATIENCE)
        group.barrier(timeout=PATIENCE)
        assert server.line() == "ready"
        table = group.versions("objects", timeout=PATIENCE)
        assert table.push("w", np.ones(1_000), 1, timeout=PATIENCE)
        pin, watch = table.pin("w", timeout=PATIENCE), table.watch("w", 1, async_op=True)
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(sheave.PeerLost, match="rank-0"):
            watch.wait(PATIENCE)
        with pytest.raises(sheave.PeerLost, match="rank-0"):
            table.pull("w", timeout=PATIENCE)
        with pytest.raises(sheave.PeerLost):
            pin.release()


READER = """
    import sys, time, sheave
    mesh = sheave.Mesh(rank=1, size=2, root=sys.argv[1], join_timeout=30)
    group = mesh.rpc_group("all", timeout=30)
    group.barrier(timeout=30)
    table = group.versions("objects", timeout=30)
    pin, watch = table.pin("w", timeout=30), table.watch("w", 1, async_op=True)
    print(table.report(timeout=30)["watches"], flush=True)
    time.sleep(600)
"""


def test_what_a_killed_reader_held_is_free(start):
    root = free_root()
    reader = start(READER, root)
    with sheave.Mesh(rank=0, size=2, root=root, join_timeout=PATIENCE) as mesh:
        group = mesh.rpc_group("all", timeout=PATIENCE)
        versions = Versions(mesh)
        versions.register(group, "objects", timeout=PATIENCE)
        table = group.versions("objects", timeout=PATIENCE)
        table.push("w", "one", 1, timeout=PATIENCE)
        group.barrier(timeout=PATIENCE)
        assert reader.line() == "1"
        assert (versions.report()["pins"], versions.report()["watches"]) == (1, 1)
        os.kill(reader.pid, signal.SIGKILL)
        until(lambda: (versions.report()["pins"], versions.report()["watches"]) == (0, 0))
        assert table.push("w", "two", 2, previous=1, timeout=PATIENCE)
        assert table.versions("w", timeout=PATIENCE) == [2]


# Guests of the process that has the table.


def guests_table(key="objects"):
    """The table of the host, in a guest."""
    return current_guest().versions("guests", key)


def use_a_table(big):
    """What a guest does with a table, and what it sees."""
    table = guests_table()
    pushed = table.push("w", {"big": np.ones(big), "small": 1}, 1, timeout=PATIENCE)
    assert table.push("odd", KeyError("odd"), 1, timeout=PATIENCE)
    changed = table.push_changes("w", {"small": 2}, 2, previous=1, timeout=PATIENCE)
    pulled = table.pull("w", share=True, timeout=PATIENCE)
    assert pulled.value["big"].sum() == big and not pulled.value["big"].flags.writeable
    assert table.pull("w", newer_than=2, timeout=PATIENCE).is_unchanged
    assert table.pull("w", newer_than=1, timeout=PATIENCE).value == {"small": 2}
    assert table.push("w", "lost", 3, previous=1, timeout=PATIENCE).outcome == "stale"
    with table.pin("w", timeout=PATIENCE) as pin:
        pinned = pin.version
    return pushed.outcome, changed.newest, pinned, table.versions("w", timeout=PATIENCE)


def watch_for(newer_than):
    return guests_table().watch("w", newer_than, timeout=PATIENCE)


def hold(newer_than):
    """Pins the newest version, and watches for another one for as long as this process lives."""
    table = guests_table()
    held = table.pin("w", lease=3600, timeout=PATIENCE), table.watch("w", newer_than, async_op=True)
    globals()["held"] = held
    return table.report(timeout=PATIENCE)["watches"]


def failure_of(key):
    """What a guest hears that pulls from this table."""
    try:
        guests_table(key).pull("w", timeout=PATIENCE)
    except sheave.SheaveError as error:
        return type(error).__name__, str(error)


@pytest.fixture
def hosting():
    """A mesh that hosts guests, its table for them, and one for members alone."""
    with sheave.Mesh(rank=0, size=1, root=free_root(), join_timeout=PATIENCE) as mesh:
        group = mesh.rpc_group("guests", timeout=PATIENCE)
        versions = Versions(mesh, depth=2, has_guests=True)
        versions.register(group, "objects", timeout=PATIENCE)
        Versions(mesh).register(group, "for members", timeout=PATIENCE)
        yield mesh, versions


def test_a_guest_uses_a_table_of_its_host(hosting):
    mesh, versions = hosting
    table = versions.client()
    with sheave.Fleet(2, mesh=mesh) as fleet:
        one, other = fleet.guests
        assert fleet.call(one, use_a_table, (50_000,), timeout=PATIENCE) == ("accepted", 2, 2, [1, 2])
        assert repr(table.pull("odd").value) == "KeyError('odd')", "the host opens what its own guest has pickled"
        watch = fleet.call(other, watch_for, (2,), async_op=True)
        until(lambda: versions.report()["watches"] == 1)
        assert table.push("w", {"small": 3}, 3, previous=2)
        seen = watch.wait(PATIENCE)
        assert (seen.version, seen.value) == (3, {"small": 3})
        kind, said = fleet.call(one, failure_of, ("for members",), timeout=PATIENCE)
        assert kind == "NotPermitted", said
        kind, said = fleet.call(one, failure_of, ("none",), timeout=PATIENCE)
        assert kind == "NotFound", said


def test_what_a_killed_guest_held_is_free(hosting):
    mesh, versions = hosting
    table = versions.client()
    table.push("w", "one", 1)
    with sheave.Fleet(1, mesh=mesh, output="quiet") as fleet:
        (victim,) = fleet.guests
        assert fleet.call(victim, hold, (1,), timeout=PATIENCE) == 1
        assert (versions.report()["pins"], versions.report()["watches"]) == (1, 1)
        os.kill(victim.pid, signal.SIGKILL)
        until(lambda: (versions.report()["pins"], versions.report()["watches"]) == (0, 0))
        assert table.push("w", "two", 2, previous=1) and table.push("w", "three", 3, previous=2)
        assert table.versions("w") == [2, 3]
        until(lambda: any(event.what == "ended" for event in fleet.events()))
        heir = fleet.guest(0, timeout=PATIENCE)
        assert fleet.call(heir, watch_for, (2,), timeout=PATIENCE).value == "three"


GUEST = """
    import sheave
    with sheave.Guest() as guest:
        table = guest.versions("guests", "objects")
        watch = table.watch("w", async_op=True)
        print(table.report(timeout=60)["watches"], flush=True)
        for act in (watch.wait, lambda: table.pull("w", timeout=60)):
            try:
                print("nothing", act())
            except sheave.SheaveError as error:
                print(type(error).__name__, error, flush=True)
"""

HOST = """
    import sys, time, sheave
    mesh = sheave.Mesh(rank=0, size=1, root=sys.argv[1], join_timeout=60)
    group = mesh.rpc_group("guests", timeout=60)
    versions = sheave.versions.Versions(mesh, has_guests=True)
    versions.register(group, "objects", timeout=60)
    # As for a process that this one starts itself, but one that does not end with it.
    print(sheave._core._invite_for_queues(mesh)[0])
    time.sleep(600)
"""


def test_a_host_that_is_killed_ends_the_calls_of_its_guest(start):
    host = start(HOST, free_root())
    guest = start(GUEST, SHEAVE_INVITATION=host.line())
    assert guest.line() == "1"
    os.kill(host.pid, signal.SIGKILL)
    for _ in range(2):
        said = guest.line()
        assert said.startswith("PeerLost") and "rank-0" in said, said
    guest.finish(PATIENCE)


def test_a_guest_that_its_host_has_not_started_is_refused(hosting, start):
    mesh, versions = hosting
    guest = start(GUEST, SHEAVE_INVITATION=mesh.invite("stranger"))
    status, _, said = guest.finish(PATIENCE)
    assert status != 0 and "NotPermitted" in said and "started itself" in said, said
    assert (versions.report()["keys"], versions.report()["watches"]) == (0, 0)
