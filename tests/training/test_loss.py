"""The loss: equal to the paper's formula in float64, right gradients, and indifferent to how tokens are grouped."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.training.loss import LossInputs, LossWeights, grpo_loss

WEIGHTS = LossWeights(epsilon=0.2, delta=4.0, kl=0.001, entropy=1e-4)


def inputs(count: int = 400, seed: int = 0) -> LossInputs:
    """Log-probabilities in float64 with ratios from 1/20 to 20, so that every branch is taken."""
    chance = np.random.default_rng(seed)
    old = -chance.random(count) * 5 - 3
    return LossInputs(
        logprobs=torch.tensor(old + chance.uniform(-3, 3, count), requires_grad=True),
        entropy=torch.tensor(chance.random(count), requires_grad=True),
        old_logprobs=torch.tensor(old),
        reference_logprobs=torch.tensor(old + chance.uniform(-1, 1, count)),
        advantages=torch.tensor(chance.normal(size=count)),
    )


def reference(values: LossInputs, weights: LossWeights) -> tuple[float, list[int]]:
    """The formula token by token, in Python floats: the loss's sum, and how many tokens are cut low, high, at delta."""
    total, cuts = 0.0, [0, 0, 0]
    for token in zip(*(getattr(values, field.name).tolist() for field in fields(values)), strict=True):
        logprob, entropy, old, base, advantage = token
        ratio = float(np.exp(logprob - old))
        plain = min(ratio, weights.delta) * advantage
        clipped = min(max(ratio, 1 - weights.epsilon), 1 + weights.epsilon) * advantage
        gap = base - logprob
        total += -min(plain, clipped) + weights.kl * (np.exp(gap) - gap - 1) - weights.entropy * entropy
        cuts[0] += advantage < 0 and ratio < 1 - weights.epsilon
        cuts[1] += advantage > 0 and ratio > 1 + weights.epsilon
        cuts[2] += advantage < 0 and ratio > weights.delta
    return total, cuts


def test_the_loss_is_the_formula_of_the_paper() -> None:
    values = inputs()
    loss, sums = grpo_loss(values, WEIGHTS, 400)
    total, cuts = reference(values, WEIGHTS)
    assert float(loss.detach()) == pytest.approx(total / 400, rel=1e-12)
    assert sums.loss == pytest.approx(total, rel=1e-12)
    assert [sums.clip_low, sums.clip_high, sums.clip_delta] == cuts
    assert all(cuts)


def test_gradients_agree_with_finite_differences() -> None:
    values = inputs(40)
    loss, _ = grpo_loss(values, WEIGHTS, 40)
    loss.backward()
    for name in ("logprobs", "entropy"):
        for place in range(40):
            moved = []
            for sign in (1, -1):
                shifted = getattr(values, name).detach().clone()
                shifted[place] += sign * 1e-6
                changed = {field.name: getattr(values, field.name).detach() for field in fields(values)} | {
                    name: shifted
                }
                moved.append(float(grpo_loss(LossInputs(**changed), WEIGHTS, 40)[0]))
            assert float(getattr(values, name).grad[place]) == pytest.approx((moved[0] - moved[1]) / 2e-6, abs=1e-7)


def one_token(ratio: float, advantage: float, base: float = 0.0) -> tuple[float, Tensor]:
    """Loss without bonus terms and its gradient to the log-probability, for one token."""
    logprob = torch.tensor([float(np.log(ratio))], dtype=torch.float64, requires_grad=True)
    zero = torch.zeros(1, dtype=torch.float64)
    values = LossInputs(logprob, zero, zero, logprob.detach() + base, torch.tensor([advantage], dtype=torch.float64))
    loss, _ = grpo_loss(values, LossWeights(0.2, 4.0, 0.0, 0.0), 1)
    loss.backward()
    assert logprob.grad is not None
    return float(loss.detach()), logprob.grad


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "moves"),
    [
        (1.1, 1.0, -1.1, True),
        (1.5, 1.0, -1.2, False),  # good and already much likelier: enough
        (0.5, 1.0, -0.5, True),  # good and less likely than before: bring it back
        (0.5, -1.0, 0.8, False),  # bad and already much less likely: enough
        (3.0, -1.0, 3.0, True),  # bad and likelier: plain clipping leaves this side open
        (9.0, -1.0, 4.0, False),  # ... and delta bounds it
    ],
)
def test_clipping_has_two_sides(ratio: float, advantage: float, loss: float, moves: bool) -> None:
    found, gradient = one_token(ratio, advantage)
    assert found == pytest.approx(loss)
    assert bool(gradient.abs() > 0) == moves


def test_the_kl_penalty_pulls_back_to_the_base_model() -> None:
    logprob = torch.tensor([-1.0], requires_grad=True)
    values = LossInputs(logprob, torch.zeros(1), torch.tensor([-1.0]), torch.tensor([-2.0]), torch.zeros(1))
    loss, sums = grpo_loss(values, LossWeights(0.2, 4.0, kl=1.0, entropy=0.0), 1)
    loss.backward()
    assert sums.kl == pytest.approx(np.exp(-1.0), rel=1e-6)
    assert logprob.grad is not None
    assert float(logprob.grad) == pytest.approx(1 - np.exp(-1.0), rel=1e-6)  # downhill is towards the base model


def test_the_entropy_bonus_rewards_entropy() -> None:
    values = inputs(8)
    loss, _ = grpo_loss(values, WEIGHTS, 8)
    loss.backward()
    assert values.entropy.grad is not None
    torch.testing.assert_close(values.entropy.grad, torch.full((8,), -WEIGHTS.entropy / 8, dtype=torch.float64))


@pytest.mark.parametrize("cuts", [[400], [1, 399], [130, 130, 140], [100] * 4])
def test_the_grouping_of_tokens_into_micro_batches_changes_nothing(cuts: list[int]) -> None:
    whole = inputs()
    grpo_loss(whole, WEIGHTS, 400)[0].backward()
    parts = inputs()
    total = 0.0
    start = 0
    for size in cuts:
        piece = {field.name: getattr(parts, field.name)[start : start + size] for field in fields(parts)}
        loss, _ = grpo_loss(LossInputs(**piece), WEIGHTS, 400)
        loss.backward()
        total += float(loss.detach())
        start += size
    assert whole.logprobs.grad is not None
    torch.testing.assert_close(parts.logprobs.grad, whole.logprobs.grad, rtol=1e-12, atol=0)
    assert total == pytest.approx(float(grpo_loss(inputs(), WEIGHTS, 400)[0].detach()), rel=1e-12)


def test_a_delta_inside_the_clip_is_refused() -> None:
    with pytest.raises(ValueError, match=r"clip_delta is 1.1; allowed: more than 1 \+ clip_epsilon = 1.2"):
        LossWeights(epsilon=0.2, delta=1.1, kl=0.0, entropy=0.0)


def test_an_optimizer_batch_without_completion_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="has 0 completion tokens; allowed: 1 or more"):
        grpo_loss(inputs(), WEIGHTS, 0)
