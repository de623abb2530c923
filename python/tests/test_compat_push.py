"""PusH over sheave: particles, futures, messages, queues, caches. Tests are named after what PusH lacks."""

import gc
import os
import queue
import subprocess
import sys
import threading
import time
from collections import namedtuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import sheave  # noqa: E402
from sheave.compat import push  # noqa: E402
from sheave.compat.push.lib import messages as m  # noqa: E402
from sheave.compat.push.lib.context_switch import ParticleCache, ParticleCacheLRU  # noqa: E402
from sheave.compat.push.lib.node_event_loop import NodeEventLoop  # noqa: E402
from sheave.compat.push.lib.utils import detach_to_cpu, detach_to_device, to_device  # noqa: E402
from sheave.compat.push.lib.waitable import Waitable  # noqa: E402
from sheave.compat.push.particle import Particle, ParticleView  # noqa: E402
from sheave.compat.push.pfuture import PFuture  # noqa: E402
from sheave.compat.push.pqueue import PQueue, SinglePQueue  # noqa: E402
from sheave.compat.push.push import PusH  # noqa: E402
from sheave.particle import DeadlockError  # noqa: E402

pytestmark = pytest.mark.timeout(120)
LIMIT_S = 60
LOSS = torch.nn.MSELoss()


@pytest.fixture
def lax():
    push.strict = False
    yield
    push.strict = True


def adam(params):
    return torch.optim.Adam(params, lr=0.1)


def halving(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)


def data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 3, generator=generator), torch.randn(8, 1, generator=generator)


def line():
    return torch.nn.Linear(3, 1)


def result(distribution, pid, message, *args):
    return distribution.p_launch(pid, message, *args).wait()


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def train(particle, steps):
    x, y = data()
    return [float(particle.step(LOSS, x, y).wait()) for _ in range(steps)]


def test_1_it_runs_on_a_cpu_and_checks_devices():
    with PusH(line, devices=2) as distribution:
        pid = distribution.p_create(adam, device=1, receive={"TRAIN": train})
        losses = result(distribution, pid, "TRAIN", 20)
        assert losses[-1] < losses[0]
        with pytest.raises(sheave.InvalidArgument, match=r"device is 2; expected one of \[0, 1\]"):
            distribution.p_create(adam, device=2)
        assert distribution.particle_ids() == [pid] and distribution.num_particles() == 1
    with pytest.raises(sheave.InvalidArgument, match="devices is"):
        PusH(line, devices=[])


def ask(particle, other, depth):
    particle.state["depths"] = [*particle.state.get("depths", ()), depth]
    return depth if depth == 0 else particle.send(other, "ASK", particle.pid, depth - 1).wait()


def test_2_a_circle_goes_on_as_in_push(monkeypatch):
    with PusH(line) as distribution:
        pids = [distribution.p_create(receive={"ASK": ask}) for _ in range(2)]
        assert result(distribution, pids[0], "ASK", pids[1], 9) == 0
        assert result(distribution, pids[0], "ASK", pids[0], 3) == 0, "a particle may send to itself"
        for pid, depths in zip(pids, ([9, 7, 5, 3, 1, 3, 2, 1, 0], [8, 6, 4, 2, 0]), strict=True):
            assert distribution.nel._particle_to_state[pid]["depths"] == depths
    for reentrant in (False, None):
        monkeypatch.setattr(push, "strict", reentrant is False)
        with PusH(line, reentrant=reentrant) as distribution:
            pids = [distribution.p_create(receive={"ASK": ask}) for _ in range(2)]
            with pytest.raises(DeadlockError):
                result(distribution, pids[0], "ASK", pids[1], 4)
    with PusH(line, reentrant=True) as distribution:
        pids = [distribution.p_create(receive={"ASK": ask}) for _ in range(2)]
        assert result(distribution, pids[0], "ASK", pids[1], 4) == 0


def test_2_a_ring_of_a_thousand_goes_round():
    def on(particle, left):
        other = (particle.pid + 1) % len(particle.particle_ids())
        return particle.pid if left == 0 else particle.send(other, "ON", left - 1).wait()

    with PusH(line) as distribution:
        for _ in range(1000):
            distribution.p_create(receive={"ON": on})
        assert result(distribution, 0, "ON", 1001) == 1


