"""PyTorch's own tests of torch.distributed, which its wheel brings, run with sheave as the backend.

    pip install expecttest
    python python/tests/torch_originals.py                        # all of them
    python python/tests/torch_originals.py test_send_recv         # some
    python python/tests/torch_originals.py --backend gloo         # the same over gloo, to compare

They are the cases of `torch.testing._internal.distributed.distributed_test`, unmodified, with four ranks on the CPU.
Torch has some for one backend alone, by its name: what it leaves out for `sheave` is run too if it has it for `gloo` or
for `mpi`, always over sheave. Cases that need accelerators are left out. Every case is a job of new processes, forked
from one that has imported torch: all take some minutes on two cores. Prints a line for each case, the output of those
that fail, and last `N passed, N failed, N skipped`. Fails if a case does that is not among KNOWN, or if one of these
does not.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

RANKS = 4
LIMIT_S = 3600
OVER = "TORCH_ORIGINALS_OVER"
"""What cases run over is in this variable: all their processes have it, and not all the arguments."""

NAMES = ["sheave", "gloo", "mpi"]
"""The backends whose cases are run in turn, each for what torch leaves out for those before."""

WORDS = "expects gloo's words of an error"
KNOWN = {
    "test_barrier_timeout_full_group": WORDS,
    "test_barrier_timeout_global": WORDS,
    "test_barrier_timeout_group": WORDS,
    "test_monitored_barrier_failure_order": WORDS,
    "test_monitored_barrier_gloo": WORDS,
    "test_monitored_barrier_gloo_rank_0_timeout": WORDS,
    "test_monitored_barrier_gloo_subgroup": WORDS,
    "test_monitored_barrier_wait_all_ranks": WORDS,
}
"""Cases that fail over sheave, and why."""

ACCELERATORS = ("x_gpu", "skip_if_no_gpu", "backend_feature['gpu']")
"""What is in the decorators of cases that need several accelerators, whatever the backend."""


def needs_accelerators(module):
    """The names of the cases that need accelerators."""
    with open(module.__file__) as source:
        functions = [node for node in ast.walk(ast.parse(source.read())) if isinstance(node, ast.FunctionDef)]
    decorators = {one.name: " ".join(map(ast.unparse, one.decorator_list)) for one in functions}
    return {name for name, text in decorators.items() if any(word in text for word in ACCELERATORS)}


def originals(backend):
    """The module of the cases, as it is for the name of a backend in the environment, and a class that runs them."""
    import torch.multiprocessing as multiprocessing
    from torch.testing._internal.common_distributed import DistTestCases

    for feature in ("ddp", "subgroup", "plugin"):
        DistTestCases.backend_feature[feature].add("sheave")
    from torch.testing._internal.distributed import distributed_test as module

    # Which cases there are was decided by the name in the environment; what they make groups of is this.
    module.BACKEND = backend

    class TestOriginals(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([os.path.splitext(os.path.basename(__file__))[0]])
            folder = os.environ["TEMP_DIR"]
            self._start_processes(
                lambda *, kwargs, **settings: context.Process(kwargs={**kwargs, "folder": folder}, **settings)
            )

        @classmethod
        def _run(cls, rank, test_name, file_name, pipe, folder, **settings):
            # The environment is that of the process that this one was forked from, the folder that of the case.
            os.environ["TEMP_DIR"] = folder
            module.INIT_METHOD = f"file://{os.path.join(folder, 'meeting')}"
            # Torch wants eight ranks for groups of two, unless this is the backend.
            os.environ["BACKEND"] = "mpi"
            super()._run(rank, test_name, file_name, pipe, **settings)

    # It is looked up in this module.
    TestOriginals.__qualname__ = "TestOriginals"
    return module, TestOriginals


class Outcome(unittest.TestResult):
    """Prints each case as it ends."""

    def __init__(self):
        super().__init__()
        self.words, self.texts = {}, {}

    def startTest(self, test):
        super().startTest(test)
        self.begun = time.monotonic()

    def _end(self, word, test, why=""):
        name = test._testMethodName
        self.words[name] = [word, why]
        print(f"{word:7} {name} {time.monotonic() - self.begun:.1f} s {why}".rstrip(), flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self._end("passed", test)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.texts[test._testMethodName] = self.failures[-1][1]
        self._end("failed", test)

    def addError(self, test, error):
        super().addError(test, error)
        self.texts[test._testMethodName] = self.errors[-1][1]
        self._end("failed", test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._end("skipped", test, reason)


def run_here(chosen, results):
    """Run cases in this process, whose environment says what torch asks it for, and write down how they ended."""
    left_out = needs_accelerators(MODULE)
    names = unittest.defaultTestLoader.getTestCaseNames(CASES)
    outcome = Outcome()
    with tempfile.TemporaryFile() as said:
        # The processes of all cases inherit it.
        os.dup2(said.fileno(), 2)
        for case in names:
            if case in chosen or (not chosen and case not in left_out):
                begin = said.seek(0, os.SEEK_END)
                CASES(case).run(outcome)
                if outcome.words[case][0] == "failed":
                    said.seek(begin)
                    print(said.read().decode(errors="replace"), outcome.texts[case], flush=True)
    with open(results, "w") as written:
        json.dump(outcome.words, written)


def run_named(backend, name, chosen):
    """Run the cases that torch has for the backend of this name; returns how each has ended."""
    with tempfile.TemporaryDirectory() as folder:
        results = os.path.join(folder, "results")
        settings = {"BACKEND": name, "WORLD_SIZE": str(RANKS), "TEMP_DIR": folder, OVER: backend}
        settings["OMP_NUM_THREADS"] = "1"
        settings["INIT_METHOD"] = f"file://{os.path.join(folder, 'meeting')}"
        # The process that all others are forked from imports this module once for all of them.
        settings["PYTHONPATH"] = os.pathsep.join([os.path.dirname(__file__), *sys.path])
        command = [sys.executable, __file__, "--results", results, *chosen]
        subprocess.run(command, env={**os.environ, **settings}, timeout=LIMIT_S, check=True)
        with open(results) as written:
            return json.load(written)


def main(arguments):
    names = NAMES if arguments.backend == "sheave" else [arguments.backend]
    outcomes = {}
    for name in names:
        left = [case for case, (word, _) in outcomes.items() if word == "skipped"]
        if name != names[0] and not left:
            break
        print(f"-- cases for {name}, over {arguments.backend}", flush=True)
        outcomes.update(run_named(arguments.backend, name, arguments.case if name == names[0] else left))
    words = [word for word, _ in outcomes.values()]
    failed = {case for case, (word, _) in outcomes.items() if word == "failed"}
    known = KNOWN.keys() & outcomes.keys() if arguments.backend == "sheave" else set()
    for case in sorted(failed & known):
        print(f"known: {case} {KNOWN[case]}")
    for case in sorted(failed ^ known):
        print(f"{'new' if case in failed else 'no longer a failure'}: {case}")
    print(", ".join(f"{words.count(word)} {word}" for word in ("passed", "failed", "skipped")))
    return 1 if failed ^ known or not words else 0


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["sheave", "gloo"], default="sheave")
    parser.add_argument("--results", help=argparse.SUPPRESS)
    parser.add_argument("case", nargs="*", help="the name of a test; all if none is given")
    return parser.parse_args()


if OVER in os.environ:
    # In the process that runs cases, and in those of each case, which look the class up in this module.
    MODULE, CASES = originals(os.environ[OVER])
    TestOriginals = CASES
if __name__ == "__main__":
    chosen = parsed()
    if OVER in os.environ:
        run_here(chosen.case, chosen.results)
    else:
        sys.exit(main(chosen))
