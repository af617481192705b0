"""Continuations are no rollouts of their own in the report and on the page, and say what they continue."""

import dataclasses

import pytest
from run_documents import step_metrics

from samples import rollout
from shoal.contracts.rollouts import Rollout, RolloutMetadata
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.contracts.vine import VineSettings, continuations
from shoal.report.collect import collect
from shoal.report.continuations import completions_of, parents_of
from shoal.report.facts import StoreFacts
from shoal.ui.documents import verdict_document
from shoal.ui.rollouts import TokenText, file_document, row_document

VINE = VineSettings(segments=3, continuations=2)
PARENTS = 4
ROWS = PARENTS * VINE.rows_each
SLICE = 1_000_000
METADATA = RolloutMetadata("tiny", "0" * 64, "1" * 64, "0")


def rows() -> list[Rollout]:
    """Four completions of nine tokens, and from a third and two thirds of each two more endings."""
    found = [
        rollout(prompt_tokens=[1, 2], completion_tokens=list(range(9)), completion_logprobs=[-0.5] * 9, completion_mask=[True] * 9, sample_index=n)
        for n in range(PARENTS)
    ]  # fmt: skip
    for each in continuations(PARENTS, VINE):
        parent = found[each.parent]
        prefix = parent.completion_tokens[: VINE.positions(9)[each.boundary - 1]]
        prompt, index = [*parent.prompt_tokens, *prefix], each.sample_index(PARENTS, VINE)
        found.append(dataclasses.replace(parent, prompt_tokens=prompt, sample_index=index))
    return found


def accepted(step: int = 0) -> Verdict:
    """Every second completion is right, and no continuation."""
    values = [float(number % 2) if number < PARENTS else 0.0 for number in range(ROWS)]
    return Verdict(
        run="demo",
        node="ab" * 32,
        lease="ab" * 16,
        step=step,
        submission=0,
        sha256="cd" * 32,
        outcome="accept",
        policy_version=0,
        rows=ROWS,
        rewards=[RowReward(task_reward=value, length_penalty=0.0, reward=value) for value in values],
    )


def test_a_file_on_the_page_has_the_reward_of_its_completions() -> None:
    shown = verdict_document(accepted(), None, VINE)
    assert (shown["rows"], shown["completions"], shown["task_reward"]) == (ROWS, PARENTS, 0.5)
    of_a_benchmark = verdict_document(accepted(SLICE), None, VINE)
    assert (of_a_benchmark["completions"], of_a_benchmark["task_reward"]) == (ROWS, pytest.approx(2 / ROWS))
    assert verdict_document(accepted(), None)["completions"] == ROWS


def test_a_continuation_on_the_page_says_which_row_it_continues_and_from_where() -> None:
    parsed = (rows(), METADATA)
    shown = file_document(parsed, accepted(), VINE)["rows"]
    assert [row["continues"] for row in shown] == [None] * 4 + [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert [row["cut"] for row in shown[PARENTS : PARENTS + 4]] == [3, 3, 6, 6]
    alone = row_document(parsed, accepted(), PARENTS + 6, TokenText(None), VINE)
    assert (alone["continues"], alone["cut"], alone["row"]) == (1, 6, PARENTS + 6)
    assert {row["continues"] for row in file_document(parsed, accepted())["rows"]} == {None}


def test_a_file_with_rows_too_many_or_too_few_says_nothing_of_what_they_are() -> None:
    short = (rows()[:7], METADATA)
    assert {row["continues"] for row in file_document(short, accepted(), VINE)["rows"]} == {None}
    assert (completions_of(3, 0, VINE), parents_of(3, 0, VINE)) == (3, {})


def test_the_report_counts_no_continuation_as_a_rollout() -> None:
    facts = StoreFacts(kind="folder")
    facts.steps.append(step_metrics(0))
    facts.verdicts.append(accepted())
    assert collect("demo", 10, facts, []).sampled_reward_start == pytest.approx(2 / ROWS)
    assert collect("demo", 10, facts, [], vine=VINE).sampled_reward_start == 0.5