def test_2_a_particle_that_runs_is_not_entered_again():
    seen = []

    def lead(particle, other):
        answer = particle.send(other, "BACK", particle.pid)
        for _ in range(100):
            seen.append("leads")
            # Whoever would enter gets the interpreter.
            time.sleep(0.0001)
        return answer.wait()

    def back(particle, leader):
        particle.send(leader, "NOTE", "first")
        return particle.send(leader, "NOTE", "second").wait()

    def note(particle, word):
        seen.append(word)
        return word

    with PusH(line) as distribution:
        leader = distribution.p_create(receive={"LEAD": lead, "NOTE": note})
        other = distribution.p_create(receive={"BACK": back})
        assert result(distribution, leader, "LEAD", other) == "second"
    assert seen == ["leads"] * 100 + ["first", "second"]


def test_2_a_handler_that_waits_for_itself_is_told():
    def lead(particle):
        particle.state["own"] = particle.send(particle.pid, "WAIT")
        return particle.state["own"].wait()

    with PusH(line) as distribution:
        pid = distribution.p_create(receive={"LEAD": lead, "WAIT": lambda particle: particle.state["own"].wait()})
        with pytest.raises(DeadlockError, match="that it handles"):
            result(distribution, pid, "LEAD")


def test_2_particles_get_each_other_and_errors_pass_through_a_circle():
    def lead(particle, other):
        return particle.send(other, "GET", particle.pid).wait()

    def get(particle, leader):
        particle.send(leader, "NOTE")
        views = particle.wait([particle.get(leader), particle.get(particle.pid)])
        return [sum(float(each.detach().sum()) for each in view.view().parameters()) for view in views]

    def note(particle):
        with torch.no_grad():
            for each in particle.module.parameters():
                each.fill_(1.0)

    def fail(particle, other):
        return particle.send(other, "ON", particle.pid).wait()

    def on(particle, leader):
        return particle.send(leader, "RAISE").wait()

    def broken(particle):
        raise ValueError("no circle")

    with PusH(line) as distribution:
        receive = {"LEAD": lead, "GET": get, "NOTE": note, "FAIL": fail, "ON": on, "RAISE": broken}
        pids = [distribution.p_create(receive=receive) for _ in range(2)]
        size = sum(each.numel() for each in distribution.p_parameters(pids[0]))
        sums = result(distribution, pids[0], "LEAD", pids[1])
        assert sums[0] == size, "what was sent before is seen"
        with pytest.raises(ValueError, match="no circle"):
            result(distribution, pids[0], "FAIL", pids[1])
        assert result(distribution, pids[0], "LEAD", pids[1])[0] == size, "the loop goes on"


def test_4_a_send_returns_at_once_and_keeps_its_order():
    gate, seen = threading.Event(), []

    def see(particle, number):
        assert gate.wait(LIMIT_S)
        seen.append(number)

    def lead(particle, other):
        futures = [particle.send(other, "SEE", number) for number in range(50)]
        assert not futures[0].done()
        gate.set()
        return particle.wait(futures)

    with PusH(line) as distribution:
        leader, other = distribution.p_create(receive={"LEAD": lead}), distribution.p_create(receive={"SEE": see})
        assert result(distribution, leader, "LEAD", other) == [None] * 50 and seen == list(range(50))


def test_4_a_launch_is_over_when_all_that_it_has_begun_is():
    def step(particle, x, y):
        particle.step(LOSS, x, y)

    def lead(particle):
        for other in particle.other_particles():
            for _ in range(100):
                particle.send(other, "STEP", *data())

    with PusH(line, devices=2) as distribution:
        leader = distribution.p_create(adam, receive={"LEAD": lead})
        others = [distribution.p_create(adam, train_key=5, device=1, receive={"STEP": step}) for _ in range(2)]
        distribution.p_wait([distribution.p_launch(leader, "LEAD")])
        with PusH(line) as alone:
            pid = alone.p_create(adam, train_key=5, receive={"TRAIN": train})
            result(alone, pid, "TRAIN", 100)
            for other in others:
                assert same(distribution.p_parameters(other), alone.p_parameters(pid))


def test_4_what_nobody_waits_for_fails_the_launch():
    def fail(particle):
        raise KeyError("unseen")

    def lead(particle, other, is_seen):
        future = particle.send(other, "FAIL")
        assert not is_seen or isinstance(future.exception(), KeyError)
        return "led"

    with PusH(line) as distribution:
        leader, other = distribution.p_create(receive={"LEAD": lead}), distribution.p_create(receive={"FAIL": fail})
        assert result(distribution, leader, "LEAD", other, True) == "led"
        with pytest.raises(KeyError, match="unseen"):
            result(distribution, leader, "LEAD", other, False)


