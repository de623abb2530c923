"""Answers of particles: what functions make of them, answers that are answers, errors that nobody looks at."""

import asyncio
import gc
import threading

import pytest
import sheave
from sheave.particle import DeadlockError, Particles, wait_all
from test_particle import LIMIT_S, hold, until


@pytest.fixture
def particles():
    with Particles(devices=2, seed=7) as made:
        yield made


def double(particle, number):
    if number < 0:
        raise ValueError(f"{number} is below zero")
    return 2 * number


def test_a_function_makes_an_answer_of_an_answer(particles):
    doubler = particles.create(receive={"double": double})
    calls = []

    def noted(value):
        calls.append((value, threading.get_ident()))
        return [value]

    made = particles.send(doubler, "double", 21).then(noted)
    assert repr(made).startswith("<sheave.particle.Answer ")
    until(made.done)
    assert calls == [], "it runs where it is waited for"
    assert made.wait() == [42] and made.wait() is made.wait(timeout=LIMIT_S), "once"
    assert calls == [(42, threading.get_ident())] and made.done() and made.exception() is None
    row = particles.send(doubler, "double", 1).then(lambda value: value + 1).then(str)
    assert row.wait() == "3"
    # An exception is that of all that is made of it.
    failed = particles.send(doubler, "double", -1)
    made = failed.then(noted)
    for _ in range(2):
        with pytest.raises(ValueError, match="-1 is below zero"):
            made.wait()
    assert made.exception() is failed.exception() and len(calls) == 1
    with pytest.raises(ZeroDivisionError):
        particles.send(doubler, "double", 0).then(lambda value: 1 / value).wait()


