"""What TVM's Disco gets wrong, by the numbers of the list in its specification; what is about data is tested beside."""

import gc
import logging
import os
import threading
import time
import weakref

import pytest
import sheave
import sheave.session
from sheave.session import ProcessSession, ThreadedSession

KINDS = {"threads": ThreadedSession, "processes": ProcessSession}
PATIENCE = 30


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def session(kind):
    with kind(2) as session:
        yield session


def fail_on(unlucky):
    if sheave.session.worker().id == unlucky:
        raise ZeroDivisionError("no luck")
    return "well"


def test_item_1_an_exception_comes_back_with_all_that_is_known(session):
    poisoned = session.call(fail_on, 1)
    dependent = session.call(str.upper, poisoned)
    with pytest.raises(ZeroDivisionError, match="no luck") as raised:
        session.sync(1, timeout=PATIENCE)
    told = str(raised.value.__cause__)
    assert "worker 1" in told and "fail_on" in told, told
    with pytest.raises(ZeroDivisionError):
        dependent.get(1, PATIENCE)
    assert dependent.get(0, PATIENCE) == "WELL"
    assert session.call(abs, -1).get(1, PATIENCE) == 1, "it goes on"


def test_item_2_a_function_that_there_is_not_is_named_at_the_next_wait(session):
    session.call(session.function("no such function"))
    with pytest.raises(sheave.NotFound, match="no such function"):
        session.sync(0, timeout=PATIENCE)
    with pytest.raises(sheave.NotFound, match="no such function"):
        session.sync(1, timeout=PATIENCE)


def test_item_4_after_the_end_everything_raises_and_drops_are_silent(kind):
    session = kind(2)
    register = session.call(abs, -1)
    session.shutdown()
    session.shutdown()
    for act in (lambda: session.call(abs, -1), session.sync, register.get, lambda: session.function("abs")):
        with pytest.raises(sheave.Closed):
            act()
    del register


def test_item_4_a_session_in_a_cycle_is_collected():
    class Owner:
        pass

    owner = Owner()
    owner.session, owner.itself = ThreadedSession(1), owner
    owner.kept = owner.session.call(abs, -1)
    seen = weakref.ref(owner.session)
    del owner
    gc.collect()
    assert seen() is None


def test_item_5_nothing_is_fetched_as_nothing(session):
    nothing = session.call(lambda: None)
    assert [nothing.get(worker, PATIENCE) for worker in range(2)] == [None, None]


def test_item_13_threads_issue_drop_and_fetch_at_once(session):
    failures = []

    def work(start):
        try:
            for number in range(start, start + 50):
                register = session.call(abs, -number)
                assert register.get(number % 2, PATIENCE) == number
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(1000 * at,)) for at in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failures and not any(thread.is_alive() for thread in threads)


def test_item_14_numbers_that_mean_nothing_are_refused_before_anything_is_sent(kind, session):
    for worker in (-1, 2, 2**40):
        with pytest.raises(sheave.InvalidArgument, match="worker"):
            session.sync(worker)
    session.sync(timeout=PATIENCE)
    for arguments in ((0,), (-1,), (2, 0), (3, 2)):
        with pytest.raises(sheave.InvalidArgument):
            kind(*arguments)


def test_item_15_what_cannot_be_sent_reaches_nobody(session):
    log = session.call(list)
    with pytest.raises(Exception, match="lock"):
        session.call(list.append, log, threading.Lock())
    session.call(list.append, log, "sent")
    assert [log.get(worker, PATIENCE) for worker in range(2)] == [["sent"]] * 2


def wait_on_1_for(path):
    until = time.monotonic() + PATIENCE
    while sheave.session.worker().id == 1 and not os.path.exists(path):
        assert time.monotonic() < until, "nobody comes"
        time.sleep(0.005)


def test_item_17_a_controller_gets_no_further_ahead_than_it_may(session, tmp_path):
    go_on = tmp_path / "go on"
    session.call(wait_on_1_for, str(go_on))
    identity = session.function(abs)
    # Long enough for worker 0 to have done all.
    with pytest.raises(sheave.DeadlineExceeded, match="worker 1 takes no more commands"):
        for _ in range(100_000):
            session.call(identity, 1, timeout=2)
    go_on.touch()
    session.sync(timeout=PATIENCE)


def test_item_19_what_cannot_be_pickled_of_logging_hinders_nobody():
    handler = logging.StreamHandler()
    handler.setFormatter(type("Local", (logging.Formatter,), {"lock": threading.Lock()})())
    logging.getLogger().addHandler(handler)
    try:
        with ProcessSession(2) as session:
            assert session.call(os.getpid).get(1, PATIENCE) != os.getpid()
    finally:
        logging.getLogger().removeHandler(handler)
