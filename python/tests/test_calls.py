"""Calls of Python functions and objects on other nodes: values, arrays, pickles, errors, deaths."""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytest
import sheave
from conftest import free_root, together



def nested(depth):
    """A list in a list, and so on."""
    return [nested(depth - 1)] if depth else []


PLAIN = [
    None,
    True,
    0,
    -1,
    2**63 - 1,
    -(2**63),
    2**63,
    -(2**63) - 1,
    -(2**71),
    2**71 - 1,
    3**200,
    -(5**300),
    0.1,
    float("-inf"),
    -0.0,
    1 - 2j,
    "",
    "żółw 🐢",
    "long " * 50_000,
    b"",
    bytes(range(256)),
    b"long" * 50_000,
    (),
    (1, (2, [3, {"four": 5}])),
    [],
    {},
    {"a": 1, "b": [None]},
    {1: "one", (2, 3): "two", None: 0.5},
    {1, "two", (3,)},
    frozenset({1, 2}),
    slice(1, None, -2),
    slice("a", (1, 2), 0.5),
    np.float32(0.1),
    np.float64(0.1),
    np.int8(-3),
    np.uint8(255),
    np.bool_(True),
    np.complex64(1 - 2j),
    np.complex128(3j),
    np.float16(0.5),
    np.dtype("float32"),
    np.dtype(bool),
]

# What is pickled, because no value has room for it.
OTHERS = [
    nested(40),
    "half a \ud83d",
    bytearray(b"bytes"),
    np.str_("text"),
    np.datetime64("2026-11-25"),
    np.dtype(">f4"),
    np.dtype([("x", "f4"), ("y", "i2")]),
    range(3),
    Ellipsis,
    1 << 600_000,
]


