"""Search for the best settings of a classifier of handwritten digits, each tried by a task of a pool.

    python examples/python/search.py
    python examples/python/search.py --workers 2 --features 2048 --rounds 1

All tasks read one array, random features of the images: 64 MiB that workers reach where they lie, and that nobody
copies. A task takes the first so many features, solves for the weights that are least wrong on one part of the images,
and says which share of another part is right. After each round the search goes on around the best that it has found.
The line that grows is its progress. In the end a worker is killed on purpose: its task says so, and the pool goes on.
"""

import argparse
import os
import sys

import digits
import numpy as np
import sheave
import sheave.pool

ARRAY_BYTES = 64 << 20


def features_of(images, count, width, out):
    """Fills `out` with cosines of random directions, by which distances between images become products."""
    dice = np.random.default_rng(7)
    directions = dice.normal(size=(images.shape[1], count)).astype(np.float32) / width
    shifts = dice.uniform(0, 2 * np.pi, size=count).astype(np.float32)
    np.matmul(images, directions, out=out)
    out += shifts
    np.cos(out, out=out)


def accuracy(features, labels, trained, count, ridge):
    """Trains with the first `count` features on the first `trained` images; which share of the others is right."""
    known, held_out = features[:trained, :count], features[trained:, :count]
    wanted = np.eye(10, dtype=np.float32)[labels[:trained]]
    # As many unknowns as there are images, or features, whichever are fewer.
    if trained < count:
        inner = known @ known.T
        inner.flat[:: trained + 1] += ridge
        weights = known.T @ np.linalg.solve(inner, wanted)
    else:
        inner = known.T @ known
        inner.flat[:: count + 1] += ridge
        weights = np.linalg.solve(inner, known.T @ wanted)
    return float(np.mean(np.argmax(held_out @ weights, axis=1) == labels[trained:]))


def bar(done, total):
    """Shows progress."""
    if sys.stdout.isatty():
        print(f"\r[{'#' * (30 * done // total):30}] {done}/{total}", end="" if done < total else "\n", flush=True)


def around(best, most):
    """Settings beside the best ones."""
    count, ridge = best
    counts = {max(count // 2, 16), count, min(count * 2, most)}
    return [(count, ridge * factor) for count in sorted(counts) for factor in (0.1, 0.3, 1.0, 3.0, 10.0)]


def search(pool, shared, labels, trained, rounds, most):
    best, found = (min(most, 256), 1.0), {}
    for number in range(rounds):
        tries = [settings for settings in around(best, most) if settings not in found]
        tasks = [(shared, labels, trained, *settings) for settings in tries]

        def run(task):
            return accuracy(*task)

        shares = pool.map(run, tasks, progress=bar)
        found.update(zip(tries, shares))
        best = max(found, key=found.get)
        count, ridge = best
        print(f"round {number + 1}: {count} features, ridge {ridge:g}: {found[best]:.1%} are right", flush=True)
    return best, found[best]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--features", type=int, default=2048, help="at most")
    arguments = parser.parse_args()

    (images, labels), (other_images, other_labels) = digits.load()
    images, all_labels = np.concatenate([images, other_images]), np.concatenate([labels, other_labels])
    columns = ARRAY_BYTES // 4 // len(images)
    sheave.init()
    features = sheave.empty((len(images), columns), "float32")
    features_of(images, columns, 2.0, features.numpy())
    shared = sheave.pool.Share(features, read_only=True)
    print(f"{features.numpy().nbytes >> 20} MiB of features that all workers see", flush=True)
    with sheave.pool.Pool(arguments.workers) as pool:
        (count, ridge), share = search(
            pool, shared, all_labels, len(labels), arguments.rounds, min(arguments.features, columns)
        )
        print(f"best: {count} features, ridge {ridge:g}, accuracy {share:.4f}")
        try:
            pool.apply(lambda: os.kill(os.getpid(), 9))
        except sheave.WorkerDied as died:
            print(f"as expected: {died}")
        print("and the pool goes on:", pool.apply(sum, ([1, 2, 3],)))


if __name__ == "__main__":
    main()
