"""A layer of a mixture of experts, its attention on workers and its experts on servers.

    python examples/python/moe_exchange.py
    sheave launch -n 2 -s 2 -- python examples/python/moe_exchange.py
    python examples/python/moe_exchange.py --role worker --root 10.0.0.1:29500   (and so on for every process)

Each worker has tokens of its own. It computes attention, asks the gate which experts each token goes to, and pushes
tokens and routes to all servers; each server has some of the experts and answers what they add. Three micro-batches are
in flight, so that attention of one is computed while experts work on the others. The tokens of all workers land side by
side in one array, and each expert takes its share of them in one matrix product. The result is that of the same layer
in one process.
"""

import argparse
import os

import numpy as np
import sheave

SLOTS = 3  # micro-batches in flight
TOKENS, DIM, HIDDEN, EXPERTS = 48, 32, 64, 8
# Keys name places: those of one micro-batch in flight are its own.
TOKENS_KEY, ROUTES_KEY, GATES_KEY, ANSWER_KEY = (kind * SLOTS for kind in range(4))


class Layer:
    """Weights that every process draws for itself, and what to do with them."""

    def __init__(self, top):
        rng = np.random.default_rng(1)

        def draw(*shape):
            return rng.normal(0, shape[-2] ** -0.5, shape).astype(np.float32)

        self.top = top
        self.query, self.key, self.value = draw(DIM, DIM), draw(DIM, DIM), draw(DIM, DIM)
        self.gate = draw(DIM, EXPERTS)
        self.inward, self.outward = draw(EXPERTS, DIM, HIDDEN), draw(EXPERTS, HIDDEN, DIM)

    def attention(self, tokens):
        scores = (tokens @ self.query) @ (tokens @ self.key).T / DIM**0.5
        return tokens + softmax(scores) @ (tokens @ self.value)

    def route(self, tokens):
        """The best experts of each token, and how much each of them counts."""
        chances = softmax(tokens @ self.gate)
        routes = np.argsort(-chances, axis=1)[:, : self.top].astype(np.int32)
        gates = np.take_along_axis(chances, routes, axis=1)
        return routes, gates / gates.sum(axis=1, keepdims=True)

    def experts(self, which, tokens, routes, gates):
        """What these experts add to the tokens: nothing to those that go elsewhere."""
        added = np.zeros_like(tokens)
        for expert in which:
            rows, choices = np.nonzero(routes == expert)
            inner = np.maximum(tokens[rows] @ self.inward[expert], 0)
            added[rows] += gates[rows, choices, None] * (inner @ self.outward[expert])
        return added

    def whole(self, tokens):
        """The layer in one process."""
        tokens = self.attention(tokens)
        return tokens + self.experts(range(EXPERTS), tokens, *self.route(tokens))


def softmax(scores):
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    return chances / chances.sum(axis=1, keepdims=True)


def work(mesh, arguments):
    """A worker: attention, routes, and the sum of the servers' answers."""
    layer = Layer(arguments.top)
    with sheave.exchange.Worker(mesh) as worker:
        batches = np.random.default_rng([2, worker.rank]).normal(size=(arguments.batches, TOKENS, DIM))
        batches = batches.astype(np.float32)
        # Arrays of the mesh's own memory are reached by servers on this host without a copy.
        answers = [[mesh.empty((TOKENS, DIM)).numpy() for _ in range(worker.servers)] for _ in range(SLOTS)]
        outputs, flying = [], []

        def land():
            tokens, slot, answer = flying.pop(0)
            answer.wait(timeout=30)
            outputs.append(tokens + sum(answers[slot]))

        worker.barrier("all")  # servers have said where tokens land
        for number, batch in enumerate(batches):
            if len(flying) == SLOTS:
                land()
            slot = number % SLOTS
            tokens = layer.attention(batch)
            routes, gates = layer.route(tokens)
            pushed = {TOKENS_KEY + slot: tokens, ROUTES_KEY + slot: routes, GATES_KEY + slot: gates}
            pulled = {ANSWER_KEY + slot: answers[slot] if worker.servers > 1 else answers[slot][0]}
            answer = worker.push_pull(pushed, pulled, step=number)
            flying.append((tokens, slot, answer))
        while flying:
            land()

    whole = [layer.whole(batch) for batch in batches]
    error = max(float(np.abs(output - expected).max()) for output, expected in zip(outputs, whole, strict=True))
    np.testing.assert_allclose(outputs, whole, rtol=1e-5, atol=1e-5)
    said = f"{len(outputs)} micro-batches are those of one process, off by {error:.0e}"
    print(f"worker {worker.rank}: {said}", flush=True)


def serve(mesh, arguments):
    """A server: some of the experts, on the tokens of all workers at once."""
    layer = Layer(arguments.top)
    with sheave.exchange.Server(mesh) as server:
        mine = range(server.rank, EXPERTS, arguments.servers)
        ranks = list(range(server.workers))
        landings = [
            server.register(mesh.empty((server.workers, TOKENS, DIM)), ranks, [TOKENS_KEY + slot] * server.workers)
            for slot in range(SLOTS)
        ]

        def answer(batch, slot):
            # Arrays over what was pushed must be gone when the next push is to land there: they end with this call.
            tokens, routes, gates = zip(*(request.tensors for request in batch))
            tokens = landings[slot].merged(tokens).numpy()
            routes, gates = np.concatenate(routes), np.concatenate(gates)
            server.respond_rows(layer.experts(mine, tokens, routes, gates), batch)

        server.barrier("all")
        for number, batch in enumerate(server):
            answer(batch, number % SLOTS)


def take_part(arguments):
    """What every process does, by its role."""
    named = {}
    if arguments.role:
        named = {"workers": arguments.workers, "servers": arguments.servers, "root": arguments.root}
        named["role"] = arguments.role
    with sheave.init(**named) as mesh:
        counts = [sum(member.role == role for member in mesh.members) for role in ("worker", "server")]
        arguments.workers, arguments.servers = counts
        {"worker": work, "server": serve}.get(mesh.role, lambda mesh, _: mesh.until_gone())(mesh, arguments)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--role", choices=["scheduler", "server", "worker"], help="if no launcher says it")
    parser.add_argument("--root", default="127.0.0.1:29500", help="where the scheduler listens, with --role")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=12, help="micro-batches of each worker")
    parser.add_argument("--top", type=int, default=2, help="experts that each token goes to")
    arguments = parser.parse_args()

    if arguments.role or os.environ.get("SHEAVE_ROLE") or os.environ.get("DMLC_ROLE"):
        take_part(arguments)
    else:
        counts = {"servers": arguments.servers, "server": take_part}
        sheave.spawn(take_part, arguments.workers, (arguments,), **counts)


if __name__ == "__main__":
    main()
