"""Particles: messages and their answers, waits, circles, lifetimes, models on devices."""

import asyncio
import threading
import time
import traceback

import numpy as np
import pytest
import sheave
from sheave.particle import DeadlockError, Particle, ParticleId, Particles, wait_all

LIMIT_S = 60


class Line:
    """A model: y = w x, with the mean of squares as its loss, and plain gradient steps."""

    nbytes = 24

    def __init__(self, w=0.0, rate=0.1):
        self.w, self.rate, self.gradient, self.version = np.array([float(w)]), rate, np.zeros(1), 0
        self.is_parked = False

    def forward(self, x, *, gradient=True):
        assert not self.is_parked, "it is not on its device"
        return self.w * x

    def step(self, loss, x, y):
        output = self.forward(x)
        value = float(loss(output, y))
        self.gradient = np.array([np.mean(2 * (output - y) * x)])
        self.w = self.w - self.rate * self.gradient
        self.version += 1
        return value

    def zero_grad(self):
        self.gradient = np.zeros(1)

    def scheduler_step(self):
        self.rate /= 2

    def park(self):
        self.is_parked = True

    def bring(self):
        self.is_parked = False

    def state(self):
        return {"w": self.w, "rate": self.rate, "gradient": self.gradient, "version": self.version}

    def load(self, state):
        self.w, self.rate, self.gradient, self.version = (state[name] for name in ("w", "rate", "gradient", "version"))

    def snapshot(self, gradients=False):
        return self.version, self.w.copy(), self.gradient.copy() if gradients else None


def squares(output, y):
    return np.mean((output - y) ** 2)


@pytest.fixture
def particles():
    with Particles(devices=2, seed=7) as made:
        yield made


def wait(answers):
    return wait_all(answers, timeout=LIMIT_S)


def until(condition):
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "it never comes to that"
        time.sleep(0.001)


def hold(gate, entered=None):
    """A handler that stays until the gate opens."""

    def handler(particle, *args):
        if entered is not None:
            entered.set()
        assert gate.wait(LIMIT_S)
        return args

    return handler


def test_a_message_is_answered_by_what_its_handler_returns(particles):
    def handler(particle, *args, **kwargs):
        assert isinstance(particle, Particle)
        return particle.id, particle.state, args, kwargs

    state = {"count": 1}
    id = particles.create(receive={"tell": handler}, state=state)
    assert id == ParticleId(0, 0) == (0, 0)
    array = np.arange(3)
    answer = particles.send(id, "tell", array, key=array)
    name, own, args, kwargs = answer.wait()
    assert name == id and own is state, "the state is the object itself"
    assert args[0] is array and kwargs["key"] is array, "arguments within a node are the objects themselves"
    assert answer.wait() is answer.result(), "an answer is waited for again and again"
    assert answer.exception() is None and answer.done() is True


def test_messages_of_a_sender_keep_their_order(particles):
    seen = []
    id = particles.create(receive={"see": lambda particle, number: seen.append(number)})
    wait([particles.send(id, "see", number) for number in range(500)])
    assert seen == list(range(500))


def test_a_message_that_nobody_waits_for_is_handled(particles):
    handled = threading.Event()
    id = particles.create(receive={"go": lambda particle: handled.set()})
    particles.send(id, "go")
    assert handled.wait(LIMIT_S)


def test_models_are_used_in_the_order_of_their_device(particles):
    x, y = np.array([1.0, 2.0]), np.array([3.0, 6.0])

    def train(particle, steps):
        losses = particle.wait([particle.step(squares, x, y) for _ in range(steps)])
        before = particle.wait([particle.get(particle.id, gradients=True), particle.zero_grad()])[0]
        particle.wait([particle.scheduler_step(), particle.update(lambda model: model.w.fill(2.0))])
        return losses, before, particle.forward(x, gradient=False).wait(), particle.device

    ids = [particles.create(Line, receive={"train": train}, device=device) for device in (0, 1, 1)]
    outcomes = wait(particles.send_all(ids, "train", 20))
    for (losses, (version, w, gradient), output, device), expected in zip(outcomes, (0, 1, 1), strict=True):
        assert losses[-1] < 1e-3 * losses[0] and len(losses) == 20
        alone = Line()
        for _ in range(20):
            alone.step(squares, x, y)
        assert version == 20 and w == alone.w and gradient == alone.gradient
        assert output.tolist() == [2.0, 4.0] and device == expected
    version, w, gradient = particles.get(ids[0]).wait()
    assert (version, w.tolist(), gradient) == (20, [2.0], None)


