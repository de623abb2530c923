"""What is released: the source distribution, from which others build and install the package."""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import pytest
import sheave

ROOT = pathlib.Path(__file__).parents[2]


def run(*command, folder=ROOT):
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=50)
    assert said.returncode == 0, said.stderr
    return said.stdout


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folder that a source distribution unpacks to, in a folder where nothing else is."""
    pytest.importorskip("maturin")
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("this is no clone, and only of a clone is known what belongs to it")
    folder = tmp_path_factory.mktemp("release")
    run(sys.executable, "-m", "maturin", "sdist", "--out", str(folder))
    name = f"sheave-{sheave.__version__}"
    with tarfile.open(folder / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def test_the_source_distribution_holds_what_is_under_version_control(unpacked):
    tracked = set(run("git", "ls-files", "-z").split("\0")) - {""}
    files = {os.fspath(path.relative_to(unpacked)) for path in unpacked.rglob("*") if not path.is_dir()}
    assert files - {"PKG-INFO"} == tracked
    # What it cannot do without, whatever the list above says.
    assert {"README.md", "LICENSE-APACHE", "LICENSE-MIT", "Cargo.lock", "crates/python/Cargo.toml"} < files
    assert (unpacked / "README.md").read_text() in (unpacked / "PKG-INFO").read_text()


def test_the_source_distribution_builds_from_its_lock_file(unpacked):
    if not shutil.which("cargo"):
        pytest.skip("there is no cargo here")
    assert "\nlocked = true\n" in (unpacked / "pyproject.toml").read_text()
    # Resolves the workspace as a build does, which fails where the lock file would have to be changed.
    tree = run("cargo", "tree", "--locked", "--offline", "--package", "sheave-python", folder=unpacked)
    assert tree.startswith(f"sheave-python v{sheave.__version__} ({unpacked / 'crates' / 'python'})")
