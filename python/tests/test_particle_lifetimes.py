"""Particles as objects: what they keep, for how long, seeds, threads, and many of them."""

import gc
import os
import threading
import time
import weakref

import numpy as np
import pytest
import sheave
from sheave.particle import Particles, wait_all
from test_particle import LIMIT_S, Line, hold, squares, until, wait


class Thing:
    """Something that can be referred to weakly."""


@pytest.fixture
def particles():
    with Particles(devices=2, seed=7) as made:
        yield made


def test_trap_1_devices_are_checked_when_a_particle_is_made(particles):
    assert particles.devices == [0, 1]
    for wrong in (2, -1, "cpu", 0.5):
        with pytest.raises(sheave.InvalidArgument, match="expected one of \\[0, 1\\]"):
            particles.create(device=wrong)
    assert particles.ids() == []
    with Particles(devices=["cpu", "meta"]) as named:
        tell = {"tell": lambda particle: particle.device}
        ids = [named.create(receive=tell, device=device) for device in (None, 0, 1, "cpu", "meta")]
        assert wait(named.send_all(ids, "tell")) == ["cpu", "cpu", "meta", "cpu", "meta"]
        with pytest.raises(sheave.InvalidArgument, match="device is 2"):
            named.create(device=2)
    for wrong in (0, [], ["cpu", "cpu"]):
        with pytest.raises(sheave.InvalidArgument, match="devices is"):
            Particles(devices=wrong)


def test_trap_3_operations_have_no_thread_each(particles):
    threads = set()

    def loss(output, y):
        threads.add(threading.get_native_id())
        return squares(output, y)

    def train(particle):
        for _ in range(500):
            particle.step(loss, np.ones(1), np.ones(1)).wait()

    id = particles.create(Line, receive={"train": train})
    particles.send(id, "train").wait()
    # Who waits does it itself, unless one of the few threads of the node has come before it.
    assert len(threads) <= 8
    before = len(os.listdir("/proc/self/task"))
    for _ in range(20):
        particles.send(id, "train").wait(timeout=LIMIT_S)
    assert len(os.listdir("/proc/self/task")) <= before + 8


def test_trap_4_a_send_does_not_wait_for_the_device_of_its_sender(particles):
    gate, entered = threading.Event(), threading.Event()

    def loss(output, y):
        entered.set()
        assert gate.wait(LIMIT_S)
        return 0.0

    def lead(particle, other):
        own = particle.step(loss, np.ones(1), np.ones(1))
        assert entered.wait(LIMIT_S)
        # The device of this particle is at work until the gate is opened by the other one.
        seen = particle.send(other, "open").wait()
        return seen, own.wait()

    def open_gate(particle):
        output = particle.forward(np.full(1, 2.0)).wait()
        gate.set()
        return output.tolist()

    leader = particles.create(Line, receive={"lead": lead}, device=0)
    other = particles.create(lambda: Line(3.0), receive={"open": open_gate}, device=1)
    assert particles.send(leader, "lead", other).wait(timeout=LIMIT_S) == ([6.0], 0.0)


def test_devices_work_at_the_same_time():
    meeting = threading.Barrier(4)

    def loss(output, y):
        return meeting.wait(LIMIT_S) * 0.0

    with Particles(devices=4) as particles:

        def lead(particle, ids):
            return particle.wait(particles.send_all(ids, "train"))

        train = {"train": lambda particle: particle.step(loss, np.ones(1), np.ones(1)).wait()}
        ids = [particles.create(Line, receive=train, device=device) for device in range(4)]
        leader = particles.create(receive={"lead": lead})
        # Each waits for all others, in the middle of its step.
        assert particles.send(leader, "lead", ids).wait() == [0.0] * 4


