"""`sheave.Fleet` and `sheave.Guest`: guests that come, die, are replaced and go, and whose pickles are opened."""

import os
import signal
import time

import numpy as np
import pytest
import sheave
from conftest import free_root
from sheave.fleet import current_guest


class Odd(Exception):
    """An exception of one's own."""


class Parcel:
    """Something that only a pickle carries."""

    def __init__(self, content):
        self.content = content


class Desk:
    """What a host serves in these tests."""

    def __init__(self):
        self.seen = []

    def take(self, parcel):
        self.seen.append(parcel.content)

    def give(self):
        return Parcel("the host's")

    def plain(self, number):
        return number + 1

    def fail(self):
        raise Odd("at the host")


def serve_a_desk(name):
    current_guest().serve(name, Desk())


def fail_at_once(text):
    raise ValueError(text)


def fail_if_there(path):
    if os.path.exists(path):
        raise ValueError("it is there")


def call_the_host(what, *args):
    return current_guest().call(what, args, timeout=20)


def keep(value):
    return current_guest().export(value)


def end_with(status):
    os._exit(status)


def kind_of(act, *args):
    """What a call raises, as the name of its class, for processes that open no pickles."""
    try:
        act(*args)
    except Exception as error:
        return type(error).__name__
    return "nothing"


@pytest.fixture
def mesh():
    with sheave.Mesh(rank=0, size=1, root=free_root(), join_timeout=20) as mesh:
        yield mesh


@pytest.fixture
def fleet(mesh):
    with sheave.Fleet(1, serve_a_desk, ("desk",), mesh=mesh, label="worker") as fleet:
        yield fleet


def heard(fleet, what):
    """The events of a fleet up to the first of this kind, and those that came with it."""
    until, events = time.monotonic() + 40, []
    while not any(event.what == what for event in events):
        assert time.monotonic() < until, events
        events += fleet.events()
        time.sleep(0.01)
    return events


def ended(fleet):
    """The first end among the next events of a fleet."""
    return next(event for event in heard(fleet, "ended") if event.what == "ended")


def test_guests_run_functions_and_go_with_their_fleet(mesh):
    with sheave.Fleet(2, mesh=mesh) as fleet:
        guests = fleet.guests
        assert [guest.name for guest in mesh.guests()] == sorted(guest.name for guest in guests)
        pids = [fleet.call(guest, os.getpid, timeout=20) for guest in guests]
        assert pids == [guest.pid for guest in guests]
        assert len({os.getpid(), *pids}) == 3
        works = [fleet.call(guest, np.add, ([number], 1), async_op=True) for number, guest in enumerate(guests)]
        assert [work.wait(timeout=20).tolist() for work in works] == [[1], [2]]
        both = fleet.call(guests[0].name, lambda *args, **kwargs: (args, kwargs), (1,), {"two": 2})
        assert both == ((1,), {"two": 2})
        assert [(event.what, event.error) for event in fleet.events()].count(("attached", None)) == 2
    assert mesh.guests() == []
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    fleet.close()
    with pytest.raises(sheave.Closed):
        fleet.guest(0)
    with pytest.raises(sheave.InvalidArgument, match="no guest of this node"):
        mesh.call(guests[0], "fleet.run")


def test_a_guest_that_dies_is_an_error_and_is_replaced_and_runs_its_function_again(fleet, mesh):
    (victim,) = fleet.guests
    assert mesh.call(victim, "desk.plain", (1,), timeout=20) == 2
    os.kill(victim.pid, signal.SIGKILL)
    event = ended(fleet)
    assert (event.slot, event.name, event.pid) == (0, victim.name, victim.pid)
    assert isinstance(event.error, sheave.WorkerDied) and event.error.exit_status == -signal.SIGKILL
    heir = fleet.guest(0, timeout=30)
    assert heir.name != victim.name and mesh.call(heir, "desk.plain", (2,), timeout=20) == 3
    work = fleet.call(heir, end_with, (7,), async_op=True)
    with pytest.raises(sheave.PeerLost, match=heir.name):
        work.wait(timeout=20)
    event = ended(fleet)
    assert event.error.exit_status == 7
    assert fleet.wait(timeout=30)[0].name not in (victim.name, heir.name)