def chain(particles, count):
    """A row of particles, each of which waits for the next."""

    def go(particle, number):
        following = particle.state
        return number if following is None else particle.send(following, "go", number + 1).wait()

    row = [particles.create(receive={"go": go}) for _ in range(count)]
    for one, following in zip(row, row[1:], strict=False):
        particles._objects[one.number].state = following
    particles._objects[row[-1].number].state = None
    return row


def test_a_row_of_a_thousand_particles_that_wait_for_the_next_completes(particles):
    row = chain(particles, 1000)
    for _ in range(2):
        assert particles.send(row[0], "go", 0).wait() == 999
    # With a timeout nothing runs on the stack of who waits.
    assert particles.send(row[0], "go", 0).wait(timeout=LIMIT_S) == 999


def make_ring(particles, count, reentrant):
    def go(particle, left):
        if left == 0:
            return [particle.id.number]
        following = ids[(ids.index(particle.id) + 1) % count]
        return [particle.id.number, *particle.send(following, "go", left - 1).wait()]

    ids = [particles.create(receive={"go": go}, reentrant=reentrant) for _ in range(count)]
    return ids


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_circle_of_waits_raises_an_error_that_names_it(particles, count):
    ids = make_ring(particles, count, reentrant=False)
    with pytest.raises(DeadlockError) as raised:
        particles.send(ids[0], "go", 10).wait()
    assert isinstance(raised.value, sheave.Deadlock)
    for id in ids:
        assert f"particle {id.number}" in str(raised.value)
    assert '("go")' in str(raised.value) and "re-entrant" in raised.value.hint
    assert particles.send(ids[0], "go", 0).wait() == [0], "all go on"


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_ring_of_re_entrant_particles_goes_round(particles, count):
    ids = make_ring(particles, count, reentrant=True)
    for _ in range(3):
        expected = [ids[at % count].number for at in range(101)]
        assert particles.send(ids[0], "go", 100).wait() == expected
        assert particles.send(ids[0], "go", 100).wait(timeout=LIMIT_S) == expected


def test_trap_2_a_to_b_to_a_is_entered_again_only_if_it_is_to_be(particles):
    def back(particle, home):
        return particle.send(home, "end").wait()

    other = particles.create(receive={"back": back})
    for reentrant in (False, True):

        def go(particle):
            particle.state["is_busy"] = True
            try:
                return particle.send(other, "back", particle.id).wait()
            finally:
                particle.state["is_busy"] = False

        home = particles.create(
            receive={"go": go, "end": lambda particle: particle.state["is_busy"]}, reentrant=reentrant
        )
        answer = particles.send(home, "go")
        if reentrant:
            assert answer.wait() is True
        else:
            with pytest.raises(DeadlockError):
                answer.wait()


def test_trap_2_ping_pong_of_depth_2000(particles):
    def play(particle, other, left):
        return 0 if left == 0 else 1 + particle.send(other, "play", particle.id, left - 1).wait()

    one, other = (particles.create(receive={"play": play}, reentrant=True) for _ in range(2))
    assert particles.send(one, "play", other, 2000).wait() == 2000


def test_particles_that_get_each_other_do_not_wait_for_each_other(particles):
    def compare(particle, other):
        return particle.get(other).wait()[1] - particle.get(particle.id).wait()[1]

    one = particles.create(lambda: Line(1.0), receive={"compare": compare}, device=0)
    other = particles.create(lambda: Line(3.0), receive={"compare": compare}, device=1)
    for _ in range(50):
        first, second = wait([particles.send(one, "compare", other), particles.send(other, "compare", one)])
        assert (first, second) == (2.0, -2.0)


