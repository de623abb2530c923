"""The program `sheave` that comes with the package."""

import json
import pathlib
import signal
import subprocess
import sys

import pytest
import sheave

SCRIPT = pathlib.Path(sys.executable).with_name("sheave")


@pytest.fixture(params=["module", "script"])
def command(request):
    if request.param == "module":
        return [sys.executable, "-m", "sheave"]
    if not SCRIPT.is_file():
        pytest.skip("the package is not installed here, so there is no script")
    return [str(SCRIPT)]


def run(command, *arguments, **keywords):
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=50, **keywords)


def test_version_and_mistakes(command):
    said = run(command, "--version")
    assert (said.returncode, said.stdout, said.stderr) == (0, f"sheave {sheave.__version__}\n", "")
    mistake = run(command, "dance")
    assert mistake.returncode == 2 and mistake.stderr.startswith("sheave: ") and mistake.stderr.count("\n") == 1


def test_launch(command, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sheave, numpy as np\n"
        "with sheave.init() as mesh:\n"
        "    print(sheave.all_reduce(np.full(2, mesh.rank + 1.0)).tolist())\n"
        "    mesh.finish()\n"
    )
    said = run(command, "launch", "-n", "2", "--", sys.executable, str(program))
    assert (said.returncode, said.stderr) == (0, "")
    assert sorted(said.stdout.splitlines()) == ["rank-0 | [3.0, 3.0]", "rank-1 | [3.0, 3.0]"]
    assert run(command, "launch", "-n", "2", "--", "sh", "-c", "exit 7").returncode == 7


@pytest.mark.parametrize(
    "how, code, said",
    [
        ("sys.exit(3)", 3, ""),
        ("raise ValueError('on purpose')", 1, "ValueError: on purpose"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("os._exit(3)", 3, ""),
        ("os._exit(0)", 1, ""),
    ],
)
def test_f66_launch_names_the_first_to_end_and_ends_with_its_code(tmp_path, how, code, said):
    program = tmp_path / "program.py"
    head = "import os, sys, sheave\nmesh = sheave.init()\n"
    program.write_text(f"{head}if mesh.rank == 1:\n    {how}\nsheave.barrier()\n")
    ended = run([sys.executable, "-m", "sheave"], "launch", "-n", "3", "--", sys.executable, str(program))
    verdict = ended.stderr.partition("\nsheave: ")[2] or ended.stderr.removeprefix("sheave: ")
    assert (ended.returncode, verdict.split(" ")[0]) == (code, "rank-1"), ended.stderr
    assert said in verdict


def test_f75_a_program_on_standard_input_runs_if_it_is_one(tmp_path):
    line = [sys.executable, "-m", "sheave"]
    ended = run(line, "launch", "-n", "1", "--", sys.executable, "-", input="print('it runs')")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "rank-0 | it runs\n", "")
    ended = run(line, "launch", "-n", "2", "--", sys.executable, "-", input="print('it runs')")
    assert ended.returncode == 2 and "standard input" in ended.stderr and "hint: " in ended.stderr


def test_it_starts_itself_once_more(command, tmp_path):
    said = run(command, "demo", "--epochs", "1", "--workers", "1", "--servers", "1", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "accuracy" in said.stdout


def test_ctrl_c_ends_a_job(command):
    line = [*command, "launch", "-n", "1", "--", "sh", "-c", "echo up; exec sleep 600"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "rank-0 | up\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=20) == 128 + signal.SIGINT
        finally:
            process.kill()


EXCHANGE = """
import numpy as np, sheave
mesh = sheave.init()
if mesh.role == "worker":
    worker, ones, sums = sheave.exchange.Worker(), np.ones(1000), np.zeros(1000)
    for step in range(1 << 40):
        worker.push_pull({0: ones}, {0: sums}).wait()
        if step == 5:
            print("up", flush=True)
elif mesh.role == "server":
    server = sheave.exchange.Server()
    for batch in server:
        for request in batch:
            server.respond(request, [np.ones(1000)])
else:
    mesh.until_gone()
"""


def test_f93_ctrl_c_on_a_worker_of_an_exchange_is_told_as_such(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(EXCHANGE)
    launch = ["launch", "-n", "1", "-s", "1", "--grace-ms", "20000", "--", sys.executable, str(program)]
    for _ in range(3):
        line = [sys.executable, "-m", "sheave", *launch]
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "worker-0 | up\n"
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=40)[1]
            assert process.returncode == 128 + signal.SIGINT
            assert "lost sys.stderr" not in said and "worker-0 | KeyboardInterrupt" in said, said


def test_what_python_gets_is_measured():
    arguments = ["bench", "python", "--python", sys.executable, "--quick", "--json", "--transport", "shm"]
    cases = ["all_reduce", "all_reduce_numpy", "push_pull", "import", "start"]
    chosen = [word for case in cases for word in ("--case", case)]
    said = run([sys.executable, "-m", "sheave"], *arguments, *chosen, "--bytes", "8", "--bytes", "64KiB")
    assert said.returncode == 0, said.stderr
    rows = {(row["case"], row["bytes"], row["transport"]): row for row in map(json.loads, said.stdout.splitlines())}
    sums = {(case, size, "shm") for case in cases[:2] for size in (8, 65536)}
    assert rows.keys() == sums | {("push_pull", 5_760_000, "shm")} | {
        (case, 0, over) for case in cases[3:] for over in ("shm", "allowed")
    }
    assert all(row["language"] == "python" and row["iterations"] > 0 for row in rows.values())
    # Ten seconds are a hang; nothing takes no time but what lies within a bare interpreter's.
    assert all(row["p50_us"] < 10e6 for row in rows.values()) and all(rows[row]["p50_us"] > 0.1 for row in sums)
    wrong = run([sys.executable, "-m", "sheave"], "bench", "python", "--python", "/nowhere/python")
    assert wrong.returncode == 2 and "--python" in wrong.stderr and wrong.stderr.count("\n") == 1


@pytest.mark.soak("a dozen processes import torch")
@pytest.mark.timeout(300)
def test_particles_of_python_are_measured_beside_push(tmp_path):
    pytest.importorskip("torch")
    cases = ["send_wait", "across", "epoch"]
    of_ours = {("send", "sheave"), ("send", "sheave-rust"), ("send", "allowed-rust")}
    # What stands in the place of the original cannot be imported: its rows are left out.
    (tmp_path / "push").mkdir()
    (tmp_path / "push" / "__init__.py").write_text("raise ImportError('there is no original here')")
    chosen = [word for case in ["send", *cases] for word in ("--case", case)]
    beside = ["--python", sys.executable, "--push", str(tmp_path)]
    line = [sys.executable, "-m", "sheave", "bench", "particle", "--quick", "--json", *beside, *chosen]
    said = subprocess.run(line, capture_output=True, text=True, timeout=280)
    assert said.returncode == 0, said.stderr
    rows = {(row["case"], row["transport"]): row for row in map(json.loads, said.stdout.splitlines())}
    both = {(case, whose) for case in cases for whose in ("sheave", "face")}
    allowed = {("send_wait", "allowed"), ("across", "allowed")}
    assert rows.keys() == of_ours | both | allowed | {("send_wait", "sheave-rust"), ("epoch", "loop")}
    assert all(row["iterations"] > 0 and 0.1 < row["p50_us"] < 100e6 for row in rows.values())
    assert said.stderr.count("there is no original here") == 3, said.stderr