def test_a_function_runs_once_for_all_who_wait(particles):
    doubler = particles.create(receive={"double": double})
    gate, entered, calls = threading.Event(), threading.Event(), []

    def slow(value):
        calls.append(value)
        entered.set()
        assert gate.wait(LIMIT_S)
        return value

    made = particles.send(doubler, "double", 4).then(slow)
    heard = []
    threads = [threading.Thread(target=lambda: heard.append(made.wait(LIMIT_S))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert entered.wait(LIMIT_S)
    with pytest.raises(sheave.DeadlineExceeded):
        made.wait(timeout=0.01)
    assert not made.done()
    gate.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert heard == [8] * 4 and calls == [8]


def test_a_function_cannot_wait_for_what_it_makes(particles):
    doubler = particles.create(receive={"double": double})
    made = particles.send(doubler, "double", 4).then(lambda value: made.wait())
    with pytest.raises(DeadlockError, match="waits for the answer that it makes"):
        made.wait()
    # Other answers it may wait for.
    other = particles.send(doubler, "double", 1)
    assert particles.send(doubler, "double", 4).then(lambda value: value + other.wait()).wait() == 10


def test_made_answers_end_with_their_messages(particles):
    gate, entered = threading.Event(), threading.Event()
    held = particles.create(receive={"hold": hold(gate, entered), "double": double})
    holds = particles.send(held, "hold")
    assert entered.wait(LIMIT_S)
    made = particles.send(held, "double", 4).then(str)
    with pytest.raises(sheave.DeadlineExceeded, match="still running"):
        made.wait(timeout=0.01)
    made.cancel()
    with pytest.raises(sheave.Cancelled):
        made.wait()
    gate.set()
    holds.wait()


def test_made_answers_are_awaited(particles):
    doubler = particles.create(receive={"double": double})

    async def main():
        made = particles.send(doubler, "double", 4).then(lambda value: (value, threading.get_ident()))
        value, thread = await asyncio.wait_for(made, LIMIT_S)
        assert (value, thread) == (8, threading.get_ident()) and (await made) is (await made)
        with pytest.raises(ValueError, match="-3 is below"):
            await particles.send(doubler, "double", -3).then(str)

    asyncio.run(main())


def test_answers_of_answers_are_waited_for_on_request(particles):
    doubler = particles.create(receive={"double": double})

    def passes(particle, number):
        return particle.send(doubler, "double", number)

    near = particles.create(receive={"pass": passes})
    far = particles.create(receive={"pass": lambda particle, number: particle.send(near, "pass", number)})
    answer = particles.send(far, "pass", 21)
    assert type(answer.wait()) is sheave.particle.Answer, "it is what the handler has returned"
    assert answer.wait(flatten=True) == 42 and answer.wait(LIMIT_S, flatten=True) == 42
    assert wait_all(particles.send_all([near, far], "pass", 4), flatten=True) == [8, 8]
    assert wait_all(particles.send_all([near, far], "pass", 4), LIMIT_S, flatten=True) == [8, 8]
    assert particles.send(near, "pass", 1).then(lambda inner: inner).wait(flatten=True) == 2
    with pytest.raises(ValueError, match="-1 is below zero"):
        particles.send(far, "pass", -1).wait(flatten=True)
    # Its time is that of all of them.
    gate = threading.Event()
    held = particles.create(receive={"hold": hold(gate)})
    slow = particles.create(receive={"pass": lambda particle: particle.send(held, "hold")})
    with pytest.raises(sheave.DeadlineExceeded, match='"hold" of particle'):
        particles.send(slow, "pass").wait(timeout=0.05, flatten=True)
    gate.set()
    # One that is its own ends all the same.
    kept = []
    own = particles.create(receive={"own": lambda particle: kept[0]})
    kept.append(particles.send(own, "own"))
    with pytest.raises(sheave.LimitExceeded, match="is one its own answer"):
        kept[0].wait(flatten=True)
    kept.clear()


def told(capfd, last):
    """What was said of answers until this was."""
    lines = []

    def is_told():
        lines.extend(line for line in capfd.readouterr().err.splitlines() if "nobody looked" in line)
        return any(last in line for line in lines)

    until(is_told)
    return lines


def test_an_exception_that_nobody_looks_at_is_told_once(particles, capfd):
    doubler = particles.create(receive={"double": double})
    capfd.readouterr()
    # Looked at, or well.
    assert particles.send(doubler, "double", -1).exception() is not None
    answer = particles.send(doubler, "double", -2)
    until(answer.done)
    with pytest.raises(ValueError, match="below zero"):
        particles.send(doubler, "double", -3).then(str).wait()
    with pytest.raises(ValueError, match="below zero"):
        asyncio.run(awaits(particles.send(doubler, "double", -4)))
    del answer
    particles.send(doubler, "double", 4)
    # Dropped before, and after it has failed.
    particles.send(doubler, "double", -5)
    kept = particles.send(doubler, "double", -6)
    particles.send(doubler, "double", 0).wait()
    repr(kept)
    del kept
    made = particles.send(doubler, "double", -7).then(str)
    particles.send(doubler, "double", 0).wait()
    del made
    particles.send(doubler, "nothing")
    gc.collect()
    lines = told(capfd, '"nothing" of particle 0 failed')
    lines += told(capfd, "-5 is below zero") if not any("-5" in line for line in lines) else []
    text = 'sheave: rank-0: "double" of particle 0 failed, and nobody looked at its answer: the handler raised: '
    for number in (-5, -6, -7):
        found = [line for line in lines if f"ValueError: {number} is below zero" in line]
        assert len(found) == 1 and found[0].startswith(text) and "test_particle_answers.py" in found[0], lines
    assert len(lines) == 4, lines


async def awaits(answer):
    return await answer


def test_what_was_to_end_is_not_told(particles, capfd):
    gate, entered = threading.Event(), threading.Event()
    held = particles.create(receive={"hold": hold(gate, entered), "double": double})
    capfd.readouterr()
    particles.send(held, "hold")
    assert entered.wait(LIMIT_S)
    particles.send(held, "double", -1).cancel()
    particles.send(held, "double", -2)
    gate.set()
    assert len(told(capfd, "-2 is below zero")) == 1
    gate.clear()
    entered.clear()
    particles.send(held, "hold")
    assert entered.wait(LIMIT_S)
    particles.send(held, "double", -3)
    particles.close()
    gate.set()
    assert "nobody looked" not in capfd.readouterr().err


def test_a_late_wait_names_who_waits_for_whom(particles):
    gate, entered = threading.Event(), threading.Event()
    held = particles.create(receive={"hold": hold(gate, entered)})
    holds = particles.send(held, "hold")
    assert entered.wait(LIMIT_S)

    def ask(particle):
        return particle.send(held, "hold").wait(timeout=0.05)

    asker = particles.create(receive={"ask": ask})
    expected = r'particle 1 \("ask"\) still waits for "hold" of particle 0, which is at "hold" \[after 50'
    with pytest.raises(sheave.DeadlineExceeded, match=expected):
        particles.send(asker, "ask").wait()
    gate.set()
    holds.wait()
