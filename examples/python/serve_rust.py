"""A model in Python that a program in Rust trains: the other half of crates/sheave/examples/calls_python.rs."""

import numpy as np
import sheave


class Model:
    """A line, y = slope x + offset."""

    def __init__(self, group):
        self.group = group
        self.slope, self.offset = 0.0, 0.0

    def train(self, inputs, targets, step):
        """Goes one step downhill, at the rate that the program in Rust says; returns the loss before it."""
        rate = self.group.registered_sync("rate", (step,), timeout=20)
        errors = self.slope * inputs + self.offset - targets
        self.slope -= rate * float(np.mean(errors * inputs))
        self.offset -= rate * float(np.mean(errors))
        return float(np.mean(errors**2))

    def weights(self):
        return self.slope, self.offset


def main():
    with sheave.init() as mesh:
        mesh.barrier(timeout=60)
        group = mesh.rpc_group("learners", timeout=60)
        group.register("model", Model(group), lane="serial")
        group.barrier(timeout=60)
        # Until the program in Rust has learnt.
        group.barrier(timeout=60)


if __name__ == "__main__":
    main()
