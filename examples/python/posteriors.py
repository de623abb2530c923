"""Know what a network does not know: ensembles, multi-SWAG and SVGD beside a single network.

    python examples/python/posteriors.py
    python examples/python/posteriors.py --svg posterior.svg

Trains small networks on a part of the handwritten digits and prints how good their probabilities are on the others:
accuracy, negative log likelihood, calibration error, Brier score. Then it fits a noisy curve by networks that predict a
variance too, and with `--svg` draws it, with bands of one and two standard deviations: an ensemble is unsure where it
has seen nothing. Networks are torch's, or with `--numpy`, and where torch is not installed, functions of numpy.
"""

import argparse
import importlib.util

import digits
import numpy as np
from sheave import bayes, optim
from sheave.particle import FunctionModel, Particles

BATCH = 64
CURVE_EPOCHS = 600


class Numpy:
    """Networks of two layers as functions of numpy, and their gradients by hand."""

    batched = False

    def network(self, inputs, hidden, outputs, optimizer):
        """A function of a seed that makes a network; `optimizer` is one of sheave.optim, or None."""

        def make(seed):
            random = np.random.default_rng(seed)
            parameters = {
                "hidden.weight": random.normal(0, inputs**-0.5, (inputs, hidden)).astype(np.float32),
                "hidden.bias": random.normal(0, 1, hidden).astype(np.float32),
                "output.weight": random.normal(0, hidden**-0.5, (hidden, outputs)).astype(np.float32),
                "output.bias": np.zeros(outputs, np.float32),
            }
            return FunctionModel(parameters, self.forward, self.gradient, optimizer)

        return make

    def forward(self, parameters, x):
        hidden = np.tanh(x @ parameters["hidden.weight"] + parameters["hidden.bias"])
        return hidden @ parameters["output.weight"] + parameters["output.bias"]

    def gradient(self, parameters, loss, x, y):
        hidden = np.tanh(x @ parameters["hidden.weight"] + parameters["hidden.bias"])
        value, slopes = loss(hidden @ parameters["output.weight"] + parameters["output.bias"], y)
        below = (slopes @ parameters["output.weight"].T) * (1 - hidden**2)
        return value, {
            "hidden.weight": x.T @ below,
            "hidden.bias": below.sum(axis=0),
            "output.weight": hidden.T @ slopes,
            "output.bias": slopes.sum(axis=0),
        }

    def cross_entropy(self, logits, labels):
        logs = bayes.log_softmax(np.ascontiguousarray(logits))
        slopes, rows = np.exp(logs), np.arange(len(labels))
        slopes[rows, labels] -= 1
        return float(-logs[rows, labels].mean()), slopes / len(labels)

    def gaussian(self, output, targets):
        mean, log_variance = np.ascontiguousarray(output[:, :1]), np.ascontiguousarray(output[:, 1:])
        slopes = bayes.gaussian_head_gradient(mean, log_variance, targets)
        return bayes.gaussian_head_nll(mean, log_variance, targets), np.hstack(slopes)

    def array(self, values):
        return values


class Torch:
    """The same networks as modules of torch, all of which are one computation."""

    batched = True

    def __init__(self):
        import torch

        torch.set_num_threads(1)
        self.torch = torch
        self.cross_entropy = torch.nn.functional.cross_entropy
        self.gaussian = bayes.gaussian_loss

    def network(self, inputs, hidden, outputs, optimizer):
        from sheave.particle import TorchModel

        nn = self.torch.nn

        def module():
            made = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))
            nn.init.normal_(made[0].bias)
            return made

        def adam(parameters):
            return self.torch.optim.Adam(parameters, lr=optimizer.lr)

        return lambda seed: TorchModel(module, optimizer=adam if optimizer else None, seed=seed)

    def array(self, values):
        return self.torch.from_numpy(values)


def batches(kind, x, y):
    """The data in batches, in an order that is mixed once."""
    order = np.random.default_rng(0).permutation(len(x))
    places = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    return [(kind.array(x[place]), kind.array(y[place])) for place in places]


