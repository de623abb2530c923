"""Models of particles on devices with room for some of them: the same results for every size, and files."""

import numpy as np
import pytest

import sheave
from sheave.particle import FunctionModel, Particles, wait_all

MEMBERS = 5
LIMIT_S = 60


def batches(count=12):
    generator = np.random.default_rng(3)
    return [(generator.normal(size=(8, 3)), generator.normal(size=(8, 1))) for _ in range(count)]


def squares(output, y):
    return ((output - y) ** 2).mean()


def linear(seed, optimizer):
    """A linear model of numpy, whose gradients are exact."""

    def forward(parameters, x):
        return x @ parameters["weight"] + parameters["bias"]

    def gradient(parameters, loss, x, y):
        error = 2 * (forward(parameters, x) - y) / y.size
        return loss(forward(parameters, x), y), {"weight": x.T @ error, "bias": error.sum(0)}

    start = {"weight": np.random.default_rng(seed).normal(size=(3, 1)), "bias": np.zeros(1)}
    return FunctionModel(start, forward, gradient, optimizer)


def of_numpy(seed):
    return linear(seed, sheave.optim.Adam(lr=0.05))


def of_torch(seed):
    """One that draws masks, keeps statistics, and has moments and a schedule: all that a move could lose."""
    torch = pytest.importorskip("torch")
    from sheave.particle import TorchModel

    def make():
        layers = torch.nn.Linear(3, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 1)
        return torch.nn.Sequential(*layers).double()

    return TorchModel(
        make,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.05),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5),
        seed=seed,
    )


def trained_alone(make):
    """What each model is after its training without any particles."""
    found = []
    for member in range(MEMBERS):
        model = make(member)
        for index, (x, y) in enumerate(batches()):
            if (index + member) % MEMBERS:
                model.step(squares, x, y)
            if index % 4 == 3:
                model.scheduler_step()
        found.append(contents(model.state()))
    return found


