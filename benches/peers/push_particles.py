"""Times PusH's particles as benches/python/particle.py does those of sheave: the original's, or those of the face.

    python benches/peers/push_particles.py send_wait 5000 --push DIRECTORY
    python -m sheave.compat push benches/peers/push_particles.py send_wait 5000

Arguments: a case and the number of rounds, and for the original the folder that holds its package `push`. Prints a
line: bytes, and nanoseconds of every round. `send_wait` is a message to a particle of the same node and its answer,
`get` the parameters of another particle, 1 MiB of them, `create` a thousand particles, `across` a message from `PusH`
to a node event loop in a process of its own and its answer; `epoch` trains eight networks for an epoch, `processes`
does so in a process of its own, of which PusH has one. `sheave bench particle --push DIRECTORY` runs it. Needs torch.

The original runs on GPUs alone; here its devices are the CPU: torch is told of one device, and whatever is moved to a
device with a number stays where it is. Nothing else of it is changed.
"""

import os
import sys
import time

import torch

WARM_ROUNDS = 20
CREATED = 1000
MEMBERS = 8
LAYERS = (64, 128, 128, 10)
ROWS, BATCH = 5000, 64
GOT_SHAPE = (256, 1024)
#: Tells the processes that the original spawns where it is.
FOLDER = "PUSH_DIRECTORY"


def borrow(directory):
    """Makes the original importable, and the CPU its device."""
    sys.path.insert(0, directory)
    torch.cuda.device_count = lambda: 1
    of_tensors, of_modules = torch.Tensor.to, torch.nn.Module.to

    def stays(of):
        def to(self, *args, **kwargs):
            return self if args and isinstance(args[0], int) else of(self, *args, **kwargs)

        return to

    torch.Tensor.to, torch.nn.Module.to = stays(of_tensors), stays(of_modules)


torch.set_num_threads(1)
if FOLDER in os.environ:
    borrow(os.environ[FOLDER])


def large():
    return torch.nn.Linear(*reversed(GOT_SHAPE), bias=False)


def small():
    return torch.nn.Linear(3, 1)


def network():
    first, second, third, last = LAYERS
    layers = [torch.nn.Linear(first, second), torch.nn.ReLU(), torch.nn.Linear(second, third), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(third, last))


def no_optimizer(params):
    return None


def adam(params):
    return torch.optim.Adam(params, lr=1e-3)


def do_nothing(particle):
    return None


def measure(act, rounds):
    for _ in range(min(WARM_ROUNDS, rounds)):
        act()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter_ns()
        act()
        times.append(time.perf_counter_ns() - begun)
    return times


def send_many(particle, other, rounds):
    return measure(lambda: particle.send(other, "PASS").wait(), rounds)


def get_many(particle, other, rounds):
    return measure(lambda: list(particle.get(other).wait().view().parameters()), rounds)


def train(particle):
    """An epoch of all particles, as PusH's deep ensembles have it: the leader waits for its own steps."""
    if "batches" not in particle.state:
        torch.manual_seed(1)
        x, y = torch.randn(ROWS, LAYERS[0]), torch.randint(LAYERS[-1], (ROWS,))
        parts = [slice(start, start + BATCH) for start in range(0, ROWS, BATCH)]
        particle.state["batches"] = [(x[part], y[part]) for part in parts]
    loss = torch.nn.functional.cross_entropy
    for rows, labels in particle.state["batches"]:
        particle.step(loss, rows, labels).wait()
        for pid in particle.other_particles():
            particle.send(pid, "STEP", loss, rows, labels)


def step(particle, loss, rows, labels):
    particle.step(loss, rows, labels)


def time_within(module, leader, rounds):
    """Times what a leader does with another particle of its node."""
    from push.push import PusH

    with PusH(module) as distribution:
        first = distribution.p_create(no_optimizer, None, device=0, receive={"LEAD": leader}, state={})
        other = distribution.p_create(no_optimizer, None, device=0, receive={"PASS": do_nothing}, state={})
        future = distribution.p_launch(first, "LEAD", other, rounds)
        return distribution.p_wait([future])[future._fid]


def time_create(rounds):
    from push.push import PusH

    times = []
    for _ in range(rounds):
        with PusH(small) as distribution:
            begun = time.perf_counter_ns()
            for _ in range(CREATED):
                distribution.p_create(no_optimizer, None, device=0, receive={"PASS": do_nothing}, state={})
            times.append(time.perf_counter_ns() - begun)
    return times


def time_across(rounds):
    from push.push import PusH

    with PusH(small, multi=True) as distribution:
        pid = distribution.p_create(no_optimizer, None, device=0, receive={"PASS": do_nothing}, state={})
        return measure(lambda: distribution.p_wait([distribution.p_launch(pid, "PASS")]), rounds)


def time_epoch(rounds, multi):
    from push.push import PusH

    with PusH(network, cache_size=MEMBERS, multi=multi) as distribution:
        first = distribution.p_create(adam, None, device=0, receive={"TRAIN": train}, state={})
        for _ in range(1, MEMBERS):
            distribution.p_create(adam, None, device=0, receive={"STEP": step}, state={})
        return measure(lambda: distribution.p_wait([distribution.p_launch(first, "TRAIN")]), rounds)


def main(case, rounds):
    match case:
        case "send_wait":
            length_bytes, times = 0, time_within(small, send_many, rounds)
        case "get":
            length_bytes, times = 4 * GOT_SHAPE[0] * GOT_SHAPE[1], time_within(large, get_many, rounds)
        case "create":
            length_bytes, times = 0, time_create(rounds)
        case "across":
            length_bytes, times = 0, time_across(rounds)
        case "epoch" | "processes":
            length_bytes, times = 4 * ROWS * LAYERS[0], time_epoch(rounds, case == "processes")
        case _:
            raise SystemExit(f"no case {case!r}")
    print(length_bytes, *times, flush=True)


if __name__ == "__main__":
    if sys.argv[3:4] == ["--push"]:
        os.environ[FOLDER] = os.path.abspath(sys.argv[4])
        borrow(os.environ[FOLDER])
    main(sys.argv[1], int(sys.argv[2]))