def test_5_a_view_is_a_snapshot_and_leaves_the_caller_alone():
    def lead(particle, other):
        own = [each.detach().clone() for each in particle.module.parameters()]
        view = particle.get(other).wait()
        assert isinstance(view, ParticleView) and view.pid == other
        before = [each.detach().clone() for each in view.view().parameters()]
        gradients = [each.grad.clone() for each in view.view().parameters()]
        particle.send(other, "TRAIN", 1).wait()
        later = particle.get(other).wait().view()
        assert same(view.view().parameters(), before), "a view does not follow its source"
        assert not same(later.parameters(), before)
        assert same(particle.module.parameters(), own)
        return view.view() is view.view(), len(gradients)

    with PusH(line, cache_size=1) as distribution:
        leader = distribution.p_create(receive={"LEAD": lead})
        other = distribution.p_create(adam, receive={"TRAIN": train})
        result(distribution, other, "TRAIN", 1)
        assert result(distribution, leader, "LEAD", other) == (True, 2)


def test_5_a_get_comes_after_what_was_sent_before():
    def lead(particle, other):
        particle.send(other, "TRAIN", 3)
        return [each.detach() for each in particle.get(other).wait().view().parameters()]

    with PusH(line) as distribution:
        leader = distribution.p_create(receive={"LEAD": lead})
        other = distribution.p_create(adam, receive={"TRAIN": train})
        seen = result(distribution, leader, "LEAD", other)
        assert same(seen, distribution.p_parameters(other))


def test_6_futures_are_waited_for_again_and_again():
    gate = threading.Event()
    with PusH(line) as distribution:
        pid = distribution.p_create(receive={"HOLD": lambda particle: gate.wait(LIMIT_S)})
        future = distribution.p_launch(pid, "HOLD")
        with pytest.raises(sheave.DeadlineExceeded):
            future.wait(timeout=0.01)
        assert not future.done()
        gate.set()
        assert future.wait() is True and future.result() is True and future.wait(1.0) is True
        assert future.done() and future.exception() is None
        assert distribution.p_wait([future]) == {future._fid: True} == distribution.p_wait([future])
    assert future != PFuture(Waitable(), -1, pid, future._fid) and hash(future) == future._fid
    with pytest.raises(NotImplementedError):
        PFuture(Waitable(), 0, 0, 0).wait()


def test_7_errors_come_to_whoever_waits_and_the_loop_goes_on():
    def bad_loss(output, label):
        raise RuntimeError("no loss")

    def handle(particle, where):
        if where == "handler":
            raise ValueError("no handler")
        x, y = data()
        loss, x = bad_loss if where == "loss" else LOSS, x[:, :2] if where == "module" else x
        return float(particle.step(loss, x, y).wait())

    with PusH(line) as distribution:
        pid = distribution.p_create(adam, receive={"HANDLE": handle})
        for where, kind, text in [
            ("handler", ValueError, "no handler"),
            ("loss", RuntimeError, "no loss"),
            ("module", RuntimeError, "shapes"),
        ]:
            with pytest.raises(kind, match=text) as raised:
                distribution.p_wait([distribution.p_launch(pid, "HANDLE", where)])
            assert any(entry.name == "handle" for entry in raised.traceback)
            assert result(distribution, pid, "HANDLE", None) > 0
        with pytest.raises(sheave.NotFound, match=r"no message 'NONE'; it handles \['HANDLE'\]"):
            distribution.p_wait([distribution.p_launch(pid, "NONE")])
        with pytest.raises(ValueError, match="particle 7 does not exist"):
            distribution.p_launch(7, "HANDLE")


def test_8_queues_keep_nothing():
    with PusH(line) as distribution:
        pid = distribution.p_create(receive={"GO": lambda particle: None})
        for _ in range(10):
            result(distribution, pid, "GO")
            distribution.p_parameters(pid)
        assert not distribution._in_queues[0]._queue and not distribution._out_queues[0]._queue