def test_trap_8_messages_leave_nothing_behind(particles):
    id = particles.create(receive={"take": lambda particle, thing, key=None: None, "give": lambda particle: Thing()})
    thing = Thing()
    seen = weakref.ref(thing)
    answer = particles.send(id, "take", thing, key=thing)
    del thing
    answer.wait()
    assert seen() is None, "arguments are let go when the handler has ended, though the answer is there"
    answer = particles.send(id, "give")
    seen = weakref.ref(answer.wait())
    assert seen() is not None
    del answer
    assert seen() is None, "an answer is let go with the last who has it"
    # Nobody waits, and nobody has the answer.
    thing = Thing()
    seen = weakref.ref(thing)
    particles.send(id, "take", thing)
    del thing
    until(lambda: seen() is None)
    # A message that never begins.
    gate, entered, thing = threading.Event(), threading.Event(), Thing()
    held = particles.create(receive={"hold": hold(gate, entered)})
    particles.send(held, "hold")
    assert entered.wait(LIMIT_S)
    seen = weakref.ref(thing)
    answer = particles.send(held, "hold", thing)
    del thing
    answer.cancel()
    del answer
    particles.ids(), gate.set()
    particles.send(held, "hold").wait()
    until(lambda: seen() is None)


def test_trap_9_particles_share_no_defaults(particles):
    def note(particle):
        particle.state[particle.id.number] = True
        particle.register("later", note)
        return dict(particle.state)

    ids = [particles.create(receive={"note": note}), particles.create(receive={"note": note})]
    assert wait(particles.send_all(ids, "note")) == [{0: True}, {1: True}]
    receive = {"note": note}
    third = particles.create(receive=receive)
    receive["extra"] = note
    particles.send(third, "note").wait()
    assert particles.names(third) == ["later", "note"] and set(receive) == {"note", "extra"}


def test_trap_11_seeds_are_distinct_private_and_the_same_in_each_run(particles):
    def draw(particle):
        return particle.seed, particle.generator.standard_normal(3).tolist(), particle.generator.random()

    def draws(master, count=200, **given):
        with Particles(seed=master) as made:
            ids = made.create_many(count, lambda index: {"receive": {"draw": draw}, **given})
            return wait(made.send_all(ids, "draw"))

    state = str(np.random.get_state())
    first, again, other = draws(7), draws(7), draws(8)
    assert first == again
    seeds = [seed for seed, *_ in first + other]
    assert len(set(seeds)) == 400 and len({str(numbers) for _, numbers, _ in first + other}) == 400
    for given in (0, -1, 5):
        seed, *numbers = draws(7, 1, seed=given)[0]
        assert seed == given
        generator = np.random.Generator(np.random.PCG64(given % 2**64))
        assert numbers == [generator.standard_normal(3).tolist(), generator.random()]
    assert str(np.random.get_state()) == state, "the global generator is nobody's"


def test_trap_13_handlers_are_registered_while_a_particle_lives(particles):
    def learn(particle, name, number):
        particle.register(name, lambda particle: number)
        return particle.send(particle.id, name)

    id = particles.create(Line, receive={"learn": learn})
    for number in range(5):
        # Nested answers are the objects that they are.
        assert particles.send(id, "learn", "tell", number).wait().wait() == number
    assert particles.names(id) == ["learn", "tell"]
    particles.register(id, "tell", lambda particle: "outside")
    assert particles.send(id, "tell").wait() == "outside"

    def reset(particle):
        return particle.wait([particle.zero_grad(), particle.scheduler_step(), particle.forward(np.ones(1))])

    particles.register(id, "reset", reset)
    assert particles.send(id, "reset").wait(timeout=LIMIT_S) == [None, None, np.zeros(1)]


def test_trap_17_answers_are_waited_for_in_order(particles):
    gate = threading.Event()
    slow = particles.create(receive={"go": lambda particle, number: (gate.wait(LIMIT_S), number)[1]})
    fast = particles.create(receive={"go": lambda particle, number: number})
    answers = [particles.send(slow, "go", 1), particles.send(fast, "go", 2), particles.send(slow, "go", 3)]
    until(answers[1].done)
    gate.set()
    assert wait_all(answers) == [1, 2, 3] and wait_all([]) == []


