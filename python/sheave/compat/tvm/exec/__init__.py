"""``tvm.exec``: modules that are run as programs."""
