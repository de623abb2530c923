"""Particles: messages and their answers, waits, circles, lifetimes, models on devices."""

import asyncio
import gc
import threading
import time
import traceback
import weakref

import numpy as np
import pytest
import sheave
from sheave.particle import DeadlockError, Particle, ParticleId, Particles, wait_all

LIMIT_S = 60


class Line:
    """A model: y = w x, with the mean of squares as its loss, and plain gradient steps."""

    def __init__(self, w=0.0, rate=0.1):
        self.w, self.rate, self.gradient, self.version = np.array([float(w)]), rate, np.zeros(1), 0

    def forward(self, x, *, gradient=True):
        return self.w * x

    def step(self, loss, x, y):
        error = self.forward(x) - y
        self.gradient = np.array([np.mean(2 * error * x)])
        self.w = self.w - self.rate * self.gradient
        self.version += 1
        return float(loss(error + y, y))

    def zero_grad(self):
        self.gradient = np.zeros(1)

    def scheduler_step(self):
        self.rate /= 2

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
