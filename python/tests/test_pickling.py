"""Pickles of user code and its data."""

import gc
import subprocess
import sys
import textwrap
import threading
import weakref

import numpy as np
import pytest

import sheave
from sheave import pickling


class Counter:
    total = 0

    def __init__(self, start):
        self.count = start

    def add(self, number):
        self.count += number
        return self.count


def there_and_back(value):
    packed = pickling.pack(value)
    return pickling.unpack(packed.data, [bytearray(buffer) for buffer in packed.buffers])


def test_what_can_be_imported_travels_by_name():
    for value in (there_and_back, Counter, np.add, len, Counter.add):
        data = pickling.dumps(value)
        assert len(data) < 200 and pickling.loads(data) is value
    assert pickling.loads(pickling.dumps(Counter(3))).add(4) == 7


def test_all_others_travel_by_value():
    factor = 3

    class Local:
        def __init__(self, number):
            self.number = number

        def times(self):
            return factor * self.number

    times = pickling.loads(pickling.dumps(Local(5).times))
    assert times() == 15
    assert pickling.loads(pickling.dumps(lambda number: factor + number))(4) == 7


def test_large_buffers_travel_beside_the_pickle_and_are_not_copied():
    array, small = np.arange(10_000.0), np.arange(3)
    packed = pickling.pack({"array": array, "same": array, "small": small})
    assert len(packed.data) < 1000 and len(packed.buffers) == 1
    assert np.shares_memory(np.frombuffer(packed.buffers[0]), array)
    given = bytearray(packed.buffers[0])
    back = pickling.unpack(packed.data, [given])
    assert back["same"] is back["array"] and np.shares_memory(back["array"], np.frombuffer(given))
    back["array"][0] = back["small"][0] = 7
    assert (array[0], small[0]) == (0, 0)


def test_arrays_in_no_order_travel_too():
    array = np.arange(60_000).reshape(100, 600)[:, ::7]
    assert (there_and_back(array) == array).all()
    assert (pickling.loads(pickling.dumps(array)) == array).all()


def test_what_cannot_be_pickled_is_named():
    for value in (threading.Lock(), {"lock": threading.Lock()}, sys.stdout, (number for number in [])):
        with pytest.raises(sheave.InvalidArgument, match=type(value).__name__):
            pickling.dumps(value)
    endless = []
    for _ in range(100_000):
        endless = [endless]
    with pytest.raises(sheave.InvalidArgument, match="recursion"):
        pickling.dumps(endless)


def test_exceptions_keep_class_and_arguments():
    class Odd(Exception):
        def __init__(self, one, *, two):
            super().__init__(one)
            self.two = two

        def __reduce__(self):
            return (lambda one, two: Odd(one, two=two)), (self.args[0], self.two)

    back = pickling.loads(pickling.dumps(Odd("first", two=2)))
    assert type(back).__name__ == "Odd" and (back.args, back.two) == (("first",), 2)


def test_what_a_script_defines_is_found_without_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import sys
            from sheave import pickling

            class Point:
                def __init__(self, x):
                    self.x = x

            def grow(point):
                return Point(point.x + 1)

            by_value = pickling.dumps((grow, Point(41)))
            by_name = pickling.dumps((grow, Point(41)), main_by_name=True)
            assert pickling.loads(by_name)[0] is grow and len(by_name) < 200 < len(by_value)
            sys.stdout.buffer.write(by_value)
        """)
    )
    said = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, check=True, timeout=60)
    grow, point = pickling.loads(said.stdout)
    assert grow(point).x == 42


def test_nothing_is_kept_of_what_was_pickled():
    kept = Counter(1)
    gone = weakref.ref(kept)
    for _ in range(100):
        pickling.loads(pickling.dumps([kept, lambda kept=kept: kept]))
    del kept
    gc.collect()
    assert gone() is None


def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


def test_tensors_of_torch_keep_what_they_share():
    t = torch()
    base = t.arange(10_000, dtype=t.float32)
    packed = pickling.pack((base, base[5:], base.view(100, 100).t()))
    assert len(packed.buffers) == 1 and len(packed.data) < 2000
    whole, tail, turned = there_and_back((base, base[5:], base.view(100, 100).t()))
    whole[5] = -1
    assert tail[0] == -1 and turned[5, 0] == -1 and turned.stride() == (1, 100)
    assert base[5] == 5, "it is private"


def test_all_sorts_of_tensors_of_torch():
    t = torch()
    sorts = [t.bool, t.uint8, t.uint16, t.uint32, t.uint64, t.int8, t.int16, t.int32, t.int64]
    sorts += [t.float16, t.bfloat16, t.float32, t.float64, t.complex64, t.complex128, t.float8_e4m3fn]
    for dtype in sorts:
        for count in (0, 1, 5000):
            tensor = (t.arange(count) % 2).to(dtype)
            for back in (there_and_back(tensor), pickling.loads(pickling.dumps(tensor))):
                assert back.dtype == dtype and t.equal(back.view(t.uint8), tensor.view(t.uint8))
    leaf = there_and_back(t.ones(3, requires_grad=True))
    assert leaf.requires_grad and leaf.is_leaf
    sparse = t.eye(30).to_sparse()
    assert (there_and_back(sparse).to_dense() == sparse.to_dense()).all()


def test_modules_of_torch_share_their_weights_and_go_on():
    t = torch()
    tied = t.nn.Sequential(t.nn.Linear(4, 4, bias=False), t.nn.Tanh(), t.nn.Linear(4, 4, bias=False))
    tied[2].weight = tied[0].weight
    optimizer = t.optim.Adam(tied.parameters(), lr=0.1)
    tied(t.ones(4)).sum().backward()
    optimizer.step()
    module, stepped, state = there_and_back((tied, optimizer, tied.state_dict()))
    assert module[2].weight is module[0].weight
    assert stepped.param_groups[0]["params"][0] is module[0].weight
    assert state["0.weight"].data_ptr() == module[0].weight.data_ptr()
    assert t.equal(module(t.ones(4)), tied(t.ones(4)))
    stepped.step()


def test_compiled_modules_of_torch_travel():
    t = torch()

    class Doubles(t.nn.Module):
        def forward(self, x: t.Tensor) -> t.Tensor:
            return x + x

    back = there_and_back(t.jit.trace(Doubles(), t.ones(2)))
    assert back(t.ones(2)).tolist() == [2, 2]


def test_exceptions_keep_what_they_carry():
    class Own(Exception):
        def __init__(self, code, *, name):
            super().__init__(f"{name}: {code}")
            self.code, self.lock = code, None

    def again(error):
        return sheave.pickling.unpack_exception(sheave.pickling.pack_exception(error))

    own = again(Own(7, name="it"))
    assert type(own).__name__ == "Own" and own.args == ("it: 7",) and own.code == 7
    error = again(FileNotFoundError(2, "none", "/here"))
    assert (error.errno, error.filename, type(error)) == (2, "/here", FileNotFoundError)
    error = again(UnicodeDecodeError("ascii", b"\xff", 0, 1, "out of range"))
    assert error.object == b"\xff" and error.end == 1
    held = Own(1, name="held")
    held.lock = threading.Lock()
    assert again(held).args == ("held: 1",), "what cannot travel is left behind"
    assert isinstance(again(KeyboardInterrupt()), KeyboardInterrupt)
    noted = ValueError("x")
    noted.add_note("a note")
    assert again(noted).__notes__ == ["a note"]
    with pytest.raises(sheave.InvalidArgument, match="expected one of an exception"):
        sheave.pickling.unpack_exception(sheave.pickling.dumps((int, (), {})))