def test_a_function_that_fails_at_once_is_an_error_with_its_last_lines(mesh):
    begun = time.monotonic()
    with pytest.raises(sheave.WorkerDied) as raised:
        sheave.Fleet(2, fail_at_once, ("no data",), mesh=mesh, output="quiet")
    assert time.monotonic() - begun < 30
    assert raised.value.exit_status == 1 and "ValueError: no data" in raised.value.last_lines
    assert "ValueError: no data" in str(raised.value)
    assert mesh.guests() == []
    with pytest.raises(sheave.InvalidArgument, match="output"):
        sheave.Fleet(1, mesh=mesh, output="loud")
    with pytest.raises(sheave.InvalidArgument, match="label"):
        sheave.Fleet(1, mesh=mesh, label="No Label")
    with pytest.raises(sheave.DeadlineExceeded, match="within"):
        sheave.Fleet(1, time.sleep, (60,), mesh=mesh, timeout=1.5)


def test_a_slot_whose_processes_fail_again_and_again_is_given_up(mesh, tmp_path):
    mark = tmp_path / "mark"
    with sheave.Fleet(1, fail_if_there, (str(mark),), mesh=mesh, restarts=2, output="quiet") as fleet:
        mark.touch()
        os.kill(fleet.guests[0].pid, signal.SIGKILL)
        events = [event.what for event in heard(fleet, "given up")]
        assert (events.count("ended"), events[-1]) == (3, "given up")
        with pytest.raises(sheave.WorkerDied, match="more than 2 times") as raised:
            fleet.guest(0, timeout=40)
        assert "it is there" in raised.value.__cause__.last_lines


def test_a_guest_ends_with_its_host(start):
    source = """
        import os, signal, sheave
        mesh = sheave.Mesh(rank=0, size=1, root=os.environ["ROOT"])
        fleet = sheave.Fleet(2, mesh=mesh)
        print(*[guest.pid for guest in fleet.guests])
        signal.pause()
    """
    host = start(source, ROOT=free_root())
    pids = [int(pid) for pid in host.line().split()]
    os.kill(host.pid, signal.SIGKILL)
    until = time.monotonic() + 5
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(is_running, pids))


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_program_without_an_invitation_is_no_guest():
    with pytest.raises(sheave.NotFound, match="no invitation"):
        sheave.Guest()
    with pytest.raises(sheave.Closed):
        current_guest()


# Doors: where a host and a guest of its own fleet open what the other has pickled.


def test_arguments_are_opened_both_ways(fleet, mesh):
    desk = Desk()
    mesh.serve("hosts", desk)
    (guest,) = fleet.guests
    mesh.call(guest, "desk.take", (Parcel("for the guest"),), timeout=20)
    assert fleet.call(guest, call_the_host, ("hosts.take", Parcel("for the host")), timeout=20) is None
    assert desk.seen == ["for the host"]


def test_results_are_opened_both_ways(fleet, mesh):
    mesh.serve("hosts", Desk())
    (guest,) = fleet.guests
    assert mesh.call(guest, "desk.give", timeout=20).content == "the host's"
    assert fleet.call(guest, lambda: call_the_host("hosts.give").content, timeout=20) == "the host's"


def test_exceptions_are_rebuilt_both_ways(fleet, mesh):
    mesh.serve("hosts", Desk())
    (guest,) = fleet.guests
    with pytest.raises(Odd, match="at the host") as raised:
        mesh.call(guest, "desk.fail", timeout=20)
    assert isinstance(raised.value.__cause__, sheave.Remote)
    assert fleet.call(guest, kind_of, (call_the_host, "hosts.fail"), timeout=20) == "Odd"


