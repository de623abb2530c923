"""machin's small classes."""

import copy
import pickle

import pytest
from sheave.compat.machin.utils.helper_classes import Object


def test_an_object_is_its_dictionary():
    made = Object({"size": 10, "to": lambda *_: None}, const_attrs=["size"])
    made.weight = 2
    made["height"] = 3
    assert (made.size, made["weight"], made.height, made.depth) == (10, 2, 3, None)
    assert made.to("cpu") is None and made() is None
    with pytest.raises(RuntimeError, match="size is const"):
        made.size = 11
    with pytest.raises(RuntimeError, match="attr is an Object's own"):
        made.attr = 1
    with pytest.raises(ValueError, match="data must be a dict, and is a list"):
        made.data = []
    made.call = lambda number: number + 1
    assert made(1) == 2
    made.data = {"other": 5}
    assert (made.other, made.size) == (5, None)


def test_an_object_is_copied_and_pickled():
    made = Object({"size": 10}, {"size"})
    for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert (other.size, other.const_attrs, other.missing) == (10, {"size"}, None)