def test_9_no_default_is_shared():
    def put(particle):
        particle.state[particle.pid] = True
        return list(particle.state)

    with PusH(line) as distribution:
        pids = [distribution.p_create(receive={"PUT": put}) for _ in range(2)]
        assert [result(distribution, pid, "PUT") for pid in pids] == [[0], [1]]
        state = {"own": 1}
        assert result(distribution, distribution.p_create(receive={"PUT": put}, state=state), "PUT") == ["own", 2]
        assert state == {"own": 1, 2: True}, "a state is the object that was given"


def normed():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))


@pytest.mark.parametrize("kind", [ParticleCache, ParticleCacheLRU])
def test_10_particles_are_the_same_for_every_size_of_the_cache(kind):
    outcomes = []
    for size in (1, 2, 3):
        cache = kind(normed, (), size, 0, threading.Lock(), seed=3)
        for pid in range(3):
            cache.create(pid, adam, halving)
        for turn in range(4):
            for pid in range(3):
                if kind is ParticleCache:
                    assert cache.try_read(pid) is cache._models[pid].module
                else:
                    assert cache.read(pid) is cache._models[pid].module
                cache._models[pid].step(LOSS, *data(pid + turn))
                assert len(cache.resident()) <= size
        outcomes.append([value for pid in range(3) for value in cache._models[pid].module.state_dict().values()])
    assert same(outcomes[0], outcomes[1]) and same(outcomes[1], outcomes[2])


def test_10_pins_of_a_direct_mapped_cache():
    cache = ParticleCache(line, (), 2, 0)
    for pid in (10, 11, 12):
        cache.create(pid, None)
    assert cache.particles() == [10, 11, 12] and cache.contains(10) and not cache.contains(3)
    assert cache.resident() == [11, 12], "10 and 12 share a place"
    assert cache.try_pin(12) is True and cache.try_pin(10) is False
    assert cache.try_read(10) is None and cache.try_read(11) is not None
    thread = threading.Thread(target=lambda: None)
    thread.start()
    cache.release(12, thread)
    assert cache.try_read(10, pin=True) is not None and cache.try_read(12) is None
    cache.unpin(10)
    assert cache.try_read(12) is not None
    for call in (cache.try_read, cache.try_pin, cache.unpin, cache.save_to_disk):
        with pytest.raises(KeyError):
            call(3)


def test_11_seeds_are_the_particles_own():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with PusH(line) as distribution:
        keys = [-1, None, 0, 7, 7]
        pids = [distribution.p_create(train_key=key) for key in keys]
        weights = [distribution.p_parameters(pid) for pid in pids]
        assert torch.equal(torch.get_rng_state(), before), "the generator of torch is left alone"
    assert same(weights[3], weights[4])
    assert not any(same(weights[one], weights[other]) for one in range(4) for other in range(one))
    with PusH(line) as again:
        assert same(again.p_parameters(again.p_create()), weights[0]), "the seed of torch decides"


def test_12_particles_are_saved_and_go_on(tmp_path):
    def continued(distribution, pid):
        return result(distribution, pid, "TRAIN", 3), distribution.p_parameters(pid)

    path = str(tmp_path / "new" / "directory")
    with PusH(normed, cache_size=1) as distribution:
        pids = [distribution.p_create(adam, halving, receive={"TRAIN": train}, state={"n": pid}) for pid in range(2)]
        for pid in pids:
            result(distribution, pid, "TRAIN", 2)
        distribution.save(path=path)
        saved = torch.load(f"{path}/device0_particle1.pth", weights_only=True)
        own = distribution.p_parameters(1)
        assert same([value for name, value in saved.items() if "running" not in name and "num" not in name], own)
        expected = [continued(distribution, pid) for pid in pids]
    assert sorted(os.listdir(path)) == sorted(
        f"device0_particle{pid}{end}" for pid in pids for end in (".pth", ".training.pth")
    )
    with PusH(normed) as distribution:
        pids = [distribution.p_create(adam, halving, receive={"TRAIN": train}) for _ in range(2)]
        distribution.load(path=path)
        for pid, (losses, parameters) in zip(pids, expected, strict=True):
            found = continued(distribution, pid)
            assert found[0] == losses and same(found[1], parameters)
        distribution.p_create(adam)
        with pytest.raises(sheave.NotFound, match="device0_particle2.pth"):
            distribution.load(path=path)


