"""Runs when Python starts with this directory on its path: `import push` means `sheave.compat.push`."""

import importlib.util
import os

directory = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("sheave_alias", os.path.join(os.path.dirname(directory), "alias.py"))
if spec is not None and spec.loader is not None:
    alias = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alias)
    alias.install(directory)