def test_a_loss_that_waits_for_its_own_device_is_a_circle(particles):
    def train(particle):
        def loss(output, y):
            return particle.forward(np.ones(1)).wait()

        return particle.step(loss, np.ones(1), np.ones(1)).wait()

    id = particles.create(Line, receive={"train": train})
    with pytest.raises(DeadlockError, match='device 0 \\("step"\\) waits for device 0, which it keeps itself'):
        particles.send(id, "train").wait()
    # So is one that waits for another particle, whose handler waits for the device.
    peer = particles.create(Line, receive={"apply": lambda particle: particle.forward(np.ones(1)).wait()})
    particles.register(id, "train", lambda particle: particle.step(ask, np.ones(1), np.ones(1)).wait())

    def ask(output, y):
        return particles.send(peer, "apply").wait()

    with pytest.raises(DeadlockError, match="device 0"):
        particles.send(id, "train").wait()
    assert particles.send(peer, "apply").wait() == [0.0]


class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")
        self.one, self.two = one, two


def raise_odd(particle, *_):
    raise Odd(1, 2)


def test_trap_7_an_exception_comes_to_all_who_wait_with_its_traceback(particles):
    id = particles.create(receive={"fail": raise_odd, "go": lambda particle: "fine"})
    relay = particles.create(receive={"relay": lambda particle: particle.send(id, "fail").wait()})
    for answer in (particles.send(id, "fail"), particles.send(relay, "relay")):
        lengths = []
        for _ in range(3):
            with pytest.raises(Odd, match="1 and 2") as raised:
                answer.wait()
            assert (raised.value.one, raised.value.two) == (1, 2)
            names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
            assert names[-1] == "raise_odd" and "test_trap_7" in names[0]
            lengths.append(len(names))
        assert len(set(lengths)) == 1, "a traceback does not grow by being looked at"
        assert answer.exception() is raised.value and answer.done()
    assert particles.send(id, "go").wait() == "fine", "the particle goes on"


def test_trap_7_an_error_of_a_loss_or_a_model_comes_to_who_waits(particles):
    x = np.ones(1)

    def train(particle, what):
        if what == "loss":
            return particle.step(raise_odd, x, x).wait()
        if what == "model":
            return particle.forward(None).wait()
        return particle.update(raise_odd).wait()

    id = particles.create(Line, receive={"train": train})
    for what, error in (("loss", Odd), ("model", TypeError), ("update", Odd)):
        with pytest.raises(error):
            particles.send(id, "train", what).wait()
    particles.register(id, "go", lambda particle: particle.step(squares, x, x).wait())
    assert particles.send(id, "go").wait() == 1.0, "the device goes on"


def test_trap_7_messages_and_particles_that_are_not_known_are_errors_of_the_sender(particles):
    id = particles.create(receive={"known": print, "other": print})
    answer = particles.send(id, "unknown", 1)
    assert answer.done()
    with pytest.raises(sheave.NotFound, match='particle 0: no handler of "unknown"; it has "known", "other"'):
        answer.wait()
    with pytest.raises(sheave.NotFound, match="no particle 99 on this node"):
        particles.send(ParticleId(0, 99), "known").wait()
    with pytest.raises(sheave.NotFound, match="node 7 of particle 0; the mesh has nodes 0 to 0"):
        particles.send(ParticleId(7, 0), "known")
    for wrong in (3, "particle", (1, 2, 3), (0, "one"), (0, -1), None):
        with pytest.raises(sheave.InvalidArgument, match="expected a ParticleId"):
            particles.send(wrong, "known")
    for number, said in ((0, "particle 0 has no model"), (99, "no particle 99 on this node")):
        with pytest.raises(sheave.NotFound, match=said):
            particles.get(ParticleId(0, number)).wait()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_programs_comes_to_who_waits(particles, kind):
    def end(particle):
        raise kind("the end")

    id = particles.create(receive={"end": end, "go": lambda particle: 1})
    for timeout in (None, LIMIT_S):
        with pytest.raises(kind, match="the end"):
            particles.send(id, "end").wait(timeout)
        assert particles.send(id, "go").wait(timeout) == 1


