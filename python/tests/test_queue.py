"""sheave.pool.Queue: the interface of multiprocessing's, and what it adds."""

import asyncio
import gc
import multiprocessing
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import sheave
import sheave.pool
from conftest import in_a_wait, together
from sheave import Closed
from sheave.pool import Queue

pytestmark = pytest.mark.timeout(60)
PATIENCE = 20
SHORT = 0.2

SPAWN = multiprocessing.get_context("spawn")


def started(target, *args, context=SPAWN, daemon=True):
    process = context.Process(target=target, args=args, daemon=daemon)
    process.start()
    return process


def ended(process):
    process.join(PATIENCE)
    assert not process.is_alive()
    return process.exitcode


def until(holds):
    """Wait until it holds, for which others have to notice something."""
    limit = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.005)


def test_items_come_in_their_order():
    items = Queue()
    objects = [0, "text", None, (1, [2, {"three": 4.0}]), b"bytes", {5}, sheave.Peer("x"), 1 << 100]
    for item in objects:
        items.put(item)
    assert items.qsize() == len(objects) and not items.empty() and not items.full()
    assert [items.get(timeout=PATIENCE) for _ in objects] == objects
    assert items.empty() and items.qsize() == 0
    assert repr(items).startswith("<sheave.pool.Queue queue-")


def test_there_are_no_more_items_than_it_may_have():
    items = Queue(2)
    assert items.maxsize == 2
    items.put(1)
    items.put_nowait(2)
    assert items.full()
    for put in (lambda: items.put_nowait(3), lambda: items.put(3, False), lambda: items.put(3, timeout=0.0)):
        with pytest.raises(queue.Full):
            put()
    began = time.monotonic()
    with pytest.raises(sheave.pool.Full, match="no room in queue") as raised:
        items.put(3, timeout=SHORT)
    assert SHORT <= time.monotonic() - began < 5
    assert isinstance(raised.value, (TimeoutError, sheave.DeadlineExceeded)) and raised.value.op == "put"
    assert [items.get(), items.get_nowait()] == [1, 2]
    assert Queue(0).maxsize == Queue(-1).maxsize == 0
    with pytest.raises(TypeError, match="maxsize must be an int"):
        Queue("two")


def test_a_get_waits_no_longer_than_it_is_told():
    items = Queue()
    for get in (items.get_nowait, lambda: items.get(False), lambda: items.get(timeout=0)):
        with pytest.raises(queue.Empty):
            get()
    began = time.monotonic()
    with pytest.raises(sheave.pool.Empty, match="nothing came in queue") as raised:
        items.get(timeout=SHORT)
    assert SHORT <= time.monotonic() - began < 5
    assert isinstance(raised.value, (TimeoutError, sheave.DeadlineExceeded)) and raised.value.op == "get"
    with pytest.raises(ValueError):
        items.get(timeout=-1.0)


def test_a_closed_queue_is_emptied_and_then_says_so():
    items = Queue()
    items.put(1)
    items.put(2)
    items.close()
    items.close()
    items.join_thread()
    items.cancel_join_thread()
    with pytest.raises(Closed, match="was closed"):
        items.put(3)
    assert list(items) == [1, 2]
    with pytest.raises(Closed):
        items.get_nowait()


def test_what_cannot_be_pickled_is_refused_where_it_is_put():
    items = Queue()
    with pytest.raises(sheave.InvalidArgument, match="cannot be pickled"):
        items.put(threading.Lock())
    with pytest.raises(sheave.InvalidArgument, match="a reference is of a mesh"):
        with sheave.Mesh(rank=0, size=1, root=f"127.0.0.1:{sheave._core._free_port()}") as mesh:
            items.put(mesh.export([1]))
    items.put(1)
    assert items.get() == 1


