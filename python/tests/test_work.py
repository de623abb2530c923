"""Works: waits, callbacks, asyncio, cancelling and their course."""

import asyncio
import gc
import os
import threading
import time
import weakref

import numpy as np
import pytest
import sheave
from conftest import together


@pytest.fixture
def pending(pair):
    """A function that begins a receive, and one that lets the oldest one end."""
    one, link, other, back = pair
    tags = iter(range(1, 100_000))
    begun = []

    def begin():
        tag = next(tags)
        begun.append(tag)
        return other.irecv(back, tag=tag)

    def end():
        one.send(link, b"done", tag=begun.pop(0))

    return begin, end


def test_callbacks_run_once_on_their_own_thread(pending):
    begin, end = pending
    work, calls, called = begin(), [], threading.Semaphore(0)

    def callback(ended):
        calls.append((ended, threading.current_thread().name, threading.current_thread().daemon))
        called.release()

    work.add_done_callback(callback)
    work.add_done_callback(callback)
    assert not calls and not work.done()
    end()
    for _ in range(2):
        assert called.acquire(timeout=10)
    assert calls == [(work, "sheave-callbacks", True)] * 2
    work.add_done_callback(callback)
    assert called.acquire(timeout=10) and len(calls) == 3
    assert bytes(calls[0][0].result()) == b"done"


def test_a_callback_that_raises_ends_nothing(pending, monkeypatch):
    import sys

    begin, end = pending
    seen, called = [], threading.Event()
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: seen.append(unraisable.exc_value))
    work = begin()
    work.add_done_callback(lambda _: 1 / 0)
    work.add_done_callback(lambda _: called.set())
    end()
    assert called.wait(10)
    assert [type(value) for value in seen] == [ZeroDivisionError]


def test_a_work_is_given_back_with_its_callbacks(pending):
    begin, end = pending
    called = threading.Event()

    class Callback:
        def __call__(self, work):
            called.set()

    work, callback = begin(), Callback()
    gone = [weakref.ref(work), weakref.ref(callback)]
    work.add_done_callback(callback)
    del work, callback
    assert all(reference() is not None for reference in gone), "the operation holds what it will call"
    end()
    assert called.wait(10)
    until = time.monotonic() + 10
    while any(reference() is not None for reference in gone) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.005)
    assert all(reference() is None for reference in gone)


def test_await(pending):
    begin, end = pending

    async def awaited(work):
        return await work

    async def main():
        work = begin()
        asyncio.get_running_loop().call_later(0.05, end)
        assert bytes(await work) == b"done"
        assert await work is await work
        late = begin()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(awaited(late), 0.05)
        assert not late.done()
        end()
        assert bytes(await late) == b"done"

    asyncio.run(main())


def test_a_failure_is_raised_where_it_is_awaited(pending):
    begin, _ = pending

    async def main():
        work = begin()
        asyncio.get_running_loop().call_later(0.05, work.cancel)
        with pytest.raises(sheave.Cancelled):
            await work
        with pytest.raises(sheave.Cancelled):
            await work

    asyncio.run(main())


def test_a_thousand_works_in_one_loop(pair):
    one, link, other, back = pair

    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    async def main():
        await ready()
        before = descriptors()
        works = [other.irecv(back, tag=tag) for tag in range(1000)]
        tasks = [asyncio.ensure_future(of(work)) for work in works]
        await asyncio.sleep(0)
        assert descriptors() <= before + 1
        sender = threading.Thread(target=lambda: [one.send(link, bytes([tag % 256]), tag=tag) for tag in range(1000)])
        sender.start()
        received = await asyncio.wait_for(asyncio.gather(*tasks), 30)
        sender.join()
        return [bytes(tensor)[0] for tensor in received]

    async def of(work):
        return await work

    async def ready():
        work = other.irecv(back, tag=5000)
        one.send(link, b"x", tag=5000)
        await work

    assert asyncio.run(main()) == [tag % 256 for tag in range(1000)]
    before = descriptors()
    for _ in range(20):
        asyncio.run(ready())
    gc.collect()
    assert descriptors() <= before + 1, "each loop gives its descriptor back"


