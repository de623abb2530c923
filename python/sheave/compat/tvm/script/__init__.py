"""``tvm.script``: names that programs import. Using them needs TVM's compiler."""

from typing import Any

__all__ = ["ir", "relax", "tir", "tirx"]


class _Absent:
    """Something of the compiler's."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{self._name} needs TVM's compiler, which sheave's face of TVM has not")


ir = _Absent("tvm.script.ir")
relax = _Absent("tvm.script.relax")
tir = _Absent("tvm.script.tir")
tirx = _Absent("tvm.script.tirx")
