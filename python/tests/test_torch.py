"""Programs of torch over sheave come to the same as over gloo, with 2 ranks and with 4."""

import contextlib
import threading

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

import torch_features  # noqa: E402
from conftest import launching  # noqa: E402
from sheave.torch.work import SheaveWork  # noqa: E402

RANK = "import sys, torch_features; torch_features.main(*sys.argv[1:])"
CASES = [(size, name) for size in (2, 4) for name in torch_features.FEATURES]

EXACT, OF_ANOTHER_ORDER = (0.0, 0.0), (1e-3, 1e-5)
"""How far results may be apart, relatively and absolutely. Two numbers have one sum; those of four ranks are added up
in another order."""

OF_HALVES = (1e-2, 2e-3)
"""The same where gradients travel as halves, which gloo rounds after each addition and sheave at the end."""


def assert_same(one, other, tolerance):
    """Tensors are within the tolerance of each other, everything else is equal."""
    assert type(one) is type(other), (one, other)
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=tolerance[0], atol=tolerance[1])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same(*pair, tolerance)
    else:
        assert one == other


@pytest.fixture(scope="module")
def outcomes(forks, tmp_path_factory):
    """What all features have come to on each rank, by backend and size; four processes run them once."""
    folder = tmp_path_factory.mktemp("features")
    with contextlib.closing(launching(forks=forks)) as starting:
        start = next(starting)
        ranks = [start(RANK, rank, folder) for rank in range(4)]
        ended = [rank.finish(timeout=200) for rank in ranks]

    def of(backend, size):
        files = [folder / f"{backend}-{size}-{rank}" for rank in range(size)]
        assert all(file.exists() for file in files), ended
        return [torch.load(file, weights_only=False) for file in files]

    return of


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("size", "name"), CASES)
def test_a_program_comes_to_the_same_over_sheave_as_over_gloo(outcomes, size, name):
    tolerance = EXACT if size == 2 else OF_HALVES if name == "hooks" else OF_ANOTHER_ORDER
    for rank, (ours, theirs) in enumerate(zip(outcomes("sheave", size), outcomes("gloo", size), strict=True)):
        assert name in ours, f"rank {rank} failed before: {[one[0] for one in ours.values() if one[0]]}"
        assert ours[name][0] is None, f"rank {rank}: {ours[name][0]}"
        assert name in theirs and theirs[name][0] is None, f"gloo, rank {rank}: {theirs.get(name)}"
        assert_same(ours[name][1], theirs[name][1], tolerance)


def test_nobody_goes_on_before_what_is_copied_after_the_end_is_copied():
    entered, go, done, seen = threading.Event(), threading.Event(), [], []

    def finish():
        entered.set()
        assert go.wait(20)
        done.append(1)

    work = SheaveWork([], None, finish)
    first = threading.Thread(target=work.wait)
    first.start()
    assert entered.wait(20)
    second = threading.Thread(target=lambda: (work.wait(), seen.extend(done)))
    second.start()
    # One that does not wait is through by now.
    second.join(0.2)
    go.set()
    first.join(20)
    second.join(20)
    assert seen == done == [1]


def test_what_could_not_be_copied_after_the_end_is_copied_by_the_next_wait():
    tries = []

    def finish():
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("there was no memory")

    work = SheaveWork([], None, finish)
    with pytest.raises(ValueError, match="no memory"):
        work.wait()
    assert work.wait() and work.wait() and len(tries) == 2
