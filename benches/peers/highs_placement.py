"""Places the models of instances with HiGHS, beside the placements that sheave has found.

    cargo run --release -p sheave-placement --example instances -- 200 16 20 250000 FOLDER
    python3 -m venv highs && highs/bin/pip install highspy numpy
    highs/bin/python benches/peers/highs_placement.py SECONDS FOLDER/0.json …

Each instance is one mixed-integer program on one thread. Of a model on a device there is a binary. Pulls between models
cost, where all devices are equally far apart, the halves of the differences of their binaries; otherwise there is a
variable for each pull and pair of devices (Adams and Sherali's linearisation). Squares are the maximum of tangents. The
best solution is then judged by the true objective. Prints it beside ours, the ratio, and HiGHS's own bound.
"""

import json
import sys
import time

import highspy
import numpy as np

# Tangents of a square lie at these percents of a device's share, on both sides: near 1, for tolerances are absolute.
TANGENTS = [0.0, *np.geomspace(1e-2, 1e2, 24)]


class Program:
    """A linear program that grows."""

    def __init__(self):
        self.costs, self.uppers, self.integers = [], [], []
        self.lows, self.highs, self.starts, self.columns, self.values = [], [], [0], [], []

    def variables(self, costs, upper, is_integer=False):
        """Adds variables from 0 to `upper`; returns the number of the first."""
        first = len(self.costs)
        self.costs.extend(costs)
        self.uppers.extend([upper] * len(costs))
        self.integers.extend([is_integer] * len(costs))
        return first

    def row(self, low, high, columns, values):
        self.lows.append(low)
        self.highs.append(high)
        self.columns.extend(columns)
        self.values.extend(values)
        self.starts.append(len(self.columns))

    def solve(self, seconds):
        """Values of the variables at the best point that was found, if any, and the bound."""
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = len(self.costs), len(self.lows)
        # Costs near 1: tolerances are absolute.
        scale = 1.0 / max(self.costs)
        program.col_cost_ = np.array(self.costs) * scale
        program.col_lower_, program.col_upper_ = np.zeros(len(self.costs)), np.array(self.uppers)
        program.row_lower_, program.row_upper_ = np.array(self.lows), np.array(self.highs)
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.array(self.starts)
        program.a_matrix_.index_ = np.array(self.columns)
        program.a_matrix_.value_ = np.array(self.values)
        kinds = [highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger]
        program.integrality_ = [kinds[is_integer] for is_integer in self.integers]
        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("time_limit", float(seconds))
        solver.passModel(program)
        solver.run()
        info = solver.getInfo()
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        values = np.array(solver.getSolution().col_value) if found else None
        return values, info.mip_dual_bound / scale


def shares(values, otherwise):
    values = np.array(values, float)
    return values / values.sum() if values.sum() > 0 else np.full_like(values, otherwise)


class Instance:
    """An instance as its file has it, and scaled as the objective reads it."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.read = read = json.load(file)
        self.models, self.devices = len(read["model_bytes"]), len(read["device_bytes"])
        flows = shares(read["connections"], 0.0).reshape(self.models, self.models)
        self.pull = read["weights"]["connection"] * (flows + flows.T)
        np.fill_diagonal(self.pull, 0.0)
        self.distance = shares(read["distances"], 0.0).reshape(self.devices, self.devices)
        self.work = shares(read["model_complexity"], 0.0)
        self.share = shares(read["device_complexity"], 1.0 / self.devices)
        self.imbalance = read["weights"]["complexity"] / self.devices

    def cost(self, device_of):
        far = self.distance[np.ix_(device_of, device_of)]
        loads = np.bincount(device_of, self.work, self.devices)
        return (self.pull * far).sum() / 2 + self.imbalance * ((loads - self.share) ** 2).sum()

    def program(self):
        program = Program()
        models, devices = self.models, self.devices
        program.variables([0.0] * (models * devices), 1.0, is_integer=True)
        place = np.arange(models * devices).reshape(models, devices)
        for model in range(models):
            program.row(1.0, 1.0, place[model], np.ones(devices))
        gibibytes = np.array(self.read["model_bytes"], float) / 2**30
        for device, capacity in enumerate(self.read["device_bytes"]):
            program.row(-highspy.kHighsInf, capacity / 2**30, place[:, device], gibibytes)
        self.add_squares(program, place)
        apart = self.distance[~np.eye(devices, dtype=bool)]
        for one, other in zip(*np.nonzero(np.triu(self.pull)), strict=True):
            if apart.min() == apart.max():
                self.add_cut(program, place, one, other, apart.min())
            else:
                self.add_pairs(program, place, one, other)
        return program

    def add_squares(self, program, place):
        """The tangents of `(load - share)²`, in percent of the share."""
        for device, share in enumerate(self.share):
            unit = 0.01 * (share if share > 0 else 1.0)
            square = program.variables([self.imbalance * unit**2], highspy.kHighsInf)
            for point in sorted({sign * tangent for tangent in TANGENTS for sign in (1, -1)}):
                # square >= 2 point (load - share) / unit - point²
                values = [1.0, *(-2.0 * point * self.work / unit)]
                least = -2.0 * point * share / unit - point**2
                program.row(least, highspy.kHighsInf, [square, *place[:, device]], values)

    def add_cut(self, program, place, one, other, distance):
        first = program.variables([self.pull[one, other] * distance] * self.devices, 1.0)
        for device in range(self.devices):
            columns = [first + device, place[one, device], place[other, device]]
            program.row(0.0, highspy.kHighsInf, columns, [1.0, -1.0, 1.0])

    def add_pairs(self, program, place, one, other):
        first = program.variables(list(self.pull[one, other] * self.distance.ravel()), 1.0)
        both = first + np.arange(self.devices**2).reshape(self.devices, self.devices)
        for device in range(self.devices):
            for model, columns in ((one, both[device]), (other, both[:, device])):
                values = [*np.ones(self.devices), -1.0]
                program.row(0.0, 0.0, [*columns, place[model, device]], values)


def main(seconds, paths):
    for path in paths:
        instance = Instance(path)
        ours, mine = instance.read["objective"], instance.cost(np.array(instance.read["device_of"]))
        assert abs(ours - mine) <= 1e-9 * ours, (ours, mine)
        begun = time.monotonic()
        values, bound = instance.program().solve(seconds)
        took = time.monotonic() - begun
        theirs = np.inf
        if values is not None:
            placed = values[: instance.models * instance.devices].reshape(instance.models, instance.devices)
            theirs = instance.cost(placed.argmax(axis=1))
        print(
            f"{path}  sheave {ours:.6e}  HiGHS {theirs:.6e} in {took:.0f} s  ratio {ours / theirs:.4f}  "
            f"bounds {instance.read['lower_bound']:.3e} {bound:.3e}",
            flush=True,
        )


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
