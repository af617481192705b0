"""Every objective: equal to its paper's formula in float64, right gradients, and indifferent to how tokens are grouped."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import reference_objectives as reference
import torch
from tiny_run import recipe
from torch import Tensor

from shoal.contracts.recipe import OverlongShaping
from shoal.training.loss import SUMS, LossInputs, LossWeights, MicroLoss, Objective, token_losses
from shoal.training.objectives import OBJECTIVES, needs_behaviour, objective_of, overlong_penalty
from shoal_operator.plan_facts import asks_behaviour

WEIGHTS = LossWeights(epsilon=0.2, delta=4.0, kl=0.001, entropy=1e-4, max_divergence=0.01)
VARIANTS = {
    "as the recipe has it": WEIGHTS,
    "asymmetric clip": replace(WEIGHTS, epsilon_high=0.28),
    "importance weights": replace(WEIGHTS, importance_cap=1.5),
    "all": replace(WEIGHTS, epsilon_high=0.28, importance_cap=1.5, kl=0.5, entropy=0.3),
}
NAMES = [name for name, objective in OBJECTIVES.items() if not objective.whole_completions]
"""Those whose loss is a sum over tokens; `test_batch_objectives` has the others too."""
DIFFERENTIABLE = [name for name in NAMES if name != "cispo"]
"""Those without a weight under a stop-gradient."""


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
        behaviour_logprobs=torch.tensor(old + chance.uniform(-1, 1, count)),
    )


def constants(values: LossInputs, **changes: Tensor) -> LossInputs:
    return LossInputs(**({name: getattr(values, name).detach() for name in COLUMNS} | changes))


COLUMNS = [field.name for field in fields(LossInputs)][:6]


def formula(values: LossInputs, weights: LossWeights) -> tuple[list[reference.Token], reference.Numbers]:
    columns = [getattr(values, name).tolist() for name in COLUMNS]
    numbers = reference.Numbers(
        weights.epsilon,
        weights.high,
        weights.delta,
        weights.kl,
        weights.entropy,
        weights.importance_cap,
        weights.max_divergence,
    )
    return [reference.Token(*row) for row in zip(*columns, strict=True)], numbers


@pytest.mark.parametrize("weights", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_the_papers_formula(name: str, weights: LossWeights) -> None:
    values = inputs()
    tokens, numbers = formula(values, weights)
    loss, sums = token_losses(values, OBJECTIVES[name], weights)
    np.testing.assert_allclose(
        loss.detach(), [reference.token_loss(name, token, numbers) for token in tokens], rtol=1e-12, atol=1e-15
    )
    found = dict(zip(SUMS, sums.tolist(), strict=True))
    assert found["loss"] == pytest.approx(reference.total(name, tokens, numbers), rel=1e-12)
    assert found["entropy"] == pytest.approx(float(values.entropy.detach().sum()), rel=1e-12)
    assert [found[cut] for cut in ("clip_low", "clip_high", "clip_delta", "capped")] == reference.cuts(
        name, tokens, numbers
    )
    assert found["clip_low"]
    assert found["clip_high"]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_agree_with_finite_differences(name: str) -> None:
    weights, values, step = VARIANTS["all"], inputs(60), 1e-6
    loss, _ = token_losses(values, OBJECTIVES[name], weights)
    loss.sum().backward()
    for field in ("logprobs", "entropy"):
        moved = []
        for sign in (1, -1):  # tokens do not touch one another: all are moved at once
            shifted = constants(values, **{field: getattr(values, field).detach() + sign * step})
            moved.append(token_losses(shifted, OBJECTIVES[name], weights)[0])
        torch.testing.assert_close(
            getattr(values, field).grad, (moved[0] - moved[1]) / (2 * step), rtol=1e-7, atol=1e-7
        )


def one_token(name: str, ratio: float, advantage: float, behind: float = 0.0) -> tuple[float, float]:
    """Loss without bonus terms and its gradient to the log-probability, for one token sampled `behind` nats below the old policy."""
    logprob = torch.tensor([float(np.log(ratio))], dtype=torch.float64, requires_grad=True)
    zero = torch.zeros(1, dtype=torch.float64)
    values = LossInputs(
        logprob, zero, zero, logprob.detach(), torch.tensor([advantage], dtype=torch.float64), zero - behind
    )
    loss, _ = token_losses(values, OBJECTIVES[name], LossWeights(0.2, 4.0, 0.0, 0.0))
    loss.sum().backward()
    assert logprob.grad is not None
    return float(loss.detach()), float(logprob.grad)


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
def test_two_sided_clipping_has_two_sides(ratio: float, advantage: float, loss: float, moves: bool) -> None:
    found, gradient = one_token("two_sided_grpo", ratio, advantage)
    assert found == pytest.approx(loss)
    assert (abs(gradient) > 0) == moves


def test_one_sided_clipping_leaves_a_bad_token_that_became_likelier_unbounded() -> None:
    loss, gradient = one_token("one_sided_grpo", 9.0, -1.0)
    assert loss == pytest.approx(9.0)
    assert gradient == pytest.approx(9.0)


@pytest.mark.parametrize("name", NAMES)
def test_on_policy_every_objective_has_the_gradient_of_reinforce(name: str) -> None:
    assert one_token(name, 1.0, 0.7)[1] == pytest.approx(-0.7)


def test_decoupled_ppo_weighs_a_token_by_its_odds_under_the_version_that_sampled_it() -> None:
    plain, _ = one_token("one_sided_grpo", 1.1, 1.0, behind=0.5)
    weighed, _ = one_token("decoupled_ppo", 1.1, 1.0, behind=0.5)
    assert weighed == pytest.approx(plain * np.exp(0.5))


def test_an_importance_weight_leaves_the_kl_penalty_and_the_entropy_bonus_alone() -> None:
    values = inputs()
    without_advantage = constants(values, advantages=torch.zeros(400, dtype=torch.float64))
    losses = [
        token_losses(without_advantage, OBJECTIVES["two_sided_grpo"], weights)[0]
        for weights in (WEIGHTS, VARIANTS["importance weights"])
    ]
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize(("name", "weights"), [("decoupled_ppo", WEIGHTS), ("dapo", VARIANTS["importance weights"])])
def test_importance_weights_without_recomputed_behaviour_are_refused(name: str, weights: LossWeights) -> None:
    values = replace(inputs(), behaviour_logprobs=None)
    with pytest.raises(ValueError, match="importance weights need behaviour log-probabilities, recomputed"):
        token_losses(values, OBJECTIVES[name], weights)


def test_behaviour_is_recomputed_only_when_something_weighs_by_it() -> None:
    assert not needs_behaviour(recipe())
    assert needs_behaviour(recipe(algorithm={"two_sided_grpo": {"importance_cap": 2.0}}))
    assert needs_behaviour(recipe(algorithm={"decoupled_ppo": {}}))


CAPPED = [name for name in OBJECTIVES if name != "dppo"]
"""Those that take an importance cap."""


@pytest.mark.parametrize(
    "algorithm",
    [
        *({name: {}} for name in OBJECTIVES),
        *({name: {"importance_cap": 2.0}} for name in CAPPED),
        {"prime": {}},
        {"prime": {"loss": {"decoupled_ppo": {}}}},
        {"vineppo": {"loss": {"one_sided_grpo": {"importance_cap": 2.0}}}},
    ],
    ids=str,
)
@pytest.mark.parametrize("probabilities", [None, "Engine", "Recomputed"])
def test_plans_count_the_behaviour_pass_where_the_trainer_makes_it(
    algorithm: dict[str, Any], probabilities: str | None
) -> None:
    correction = None if probabilities is None else {"truncate": {}, "probabilities": probabilities}
    made = recipe(algorithm=algorithm, mismatch_correction=correction)
    assert asks_behaviour(made) == needs_behaviour(made)


def test_the_base_model_is_asked_for_a_penalty_at_some_step_and_for_prime() -> None:
    assert recipe().asks_reference
    none = {"kl_coefficient": 0.0}
    assert not recipe(**none).asks_reference
    assert recipe(**none, schedules={"kl_coefficient": [{"step": 5, "value": 0.1}]}).asks_reference
    assert recipe(**none, algorithm={"prime": {}}).asks_reference


def test_the_kl_penalty_has_a_gradient_and_pulls_back_to_the_base_model() -> None:
    logprob = torch.tensor([-1.0], requires_grad=True)
    zero = torch.zeros(1)
    values = LossInputs(logprob, zero, torch.tensor([-1.0]), torch.tensor([-2.0]), zero)
    loss, sums = token_losses(values, OBJECTIVES["two_sided_grpo"], LossWeights(0.2, 4.0, kl=1.0, entropy=0.0))
    loss.sum().backward()
    assert sums[SUMS.index("kl")] == pytest.approx(np.exp(-1.0), rel=1e-6)
    assert logprob.grad is not None
    assert float(logprob.grad) == pytest.approx(1 - np.exp(-1.0), rel=1e-6)  # downhill is towards the base model


def micro_loss(values: LossInputs, objective: Objective, here: slice, divisor: float) -> MicroLoss:
    part = {name: getattr(values, name).detach()[here] for name in COLUMNS}
    return MicroLoss(
        old=part["old_logprobs"],
        reference=part["reference_logprobs"],
        advantages=part["advantages"],
        behaviour=part["behaviour_logprobs"],
        objective=objective,
        weights=VARIANTS["all"],
        divisor=divisor,
    )


@pytest.mark.parametrize("cuts", [[400], [1, 399], [130, 130, 140], [100] * 4])
def test_the_grouping_of_tokens_into_micro_batches_and_tiles_changes_nothing(cuts: list[int]) -> None:
    objective, whole, parts = OBJECTIVES["decoupled_ppo"], inputs(), inputs()
    all_tokens = slice(0, 400)
    micro_loss(whole, objective, all_tokens, 400.0)(all_tokens, whole.logprobs, whole.entropy).backward()
    sums, start = torch.zeros(len(SUMS), dtype=torch.float64), 0
    for size in cuts:
        micro = micro_loss(parts, objective, slice(start, start + size), 400.0)
        for tile in (slice(0, size // 2), slice(size // 2, size)):
            here = slice(start + tile.start, start + tile.stop)
            micro(tile, parts.logprobs[here], parts.entropy[here]).backward()
        sums += micro.sums
        start += size
    assert whole.logprobs.grad is not None
    torch.testing.assert_close(parts.logprobs.grad, whole.logprobs.grad, rtol=1e-12, atol=0)
    torch.testing.assert_close(sums, token_losses(whole, objective, VARIANTS["all"])[1], rtol=1e-12, atol=0)


def test_an_optimizer_batch_without_completion_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the divisor of the optimizer batch is 0\.0; it has no completion tokens"):
        micro_loss(inputs(), OBJECTIVES["dapo"], slice(0, 4), 0.0)


def test_a_delta_inside_the_clip_is_refused_where_delta_is_used() -> None:
    with pytest.raises(ValueError, match=r"clip_delta is 1.1; allowed: more than 1 \+ clip_epsilon = 1.2"):
        objective_of(recipe(algorithm={"two_sided_grpo": {"clip_delta": 1.1}}))
    with pytest.raises(ValueError, match=r"allowed: more than 1 \+ clip_epsilon = 1.5"):
        objective_of(recipe(algorithm={"two_sided_grpo": {"clip_delta": 1.4, "clip_epsilon_high": 0.5}}))
    objective_of(recipe(algorithm={"dapo": {"clip_epsilon_high": 5.0}}))


@pytest.mark.parametrize(("length", "penalty"), [(10, 0.0), (60, 0.0), (80, 0.25), (100, 0.5), (120, 0.5)])
def test_overlong_completions_are_penalised_softly_over_the_buffer(length: int, penalty: float) -> None:
    found = overlong_penalty(length, limit=100, shaping=OverlongShaping(buffer_tokens=40, penalty=0.5))
    assert found == pytest.approx(penalty)
