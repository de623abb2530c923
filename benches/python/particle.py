"""Times particles. `sheave bench particle` runs it:

    python benches/python/particle.py send_wait sheave 5000
    python benches/python/particle.py epoch loop 5
    sheave launch -n 2 -- python benches/python/particle.py across sheave 5000
    sheave launch -n 2 -- python benches/python/particle.py ensemble sheave 5

Arguments: a case, the way in which it is done and the number of rounds. Prints lines: bytes, and nanoseconds of rounds.
`send` sends a message that does nothing a thousand times in a row, for the time of one; `send_wait` sends one and waits
for its answer, `across` to a particle of another process; `get` gets 1 MB of parameters that have changed,
`get_unchanged` the same where they have not; `create` makes a thousand particles. `epoch` trains an ensemble of eight
networks for an epoch on one thread, in one batched computation or (`loop`) one after the other by a plain loop of
torch. `ensemble` trains one whose members take turns at the processes that it is launched as, of one thread each: one
by one, or (`batched`) in one computation in each process. `svgd` is the update alone of 32 particles of a million
parameters, or (`products`) numpy's two matrix products of that size.
"""

import sys
import time

import numpy
import sheave
from sheave.particle import Particles

WARM_ROUNDS = 20
CREATED = 1000
SENT = 1000
PRINTED = 100
PARAMETERS_BYTES = 1 << 20
MEMBERS = 8
LAYERS = (64, 128, 128, 10)
ROWS, BATCH = 5000, 64
SVGD_PARTICLES, SVGD_PARAMETERS = 32, 1_000_000
TIMEOUT_S = 100


def measure(act, rounds):
    for _ in range(min(WARM_ROUNDS, rounds)):
        act()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter_ns()
        act()
        times.append(time.perf_counter_ns() - begun)
    return times


def report(length_bytes, times):
    """Prints lines that the launcher prints whole, behind the name of the process."""
    for first in range(0, len(times), PRINTED):
        print("times:", length_bytes, *times[first : first + PRINTED], flush=True)


def do_nothing(particle):
    pass


def time_send(rounds):
    with Particles(name="bench") as particles:
        first = particles.create(receive={"pass": do_nothing})
        times = []
        for _ in range(WARM_ROUNDS + rounds):
            begun = time.perf_counter_ns()
            answers = [particles.send(first, "pass") for _ in range(SENT)]
            times.append((time.perf_counter_ns() - begun) // SENT)
            for answer in answers:
                answer.wait()
        report(0, times[WARM_ROUNDS:])


def time_send_wait(rounds):
    with Particles(name="bench") as particles:
        first = particles.create(receive={"pass": do_nothing})
        report(0, measure(lambda: particles.send(first, "pass").wait(), rounds))


def time_get(rounds, has_changed):
    ones = numpy.ones(PARAMETERS_BYTES // 4, "float32")
    vector = sheave.particle.FunctionModel({"all": ones.copy()}, forward=lambda parameters, x: x)
    with Particles(name="bench") as particles:
        first = particles.create(vector)
        times = []
        for _ in range(WARM_ROUNDS + rounds):
            if has_changed:
                vector.add_flat(ones, 1.0)
            begun = time.perf_counter_ns()
            snapshot = particles.get(first).wait()
            times.append(time.perf_counter_ns() - begun)
            assert snapshot.flat.nbytes == PARAMETERS_BYTES
        report(PARAMETERS_BYTES, times[WARM_ROUNDS:])


def time_create(rounds):
    with Particles(name="bench") as particles:

        def create():
            for _ in range(CREATED):
                particles.create(receive={"pass": do_nothing})

        report(0, measure(create, rounds))


def time_across(rounds):
    with sheave.init() as mesh:
        particles = Particles(mesh, "bench")
        particles.offer("still", lambda: {"receive": {"pass": do_nothing}})
        mesh.barrier(TIMEOUT_S)
        if mesh.rank == 0:
            there = particles.create_on(1, "still")
            report(0, measure(lambda: particles.send(there, "pass").wait(), rounds))
        mesh.barrier(TIMEOUT_S)


def network():
    import torch

    first, second, third, last = LAYERS
    layers = [torch.nn.Linear(first, second), torch.nn.ReLU(), torch.nn.Linear(second, third), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(third, last))


def optimizer(parameters):
    import torch

    return torch.optim.Adam(parameters, lr=1e-3)


def make(seed):
    from sheave.particle import TorchModel

    return TorchModel(network, optimizer=optimizer, seed=seed)


def labelled_batches():
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    x, y = torch.randn(ROWS, LAYERS[0]), torch.randint(LAYERS[-1], (ROWS,))
    return [(x[start : start + BATCH], y[start : start + BATCH]) for start in range(0, ROWS, BATCH)]


def time_epoch(way, rounds):
    import torch

    loss, batches = torch.nn.functional.cross_entropy, labelled_batches()
    bytes_of_inputs = sum(rows.nbytes for rows, _ in batches)
    if way != "loop":
        with sheave.bayes.Ensemble(make, MEMBERS, task="classification") as ensemble:
            report(bytes_of_inputs, measure(lambda: ensemble.fit(batches, loss, 1, batched=True), rounds))
        return
    members = [network() for _ in range(MEMBERS)]
    optimizers = [optimizer(member.parameters()) for member in members]

    def epoch():
        for rows, labels in batches:
            for member, steps in zip(members, optimizers, strict=True):
                steps.zero_grad()
                loss(member(rows), labels).backward()
                steps.step()

    report(bytes_of_inputs, measure(epoch, rounds))


def time_ensemble(way, rounds):
    import torch

    batches = labelled_batches()
    loss, is_batched = torch.nn.functional.cross_entropy, way == "batched"
    with sheave.init() as mesh, Particles(mesh, "bench") as particles:
        sheave.bayes.Ensemble.offer(particles, make)
        mesh.barrier(TIMEOUT_S)
        if mesh.rank == 0:
            placed = {"task": "classification", "particles": particles, "nodes": range(mesh.size)}
            with sheave.bayes.Ensemble(None, MEMBERS, **placed) as ensemble:
                times = measure(lambda: ensemble.fit(batches, loss, 1, batched=is_batched), rounds)
            report(sum(rows.nbytes for rows, _ in batches), times)
        mesh.barrier(TIMEOUT_S)


def time_svgd(way, rounds):
    generator = numpy.random.default_rng(1)
    vectors = generator.normal(size=(SVGD_PARTICLES, SVGD_PARAMETERS)).astype("float32")
    gradients = generator.normal(size=vectors.shape).astype("float32")
    kernel = numpy.ones((SVGD_PARTICLES, SVGD_PARTICLES), "float32")
    out, svgd = numpy.empty_like(vectors), sheave.bayes.Svgd()

    def update():
        svgd.directions(vectors, gradients)

    def multiply():
        vectors @ vectors.T
        numpy.matmul(kernel, gradients, out=out)

    report(vectors.nbytes, measure(multiply if way == "products" else update, rounds))


def main(case, way, rounds):
    match case:
        case "send":
            time_send(rounds)
        case "send_wait":
            time_send_wait(rounds)
        case "get" | "get_unchanged":
            time_get(rounds, case == "get")
        case "create":
            time_create(rounds)
        case "across":
            time_across(rounds)
        case "epoch":
            time_epoch(way, rounds)
        case "ensemble":
            time_ensemble(way, rounds)
        case "svgd":
            time_svgd(way, rounds)
        case _:
            raise ValueError(f"case {case!r}; expected one of those of the module's documentation")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
