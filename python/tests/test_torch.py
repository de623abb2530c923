"""Programs of torch over sheave come to the same as over gloo, with 2 ranks and, of some, with 4."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

import torch_features  # noqa: E402

FEATURES = os.path.join(os.path.dirname(__file__), "torch_features.py")
OF_FOUR = ["collectives", "exchanges", "groups", "data_parallel"]
CASES = [(2, name) for name in torch_features.FEATURES] + [(4, name) for name in OF_FOUR]


def run(folder, backend, size):
    """Run all features on all ranks; returns the outcomes of each rank by name."""
    ranks = []
    for rank in range(size):
        result = folder / f"{backend}-{size}-{rank}"
        command = [sys.executable, FEATURES, backend, rank, size, folder / f"store-{backend}-{size}", result]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [*map(str, command)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        ranks.append((process, result))
    try:
        said = [process.communicate(timeout=100)[0] for process, _ in ranks]
    finally:
        for process, _ in ranks:
            process.kill()
    results = []
    for (process, result), output in zip(ranks, said, strict=True):
        assert process.returncode == 0, output
        results.append(torch.load(result, weights_only=False))
    return results


def assert_same(one, other):
    """Tensors are close to each other, everything else is equal."""
    assert type(one) is type(other), (one, other)
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert one == other


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The outcomes of all features by backend and size, each run once."""
    known = {}

    def of(backend, size):
        if (backend, size) not in known:
            known[backend, size] = run(tmp_path_factory.mktemp(backend), backend, size)
        return known[backend, size]

    return of


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("size", "name"), CASES)
def test_a_program_comes_to_the_same_over_sheave_as_over_gloo(outcomes, size, name):
    for rank, (ours, theirs) in enumerate(zip(outcomes("sheave", size), outcomes("gloo", size), strict=True)):
        assert name in ours, f"rank {rank} failed before: {[one[0] for one in ours.values() if one[0]]}"
        assert ours[name][0] is None, f"rank {rank}: {ours[name][0]}"
        assert name in theirs and theirs[name][0] is None, f"gloo, rank {rank}: {theirs.get(name)}"
        assert_same(ours[name][1], theirs[name][1])
