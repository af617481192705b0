"""The optimizer: warm-up then constant, a clip on the norm, and nothing that is not finite gets in."""

import pytest
import torch
from tiny_run import recipe

from shoal.training.optimizer import Optimizer


def parameter_with(gradient: list[float]) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.ones(len(gradient)))
    parameter.grad = torch.tensor(gradient)
    return parameter


def first_rates(updates: int, warmup_steps: int) -> list[float]:
    """What AdamW was given for each of the first updates, by a peak of 1e-3."""
    parameter = parameter_with([1.0])
    optimizer = Optimizer([parameter], recipe(learning_rate=1e-3, warmup_steps=warmup_steps))
    rates = []
    for _ in range(updates):
        parameter.grad = torch.ones(1)
        assert optimizer.step().learning_rate == optimizer.adamw.param_groups[0]["lr"]
        rates.append(optimizer.adamw.param_groups[0]["lr"])
    return rates


def test_the_learning_rate_warms_up_linearly_and_then_stays() -> None:
    rates = first_rates(6, warmup_steps=4)
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def test_without_warm_up_the_first_update_has_the_full_rate() -> None:
    assert first_rates(1, warmup_steps=0) == [1e-3]


def test_the_norm_that_is_reported_is_the_one_before_the_clip() -> None:
    parameter = parameter_with([30.0, 40.0])
    optimizer = Optimizer([parameter], recipe(max_grad_norm=0.1))
    assert optimizer.step().gradient_norm == pytest.approx(50.0)
    moment = optimizer.adamw.state[parameter]["exp_avg"]
    torch.testing.assert_close(moment, torch.tensor([0.006, 0.008]))  # (1 - beta1) of the gradient clipped to norm 0.1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_changes_neither_weights_nor_moments(bad: float) -> None:
    parameter = parameter_with([1.0, 2.0])
    optimizer = Optimizer([parameter], recipe())
    assert optimizer.step().applied
    weights = parameter.detach().clone()
    state = {name: value.clone() for name, value in optimizer.adamw.state[parameter].items()}
    parameter.grad = torch.tensor([1.0, bad])
    skipped = optimizer.step()
    assert not skipped.applied
    assert optimizer.updates == 1
    assert torch.equal(parameter, weights)
    assert all(torch.equal(value, state[name]) for name, value in optimizer.adamw.state[parameter].items())
    assert parameter.grad is None
