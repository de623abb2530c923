"""The stubs say what the module is."""

import subprocess
import sys

import pytest

OF_TORCH = ("backend.SheaveBackend", "group.SheaveGroup", "work.SheaveWork")


def needs(*modules):
    for module in modules:
        pytest.importorskip(module, reason=f"{module} is not installed")


@pytest.mark.timeout(180)
def test_stubs_agree_with_the_module(tmp_path):
    needs("mypy", "torch")
    # The metaclasses of these are those of torch's own classes, of which its stubs do not tell.
    allowed = tmp_path / "allowed"
    allowed.write_text("".join(f"sheave.torch.{name}\n" for name in OF_TORCH))
    command = [sys.executable, "-m", "mypy.stubtest", "sheave", "--allowlist", allowed, "--ignore-unused-allowlist"]
    checked = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=170)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.timeout(180)
def test_the_package_is_typed(tmp_path):
    needs("mypy", "torch")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "-p", "sheave", "-p", "_sheave_torch"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=170,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