def test_references_are_opened_both_ways(fleet, mesh):
    (guest,) = fleet.guests
    kept = fleet.call(guest, keep, (Parcel("kept"),), timeout=20)
    assert kept.get(timeout=20).content == "kept" and kept.owner.name == guest.name and not kept.is_owner
    ours = mesh.export(Parcel("ours"))
    assert fleet.call(guest, lambda ref: ref.get(timeout=20).content, (ours,), timeout=20) == "ours"
    assert fleet.call(guest, lambda ref: ref.owner.name, (ours,), timeout=20) == mesh.name
    with pytest.raises(sheave.Unsupported, match="no member"):
        mesh.remote(guest, "desk.give")
    # What lives with the guest is called there.
    assert fleet.call(guest, keep, ([3, 1, 2],), timeout=20).call("index", (2,), timeout=20) == 2


def test_a_guest_that_opens_nothing_opens_nothing_of_its_host(mesh):
    mesh.serve("hosts", Desk())
    with pytest.raises(sheave.WorkerDied) as raised:
        sheave.Fleet(1, serve_a_desk, ("desk",), mesh=mesh, env={"SHEAVE_PICKLE": "never"}, output="quiet")
    assert "NotPermitted" in raised.value.last_lines and "opens no pickles" in raised.value.last_lines
    with sheave.Fleet(1, mesh=mesh, env={"SHEAVE_PICKLE": "never"}) as fleet:
        (guest,) = fleet.guests
        with pytest.raises(sheave.NotPermitted, match="opens no pickles"):
            fleet.call(guest, os.getpid, timeout=20)


NEVER = """
    import os, sheave
    from test_fleet import Desk, Odd, Parcel, kind_of
    with sheave.Mesh(rank=0, size=1, root=os.environ["ROOT"]) as mesh:
        mesh.serve("hosts", Desk())
        with sheave.Fleet(1, mesh=mesh, env={"SHEAVE_PICKLE": "members"}) as fleet:
            (guest,) = fleet.guests
            call = lambda fn, *args: fleet.call(guest, fn, args, timeout=20)
            from test_fleet import call_the_host, keep
            print(kind_of(call, Parcel, "x"))
            print(call(kind_of, call_the_host, "hosts.take", Parcel("y")))
            print(kind_of(call, lambda: call_the_host("hosts.fail")))
            print(kind_of(call(keep, Parcel("z")).get, 20))
            print(call(call_the_host, "hosts.plain", 1))
"""


def test_a_host_that_opens_nothing_opens_nothing_of_its_guests(start):
    folder = os.path.dirname(__file__)
    host = start(NEVER, ROOT=free_root(), SHEAVE_PICKLE="never", PYTHONPATH=folder)
    # A result, an argument, an exception and an object of the guest's; and what needs no pickle.
    said = host.succeed(timeout=50).split()
    assert said == ["NotPermitted", "NotPermitted", "Remote", "NotPermitted", "2"]


BY_HAND = """
    import sheave
    with sheave.Guest() as guest:
        # It gives this process another secret.
        from test_fleet import Desk, Parcel, kind_of
        guest.serve("desk", Desk())
        for what, args in (("hosts.take", (Parcel("x"),)), ("hosts.plain", (1,)), ("hosts.give", ())):
            print(kind_of(guest.call, what, args))
        guest.until_gone()
"""


def test_nothing_is_opened_of_a_guest_that_no_fleet_has_started(mesh, start):
    desk = Desk()
    mesh.serve("hosts", desk)
    invitation = mesh.invite("stranger")
    folder = os.path.dirname(__file__)
    guest = start(BY_HAND, SHEAVE_INVITATION=invitation, PYTHONPATH=folder)
    assert [guest.line() for _ in range(3)] == ["NotPermitted"] * 3
    assert desk.seen == []
    (peer,) = mesh.guests()
    assert peer.name.endswith("stranger-1") and peer.pid == guest.pid
    # It is called, and opens what its host has pickled; its own pickles are not opened.
    assert mesh.call(peer, "desk.plain", (1,), timeout=20) == 2
    mesh.call(peer, "desk.take", (Parcel("for the guest"),), timeout=20)
    with pytest.raises(sheave.NotPermitted, match="not started itself"):
        mesh.call(peer, "desk.give", timeout=20)
    with pytest.raises(sheave.Remote, match="at the host"):
        mesh.call(peer, "desk.fail", timeout=20)
    mesh.leave()
    guest.succeed()
