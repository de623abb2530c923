"""`sheave bench torch` measures groups over both backends, as processes of a job; and so does its script alone."""

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)


@pytest.mark.soak("imports torch five times")
@pytest.mark.timeout(240)
def test_both_backends_are_measured_in_one_run():
    arguments = ["bench", "torch", "--quick", "--json", "--python", sys.executable, "--case", "all_gather"]
    line = [sys.executable, "-m", "sheave", *arguments]
    said = subprocess.run(line, capture_output=True, text=True, timeout=200)
    assert said.returncode == 0, said.stderr
    ours, gloo = map(json.loads, said.stdout.splitlines())
    assert [row["transport"] for row in (ours, gloo)] == ["sheave", "gloo"]
    for row in (ours, gloo):
        assert (row["bench"], row["case"], row["bytes"], row["ranks"]) == ("torch", "all_gather", 16 << 20, 2)
        # Ten seconds are a hang, and ten microseconds too few for 8 MiB from each rank.
        assert row["iterations"] == 5 and 10 < row["p50_us"] < 10e6
    assert ours["ratio"] == pytest.approx(ours["p50_us"] / gloo["p50_us"]) and ours["target"] == 0.3
    wrong = subprocess.run([*line[:-2], "--case", "all_reduse"], capture_output=True, text=True, timeout=100)
    assert wrong.returncode == 2 and "all_reduse" in wrong.stderr
