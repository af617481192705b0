"""Optimizer batches: every sample once, the order drawn from seed and step, and the loss the same however it is packed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_run import make_model, recipe, rewards_of, rows_of

from shoal.training.batches import StepPlan, plan_step
from shoal.training.loss import LossWeights
from shoal.training.rollouts import Group, Sample
from shoal.training.update import accumulate, mismatch, plan_logprobs


def groups() -> list[Group]:
    rows = rows_of(step=5)
    samples = [
        Sample(
            name=str(number), tokens=np.array([*row.prompt_tokens, *row.completion_tokens]),
            prompt_length=len(row.prompt_tokens), mask=np.array(row.completion_mask),
            logprobs=np.array(row.completion_logprobs, dtype=np.float32), temperature=row.temperature, policy_version=4,
            task_reward=reward.task_reward or 0.0, length_penalty=reward.length_penalty or 0.0, reward=reward.reward or 0.0,
        )
        for number, (row, reward) in enumerate(zip(rows, rewards_of(rows), strict=True))
    ]  # fmt: skip
    return [Group(samples[start : start + 4]) for start in range(0, 16, 4)]


def plan(seed: int = 0, step: int = 5, **changes: Any) -> StepPlan:
    return plan_step(groups(), recipe(**changes), seed=seed, step=step)


def targets(found: StepPlan) -> list[int]:
    return [
        token
        for batch in found.optimizer_batches
        for packed in batch.micro_batches
        for token in packed.targets.tolist()
    ]


def test_every_completion_token_is_in_one_optimizer_batch() -> None:
    found = plan()
    assert len(found.optimizer_batches) == 2
    wanted = sorted(token for row in rows_of(step=5) for token in row.completion_tokens)
    assert sorted(targets(found)) == wanted
    assert sum(batch.token_count for batch in found.optimizer_batches) == len(wanted)
    assert 0.5 < found.packing_density <= 1.0


def test_the_order_is_drawn_from_seed_and_step_and_nothing_else() -> None:
    np.random.seed(1)
    first = targets(plan())
    np.random.seed(2)
    assert targets(plan()) == first
    assert targets(plan(step=6)) != first != targets(plan(seed=1))


def test_positions_start_again_with_each_sample() -> None:
    for batch in plan().optimizer_batches:
        for packed in batch.micro_batches:
            starts = np.flatnonzero(packed.positions == 0)
            for start, end in zip(starts, [*starts[1:], len(packed.positions)], strict=True):
                assert packed.positions[start:end].tolist() == list(range(end - start))


@pytest.mark.parametrize("pack_length", [40, 64, 400])
def test_gradient_and_loss_do_not_depend_on_the_packing(pack_length: int) -> None:
    weights = LossWeights(epsilon=0.2, delta=4.0, kl=0.5, entropy=0.01)
    outcomes = []
    for length in (pack_length, 128):
        model = make_model().double()
        found = plan(optimizer_steps=1, pack_length=length)
        old = plan_logprobs(model, found, lambda: None)
        reference = plan_logprobs(make_model(seed=1).double(), found, lambda: None)
        model.get_parameter("lm_head.weight").data *= 1.1  # so that ratios differ from 1
        sums = accumulate(model, found.optimizer_batches[0], old[0], reference[0], weights, lambda: None)
        gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        outcomes.append((sum(part.loss for part in sums), gradient))
    assert outcomes[0][0] == pytest.approx(outcomes[1][0], rel=1e-5)
    torch.testing.assert_close(outcomes[0][1], outcomes[1][1], rtol=1e-4, atol=1e-7)


def test_a_pack_of_tool_output_alone_is_left_out() -> None:
    silent = [replace(sample, mask=np.zeros_like(sample.mask)) for sample in groups()[0].samples]
    found = plan_step([Group(silent), groups()[1]], recipe(optimizer_steps=1, pack_length=40), seed=0, step=5)
    assert all(len(packed.targets) for packed in found.optimizer_batches[0].micro_batches)
    assert found.optimizer_batches[0].token_count == sum(sample.completion_length for sample in groups()[1].samples)


def test_fewer_samples_than_optimizer_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="step 5 has 16 samples for 17 optimizer steps; lower optimizerSteps"):
        plan(optimizer_steps=17)


def test_a_sample_longer_than_a_pack_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"sample \d+ has \d+ tokens; allowed: 1 to 16, the length of a pack"):
        plan(pack_length=16)


def test_the_mismatch_is_the_mean_gap_between_the_workers_and_our_log_probabilities() -> None:
    found = plan()
    same = [[packed.worker_logprobs for packed in batch.micro_batches] for batch in found.optimizer_batches]
    assert mismatch(found, same) == 0.0
    lower = [[logprobs - 0.25 for logprobs in batch] for batch in same]
    assert mismatch(found, lower) == pytest.approx(0.25, rel=1e-6)
