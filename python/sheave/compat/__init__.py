"""Faces of other systems over sheave: programs that were written for them run unmodified.

``python -m sheave.compat mxnet script.py arguments…`` runs a program in which ``import mxnet`` means
`sheave.compat.mxnet`, in that process and in every Python process that it starts. ``-m module`` works as Python's own:
``python -m sheave.compat mxnet -m pytest tests/test_kvstore.py``.

``fserver_lib`` is `sheave.compat.fserver_lib` in the same way: StepMesh between attention and expert servers.
``machin`` is `sheave.compat.machin`: of machin its ``machin.parallel``, that is ``distributed``, ``assigner``, ``pool``
and what belongs to processes.
``tvm`` is `sheave.compat.tvm`: of TVM its ``tvm.runtime.disco``.

A program that may be changed imports the face itself instead, and needs no runner:

>>> import sheave.compat.mxnet as mx
>>> store = mx.kv.create("local")
>>> store.init(3, mx.nd.ones((2, 3)))
>>> place = mx.nd.zeros((2, 3))
>>> store.pull(3, out=place)
>>> place.asnumpy().sum()
np.float32(6.0)
"""