def test_the_loop_goes_on_while_works_are_awaited(pending):
    begin, end = pending

    async def main():
        ticks = []

        async def tick():
            while True:
                ticks.append(time.monotonic())
                await asyncio.sleep(0.01)

        ticker = asyncio.ensure_future(tick())
        asyncio.get_running_loop().call_later(1.5, end)
        await begin()
        ticker.cancel()
        return ticks

    ticks = asyncio.run(main())
    assert len(ticks) > 10 and max(after - before for before, after in zip(ticks, ticks[1:])) < 1.0


def test_a_loop_that_was_closed_meanwhile_harms_nobody(pending):
    begin, end = pending

    async def give_up(work):
        task = asyncio.ensure_future(of(work))
        await asyncio.sleep(0)
        task.cancel()

    async def of(work):
        return await work

    left = begin()
    asyncio.run(give_up(left))
    end()
    assert bytes(left.wait(10)) == b"done"
    again = begin()
    end()
    assert bytes(asyncio.run(of(again))) == b"done"


@pytest.mark.parametrize("busy", ["while True: pass", "time.sleep(600)", "while True: time.sleep(0.001)"])
def test_exit_while_a_callback_runs(start, busy):
    program = f"""
        import threading, time, sheave
        begun = threading.Event()

        def callback(work):
            begun.set()
            {busy}

        mesh = sheave.Mesh()
        mesh.world.barrier(async_op=True).add_done_callback(callback)
        assert begun.wait(10)
    """
    assert start(program).succeed(timeout=20) == ""


def test_a_callback_that_holds_the_thread_is_told_once_and_by_its_operation(start):
    program = start("""
        import sys, threading, sheave, numpy as np
        mesh = sheave.Mesh()
        ends, ended = threading.Event(), threading.Event()
        mesh.world.barrier(async_op=True).add_done_callback(lambda work: ends.wait())
        # It never runs before the one that holds the thread has ended, so it could not let it end.
        mesh.world.all_reduce(np.zeros(3), async_op=True).add_done_callback(lambda work: ended.set())
        sys.stdin.readline()
        ends.set()
        assert ended.wait(60)
    """)
    said = program.process.stderr.readline()
    assert said.startswith("sheave: a callback of barrier has been running for 1 s") and "hint: " in said, said
    program.tell()
    assert program.finish(timeout=60) == (0, "", "")


def test_callbacks_that_are_quick_are_not_told_however_many_they_are(start):
    program = start("""
        import threading, time, sheave
        mesh = sheave.Mesh()
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            ended = threading.Event()
            mesh.world.barrier(async_op=True).add_done_callback(lambda work: ended.set())
            assert ended.wait(60)
    """)
    assert program.finish(timeout=60) == (0, "", "")


def test_collectives_in_a_loop():
    def act(mesh):
        async def main():
            arrays = [np.full(10, mesh.rank + index) for index in range(20)]
            works = [mesh.world.all_reduce(array, async_op=True) for array in arrays]
            return [(await work)[0] for work in works]

        return asyncio.run(main())

    assert together(act, 2) == [[2 * index + 1 for index in range(20)]] * 2


def test_the_course_of_a_work(pending):
    begin, end = pending
    before = time.monotonic_ns()
    work = begin()
    trace = work.trace()
    assert trace["operation"] == "recv" and trace["ended_ns"] is None
    end()
    work.wait(10)
    trace = work.trace()
    assert before <= trace["begun_ns"] < trace["ended_ns"] <= time.monotonic_ns()
    assert "done" in repr(work) and sheave.Work[int] is not None


def test_works_are_waited_for_by_many_threads(pending):
    begin, end = pending
    work, results = begin(), []
    threads = [threading.Thread(target=lambda: results.append(work.result(20))) for _ in range(8)]
    for thread in threads:
        thread.start()
    end()
    for thread in threads:
        thread.join(20)
    assert len(results) == 8 and all(result is results[0] for result in results)


def test_cancelling_a_collective_breaks_the_group():
    def act(mesh):
        group = mesh.group([0, 1], "to be broken")
        if mesh.rank == 0:
            work = group.all_reduce(np.zeros(3), async_op=True)
            work.cancel()
            with pytest.raises(sheave.Cancelled):
                work.wait(20)
        mesh.barrier(20)
        with pytest.raises(sheave.Cancelled, match="rank 0"):
            group.all_reduce(np.zeros(3), timeout=20)
        assert isinstance(group.broken, sheave.Cancelled) and mesh.world.broken is None

    together(act, 2)