def contents(state):
    """A state as values that can be compared bit by bit."""
    if isinstance(state, dict):
        return {str(key): contents(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [contents(value) for value in state]
    return np.asarray(state).tobytes() if hasattr(state, "__array__") else state


def train(particles, ids, some=slice(None)):
    """Steps all members in turn; each leaves out batches of its own, so that they are not always in the same order."""
    answers = []
    for index, (x, y) in list(enumerate(batches()))[some]:
        for member, id in enumerate(ids):
            if (index + member) % MEMBERS:
                answers.append(particles.send(id, "step", x, y))
            if index % 4 == 3:
                answers.append(particles.send(id, "schedule"))
    wait_all(answers, timeout=LIMIT_S)


RECEIVE = {
    "step": lambda particle, x, y: particle.step(squares, x, y).wait(),
    "schedule": lambda particle: particle.scheduler_step().wait(),
    "state": lambda particle: particle.update(lambda model: contents(model.state())).wait(),
}


@pytest.mark.parametrize("make", [of_numpy, of_torch])
@pytest.mark.parametrize("policy", ["lru", "direct"])
def test_trap_10_results_are_the_same_for_every_size_of_the_cache(make, policy):
    wanted = trained_alone(make)
    for size in range(1, MEMBERS + 1):
        with Particles(cache_size=size, policy=policy) as particles:
            ids = [particles.create(make(member), receive=RECEIVE) for member in range(MEMBERS)]
            train(particles, ids)
            assert wait_all(particles.send_all(ids, "state"), timeout=LIMIT_S) == wanted
            numbers = particles.cached().statistics()
            assert numbers["known"] == MEMBERS and numbers["resident"] <= size and numbers["pinned"] == 0
            assert (numbers["evictions"] == 0) == (size == MEMBERS)


def test_the_bytes_of_a_device_are_bounded_too():
    nbytes = of_numpy(0).nbytes
    with Particles(cache_bytes=2 * nbytes) as particles:
        ids = [particles.create(of_numpy(member), receive=RECEIVE) for member in range(MEMBERS)]
        train(particles, ids)
        assert wait_all(particles.send_all(ids, "state"), timeout=LIMIT_S) == trained_alone(of_numpy)
        numbers = particles.cached().statistics()
        assert 0 < numbers["resident_bytes"] <= 2 * nbytes and numbers["evictions"] > 0
    with Particles(cache_bytes=nbytes - 1) as small:
        with pytest.raises(sheave.LimitExceeded, match=rf"takes {nbytes} bytes, and it holds {nbytes - 1}"):
            small.create(of_numpy(0))
        assert small.ids() == []


@pytest.mark.parametrize("make", [of_numpy, of_torch])
def test_trap_12_saved_particles_go_on_as_if_they_had_not_stopped(make, tmp_path):
    folder = tmp_path / "made" / "with the first"
    with Particles(cache_size=2, seed=5) as particles:
        ids = [particles.create(make(member), receive=RECEIVE) for member in range(MEMBERS)]
        train(particles, ids, slice(0, 7))
        drawn = [particles._objects[id.number].generator.random() for id in ids]
        saved = particles.save(folder)
        # Again, over the files: they are the same ones, whole.
        before = [path.read_bytes() for path in saved]
        assert [path.read_bytes() for path in particles.save(folder)] == before
    with Particles(cache_size=3) as particles:
        ids = [particles.create(make(100 + member), receive=RECEIVE) for member in range(MEMBERS)]
        assert particles.load(folder) == saved
        with Particles(seed=5) as other:
            other_ids = [other.create() for _ in ids]
            generators = [other._objects[id.number].generator for id in other_ids]
            assert [generator.random() for generator in generators] == drawn
            again = [particles._objects[id.number].generator.random() for id in ids]
            assert again == [generator.random() for generator in generators]
        train(particles, ids, slice(7, None))
        assert [without_version(state) for state in wait_all(particles.send_all(ids, "state"))] == [
            without_version(state) for state in trained_alone(make)
        ]


def without_version(state):
    """A state that was loaded is a version of its own."""
    return {key: value for key, value in state.items() if key != "version"}


def test_files_of_something_else_are_refused(tmp_path):
    with Particles() as particles:
        particles.create(of_numpy(0), receive=RECEIVE)
        with pytest.raises(sheave.NotFound, match=r"particle-0\.safetensors"):
            particles.load(tmp_path)
        particles.save(tmp_path, state=True)
        particles.load(tmp_path)
    with Particles() as particles:
        other = particles.create(FunctionModel({"other": np.ones(2)}, lambda parameters, x: x), receive=RECEIVE)
        before = particles.send(other, "state").wait()
        with pytest.raises(sheave.Mismatch, match=r"a state of \['weight', 'bias'\]; expected one of \['other'\]"):
            particles.load(tmp_path)
        assert particles.send(other, "state").wait() == before
        (tmp_path / "particle-0.safetensors").write_bytes(b"nonsense")
        with pytest.raises(sheave.LimitExceeded, match="is this a safetensors file"):
            particles.load(tmp_path)
    with Particles() as particles:
        particles.create(of_numpy(0), state={"thing": object()})
        with pytest.raises(sheave.InvalidArgument, match="thing"):
            particles.save(tmp_path / "other", state=True)
        assert not list((tmp_path / "other").glob("*"))


def test_trap_5_views_are_snapshots_and_move_nobody():
    with Particles(cache_size=1) as particles:
        ids = [particles.create(of_numpy(member), receive=RECEIVE) for member in range(2)]
        x, y = batches()[0]
        particles.send(ids[0], "step", x, y).wait()
        resident = particles.cached().resident()
        view = particles.get(ids[1]).wait()
        before = view.flat.copy()
        assert particles.get(ids[1]).wait() is view, "there is one of each version"
        assert particles.cached().resident() == resident == [0]
        particles.send(ids[1], "step", x, y).wait()
        np.testing.assert_array_equal(view.flat, before)
        newer = particles.get(ids[1], gradients=True).wait()
        assert newer.version > view.version and newer.gradient.any() and (newer.flat != before).any()
        with pytest.raises(ValueError, match="read-only"):
            view.flat[0] = 1.0


def test_trap_11_models_have_the_seeds_of_their_particles():
    torch = pytest.importorskip("torch")
    from sheave.particle import TorchModel

    def weights(seeds, seed=0):
        torch.manual_seed(1)
        state = torch.get_rng_state()
        with Particles(seed=seed) as particles:
            make = lambda: TorchModel(torch.nn.Linear, 4, 4)  # noqa: E731
            ids = [particles.create(make, seed=seed) for seed in seeds]
            assert torch.equal(torch.get_rng_state(), state), "the generator of the process is not drawn from"
            return [particles.get(id).wait().flat.tobytes() for id in ids]

    distinct = weights([None, None, None])
    assert len(set(distinct)) == 3 and weights([None, None, None]) == distinct
    assert not set(weights([None], seed=1)) & set(distinct)
    first, second, other = weights([0, 0, -1])
    assert first == second != other, "0 is a seed as any other"
