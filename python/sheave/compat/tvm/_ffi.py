"""``tvm._ffi``: where programs of before 0.20 find functions by their names."""

from sheave.compat.tvm.registry import get_global_func, list_global_func_names, register_func, remove_global_func

__all__ = ["get_global_func", "list_global_func_names", "register_func", "remove_global_func"]
