"""machin's queues over sheave."""

import multiprocessing
import os
import queue
import signal
import time

import numpy as np
import pytest
import sheave
from sheave.compat.machin import parallel
from sheave.compat.machin.parallel.process import Process
from sheave.compat.machin.parallel.queue import ConnectionWrapper, MultiP2PQueue, SimpleP2PQueue, SimpleQueue
from sheave.compat.machin.parallel.queue import TimeoutError as QueueTimeoutError

pytestmark = pytest.mark.timeout(60)
PATIENCE = 20
SPAWN = multiprocessing.get_context("spawn")


def started(target, *args):
    process = Process(target=target, args=args, ctx=SPAWN, daemon=True)
    process.start()
    return process


def ended(process):
    process.join(PATIENCE)
    assert not process.is_alive()
    process.watch()


def relay(items, results):
    while (item := items.get(PATIENCE)) is not None:
        results.put(item)


@pytest.mark.parametrize("kind", [SimpleQueue, SimpleP2PQueue])
@pytest.mark.parametrize("copy_tensor", [False, True])
def test_objects_pass_between_processes(kind, copy_tensor):
    items, results = kind(copy_tensor=copy_tensor), kind(copy_tensor=copy_tensor)
    process = started(relay, items, results)
    factor = 3
    for item in (1, "text", {"a": [2.0]}, lambda number: number * factor, np.arange(3)):
        items.put(item)
    assert [results.get(timeout=PATIENCE) for _ in range(3)] == [1, "text", {"a": [2.0]}]
    assert results.quick_get(PATIENCE)(2) == 6
    assert results.get(PATIENCE).tolist() == [0, 1, 2]
    items.quick_put(None)
    ended(process)
    assert items.empty() and results.empty()


def test_timeouts_are_those_of_multiprocessing():
    assert QueueTimeoutError is multiprocessing.TimeoutError is parallel.queue.TimeoutError
    items = SimpleQueue(ctx=SPAWN)
    for get in (items.get, items.quick_get, MultiP2PQueue(2).get, MultiP2PQueue(2).quick_get):
        began = time.monotonic()
        with pytest.raises(multiprocessing.TimeoutError) as raised:
            get(timeout=0.1)
        assert 0.1 <= time.monotonic() - began < 5
        assert isinstance(raised.value, queue.Empty)


def test_a_closed_queue_is_emptied():
    items = SimpleQueue()
    items.put(1)
    items.close()
    assert items.get() == 1
    for act in (items.get, lambda: items.put(2)):
        with pytest.raises(sheave.Closed):
            act()


def hold(items, results):
    results.put(items.get())
    time.sleep(PATIENCE)


def test_a_process_that_is_killed_locks_nothing():
    items, results = SimpleQueue(), SimpleQueue()
    process = started(hold, items, results)
    items.put(1)
    assert results.get(PATIENCE) == 1
    os.kill(process.pid, signal.SIGKILL)
    process.join(PATIENCE)
    items.put(2)
    assert items.get(PATIENCE) == 2




def test_several_queues_take_turns():
    queues = MultiP2PQueue(3)
    for number in range(6):
        queues.put(number)
    assert [queues.get_sub_queue(number % 3).get() for number in range(6)] == list(range(6))
    assert queues.empty()
    for number in range(6):
        queues.get_sub_queue(number % 2).put(number)
    assert not queues.empty()
    taken = [queues.quick_get(1.0) for _ in range(6)]
    assert sorted(taken) == list(range(6)) and sorted(taken[:2]) == [0, 1]
    queues.close()
    with pytest.raises(sheave.Closed):
        queues.quick_put(1)
    with pytest.raises(ValueError, match="expected 1 at least"):
        MultiP2PQueue(0)


def answer(given, results):
    for item in iter(lambda: given.get(PATIENCE), None):
        results.put((os.getpid(), item))


def test_each_process_has_a_queue_of_several():
    given, results = MultiP2PQueue(2), MultiP2PQueue(2)
    processes = [started(answer, given.get_sub_queue(each), results.get_sub_queue(each)) for each in range(2)]
    for number in range(10):
        given.quick_put(number)
    answers = [results.quick_get(PATIENCE) for _ in range(10)]
    assert sorted(number for _, number in answers) == list(range(10))
    assert {pid for pid, number in answers if number % 2} == {processes[1].pid}
    for _ in processes:
        given.put(None)
    for process in processes:
        ended(process)


def test_a_connection_may_have_a_timeout():
    one, other = (ConnectionWrapper(each) for each in multiprocessing.Pipe())
    one.send_bytes(b"bytes")
    assert other.recv_bytes(PATIENCE) == b"bytes"
    one.send({"a": 1})
    assert other.recv() == {"a": 1} and not other.poll()
    with pytest.raises(multiprocessing.TimeoutError):
        other.recv_bytes(0.05)
    one.close()
    assert one.closed
    with pytest.raises(EOFError):
        other.recv()


def add_one(items, results):
    tensor = items.get(PATIENCE)
    tensor += 1
    results.put("done")
    items.get(PATIENCE)


@pytest.mark.parametrize("copy_tensor", [False, True])
def test_tensors_are_shared_or_copied(copy_tensor):
    torch = pytest.importorskip("torch")
    items, results = SimpleQueue(copy_tensor=copy_tensor), SimpleQueue()
    process = started(add_one, items, results)
    tensor = torch.zeros(5)
    items.put(tensor)
    assert results.get(PATIENCE) == "done"
    assert tensor.tolist() == [0.0 if copy_tensor else 1.0] * 5
    items.put(None)
    ended(process)
