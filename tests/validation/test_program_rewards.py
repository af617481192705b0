"""Rewards that come from running what the model wrote: measured after the proofs, and never held against a node."""

import dataclasses
import itertools

import pytest
from court import JOB, Court

from shoal.contracts.rollouts import Rollout
from shoal.contracts.tasks import Task
from shoal.environments import Score
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.scored_once import SECOND_TRIES

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


def of_programs(court: Court, flaky: bool = False) -> tuple[Court, Programs]:
    environment = Programs(flaky)
    return replace(court, facts=replace(court.facts, environment=environment)), environment


def test_nothing_runs_for_a_file_whose_proofs_do_not_fit(court: Court) -> None:
    programs, environment = of_programs(court)
    verdict = programs.judge(court.rows(court.made.swapped))
    assert (verdict.outcome, verdict.reason) == ("reject", "computation")
    assert environment.ran == 0


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


def test_nothing_runs_for_a_node_that_has_used_its_time(court: Court, honest: list[Rollout]) -> None:
    programs, environment = of_programs(court)
    verdict = programs.judge(honest, job=JOB.model_copy(update={"program_seconds": 0.0}))
    assert (verdict.outcome, environment.ran, verdict.program_seconds) == ("accept", 0, 0.0)
    assert {reward.task_reward for reward in verdict.rewards} == {None}
