"""What a validator counts of an accepted file's answers: right, cut off, without a final answer, and samples where no group carries signal."""

from dataclasses import replace
from typing import Any

import pytest
from court import JOB, METADATA, Court

from shoal.contracts.rollouts import Rollout
from shoal.contracts.verdicts import RowReward
from shoal.contracts.work import FIRST_SLICE
from shoal.validation.answers import file_answers, sample_text
from shoal.validation.facts import File


class Formless:
    """An environment that cannot tell answers without a final one."""

    name = "formless"


class Failing:
    name = "failing"

    def has_answer(self, task: Any, completion: str) -> bool:
        raise ValueError("no")


def counted(court: Court, rows: list[Rollout], given: list[float | None], environment: Any = None) -> Any:
    facts = court.facts if environment is None else replace(court.facts, environment=environment)
    rewards = [RowReward(task_reward=value, length_penalty=value and 0.0, reward=value) for value in given]
    return file_answers(File(JOB, rows, METADATA), facts, rewards)


def test_an_accepted_verdict_carries_the_counts(court: Court, honest: list[Rollout]) -> None:
    verdict = court.judge(honest)
    assert verdict.outcome == "accept"
    found = verdict.answers
    assert found is not None
    given = [row.task_reward for row in verdict.rewards]
    assert (found.rows, found.right) == (len(honest), given.count(1.0))
    assert found.cut == sum(row.finish_reason == "length" for row in honest)
    assert found.groups == len(honest) // court.facts.group_size
    assert found.unanswered is not None
    assert found.unanswered <= found.rows - found.right


def test_a_file_of_an_evaluation_and_a_rejected_one_carry_none(court: Court, honest: list[Rollout]) -> None:
    lying = [replace(row, task_reward=0.5) for row in honest]
    assert court.judge(lying).answers is None
    assert court.judge(honest, job=JOB.model_copy(update={"step": FIRST_SLICE})).answers is None


def test_groups_are_told_apart_and_unscorable_rows_are_nobody_s_zero(court: Court, honest: list[Rollout]) -> None:
    size = court.facts.group_size
    given = [1.0] * size + [0.0] * (size - 1) + [None] + [1.0] + [0.0] * (size - 1)
    found = counted(court, honest[: 3 * size], given)
    assert (found.groups, found.groups_right, found.groups_wrong, found.unscorable) == (3, 1, 1, 1)
    assert found.samples == [], "a group carries signal"


def test_a_file_without_signal_has_three_samples_as_the_model_saw_and_answered_them(
    court: Court, honest: list[Rollout]
) -> None:
    found = counted(court, honest, [0.0] * len(honest))
    groups = len(honest) // court.facts.group_size
    assert len(found.samples) == min(3, groups)
    sample = found.samples[0]
    assert sample.prompt == sample_text(
        court.facts.tokenizer.decode(
            list(honest[0].prompt_tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
    )
    assert (sample.tokens, sample.cut) == (len(honest[0].completion_tokens), honest[0].finish_reason == "length")


@pytest.mark.parametrize("environment", [Formless(), Failing()])
def test_an_environment_that_cannot_tell_costs_no_verdict(
    court: Court, honest: list[Rollout], environment: Any
) -> None:
    assert counted(court, honest, [0.0] * len(honest), environment).unanswered is None


def test_text_of_a_stranger_is_bounded_and_harmless() -> None:
    assert sample_text("a\nb") == "a\nb"
    assert sample_text("\x1b[31m\u202e") == "\\x1b[31m\\u202e"
    long = sample_text("x" * 10_000 + "END")
    assert len(long) <= 600
    assert long.endswith("END")
    assert "[...]" in long
    assert len(sample_text("\x00" * 10_000)) <= 600
