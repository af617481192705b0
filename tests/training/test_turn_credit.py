"""Credit by turns: a turn's tokens are learnt by the rewards of that turn and later ones, relative to all turns of the group."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_run import MAX_LENGTH, VALIDATOR, VOCABULARY, accept, batch_of, make_store, recipe, rewards_of, rows_of

from shoal.contracts.algorithm import Algorithm, Grpo, Gspo
from shoal.contracts.recipe import OverlongShaping
from shoal.contracts.verdicts import RowReward
from shoal.training.advantages import group_advantages, turn_advantages
from shoal.training.batches import plan_step, score
from shoal.training.rollouts import BadBatch, RolloutGroup, RowLimits, Sample, StepRows, read_groups

TURNS = ((0.25, 0.0, 0.5), (0.0,), (-0.5, 1.0), (0.0, 0.125, 0.0, 0.375))
"""Rewards of the turns of a group's four episodes."""


def reference(rewards: Sequence[Sequence[float]], normalize: bool, leave_one_out: bool) -> list[list[float]]:
    """DeepSeekMath, section 4.1.3, written out: R is all rewards of the group, A of turn k the sum of (r - mean(R)) / std(R) from k on."""
    every = [each for episode in rewards for each in episode]
    mean = math.fsum(every) / len(every)
    spread = math.sqrt(math.fsum((each - mean) ** 2 for each in every) / len(every)) if normalize else 1.0
    found = []
    for number, episode in enumerate(rewards):
        others = [each for place, row in enumerate(rewards) for each in row if place != number]
        base = math.fsum(others) / len(others) if leave_one_out else mean
        relative = [(each - base) / spread for each in episode]
        found.append([math.fsum(relative[turn:]) for turn in range(len(episode))])
    return found


def sample(number: int, turns: Sequence[float], **changes: Any) -> Sample:
    """An episode whose turns have 2 tokens each, with 3 tokens of answers between two turns."""
    mask = [each for _ in turns for each in (True, True, False, False, False)][:-3]
    fields: dict[str, Any] = {
        "name": f"row {number}",
        "tokens": np.arange(1, len(mask) + 5) % VOCABULARY,
        "prompt_length": 4,
        "mask": np.array(mask),
        "logprobs": np.zeros(len(mask), dtype=np.float32),
        "temperature": 1.0,
        "policy_version": 4,
        "task_reward": math.fsum(turns),
        "length_penalty": 0.0,
        "reward": math.fsum(turns),
        "turn_rewards": tuple(turns),
    }
    return Sample(**(fields | changes))


