"""``tvm.testing``: what tests of Disco use."""

import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["assert_allclose", "main", "run_with_gpu_lock"]


def assert_allclose(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 1e-7, verbose: bool = True) -> None:
    """Asserts that both have the same shape and nearly the same elements."""
    actual, desired = np.asarray(actual), np.asarray(desired)
    np.testing.assert_allclose(actual.shape, desired.shape)
    np.testing.assert_allclose(actual, desired, rtol=rtol, atol=atol, verbose=verbose)


def run_with_gpu_lock(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls the function. There is no GPU that others might use."""
    return function(*args, **kwargs)


def main() -> None:
    """Runs the tests of the file that calls this, and exits."""
    import pytest

    caller = inspect.getsourcefile(sys._getframe(1))
    sys.exit(pytest.main([os.fspath(caller or "."), *sys.argv[1:]]))
