"""The example programs, run as people run them."""

import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
import sheave

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"


def free_port():
    return str(sheave._core._free_port())


@pytest.fixture
def start_example():
    """Start an example as one process of a job; it is killed at the end of the test, if it still runs."""
    running = []

    def start(name, *arguments, **environment):
        # The processes share few cores, and sums must not depend on how many.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **environment}
        command = [sys.executable, str(EXAMPLES / name), *arguments]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def results(processes):
    """What the processes say of their accuracy and their weights, once all have ended well."""
    said = "".join(process.communicate(timeout=50)[0] for process in processes)
    assert [process.returncode for process in processes] == [0] * len(processes), said
    return [(float(accuracy), digest) for accuracy, digest in re.findall(r"accuracy ([\d.]+), weights (\w+)", said)]


@pytest.mark.parametrize("network", ["numpy", "torch"])
def test_digits_by_a_parameter_server(start_example, network):
    """Three workers and two servers end with the weights of one process, bit for bit."""
    arguments = ["--quiet"]
    if network == "torch":
        if importlib.util.find_spec("torch") is None:
            pytest.skip("torch is not installed")
        arguments.append("--torch")
    place = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": free_port(),
        "DMLC_NUM_SERVER": "2",
        "DMLC_NUM_WORKER": "3",
    }
    roles = ["scheduler"] + ["server"] * 2 + ["worker"] * 3
    job = [start_example("digits_ps.py", *arguments, DMLC_ROLE=role, **place) for role in roles]
    alone = start_example("digits_ps.py", *arguments, "--workers", "3")
    found = results(job)
    assert len(found) == 3 and set(found) == set(results([alone]))
    assert found[0][0] > 0.94


def test_digits_by_all_reduce(start_example):
    port = free_port()
    place = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    found = results([start_example("all_reduce.py", RANK=str(rank), **place) for rank in range(3)])
    assert len(found) == 3 and len(set(found)) == 1
    assert found[0][0] > 0.92


def test_a_sweep_by_remote_objects(start_example):
    """Three processes find what one does, and say where each trainer was."""
    root = "127.0.0.1:" + free_port()
    place = {"SHEAVE_WORLD_SIZE": "3", "SHEAVE_ROOT": root}
    job = [start_example("sweep.py", SHEAVE_RANK=str(rank), **place) for rank in range(3)]
    alone = start_example("sweep.py")
    said = [process.communicate(timeout=50)[0] for process in (*job, alone)]
    assert [process.returncode for process in (*job, alone)] == [0] * 4, said
    assert said[1:3] == ["", ""] and said[0].splitlines()[-1] == said[3].splitlines()[-1]
    assert all(f"on rank-{rank}: " in said[0] for rank in range(3)) and said[0].count("round ") == 8 + 4 + 2
    assert float(re.search(r"accuracy ([\d.]+)", said[0])[1]) > 0.9


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_network_of_torch_learns_the_same_over_sheave_as_over_gloo(start_example):
    example = start_example("torch_ddp.py", "--epochs", "4", "--ranks", "3")
    said = example.communicate(timeout=50)[0]
    assert example.returncode == 0, said
    gloo, ours = (float(re.search(rf"^{name} +([\d.]+) +[\d.]+ ms$", said, re.M)[1]) for name in ("gloo", "sheave"))
    # Sums of floats differ in their last bits with the order in which they are added.
    assert ours > 0.9 and abs(ours - gloo) < 0.02, said


MIXTURES = [["--top", "2"], ["--top", "1", "--servers", "3", "--workers", "1"]]


@pytest.mark.parametrize("arguments", MIXTURES, ids=" ".join)
def test_a_mixture_of_experts_by_itself(start_example, arguments):
    """Attention on workers and experts on servers give what one process does; the program checks it."""
    process = start_example("moe_exchange.py", *arguments)
    said = process.communicate(timeout=50)[0]
    assert process.returncode == 0
    assert said.count("12 micro-batches are those of one process") == (1 if "--workers" in arguments else 2), said


def test_a_mixture_of_experts_by_roles(start_example):
    """Each process told its role by hand, and one micro-batch more than there are places."""
    root = "127.0.0.1:" + free_port()
    roles = ["scheduler"] + ["server"] * 2 + ["worker"] * 2
    arguments = ["--root", root, "--batches", "4"]
    job = [start_example("moe_exchange.py", "--role", role, *arguments) for role in roles]
    said = "".join(process.communicate(timeout=50)[0] for process in job)
    assert [process.returncode for process in job] == [0] * 5
    assert said.count("4 micro-batches are those of one process") == 2, said


def test_a_program_in_rust_and_one_in_python_call_each_other(start_example):
    """What rank 0 trains, in Rust, is in Python, which asks it for the rate."""
    program = pathlib.Path(os.environ.get("SHEAVE_TEST_EXAMPLES", EXAMPLES.parents[1] / "target/debug/examples"))
    program /= "calls_python"
    if not program.exists():
        pytest.skip("the example is not built: cargo build -p sheave --examples")
    place = {"SHEAVE_ROOT": f"127.0.0.1:{free_port()}", "SHEAVE_WORLD_SIZE": "2"}
    other = start_example("serve_rust.py", SHEAVE_RANK="1", **place)
    environment = {**os.environ, "SHEAVE_RANK": "0", **place}
    ended = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    learnt, failed = ended.stdout.splitlines()
    assert re.match(r"y = (2\.00|1\.99)\d x \+ (1\.00|0\.99)\d, loss ", learnt), learnt
    assert "missing 2 required positional arguments" in failed, failed
    assert other.communicate(timeout=50)[0] == "" and other.returncode == 0


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_tensor_parallel(start_example, kind):
    """Layers that are divided give what one process has."""
    example = start_example("tensor_parallel.py", "--kind", kind, "--workers", "4", "--batches", "2")
    said = example.communicate(timeout=50)[0]
    assert example.returncode == 0, said
    found = re.fullmatch(rf"4 {kind}: difference (\S+), \S+ ms per batch\n", said)
    assert found is not None and float(found[1]) < 1e-5, said


