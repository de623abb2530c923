"""Train a small convolutional network on handwritten digits with torch's DistributedDataParallel, over sheave.

    python examples/python/torch_ddp.py
    torchrun --nproc-per-node 4 examples/python/torch_ddp.py --backend sheave

It is the program that it would be over gloo but for one word, the name of the backend; torch finds sheave by itself.
The first command starts the ranks, trains over either, and compares: the accuracy on digits that nobody has trained
with, and the time of a step, the median of all on rank 0.
The second one is a rank of a job that something else has started.
"""

import argparse
import datetime
import os
import statistics
import tempfile
import time

import digits
import torch
import torch.distributed as dist
from torch import nn

TIMEOUT = datetime.timedelta(seconds=60)


def network():
    """Images of 8x8 pixels to ten scores."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def train(arguments):
    """Train on this rank's share of each batch; returns the accuracy and the median time of a step in ms."""
    rank, size = dist.get_rank(), dist.get_world_size()
    training, held_out = [
        (torch.from_numpy(images).reshape(-1, 1, 8, 8), torch.from_numpy(labels)) for images, labels in digits.load()
    ]
    torch.manual_seed(0)
    module = nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.Adam(module.parameters(), lr=arguments.lr)
    order = torch.Generator().manual_seed(0)
    batch, steps_ms = size * arguments.batch, []
    for _ in range(arguments.epochs):
        # The same order on all ranks; what does not fill a batch is left out.
        shuffled = torch.randperm(len(training[1]), generator=order)
        for first in range(0, len(shuffled) - batch + 1, batch):
            mine = shuffled[first + rank : first + batch : size]
            begun = time.perf_counter()
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(training[0][mine]), training[1][mine]).backward()
            optimizer.step()
            steps_ms.append(1e3 * (time.perf_counter() - begun))
    with torch.inference_mode():
        right = (module.module(held_out[0]).argmax(1) == held_out[1]).double().mean().item()
    return right, statistics.median(steps_ms)


def compared(rank, arguments, folder):
    """Be a rank that trains over each backend."""
    torch.set_num_threads(1)
    for backend in ("gloo", "sheave"):
        store = f"file://{folder}/{backend}"
        dist.init_process_group(backend, init_method=store, rank=rank, world_size=arguments.ranks, timeout=TIMEOUT)
        accuracy, step_ms = train(arguments)
        if rank == 0:
            print(f"{backend:8} {accuracy:8.4f} {step_ms:8.2f} ms", flush=True)
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="sheave", help="of a job that something else has started")
    parser.add_argument("--ranks", type=int, default=4, help="processes to start here")
    parser.add_argument("--batch", type=int, default=16, help="images of a step for each rank")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.005, help="learning rate")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group(arguments.backend, timeout=TIMEOUT)
        accuracy, step_ms = train(arguments)
        if dist.get_rank() == 0:
            print(f"{arguments.backend:8} {accuracy:8.4f} {step_ms:8.2f} ms")
        dist.destroy_process_group()
        return
    print(f"{arguments.ranks} ranks  accuracy     step", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        # A fork has torch already, and has done nothing with it that a fork could not bear.
        torch.multiprocessing.start_processes(compared, (arguments, folder), arguments.ranks, start_method="fork")


if __name__ == "__main__":
    main()
