"""Rounds of islands are DiLoCo's outer steps in float64, within what their types round, however many islands and ranks there are."""

from typing import get_args

import island_gaps
import pytest
import torch
from island_gaps import MOMENTUM, RATE, VALUES, learnt, measure, outer_steps

from shoal.contracts.islands import ExchangeType


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("islands", [1, 2, 4])
@pytest.mark.parametrize("kind", get_args(ExchangeType))
def test_rounds_are_the_papers_outer_steps_within_the_error_of_what_is_exchanged(
    kind: ExchangeType, islands: int, ranks: int
) -> None:
    gap = measure(islands, ranks, kind)
    assert gap.uniform  # islands that learnt twice as much count like the others
    assert gap.found <= gap.allowed
    assert gap.allowed < {"float32": 5e-5, "float16": 3e-3, "int8": 2e-2}[kind]


def test_the_bound_tells_apart_what_could_be_mistaken_for_the_outer_step() -> None:
    """Plain momentum, a look ahead that is not Nesterov's, another sign, and a mean by length are all beyond the loosest bound."""
    given, start = learnt(3), torch.linspace(-1, 1, VALUES, dtype=torch.float64)
    wanted = outer_steps(start, given)
    way = float((wanted - start).abs().max())
    bound = measure(3, 1, "int8").allowed

    def walked(step: object, mean: object = lambda vectors: vectors.mean(dim=0)) -> float:
        theta, velocity = start.clone(), torch.zeros(VALUES, dtype=torch.float64)
        for vectors in given:
            delta = mean(vectors)
            velocity = MOMENTUM * velocity + delta
            theta = theta - RATE * step(delta, velocity)
        return float((theta - wanted).abs().max()) / way

    assert walked(lambda delta, velocity: delta + MOMENTUM * velocity) == 0
    lengths = torch.tensor([1.0, 1.5, 2.0], dtype=torch.float64)
    others = {
        "plain momentum": walked(lambda delta, velocity: velocity),
        "no momentum": walked(lambda delta, velocity: delta),
        "sign": walked(lambda delta, velocity: -(delta + MOMENTUM * velocity)),
        "weighed by length": walked(
            lambda delta, velocity: delta + MOMENTUM * velocity,
            lambda vectors: (lengths[:, None] * vectors).sum(dim=0) / lengths.sum(),
        ),
    }
    for name, off in others.items():
        assert off > 2 * bound, name


def test_golden_rounds() -> None:
    """Two islands, one value, three rounds, by hand: means 0.15, 0.1, -0.05 from 1."""
    theta, velocity = 1.0, 0.0
    for delta in (0.15, 0.1, -0.05):
        velocity = 0.9 * velocity + delta
        theta -= 0.7 * (delta + 0.9 * velocity)
    assert theta == pytest.approx(0.515705, abs=1e-9)
    moved = torch.tensor([[0.1, 0.2], [0.1, 0.1], [-0.1, 0.0]], dtype=torch.float64)
    given = moved[:, :, None].expand(3, 2, VALUES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(island_gaps, "ROUNDS", 3)
        found = outer_steps(torch.ones(VALUES), given)
    assert found[0].item() == pytest.approx(theta, rel=1e-12)
