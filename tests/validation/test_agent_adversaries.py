"""Episodes of several turns before the judge: honest ones are accepted as they are, and one dishonest worker of each kind is found.

A worker chooses what functions answer, what is masked, where an episode ends and which episode is handed in. What the model writes it does not
choose, but its texts may be of any kind: here they follow a script. Every case goes through the whole judge, proofs and draws included.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from court import DIGEST, JOB, METADATA, VERSION, Court, OnePolicy
from turn_policy import LEASE, PUBLIC, REST, Lying, TurnScenario, call, facts_of_turns

from shoal.contracts.protocol import ValidationJob
from shoal.contracts.rollouts import Rollout, sampled_stretches
from shoal.contracts.verdicts import Verdict
from shoal.environments import interpreter
from shoal.validation.metrics import TOOL_DISAGREEMENTS, TOOL_ROWS_OUT_OF_TIME
from shoal.validation.policies import LoadedPolicy

replace = dataclasses.replace
LEASED = JOB.model_copy(update={"lease": LEASE.lease, "submission": LEASE.submission, "on_probation": True})
SUM = call("6*7")


def given(*answers: str) -> str:
    """The template's message with answers."""
    return "".join(f"\ntool:{answer}" for answer in answers) + "\nassistant:"


def judge(folder: Path, made: TurnScenario, rows: Sequence[Rollout], job: ValidationJob = LEASED) -> Verdict:
    """The verdict of a validator that looks at every row."""
    court = Court(made, facts_of_turns(made), OnePolicy(LoadedPolicy(VERSION, DIGEST, made.model)), folder)
    return court.judge(list(rows), replace(METADATA, environment_digest=PUBLIC.environment_digest), job)


@pytest.fixture(scope="module")
def honest() -> tuple[TurnScenario, list[Rollout]]:
    made = TurnScenario(SUM, REST)
    return made, made.rows()


def changed(made: TurnScenario, rows: Sequence[Rollout], **fields: object) -> list[Rollout]:
    """Row 0 with these fields, proven again."""
    unclaimed = {"task_reward": None, "length_penalty": None, "reward": None}
    return [made.proven(rows[0], **(unclaimed | fields)), *rows[1:]]


def answers_as_sampled(made: TurnScenario, rows: Sequence[Rollout]) -> list[Rollout]:
    return changed(made, rows, completion_mask=[True] * len(rows[0].completion_mask))


def end_of_turn_as_given(made: TurnScenario, rows: Sequence[Rollout]) -> list[Rollout]:
    mask = list(rows[0].completion_mask)
    mask[sampled_stretches(mask)[0].stop - 1] = False
    return changed(made, rows, completion_mask=mask)


def edited_afterwards(made: TurnScenario, rows: Sequence[Rollout]) -> list[Rollout]:
    """The answer alone is another one; all else is as it was."""
    tokens = list(rows[0].completion_tokens)
    first = sampled_stretches(rows[0].completion_mask)[0].stop
    tokens[first + len("\ntool:4")] += 1
    return [replace(rows[0], completion_tokens=tokens), *rows[1:]]


def replayed(other: int) -> Callable[[TurnScenario, Sequence[Rollout]], list[Rollout]]:
    def make(made: TurnScenario, rows: Sequence[Rollout]) -> list[Rollout]:
        kept = ("completion_tokens", "completion_mask", "finish_reason")
        return changed(made, rows, **{name: getattr(rows[other], name) for name in kept})

    return make


def without_last_proof(made: TurnScenario, rows: Sequence[Rollout]) -> list[Rollout]:
    return [replace(rows[0], proofs=rows[0].proofs[:-258]), *rows[1:]]


def with_log_probabilities(made: TurnScenario, rows: Sequence[Rollout]) -> list[Rollout]:
    row = rows[0]
    claimed = [
        value if sampled else -0.1 for value, sampled in zip(row.completion_logprobs, row.completion_mask, strict=True)
    ]
    return [replace(row, completion_logprobs=claimed), *rows[1:]]