GROUP = RolloutGroup([sample(number, turns) for number, turns in enumerate(TURNS)])


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("leave_one_out", [True, False])
def test_a_turn_has_its_and_later_rewards_relative_to_all_turns_of_the_group(
    normalize: bool, leave_one_out: bool
) -> None:
    found = turn_advantages(TURNS, normalize=normalize, leave_one_out=leave_one_out)
    for ours, theirs in zip(found, reference(TURNS, normalize, leave_one_out), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("leave_one_out", [True, False])
def test_episodes_of_one_turn_have_the_advantages_of_whole_episodes(normalize: bool, leave_one_out: bool) -> None:
    rewards = [1.0, 0.25, 0.0, 0.0]
    found = turn_advantages([[each] for each in rewards], normalize=normalize, leave_one_out=leave_one_out)
    whole = group_advantages(np.array(rewards), normalize=normalize, leave_one_out=leave_one_out)
    np.testing.assert_allclose(np.concatenate(found), whole, rtol=0, atol=1e-14)


@pytest.mark.parametrize("leave_one_out", [True, False])
def test_equal_turns_teach_nothing(leave_one_out: bool) -> None:
    for each in turn_advantages([[0.5, 0.5], [0.5]], normalize=True, leave_one_out=leave_one_out):
        np.testing.assert_array_equal(each, 0.0)


def test_a_turn_whose_reward_is_no_number_is_refused_by_its_place() -> None:
    with pytest.raises(ValueError, match="reward 2 of the group is nan; allowed: finite numbers"):
        turn_advantages([[0.0, 1.0], [math.nan]], normalize=True)


def test_each_token_has_the_advantage_of_its_turn_and_answers_have_none() -> None:
    wanted = reference(TURNS, normalize=True, leave_one_out=False)
    for (row, advantages), turns in zip(score(GROUP, recipe(credit="Turn")), wanted, strict=True):
        tokens = [value for each in turns for value in (each, each, 0.0, 0.0, 0.0)][:-3]
        np.testing.assert_allclose(np.asarray(advantages), tokens, rtol=0, atol=1e-14, err_msg=row.name)


def test_without_the_field_an_episode_has_one_advantage_whatever_its_turns() -> None:
    found = [advantage for _, advantage in score(GROUP, recipe())]
    whole = group_advantages(np.array([math.fsum(turns) for turns in TURNS]), normalize=True)
    np.testing.assert_array_equal(np.array(found), whole)


def test_what_length_costs_is_taken_from_the_last_turn() -> None:
    short = RolloutGroup([replace(row, length_penalty=0.1, reward=row.task_reward - 0.1) for row in GROUP.samples])
    plain = recipe(credit="Turn", algorithm=Algorithm(one_sided_grpo=Grpo(normalize_advantages=False)))
    shaped = plain.model_copy(update={"overlong_shaping": OverlongShaping(buffer_tokens=20, penalty=1.0)})
    costs = [[0.1 + max(0.0, (row.completion_length - 16) / 20) for row in short.samples], [0.1] * 4]
    for chosen, taken in zip((shaped, plain), costs, strict=True):
        turns = [[*each[:-1], each[-1] - cost] for each, cost in zip(TURNS, taken, strict=True)]
        wanted = reference(turns, normalize=False, leave_one_out=False)
        for (_, advantages), each in zip(score(short, chosen), wanted, strict=True):
            np.testing.assert_allclose(np.asarray(advantages)[::5], each, rtol=0, atol=1e-14)


def test_a_cut_episode_teaches_nothing_and_its_turns_count_for_the_others() -> None:
    found = plan_step([GROUP], recipe(credit="Turn", overlong_filter=True), seed=0, step=5, completion_limit=17)
    every = plan_step([GROUP], recipe(credit="Turn"), seed=0, step=5, completion_limit=17)
    kept, all_tokens = (
        sorted(value for batch in each.optimizer_batches for part in batch.micro_batches for value in part.advantages.tolist())
        for each in (found, every)
    )  # fmt: skip
    assert len(all_tokens) - len(kept) == 8  # the episode of four turns has 17 tokens
    assert set(kept) < set(all_tokens)


@pytest.mark.parametrize("world", [2, 3])
def test_what_is_learnt_is_the_same_on_any_number_of_ranks(world: int) -> None:
    groups = [RolloutGroup([replace(row, name=f"{row.name} of {at}") for row in GROUP.samples]) for at in range(4)]
    chosen = recipe(credit="Turn", pack_length=48)
    alone = plan_step(groups, chosen, seed=0, step=5)
    shares = [plan_step(groups, chosen, seed=0, step=5, rank=rank, world=world) for rank in range(world)]
    assert {share.digest for share in shares} == {alone.digest}
    for number, batch in enumerate(alone.optimizer_batches):
        dealt = [part for share in shares for part in share.optimizer_batches[number].micro_batches]
        assert sorted(value for part in dealt for value in part.advantages.tolist()) == sorted(
            value for part in batch.micro_batches for value in part.advantages.tolist()
        )


def test_rewards_of_turns_are_told_apart_by_every_digest() -> None:
    other = RolloutGroup([replace(GROUP.samples[0], turn_rewards=(0.5, 0.0, 0.25)), *GROUP.samples[1:]])
    digests = {StepRows([group], 0, []).digest for group in (GROUP, other)}
    plans = {plan_step([group], recipe(credit="Turn"), seed=0, step=5).digest for group in (GROUP, other)}
    assert len(digests) == len(plans) == 2
    assert len({plan_step([group], recipe(), seed=0, step=5).digest for group in (GROUP, other)}) == 1


def test_a_ratio_of_whole_completions_is_refused() -> None:
    with pytest.raises(ValueError, match=r"recipe\.credit: Turn does not go with gspo"):
        score(GROUP, recipe(credit="Turn", algorithm=Algorithm(gspo=Gspo())))


def test_documents_without_credit_by_turns_are_as_they_were() -> None:
    assert b"credit" not in recipe().to_json()
    assert RowReward(task_reward=1.0, length_penalty=0.0, reward=1.0).to_json() == (
        b'{"task_reward":1.0,"length_penalty":0.0,"reward":1.0}'
    )


def read(store_folder: Path, turns: tuple[float, ...] | None, *, by_turn: bool) -> list[Sample]:
    store, rows = make_store(store_folder), rows_of(5)
    rewards = [each.model_copy(update={"turns": turns}) for each in rewards_of(rows)]
    batch = batch_of(5, [accept(store, rows, rewards)])
    limits = RowLimits(VOCABULARY, MAX_LENGTH, turn_credit=by_turn)
    return read_groups(store, batch, VALIDATOR.public, limits).groups[0].samples


def test_a_verdict_with_another_number_of_turns_is_refused_by_file_and_row(tmp_path: Path) -> None:
    for name, turns, words in (("none", None, "0 turns"), ("three", (0.0, 0.5, 0.5), "3 turns")):
        with pytest.raises(
            BadBatch, match=rf"row 0: the verdict rewards {words} and the row has \d; recipe\.credit is Turn"
        ):
            read(tmp_path / name, turns, by_turn=True)
    assert read(tmp_path / "off", (0.0, 0.5, 0.5), by_turn=False)[0].turn_rewards == ()
