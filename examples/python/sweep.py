"""Search for a learning rate with trainers that live on other processes.

    sheave launch -n 3 -- python examples/python/sweep.py
    python examples/python/sweep.py

Rank 0 has a trainer made for each learning rate, spread over all processes, and keeps references to them. All train at
once where they live. After each round the worse half is dropped, and with its last reference a trainer is gone. In the
end the weights of the best one are fetched, as arrays. The second line does the same within one process, and finds the
same rate and the same weights, bit for bit.
"""

import argparse
import hashlib

import digits
import numpy as np
import sheave
from digits_ps import NumpyModel

RATES = [3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001]
BATCH = 32


class Trainer:
    """A network that learns at one rate."""

    def __init__(self, rate, seed):
        self.rate, self.seed, self.epoch = rate, seed, 0
        self.model = NumpyModel(seed)
        (self.images, self.labels), self.held_out = digits.load()

    def train(self, epochs):
        """Goes over all images `epochs` times; returns which share of the held-out ones is right then."""
        for _ in range(epochs):
            order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.images))
            self.epoch += 1
            for start in range(0, len(order) - BATCH + 1, BATCH):
                chosen = order[start : start + BATCH]
                with np.errstate(over="ignore", invalid="ignore"):
                    gradients = self.model.gradients(self.images[chosen], self.labels[chosen])
                for name, gradient in gradients.items():
                    self.model.weights[name] -= self.rate / BATCH * gradient
        return self.model.accuracy(*self.held_out)

    def weights(self):
        return self.model.weights


def sweep(mesh, rounds, epochs, seed):
    """What rank 0 does: returns the best rate, its accuracy and its weights."""
    ranks = mesh.world.size
    trainers = {rate: mesh.remote(place % ranks, "trainer", (rate, seed)) for place, rate in enumerate(RATES)}
    found = {}
    for number in range(rounds):
        works = {rate: trainer.call("train", (epochs,), async_op=True) for rate, trainer in trainers.items()}
        found = {rate: work.wait() for rate, work in works.items()}
        best = sorted(found, key=found.get, reverse=True)
        for rate in best:
            print(f"round {number + 1}: rate {rate:<5} on {trainers[rate].owner.name}: {found[rate]:.1%}", flush=True)
        if number + 1 < rounds:
            for rate in best[len(best) // 2 :]:
                del trainers[rate]
    best = max(found, key=found.get)
    return best, found[best], trainers[best].call("weights")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4, help="in each round")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    mesh = sheave.init()
    mesh.serve("trainer", Trainer)
    # Everybody serves by then, and does so until all have come to the end.
    mesh.barrier()
    if mesh.rank == 0:
        rate, accuracy, weights = sweep(mesh, arguments.rounds, arguments.epochs, arguments.seed)
        digest = hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights))).hexdigest()
        print(f"best rate {rate}: accuracy {accuracy:.4f}, weights {digest}", flush=True)
    mesh.finish()


if __name__ == "__main__":
    main()