def test_trap_20_close_is_idempotent_and_ends_what_has_not_begun():
    gate, entered = threading.Event(), threading.Event()
    particles = Particles()
    id = particles.create(receive={"hold": hold(gate, entered)})
    held, later = particles.send(id, "hold", 1), particles.send(id, "hold", 2)
    assert entered.wait(LIMIT_S)
    particles.close()
    particles.close()
    with pytest.raises(sheave.Closed):
        later.wait()
    gate.set()
    assert held.wait() == (1,), "what has begun goes on"
    with pytest.raises(sheave.SheaveError):
        particles.send(id, "hold").wait()
    with pytest.raises(sheave.Closed):
        particles.create()
    with Particles() as other:
        assert other.ids() == []
    other.close()


def test_two_of_one_name_are_refused_and_a_closed_name_is_free():
    with sheave.Mesh(rank=0, size=1) as mesh:
        first = Particles(mesh, "ensemble")
        with pytest.raises(sheave.AlreadyExists):
            Particles(mesh, "ensemble")
        first.close()
        assert mesh.closed is False
        with Particles(mesh, "ensemble") as second, Particles(mesh, "others") as others:
            assert second.create() == others.create() == (0, 0)


def test_cycles_of_references_are_collected():
    def made():
        particles, thing = Particles(), Thing()
        model = Line()
        model.owner = particles
        id = particles.create(model, receive={"go": lambda particle, *_: particles and thing, "fail": lambda _: 1 / 0})
        particle = particles._objects[id.number]
        particle.state["particle"], particle.state["thing"] = particle, thing
        # Answers that lead back, to a value and to an exception; one is not looked at.
        particle.state["answers"] = [particles.send(id, "go", particle), particles.send(id, "fail")]
        particle.state["answers"][0].wait()
        until(particle.state["answers"][1].done)
        return weakref.ref(thing), weakref.ref(particle), weakref.ref(particles), weakref.ref(model)

    seen = made()
    gc.collect()
    until(lambda: (gc.collect(), all(one() is None for one in seen))[1])


def test_a_removed_particle_is_let_go(particles):
    thing, model = Thing(), Line()
    id = particles.create(model, receive={"go": lambda particle: thing}, state=thing)
    particle = weakref.ref(particles._objects[id.number])
    seen, parked = weakref.ref(thing), weakref.ref(model)
    particles.send(id, "go").wait()
    del thing, model
    assert particles.remove(id)
    until(lambda: (gc.collect(), seen() is particle() is parked() is None)[1])


def test_particles_are_made_and_removed_while_others_send(particles):
    failures, counts, is_over = [], [0, 0], threading.Event()

    def make():
        while not is_over.is_set():
            id = particles.create(Line, receive={"go": lambda particle, number: number})
            answers = [particles.send(id, "go", number) for number in range(4)]
            for number, answer in enumerate(answers):
                assert answer.wait() == number
            assert particles.remove(id)
            counts[0] += 1

    def send():
        number = 0
        while not is_over.is_set():
            for id in particles.ids():
                number += 1
                try:
                    assert particles.send(id, "go", number).wait() == number
                except sheave.NotFound:
                    counts[1] += 1

    def run(act):
        try:
            act()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(act,)) for act in (make, make, send, send)]
    for thread in threads:
        thread.start()
    until(lambda: counts[0] > 500 or failures)
    is_over.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not failures and particles.ids() == []
    until(lambda: not particles._objects and not particles._models)


def test_a_thousand_particles_are_made_within_a_second(particles):
    begun = time.monotonic()
    ids = particles.create_many(1000, lambda index: {"model": Line, "receive": {"go": lambda particle: index}})
    took = time.monotonic() - begun
    assert took < 1, took
    assert wait(particles.send_all(ids, "go")) == list(range(1000))
    assert ids == particles.ids()