def test_ctrl_c_in_the_handler_of_somebody_else_ends_the_wait(particles):
    handled = []

    def interrupted(particle):
        handled.append(threading.current_thread())
        raise KeyboardInterrupt

    id = particles.create(receive={"first": interrupted, "second": lambda particle: "second"})
    # Whoever waits for the second one runs the first one too, unless a thread of the node has come before it.
    while True:
        first, second = particles.send(id, "first"), particles.send(id, "second")
        raised = None
        try:
            assert second.wait() == "second"
        except KeyboardInterrupt as error:
            raised = error
        assert (raised is not None) == (handled[-1] is threading.main_thread())
        with pytest.raises(KeyboardInterrupt):
            first.wait()
        assert second.wait() == "second", "it is said once"
        if raised is not None:
            break


def test_trap_6_answers_are_kept_and_waits_have_timeouts(particles):
    gate, entered = threading.Event(), threading.Event()
    id = particles.create(receive={"hold": hold(gate, entered), "go": lambda particle: 1})
    held, later = particles.send(id, "hold"), particles.send(id, "go")
    assert entered.wait(LIMIT_S)
    begun = time.monotonic()
    with pytest.raises(sheave.DeadlineExceeded, match="still running"):
        later.wait(timeout=0.05)
    with pytest.raises(TimeoutError):
        later.exception(timeout=0)
    with pytest.raises(sheave.DeadlineExceeded):
        wait_all([held, later], timeout=0.05)
    assert time.monotonic() - begun < LIMIT_S / 2
    assert not held.done() and not later.done() and particles.waiting(id) == 1
    with pytest.raises(ValueError, match="a timeout of -1 s"):
        held.wait(timeout=-1)
    gate.set()
    assert [later.wait(timeout=LIMIT_S) for _ in range(3)] == [1, 1, 1] and held.done()
    # Several threads wait for one answer.
    answer, seen = particles.send(id, "go"), []
    threads = [threading.Thread(target=lambda: seen.append(answer.wait())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert seen == [1] * 8


def test_a_message_is_cancelled_before_it_begins(particles):
    gate, entered, seen = threading.Event(), threading.Event(), []
    id = particles.create(receive={"hold": hold(gate, entered), "see": lambda particle: seen.append(1)})
    held, later = particles.send(id, "hold"), particles.send(id, "see")
    assert entered.wait(LIMIT_S)
    later.cancel()
    with pytest.raises(sheave.Cancelled, match="the message to particle 0 was cancelled before it began"):
        later.wait(timeout=LIMIT_S)
    gate.set()
    held.cancel()
    assert held.wait() == (), "what has begun goes on"
    assert seen == []


def test_answers_are_awaited(particles):
    async def main():
        values = await asyncio.gather(*[particles.send(id, "double", number) for number in range(100)])
        with pytest.raises(Odd):
            await particles.send(id, "fail")
        with pytest.raises(sheave.NotFound, match='no handler of "nothing"'):
            await particles.send(id, "nothing")
        done = particles.send(id, "double", 7)
        return values, done.wait(), await done, await done

    id = particles.create(receive={"double": lambda particle, number: 2 * number, "fail": raise_odd})
    assert asyncio.run(main()) == ([2 * number for number in range(100)], 14, 14, 14)


def test_a_removed_particle_tells_its_senders(particles):
    gate, entered = threading.Event(), threading.Event()
    id = particles.create(Line, receive={"hold": hold(gate, entered)})
    held, later = particles.send(id, "hold", 1), particles.send(id, "hold", 2)
    assert entered.wait(LIMIT_S)
    outcomes = []
    waiter = threading.Thread(target=lambda: outcomes.append(later.exception()))
    waiter.start()
    assert particles.remove(id) is True and particles.remove(id) is False
    waiter.join(LIMIT_S)
    assert isinstance(outcomes[0], sheave.NotFound) and "particle 0 was removed" in str(outcomes[0])
    with pytest.raises(sheave.NotFound):
        particles.send(id, "hold").wait()
    for act in (particles.names, particles.waiting, lambda id: particles.register(id, "go", print)):
        with pytest.raises(sheave.NotFound):
            act(id)
    gate.set()
    assert held.wait() == (1,), "what has begun goes on"
    assert particles.ids() == [] and particles.create() == (0, 1), "no number is used twice"