def test_threads_share_it():
    items, results = Queue(16), Queue()

    def work():
        for number in iter(items.get, None):
            results.put(number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in [*range(400), *[None] * 4]:
        items.put(number, timeout=PATIENCE)
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert sorted(results.get_nowait() for _ in range(400)) == list(range(400))


def produce(items, numbers):
    for number in numbers:
        items.put(number)


def sums(items, results):
    results.put(sum(items))


def test_children_put_and_take():
    items, results = Queue(), Queue()
    consumers = [started(sums, items, results) for _ in range(2)]
    producers = [started(produce, items, range(2_000)) for _ in range(2)]
    assert [ended(process) for process in producers] == [0, 0]
    items.close()
    assert results.get(timeout=PATIENCE) + results.get(timeout=PATIENCE) == 2 * sum(range(2_000))
    assert [ended(process) for process in consumers] == [0, 0]
    assert items.lost() == [] and results.empty()


def one_by_one(items, results):
    for item in items:
        results.put(item)


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_many_small_items_pass_in_their_order(context):
    items, results = Queue(), Queue(8)
    child = started(one_by_one, items, results, context=multiprocessing.get_context(context))
    produce(items, range(3_000))
    items.close()
    assert [results.get(timeout=PATIENCE) for _ in range(3_000)] == list(range(3_000))
    assert ended(child) == 0
    assert items.lost() == []


def tells(items, results):
    def outcome(act):
        try:
            return act()
        except Exception as error:
            return type(error)

    began = time.monotonic()
    results.put(
        [
            outcome(lambda: items.put(1)),
            outcome(lambda: items.put_nowait(2)),
            outcome(lambda: items.put(2, timeout=SHORT)),
            (items.qsize(), items.empty(), items.full(), items.maxsize),
            outcome(items.get_nowait),
            outcome(items.get_nowait),
            outcome(lambda: items.get(timeout=SHORT)),
            outcome(items.task_done),
            outcome(items.lost),
            2 * SHORT <= time.monotonic() - began < 5,
        ]
    )
    items.close()
    results.put(outcome(items.get))


def test_ends_say_what_the_home_says():
    items, results = Queue(1), Queue()
    child = started(tells, items, results)
    full, empty = sheave.pool.Full, sheave.pool.Empty
    said = results.get(timeout=PATIENCE)
    assert said == [None, full, full, (1, False, True, 1), 1, empty, empty, ValueError, sheave.InvalidArgument, True]
    assert results.get(timeout=PATIENCE) is sheave.Closed
    assert ended(child) == 0


def doubles(items, results):
    for array in items:
        array *= 2
        results.put((array, array.flags.writeable))


@pytest.mark.parametrize("elements", [3, 5_000, 1 << 19])
def test_arrays_are_captured_and_private(elements):
    items, results = Queue(), Queue()
    child = started(doubles, items, results)
    array = np.ones(elements)
    for number in range(4):
        array[:] = number
        items.put(array)
        array[:] = -1
    for number in range(4):
        result, was_writeable = results.get(timeout=PATIENCE)
        assert was_writeable and (result == 2 * number).all() and result.shape == array.shape
        result += 1
    here = Queue()
    here.put(array)
    taken = here.get()
    taken[:] = 5
    assert (array == -1).all()
    items.close()
    assert ended(child) == 0


def count_up(items):
    array = items.get()
    array += 1
    items.task_done()


def test_an_array_may_be_shared():
    items = Queue()
    counts = sheave.empty(1 << 16, "int64")
    counts.numpy()[:] = 0
    items.put(sheave.pool.Share(counts))
    assert ended(started(count_up, items)) == 0
    assert (counts.numpy() == 1).all()
    assert items.lost() == []


def takes(items, results, count):
    for _ in range(count):
        results.put((os.getpid(), items.get(timeout=PATIENCE)))


def test_workers_of_a_pool_take_and_put():
    with sheave.pool.Pool(2) as pool:
        items, results = Queue(), Queue()
        produce(items, range(200))
        pool.starmap(takes, [(items, results, 50)] * 4)
        taken = [results.get_nowait() for _ in range(200)]
        assert sorted(number for _, number in taken) == list(range(200))
        assert os.getpid() not in {pid for pid, _ in taken}
        # What comes back is the queue itself.
        assert pool.apply(lambda: items) is items
        assert items.lost() == []


_given = None


def give(items):
    global _given
    _given = items


def put_given(number):
    _given.put(number)


def test_an_initializer_may_have_it():
    items = Queue()
    with sheave.pool.Pool(2, give, (items,)) as pool:
        pool.map(put_given, range(10))
    assert sorted(items.get_nowait() for _ in range(10)) == list(range(10))
    guests = sheave.default_mesh().guests()
    assert not any("queue" in guest.name for guest in guests), guests


def members(mesh):
    if mesh.rank == 0:
        items = Queue(mesh=mesh)
        mesh.serve("items", lambda: items)
        mesh.barrier(timeout=PATIENCE)
        mesh.barrier(timeout=PATIENCE)
        return sorted(items.get_nowait() for _ in range(mesh.size - 1))
    mesh.barrier(timeout=PATIENCE)
    mesh.call(0, "items").put(mesh.rank)
    mesh.barrier(timeout=PATIENCE)
    return None


def test_members_of_a_mesh_have_it_from_a_call(start):
    assert together(members)[0] == [1, 2]
    root = f"127.0.0.1:{sheave._core._free_port()}"
    other = start(
        """
        import sys, sheave, sheave.pool
        with sheave.init(rank=1, size=2, root=sys.argv[1]) as mesh:
            mesh.barrier(timeout=20)
            items = mesh.call(0, "items")
            for item in items:
                items, results = item
                results.put("for you")
                print(items.get(timeout=20))
                break
            mesh.barrier(timeout=20)
        """,
        root,
    )
    with sheave.Mesh(rank=0, size=2, root=root) as mesh:
        items, first, results = Queue(mesh=mesh), Queue(mesh=mesh), Queue(mesh=mesh)
        mesh.serve("items", lambda: first)
        mesh.barrier(timeout=PATIENCE)
        first.put((items, results))
        items.put("for the other")
        assert results.get(timeout=PATIENCE) == "for you"
        mesh.barrier(timeout=PATIENCE)
    assert other.succeed().strip() == "for the other"


def relay(first, second):
    assert first is not second
    for item in first:
        second.put(item)


def test_a_child_is_one_guest_for_all_queues():
    first, second = Queue(), Queue()
    child = started(relay, first, second)
    first.put("x")
    assert second.get(timeout=PATIENCE) == "x"
    named = [guest.name for guest in sheave.default_mesh().guests() if "queue" in guest.name]
    assert len(named) == 1
    assert not any(invitation.is_open() for invitation in first._invitations + second._invitations)
    first.close()
    assert ended(child) == 0


def hold(items, told):
    item = items.get()
    told.put(item)
    time.sleep(PATIENCE)


def test_a_killed_consumer_locks_nothing_and_its_item_is_told_as_lost():
    items, told = Queue(), Queue()
    produce(items, range(5))
    child = started(hold, items, told)
    assert told.get(timeout=PATIENCE) == 0
    os.kill(child.pid, signal.SIGKILL)
    until(items.lost)
    (lost,) = items.lost()
    assert (lost.number, lost.holder.pid) == (0, child.pid)
    assert isinstance(lost.error, sheave.PeerLost)
    # What it was given ahead is there again.
    assert [items.get(timeout=PATIENCE) for _ in range(4)] == [1, 2, 3, 4]
    ended(child)


def put_until_killed(items):
    for number in range(10_000_000):
        items.put(number)


def test_a_killed_producer_locks_nothing():
    items = Queue(3)
    child = started(put_until_killed, items)
    assert [items.get(timeout=PATIENCE) for _ in range(10)] == list(range(10))
    os.kill(child.pid, signal.SIGKILL)
    ended(child)
    until(lambda: not any(guest.pid == child.pid for guest in sheave.default_mesh().guests()))
    taken = []
    while not items.empty():
        taken.append(items.get(timeout=PATIENCE))
    assert taken == list(range(10, 10 + len(taken)))
    items.put("more")
    assert items.get(timeout=PATIENCE) == "more"


def done(items, told):
    told.put(items.get())
    items.task_done()
    told.put("done")
    time.sleep(PATIENCE)


def in_a_thread(items, told):
    thread = threading.Thread(target=lambda: told.put(items.get()))
    thread.start()
    thread.join()
    # Python says so before the thread is gone.
    until(lambda: not os.path.exists(f"/proc/self/task/{thread.native_id}"))
    told.put("done")
    time.sleep(PATIENCE)


def goes_on(items, told):
    told.put(items.get())
    threading.Timer(1, lambda: told.put("done")).start()
    items.get()


@pytest.mark.parametrize("act", [done, in_a_thread, goes_on])
def test_what_is_done_is_not_lost(act):
    items, told = Queue(), Queue()
    items.put(1)
    child = started(act, items, told)
    assert [told.get(timeout=PATIENCE) for _ in range(2)] == [1, "done"]
    os.kill(child.pid, signal.SIGKILL)
    ended(child)
    until(lambda: not any(guest.pid == child.pid for guest in sheave.default_mesh().guests()))
    time.sleep(0.05)
    assert items.lost() == [] and items.empty()


def fail_with_an_item(items):
    items.get()
    raise LookupError("no")


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_what_a_child_holds_that_fails_is_lost(context, capfd):
    items = Queue()
    items.put(1)
    child = started(fail_with_an_item, items, context=multiprocessing.get_context(context))
    assert ended(child) == 1
    until(items.lost)
    # What starts the others writes where it was started itself.
    assert context != "spawn" or "LookupError: no" in capfd.readouterr().err


HOME = """
    import multiprocessing, os, sys, time
    import sheave.pool

    def wait(items):
        os.write(1, b"%d\\n" % os.getpid())
        try:
            items.get()
        except sheave.PeerLost:
            os.write(1, b"lost\\n")

    if __name__ == "__main__":
        items = sheave.pool.Queue()
        children = [multiprocessing.get_context("spawn").Process(target=wait, args=(items,)) for _ in range(2)]
        for child in children:
            child.start()
        time.sleep(60)
    """


def script(tmp_path, source):
    import textwrap

    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(source))
    return subprocess.Popen(
        [sys.executable, "-u", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_children_end_when_the_home_is_killed(tmp_path):
    program = script(tmp_path, HOME)
    # They have got the queue before they say who they are.
    pids = [int(program.stdout.readline()) for _ in range(2)]
    program.kill()
    killed = time.monotonic()
    assert [program.stdout.readline().strip() for _ in range(2)] == ["lost", "lost"]
    assert time.monotonic() - killed < 1
    program.communicate(timeout=PATIENCE)
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


def test_children_have_all_when_their_parent_just_ends(tmp_path):
    program = script(
        tmp_path,
        """
        import multiprocessing
        import sheave.pool

        def show(items):
            for item in iter(items.get, None):
                print(item, flush=True)

        if __name__ == "__main__":
            items = sheave.pool.Queue()
            multiprocessing.get_context("spawn").Process(target=show, args=(items,)).start()
            for number in [*range(100), None]:
                items.put(number)
        """,
    )
    out, err = program.communicate(timeout=PATIENCE)
    assert (program.returncode, err) == (0, "")
    assert out.split() == [str(number) for number in range(100)]


def test_ctrl_c_ends_a_get_and_a_put(start):
    for act in ("items.get()", "items.put(2)", "items.get(timeout=50)"):
        program = start(
            f"""
            import sheave.pool
            items = sheave.pool.Queue(1)
            if "put" in {act!r}:
                items.put(1)
            print("waits", flush=True)
            try:
                {act}
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            """
        )
        in_a_wait(program)
        program.process.send_signal(signal.SIGINT)
        assert program.line() == "interrupted"
        program.succeed()


def test_it_is_awaited():
    items, results = Queue(1), Queue()
    child = started(one_by_one, items, results)

    async def put():
        for number in range(50):
            await items.aput(number)

    async def main():
        putting = asyncio.ensure_future(put())
        numbers = [await asyncio.wait_for(results.aget(), PATIENCE) for _ in range(50)]
        await putting
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(results.aget(), SHORT)
        items.close()
        results.put("last")
        results.close()
        return numbers, [item async for item in results]

    assert asyncio.run(main()) == (list(range(50)), ["last"])
    assert ended(child) == 0


def awaits(items, results):
    async def main():
        waiting = [asyncio.ensure_future(items.aget()) for _ in range(3)]
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(items.aget(), SHORT)
        await results.aput("waits")
        numbers = sorted([await each for each in waiting])
        await results.aput(numbers)

    asyncio.run(main())


def test_children_await_it():
    items, results = Queue(), Queue(1)
    child = started(awaits, items, results)
    assert results.get(timeout=PATIENCE) == "waits"
    produce(items, range(4))
    assert results.get(timeout=PATIENCE) == [0, 1, 2]
    assert ended(child) == 0
    assert items.get(timeout=PATIENCE) == 3


def test_pickles_are_invitations():
    items = Queue()
    assert pickle.loads(pickle.dumps(items)) is items
    until(lambda: not items._invitations[0].is_open())
    data = pickle.dumps(items)
    opened = "import pickle, sys; print(pickle.load(sys.stdin.buffer).get(timeout=20))"
    items.put("here")
    for expected in ("here", "no open invitation"):
        run = subprocess.run([sys.executable, "-c", opened], input=data, capture_output=True, timeout=PATIENCE)
        assert expected in (run.stdout + run.stderr).decode()
    data = pickle.dumps(items)
    del items
    gc.collect()
    run = subprocess.run([sys.executable, "-c", opened], input=data, capture_output=True, timeout=PATIENCE)
    assert b"no open invitation" in run.stderr
    with pytest.raises(Closed, match="not there any more"):
        pickle.loads(data)


def test_there_are_so_many_open_invitations_and_no_more():
    items = Queue()
    with pytest.raises(sheave.LimitExceeded, match="a pickle is for one process"):
        for _ in range(300):
            pickle.dumps(items)
    items.close()
    other = Queue()
    assert pickle.loads(pickle.dumps(other)) is other


def passes_on(items, results):
    try:
        SPAWN.Process(target=produce, args=(items, [1])).start()
    except sheave.InvalidArgument as error:
        results.put(str(error))


def test_an_end_is_not_passed_on():
    items, results = Queue(), Queue()
    child = started(passes_on, items, results, daemon=False)
    assert "passed on by its own process alone" in results.get(timeout=PATIENCE)
    assert ended(child) == 0


def test_a_forked_child_is_told_to_be_spawned():
    items = Queue()
    items.put(1)
    here, there = multiprocessing.Pipe()

    def use():
        said = []
        for act in (items.get, lambda: items.put(2), lambda: pickle.dumps(items), items.qsize):
            try:
                act()
            except sheave.Forked as error:
                said.append(str(error))
        there.send(said)

    child = started(use, context=multiprocessing.get_context("fork"))
    assert here.poll(PATIENCE)
    said = here.recv()
    assert len(said) == 4 and all("forked" in each and "spawn" in each for each in said), said
    assert ended(child) == 0
    assert items.get(timeout=PATIENCE) == 1


def test_a_queue_that_nobody_holds_ends():
    items, results = Queue(), Queue()
    child = started(one_by_one, items, results)
    items.put(1)
    assert results.get(timeout=PATIENCE) == 1
    del items
    gc.collect()
    assert ended(child) == 0


def test_queues_are_of_a_mesh_that_may_be_left():
    with sheave.Mesh(rank=0, size=1, root=f"127.0.0.1:{sheave._core._free_port()}") as mesh:
        items = Queue(mesh=mesh)
        items.put(1)
    with pytest.raises(Closed):
        items.put(2)
