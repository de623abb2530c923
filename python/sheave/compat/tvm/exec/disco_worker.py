"""What worker processes of Disco run: ``python -m tvm.exec.disco_worker ID WORKERS GROUPS READ_FD WRITE_FD``.

They have the functions that TVM's tests of Disco call.
"""

import sys
from collections.abc import Callable

from sheave.compat import tvm

__all__ = ["main"]


@tvm.register_func("tests.disco.add_one", override=True)
def _add_one(number: int) -> int:
    return number + 1


@tvm.register_func("tests.disco.add_one_float", override=True)
def _add_one_float(number: float) -> float:
    return number + 0.5


@tvm.register_func("tests.disco.add_one_tensor", override=True)
def _add_one_tensor(tensor: tvm.Tensor) -> tvm.Tensor:
    return tvm.runtime.tensor(tensor.numpy() + 1)


tvm.register_func("tests.disco.add_one_ndarray", _add_one_tensor, override=True)


@tvm.register_func("tests.disco.str", override=True)
def _str(text: str) -> str:
    return text + "_suffix"


@tvm.register_func("tests.disco.str_obj", override=True)
def _str_obj(text: str) -> tvm.String:
    assert isinstance(text, str)
    return tvm.String(text + "_suffix")


@tvm.register_func("tests.disco.shape_tuple", override=True)
def _shape_tuple(shape: tvm.Shape) -> tvm.Shape:
    return tvm.Shape([*shape, 4, 5])


@tvm.register_func("tests.disco.test_callback", override=True)
def _make_callback(device: tvm.Device) -> Callable[[str, int], tvm.Tensor]:
    import numpy as np

    def callback(name: str, index: int) -> tvm.Tensor:
        return tvm.runtime.tensor(np.arange(len(name) + index, dtype="float32"), device)

    return callback


def main() -> None:
    """Be the worker that the arguments say."""
    if len(sys.argv) != 6:
        print("Usage: <worker_id> <num_workers> <num_groups> <read_fd> <write_fd>")
        return
    tvm.get_global_func("runtime.disco.WorkerProcess")(*map(int, sys.argv[1:]))


if __name__ == "__main__":
    main()
