"""Which products of a decode step take the same x, and are one call of qgen bench --model."""

from __future__ import annotations

from qgen import models
from qgen.bench import steps
from qgen.bench.cases import Shape


def step_of(*layers: str, columns: dict[str, int] | None = None) -> list[steps.Product]:
    """Products by their roles, a layer a string; K = 10 but for the roles named."""
    known = columns or {}
    roles = [(role, number) for number, layer in enumerate(layers) for role in layer.split()]
    return [steps.Product(role, Shape(3, known.get(role, 10)), number) for role, number in roles]


def grouped(step: list[steps.Product]) -> list[str]:
    calls = steps.together(step)
    assert [i for call in calls for i in call] == list(range(len(step))), "every product once, in order"
    return [" ".join(step[i].role for i in call) for call in calls]


def test_neighbours_of_a_layer_that_take_one_x_are_one_call() -> None:
    assert grouped(step_of("q k v o gate up down")) == ["q k v", "o", "gate up", "down"]
    assert grouped(step_of("gdn_qkv gdn_z gdn_out", "lm_head")) == ["gdn_qkv gdn_z", "gdn_out", "lm_head"]
    assert grouped(step_of("qkv o gate_up down", "q k o", "q o")) == [
        "qkv", "o", "gate_up", "down", "q k", "o", "q", "o",
    ]  # fmt: skip
    assert grouped(step_of("q k v", columns={"v": 20})) == ["q k", "v"]
    assert grouped(step_of("q", "q", "k")) == ["q", "q", "k"], "of one layer"
    assert grouped(step_of("q o k")) == ["q", "o", "k"], "neighbours"
    for name, calls in (("Qwen3-8B", 36 * 4 + 1), ("Qwen3.6-27B", 64 * 4 + 1)):
        assert len(steps.together(steps.products(models.model_named(name))[0])) == calls


def test_shapes_have_the_x_of_those_beside_which_they_are_called() -> None:
    shapes = {role: Shape(rows, 10) for rows, role in enumerate("q k v o gate up down".split(), 1)}
    step = [steps.Product(role, shape, 0) for role, shape in shapes.items()]
    stands = steps.alike([*step, steps.Product("lm_head", Shape(99, 10), 1)])
    assert [len({stands[shapes[role]] for role in roles.split()}) for roles in ("q k v", "gate up")] == [1, 1]
    assert len(set(stands.values())) == 5, "x of any other product is another one: a quantiser left out would show"
    joined = [*step, steps.Product("gate", shapes["q"], 1), steps.Product("up", shapes["o"], 1)]
    assert len({steps.alike(joined)[shapes[role]] for role in "qkvo"}) == 1
