"""Runs when Python starts with this directory on its path: `import tvm` means `sheave.compat.tvm` from here on, and
`import tvm_ffi` means `sheave.compat.tvm_ffi`.
"""

import importlib.util
import os

directory = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("sheave_alias", os.path.join(os.path.dirname(directory), "alias.py"))
if spec is not None and spec.loader is not None:
    alias = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alias)
    alias.install(directory, "tvm_ffi")
