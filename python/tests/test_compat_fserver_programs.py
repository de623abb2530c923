"""Programs that say `import fserver_lib`, run as they are: one script for all roles, with numpy and with torch."""

import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest
from conftest import free_root

SCRIPT = """
    import os, sys
    role = os.environ["DMLC_ROLE"]
    if sys.argv[1] == "torch" and role != "scheduler":
        import torch
        full = lambda value: torch.full((2, 3), value)
    else:
        import numpy as np
        full = lambda value: np.full((2, 3), value)
    import fserver_lib
    import fserver_lib as f
    from fserver_lib import get_batch, init, push_pull, respond, stop, wait

    assert f is fserver_lib and f.__name__ == "sheave.compat.fserver_lib" and f.wait is wait
    servers = int(os.environ["DMLC_NUM_SERVER"])
    init()
    if role == "worker":
        y = [full(0.0) for _ in range(servers)]
        wait(push_pull([full(1.5)], [0], y, [0] * servers))
        assert all(each.flatten().tolist() == [3] * 6 for each in y)
        print("the worker is done", flush=True)
    elif role == "server":
        for handler, tensors, keys in get_batch():
            assert type(tensors[0]) is type(full(0.0))
            respond([tensors[0] * 2], handler)
    stop()
"""


@pytest.fixture(params=["numpy", "torch"])
def script(request, tmp_path):
    """A script and its argument."""
    if request.param == "torch" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return [str(path), request.param]


FACE = [sys.executable, "-m", "sheave.compat", "fserver_lib"]


def test_a_process_for_each_role(script):
    path, arrays = script
    host, port = free_root().split(":")
    counts = {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "2", "DMLC_PS_ROOT_URI": host, "DMLC_PS_ROOT_PORT": port}
    # Torch is in one of each kind, beside others: every process that imports it takes some seconds of a core.
    processes = [("scheduler", "numpy")]
    processes += [(role, which) for role in ("server", "worker") for which in (arrays, "numpy")]
    running = []
    try:
        for role, which in processes:
            command, environment = [*FACE, path, which], {**os.environ, **counts, "DMLC_ROLE": role}
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        said = [process.communicate(timeout=40)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [process.returncode for process in running] == [0] * 5
    assert said == [""] * 3 + ["the worker is done\n"] * 2


def test_a_job_that_is_launched_whole(script):
    launch = [sys.executable, "-m", "sheave", "launch", "-n", "2", "-s", "1", "--"]
    ended = subprocess.run(launch + FACE + script, capture_output=True, text=True, timeout=50)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("the worker is done") == 2


def test_a_program_of_modules_finds_the_face_too(tmp_path):
    (tmp_path / "fserver_lib.py").write_text("raise ImportError('the one beside the script')")
    program = "import fserver_lib, fserver_lib.worker as inner; print(fserver_lib.__all__[0], inner.__name__)"
    ended = subprocess.run([*FACE, "-c", program], capture_output=True, text=True, timeout=50, cwd=tmp_path)
    assert (ended.stdout, ended.stderr) == ("ServerDataBatch sheave.compat.fserver_lib.worker\n", "")