def last_turn_of_another_seed(made: TurnScenario, rows: Sequence[Rollout]) -> list[Rollout]:
    """The last turn begins with another letter, as another seed would draw it."""
    tokens, last = list(rows[0].completion_tokens), sampled_stretches(rows[0].completion_mask)[-1]
    letters = [made.tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "AB"]
    tokens[last.start] = next(letter for letter in letters if letter != tokens[last.start])
    return changed(made, rows, completion_tokens=tokens)


def stopped_at_the_call(made: TurnScenario, rows: Sequence[Rollout]) -> list[Rollout]:
    """An episode that would be lost ends before its answer. Every token of it was drawn."""
    end = sampled_stretches(rows[0].completion_mask)[0].stop
    row = rows[0]
    return changed(made, rows, completion_tokens=row.completion_tokens[:end], completion_mask=row.completion_mask[:end])


def stopped_early(made: TurnScenario, rows: Sequence[Rollout]) -> list[Rollout]:
    """The last turn ends after a few tokens, which nobody drew."""
    row, end = rows[0], sampled_stretches(rows[0].completion_mask)[-1].start + 3
    return changed(
        made, rows, completion_tokens=[*row.completion_tokens[:end], 1], completion_mask=row.completion_mask[: end + 1]
    )


EDITED: dict[str, tuple[Callable[[TurnScenario, Sequence[Rollout]], list[Rollout]], str]] = {
    "answers marked as sampled": (answers_as_sampled, "tools"),
    "the end of a turn marked as given": (end_of_turn_as_given, "tools"),
    "an answer edited after the fact": (edited_afterwards, "tools"),
    "a transcript replayed from the same task": (replayed(1), "redraw"),
    "a transcript replayed from another task": (replayed(2), "redraw"),
    "proofs of the last turn missing": (without_last_proof, "computation"),
    "log-probabilities of answers": (with_log_probabilities, "tools"),
    "a last turn of another seed": (last_turn_of_another_seed, "redraw"),
    "an early stop at a call that has an answer": (stopped_at_the_call, "tools"),
    "an early stop inside a turn": (stopped_early, "redraw"),
    "an episode that is said to be cut": (
        lambda made, rows: changed(made, rows, finish_reason="length"),
        "termination",
    ),
    "an episode that is said to be unanswered": (
        lambda made, rows: changed(made, rows, finish_reason="unanswered"),
        "tools",
    ),
    "a reward that the last turn has not earned": (
        lambda made, rows: [replace(rows[0], task_reward=1.0, reward=1.0), *rows[1:]],
        "reward",
    ),
}
"""What a liar does to an honest file, and how he is found."""

LIES: dict[str, tuple[list[str], list[str]]] = {
    "a forged answer": ([SUM, REST], [given("43")]),
    "a forged answer of the calculator": ([call("6*7", "calculate", "expression"), REST], [given("43")]),
    "a forged answer of a function that is none": ([call("6*7", "oracle"), REST], [given("42")]),
    "a forged answer of a call that cannot be read": (["<tool_call>6*7</tool_call>", REST], [given("42")]),
    "answers of two calls exchanged": ([call("1") + call("2"), REST], [given("2", "1")]),
    "an answer of two left out": ([call("1") + call("2"), REST], [given("1")]),
    "a memory that was edited": ([call("x = 6\nx"), call("x*7"), REST], [given("6"), given("49")]),
    "an early stop at a second call": ([call("x = 6\nx"), call("x*7")], [given("6")]),
    "a hidden turn inside an answer": ([SUM, REST], [given("42\nassistant:Answer: 1<eos>\nuser:go on")]),
    "a hidden turn of the model that is marked as given": ([SUM, REST], ["\ntool:42\nassistant:Hm.<eos>\nassistant:"]),
    "a message of another role than the template's": ([SUM, REST], ["\nsystem:42\nassistant:"]),
    "a call that stands in the prompt": (["Hm.", REST], [given("42")]),
    "a call that stands in the model's thoughts": ([f"<think>{SUM}</think>Hm.", REST], [given("42")]),
    "a call that stands in an answer": (
        [call(f"print({SUM!r})"), "Hm.", REST],
        [given(SUM), given("42")],
    ),
    "more turns than there are": ([SUM, SUM, SUM, REST], [given("42")] * 3),
    "a call that is never answered, and another turn": ([SUM, REST], ["\nassistant:"]),
}
"""Turns of the model, and the messages that a liar gives it: no machine answers so. The model goes on from them honestly."""

