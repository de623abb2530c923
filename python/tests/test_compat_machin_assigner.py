"""machin.parallel.assigner over sheave: sizes, devices, and where models go."""

import importlib.util
import math
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from sheave.compat.machin.parallel import assigner, machine
from sheave.compat.machin.parallel.assigner import ModelAssigner, ModelSizeEstimator

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture
def gpus(monkeypatch):
    """Puts GPUs of so many free MiB and such a load into the machine, and so many MiB of memory."""

    def put(*free_and_load, memory=1000):
        listed = [SimpleNamespace(memoryFree=free, load=load) for free, load in free_and_load]
        monkeypatch.setattr(assigner.GPUtil, "getGPUs", lambda: listed)
        monkeypatch.setattr(assigner.GPUtil, "getAvailable", lambda order: list(range(len(listed))))
        available = SimpleNamespace(available=memory << 20)
        monkeypatch.setattr(assigner.psutil, "virtual_memory", lambda: available)

    return put


def assign(models, connections=None, **settings):
    settings = {"model_size_multiplier": 1, "max_mem_ratio": 1, "move_models": False, **settings}
    return [str(device) for device in ModelAssigner(models, connections or {}, **settings).assignment]


def test_sizes_are_estimated():
    assert ModelSizeEstimator(3).estimate_size() == 6
    model = {"a": np.zeros((256, 1024), np.float32), "b": ((1024, 1024), "bfloat16"), "c": ((1 << 20,), "torch.int8")}
    estimator = ModelSizeEstimator(model, size_multiplier=3)
    assert (estimator.get_parameter_sizes(), estimator.get_buffer_sizes()) == (1 + 2 + 1, 0)
    assert estimator.estimate_size() == 12
    with pytest.raises(ValueError, match="Invalid data type"):
        ModelSizeEstimator({"a": ((2,), "float7")}).estimate_size()
    for wrong in ({"a": 1}, {"a": ((-1,), "int8")}, -1, math.nan, "x"):
        with pytest.raises(RuntimeError, match="model.* is .*; expected"):
            ModelSizeEstimator(wrong).estimate_size()


def test_models_share_the_work_or_meet(gpus):
    gpus((100, 0), (100, 0), memory=100)
    devices = ["cuda:0", "cuda:1"]
    assert assign([10, 10, 5, 5], devices=devices) == ["cuda:0", "cuda:1"] * 2
    pair = {(0, 1): 1}
    assert assign([10, 10], pair, devices=devices, complexity_match_weight=10) == devices
    assert assign([10, 10], pair, devices=devices, connection_weight=10) == ["cuda:0"] * 2
    # A processor that is far away makes the devices near each other.
    three = {"devices": [*devices, "cpu"], "cpu_weight": 0.1}
    assert assign([10, 10], pair, **three, connection_weight=1, complexity_match_weight=10) == devices
    assert assign([10, 10], pair, **three, connection_weight=10) == ["cuda:0"] * 2
    # Together they would not fit, whatever the weight.
    assert assign([60, 60], pair, devices=devices, connection_weight=1e6) == devices


def test_a_busy_gpu_gets_less(gpus):
    gpus((100, 0.9), (100, 0.1))
    assert assign([1] * 10).count("cuda:1") == 9
    gpus((100, 1.0), (100, 1.0))
    assert assign([1] * 10).count("cuda:1") == 5
    gpus((100, math.nan), (100, 0.5))
    assert assign([1] * 9).count("cuda:0") == 6


def test_the_processor_is_last(gpus):
    gpus((100, 0), memory=1000)
    assert assign([40, 40], devices=["cuda:0", "cpu"]) == ["cuda:0"] * 2
    assert sorted(assign([60, 60], devices=["cuda:0", "cpu"])) == ["cpu", "cuda:0"]
    assert assign([60, 60], {(0, 1): 1}, devices=["cpu"]) == ["cpu"] * 2
    gpus(memory=1000)
    assert assign([60, 60], {(0, 1): 1}) == ["cpu"] * 2
    assert assign([0, 0]) == ["cpu"] * 2
    assert assign([]) == []


def test_gpus_that_are_not_free_are_left_out(gpus, caplog):
    gpus((100, 0))
    assert assign([1], devices=["cuda:1", "cuda:0", "cuda"]) == ["cuda:0"]
    assert "cuda:1 is not available" in caplog.text
    assert assign([1], devices=["cuda:7"]) == ["cpu"]


def test_memory_is_respected(gpus):
    gpus((100, 0), (100, 0))
    with pytest.raises(RuntimeError, match=r"Estimated model will use 220.00 MB, but only have 200.00 MB allowed"):
        assign([110, 110])
    with pytest.raises(RuntimeError, match="no placement fits"):
        assign([60, 60, 60])
    with pytest.raises(RuntimeError, match="model 0 takes .* expected at most"):
        assign([110])
    with pytest.raises(RuntimeError, match="only have 100.00 MB"):
        assign([55, 55], max_mem_ratio=0.5)
    with pytest.raises(RuntimeError, match="will use 240.00 MB"):
        assign([60, 60], model_size_multiplier=2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"connection_weight": -1}, "connection_weight is -1; expected a finite number from 0 on"),
        ({"entropy_weight": math.nan}, "entropy_weight is nan"),
        ({"iterations": "x"}, "iterations is 'x'"),
        ({"cpu_gpu_distance": math.inf}, "cpu_gpu_distance is inf"),
        ({"max_mem_ratio": 0}, "max_mem_ratio is 0; expected a share above 0"),
        ({"devices": ["tpu:0"]}, "devices has 'tpu:0'; expected cpu, cuda"),
        ({"devices": ["cuda:x"]}, "devices has 'cuda:x'"),
        ({"connections": {(0, 2): 1}}, r"model_connection has the key \(0, 2\); expected numbers of models below 2"),
        ({"connections": {(0, 1): -2}}, r"model_connection\[\(0, 1\)\] is -2"),
    ],
)
def test_settings_without_a_meaning_are_refused(gpus, settings, said):
    gpus()
    with pytest.raises(RuntimeError, match=said) as raised:
        assign([1, 1], **settings)
    assert isinstance(raised.value, ValueError)


