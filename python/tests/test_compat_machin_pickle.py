"""machin's pickles over sheave."""

import io
import multiprocessing
import pickle
import sys
import threading
import types

import pytest
from sheave.compat.machin.parallel.pickle import Pickler, dumps, loads, mark_static_module
from sheave.compat.machin.parallel.process import Process

# Processes that import torch at once with others may take their time.
pytestmark = pytest.mark.timeout(60)

FACTOR = 3


def test_functions_of_all_kinds_travel():
    offset = 4
    for recurse in (False, True):
        assert loads(dumps(lambda number: FACTOR * number + offset, recurse=recurse))(2) == 10
        assert loads(dumps(test_functions_of_all_kinds_travel)) is test_functions_of_all_kinds_travel
    file = io.BytesIO()
    Pickler(file, recurse=True, copy_tensor=True).dump({"one": [1, offset]})
    assert pickle.loads(file.getvalue()) == {"one": [1, 4]}


def test_what_cannot_be_pickled_is_refused():
    with pytest.raises(TypeError, match="lock"):
        dumps(threading.Lock())


def test_a_static_module_travels_by_name():
    module = types.ModuleType("made_here")
    exec("def seven(): return 7", module.__dict__)
    sys.modules["made_here"] = module
    try:
        mark_static_module(module)
        assert loads(dumps(module)) is module and loads(dumps(module.seven)) is module.seven
        assert len(dumps(module.seven)) < 100
    finally:
        del sys.modules["made_here"]
    with pytest.raises(ModuleNotFoundError):
        loads(dumps(module))


def change(here, there, data):
    import torch

    tensor, parameter = loads(data)
    with torch.no_grad():
        parameter += 2
    tensor += 1
    there.send(dumps((tensor, parameter), copy_tensor=False))
    here.close()
    there.recv()


def test_tensors_are_copied_or_shared():
    torch = pytest.importorskip("torch")
    strategy = torch.multiprocessing.get_sharing_strategy()
    tensor = torch.zeros(1000)
    parameter = torch.nn.Parameter(tensor[10:20])

    context = multiprocessing.get_context("spawn")
    for is_copied in (True, False):
        here, there = context.Pipe()
        data = dumps((tensor, parameter), copy_tensor=is_copied)
        assert (len(data) > 4000) == is_copied
        process = Process(target=change, args=(here, there, data), ctx=context)
        process.start()
        found, view = loads(here.recv())
        assert found[15] == 3 and found[5] == 1 and isinstance(view, torch.nn.Parameter)
        assert (found.data_ptr() == tensor.data_ptr()) == (not is_copied)
        assert float(tensor.sum()) == (0 if is_copied else 1020)
        here.send(None)
        process.join()
        process.watch()
    assert torch.multiprocessing.get_sharing_strategy() == strategy
    with pytest.raises(RuntimeError, match="non-leaf"):
        dumps(parameter * 2, copy_tensor=False)


def test_a_function_takes_its_tensors_along():
    torch = pytest.importorskip("torch")
    tensor = torch.ones(10)
    shared = loads(dumps(lambda: tensor, copy_tensor=False))()
    copied = loads(dumps(lambda: tensor))()
    tensor += 1
    assert shared.sum() == 20 and copied.sum() == 10
