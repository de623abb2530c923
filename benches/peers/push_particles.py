"""Times PusH's particles: the original's, or those of sheave's face for it.

    python benches/peers/push_particles.py 200 --push DIRECTORY     # the folder that holds the package `push`
    python -m sheave.compat push benches/peers/push_particles.py 200

Prints a line for each case: its name, bytes, and the nanoseconds of each of so many operations. `send` is a message to
a particle of the same node and its answer, `get` the parameters of another particle, 1 MiB of them, `launch` a message
from `PusH` to a node event loop in a process of its own and its answer, `create` one of 1,000 particles. Needs torch,
and tqdm for the original.

The original runs on GPUs alone; here its devices are the CPU: torch is told of one device, and whatever is moved to a
device with a number stays where it is. Nothing else of it is changed.
"""

import os
import sys
import time

import torch

ROWS, COLUMNS = 256, 1024
CREATED = 1000
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


if FOLDER in os.environ:
    borrow(os.environ[FOLDER])


def large():
    return torch.nn.Linear(COLUMNS, ROWS, bias=False)


def small():
    return torch.nn.Linear(3, 1)


def no_optimizer(params):
    return None


def nothing(particle):
    return None


def timed(count, operation):
    times = []
    for _ in range(count):
        began = time.perf_counter_ns()
        operation()
        times.append(time.perf_counter_ns() - began)
    return times


def sends(particle, other, count):
    return timed(count, lambda: particle.send(other, "NOTHING").wait())


def gets(particle, other, count):
    return timed(count, lambda: list(particle.get(other).wait().view().parameters()))


def within(case, network, leader, count):
    from push.push import PusH

    with PusH(network) as distribution:
        first = distribution.p_create(no_optimizer, None, device=0, receive={"LEAD": leader}, state={})
        other = distribution.p_create(no_optimizer, None, device=0, receive={"NOTHING": nothing}, state={})
        for rounds in (count // 10 + 1, count):
            future = distribution.p_launch(first, "LEAD", other, rounds)
            times = distribution.p_wait([future])[future._fid]
    print(case, 4 * ROWS * COLUMNS if network is large else 0, *times, flush=True)


def across(count):
    from push.push import PusH

    with PusH(small, multi=True) as distribution:
        pid = distribution.p_create(no_optimizer, None, device=0, receive={"NOTHING": nothing}, state={})

        def launch():
            distribution.p_wait([distribution.p_launch(pid, "NOTHING")])

        timed(count // 10 + 1, launch)
        times = timed(count, launch)
    print("launch", 0, *times, flush=True)


def created():
    from push.push import PusH

    with PusH(small) as distribution:

        def create():
            distribution.p_create(no_optimizer, None, device=0, receive={"NOTHING": nothing}, state={})

        print("create", 0, *timed(CREATED, create), flush=True)


if __name__ == "__main__":
    if sys.argv[2:3] == ["--push"]:
        os.environ[FOLDER] = os.path.abspath(sys.argv[3])
        borrow(os.environ[FOLDER])
    torch.set_num_threads(1)
    rounds = int(sys.argv[1])
    within("send", small, sends, rounds)
    within("get", large, gets, rounds)
    created()
    across(rounds)
