"""machin's processes, threads, events, exceptions and finalizers over sheave."""

import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time

import pytest
import sheave
from sheave.compat.machin.parallel.event import AndEvent, OrEvent
from sheave.compat.machin.parallel.exception import ExceptionWithTraceback
from sheave.compat.machin.parallel.process import Process, ProcessException
from sheave.compat.machin.parallel.thread import Thread, ThreadException
from sheave.compat.machin.parallel.util import Finalize

pytestmark = pytest.mark.timeout(30)
PATIENCE = 20

CONTEXTS = [multiprocessing.get_context(name) for name in ("spawn", "fork")]


def fail(text="no"):
    raise LookupError(text)


def ended(process):
    process.start()
    process.join(PATIENCE)
    assert not process.is_alive()
    return process


@pytest.fixture(params=CONTEXTS, ids=lambda context: context.get_start_method())
def context(request):
    return request.param


def test_a_process_that_ends_well_has_no_exception(context):
    here, there = context.Pipe()
    process = Process(target=there.send, args=("done",), name="mine", ctx=context, daemon=True)
    assert process.exception is None and process.name == "mine" and process.daemon
    ended(process).watch()
    assert (here.recv(), process.exitcode, process.exception) == ("done", 0, None)
    ended(Process(target=sys.exit, ctx=context)).watch()


def test_what_a_process_raises_is_raised_by_watch(context):
    process = ended(Process(target=fail, kwargs={"text": "lost"}, ctx=context))
    assert process.exitcode == 1
    for _ in range(2):
        with pytest.raises(ProcessException, match="(?s)Exception 0:.*in fail.*LookupError: lost"):
            process.watch()
    process.close()
    assert isinstance(process.exception, ProcessException)


def test_errors_of_target_and_cleaner_are_both_told(context):
    process = ended(Process(target=fail, args=("first",), cleaner=lambda: fail("second"), ctx=context))
    text = str(process.exception)
    assert "Exception 0:" in text and "first" in text and "Exception 1:" in text and "second" in text
    assert process.exitcode == 1


@pytest.mark.parametrize("target", [None, fail, sys.exit])
def test_a_cleaner_is_called_whatever_the_target_does(context, target):
    marks = context.Event()
    ended(Process(target=target, cleaner=marks.set, ctx=context))
    assert marks.is_set()


def test_exit_codes_and_signals_are_seen(context):
    def kill():
        os.kill(os.getpid(), signal.SIGKILL)

    for target, args, status, text in (
        (sys.exit, (3,), 3, "SystemExit: 3"),
        (os._exit, (7,), 7, "exit status 7"),
        (kill, (), -signal.SIGKILL, "SIGKILL"),
    ):
        process = ended(Process(target=target, args=args, ctx=context))
        assert process.exitcode == status
        with pytest.raises(ProcessException, match=text):
            process.watch()


def test_a_long_text_delays_no_end(context):
    process = ended(Process(target=fail, args=("x" * (4 << 20),), ctx=context))
    assert process.exitcode == 1 and 10_000 < len(str(process.exception)) < 100_000


def test_targets_may_be_local(context):
    here, there = context.Pipe()
    value = 5

    def local(pipe):
        pipe.send(value)

    ended(Process(target=local, args=(there,), ctx=context)).watch()
    assert here.recv() == 5


def test_watching_waits_for_the_end_of_a_process_that_has_raised():
    process = Process(target=fail, cleaner=None, ctx=CONTEXTS[0])
    process.start()
    until = time.monotonic() + PATIENCE
    with pytest.raises(ProcessException):
        while time.monotonic() < until:
            process.watch()
    assert process.exitcode == 1


def test_format_exceptions_numbers_them():
    text = Process.format_exceptions([KeyError("a"), ValueError("b")])
    assert text.index("Exception 0:") < text.index("KeyError") < text.index("Exception 1:") < text.index("ValueError")
    assert Thread.format_exceptions([KeyError("a")]).startswith("Exception 0:")


