"""sheave.placement: what it takes, what it refuses, and what it shows."""

import itertools
import xml.dom.minidom

import numpy as np
import pytest
import sheave
from sheave.placement import Placement, assign


def cost(device_of, sizes, connections, distances, connection_weight=2.0, complexity_weight=1.0):
    """The documented objective, in numpy."""
    devices = len(distances)
    flows, apart = np.array(connections, float), np.array(distances, float)
    flows, apart = flows / (flows.sum() or 1), apart / (apart.sum() or 1)
    work = np.array(sizes, float) / sum(sizes)
    loads = np.bincount(device_of, work, devices)
    far = apart[np.ix_(device_of, device_of)]
    np.fill_diagonal(flows, 0.0)
    return connection_weight * (flows * far).sum() + complexity_weight * ((loads - 1 / devices) ** 2).mean()


def test_the_best_of_all_placements_is_found():
    random = np.random.default_rng(5)
    for _ in range(20):
        sizes = random.integers(1, 9, 5).tolist()
        connections = random.integers(0, 3, (5, 5)).astype(float)
        distances = np.triu(random.integers(1, 9, (3, 3)), 1)
        distances = (distances + distances.T).tolist()
        capacity = sum(sizes) // 2 + 4
        placement = assign(
            sizes, [capacity] * 3, connections=connections.tolist(), distances=distances, connection_weight=1.5
        )
        fitting = [
            device_of
            for device_of in itertools.product(range(3), repeat=5)
            if max(np.bincount(device_of, sizes, 3)) <= capacity
        ]
        best = min(cost(list(device_of), sizes, connections, distances, 1.5) for device_of in fitting)
        assert placement.objective == pytest.approx(best, rel=1e-9)
        assert tuple(placement.device_of) in fitting
        assert placement.exact
        assert (placement.gap, placement.lower_bound) == (0, placement.objective)


def test_names_and_numbers_mean_the_same():
    sizes, capacities = {"a": 4, "b": 4, "c": 1}, {"x": 5, "y": 8}
    named = assign(
        sizes,
        capacities,
        complexity={"c": 1, "b": 2, "a": 3},
        device_complexity={"y": 2, "x": 1},
        connections={("a", "c"): 2.0, ("c", "b"): 1},
        distances={("y", "x"): 3},
    )
    numbered = assign(
        np.array([4, 4, 1]),
        [5, 8],
        complexity=[3, 2, 1],
        device_complexity=[1, 2],
        connections=[[0, 0, 2], [0, 0, 0], [0, 1, 0]],
        distances=[[0, 3], [3, 0]],
    )
    assert isinstance(named, Placement)
    assert (named.device_of, named.objective) == (numbered.device_of, numbered.objective)
    assert named.by_name == {name: "xy"[device] for name, device in zip("abc", named.device_of, strict=True)}
    assert set(numbered.by_name) == {"0", "1", "2"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"sizes": [1.5]}, "sizes[0] is 1.5; expected an integer from 0 to 2**64 - 1"),
        ({"sizes": [-1]}, "sizes[0] is -1"),
        ({"capacities": {"cpu": 2**64}}, "capacities['cpu'] is 18446744073709551616"),
        ({"capacities": []}, "device_bytes has 0 entries; expected 1 to"),
        ({"complexity": [1, 2, float("nan")]}, "model_complexity[2] is NaN; expected a finite number from 0 on"),
        ({"complexity": [1]}, "model_complexity has 1 entries; expected 3"),
        ({"complexity": {"a": 1}}, "complexity has 'a'; expected 0, 1, 2"),
        ({"complexity": [1, 2, "x"]}, "complexity[2] is 'x'; expected a number"),
        ({"connections": {(0, 3): 1}}, "connections has the key (0, 3); expected a pair of 0, 1, 2"),
        ({"connections": {(0, 1): -1}}, "connections[1] is -1; expected a finite number from 0 on"),
        ({"connections": [[0, 1]]}, "connections has rows of 2; expected each of 3"),
        ({"distances": {(0, 1): 1, (1, 0): 2}}, "distances[(1, 0)] is 2.0 and back is 1.0; expected one distance"),
        ({"distances": [[0, 1], [2, 0]]}, "expected the same both ways"),
        ({"distances": [[1, 1], [1, 0]]}, "distances[0] is 1; expected 0 on the diagonal"),
        ({"connection_weight": float("inf")}, "weights.connection[0] is inf; expected a number from 0 to 1e100"),
        ({"complexity_weight": None}, "complexity_weight is None; expected a number"),
        ({"seed": -1}, "seed is -1"),
        ({"effort": 0.5}, "effort is 0.5"),
    ],
)
def test_what_has_no_meaning_is_refused(arguments, said):
    arguments = {"sizes": [1, 1, 1], "capacities": [2, 2], **arguments}
    with pytest.raises(sheave.InvalidArgument) as raised:
        assign(arguments.pop("sizes"), arguments.pop("capacities"), **arguments)
    assert said in str(raised.value)


def test_what_does_not_fit_is_said():
    for sizes, said in [
        ([9, 1], "model 0 takes 9 bytes; expected at most the 5 of the largest device"),
        ([5, 5, 1], "the models take 11 bytes in all; expected at most the 10"),
        ([3, 3, 3], "no placement fits"),
        ([3] * 3 + [0] * 10, "found no placement that fits"),
    ]:
        with pytest.raises(sheave.LimitExceeded, match="place models") as raised:
            assign(sizes, [5, 5])
        assert said in str(raised.value)


def test_large_problems_have_a_gap_and_one_answer():
    random = np.random.default_rng(1)
    sizes = random.integers(1, 100, 40).tolist()
    connections = {(int(one), int(other)): 1.0 for one, other in random.integers(0, 40, (120, 2))}
    arguments = {"connections": connections, "connection_weight": 0.5, "effort": 500}
    one, other = (assign(sizes, [600] * 6, **arguments) for _ in range(2))
    assert (one.device_of, one.objective, one.gap) == (other.device_of, other.objective, other.gap)
    assert max(np.bincount(one.device_of, sizes, 6)) <= 600
    assert not one.exact
    assert 0 < one.gap < 1
    assert one.gap == pytest.approx((one.objective - one.lower_bound) / one.objective)
    assert "with a gap of" in str(one)


def test_pictures_and_tables_have_every_name():
    sizes, capacities = {"a&b": 1 << 20, "<c>": 1 << 30}, {"cuda:0": 2 << 30, "cpu": 2 << 30}
    placement = assign(sizes, capacities, connections={("a&b", "<c>"): 1})
    picture = xml.dom.minidom.parseString(placement._repr_svg_())
    texts = [node.firstChild.data for node in picture.getElementsByTagName("text")]
    assert {"cuda:0", "cpu", "a&b · 1.0 MiB", "<c> · 1.0 GiB"} <= set(texts)
    assert placement.svg() == placement._repr_svg_()
    table = str(placement)
    for name in ("cuda:0", "cpu", "a&b", "<c>", "1.0 GiB", "2.0 GiB", "which is the optimum"):
        assert name in table
    assert repr(placement).startswith("Placement(device_of=[")
