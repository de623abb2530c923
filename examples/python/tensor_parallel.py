"""Run a network whose layers are divided among the workers of a session: tensor-parallel.

    python examples/python/tensor_parallel.py --kind processes --workers 4

Of each block the first layer is divided by columns and the second by rows, so that every worker has all of the input,
its own part of what lies between, and a part of the output: the sum of these is the block's. The controller sends each
worker its parts once; then a batch costs one command to compute and one to sum for each block, and nothing of it passes
through the controller but the input and the result.
"""

import argparse
import time

import numpy as np
import sheave.session

KINDS = {"threads": sheave.session.ThreadedSession, "processes": sheave.session.ProcessSession}


def activate(x):
    return np.maximum(x, 0, out=x)


@sheave.session.register_function("part of a block", replace=True)
def part(x, up, down):
    """What this worker adds to the output of a block."""
    return activate(x @ up) @ down


@sheave.session.register_function("end of a block", replace=True)
def end(x, added):
    """The input of the next block."""
    return x + added


def alone(blocks, x):
    """The same in one process."""
    for up, down in blocks:
        x = x + activate(x @ up) @ down
    return x


def divided(session, blocks):
    """The parts of the layers, on the workers."""
    workers = session.workers

    def divide(up, down):
        columns = np.stack(np.split(up, workers, axis=1))
        rows = np.stack(np.split(down, workers))
        return session.scatter(columns, scope="world"), session.scatter(rows, scope="world")

    return [divide(up, down) for up, down in blocks]


def run(session, parts, x):
    """All blocks, one after the other: commands, of which none is waited for but the last."""
    x = session.broadcast(x, scope="world")
    for up, down in parts:
        added = session.call("part of a block", x, up, down)
        # Over what each worker has computed.
        session.all_reduce(added, added, scope="world")
        x = session.call("end of a block", x, added)
    return x


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, default="threads")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batches", type=int, default=20)
    arguments = parser.parse_args()

    generator, width = np.random.default_rng(0), arguments.width

    def layer(rows, columns):
        return generator.standard_normal((rows, columns), np.float32) / np.float32(2 * np.sqrt(rows))

    blocks = [(layer(width, 4 * width), layer(4 * width, width)) for _ in range(arguments.blocks)]
    x = generator.standard_normal((32, width), np.float32)
    expected = alone(blocks, x)
    with KINDS[arguments.kind](arguments.workers) as session:
        parts = divided(session, blocks)
        results = [run(session, parts, x).get(worker) for worker in range(arguments.workers)]
        difference = max(float(np.abs(result - expected).max() / np.abs(expected).max()) for result in results)
        begun = time.perf_counter()
        for _ in range(arguments.batches):
            run(session, parts, x)
        session.sync()
        mean_ms = 1e3 * (time.perf_counter() - begun) / arguments.batches
    print(f"{arguments.workers} {arguments.kind}: difference {difference:.1e}, {mean_ms:.2f} ms per batch")


if __name__ == "__main__":
    main()
