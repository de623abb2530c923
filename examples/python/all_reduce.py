"""Train a linear classifier on handwritten digits, data-parallel: gradients are summed by all-reduce.

    sheave launch -n 2 -- python examples/python/all_reduce.py
    torchrun --nproc-per-node 2 examples/python/all_reduce.py

Every process has all the weights and a share of the images. In each step all compute gradients of their own images, sum
them with each other, and take the same step; so they have the same weights, bit for bit, and nobody serves anybody.
"""

import argparse
import hashlib
import time

import digits
import numpy as np
import sheave


def gradient(weights, images, labels, out):
    """Of the sum of the images' cross-entropies, written into `out`."""
    scores = images @ weights
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(len(labels)), labels] -= 1
    np.matmul(images.T, chances, out=out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=1.0, help="learning rate")
    arguments = parser.parse_args()

    with sheave.init() as mesh:
        group = mesh.world
        (images, labels), held_out = digits.load()
        mine = slice(group.rank, None, group.size)
        weights = np.zeros((64, 10), np.float32)
        # Memory that the processes of one host share: they add there, without a copy. Plain numpy arrays work too.
        shared = sheave.empty((64, 10), "float32")
        summed = shared.numpy()
        reducing_s = 0.0
        for _ in range(arguments.steps):
            gradient(weights, images[mine], labels[mine], summed)
            begun = time.perf_counter()
            group.all_reduce(shared)
            reducing_s += time.perf_counter() - begun
            weights -= arguments.lr / len(images) * summed
        right = float(((held_out[0] @ weights).argmax(axis=1) == held_out[1]).mean())
        digest = hashlib.sha256(weights.tobytes()).hexdigest()
        mean_us = 1e6 * reducing_s / arguments.steps
        print(f"rank {group.rank} of {group.size}: accuracy {right:.4f}, weights {digest}, {mean_us:.0f} us per sum")
        group.barrier()


if __name__ == "__main__":
    main()