def same(one, other):
    """Whether both are of the same type and equal, also deep inside."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(map(repr, one)) == list(map(repr, other)) and all(map(same, one.values(), other.values()))
    return one == other and (isinstance(one, int) or repr(one) == repr(other))


class Tracked:
    """Counts how many there are; travels by name, so that both ends count alike."""

    living = 0

    def __init__(self):
        Tracked.living += 1

    def __reduce__(self):
        return Tracked, ()

    def __del__(self):
        Tracked.living -= 1


def echo(*args, **kwargs):
    return (args, kwargs) if kwargs else args[0] if len(args) == 1 else args


@pytest.fixture
def alone():
    with sheave.Mesh(rank=0, size=1, root=free_root()) as mesh:
        mesh.serve("echo", echo)
        yield mesh


def called(act, serve=lambda mesh: mesh.serve("echo", echo), size=2, **settings):
    """What `act(mesh)` returns at rank 0 of a mesh whose others serve."""

    def run(mesh):
        if mesh.rank > 0:
            serve(mesh)
        mesh.barrier(timeout=20)
        return act(mesh) if mesh.rank == 0 else None

    return together(run, size, **settings)[0]


@pytest.mark.parametrize("to", [0, 1])
def test_plain_values_keep_their_types(to):
    def act(mesh):
        if to == 0:
            mesh.serve("echo", echo)
        for value in PLAIN + OTHERS:
            answer = mesh.call(to, "echo", (value,), timeout=20)
            assert same(answer, value) or (isinstance(value, set) and answer == value), (value, answer)
        assert same(mesh.call(to, "echo", (PLAIN,), timeout=20)[:24], PLAIN[:24])

    called(act)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_arrays_are_new_ones_of_the_same_kind(transport):
    arrays = [
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.zeros((0, 3)),
        np.array(5.0),
        np.arange(12.0).reshape(3, 4).T,
        np.arange(10)[::3],
        np.ones(1_000_000, np.float32),
        np.ones(3, np.complex128),
        np.ones(3, np.float16),
        np.array([True, False]),
        np.arange(3, dtype=">i4"),
        np.array(["a", "bc"]),
        np.array([1, "x", None], dtype=object),
        np.array(["2026-11-25"], dtype="datetime64[D]"),
        np.ma.masked_array([1, 2], [True, False]),
        np.array([(1, 2.0)], dtype=[("x", "i4"), ("y", "f8")]),
    ]

    def act(mesh):
        for array in arrays:
            answer = mesh.call(1, "echo", ({"array": array},), timeout=20)["array"]
            assert type(answer) is type(array) and answer.dtype == array.dtype and answer.shape == array.shape
            np.testing.assert_array_equal(answer, array)
            assert answer.flags.writeable
        ours = mesh.empty((2, 2))
        ours.numpy()[:] = 7
        answer = mesh.call(1, "echo", (ours,), timeout=20)
        assert type(answer) is sheave.Tensor and answer.shape == (2, 2) and (answer.numpy() == 7).all()

    called(act, transport=transport)


def test_arguments_are_captured_and_handlers_own_what_they_get(alone):
    def spoil(array):
        before = array.copy()
        array[:] = -1
        return before

    alone.serve("spoil", spoil)
    for count in (10, 1_000_000):
        array = np.arange(count, dtype=np.float64)
        work = alone.call(0, "spoil", (array,), async_op=True)
        array[:] = 5
        np.testing.assert_array_equal(work.wait(timeout=20), np.arange(count))
        assert (array == 5).all(), "the handler has written the caller's array"
        answer = alone.call(0, "echo", (array,), timeout=20)
        answer[:] = 1
        assert (array == 5).all()


def test_torch_tensors_stay_tensors(alone):
    torch = pytest.importorskip("torch")
    base = torch.arange(6.0)
    for tensor in [base, base[1:3], base.reshape(2, 3).T, torch.ones(3, dtype=torch.bfloat16), torch.tensor(3)]:
        answer = alone.call(0, "echo", (tensor,), timeout=20)
        assert type(answer) is torch.Tensor and answer.dtype == tensor.dtype and torch.equal(answer, tensor)
        answer.add_(1)
        assert not torch.equal(answer, tensor), "it is a tensor of its own"
    leaf = torch.nn.Parameter(torch.ones(3))
    answer = alone.call(0, "echo", ([leaf, leaf],), timeout=20)
    assert type(answer[0]) is torch.nn.Parameter and answer[0].requires_grad and answer[0] is answer[1]
    assert alone.call(0, "echo", (torch.float32,), timeout=20) is torch.float32
    model = alone.call(0, "echo", (torch.nn.Linear(2, 2),), timeout=20)
    assert model(torch.ones(2)).shape == (2,)


def test_all_else_travels_as_one_pickle(alone):
    class Point:
        def __init__(self, x):
            self.x = x

    point = Point(np.arange(10_000))
    answer = alone.call(0, "echo", ([point, point, {"f": lambda number: number + point.x[3]}],), timeout=20)
    assert answer[0] is answer[1] and answer[0] is not point and answer[2]["f"](1) == 4
    answer[0].x[:] = 0
    assert point.x[5] == 5 and answer[0].x.flags.writeable
    with pytest.raises(sheave.InvalidArgument, match="cannot be pickled"):
        alone.call(0, "echo", (threading.Lock(),))


def test_arguments_by_name_objects_and_what_is_not_served(alone):
    class Counter:
        step = 2

        def __init__(self):
            self.count = 0

        def add(self, number, times=1):
            self.count += number * times
            return self.count

        def _secret(self):
            return self.count

    alone.serve("counter", Counter())
    assert alone.call(0, "echo", (1, 2)) == (1, 2) and alone.call(0, "echo") == ()
    assert alone.call(0, "echo", [1], {"x": 2}) == ((1,), {"x": 2})
    assert alone.call(0, "counter.add", (3,), {"times": 2}) == 6
    assert alone.call(alone.name, "counter.add", (1,)) == 7
    assert alone.call(alone.members[0], "counter.add", (1,)) == 8
    hidden = ("counter._secret", "counter.step", "counter.nothing", "counter.__class__")
    for what in (*hidden, "counter", "nobody", "nobody.add"):
        with pytest.raises(sheave.NotFound) as raised:
            alone.call(0, what, timeout=20)
        assert what.rpartition(".")[2] in str(raised.value)
    for wrong in ({"to": 1}, {"to": "nobody"}, {"to": None}, {"args": 5}, {"args": "text"}):
        with pytest.raises(sheave.InvalidArgument):
            alone.call(**{"to": 0, "what": "echo", **wrong})
    for name in ("", "a.b"):
        with pytest.raises(sheave.InvalidArgument, match="without dots"):
            alone.serve(name, echo)
    with pytest.raises(sheave.InvalidArgument, match="no lane"):
        alone.serve("other", echo, lane="fast")
    with pytest.raises(sheave.AlreadyExists):
        alone.serve("echo", echo)
    alone.serve_no_more("echo")
    with pytest.raises(sheave.NotFound, match="echo"):
        alone.call(0, "echo", (1,), timeout=20)


class Two(Exception):
    """One whose constructor takes other things than its parent's."""

    def __init__(self, code, *, name):
        super().__init__(f"{name} has code {code}")
        self.code = code


