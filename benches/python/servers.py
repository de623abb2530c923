"""Measures tables of versioned objects between processes: python servers.py [--rounds N]. Prints one line per case."""

import argparse
import statistics
import time

import numpy as np
import sheave

#: A state dictionary of 5.76 MB, as that of a small convolutional network.
SHAPES = {
    "conv1": (32, 4, 8, 8),
    "conv2": (64, 32, 4, 4),
    "conv3": (64, 64, 3, 3),
    "full": (2652, 512),
    "head": (512, 6),
}
CLIENTS = 4


def timed(act, rounds):
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        act()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


def serve(mesh, group):
    versions = sheave.versions.Versions(mesh, depth=2)
    versions.register(group, "objects", timeout=30)
    group.barrier(60)
    for _ in range(3):
        group.barrier(600)
    return versions.report()


def use(mesh, group, rounds):
    group.barrier(60)
    table, rows = group.versions("objects", timeout=30), {}
    if mesh.rank == 1:
        state = {name: np.ones(shape, "float32") for name, shape in SHAPES.items()}
        own = {name: np.empty(shape, "float32") for name, shape in SHAPES.items()}
        count = sum(array.nbytes for array in state.values())
        version = 0

        def push():
            nonlocal version
            table.push("model", state, version + 1, previous=version or None)
            version += 1

        def pull(share):
            for name, array in table.pull("model", share=share).value.items():
                own[name][...] = array

        def both():
            push()
            pull(share=True)

        for _ in range(20):
            both()
        rows[f"push {count / 1e6:.2f} MB"] = timed(push, rounds)
        rows["pull, copied"] = timed(lambda: table.pull("model"), rounds)
        rows["pull, shared"] = timed(lambda: table.pull("model", share=True), rounds)
        rows["push + shared pull into own arrays"] = timed(both, rounds)
        rows["pull, unchanged"] = timed(lambda: table.pull("model", newer_than=version), 20 * rounds)
    group.barrier(600)
    begun, done, tries = time.perf_counter(), 0, 0
    known = None
    while time.perf_counter() - begun < 2:
        pushed = table.push("count", 0, (known or 0) + 1, previous=known)
        done += bool(pushed)
        tries += 1
        known = pushed.newest
    group.barrier(600)
    rows["compare-and-push tries a second"] = tries / 2
    rows["compare-and-push accepted a second"] = done / 2
    group.barrier(600)
    return rows


def main(rounds):
    with sheave.init() as mesh:
        group = mesh.rpc_group("bench", timeout=60)
        return serve(mesh, group) if mesh.rank == 0 else use(mesh, group, rounds)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=100)
    _, *clients = sheave.spawn(main, 1 + CLIENTS, (arguments.parse_args().rounds,))
    for name, value in clients[0].items():
        if "a second" in name:
            print(f"{name:40} {sum(rows[name] for rows in clients):12.0f}")
        else:
            print(f"{name:40} {value:12.1f} us")
