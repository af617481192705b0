"""PRIME: rewards, loss and advantages are the paper's in float64, however samples are packed, and groups without signal do no harm."""

from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import reference_prime as reference
import torch
from test_batches import groups
from tiny_run import make_model, recipe
from torch import Tensor

from shoal.contracts.algorithm import Prime
from shoal.contracts.recipe import OverlongShaping, Recipe
from shoal.training.batches import StepPlan, plan_step
from shoal.training.completions import Packed
from shoal.training.extensions.prime.extension import outcome_advantages
from shoal.training.extensions.prime.formulas import (
    outcome_losses,
    process_baselines,
    process_returns,
    whitened,
)
from shoal.training.extensions.prime.reward_model import OutcomeLoss, RewardModel, outcomes_of, packed_of
from shoal.training.model import Policy
from shoal.training.objectives import overlong_penalty
from shoal.training.rollouts import RolloutGroup
from shoal.training.update import LogProbs, plan_logprobs

SETTINGS = Prime(beta=0.3, learning_rate=1e-3, outcome_weight=2.0, process_weight=0.5)


def nothing() -> None:
    """Nobody watches."""


def prime_recipe(**changes: Any) -> Recipe:
    return recipe(algorithm={"prime": changes.pop("prime", SETTINGS)}, **changes)