class Loose(Exception):
    def __init__(self, lock):
        super().__init__("it holds", lock)
        self.lock = lock


def fail(kind):
    class Local(ValueError):
        pass

    raised = {
        "key": lambda: {}["x"],
        "two": lambda: (_ for _ in ()).throw(Two(7, name="it")),
        "local": lambda: (_ for _ in ()).throw(Local("of a function")),
        "lock": lambda: (_ for _ in ()).throw(Loose(threading.Lock())),
        "os": lambda: open("/nothing/here"),
        "unicode": lambda: b"\xff".decode("ascii"),
        "exit": lambda: sys.exit(3),
        "interrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
    }
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError as first:
        if kind == "chain":
            raise Two(1, name="second") from first
    raised[kind]()


@pytest.mark.parametrize(
    ("kind", "expected", "says"),
    [
        ("key", KeyError, "'x'"),
        ("two", Two, "it has code 7"),
        ("local", ValueError, "of a function"),
        ("lock", Loose, "it holds"),
        ("os", FileNotFoundError, "/nothing/here"),
        ("unicode", UnicodeDecodeError, "ordinal not in range"),
        ("exit", sheave.Remote, "SystemExit"),
        ("interrupt", sheave.Remote, "KeyboardInterrupt"),
    ],
)
def test_what_a_handler_raises_is_raised_at_the_caller(alone, kind, expected, says):
    alone.serve("fail", fail)
    work = alone.call(0, "fail", (kind,), async_op=True)
    for _ in range(2):
        with pytest.raises(expected, match=says) as raised:
            work.wait(timeout=20)
    cause = raised.value.__cause__ if expected is not sheave.Remote else raised.value
    assert isinstance(cause, sheave.Remote) and str(cause).startswith("fail: fail raised")
    assert "in fail" in cause.remote_traceback and "raised[kind]()" in cause.remote_traceback
    if kind == "two":
        assert raised.value.code == 7
    if kind == "os":
        assert raised.value.errno == 2 and raised.value.filename == "/nothing/here"


def test_a_work_whose_exception_has_it_in_its_frames_is_collected(alone):
    alone.serve("fail", fail)

    def fails():
        work = alone.call(0, "fail", ("key",), async_op=True)
        with pytest.raises(KeyError):
            work.wait(timeout=20)
        return weakref.ref(work)

    gone = fails()
    gc.collect()
    assert gone() is None


def test_the_causes_of_an_exception_come_along():
    def act(mesh):
        with pytest.raises(Two, match="second has code 1") as raised:
            mesh.call(1, "fail", ("chain",), timeout=20)
        remote = raised.value.__cause__
        assert "rank-1" in str(remote) and remote.__cause__.remote_class.endswith("Two")
        assert remote.__cause__.__cause__.remote_class == "ZeroDivisionError"

    called(act, lambda mesh: mesh.serve("fail", fail))