def test_13_schedulers_gradients_and_handlers_of_run_time():
    def handle(particle):
        x, y = data()
        particle.wait([particle.step(LOSS, x, y)])
        assert particle.module.weight.grad is not None
        assert particle.wait([particle.zero_grad(), particle.scheduler_step()]) == [None, None]
        assert particle.module.weight.grad is None
        own = {"calls": 0}

        def count(particle):
            particle.state["calls"] += 1
            return particle.state["calls"]

        particle.register_receive("COUNT", count, own)
        return particle.update(lambda model: model.optimizer.param_groups[0]["lr"]).wait()

    with PusH(line) as distribution:
        pid = distribution.p_create(adam, halving, receive={"HANDLE": handle})
        assert result(distribution, pid, "HANDLE") == 0.05
        assert [result(distribution, pid, "COUNT") for _ in range(2)] == [1, 2]
        distribution.p_register(pid, "ADD", lambda particle, one: one + 1)
        assert result(distribution, pid, "ADD", 1) == 2
        other = distribution.p_create(adam, receive={"GO": lambda particle: particle.scheduler_step().wait()})
        with pytest.raises(sheave.InvalidArgument, match="without a scheduler"):
            result(distribution, other, "GO")


def test_10_what_handlers_write_is_seen_wherever_the_module_lies():
    def replace(particle, number):
        for each in particle.module.parameters():
            each.data = torch.full_like(each, number)
        return particle.module

    def numbers(model):
        return set(model.flat().tolist())

    with PusH(line, cache_size=1) as distribution:
        first = distribution.p_create(adam, receive={"REPLACE": replace, "STEP": train})
        other = distribution.p_create(adam, receive={"STEP": train})
        module = result(distribution, first, "REPLACE", 2.0)
        assert distribution.nel.update(first, numbers).wait() == {2.0}
        result(distribution, other, "STEP", 1)
        # It has left the device, and is there all the same.
        assert {float(each.detach().max()) for each in module.parameters()} == {2.0}
        with torch.no_grad():
            for each in module.parameters():
                each.fill_(3.0)
        assert distribution.nel.update(first, numbers).wait() == {3.0}
        distribution.nel.update(first, lambda model: model.add_flat(np.ones(model.dimension))).wait()
        assert all(set(each.flatten().tolist()) == {4.0} for each in distribution.p_parameters(first))
        result(distribution, first, "STEP", 1)
        assert distribution.nel.update(first, numbers).wait() != {4.0}
        next(module.parameters()).data = torch.ones(9)
        with pytest.raises(sheave.InvalidArgument, match=r"shape \(9,\); expected"):
            distribution.nel.update(first, numbers).wait()


def test_15_hooks_run_and_losses_have_no_graph():
    def handle(particle):
        x, y = data()
        calls = []
        particle.module.register_forward_hook(lambda *_: calls.append(1))
        loss, output = particle.step(LOSS, x, y).wait(), particle.forward(x).wait()
        plain = particle.forward(x, gradient=False).wait()
        return len(calls), loss.requires_grad, output.requires_grad, plain.requires_grad

    with PusH(line) as distribution:
        pid = distribution.p_create(receive={"HANDLE": handle})
        assert result(distribution, pid, "HANDLE") == (3, False, True, False)


def test_17_results_are_a_dict_or_a_list(lax):
    with PusH(line) as distribution:
        pid = distribution.p_create(receive={"NUMBER": lambda particle, number: number})
        futures = [distribution.p_launch(pid, "NUMBER", number) for number in range(3)]
        assert distribution.p_wait(reversed(futures)) == [2, 1, 0]
        push.strict = True
        assert distribution.p_wait(futures) == {future._fid: number for number, future in enumerate(futures)}


def test_20_close_is_idempotent():
    distribution = PusH(line)
    distribution.p_create()
    for _ in range(2):
        distribution.close()
        distribution._cleanup()


def test_queues_within_a_thread(lax):
    one = SinglePQueue()
    for number in range(2):
        one.put(number)
    assert one.get() == 0 and one.get() == 1
    with pytest.raises(queue.Empty):
        one.get()
    push.strict = True
    for number in range(2):
        one.put(number)
    assert one.get() == 1 and one.get() == 0
    with pytest.raises(IndexError):
        one.get()
    for call in (lambda: PQueue().put(1), PQueue().get):
        with pytest.raises(NotImplementedError):
            call()


