"""Actors and a learner that do not wait for each other: a policy learns to balance a pole on a cart.

    python examples/python/actor_learner.py
    python examples/python/actor_learner.py --actors 4 --seed 7 --kill-after 20 --svg curve.svg

The learner is this process. It publishes its policy in a table of versions, and the actors, which are the processes of
a fleet, pull the newest one, try policies around it, and put what they have scored into a queue. Nobody waits for
anybody: an actor that finds no newer version goes on with the one that it has, and the pull has moved nothing; the
learner takes results of versions that are a little old. An actor's result is a seed and a few scores, because the
learner makes the same random directions of the seed (evolution strategies).

While it learns one actor is killed. The fleet replaces it, the new one pulls the newest policy, and learning goes on.
The program ends once the score of the policy itself has reached the threshold and the new actor has sent a result.
Its exit status is 0 then, and 1 if the time was over before.
"""

import argparse
import csv
import itertools
import os
import signal
import sys
import threading
import time
import traceback

import cart_pole
import numpy as np
import sheave
import sheave.pool
from sheave.fleet import current_guest

GROUP, TABLE, POLICY = "actors", "policies", "cart pole"

PAIRS = 8
"""An actor tries so many directions for one result, ahead and behind."""

EPISODES = 2
WIDTH = 0.2
RESULTS = 4
"""The learner makes a step for so many results."""

OLD_MAX = 8
"""Results of policies that are older by so many steps count no more."""

TESTED_EVERY = 2
TEST_EPISODES = 20


def act(results, seed):
    """Tries policies, in an actor, until the learner is gone."""
    guest = current_guest()
    policies = guest.versions(GROUP, TABLE)
    # Names of guests are never used twice, so no two actors try the same.
    number = int(guest.name.rpartition("-")[2])
    dice = np.random.default_rng([seed, number, 0])
    newest = policies.watch(POLICY)
    policy, moved, unmoved = newest.value["policy"], 1, 0
    for turn in itertools.count(1):
        drawn = [seed, number, turn]
        directions = WIDTH * cart_pole.directions(drawn, PAIRS)
        tried = np.concatenate([policy + directions, policy - directions])
        scores = cart_pole.scores(tried, cart_pole.start_states(dice, 2 * PAIRS, EPISODES)).reshape(2, PAIRS)
        # Waits while the queue is full: an actor is never far ahead of the learner.
        results.put((guest.name, newest.version, drawn, scores, (moved, unmoved)))
        pulled = policies.pull(POLICY, newer_than=newest.version)
        if pulled.is_unchanged:
            unmoved += 1
        else:
            newest, policy, moved = pulled, pulled.applied_to(newest.value)["policy"], moved + 1


def begin_to_act(results, seed):
    """Starts an actor in a thread of its process; the fleet calls it in each, and in those that replace the dead."""

    def run():
        try:
            act(results, seed)
        except (sheave.PeerLost, sheave.Closed):
            # The learner has ended.
            return
        except BaseException:
            traceback.print_exc()
            # The fleet tells the learner what was said last.
            os._exit(1)

    threading.Thread(target=run, daemon=True).start()


class Killing:
    """The death of one actor, and what becomes of it."""

    def __init__(self, fleet, after):
        self.fleet = fleet
        self.after = after
        self.victim = self.heir = None
        self.has_returned = False

    def is_pending(self):
        """Whether an actor was killed and the one in its place has sent nothing yet."""
        return self.victim is not None and not self.has_returned

    def step(self, step):
        """Kills an actor if it is time."""
        if self.victim is None and self.after is not None and step >= self.after:
            self.victim = self.fleet.guest(0)
            print(f"step {step}: killing {self.victim.name} (process {self.victim.pid})", flush=True)
            os.kill(self.victim.pid, signal.SIGKILL)

    def hear(self, events):
        """Says what the fleet has seen; fails if it has given up."""
        for event in events:
            if event.what == "given up":
                raise SystemExit(f"the fleet gave up on an actor: {event.error}")
            if event.what == "ended":
                print(f"the fleet: {event.name} ended with status {event.error.exit_status}", flush=True)
            elif event.what == "attached" and event.slot == 0 and self.heir is None:
                self.heir = event.name
                print(f"the fleet: {event.name} replaces {self.victim.name}", flush=True)

    def result_of(self, name):
        """Notes who has sent a result."""
        if self.heir is not None and name == self.heir and not self.has_returned:
            self.has_returned = True
            print(f"{name} has sent its first result", flush=True)


class Learner:
    """The policy, its steps, and how well it does by itself."""

    def __init__(self, table, seed, rate):
        self.table = table
        self.policy = cart_pole.first_policy(np.random.default_rng([seed, 0, 0]))
        self.climber = cart_pole.Climber(rate)
        self.step = 0
        self.gathered = []
        self.old = 0
        self.curve = []
        self.begun = time.monotonic()
        self.test()
        table.push(POLICY, {"policy": self.policy}, version=0)

    def test(self):
        """Notes the score of the policy itself, over episodes that no actor has seen."""
        dice = np.random.default_rng([self.step, 1])
        score = cart_pole.scores(self.policy[None], cart_pole.start_states(dice, 1, TEST_EPISODES))[0]
        self.curve.append((self.step, time.monotonic() - self.begun, float(score)))

    @property
    def score(self):
        """The newest score."""
        return self.curve[-1][2]

    def take(self, version, drawn, scores):
        """Takes a result. Returns whether it was enough for a step."""
        if self.step - version > OLD_MAX:
            self.old += 1
            return False
        self.gathered.append((drawn, scores))
        if len(self.gathered) < RESULTS:
            return False
        slope = cart_pole.slope(self.gathered, PAIRS, WIDTH)
        self.gathered.clear()
        self.policy = self.climber.step(self.policy, slope)
        self.step += 1
        self.table.push(POLICY, {"policy": self.policy}, version=self.step, previous=self.step - 1)
        if self.step % TESTED_EVERY == 0:
            self.test()
            print(f"step {self.step}: {self.score:.1f} of {cart_pole.STEPS_MAX}", flush=True)
        return True