def test_search_by_a_pool(start_example):
    """A search finds settings that do well, and outlives a worker that is killed."""
    search = start_example("search.py", "--workers", "2", "--rounds", "2", "--features", "512")
    said = search.communicate(timeout=50)[0]
    assert search.returncode == 0, said
    assert float(re.search(r"accuracy ([\d.]+)", said).group(1)) > 0.95
    assert "63 MiB of features" in said or "64 MiB of features" in said
    assert "signal 9" in said and "goes on: 6" in said


def processes_of(mark):
    """The processes that have this text in their environment."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            # It has ended, or is another user's.
            continue
    return found


def wait_for_the_end_of(mark):
    until = time.monotonic() + 60
    while left := processes_of(mark):
        assert time.monotonic() < until, left
        time.sleep(0.01)


def test_actors_and_a_learner(start_example, tmp_path):
    """A policy gets better, an actor that is killed is replaced and works on, and nothing is left behind."""
    mark = f"SHEAVE_TEST_MARK={tmp_path}"
    arguments = ["--threshold", "60", "--kill-after", "1", "--time-limit-s", "50"]
    files = ["--csv", str(tmp_path / "curve.csv"), "--svg", str(tmp_path / "curve.svg")]
    example = start_example("actor_learner.py", *arguments, *files, SHEAVE_TEST_MARK=str(tmp_path))
    said = example.communicate(timeout=110)[0]
    assert example.returncode == 0, said
    victim = re.search(r"^step 1: killing (\S+) \(process \d+\)$", said, re.M)[1]
    assert f"the fleet: {victim} ended with status -9" in said
    heir = re.search(rf"^the fleet: (\S+) replaces {victim}$", said, re.M)[1]
    assert f"{heir} has sent its first result" in said and re.search(rf"^{heir}: \d+ results, ", said, re.M), said
    first, *_, last = (tmp_path / "curve.csv").read_text().splitlines()[1:]
    assert float(first.split(",")[2]) < 20 and float(last.split(",")[2]) >= 60, said
    assert "<polyline" in (tmp_path / "curve.svg").read_text()
    assert re.search(r"^reached: ", said, re.M), said
    wait_for_the_end_of(mark)


def test_a_learner_that_is_interrupted_leaves_nothing(start_example, tmp_path):
    mark = f"SHEAVE_TEST_MARK={tmp_path}"
    arguments = ["--no-kill", "--rate", "0", "--time-limit-s", "600"]
    example = start_example("actor_learner.py", *arguments, SHEAVE_TEST_MARK=str(tmp_path))
    assert example.stdout.readline().startswith("the actors: ")
    # It never gets better, and goes on.
    assert example.stdout.readline().startswith("step 2: ")
    assert len(processes_of(mark)) >= 3, "the learner, its actors, and the process that guards them"
    example.send_signal(signal.SIGINT)
    example.communicate(timeout=60)
    assert example.returncode == 130
    wait_for_the_end_of(mark)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--actors", "0"], "--actors: 0; expected 1 to 64"),
        (["--threshold", "201"], "--threshold: 201; expected 1 to 200"),
        (["--seed", "one"], "--seed: invalid whole number value: 'one'"),
        (["--time-limit-s", "nan"], "--time-limit-s: nan; expected 0.1 to 86400"),
        (["--kill-after", "0"], "--kill-after: 0; expected 1 to 1000000"),
        (["--csv", "/nowhere/curve.csv"], "/nowhere/curve.csv: there is no folder /nowhere"),
    ],
    ids=["actors", "threshold", "seed", "time limit", "kill after", "csv"],
)
def test_a_learner_says_what_it_cannot_read(arguments, said):
    command = [sys.executable, str(EXAMPLES / "actor_learner.py"), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "") and said in ended.stderr, ended


@pytest.mark.parametrize("network", ["numpy", "torch"])
def test_posteriors_have_better_probabilities_than_a_single_network(start_example, tmp_path, network):
    if network == "torch" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    picture = tmp_path / "curve.svg"
    program = start_example("posteriors.py", "--quick", "--svg", str(picture), *(["--numpy"] * (network == "numpy")))
    said = program.communicate(timeout=50)[0]
    assert program.returncode == 0, said
    rows = re.findall(r"^(single network|\S+ of 4) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", said, re.MULTILINE)
    assert [row[0] for row in rows] == ["single network", "ensemble of 4", "multi-SWAG of 4", "SVGD of 4"], said
    (_, *single), *posteriors = [(name, *map(float, values)) for name, _, *values in rows]
    for name, nll, calibration, brier in posteriors:
        assert nll < single[0] and brier < single[2], f"{name}: {said}"
        # Four members average too few to mend the calibration error with any seed, but for SVGD, which has a prior.
        assert calibration < single[1] or not name.startswith("SVGD"), said
    disagreements = re.search(r"disagree by ([\d.]+) within 5 of zero, and by ([\d.]+) beyond", said)
    assert float(disagreements[2]) > float(disagreements[1]), said
    assert picture.read_text().count("<polygon") == 2