def test_an_exception_whose_class_is_not_here_is_told(start):
    root = free_root()
    program = start(
        """
        import sys, types, sheave
        module = types.ModuleType("only_here")
        exec("class Mine(Exception): pass\\ndef fail(): raise Mine('of that process')", module.__dict__)
        sys.modules["only_here"] = module
        mesh = sheave.Mesh(rank=1, size=2, root=sys.argv[1])
        mesh.serve("fail", module.fail)
        mesh.barrier()
        mesh.finish()
        """,
        root,
    )
    with sheave.Mesh(rank=0, size=2, root=root) as mesh:
        mesh.barrier(timeout=20)
        with pytest.raises(sheave.Remote, match="of that process") as raised:
            mesh.call(1, "fail", timeout=20)
        assert raised.value.__cause__.remote_class == "only_here.Mine"
        mesh.finish(timeout=20)
    program.succeed()


def test_sheaves_own_errors_are_causes_and_not_about_the_callee(alone):
    gate = threading.Event()
    alone.serve("stop", lambda: gate.wait(20))
    alone.serve("fail", lambda: alone.call(0, "stop", timeout=0.01))
    with pytest.raises(sheave.Remote) as raised:
        alone.call(0, "fail", timeout=20)
    gate.set()
    assert isinstance(raised.value.__cause__, sheave.DeadlineExceeded)


def test_calls_nest_and_slow_handlers_delay_nobody(alone):
    gate = threading.Event()
    alone.serve("wait", lambda: gate.wait(20))

    def down(depth):
        return 0 if depth == 0 else 1 + alone.call(0, "down", (depth - 1,))

    alone.serve("down", down)
    waits = [alone.call(0, "wait", async_op=True) for _ in range(32)]
    assert alone.call(0, "down", (50,), timeout=20) == 50
    with pytest.raises(sheave.DeadlineExceeded):
        alone.call(0, "wait", timeout=0.05)
    gate.set()
    assert [wait.wait(timeout=20) for wait in waits] == [True] * 32


def test_a_thousand_calls_nest_between_two_nodes():
    def act(mesh):
        def down(depth):
            below = mesh.call(1 - mesh.rank, "down", (depth - 1,), timeout=40) if depth > 0 else []
            return [mesh.rank, *below]

        mesh.serve("down", down)
        mesh.barrier(timeout=20)
        path = mesh.call(1, "down", (1000,), timeout=40) if mesh.rank == 0 else None
        mesh.barrier(timeout=40)
        return path

    path, _ = together(act, size=2)
    assert path == [1, 0] * 500 + [1]


def test_a_serial_service_keeps_order_and_runs_one_at_a_time(alone):
    seen, inside = [], []

    def note(number):
        inside.append(number)
        assert inside == [number]
        time.sleep(0.0005)
        seen.append(inside.pop())

    alone.serve("note", note, lane="serial")
    works = [alone.call(0, "note", (number,), async_op=True) for number in range(200)]
    for work in works:
        work.wait(timeout=20)
    assert seen == list(range(200))


class Mixed:
    """Its slow method waits for what its serial ones do."""

    def __init__(self):
        self.order, self.inside, self.done = [], 0, threading.Event()

    @sheave.lane("serial")
    def note(self, number):
        self.inside += 1
        assert self.inside == 1
        time.sleep(0.0005)
        self.order.append(number)
        self.inside -= 1

    @sheave.lane("serial")
    async def finish(self):
        self.done.set()
        return self.order

    @sheave.lane("serial")
    def __call__(self):
        return self.inside

    def slow(self):
        return self.done.wait(20)


@sheave.lane("serial")
class Strict(Mixed):
    @staticmethod
    @sheave.lane("concurrent")
    def meet(barrier=threading.Barrier(3)):
        return barrier.wait(20)


def test_methods_say_their_lanes(alone):
    alone.serve("mixed", Mixed())
    slow = [alone.call(0, "mixed.slow", async_op=True) for _ in range(4)]
    noted = [alone.call(0, "mixed.note", (number,), async_op=True) for number in range(100)]
    assert alone.call(0, "mixed", timeout=20) == 0
    assert alone.call(0, "mixed.finish", timeout=20) == list(range(100))
    assert [work.wait(timeout=20) for work in slow + noted] == [True] * 4 + [None] * 100
    alone.serve("strict", Strict())
    works = [alone.call(0, "strict.meet", async_op=True) for _ in range(3)]
    assert sorted(work.wait(timeout=20) for work in works) == [0, 1, 2]