def classify(kind, arguments):
    """Train each posterior on a part of the digits. Yields names, and logarithms of the probabilities of the others.

    A single network is each member of the ensemble by itself, so that it is no matter of luck which one it is. All are
    trained until the loss of a network is close to zero and its probabilities are too sure, as those of networks
    without early stopping are: one that is stopped while it is calibrated leaves nothing to mend. SVGD needs a prior
    that is about as wide as the weights become: a narrower one makes probabilities too unsure.
    """
    (images, labels), (unseen, _) = digits.load()
    images, labels = images[: arguments.data], labels[: arguments.data]
    pairs, members, epochs = batches(kind, images, labels), arguments.members, arguments.epochs
    adam = optim.Adam(lr=1e-2)
    trained = kind.network(64, 32, 10, adam)
    moved = kind.network(64, 32, 10, None)
    settings = {"task": "classification", "seed": arguments.seed}
    with bayes.Ensemble(trained, members, **settings) as ensemble:
        ensemble.fit(pairs, kind.cross_entropy, epochs, batched=kind.batched, progress=True)
        logits = ensemble.outputs(kind.array(unseen))
        yield "single network", [bayes.log_softmax(each) for each in logits]
        yield f"ensemble of {members}", [bayes.mean_log_probabilities(logits)]
    with bayes.MultiSwag(trained, members, rank=10, **settings) as swag:
        snapshots = {"swag_epochs": max(epochs // 3, 3), "batched": kind.batched}
        swag.fit(pairs, kind.cross_entropy, epochs, **snapshots, progress=True)
        yield f"multi-SWAG of {members}", [swag.predict(kind.array(unseen), mode="log_prob", samples=10)["log_prob"]]
    with bayes.SteinVgd(moved, members, optimizer=adam, prior=bayes.Normal(deviation=3.0), **settings) as stein:
        stein.fit(pairs, kind.cross_entropy, epochs, batched=kind.batched, progress=True)
        yield f"SVGD of {members}", [stein.predict(kind.array(unseen), mode="log_prob")["log_prob"]]


def scores(logs, labels):
    """Accuracy, negative log likelihood, calibration error and Brier score of logarithms of probabilities."""
    chances = np.exp(logs)
    accuracy, error = bayes.accuracy(chances, labels), bayes.calibration_error(chances, labels)
    return accuracy, bayes.nll(logs, labels), error, bayes.brier(chances, labels)


def curve(kind, arguments):
    """Fit a noisy curve with a gap by an ensemble whose members predict a variance. Returns what is drawn of it."""
    random = np.random.default_rng(arguments.seed)
    x = np.concatenate([random.uniform(-4, -1, 60), random.uniform(1.5, 4, 60)]).astype(np.float32)[:, None]
    y = (np.sin(x) + random.normal(0, 0.15, x.shape)).astype(np.float32)
    places = np.linspace(-6, 6, 121, dtype=np.float32)[:, None]
    make = kind.network(1, 32, 2, optim.Adam(lr=1e-2))
    with Particles() as particles:
        ensemble = bayes.Ensemble(make, arguments.members, task="gaussian", particles=particles, seed=arguments.seed)
        ensemble.fit(batches(kind, x, y), kind.gaussian, CURVE_EPOCHS, batched=kind.batched, progress=True)
        found = ensemble.predict(kind.array(places), mode=["mean", "std", "model_std"])
    return (x, y), places, found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--members", type=int, default=16, help="networks of each posterior")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--data", type=int, default=200, help="how many digits are trained on")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--numpy", action="store_true", help="functions of numpy, also where torch is installed")
    parser.add_argument("--quick", action="store_true", help="small enough for a test")
    parser.add_argument("--svg", help="a file to draw the curve in")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.members = 4
    kind = Numpy() if arguments.numpy or importlib.util.find_spec("torch") is None else Torch()
    labels = digits.load()[1][1]
    print(f"{'digits':<18} accuracy     NLL   ECE  Brier")
    for name, found in classify(kind, arguments):
        accuracy, nll, error, brier = np.mean([scores(logs, labels) for logs in found], axis=0)
        print(f"{name:<18} {accuracy:8.3f}  {nll:6.3f} {error:5.3f}  {brier:5.3f}")
    points, places, found = curve(kind, arguments)
    beyond = np.abs(places[:, 0]) > 5
    near, far = found["model_std"][~beyond].mean(), found["model_std"][beyond].mean()
    print(f"curve: members disagree by {near:.3f} within 5 of zero, and by {far:.3f} beyond, where there are no data")
    if arguments.svg:
        picture = bayes.plots.regression(
            places, found["mean"], found["std"], points=points, truth=np.sin(places), title="an ensemble of networks"
        )
        with open(arguments.svg, "w") as file:
            file.write(picture)


if __name__ == "__main__":
    main()