def learn(learner, fleet, results, arguments):
    """Learns until the threshold is reached, or the time is over. Returns how many results came from whom, and how
    many pulls of each have moved something and nothing."""
    killing = Killing(fleet, arguments.kill_after)
    counts, pulls = {}, {}
    until = learner.begun + arguments.time_limit_s
    while learner.score < arguments.threshold or killing.is_pending():
        left = until - time.monotonic()
        if left <= 0:
            break
        killing.hear(fleet.events())
        try:
            name, version, drawn, scores, pulled = results.get(timeout=min(left, 1.0))
        except sheave.pool.Empty:
            continue
        counts[name], pulls[name] = counts.get(name, 0) + 1, pulled
        killing.result_of(name)
        if learner.take(version, drawn, scores):
            killing.step(learner.step)
    if killing.after is not None and killing.victim is None:
        print(f"no actor was killed: the program ended at step {learner.step}")
    return counts, pulls


def write_curve(curve, arguments):
    """Prints the learning curve, and writes it where it was asked for."""
    shown = curve[:: max(1, -(-len(curve) // 24))]
    if shown[-1] is not curve[-1]:
        shown.append(curve[-1])
    print(f"\n step  seconds  score (of {cart_pole.STEPS_MAX})")
    for step, seconds, score in shown:
        print(f"{step:5}  {seconds:7.2f}  {score:5.1f} {'#' * round(40 * score / cart_pole.STEPS_MAX)}")
    if arguments.csv is not None:
        with open(arguments.csv, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["step", "seconds", "score"])
            writer.writerows((step, f"{seconds:.3f}", f"{score:.2f}") for step, seconds, score in curve)
    if arguments.svg is not None:
        last = max(curve[-1][0], 1)
        points = " ".join(f"{20 + 560 * step / last:.1f},{220 - score:.1f}" for step, _, score in curve)
        lines = [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 250" font-family="sans-serif" font-size="11">',
            '<path d="M20 20V220H580" fill="none" stroke="gray"/>',
            f'<polyline points="{points}" fill="none" stroke="steelblue" stroke-width="2"/>',
            f'<text x="20" y="14">score, of {cart_pole.STEPS_MAX}</text>',
            f'<text x="580" y="236" text-anchor="end">step {last}</text></svg>',
        ]
        with open(arguments.svg, "w") as file:
            file.write("\n".join(lines) + "\n")


def number(kind, least, most):
    """Returns what reads a number of these bounds from the command line."""

    def read(text):
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text}; expected {least} to {most}")
        return value

    read.__name__ = "whole number" if kind is int else "number"
    return read


def writable(path):
    """Reads the name of a file to write, whose folder must be there."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise argparse.ArgumentTypeError(f"{path}: there is no folder {folder}")
    return path


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=number(int, 1, 64), default=2, help="processes that try policies (2)")
    parser.add_argument("--seed", type=number(int, 0, 2**32 - 1), default=0, help="of all that is random (0)")
    parser.add_argument(
        "--threshold", type=number(float, 1, cart_pole.STEPS_MAX), default=195.0,
        help=f"mean steps of {TEST_EPISODES} episodes at which to end (195)",
    )
    parser.add_argument("--rate", type=number(float, 0, 1), default=0.02, help="size of a step of the policy (0.02)")
    parser.add_argument(
        "--time-limit-s", type=number(float, 0.1, 86_400), default=60.0, help="seconds to learn in (60)"
    )
    kill = parser.add_mutually_exclusive_group()
    kill.add_argument("--kill-after", type=number(int, 1, 10**6), default=2, help="steps before one is killed (2)")
    kill.add_argument("--no-kill", dest="kill_after", action="store_const", const=None, help="kill none")
    parser.add_argument("--csv", type=writable, help="a file to write the learning curve to")
    parser.add_argument("--svg", type=writable, help="a file to draw the learning curve in")
    return parser.parse_args()


def main():
    arguments = read_arguments()
    with sheave.init() as mesh:
        group = mesh.rpc_group(GROUP, [mesh.rank])
        table = sheave.versions.Versions(mesh, has_guests=True)
        table.register(group, TABLE)
        results = sheave.pool.Queue(2 * arguments.actors, mesh=mesh)
        # The actors share few cores: one thread each.
        env = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        started = (results, arguments.seed)
        with sheave.Fleet(arguments.actors, begin_to_act, started, mesh=mesh, label="actor", env=env) as fleet:
            names = ", ".join(guest.name for guest in fleet.guests)
            print(f"the actors: {names}", flush=True)
            fleet.events()
            learner = Learner(table.client(), arguments.seed, arguments.rate)
            counts, pulls = learn(learner, fleet, results, arguments)
    write_curve(learner.curve, arguments)
    print()
    for name, count in sorted(counts.items()):
        moved, unmoved = pulls[name]
        print(f"{name}: {count} results, {moved} policies pulled, {unmoved} pulls that moved nothing")
    print(f"{learner.old} results were too old to count")
    is_reached = learner.score >= arguments.threshold
    verdict = "reached" if is_reached else "not reached"
    seconds = time.monotonic() - learner.begun
    print(f"{verdict}: {learner.score:.1f} of {cart_pole.STEPS_MAX}, with {learner.step} steps in {seconds:.1f} s")
    return 0 if is_reached else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