def test_a_class_and_a_function_say_their_lane(alone):
    order = []

    @sheave.lane("serial")
    def note(number):
        time.sleep(0.0005)
        order.append(number)

    alone.serve("note", note)
    works = [alone.call(0, "note", (number,), async_op=True) for number in range(50)]
    assert [work.wait(timeout=20) for work in works] == [None] * 50 and order == list(range(50))
    # What the server is told counts for more.
    met = threading.Barrier(2)
    meet = sheave.lane("serial")(lambda: met.wait(20))
    alone.serve("meet", meet, lane="concurrent")
    works = [alone.call(0, "meet", async_op=True) for _ in range(2)]
    assert sorted(work.wait(timeout=20) for work in works) == [0, 1]
    strict = Strict()
    alone.serve("strict", strict)
    waits = alone.call(0, "strict.slow", async_op=True)
    behind = alone.call(0, "strict.note", (1,), async_op=True)
    with pytest.raises(sheave.DeadlineExceeded):
        behind.wait(timeout=0.3)
    strict.done.set()
    assert waits.wait(timeout=20) and behind.wait(timeout=20) is None


def test_lanes_that_there_are_not_are_refused(alone):
    for refused in (lambda: sheave.lane("fast"), lambda: alone.serve("double", abs, lane="fast")):
        with pytest.raises(sheave.InvalidArgument, match='no lane .fast.; hint: lanes are "concurrent" and "serial"'):
            refused()


def test_handlers_of_several_services_run_at_once(alone):
    meeting = threading.Barrier(2)
    alone.serve("one", lambda: meeting.wait(20))
    alone.serve("other", lambda: meeting.wait(20))
    works = [alone.call(0, name, async_op=True) for name in ("one", "other")]
    assert sorted(work.wait(timeout=20) for work in works) == [0, 1]


def test_who_opens_no_pickles_says_so(start):
    root = free_root()
    program = start(
        """
        import sys, sheave
        mesh = sheave.Mesh(rank=1, size=2, root=sys.argv[1])
        mesh.serve("echo", lambda value: value)
        mesh.barrier()
        try:
            mesh.call(0, "answer")
        except sheave.NotPermitted as refused:
            print(refused)
        mesh.finish()
        """,
        root,
        SHEAVE_PICKLE="never",
    )
    with sheave.Mesh(rank=0, size=2, root=root) as mesh:
        mesh.serve("answer", lambda: range(3))
        mesh.barrier(timeout=20)
        assert mesh.call(1, "echo", ([1, np.ones(3)],), timeout=20)[0] == 1
        with pytest.raises(sheave.NotPermitted, match="opens no pickles"):
            mesh.call(1, "echo", (range(3),), timeout=20)
        mesh.finish(timeout=20)
    assert "opens no pickles" in program.line()
    program.succeed()


SERVER = """
    import os, sys, time, sheave
    mesh = sheave.Mesh(rank=1, size=2, root=sys.argv[1])
    def stay():
        print("inside", flush=True)
        time.sleep(60)
    mesh.serve("stay", stay)
    mesh.barrier()
    {end}
"""


@pytest.mark.parametrize("medium", ["shm", "tcp"])
def test_a_callee_that_is_killed_is_named_within_a_second(start, medium):
    root = free_root()
    program = start(SERVER.format(end="time.sleep(60)"), root, SHEAVE_TRANSPORT=medium)
    with sheave.Mesh(rank=0, size=2, root=root, transport=medium) as mesh:
        mesh.barrier(timeout=20)
        works = [mesh.call(1, "stay", async_op=True) for _ in range(3)]
        program.line()
        os.kill(program.pid, signal.SIGKILL)
        killed = time.monotonic()
        for work in works:
            with pytest.raises(sheave.PeerLost, match="rank-1"):
                work.wait(timeout=20)
        assert time.monotonic() - killed < 1
        with pytest.raises(sheave.PeerLost, match="rank-1"):
            mesh.call(1, "stay", timeout=20)