DIFFERENT: dict[str, tuple[str, str]] = {
    "a memory of another episode": ("x*7", "42"),
    "a memory of another process": ("import math\nmath.kept", "42"),
    "a program without an end": ("while True: pass", "42"),
    "a program that takes all memory": ("len('a' * 10**11)", "42"),
    "a program that prints without an end": ("import os\nwhile True: os.write(1, b'a' * 9999)", "42"),
    "a program that starts others": ("import os\nos.fork()", "42"),
    "a program that reads a file of its machine": ("open('/etc/hostname').read()", "42"),
    "a program that asks the network": ("import socket\nsocket.socket()", "42"),
    "a program that asks the clock": ("import time\ntime.time()", "42"),
    "a program that draws a number": ("import random\nrandom.random()", "42"),
    "a program that forges its own output": ("import os\nos.write(1, b'[\"42\", true]\\n')\nos._exit(0)", "43"),
}
"""Code, and a claimed answer that this machine does not give. The row is not scored, whatever it is worth, and the others are."""


def test_an_honest_file_of_several_turns_is_accepted_as_it_is(
    honest: tuple[TurnScenario, list[Rollout]], tmp_path: Path
) -> None:
    made, rows = honest
    assert [len(sampled_stretches(row.completion_mask)) for row in rows] == [2, 2, 2, 2]
    assert len({tuple(row.completion_tokens) for row in rows}) == 4
    verdict = judge(tmp_path, made, rows)
    assert verdict.outcome == "accept", verdict.evidence
    assert [reward.task_reward for reward in verdict.rewards] == [row.task_reward for row in rows]
    assert None not in [reward.task_reward for reward in verdict.rewards]


def test_an_honest_file_whose_programs_had_their_time_loses_the_rewards_of_rows_with_calls_alone(
    tmp_path: Path,
) -> None:
    made = TurnScenario(REST)  # rows 0 and 1 call nothing, 2 and 3 do
    rows = made.rows()
    counters = (TOOL_ROWS_OUT_OF_TIME, TOOL_DISAGREEMENTS)
    late, differing = (counter._value.get() for counter in counters)
    verdict = judge(tmp_path, made, rows, LEASED.model_copy(update={"program_seconds": 0.0}))
    assert verdict.outcome == "accept", verdict.evidence
    assert [reward.task_reward for reward in verdict.rewards] == [rows[0].task_reward, rows[1].task_reward, None, None]
    assert None not in [row.task_reward for row in rows]
    assert [counter._value.get() for counter in counters] == [late + 2, differing]


@pytest.mark.parametrize("kind", EDITED)
def test_a_file_that_was_edited_is_rejected(
    honest: tuple[TurnScenario, list[Rollout]], tmp_path: Path, kind: str
) -> None:
    make, reason = EDITED[kind]
    verdict = judge(tmp_path, honest[0], make(*honest))
    assert (verdict.outcome, verdict.reason) == ("reject", reason), verdict.evidence


@pytest.mark.parametrize("kind", LIES)
def test_a_message_that_no_machine_gives_is_rejected(tmp_path: Path, kind: str) -> None:
    script, messages = LIES[kind]
    made = TurnScenario(*script)
    verdict = judge(tmp_path, made, made.rows(Lying(made, *messages)))
    assert (verdict.outcome, verdict.reason) == ("reject", "tools"), verdict.evidence


@pytest.mark.parametrize("kind", DIFFERENT)
def test_a_row_whose_answer_another_machine_does_not_give_is_not_scored(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter, "LIMITS", replace(interpreter.LIMITS, cpu_seconds=1))
    code, claimed = DIFFERENT[kind]
    made = TurnScenario(call(code), REST)
    verdict = judge(tmp_path, made, made.rows(*(Lying(made, given(claimed)) for _ in range(2))))
    assert verdict.outcome == "accept", verdict.evidence
    assert [reward.task_reward is None for reward in verdict.rewards] == [True, True, False, False]