def masked(given: list[RolloutGroup]) -> list[RolloutGroup]:
    """The same with tool output in every third sample, and nothing but tool output in one."""
    found, number = [], 0
    for group in given:
        samples = []
        for sample in group.samples:
            mask = sample.mask.copy()
            mask[: len(mask) // 2] = number % 3 != 0
            samples.append(replace(sample, mask=mask if number != 5 else np.zeros_like(mask)))
            number += 1
        found.append(RolloutGroup(samples))
    return found


class Step:
    """A step of groups with a reward model that is not the base model."""

    def __init__(self, given: list[RolloutGroup], chosen: Recipe, pack_length: int | None = None) -> None:
        chosen = chosen if pack_length is None else chosen.model_copy(update={"pack_length": pack_length})
        assert chosen.process_rewards is not None
        self.groups = given
        self.plan = plan_step(given, chosen, seed=0, step=5, advantages=outcome_advantages)
        self.base, self.prm = Policy(make_model(seed=0)), Policy(make_model(seed=1))
        self.process = RewardModel(self.prm, chosen, chosen.process_rewards)
        self.reference = plan_logprobs(self.base, self.plan, nothing)
        self.outcomes = outcomes_of(given)

    def complete(self) -> StepPlan:
        return self.process.complete(self.plan, self.reference, self.outcomes, nothing)


def by_sample(plan: StepPlan, values: list[list[Tensor]]) -> dict[int, list[float]]:
    """Values of a plan's tokens by the number of their sample."""
    found: dict[int, list[float]] = {}
    for batch, parts in zip(plan.optimizer_batches, values, strict=True):
        for packed, numbers, part in zip(batch.micro_batches, batch.numbers, parts, strict=True):
            for number, value in zip(packed_of(packed, numbers).owners.tolist(), part.tolist(), strict=True):
                found.setdefault(numbers[number], []).append(value)
    return found


def completions(step: Step, prm: LogProbs) -> dict[int, reference.Completion]:
    """What the reference is told: one entry for each sample that has a sampled token."""
    ours, base = by_sample(step.plan, prm), by_sample(step.plan, step.reference)
    samples = [(number, sample) for number, group in enumerate(step.groups) for sample in group.samples]
    return {
        number: reference.Completion(
            samples[number][0], samples[number][1].task_reward, samples[number][1].reward, *lines
        )
        for number, lines in sorted((number, (ours[number], base[number])) for number in ours)
    }


def advantages(plan: StepPlan) -> dict[int, list[float]]:
    return by_sample(plan, [[packed.advantages for packed in batch.micro_batches] for batch in plan.optimizer_batches])


@pytest.mark.parametrize("pack_length", [48, 400])
def test_advantages_are_the_papers_formula_however_samples_are_packed(pack_length: int) -> None:
    step = Step(groups(), prime_recipe(), pack_length)
    told = completions(step, plan_logprobs(step.prm, step.plan, nothing))
    wanted = reference.whitened(reference.mixed(list(told.values()), 0.3, 2.0, 0.5))
    found = advantages(step.complete())
    assert found.keys() == told.keys() == set(range(16))
    for number, row in zip(told, wanted, strict=True):
        np.testing.assert_allclose(found[number], row, rtol=1e-5, atol=1e-5)


def test_tool_output_has_no_reward_and_a_sample_of_nothing_else_is_nobodys_sibling() -> None:
    step = Step(masked(groups()), prime_recipe(prime=SETTINGS.model_copy(update={"outcome_weight": 0.0})))
    told = completions(step, plan_logprobs(step.prm, step.plan, nothing))
    assert told.keys() == set(range(16)) - {5}
    wanted = reference.whitened(reference.mixed(list(told.values()), 0.3, 0.0, 0.5))
    found = advantages(step.complete())
    for number, row in zip(told, wanted, strict=True):
        np.testing.assert_allclose(found[number], row, rtol=1e-5, atol=1e-5)


def test_the_outcomes_part_is_leave_one_out_over_the_whole_reward() -> None:
    shaping = OverlongShaping(buffer_tokens=20, penalty=0.7)
    chosen = prime_recipe(
        overlong_shaping=shaping, prime=SETTINGS.model_copy(update={"process_weight": 0.0, "outcome_weight": 1.0})
    )
    found = advantages(Step(groups(), chosen).complete())
    expected = []
    for group in groups():
        rewards = [
            one.reward - overlong_penalty(one.completion_length, 40 - one.prompt_length, shaping)
            for one in group.samples
        ]
        expected += [reward - (sum(rewards) - reward) / 3 for reward in rewards]
    lengths = [sample.completion_length for group in groups() for sample in group.samples]
    flat = np.repeat(expected, lengths)
    for number, value in enumerate(expected):
        np.testing.assert_allclose(found[number], (value - flat.mean()) / flat.std(), rtol=1e-5, atol=1e-6)


def scored(count: int = 40) -> tuple[Packed, Tensor, Tensor, Tensor]:
    """Tokens of six samples in float64, the fourth without any; log-probabilities, base log-probabilities, outcomes."""
    chance = np.random.default_rng(3)
    owners = torch.tensor(np.sort(chance.choice([0, 1, 2, 4, 5], count)))
    values = [torch.tensor(-5 * chance.random(count)) for _ in range(2)]
    return Packed(owners, 6), *values, torch.tensor([1.0, 0.0, 0.0, 1.0, 0.25, 1.0], dtype=torch.float64)


def test_the_reward_models_loss_and_its_gradient_are_those_of_the_formula() -> None:
    packed, logprobs, base, outcomes = scored()
    rows = [
        reference.Completion(0, float(outcomes[one]), 0.0, *(values[packed.owners == one].tolist() for values in (logprobs, base)))
        for one in (0, 1, 2, 4, 5)
    ]  # fmt: skip
    loss = OutcomeLoss(packed, base, outcomes, beta=0.3, rows=5)
    loss.look(logprobs)
    assert float(loss.sums[0]) / 5 == pytest.approx(reference.loss(rows, 0.3), rel=1e-12)
    live = logprobs.clone().requires_grad_()
    sum(loss(here, live[here], live[here]) for here in (slice(0, 13), slice(13, 40))).backward()
    again = logprobs.clone().requires_grad_()
    score = torch.stack([0.3 * (again - base)[packed.owners == one].sum() for one in (0, 1, 2, 4, 5)])
    kept = outcomes[[0, 1, 2, 4, 5]]
    said = torch.sigmoid(score)
    (-(kept * said.log() + (1 - kept) * (1 - said).log()).mean()).backward()
    torch.testing.assert_close(live.grad, again.grad, rtol=1e-12, atol=1e-15)


def test_a_tile_before_the_look_is_a_mistake_of_the_caller() -> None:
    packed, logprobs, base, outcomes = scored()
    with pytest.raises(RuntimeError, match="before the log-probabilities were looked at"):
        OutcomeLoss(packed, base, outcomes, beta=0.3, rows=5)(slice(0, 4), logprobs[:4], logprobs[:4])


def test_the_loss_is_finite_for_scores_beyond_what_exp_can_hold() -> None:
    found = outcome_losses(torch.tensor([2000.0, -2000.0, 2000.0]), torch.tensor([1.0, 1.0, 0.0]))
    assert found.tolist() == [0.0, 2000.0, 2000.0]


@pytest.mark.parametrize("score", [0.3, 19.0, 21.0, 25.0, 36.0])
def test_the_loss_of_a_completion_that_is_judged_right_is_small_and_not_nothing(score: float) -> None:
    scores = torch.tensor([score, -score], dtype=torch.float64)
    found = outcome_losses(scores, torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert found.tolist() == pytest.approx([np.log1p(np.exp(-score))] * 2, rel=1e-12)


def model_gradient(step: Step, plan: StepPlan) -> Tensor:
    """Gradient of one optimizer batch that holds the whole step, by the trainer's own pass."""
    kept: list[Tensor] = []

    def keep(optimizer: Any, *_: Any) -> None:
        kept.append(torch.cat([parameter.grad.flatten() for parameter in step.prm.parameters()]))

    step.process.learner.optimizer.adamw.register_step_pre_hook(keep)
    step.process.learn(plan, step.reference, step.outcomes, nothing)
    assert len(kept) == len(plan.optimizer_batches)
    return kept[0]


@pytest.mark.parametrize("pack_length", [48, 400])
def test_the_reward_model_gets_the_gradient_of_the_mean_over_completions(pack_length: int) -> None:
    wide = SETTINGS.model_copy(update={"max_grad_norm": 1e6})
    step = Step(masked(groups()), prime_recipe(optimizer_steps=1, prime=wide), pack_length)
    samples = [sample for group in step.groups for sample in group.samples]
    plain, base = make_model(seed=1), make_model(seed=0)  # the same weights with the library's own attention
    total, rows = torch.zeros(()), 0
    for sample in samples:  # one at a time, by transformers alone
        kept = torch.tensor(np.flatnonzero(sample.mask)) + sample.prompt_length
        if not len(kept):
            continue
        tokens = torch.tensor(sample.tokens)
        both = [
            (model(tokens[None]).logits[0] / sample.temperature).log_softmax(-1)[kept - 1, tokens[kept]]
            for model in (plain, base)
        ]
        score = 0.3 * (both[0] - both[1].detach()).sum()
        total = total - (torch.sigmoid(score).log() if sample.task_reward else torch.sigmoid(-score).log())
        rows += 1
    wanted = torch.autograd.grad(total / rows, list(plain.parameters()))
    found = model_gradient(step, step.plan)
    expected = torch.cat([gradient.flatten() for gradient in wanted])
    assert float((found - expected).norm()) < 1e-4 * float(expected.norm())


def test_a_reward_model_that_is_still_the_base_model_leaves_the_outcomes_advantage() -> None:
    step = Step(groups(), prime_recipe())
    step.prm.load_state_dict(step.base.state_dict())
    outcome = advantages(step.plan)
    flat = np.array(list(chain.from_iterable(outcome[number] for number in range(16))))
    found = advantages(step.complete())
    for number in range(16):
        np.testing.assert_allclose(found[number], (np.array(outcome[number]) - flat.mean()) / flat.std(), atol=1e-4)


def test_it_learns_to_tell_outcomes_apart_and_its_rewards_follow() -> None:
    step = Step(groups(), prime_recipe(prime=SETTINGS.model_copy(update={"learning_rate": 3e-3})))
    step.prm.load_state_dict(step.base.state_dict())
    seen = [step.process.learn(step.plan, step.reference, step.outcomes, nothing) for _ in range(12)]
    assert seen[0].loss == pytest.approx(np.log(2), abs=0.1)
    assert seen[-1].loss < 0.5 * seen[0].loss
    assert seen[-1].accuracy == 1.0
    assert seen[-1].skipped == 0
    assert all(norm > 0 for norm in seen[-1].norms)
    scores = {
        number: sum(row)
        for number, row in by_sample(
            step.plan,
            [
                [ours - base for ours, base in zip(*pair, strict=True)]
                for pair in zip(plan_logprobs(step.prm, step.plan, nothing), step.reference, strict=True)
            ],
        ).items()
    }
    assert all((scores[number] > 0) == bool(step.outcomes.values[number]) for number in range(16))


def test_a_step_without_any_signal_gives_zeros_and_not_numbers_that_are_none() -> None:
    level = [
        RolloutGroup([replace(sample, task_reward=1.0, reward=1.0) for sample in group.samples]) for group in groups()
    ]
    step = Step(level, prime_recipe())
    step.prm.load_state_dict(step.base.state_dict())
    assert all(value == 0.0 for row in advantages(step.complete()).values() for value in row)


def test_a_group_without_signal_adds_no_outcome_and_stays_finite_beside_others() -> None:
    given = groups()
    level = RolloutGroup([replace(sample, task_reward=0.0, reward=0.0) for sample in given[0].samples])
    step = Step([level, *given[1:]], prime_recipe(prime=SETTINGS.model_copy(update={"process_weight": 0.0})))
    found = advantages(step.complete())
    assert np.isfinite(list(chain.from_iterable(found.values()))).all()
    flat = list(chain.from_iterable(found[number] for number in range(4)))
    assert max(flat) - min(flat) < 1e-6  # what whitening takes off all tokens alike


def test_a_completion_without_siblings_is_compared_with_itself() -> None:
    means, present = torch.tensor([0.2, 0.7, 0.1]), torch.tensor([True, False, True])
    found = process_baselines(means, present, torch.tensor([0, 0, 1]))
    assert found[0] == means[0]
    assert found[2] == means[2]
    packed = Packed(torch.tensor([0, 0, 2]), 3)
    returns = process_returns(torch.tensor([0.1, 0.3, 0.1], dtype=torch.float64), found.double(), packed)
    assert returns[0] == pytest.approx(0.0, abs=1e-7)


def test_whitening_leaves_equal_values_at_nothing() -> None:
    assert whitened(torch.full((3,), 0.7), 0.7, 1e-9).tolist() == [0.0, 0.0, 0.0]


def test_an_outcome_beyond_its_range_counts_as_the_nearest() -> None:
    sample = groups()[0].samples[0]
    outcomes = outcomes_of([RolloutGroup([replace(sample, task_reward=-2.0), replace(sample, task_reward=3.0)])])
    assert outcomes.values.tolist() == [0.0, 1.0]
    assert outcomes.groups.tolist() == [0, 0]