def test_a_program_ends_though_a_handler_runs(start):
    root = free_root()
    program = start(SERVER.format(end="sys.stdin.readline()"), root)
    with sheave.Mesh(rank=0, size=2, root=root) as mesh:
        mesh.barrier(timeout=20)
        work = mesh.call(1, "stay", async_op=True)
        program.line()
        program.tell()
        begun = time.monotonic()
        program.succeed()
        assert time.monotonic() - begun < 5
        with pytest.raises(sheave.PeerLost):
            work.wait(timeout=20)


def test_what_is_dropped_is_let_go_of(alone):
    alone.serve("tracked", lambda value: value)
    before = sys.getrefcount(PLAIN[-1])
    for _ in range(50):
        alone.call(0, "tracked", ([Tracked(), PLAIN[-1]],), timeout=20)
    until = time.monotonic() + 10
    while Tracked.living and time.monotonic() < until:
        alone.call(0, "echo", (1,))
    assert Tracked.living == 0 and sys.getrefcount(PLAIN[-1]) <= before + 1


def test_a_node_that_only_serves_lets_go_of_what_it_has_sent(start):
    root = free_root()
    program = start(
        """
        import sys, weakref, numpy as np, sheave
        gone = []
        def give():
            array = np.zeros(100_000)
            weakref.finalize(array, gone.append, None)
            return array
        mesh = sheave.Mesh(rank=1, size=2, root=sys.argv[1])
        mesh.serve("give", give)
        mesh.barrier()
        for _ in sys.stdin:
            print(len(gone), flush=True)
        """,
        root,
    )
    with sheave.Mesh(rank=0, size=2, root=root) as mesh:
        mesh.barrier(timeout=20)
        for _ in range(5):
            assert mesh.call(1, "give", timeout=20).size == 100_000
        until, count = time.monotonic() + 10, 0
        while count < 5 and time.monotonic() < until:
            program.tell()
            count = int(program.line())
        assert count == 5


def test_coroutines_run_in_one_loop_beside_each_other(alone):
    meeting, threads, order = asyncio.Event(), set(), []

    async def meet(number):
        threads.add(threading.current_thread().name)
        if number == 31:
            meeting.set()
        await asyncio.wait_for(meeting.wait(), 20)
        # A call from within the loop does not hold it up.
        return await alone.call(0, "echo", (number,), async_op=True)

    async def note(number):
        await asyncio.sleep(0.001 * (number % 3))
        order.append(number)

    async def broken():
        raise Two(3, name="async")

    alone.serve("meet", meet)
    works = [alone.call(0, "meet", (number,), async_op=True) for number in range(32)]
    assert [work.wait(timeout=20) for work in works] == list(range(32)) and threads == {"sheave-loop"}
    alone.serve("note", note, lane="serial")
    works = [alone.call(0, "note", (number,), async_op=True) for number in range(30)]
    assert [work.wait(timeout=20) for work in works] == [None] * 30 and order == list(range(30))
    alone.serve("broken", broken)
    with pytest.raises(Two, match="async has code 3") as raised:
        alone.call(0, "broken", timeout=20)
    assert "in broken" in raised.value.__cause__.remote_traceback
    assert alone.remote(0, "meet", (1,)).get(timeout=20) == 1


def test_an_exception_that_no_future_takes_ends_what_awaits_it_all_the_same(alone):
    def stops():
        return next(iter(()))

    async def ask():
        return await asyncio.wait_for(alone.call(0, "stops", async_op=True), 20)

    alone.serve("stops", stops)
    with pytest.raises(RuntimeError, match="StopIteration") as raised:
        asyncio.run(ask())
    assert isinstance(raised.value.__cause__, StopIteration)


def test_a_program_ends_though_coroutines_run(start):
    root = free_root()
    source = SERVER.format(end="sys.stdin.readline()").replace("def stay", "async def stay")
    program = start(source.replace("time.sleep(60)", "await __import__('asyncio').sleep(60)", 1), root)
    with sheave.Mesh(rank=0, size=2, root=root) as mesh:
        mesh.barrier(timeout=20)
        works = [mesh.call(1, "stay", async_op=True) for _ in range(3)]
        for _ in works:
            program.line()
        program.tell()
        program.succeed()
        for work in works:
            with pytest.raises(sheave.PeerLost):
                work.wait(timeout=20)
