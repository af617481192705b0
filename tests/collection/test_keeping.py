"""Which completions a data set keeps, one rule a test."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.collection import keeping
from shoal.collection.keeping import Completed, Sieve, count, normal
from shoal.contracts.datasets import GenerateSettings
from shoal.contracts.filtering import ProblemCount

RIGHT = Completed("p", "math", "What is 1 + 1?", "It is 2.", tokens=5, task_reward=1.0)


def sieve(**settings: Any) -> Sieve:
    return Sieve(GenerateSettings(**settings))


def reason(row: Completed, **settings: Any) -> str | None:
    kept, left_out = sieve(**settings).keep([row])
    assert len(kept) + sum(left_out.values()) == 1
    return next(iter(left_out), None)


def test_a_right_completion_becomes_a_trace() -> None:
    [trace], left_out = sieve().keep([RIGHT])
    assert (trace.problem_id, trace.prompt, trace.completion, trace.reward, trace.tokens) == (
        "p", "What is 1 + 1?", "It is 2.", 1.0, 5,
    )  # fmt: skip
    assert not left_out


@pytest.mark.parametrize(
    ("changes", "settings", "expected"),
    [
        ({"task_reward": None}, {}, keeping.UNSCORED),
        ({"task_reward": 0.0}, {}, keeping.WRONG),
        ({"task_reward": 0.999}, {}, keeping.WRONG),
        ({"whole": False}, {}, keeping.CUT_OFF),
        ({"tool_output": True}, {}, keeping.TOOL_OUTPUT),
        ({}, {"min_completion_tokens": 6}, keeping.TOO_SHORT),
        ({}, {"min_completion_tokens": 5}, None),
        ({}, {"max_completion_tokens": 4}, keeping.TOO_LONG),
        ({}, {"max_completion_tokens": 5}, None),
    ],
)
def test_what_is_left_out_has_one_reason(
    changes: dict[str, Any], settings: dict[str, Any], expected: str | None
) -> None:
    assert reason(replace(RIGHT, **changes), **settings) == expected


def test_a_text_above_the_bound_is_left_out_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "MAX_TEXT_BYTES", 10)
    assert reason(RIGHT) == keeping.TOO_LARGE


def test_a_problem_has_no_more_traces_than_allowed_the_first_ones() -> None:
    rows = [replace(RIGHT, completion=f"It is {'really ' * n}2.") for n in range(5)]
    kept, left_out = sieve(traces_per_problem=3).keep(rows)
    assert [trace.completion for trace in kept] == [row.completion for row in rows[:3]]
    assert left_out == {keeping.ENOUGH: 2}


def test_the_same_text_is_kept_once_and_a_like_one_told_apart_from_it() -> None:
    rows = [RIGHT, RIGHT, replace(RIGHT, completion="  it\u00a0IS\n\uff12. ")]
    kept, left_out = sieve().keep(rows)
    assert len(kept) == 1
    assert left_out == {keeping.SAME: 1, keeping.ALIKE: 1}


def test_the_same_answer_to_another_problem_is_another_trace() -> None:
    whole = sieve()
    assert len(whole.keep([RIGHT])[0]) == 1
    assert len(whole.keep([replace(RIGHT, problem_id="q", prompt="What is 4 / 2?")])[0]) == 1


def test_the_same_problem_under_another_name_is_no_new_trace() -> None:
    whole = sieve()
    whole.keep([RIGHT])
    assert whole.keep([replace(RIGHT, problem_id="twin")])[1] == {keeping.SAME: 1}


def test_a_restarted_sieve_knows_what_was_written() -> None:
    kept, _ = sieve().keep([RIGHT])
    again = sieve()
    again.remember(kept)
    assert again.keep([RIGHT])[1] == {keeping.SAME: 1}


@given(st.lists(st.sampled_from(["a", "A", "a ", "b", "c"]), max_size=12))
def test_no_two_traces_are_alike_whatever_comes(completions: list[str]) -> None:
    kept, left_out = sieve(traces_per_problem=1000).keep([replace(RIGHT, completion=text) for text in completions])
    texts = [normal(trace.completion) for trace in kept]
    assert len(texts) == len(set(texts))
    assert len(kept) + sum(left_out.values()) == len(completions)


def test_a_problem_is_counted_over_what_could_be_scored() -> None:
    rows = [RIGHT, replace(RIGHT, task_reward=0.0, tokens=7), replace(RIGHT, task_reward=None, tokens=3)]
    assert count(rows) == ProblemCount("p", samples=2, correct=1, mean_tokens=5.0)
