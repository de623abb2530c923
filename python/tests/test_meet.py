"""Processes that learn through a store, or a file, where they meet."""

import os
import threading

import pytest
import sheave
from hosts import two_hosts
from sheave.meet import bcast, gather

pytestmark = pytest.mark.timeout(90)

RANK = """
import sys, sheave, numpy as np
with sheave.init() as mesh:
    print(sheave.all_reduce(np.array([mesh.rank + 1.0]))[0])
    mesh.barrier(timeout=60)
"""


class Store:
    """A store of this process, as a client of etcd or Redis would be one."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def set(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key):
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.values, timeout=60)
            return self.values[key]

    def delete_key(self, key):
        with self.changed:
            return self.values.pop(key, None) is not None


def meeting(stores, **settings):
    """Join with each of the stores as one rank; returns what each rank has seen, or raised."""
    seen = [None] * len(stores)

    def run(rank):
        try:
            settings_of_rank = {"join_timeout": 60, **settings}
            with sheave.Mesh(rank=rank, size=len(stores), meet=stores[rank], **settings_of_rank) as mesh:
                seen[rank] = mesh.size
                mesh.barrier(timeout=60)
        except BaseException as error:
            seen[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=80)
        assert not thread.is_alive()
    return seen


def test_ranks_meet_through_a_store_which_can_be_used_again():
    store = Store()
    for _ in range(3):
        assert meeting([store] * 3) == [3, 3, 3]
        assert store.values == {}


def test_a_record_of_an_earlier_attempt_leads_nowhere():
    store = Store()
    with sheave.Node("another") as other:
        # Where another node listens now, and where nobody does.
        port = other.listen().rsplit("/", 1)[0].rsplit(":", 1)[1]
        for place in (f"sheave://127.0.0.1:{port}/?node=01", "sheave://127.0.0.1:1/?node=01"):
            store.set("sheave/root", f"sheave meeting 1\n{place}\n".encode())
            assert meeting([store] * 2) == [2, 2]
    store.set("sheave/root", b"sheave meeting 1\nfailed no port\n")
    assert meeting([store] * 2) == [2, 2]


def test_what_a_store_raises_is_raised_by_who_joins():
    class Broken(Store):
        def get(self, key):
            raise LookupError("the store is gone")

    failure = pytest.raises(LookupError, sheave.Mesh, rank=1, size=2, meet=Broken(), join_timeout=60)
    assert "the store is gone" in str(failure.value)
    with pytest.raises(TypeError, match="without set"):
        sheave.Mesh(rank=0, size=1, meet=object())
    with pytest.raises(sheave.DeadlineExceeded, match="does not say where"):
        sheave.Mesh(rank=1, size=2, meet=Store(), join_timeout=0.5)
    with pytest.raises(sheave.InvalidArgument, match="both meet= and root="):
        sheave.Mesh(rank=0, size=1, meet=Store(), root="127.0.0.1:7000")


def test_the_secret_goes_through_the_store_where_that_is_permitted(monkeypatch):
    monkeypatch.delenv("SHEAVE_SECRET")
    store, records = Store(), []
    store_set = store.set
    store.set = lambda key, value: (records.append(value), store_set(key, value))
    assert meeting([store] * 2, insecure=True) == [2, 2]
    assert b"\nsecret " in records[0]
    monkeypatch.setenv("SHEAVE_SECRET", os.urandom(16).hex())
    assert meeting([store] * 2, insecure=True) == [2, 2]
    assert b"\nsecret " not in records[1]


def test_ranks_meet_through_collective_operations_of_others():
    store, size = Store(), 2

    def broadcast(value, root):
        assert root == 0
        if value is not None:
            store.set("value", value)
        return store.get("value")

    assert meeting([bcast(broadcast), bcast(broadcast)]) == [size, size]
    store.delete_key("value")

    def all_gather(text):
        if text:
            store.set("value", text)
        return [store.get("value"), ""]

    assert meeting([gather(all_gather), gather(all_gather)]) == [size, size]


def test_a_failure_that_comes_by_a_collective_operation_is_of_no_earlier_attempt():
    with sheave.Node("another") as other:
        taken = other.listen().rsplit("/", 1)[0].rsplit(":", 1)[1]
        carried, said = [], threading.Event()

        def broadcast(value, root):
            if value is not None:
                carried.append(value)
                said.set()
            assert said.wait(timeout=60)
            return carried[0]

        first, other_rank = meeting([bcast(broadcast), bcast(broadcast)], bind=f"127.0.0.1:{taken}")
    assert isinstance(first, sheave.AlreadyExists), first
    assert isinstance(other_rank, sheave.PeerLost) and "that the others meet at failed" in str(other_rank), other_rank
    assert other_rank.elapsed is None or other_rank.elapsed < 30, other_rank


def test_processes_meet_in_a_file_which_is_gone_when_they_have_met(start, tmp_path):
    path = tmp_path / "job42"
    path.write_text("sheave meeting 1\nsheave://127.0.0.1:1/?node=0000000000000001\n")
    settings = {"SHEAVE_ROOT": f"file://{path}", "SHEAVE_WORLD_SIZE": "3"}
    programs = [start(RANK, SHEAVE_RANK=str(rank), **settings) for rank in range(3)]
    assert [program.succeed(timeout=60).strip() for program in programs] == ["6.0"] * 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.adversity("two hosts are namespaces, which need root")
def test_hosts_without_a_default_route_meet_in_a_file(start, tmp_path):
    settings = {
        "SHEAVE_ROOT": f"file://{tmp_path / 'job43'}",
        "SHEAVE_WORLD_SIZE": "3",
        "SHEAVE_BIND": "0.0.0.0:0",
        "SHEAVE_INSECURE": "1",
    }
    with two_hosts(tmp_path) as (near, far):
        placed = enumerate([near, near, far])
        programs = [start(RANK, on=host, SHEAVE_RANK=str(rank), **settings) for rank, host in placed]
        assert [program.succeed(timeout=60).strip() for program in programs] == ["6.0"] * 3