def test_values_on_devices_and_out_of_graphs():
    pair = namedtuple("Pair", "a b")
    leaf = torch.ones(2, requires_grad=True)
    nested = {"x": [leaf * 2, (leaf * 3, 5)], "y": pair(leaf * 4, "text")}
    for move in (detach_to_cpu, lambda value: detach_to_device(0, value)):
        moved = move(nested)
        assert not moved["x"][0].requires_grad and not moved["x"][1][0].requires_grad
        assert isinstance(moved["y"], pair) and not moved["y"].a.requires_grad and moved["y"].b == "text"
    assert to_device(0, nested)["x"][0].requires_grad
    for dtype in (torch.float64, torch.float16, torch.complex64, torch.float32):
        value = detach_to_device("cpu", torch.ones(1, dtype=dtype), requires_grad=True)
        assert value.requires_grad and value.is_leaf
    assert not detach_to_device(0, torch.ones(1, dtype=torch.int64), requires_grad=True).requires_grad


def test_a_particle_checks_its_fields():
    module = line()
    particle = Particle(None, 0, 1, module, {})
    assert (particle.device, particle.pid, particle.module, particle.state) == (0, 1, module, {})
    for wrong in ((None, "cpu", 1, module, {}), (None, 0, None, module, {}), (None, 0, 1, None, {})):
        with pytest.raises(AssertionError):
            Particle(*wrong)


