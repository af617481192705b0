"""VinePPO: values and advantages are the paper's in float64, from what validators scored, and only completions are trained on."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_vineppo as reference
import torch
from test_batches import groups
from tiny_run import (
    MAX_LENGTH,
    VALIDATOR,
    VOCABULARY,
    Orchestrator,
    accept,
    batch_of,
    config,
    make_store,
    make_trainer,
    rows_of,
    write_base,
)
from tiny_run import recipe as base_recipe
from vine_rows import VINE, continued, fill_vine_step, rewards_for

from servers import Loopback
from shoal.contracts import keys
from shoal.contracts.recipe import OverlongShaping, Recipe
from shoal.contracts.steps import StepMetrics
from shoal.contracts.verdicts import RowReward
from shoal.storage import Store
from shoal.training.batches import plan_step
from shoal.training.extensions.base import Extensions
from shoal.training.extensions.enabled import recipe_extensions
from shoal.training.extensions.vine.extension import VineContinuations, value_advantages
from shoal.training.extensions.vine.values import boundary_means, token_advantages, values_of, whitened
from shoal.training.objectives import overlong_penalty
from shoal.training.rollouts import BadBatch, ContinuationReward, RolloutGroup, RowLimits, Sample, read_groups

LIMITS = RowLimits(VOCABULARY, MAX_LENGTH, VineContinuations(VINE))
UNSCORED = RowReward(task_reward=None, length_penalty=None, reward=None)


def recipe(**changes: Any) -> Recipe:
    normalize = changes.pop("normalize_advantages", True)
    return base_recipe(algorithm={"vineppo": {**VINE.model_dump(), "normalize_advantages": normalize}}, **changes)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


def with_estimates(given: list[RolloutGroup], seed: int = 1) -> list[RolloutGroup]:
    """The groups with continuations of random rewards and lengths."""
    chance, found = np.random.default_rng(seed), []
    for group in given:
        samples = []
        for sample in group.samples:
            positions = VINE.positions(sample.completion_length)
            estimates = [
                ContinuationReward(boundary, position, float(chance.random()), position + int(chance.integers(1, 9)))
                for boundary, position in enumerate(positions, 1)
                for _ in range(VINE.continuations)
            ]
            samples.append(replace(sample, estimates=tuple(estimates)))
        found.append(RolloutGroup(samples))
    return found


def as_reference(
    given: list[RolloutGroup], shaped: Any = lambda sample, reward, length: reward
) -> list[reference.Rolled]:
    found = []
    for number, group in enumerate(given):
        for sample in group.samples:
            rollouts: dict[int, list[float]] = {}
            for each in sample.estimates:
                rollouts.setdefault(each.position, []).append(shaped(sample, each.reward, each.length))
            length = sample.completion_length
            found.append(reference.Rolled(number, length, shaped(sample, sample.reward, length), rollouts))
    return found


def samples_of(given: list[RolloutGroup]) -> list[Sample]:
    return [sample for group in given for sample in group.samples]


def same(found: list[Any], wanted: list[list[float]]) -> None:
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_an_example_by_hand() -> None:
    """Six tokens in three parts: half of all siblings are right, the first part helps, the second spoils it, the last saves it."""
    one = replace(
        groups()[0].samples[0], tokens=np.arange(9), prompt_length=3, mask=np.ones(6, dtype=np.bool_),
        logprobs=np.zeros(6, dtype=np.float32), reward=1.0,
    )  # fmt: skip
    estimates = (
        ContinuationReward(1, 2, 1.0, 6),
        ContinuationReward(1, 2, 1.0, 7),
        ContinuationReward(2, 4, 0.0, 8),
        ContinuationReward(2, 4, 0.5, 8),
    )
    siblings = [replace(one, reward=reward) for reward in (1.0, 0.0)]
    values = values_of(RolloutGroup([replace(one, estimates=estimates), *siblings]))[0]
    assert values == [(0, 0.5), (2, 1.0), (4, 0.25), (6, 1.0)]
    assert token_advantages(values).tolist() == [0.5, 0.5, -0.75, -0.75, 0.75, 0.75]


@pytest.mark.parametrize("normalize", [True, False])
def test_advantages_are_the_papers_in_float64(normalize: bool) -> None:
    given = with_estimates(groups())
    found = value_advantages(given, recipe(normalize_advantages=normalize))
    wanted = reference.advantages(as_reference(given))
    if normalize:
        wanted = reference.whitened(wanted, [sample.mask.tolist() for sample in samples_of(given)])
    same([advantage for _, advantage in found], wanted)
    assert [sample for sample, _ in found] == samples_of(given)


def test_without_discount_the_advantages_of_a_completion_add_up_to_its_reward_less_the_prompts_value() -> None:
    for group in with_estimates(groups()):
        for values, sample in zip(values_of(group), group.samples, strict=True):
            others = [other.reward for other in group.samples if other is not sample]
            steps = np.diff([level for _, level in values])
            assert steps.sum() == pytest.approx(sample.reward - np.mean(others))


def test_a_completion_of_fewer_tokens_than_parts_takes_all_continuations_from_a_position_together() -> None:
    given = with_estimates([RolloutGroup(shortened(group.samples)) for group in groups()])
    wanted = reference.advantages(as_reference(given))
    same([advantage for _, advantage in value_advantages(given, recipe(normalize_advantages=False))], wanted)
    lone = values_of(given[0])[0]
    assert [position for position, _ in lone] == [0, 1]
    fresh = [each.reward for each in given[0].samples[0].estimates]
    others = [sample.reward for sample in given[0].samples[1:]]
    assert lone[0][1] == pytest.approx(np.mean([*others, *fresh]))


def shortened(samples: list[Sample]) -> list[Sample]:
    """Completions of one and two tokens."""
    return [
        replace(
            sample, tokens=sample.tokens[: sample.prompt_length + size], mask=sample.mask[:size], logprobs=sample.logprobs[:size]
        )
        for sample, size in zip(samples, (1, 2, 1, 2), strict=True)
    ]  # fmt: skip


def test_a_boundary_without_a_scored_continuation_is_none_and_its_parts_are_one() -> None:
    given = with_estimates(groups())
    first = given[0].samples[0]
    kept = tuple(each for each in first.estimates if each.boundary == 2)
    given[0] = RolloutGroup([replace(first, estimates=kept), *given[0].samples[1:]])
    assert [place for place, _ in values_of(given[0])[0]] == [0, kept[0].position, first.completion_length]
    same(
        [advantage for _, advantage in value_advantages(given, recipe(normalize_advantages=False))],
        reference.advantages(as_reference(given)),
    )


def test_overlong_answers_lose_reward_in_every_value() -> None:
    shaping = OverlongShaping(buffer_tokens=8, penalty=0.5)
    given = with_estimates(groups())

    def shaped(sample: Sample, reward: float, length: int) -> float:
        return reward - overlong_penalty(length, min(12, MAX_LENGTH - sample.prompt_length), shaping)

    chosen = recipe(normalize_advantages=False, overlong_shaping=shaping)
    found = [advantage for _, advantage in value_advantages(given, chosen, completion_limit=12)]
    wanted = reference.advantages(as_reference(given, shaped))
    same(found, wanted)
    plain = value_advantages(given, recipe(normalize_advantages=False))
    assert any(not np.allclose(ours, theirs) for ours, (_, theirs) in zip(found, plain, strict=True))


def test_answers_that_nobody_learns_from_are_no_part_of_the_whitening() -> None:
    given = with_estimates(groups())
    chosen = recipe(overlong_filter=True)
    cut = [sample.completion_length >= min(12, MAX_LENGTH - sample.prompt_length) for sample in samples_of(given)]
    assert any(cut)
    plan = plan_step(given, chosen, seed=0, step=5, completion_limit=12, advantages=value_advantages)
    learnt = torch.cat([packed.advantages for batch in plan.optimizer_batches for packed in batch.micro_batches])
    lengths = [sample.completion_length for sample in samples_of(given)]
    assert len(learnt) == sum(length for length, gone in zip(lengths, cut, strict=True) if not gone)
    assert float(learnt.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(learnt.std(correction=0)) == pytest.approx(1.0, abs=1e-6)


def test_a_step_in_which_nothing_differs_has_no_signal() -> None:
    given = [
        RolloutGroup(
            [replace(sample, reward=1.0, estimates=(ContinuationReward(1, 1, 1.0, 3),)) for sample in group.samples]
        )
        for group in groups()
    ]
    assert all(not np.any(advantage) for _, advantage in value_advantages(given, recipe()))
    sample = groups()[0].samples[0]
    none_sampled = replace(sample, mask=np.zeros_like(sample.mask))
    assert all(not np.any(each) for each in whitened([np.zeros(len(sample.mask))], [none_sampled]))


def test_a_completion_alone_in_its_group_is_refused() -> None:
    with pytest.raises(ValueError, match="its group has no other completion; allowed: groups of two or more"):
        values_of(RolloutGroup(groups()[0].samples[:1]))


def test_each_token_is_trained_with_its_own_advantage_however_it_is_packed() -> None:
    given = with_estimates(groups())
    by_token = {}
    for sample, advantage in value_advantages(given, recipe()):
        assert isinstance(advantage, np.ndarray)
        by_token[tuple(sample.tokens.tolist())] = advantage.astype(np.float32)
    for pack_length in (40, 128):
        seen = 0
        plan = plan_step(given, recipe(pack_length=pack_length), seed=0, step=5, advantages=value_advantages)
        for packed in (packed for batch in plan.optimizer_batches for packed in batch.micro_batches):
            start = 0
            for begin, end in zip(packed.segments.bounds, packed.segments.bounds[1:], strict=False):
                wanted = by_token[tuple(packed.tokens[begin:end].tolist())]
                assert packed.advantages[start : start + len(wanted)].tolist() == wanted.tolist()
                start += len(wanted)
                seen += 1
            assert start == len(packed.targets)
        assert seen == 16  # completions alone: no continuation is trained on


def test_tokens_that_nobody_sampled_are_no_part_of_the_whitening_and_not_trained() -> None:
    given = with_estimates(groups())
    for group in given:
        for sample in group.samples:
            sample.mask[::2] = False
    wanted = reference.whitened(
        reference.advantages(as_reference(given)), [sample.mask.tolist() for sample in samples_of(given)]
    )
    same([advantage for _, advantage in value_advantages(given, recipe())], wanted)
    plan = plan_step(given, recipe(), seed=0, step=5, advantages=value_advantages)
    assert plan.token_count == sum(int(sample.mask.sum()) for sample in samples_of(given))


def test_continuations_are_read_as_estimates_of_their_own_completion(store: Store) -> None:
    rows = continued(rows_of(5))
    rewards = rewards_for(rows)
    rewards[16 + 2] = UNSCORED
    read = read_groups(store, batch_of(5, [accept(store, rows, rewards)]), VALIDATOR.public, LIMITS)
    assert (read.left_out, read.problems) == (0, [])
    samples = samples_of(read.groups)
    assert len(samples) == 16
    for number, (sample, row) in enumerate(zip(samples, rows, strict=False)):
        assert sample.tokens.tolist() == [*row.prompt_tokens, *row.completion_tokens]
        numbers = [place for place in range(16 + 4 * number, 20 + 4 * number) if place != 18]
        assert [each.reward for each in sample.estimates] == [rewards[place].reward for place in numbers]
        for each, place in zip(sample.estimates, numbers, strict=True):
            assert len(rows[place].prompt_tokens) == len(row.prompt_tokens) + each.position
            assert each.length == each.position + len(rows[place].completion_tokens)


def test_ranks_that_read_other_estimates_do_not_agree(store: Store) -> None:
    rows = continued(rows_of(5))
    rewards = rewards_for(rows)
    again = [*rewards[:-1], RowReward(task_reward=0.5, length_penalty=0.0, reward=0.5)]
    digests = {
        read_groups(store, batch_of(5, [accept(store, rows, given)]), VALIDATOR.public, LIMITS).digest
        for given in (rewards, again)
    }
    assert len(digests) == 2


def test_a_file_whose_continuations_are_not_those_of_its_completions_is_not_trained_on(store: Store) -> None:
    rows = continued(rows_of(5))
    rewards = rewards_for(rows)
    wrong = [*rows[:16], replace(rows[17], prompt_tokens=[*rows[17].prompt_tokens, 3]), *rows[17:]]
    cases = (
        (wrong, r"row 16 does not continue the first \d+ tokens of row 0"),
        (rows[:-1], "79 rows; allowed: a multiple of 5"),
    )
    for bad, words in cases:
        batch = batch_of(5, [accept(store, bad, rewards[: len(bad)])])
        with pytest.raises(BadBatch, match=words):
            read_groups(store, batch, VALIDATOR.public, LIMITS)
        left = read_groups(store, batch, VALIDATOR.public, LIMITS, leave_out=True)
        assert (left.groups, left.left_out) == ([], len(bad))


def test_a_file_whose_counts_disagree_is_not_trained_on(store: Store) -> None:
    rows = continued(rows_of(5))
    rewards = rewards_for(rows)
    shorter = accept(store, rows, rewards[:75])
    fewer = accept(store, rows_of(5), rewards[:16]).model_copy(update={"rows": 10})
    for file, words in (
        (shorter, "has 80 rows, batch.json says 80, the verdict rewards 75"),
        (fewer, "batch.json says 10"),
    ):
        batch = batch_of(5, [file])
        with pytest.raises(BadBatch, match=words):
            read_groups(store, batch, VALIDATOR.public, LIMITS)
        assert read_groups(store, batch, VALIDATOR.public, LIMITS, leave_out=True).left_out == file.rows


def test_the_report_has_the_mean_value_at_each_boundary() -> None:
    given = with_estimates(groups())
    found = boundary_means(given, VINE.segments)
    everyone = samples_of(given)
    assert len(found) == 4
    assert found[0] == found[3] == pytest.approx(np.mean([sample.reward for sample in everyone]))
    for boundary in (1, 2):
        rewards = [each.reward for sample in everyone for each in sample.estimates if each.boundary == boundary]
        assert found[boundary] == pytest.approx(np.mean(rewards))
    assert boundary_means(groups(), VINE.segments) == [found[0]] * 4
    assert Extensions(*recipe_extensions(recipe())).measured(given) == {"value_by_boundary": found}
    assert Extensions(*recipe_extensions(base_recipe())).measured(given) == {}


@pytest.fixture(scope="module")
def orchestrator(loopback: Loopback) -> Iterator[Orchestrator]:
    server = Orchestrator(loopback.address())
    server.latest_version = 2
    yield server
    server.close()


def test_a_run_trains_on_completions_and_reports_values(tmp_path: Path, orchestrator: Orchestrator) -> None:
    store, base = make_store(tmp_path / "store"), write_base(tmp_path / "base")
    for step in range(2):
        fill_vine_step(store, step)
    run = config(orchestrator.url, steps=2, recipe=recipe())
    make_trainer(tmp_path, base, store, orchestrator, run).run()
    for step in range(2):
        metrics = StepMetrics.from_json(store.get(keys.step_metrics(step)))
        assert metrics.rows == 16
        assert metrics.completion_tokens == sum(len(row.completion_tokens) for row in rows_of(step))
        assert metrics.gradient_norm > 0
        assert len(metrics.value_by_boundary) == 4
        assert len(set(metrics.value_by_boundary[1:])) == 3
    weights = {path.read_bytes() for path in (tmp_path / "outbox").glob("v*/model.safetensors")}
    assert len(weights) == 3
