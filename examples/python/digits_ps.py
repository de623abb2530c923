"""Train a small network on handwritten digits over a parameter server.

    sheave launch -n 2 -s 2 -- python examples/python/digits_ps.py
    python examples/python/digits_ps.py

The first starts a scheduler, two servers and two workers, all of which run this program. Workers compute gradients,
servers sum them and step the weights by an optimizer. The second does the same within one process: it computes the
gradients of both workers itself, and ends with the same weights, bit for bit. With `--torch` the network is torch's,
whose parameters are pushed and pulled in place.
"""

import argparse
import hashlib

import digits
import numpy as np
import sheave

HIDDEN = 64


class NumpyModel:
    """Two layers with a rectifier between them, and their gradients by hand."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.weights = {
            "hidden.weight": rng.normal(0, (2 / 64) ** 0.5, (64, HIDDEN)).astype(np.float32),
            "hidden.bias": np.zeros(HIDDEN, np.float32),
            "output.weight": rng.normal(0, (2 / HIDDEN) ** 0.5, (HIDDEN, 10)).astype(np.float32),
            "output.bias": np.zeros(10, np.float32),
        }

    def forward(self, images):
        hidden = np.maximum(images @ self.weights["hidden.weight"] + self.weights["hidden.bias"], 0)
        return hidden, hidden @ self.weights["output.weight"] + self.weights["output.bias"]

    def gradients(self, images, labels):
        """Of the sum of the images' cross-entropies."""
        hidden, scores = self.forward(images)
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        chances[np.arange(len(labels)), labels] -= 1
        back = (chances @ self.weights["output.weight"].T) * (hidden > 0)
        return {
            "hidden.weight": images.T @ back,
            "hidden.bias": back.sum(axis=0),
            "output.weight": hidden.T @ chances,
            "output.bias": chances.sum(axis=0),
        }

    def accuracy(self, images, labels):
        return float((self.forward(images)[1].argmax(axis=1) == labels).mean())


class TorchModel:
    """The same by torch. `weights` are its parameters' own memory."""

    def __init__(self, seed):
        import torch

        self.torch = torch
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        layers = [torch.nn.Linear(64, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 10)]
        self.network = torch.nn.Sequential(*layers)
        self.weights = {name: parameter.data for name, parameter in self.network.named_parameters()}

    def gradients(self, images, labels):
        self.network.zero_grad()
        scores = self.network(self.torch.from_numpy(images))
        loss = self.torch.nn.functional.cross_entropy(scores, self.torch.from_numpy(labels), reduction="sum")
        loss.backward()
        return {name: parameter.grad.clone() for name, parameter in self.network.named_parameters()}

    def accuracy(self, images, labels):
        with self.torch.no_grad():
            best = self.network(self.torch.from_numpy(images)).argmax(dim=1).numpy()
        return float((best == labels).mean())


def train(store, workers, arguments):
    """Trains as worker `store.rank` of a distributed store, or as all `workers` of a local one."""
    (images, labels), held_out = digits.load()
    model = (TorchModel if arguments.torch else NumpyModel)(arguments.seed)
    names = list(model.weights)
    batch_images = workers * arguments.batch
    mine = range(workers) if store.num_workers < workers else [store.rank]

    # All begin with the weights of worker 0. What a push does is said before anybody pushes.
    store.broadcast(names, list(model.weights.values()), list(model.weights.values())).wait()
    store.set_optimizer(sheave.optim.SGD(lr=arguments.lr, momentum=0.9, rescale=1 / batch_images))
    store.barrier()

    for epoch in range(arguments.epochs):
        order = np.random.default_rng([arguments.seed, epoch]).permutation(len(images))
        for start in range(0, len(images) - batch_images + 1, batch_images):
            shares = order[start : start + batch_images].reshape(workers, arguments.batch)
            gradients = [model.gradients(images[shares[rank]], labels[shares[rank]]) for rank in mine]
            pushed = [[share[name] for share in gradients] for name in names]
            # Returns when all workers have pushed, with the weights after the step.
            store.pushpull(names, pushed, list(model.weights.values())).wait()
        if store.rank == 0 and not arguments.quiet:
            print(f"epoch {epoch + 1}: {model.accuracy(*held_out):.1%} of the held-out digits are right", flush=True)

    weights = b"".join(np.asarray(model.weights[name]).tobytes() for name in names)
    return model.accuracy(*held_out), hashlib.sha256(weights).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", action="store_true", help="the network is torch's")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16, help="images that each worker takes per step")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="of a run within one process")
    parser.add_argument("--quiet", action="store_true", help="print the result alone")
    arguments = parser.parse_args()

    with sheave.init() as mesh:
        if mesh.role in ("server", "scheduler"):
            sheave.run_server(mesh)
            return
        is_alone = mesh.role == "rank"
        with sheave.KVStore("local" if is_alone else "dist_sync", mesh) as store:
            accuracy, digest = train(store, arguments.workers if is_alone else store.num_workers, arguments)
            print(f"worker {store.rank}: accuracy {accuracy:.4f}, weights {digest}", flush=True)


if __name__ == "__main__":
    main()
