"""Which models are on a device: who makes room, who waits, what is left of moves that fail; and files."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest
import sheave
from sheave.particle import FunctionModel, ParticleCache

pytestmark = pytest.mark.timeout(120)


class Plain:
    """A model that says where it is."""

    def __init__(self, nbytes=10):
        self.nbytes = nbytes
        self.version = 0
        self.is_here = True
        self.fails = None
        self.moves = []

    def _move(self, what):
        if self.fails is not None:
            raise self.fails
        self.moves.append(what)
        self.is_here = what == "bring"

    def park(self):
        if self.is_here:
            self._move("park")

    def bring(self):
        if not self.is_here:
            self._move("bring")

    def state(self):
        return {"version": self.version}

    def load(self, state):
        self.version = state["version"]


def filled(count, **settings):
    cache = ParticleCache(**settings)
    models = [Plain() for _ in range(count)]
    for key, model in enumerate(models):
        cache.insert(key, model)
    return cache, models


def wait_for(condition, limit_s=60):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_d10_a_hit_is_a_use_and_who_is_pinned_stays():
    cache, models = filled(4, particles=2)
    for key in (0, 1, 0, 2):
        with cache.acquire(key) as model:
            assert model is models[key] and model.is_here
    assert cache.resident() == [0, 2]
    with cache.acquire(0), cache.acquire(3):
        assert cache.resident() == [0, 3] and cache.try_acquire(1) is None
    assert [model.is_here for model in models] == [True, False, False, True]
    statistics = cache.statistics()
    assert {name: statistics[name] for name in ("hits", "misses", "evictions", "pinned", "waiting")} == {
        "hits": 2, "misses": 4, "evictions": 2, "pinned": 0, "waiting": 0,
    }  # fmt: skip


def test_slots_are_the_order_of_creation():
    cache, _ = filled(5, particles=2, policy="direct")
    for key in range(5):
        cache.acquire(key).release()
    assert cache.resident() == [3, 4]
    with cache.acquire(4):
        assert cache.try_acquire(0) is None
        with cache.acquire(1) as model:
            assert model.is_here


def test_d10_contains_is_known_and_particles_is_a_list():
    cache, _ = filled(3, particles=1)
    assert cache.particles() == [0, 1, 2] and isinstance(cache.particles(), list)
    assert 0 in cache and cache.contains(2) and 3 not in cache and cache.resident() == []


def test_keys_are_numbers_names_and_ids_of_particles():
    cache = ParticleCache()
    id = sheave.particle.ParticleId(2, 7)
    for key in (7, "seven", id):
        cache.insert(key, Plain())
        assert key in cache
        with cache.acquire(key):
            pass
    assert cache.particles() == [7, "seven", (2, 7)]
    with pytest.raises(TypeError, match="a key is an int, a str or the id of a particle, not a float"):
        cache.acquire(0.5)
    with pytest.raises(sheave.AlreadyExists, match="it has a particle 7 of node 2"):
        cache.insert(id, Plain())
    with pytest.raises(sheave.NotFound, match='it has no particle "eight"; hint: was it removed'):
        cache.acquire("eight")


def test_what_grows_makes_others_go_and_what_is_too_large_is_refused():
    cache, models = filled(3, bytes=35)
    for key in range(3):
        cache.acquire(key).release()
    with cache.acquire(2) as model:
        model.nbytes = 20
    assert cache.statistics()["resident_bytes"] == 40
    cache.acquire(2).release()
    assert cache.resident() == [1, 2]
    with cache.acquire(0) as model:
        model.nbytes = 36
    text = "the cache of device cpu: particle 0 takes 36 bytes, and it holds 35"
    with pytest.raises(sheave.LimitExceeded, match=text):
        cache.acquire(0)
    with pytest.raises(sheave.LimitExceeded):
        cache.insert(9, Plain(36))
    assert 9 not in cache and [model.is_here for model in models] == [True, False, True]


def test_d10_a_thread_that_waits_for_its_own_guard_is_told():
    cache, _ = filled(2, particles=1, device="cuda:0")
    text = "this thread holds 0, which leave no room for particle 1"
    with cache.acquire(0), pytest.raises(sheave.Deadlock, match=text):
        cache.acquire(1)
    guard = cache.acquire(0)
    raised = []

    def late():
        try:
            cache.acquire(1, timeout=0.02)
        except sheave.DeadlineExceeded as error:
            raised.append(str(error))

    thread = threading.Thread(target=late)
    thread.start()
    thread.join(60)
    assert "the cache of device cuda:0: particle 1 found no room within 1 particles; pinned: 0" in raised[0]
    guard.release()
    guard.release()
    with cache.acquire(1, timeout=0.02) as model:
        assert model.is_here


def test_d10_no_lock_is_held_while_a_model_moves_or_a_guard_is_waited_for():
    cache, _ = filled(3, particles=1)
    inside, go_on = threading.Event(), threading.Event()

    class Slow(Plain):
        def bring(self):
            inside.set()
            assert go_on.wait(60)
            super().bring()

    cache.insert("slow", Slow())
    acquired = []
    thread = threading.Thread(target=lambda: acquired.append(cache.acquire("slow")))
    thread.start()
    assert inside.wait(60)
    # All of this would block.
    assert cache.resident() == [] and "slow" in cache and cache.try_acquire(1) is None
    cache.insert("new", Plain())
    second = threading.Thread(target=lambda: acquired.append(cache.acquire("slow")))
    second.start()
    wait_for(lambda: cache.statistics()["waiting"] == 1)
    go_on.set()
    thread.join(60)
    second.join(60)
    assert len(acquired) == 2 and cache.statistics()["misses"] == 1


def test_what_a_model_raises_when_it_moves_comes_out_and_nothing_has_changed():
    cache, models = filled(2, particles=1)
    models[0].fails = ValueError("the bus is down")
    with pytest.raises(ValueError, match="the bus is down") as caught:
        cache.acquire(0)
    assert caught.traceback[-1].name == "_move"
    models[0].fails = None
    cache.acquire(0).release()
    models[0].fails = KeyError("no")
    with pytest.raises(KeyError, match="no"):
        cache.acquire(1)
    assert cache.resident() == [0] and not models[1].is_here and cache.statistics()["failures"] == 2
    models[0].fails = None
    with cache.acquire(1):
        assert [model.is_here for model in models] == [False, True]


def test_threads_that_wait_for_a_move_that_fails_are_all_told():
    cache, models = filled(2, particles=1)
    models[1].fails = ValueError("broken")
    guard = cache.acquire(0)
    raised = []

    def wait():
        try:
            cache.acquire(1, timeout=60)
        except (ValueError, sheave.Remote) as error:
            raised.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_for(lambda: cache.statistics()["waiting"] == 3)
    guard.release()
    for thread in threads:
        thread.join(60)
    assert sorted(type(error).__name__ for error in raised) == ["Remote", "Remote", "ValueError"]
    assert all("broken" in str(error) for error in raised)


def test_waits_end_when_models_are_removed_and_caches_closed():
    cache, models = filled(3, particles=1)
    guard = cache.acquire(0)
    raised = []

    def wait(key):
        try:
            cache.acquire(key)
        except sheave.SheaveError as error:
            raised.append(type(error).__name__)

    threads = [threading.Thread(target=wait, args=(key,)) for key in (1, 2)]
    for thread in threads:
        thread.start()
    wait_for(lambda: cache.statistics()["waiting"] == 2)
    assert cache.remove(1) is models[1]
    wait_for(lambda: raised == ["NotFound"])
    cache.close()
    cache.close()
    for thread in threads:
        thread.join(60)
    assert raised == ["NotFound", "Closed"]
    with guard as model:
        assert model.is_here
    with pytest.raises(sheave.Closed):
        cache.acquire(0)


def test_many_threads_use_few_places():
    cache, models = filled(5, particles=2)
    failures = []

    def work(seed):
        generator = np.random.default_rng(seed)
        for key in generator.integers(0, 5, 100):
            with cache.acquire(int(key), timeout=60) as model:
                if not model.is_here:
                    failures.append(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and sum(model.is_here for model in models) <= 2
    assert cache.statistics()["pinned"] == cache.statistics()["waiting"] == 0


def test_settings_without_a_meaning_are_refused():
    with pytest.raises(ValueError, match="policy is 'fifo'|policy is \"fifo\"; expected"):
        ParticleCache(particles=1, policy="fifo")
    with pytest.raises(sheave.InvalidArgument, match="a cache of 0 particles without room; expected at least 1"):
        ParticleCache(particles=0)
    with pytest.raises(sheave.InvalidArgument, match="direct-mapped slots, of no number"):
        ParticleCache(policy="direct")


def test_a_cache_and_its_models_are_collected():
    cache, models = filled(2, particles=1)
    models[0].cache = cache
    gone = weakref.ref(models[0])
    cache.acquire(0).release()
    del cache, models
    gc.collect()
    assert gone() is None


def regression(seed=0):
    def gradient(parameters, loss, x, y):
        error = x @ parameters["w"] + parameters["b"] - y
        return float(np.mean(error**2)), {"w": 2 * x.T @ error / len(x), "b": 2 * np.mean(error)}

    values = np.random.default_rng(seed)
    parameters = {"w": values.normal(size=3), "b": np.zeros(())}
    forward = lambda parameters, x: x @ parameters["w"] + parameters["b"]  # noqa: E731
    return FunctionModel(parameters, forward, gradient, sheave.optim.Adam(lr=0.05))


def batch():
    values = np.random.default_rng(9)
    x = values.normal(size=(30, 3))
    return x, x @ np.array([1.0, -2.0, 3.0]) + 0.5


@pytest.mark.parametrize("policy", ["lru", "direct"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_results_are_the_same_for_every_size_of_a_cache(size, policy):
    x, y = batch()
    plain = [regression(seed) for seed in range(4)]
    cache = ParticleCache(particles=size, policy=policy)
    for seed in range(4):
        cache.insert(seed, regression(seed))
    for _ in range(10):
        for key in range(4):
            plain[key].step(None, x, y)
            with cache.acquire(key) as model:
                model.step(None, x, y)
    for key in range(4):
        assert np.array_equal(cache.peek(key).flat(), plain[key].flat())


def test_d12_files_are_current_whole_and_go_on_bit_for_bit(tmp_path):
    x, y = batch()
    cache = ParticleCache(particles=1)
    for key in range(3):
        cache.insert(key, regression(key))
    path = tmp_path / "new" / "folder" / "particle.safetensors"
    with cache.acquire(0) as model:
        model.step(None, x, y)
    cache.save(0, path)
    with cache.acquire(1):
        pass
    with cache.acquire(0) as model:
        for _ in range(5):
            model.step(None, x, y)
    # It is resident, was parked and saved before: the file has what it is now.
    cache.save(0, path)
    cache.save(0, path)
    cache.load(2, path)
    assert np.array_equal(cache.peek(2).flat(), cache.peek(0).flat())
    for _ in range(5):
        for key in (0, 2):
            with cache.acquire(key) as model:
                model.step(None, x, y)
    assert np.array_equal(cache.peek(2).flat(), cache.peek(0).flat())
    assert [file.name for file in path.parent.iterdir()] == ["particle.safetensors"]
    cache.insert("other", FunctionModel({"v": np.zeros(3)}, lambda parameters, x: x))
    with pytest.raises(sheave.Mismatch, match="a state of"):
        cache.load("other", path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(sheave.InvalidArgument, match=r"particle.safetensors"):
        cache.load(2, path)
    cache.insert("plain", Plain())
    cache.peek("plain").version = object()
    with pytest.raises(sheave.InvalidArgument, match="state.version is a object; expected an array, a number"):
        cache.save("plain", path)


def test_an_acquire_and_its_release_are_short():
    cache, _ = filled(1)
    cache.acquire(0).release()
    best = min(_timed(cache) for _ in range(20))
    # 1 us on a machine that is quiet.
    assert best < 100e-6


def _timed(cache):
    begun = time.perf_counter()
    for _ in range(100):
        with cache.acquire(0):
            pass
    return (time.perf_counter() - begun) / 100