def test_a_thread_keeps_what_it_raises():
    cleaned = []
    thread = Thread(target=fail, args=("lost",), cleaner=lambda: cleaned.append(1) or fail("unclean"), daemon=True)
    assert thread.daemon and thread.exception is None
    thread.start()
    thread.join(PATIENCE)
    with pytest.raises(ThreadException, match="(?s)Exception 0:.*lost.*Exception 1:.*unclean") as raised:
        thread.watch()
    assert cleaned == [1] and isinstance(raised.value.__cause__, LookupError)
    well = Thread(target=sys.exit)
    well.start()
    well.join(PATIENCE)
    well.watch()


def test_events_that_are_set_already_wake_at_once():
    one, other = threading.Event(), threading.Event()
    either, both = OrEvent(one, other), AndEvent(one, other)
    assert not either.is_set() and not either.wait(0) and not both.wait(0.01)
    one.set()
    assert either.is_set() and either.wait() and not both.is_set()
    other.set()
    assert both.wait() and AndEvent().wait(0) and not OrEvent().wait(0)
    either.clear()
    both.set()
    assert either.is_set()
    one.clear()
    assert not both.is_set() and either.is_set()


def test_waits_for_events_end_when_they_are_set_and_in_time():
    one, other = threading.Event(), threading.Event()
    whole = OrEvent(AndEvent(one, other), AndEvent(other, OrEvent(one)))
    assert whole.get_leaf_events() == [one, other]
    begun = time.monotonic()
    assert not whole.wait(0.1)
    assert 0.1 <= time.monotonic() - begun < 1
    timer = threading.Timer(0.1, lambda: (one.set(), other.set(), other.clear()))
    begun = time.monotonic()
    timer.start()
    assert whole.wait(PATIENCE), "it is told although it is cleared again"
    assert time.monotonic() - begun < 1
    with pytest.raises(ValueError, match="int"):
        OrEvent(one, 3)


def test_no_wake_up_is_lost():
    for _ in range(300):
        one = threading.Event()
        either = OrEvent(one, threading.Event())
        thread = threading.Thread(target=one.set)
        thread.start()
        assert either.wait(PATIENCE)
        thread.join()


def test_events_keep_nothing_alive():
    leaf = threading.Event()
    made = OrEvent(leaf)
    heard = []
    Finalize(made, heard.append, ("gone",))
    del made
    gc.collect()
    leaf.set()
    assert heard == ["gone"] and leaf.is_set()


class Odd(Exception):
    def __init__(self, one, other):
        super().__init__(f"{one} {other}")


def test_exceptions_travel_as_what_they_are():
    def travelled(error):
        try:
            raise error
        except Exception as raised:
            return pickle.loads(pickle.dumps(ExceptionWithTraceback(raised)))

    found = travelled(Odd(1, 2))
    assert isinstance(found, Odd) and "in travelled" in str(found.__cause__)
    holds = LookupError("kept")
    holds.lock = threading.Lock()
    assert isinstance(travelled(holds), LookupError)

    class Hostile(Exception):
        def __setstate__(self, state):
            raise TypeError("not I")

        def __reduce__(self):
            raise TypeError("nor so")

        def __new__(cls, *args):
            if sys._getframe(1).f_code.co_name == "unpack_exception":
                raise TypeError("never")
            return super().__new__(cls, *args)

    found = travelled(Hostile("text"))
    assert isinstance(found, sheave.Remote) and "text" in str(found)


def test_a_finalizer_is_called_once():
    class Thing:
        pass

    heard = []
    thing = Thing()
    one, other = Finalize(thing, heard.append, ("one",)), Finalize(thing, heard.append, args=("other",), exitpriority=3)
    assert one.still_active() and one() is None and not one.still_active()
    other.cancel()
    third = Finalize(thing, lambda what: heard.append(what), kwargs={"what": "third"})
    del thing
    gc.collect()
    assert heard == ["one", "third"] and not third.still_active() and third() is None
    assert Finalize(None, lambda: 7)() == 7