def test_all_messages_drive_a_node_event_loop(tmp_path):
    ins, outs = queue.Queue(), queue.Queue()
    loop = NodeEventLoop(line, (), ins, outs, 0, [0, 1], 2, 2, seed=1)
    thread = threading.Thread(target=loop._start_event_loop)
    thread.start()

    def asked(message):
        ins.put(message)
        return outs.get(timeout=LIMIT_S)

    def answered(message, kind):
        answer = asked(message)
        assert type(answer) is kind and answer.error is None, repr(answer)
        return answer

    for pid in range(2):
        receive = {"TRAIN": train, "FAIL": lambda particle: 1 / 0}
        init = m.ReceiveParticleInitPDMSG(pid, pid, adam, None, False, None, receive, {})
        answered(init, m.ReceiveParticleInitAckPDMSG)
    news = m.NELBroadcastParticlesMSG({0: ins, 1: outs}, {0: outs}, {0: 0, 1: 1, 9: 0}, {0: 0, 1: 0, 9: 1})
    answered(news, m.NELBroadcastParticlesAckMSG)
    assert loop.particles() == [0, 1, 9]
    answered(m.ReceiveRegisterPDMSG(0, "NAME", lambda particle: particle.pid, {}), m.ReceiveRegisterAckPDMSG)
    answer = answered(m.ReceiveFuncPDMSG((0, 5), 0, "NAME", ()), m.ReceiveFuncAckPDMSG)
    assert (answer.pid_fid, answer.result) == ((0, 5), 0)
    answer = answered(m.ReceiveParametersPDMSG((1, 6), 1), m.ReceiveParametersAckPDMSG)
    assert answer.pid_fid == (1, 6) and [tuple(each.shape) for each in answer.params] == [(1, 3), (1,)]
    answer = answered(m.NELSaveModel((0, 7), str(tmp_path)), m.NELSaveModelAckPDMSG)
    assert answer.pid_fid == (0, 7) and len(list(tmp_path.iterdir())) == 4
    # Particle 9 is of rank 1, whose queue is the way out here.
    answer = answered(m.ReceiveFuncMSG((9, 8), 1, "TRAIN", (2,)), m.ReceiveFuncAckMSG)
    assert answer.fid == 8 and len(answer.result) == 2
    answer = answered(m.ReceiveGetMSG((9, 3), 9, 1), m.ReceiveGetAckMSG)
    assert (answer.fid, answer.pid, len(answer.params), len(answer.params_grad)) == (3, 1, 2, 2)
    future = loop.send(None, 0, 9, "THERE", torch.ones(1))
    sent = outs.get(timeout=LIMIT_S)
    assert type(sent) is m.ReceiveFuncMSG and (sent.pid, sent.msg_name) == (9, "THERE")
    ins.put(m.ReceiveFuncAckMSG(sent.pid_fid[1], "here"))
    assert future.wait(LIMIT_S) == "here"
    future = loop.get(0, 9)
    sent = outs.get(timeout=LIMIT_S)
    assert type(sent) is m.ReceiveGetMSG and (sent.pid_caller, sent.pid) == (0, 9)
    ins.put(m.ReceiveGetAckMSG(sent.pid_fid[1], 9, answer.params, answer.params_grad, []))
    assert same(future.wait(LIMIT_S).view().parameters(), answer.params)
    future = loop.send(None, 0, 9, "THERE")
    assert type(outs.get(timeout=LIMIT_S)) is m.ReceiveFuncMSG
    ins.put(m.NELRankLostMSG(1, sheave.PeerLost("rank 1 is gone")))
    assert isinstance(future.exception(LIMIT_S), sheave.PeerLost)
    # Errors are answers, and the loop goes on.
    assert isinstance(asked(m.ReceiveFuncPDMSG((0, 1), 0, "FAIL", ())).error, ZeroDivisionError)
    assert isinstance(asked(m.ReceiveFuncPDMSG((0, 1), 0, "NONE", ())).error, sheave.NotFound)
    assert isinstance(asked(m.ReceiveFuncPDMSG((0, 1), 5, "FAIL", ())).error, sheave.NotFound)
    assert isinstance(asked(m.ReceiveFuncMSG((9, 1), 0, "NONE", ())).error, sheave.NotFound)
    assert isinstance(asked(m.ReceiveGetMSG((9, 1), 9, 5)).error, sheave.NotFound)
    assert isinstance(asked(m.ReceiveParametersPDMSG((0, 1), 5)).error, sheave.NotFound)
    assert isinstance(asked(m.ReceiveRegisterPDMSG(5, "A", train)).error, sheave.NotFound)
    assert isinstance(asked(m.ReceiveParticleInitPDMSG(7, 5, adam)).error, sheave.InvalidArgument)
    assert isinstance(asked(m.ReceiveParticleInitPDMSG(0, 0, adam)).error, sheave.InvalidArgument)
    assert isinstance(asked(m.NELSaveModel((0, 1), str(tmp_path / "none"), is_load=True)).error, sheave.NotFound)
    for wrong in ("text", m.MSG(), m.NodeEvtLoopInitMSG(), m.ReceiveFuncAckPDMSG((0, 0))):
        assert isinstance(asked(wrong), TypeError)
    answered(m.ReceiveFuncPDMSG((0, 5), 0, "NAME", ()), m.ReceiveFuncAckPDMSG)
    ins.put(m.NodeEvtLoopCleanupMSG())
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_a_loop_on_queues_of_one_thread_has_handled_what_was_put():
    ins, outs = SinglePQueue(), SinglePQueue()
    loop = NodeEventLoop(line, (), ins, outs, 0, [0], 1, 1)
    ins._nel = outs._nel = loop
    ins.put(m.ReceiveParticleInitPDMSG(0, 0, None, receive={"GO": lambda particle, x: x}))
    assert type(outs.get()) is m.ReceiveParticleInitAckPDMSG
    ins.put(m.ReceiveFuncPDMSG((0, 1), 0, "GO", (4,)))
    assert outs.get().result == 4
    with pytest.raises(IndexError):
        outs.get()
    loop.close()


def test_messages_on_their_way_are_no_garbage():
    gate, seen = threading.Event(), []
    with sheave.particle.Particles() as particles:
        receive = {"HOLD": lambda particle: gate.wait(LIMIT_S), "RUN": lambda particle, function: function()}
        id = particles.create(receive=receive)
        held = particles.send(id, "HOLD")

        def forget():
            answers = []

            def function():
                seen.append(len(answers))

            # In a circle that nobody else holds: the function, its answers, and their message's arguments.
            answers.append(particles.send(id, "RUN", function))

        for _ in range(10):
            forget()
        gc.collect()
        gate.set()
        held.wait(LIMIT_S)
        particles.send(id, "RUN", lambda: None).wait(LIMIT_S)
        assert seen == [1] * 10


def test_programs_import_push(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import push, push.push as ppush, push.bayes.ensemble\n"
        "from push.particle import Particle\nfrom push.lib.messages import *\n"
        "import sheave.compat.push.push\nassert ppush is sheave.compat.push.push and push.__version__ == '0.2.0'\n"
    )
    command = [sys.executable, "-m", "sheave.compat", "push", str(script)]
    assert subprocess.run(command, timeout=LIMIT_S, check=False).returncode == 0
