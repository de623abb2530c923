"""A pole on a cart, a policy that pushes it, and how a policy gets better by chance: what `actor_learner.py` learns.

Everything is written for many policies and many episodes at once: an array of states has the shape (policies,
episodes, 4), and its last axis holds the place of the cart in metres, its speed, the angle of the pole in radians, and
the speed of that.
"""

import math

import numpy as np

STEPS_MAX = 200
"""An episode that gets so far is over, and counts as many points; one that fails counts the steps that it has made."""

GRAVITY = 9.8
CART_KG = 1.0
POLE_KG = 0.1
HALF_POLE_M = 0.5
FORCE_N = 10.0
STEP_S = 0.02
PLACE_MAX_M = 2.4
ANGLE_MAX = math.radians(12)

SCALE = np.array([1 / PLACE_MAX_M, 0.5, 1 / ANGLE_MAX, 0.5])
"""Brings the numbers of a state to about one."""

HIDDEN = 8
SIZE = 6 * HIDDEN + 1
"""Parameters of a policy: weights and biases of a hidden layer, then those of its one output."""


def start_states(dice, policies, episodes):
    """Returns states near the balance; each policy gets the same ones, so that none has better luck than another."""
    return np.repeat(dice.uniform(-0.05, 0.05, size=(1, episodes, 4)), policies, axis=0)


def moved(states, push_right):
    """Returns the states a step later, by the equations of motion of a pole without friction."""
    place, speed, angle, turning = np.moveaxis(states, -1, 0)
    force = np.where(push_right, FORCE_N, -FORCE_N)
    sine, cosine, mass = np.sin(angle), np.cos(angle), CART_KG + POLE_KG
    share = (force + POLE_KG * HALF_POLE_M * turning**2 * sine) / mass
    inertia = HALF_POLE_M * (4 / 3 - POLE_KG * cosine**2 / mass)
    turned = (GRAVITY * sine - cosine * share) / inertia
    pushed = share - POLE_KG * HALF_POLE_M * turned * cosine / mass
    changes = np.stack([speed, pushed, turning, turned], axis=-1)
    return states + STEP_S * changes


def pushes_right(policies, states):
    """Returns what each policy does: a network with one hidden layer, whose output's sign is the direction."""
    first = policies[:, : 4 * HIDDEN].reshape(-1, 4, HIDDEN)
    shift, second = policies[:, 4 * HIDDEN : 5 * HIDDEN], policies[:, 5 * HIDDEN : 6 * HIDDEN]
    hidden = np.tanh((states * SCALE) @ first + shift[:, None, :])
    return (hidden @ second[:, :, None])[..., 0] + policies[:, -1:] > 0


def scores(policies, states):
    """Returns how many steps each policy (rows of `policies`) keeps the pole up, on average over the episodes."""
    steps = np.zeros(states.shape[:2])
    is_up = np.ones(states.shape[:2], dtype=bool)
    for _ in range(STEPS_MAX):
        states = moved(states, pushes_right(policies, states))
        steps += is_up
        is_up &= (np.abs(states[..., 0]) <= PLACE_MAX_M) & (np.abs(states[..., 2]) <= ANGLE_MAX)
        if not is_up.any():
            break
        # What has fallen is not followed, so that its numbers stay small.
        states = np.where(is_up[..., None], states, 0.0)
    return steps.mean(axis=1)


def first_policy(dice):
    """Returns the policy that learning begins with: it looks at everything, and pushes to the left always."""
    policy = np.zeros(SIZE)
    policy[: 4 * HIDDEN] = dice.normal(size=4 * HIDDEN) / 2
    return policy


def directions(seed, pairs):
    """Returns the random directions of this seed: (pairs, SIZE). Who knows the seed knows them."""
    return np.random.default_rng(seed).normal(size=(pairs, SIZE))


def slope(results, pairs, width):
    """Returns the direction in which policies get better, estimated from `results`: seeds, and the scores (2, pairs)
    of policies that lay `width` ahead and behind.

    The ranks of the scores count and not the scores, so that one lucky policy does not decide.
    """
    differences = np.stack([scores for _, scores in results])
    ranks = np.empty(differences.size)
    # Equal scores have equal ranks.
    _, place, counts = np.unique(differences, return_inverse=True, return_counts=True)
    ranks = ((np.cumsum(counts) - counts + np.cumsum(counts) - 1) / 2)[place.reshape(-1)]
    weights = (ranks / max(differences.size - 1, 1) - 0.5).reshape(differences.shape)
    rows = np.concatenate([directions(seed, pairs) for seed, _ in results])
    ahead, behind = weights[:, 0].reshape(-1), weights[:, 1].reshape(-1)
    return (ahead - behind) @ rows / (len(rows) * width)


class Climber:
    """Makes steps along slopes: Adam, which divides each by how much it varies."""

    def __init__(self, rate):
        self.rate = rate
        self.mean = np.zeros(SIZE)
        self.square = np.zeros(SIZE)
        self.steps = 0

    def step(self, policy, slope):
        self.steps += 1
        self.mean += 0.1 * (slope - self.mean)
        self.square += 0.02 * (slope**2 - self.square)
        mean = self.mean / (1 - 0.9**self.steps)
        square = self.square / (1 - 0.98**self.steps)
        return policy + self.rate * mean / (np.sqrt(square) + 1e-8)