def test_the_driver_is_read():
    text = "0, 35, 24576, 1024, 23552, NVIDIA A, GPU-1\n1, [N/A], 16384, 16000, 384, B, GPU-2\nno devices\n"
    first, second = machine.read_gpus(text)
    assert (first.id, first.load, first.memoryFree, first.name) == (0, 0.35, 23552, "NVIDIA A")
    assert math.isnan(second.load)
    gpus = machine.Gpus()
    gpus.getGPUs = lambda: [first, second, first._replace(id=2, load=0.1), first._replace(id=3, load=0.6)]
    assert gpus.getAvailable(order="load") == [2, 0]
    assert gpus.getAvailable(order="last", maxLoad=1, limit=2) == [3, 2]
    with pytest.raises(ValueError, match="order is 'x'"):
        gpus.getAvailable(order="x")
    assert all(isinstance(number, int) for number in machine.Gpus().getAvailable())
    memory = machine.Memory().virtual_memory()
    assert 0 < memory.available <= memory.total


def test_programs_of_machin_find_it(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "from machin.parallel.assigner import ModelAssigner\n"
        "import sys\n"
        "assigner = ModelAssigner([1, 2], {(0, 1): 1}, devices=['cpu'])\n"
        "print(assigner.assignment, 'torch' in sys.modules, assigner.placement)\n"
    )
    command = [sys.executable, "-m", "sheave.compat", "machin", str(program)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("['cpu', 'cpu'] False device")


@needs_torch
def test_modules_are_measured_and_moved(gpus):
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(1024, 256, bias=False), torch.nn.BatchNorm1d(64, affine=False))
    module.register_buffer("table", torch.zeros(1 << 19, dtype=torch.bfloat16))
    estimator = ModelSizeEstimator(module)
    assert estimator.get_parameter_sizes() == 1
    assert estimator.get_buffer_sizes() == 1 + (2 * 64 * 4 + 8) / 2**20
    gpus(memory=100)
    moved = ModelAssigner([module, torch.nn.Linear(2, 2)], {})
    assert moved.assignment == [torch.device("cpu")] * 2
    gpus((100, 0), (100, 0))
    stay = ModelAssigner([module, module], {}, devices=[torch.device("cuda:1"), "cuda:0"], move_models=False)
    assert stay.assignment == [torch.device("cuda:1"), torch.device("cuda:0")]
    assert next(module.parameters()).device == torch.device("cpu")
    to = []
    module.to = to.append
    ModelAssigner([module, 3], {}, devices=["cuda:0"])
    assert to == [torch.device("cuda:0")]


@needs_torch
def test_a_step_descends_on_the_objective(gpus):
    import torch

    torch.manual_seed(0)
    gpus((100, 0.0), (100, 0.5), memory=1000)
    sizes, pairs = [3.0, 5.0, 2.0], {(0, 1): 2.0, (2, 1): 1.0}
    devices, distance = ["cuda:0", "cuda:1", "cpu"], torch.tensor([[0.0, 1, 10], [1, 0, 10], [10, 10, 0]])
    connection = torch.zeros(3, 3)
    for (one, other), amount in pairs.items():
        connection[one, other] = amount
    size, free = torch.tensor([sizes]), torch.tensor([[100.0, 100, 1000]])
    tensors = (size, free, size, torch.tensor([[1.0, 0.5, 0.2]]), connection, distance)
    # The placement that was found costs what machin's loss says of it, but for the mean over pairs of models.
    found = ModelAssigner(
        sizes, pairs, devices, 1, 1, cpu_weight=0.2, connection_weight=3, move_models=False
    ).placement
    certain = torch.full((3, 3), -100.0)
    certain[range(3), found.device_of] = 100.0
    connected, excess, unfair, entropy = assigner._terms(certain, *tensors)
    assert float(3 * 9 * connected + unfair) == pytest.approx(found.objective, rel=1e-5)
    assert (float(excess), float(entropy)) == (0, 0)

    placement = torch.randn(3, 3, requires_grad=True)
    optimizer = torch.optim.Adam([placement], lr=0.05)

    def loss():
        terms = assigner._terms(placement.detach(), *tensors)
        return float(sum(weight * term for weight, term in zip((30, 1e-2, 1, 1), terms, strict=True)))

    before = loss()
    for _ in range(30):
        assert ModelAssigner.optimize_placement(optimizer, placement, *tensors, 30, 1e-2, 1, 1) is None
    assert loss() < before - 0.1
    # Where machin divides zero by zero.
    nothing = [torch.zeros_like(tensor) for tensor in tensors]
    ModelAssigner.optimize_placement(optimizer, placement, *nothing, 30, 1e-2, 1, 1)
    assert bool(torch.isfinite(placement).all())
