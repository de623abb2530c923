"""Small models of numpy for the tests of sheave.bayes, and the same trainings without sheave."""

import contextlib
import threading

import numpy as np
import sheave
from sheave import bayes, optim
from sheave.particle import FunctionModel


def squares(output, target):
    """The mean of squares, and its gradient."""
    return float(np.mean((output - target) ** 2)), 2 * (output - target) / output.size


def half_squares(noise_variance):
    """The mean negative log likelihood of normal noise, but for a constant, and its gradient."""
    return lambda output, target: (
        float(np.mean((output - target) ** 2) / 2 / noise_variance),
        (output - target) / noise_variance / output.size,
    )


def cross_entropy(logits, labels):
    """The mean negative log likelihood of classes, and its gradient."""
    logs = bayes.log_softmax(np.ascontiguousarray(logits))
    rows = np.arange(len(labels))
    slopes = np.exp(logs)
    slopes[rows, labels] -= 1
    return float(-logs[rows, labels].mean()), slopes / len(labels)


def line(parameters, x):
    return x @ parameters["w"]


def line_gradient(parameters, loss, x, y):
    value, slopes = loss(line(parameters, x), y)
    return value, {"w": x.T @ slopes}


def normals(seed, shape, scale=1.0, dtype=np.float64):
    drawn = np.empty(shape, dtype)
    bayes.Generator(seed).fill_normal(drawn)
    return drawn * dtype(scale)


def make_line(inputs=2, outputs=1, optimizer=None):
    """A function of a seed that makes y = x w."""
    return lambda seed: FunctionModel({"w": normals(seed, (inputs, outputs))}, line, line_gradient, optimizer)


def network(parameters, x, dropout=None):
    """Two layers with tanh between, and with dropout of a half there if a generator is given."""
    hidden = np.tanh(x @ parameters["w0"] + parameters["b0"])
    if dropout is not None:
        mask = np.empty(hidden.shape[1:], hidden.dtype)
        bayes.dropout_mask(dropout, 0.5, mask)
        hidden = hidden * mask
    return hidden @ parameters["w1"] + parameters["b1"]


def network_gradient(parameters, loss, x, y):
    hidden = np.tanh(x @ parameters["w0"] + parameters["b0"])
    value, slopes = loss(hidden @ parameters["w1"] + parameters["b1"], y)
    below = (slopes @ parameters["w1"].T) * (1 - hidden**2)
    return value, {
        "w0": x.T @ below,
        "b0": below.sum(0),
        "w1": hidden.T @ slopes,
        "b1": slopes.sum(0),
    }


def make_network(inputs, hidden, outputs, optimizer=None, dtype=np.float32):
    """A function of a seed that makes a network."""

    def make(seed):
        parameters = {
            "w0": normals(bayes.seed_of(seed, 0), (inputs, hidden), inputs**-0.5, dtype),
            "b0": np.zeros(hidden, dtype),
            "w1": normals(bayes.seed_of(seed, 1), (hidden, outputs), hidden**-0.5, dtype),
            "b1": np.zeros(outputs, dtype),
        }
        return FunctionModel(parameters, network, network_gradient, optimizer or None)

    return make


def batches(x, y, size):
    return [(x[start : start + size], y[start : start + size]) for start in range(0, len(x), size)]


def of_models(posterior, look):
    """What `look(model)` returns for the model of each member, in the order of its device."""
    for id in posterior.ids:
        posterior.particles.register(id, "look", lambda particle: particle.update(look).wait())
    return posterior.ask("look")


SGD = optim.SGD(lr=0.1)


@contextlib.contextmanager
def joined_pair():
    """Both members of a mesh of two, in threads."""
    # A program that imports this module has a secret, which that one would replace.
    from conftest import free_root

    root, meshes = free_root(), [None, None]

    def join(rank):
        meshes[rank] = sheave.Mesh(rank=rank, size=2, root=root, join_timeout=60)

    thread = threading.Thread(target=join, args=(1,))
    thread.start()
    join(0)
    thread.join(60)
    try:
        yield meshes
    finally:
        for mesh in meshes:
            mesh.close()


def both(act):
    """Runs `act(rank)` on two threads. Returns what came of both."""
    made, raised = [None, None], []

    def run(rank):
        try:
            made[rank] = act(rank)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not raised and not any(thread.is_alive() for thread in threads), raised
    return made
