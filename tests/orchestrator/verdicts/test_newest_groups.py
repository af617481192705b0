"""Whether a run can learn: one cause after another, told after a bounded number of groups, and forgotten when signal comes back."""

from collections.abc import Iterator

import pytest

from shoal.contracts.answers import AnswerSample, FileAnswers
from shoal.contracts.recipe import Recipe
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.orchestrator.verdicts.learning import (
    TELLING_GROUPS,
    WINDOW_GROUPS,
    AnswerWindow,
    JudgedAnswers,
    fewest_groups,
    learning_of,
)

SAMPLE = AnswerSample(problem_id="p", prompt="1+1=", answer="", tokens=2, cut=True, task_reward=0.0)
BAD = {"right": 0, "cut": 0, "unscorable": 0, "unanswered": 0, "groups_right": 0, "groups_wrong": 4}


def file(with_signal: int = 0, **counts: object) -> JudgedAnswers:
    """A file of four groups of eight, all wrong but for `counts`."""
    fields = {"rows": 32, "groups": 4, "samples": [SAMPLE], **BAD, **counts}
    return JudgedAnswers(FileAnswers.model_validate(fields), with_signal)


@pytest.mark.parametrize(
    ("counts", "reason", "advice"),
    [
        ({"cut": 31, "unanswered": 32}, "AnswersCutOff", "raise sampling.maxCompletionTokens"),
        ({"unanswered": 30}, "NoFinalAnswer", "change the prompt"),
        ({"unscorable": 20}, "Unscorable", "shoal env preview"),
        ({"right": 32, "groups_right": 4, "groups_wrong": 0}, "AlwaysRight", "too easy"),
        ({}, "AlwaysWrong", "too hard"),
        ({"right": 16, "groups_right": 1, "groups_wrong": 1}, "GroupsAlike", "sampling.temperature"),
        ({"unanswered": None}, "AlwaysWrong", "too hard"),
    ],
)
def test_each_cause_is_named_with_what_to_do(counts: dict[str, object], reason: str, advice: str) -> None:
    found = learning_of([file(**counts)] * 8, TELLING_GROUPS)
    assert (found.groups, found.decided, found.reason) == (32, True, reason)
    assert found.message.startswith("of the last 32 groups none carries signal: ")
    assert advice in found.message
    assert found.samples == [SAMPLE] * 3


def test_nothing_is_said_before_groups_enough_were_judged() -> None:
    assert learning_of([], TELLING_GROUPS).decided is False
    found = learning_of([file(cut=32)] * 7, TELLING_GROUPS)
    assert (found.groups, found.decided, found.reason, found.cut) == (28, False, None, 1.0)
    assert learning_of([file(cut=32)] * 8, TELLING_GROUPS).reason == "AnswersCutOff"


def test_one_group_with_signal_is_enough_to_go_on() -> None:
    found = learning_of([*[file(cut=32)] * 15, file(with_signal=1)], TELLING_GROUPS)
    assert (found.decided, found.reason, found.groups_with_signal) == (True, None, 1)
    assert "1 carries signal" in found.message
    assert ";" not in found.message


def test_a_step_that_stops_sampling_sooner_is_told_of_sooner() -> None:
    assert fewest_groups(Recipe()) == TELLING_GROUPS
    assert fewest_groups(Recipe(prompts_per_step=4, sampling_cap=2, optimizer_steps=1)) == 8


def verdicts() -> Iterator[Verdict]:
    for number in range(40):
        yield Verdict(
            run="r", node="0" * 64, lease="0" * 32, step=0, submission=number, sha256=f"{number:064x}",
            policy_version=0, outcome="accept", rows=1, rewards=[RowReward(task_reward=0.0, length_penalty=0.0, reward=0.0)],
            answers=file().answers,
        )  # fmt: skip


def test_the_window_holds_the_newest_groups_each_file_once() -> None:
    window = AnswerWindow()
    for each in verdicts():
        window.add(each, 0)
        window.add(each, 0)
    assert sum(each.answers.groups for each in window.files()) == WINDOW_GROUPS


def test_verdicts_of_older_validators_say_nothing() -> None:
    window = AnswerWindow()
    window.add(next(verdicts()).model_copy(update={"answers": None}), 1)
    assert window.files() == []


def test_one_large_file_is_never_dropped() -> None:
    window = AnswerWindow()
    for each in verdicts():
        assert each.answers is not None
        window.add(each.model_copy(update={"answers": each.answers.model_copy(update={"groups": 256})}), 0)
    assert len(window.files()) == 1
