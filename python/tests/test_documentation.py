"""Every public name is documented, and every example does what it says."""

import contextlib
import doctest
import inspect
import re
import threading

import numpy as np
import pytest
import sheave
from conftest import free_root, lacks_torch, modules_of


def modules():
    """The package and its modules; what belongs to a drop-in face is that one's affair."""
    return [module for module in modules_of(sheave) if not re.search(r"\._|^sheave\.compat", module.__name__)]


def documented():
    """Every public thing: its name, and itself."""
    for module in modules():
        yield module.__name__, module
        for name in getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")]):
            thing = getattr(module, name)
            if not callable(thing) or inspect.ismodule(thing) or getattr(thing, "__module__", "") in ("typing", "os"):
                continue
            if not str(getattr(thing, "__module__", "")).startswith("sheave"):
                continue
            yield f"{module.__name__}.{name}", thing
            if inspect.isclass(thing) and not issubclass(thing, BaseException):
                for part, method in vars(thing).items():
                    # Methods and properties; a field with a default is documented with its class.
                    if hasattr(method, "__get__") and (not part.startswith("_") or part == "__await__"):
                        yield f"{module.__name__}.{name}.{part}", method


THINGS = dict(documented())


@contextlib.contextmanager
def exchange_ends():
    """A worker's and a server's end of one exchange."""
    root, meshes, ends = free_root(), {}, {}

    def join(role):
        meshes[role] = sheave.Mesh(role=role, rank=0, workers=1, servers=1, root=root, join_timeout=20)
        kinds = {"worker": sheave.exchange.Worker, "server": sheave.exchange.Server}
        if role in kinds:
            ends[role] = kinds[role](meshes[role], timeout=20)

    threads = [threading.Thread(target=join, args=(role,)) for role in ("scheduler", "server", "worker")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield ends["worker"], ends["server"]
    for end in ends.values():
        end.close()
    for mesh in meshes.values():
        mesh.leave()


@pytest.fixture(scope="module")
def names():
    """What examples may use: a mesh of one, and both members of a mesh of two."""
    root, joined = free_root(), [None, None]

    def join(rank):
        joined[rank] = sheave.Mesh(rank=rank, size=2, root=root, join_timeout=20)

    thread = threading.Thread(target=join, args=(1,))
    thread.start()
    join(0)
    thread.join()
    with sheave.Mesh() as mesh, joined[0] as one, joined[1] as other, exchange_ends() as (worker, server):
        pair = {"one": one.world, "other": other.world, "worker": worker, "server": server}
        yield {"np": np, "sheave": sheave, "mesh": mesh, "world": mesh.world, **pair}


def test_everything_is_documented():
    def lacks(name, thing):
        if not (inspect.getdoc(thing) or "").strip():
            return True
        is_module = inspect.ismodule(thing)
        is_error = inspect.isclass(thing) and issubclass(thing, BaseException)
        return name.count(".") == 1 and not is_module and not is_error and ">>>" not in thing.__doc__

    assert [name for name, thing in THINGS.items() if lacks(name, thing)] == []


@pytest.mark.parametrize("name", [name for name, thing in THINGS.items() if ">>>" in (inspect.getdoc(thing) or "")])
def test_examples(name, names):
    if lacks_torch(THINGS[name]):
        pytest.skip("torch is not installed")
    with sheave.init():
        example = doctest.DocTestParser().get_doctest(inspect.getdoc(THINGS[name]), dict(names), name, None, 0)
        said = []
        options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
        doctest.DocTestRunner(optionflags=options).run(example, out=said.append)
    assert not said, "".join(said)
