"""Rewards are made after the proofs, within the file's CPU time; those from running what the model wrote are never held against a node."""

import dataclasses
import itertools
import random
from collections.abc import Callable
from typing import Any, cast

import pytest
from court import JOB, METADATA, Court

from shoal.contracts.rollouts import Rollout
from shoal.contracts.tasks import Task
from shoal.environments import Score
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.scored_once import SECOND_TRIES
from shoal.recompute.files import FileOutcome, Looks, _FileCheck
from shoal.validation.facts import File

replace = dataclasses.replace


class Programs(Arithmetic):
    """Arithmetic, as if scores came from programs; counts what it ran, and gives the even ones of `flaky` tasks another reward."""

    runs_programs = True

    def __init__(self, flaky: bool = False) -> None:
        self.runs = itertools.count()
        self.ran = 0
        self.flaky = flaky

    def score(self, task: Task, completion: str) -> Score:
        self.ran = next(self.runs) + 1
        return Score(float(self.flaky and self.ran % 2 == 0), "", 0.1)


class Judged(Programs):
    """The same of a judge in a process of its own, as mathematics has one."""

    runs_programs = False
    judged_apart = True


def of_programs(court: Court, flaky: bool = False) -> tuple[Court, Programs]:
    return scored_by(court, Programs(flaky))


def scored_by(court: Court, environment: Programs) -> tuple[Court, Programs]:
    return replace(court, facts=replace(court.facts, environment=environment)), environment


def unclaimed(rows: list[Rollout]) -> list[Rollout]:
    return [replace(row, task_reward=None, length_penalty=None, reward=None) for row in rows]


def unproven(court: Court, honest: list[Rollout], draw: random.Random) -> list[list[Rollout]]:
    """Files of which one row or all have proofs that do not fit: other weights, a changed token, and proofs damaged, turned round or made up."""

    def with_row(change: Callable[[Rollout], Rollout]) -> list[Rollout]:
        number = draw.choice([at for at, row in enumerate(honest) if len(row.completion_tokens) > 4])
        return [*honest[:number], change(honest[number]), *honest[number + 1 :]]

    def other_token(row: Rollout) -> Rollout:
        at = draw.randrange(len(row.completion_tokens) - 1)
        token = (row.completion_tokens[at] + draw.randrange(1, 200)) % 256
        return replace(row, completion_tokens=[*row.completion_tokens[:at], token, *row.completion_tokens[at + 1 :]])

    def damaged(row: Rollout) -> Rollout:
        proofs = bytearray(row.proofs)
        for _ in range(64):
            proofs[draw.randrange(4, len(proofs))] ^= 1 << draw.randrange(8)
        return replace(row, proofs=bytes(proofs))

    made_up = [replace(row, proofs=row.proofs[:2] + draw.randbytes(len(row.proofs) - 2)) for row in honest]
    turned = [replace(row, proofs=row.proofs[::-1]) for row in honest]
    return [court.rows(court.made.swapped), made_up, turned, with_row(other_token), with_row(damaged)]


def test_nothing_runs_for_a_file_whose_proofs_do_not_fit(
    court: Court, honest: list[Rollout], record_property: Callable[[str, object], None]
) -> None:
    draw, probation = random.Random(5), JOB.model_copy(update={"accepted_files": 0, "on_probation": True})
    programs, environment = of_programs(court)
    files = [rows for _ in range(8) for rows in unproven(court, honest, draw)]
    for rows in files:
        verdict = programs.judge(rows, job=probation)
        assert (verdict.outcome, verdict.reason) == ("reject", "computation"), verdict.evidence
    record_property("programs_files_without_proofs", len(files))
    record_property("programs_run_without_proofs", environment.ran)
    assert environment.ran == 0
    assert programs.judge(honest, job=probation).outcome == "accept"
    assert environment.ran >= len(honest)


@pytest.mark.parametrize("flaky", [False, True])
def test_claims_that_differ_cost_an_honest_node_nothing(court: Court, honest: list[Rollout], flaky: bool) -> None:
    programs, environment = of_programs(court, flaky)
    claimed = [replace(row, task_reward=1.0, length_penalty=0.0, reward=1.0) for row in honest]
    verdict = programs.judge(claimed)
    assert verdict.outcome == "accept", verdict.evidence
    assert environment.ran > 0
    looked_at = {reward.task_reward for reward in verdict.rewards[:SECOND_TRIES]}
    assert looked_at <= ({None, 1.0} if flaky else {0.0})
    assert (None in looked_at) == flaky


def test_a_verdict_says_what_the_programs_took(court: Court, honest: list[Rollout]) -> None:
    programs, environment = of_programs(court)
    assert programs.judge(honest).program_seconds == pytest.approx(0.1 * environment.ran)
    assert "program_seconds" not in court.judge(honest).to_json().decode()


def test_no_answer_is_judged_for_a_file_whose_proofs_do_not_fit(court: Court, honest: list[Rollout]) -> None:
    """Any fresh key may send such a file, and each of its answers may be made to take the judge its whole time."""
    probation = JOB.model_copy(update={"accepted_files": 0, "on_probation": True})
    judged, environment = scored_by(court, Judged())
    for rows in unproven(court, unclaimed(honest), random.Random(6)):
        verdict = judged.judge(unclaimed(rows), job=probation)
        assert (verdict.outcome, verdict.reason) == ("reject", "computation"), verdict.evidence
    assert environment.ran == 0
    assert judged.judge(unclaimed(honest), job=probation).outcome == "accept"
    assert environment.ran >= len(honest)


def test_a_judge_of_a_file_has_the_time_that_is_left_to_its_node(court: Court, honest: list[Rollout]) -> None:
    judged, environment = scored_by(court, Judged())
    verdict = judged.judge(unclaimed(honest), job=JOB.model_copy(update={"program_seconds": 0.25}))
    assert (verdict.outcome, environment.ran, verdict.program_seconds) == ("accept", 3, pytest.approx(0.3))
    assert [reward.task_reward for reward in verdict.rewards].count(None) >= len(honest) - 3


def test_an_audit_accuses_nobody_of_rows_that_no_time_was_left_for(court: Court, honest: list[Rollout]) -> None:
    judged, _ = scored_by(court, Judged())
    rows, outcome = unclaimed(honest), FileOutcome()
    verdict = judged.judge(rows, job=JOB.model_copy(update={"program_seconds": 0.25}))
    looks, file = Looks(["rewards"], 1.0, "seed"), File(JOB, rows, METADATA)
    _FileCheck(judged.facts, cast(Any, None), looks, file, verdict, outcome).stage("rewards")
    assert not outcome.found
    assert "rows score otherwise here, which their verdict alone does not explain" in outcome.unchecked["rewards"]


def test_nothing_runs_for_a_node_that_has_used_its_time(court: Court, honest: list[Rollout]) -> None:
    programs, environment = of_programs(court)
    verdict = programs.judge(honest, job=JOB.model_copy(update={"program_seconds": 0.0}))
    assert (verdict.outcome, environment.ran, verdict.program_seconds) == ("accept", 0, 0.0)
    assert {reward.task_reward for reward in verdict.rewards} == {None}
