"""Scores that cannot be made again: in a run of members alone the worker's count, and everything else of its file is checked as ever."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from court import JOB, METADATA, Court, OnePolicy
from turn_policy import LEASE, PUBLIC, REST, Brief, TurnScenario, call, facts_of_turns

from shoal.contracts.rollouts import Rollout, sampled_stretches
from shoal.contracts.tasks import Task
from shoal.contracts.verdicts import UNSCORED, Verdict
from shoal.environments import Score, Unscorable
from shoal.environments.turns import Answers, FunctionCall
from shoal.recompute.files import FileOutcome, Looks, _FileCheck
from shoal.validation.facts import Facts, File
from shoal.validation.policies import LoadedPolicy

LEASED = JOB.model_copy(update={"lease": LEASE.lease, "submission": LEASE.submission, "on_probation": True})
CLAIMS = (0.25, 1.0, None, 0.0)


class Judged(Brief):
    """A live judge: another score and other answers at each call. A validator that asked it would be seen."""

    repeatable = False
    asked = 0

    def score(self, task: Task, completion: str) -> Score | Unscorable:
        self.asked += 1
        return Score(random.random())

    def answers(self, task: Task, turns: Sequence[Sequence[FunctionCall]]) -> Answers | Unscorable:
        self.asked += 1
        return Unscorable("the service is away")


def claiming(rows: Sequence[Rollout], claims: Sequence[float | None]) -> list[Rollout]:
    return [
        replace(row, task_reward=claim, length_penalty=None if claim is None else 0.0, reward=claim)
        for row, claim in zip(rows, claims, strict=True)
    ]


@pytest.fixture(scope="module")
def honest() -> tuple[TurnScenario, list[Rollout]]:
    made = TurnScenario(call("6*7"), REST)
    return made, claiming(made.rows(), CLAIMS)


def facts(made: TurnScenario, environment: Brief, *, claimed: bool = True) -> Facts:
    return replace(facts_of_turns(made), environment=environment, rewards_claimed=claimed)


def judged(folder: Path, known: Facts, made: TurnScenario, rows: Sequence[Rollout]) -> Verdict:
    court = Court(made, known, OnePolicy(LoadedPolicy(3, "cd" * 32, made.model)), folder)
    return court.judge(list(rows), replace(METADATA, environment_digest=PUBLIC.environment_digest), LEASED)


def audited(known: Facts, rows: Sequence[Rollout], verdict: Verdict) -> FileOutcome:
    """What an audit says of a file's rewards."""
    outcome, looks = FileOutcome(), Looks(["rewards"], 1.0, "seed")
    file = File(LEASED, rows, replace(METADATA, environment_digest=PUBLIC.environment_digest))
    _FileCheck(known, cast(Any, None), looks, file, verdict, outcome).stage("rewards")
    return outcome


def test_the_workers_scores_count_and_the_verdict_says_so(
    honest: tuple[TurnScenario, list[Rollout]], tmp_path: Path
) -> None:
    made, rows = honest
    environment = Judged()
    found = judged(tmp_path, facts(made, environment), made, rows)
    assert found.outcome == "accept", found.evidence
    assert [reward.task_reward for reward in found.rewards] == list(CLAIMS)
    assert found.rewards[2] == UNSCORED
    assert found.claimed_rows == 3
    assert b'"claimed_rows":3' in found.to_json()
    assert environment.asked == 0, "neither scores nor answers are made again"


def test_an_audit_says_that_nobody_can_score_again_and_finds_a_validators_lie(
    honest: tuple[TurnScenario, list[Rollout]], tmp_path: Path
) -> None:
    made, rows = honest
    known = facts(made, Judged())
    found = judged(tmp_path, known, made, rows)
    told = audited(known, rows, found)
    assert (
        told.unchecked["rewards"] == "3 rows have the reward that their worker claimed, and nobody can score them again"
    )
    assert not told.found
    raised = [found.rewards[0].model_copy(update={"task_reward": 1.0, "reward": 1.0}), *found.rewards[1:]]
    lie = audited(known, rows, found.model_copy(update={"rewards": raised}))
    assert "its verdict rewards 1 of 4 rows otherwise than they score; row 0" in lie.found["rewards"][0]
    silent = audited(known, rows, found.model_copy(update={"claimed_rows": 0}))
    assert silent.found["rewards"] == ["its verdict says that 0 rows were not scored again, counted it is 3"]


@pytest.mark.parametrize(
    ("claim", "reason", "words"),
    [
        (7.0, "reward", "task_reward is claimed as 7; allowed: 0 to 1"),
        (-0.5, "reward", "task_reward is claimed as -0.5; allowed: 0 to 1"),
        (math.inf, "bounds", "task_reward is inf"),
        (math.nan, "bounds", "task_reward is nan"),
    ],
)
def test_what_is_no_score_is_rejected(
    honest: tuple[TurnScenario, list[Rollout]], tmp_path: Path, claim: float, reason: str, words: str
) -> None:
    made, rows = honest
    found = judged(tmp_path, facts(made, Judged()), made, claiming(rows, (claim, *CLAIMS[1:])))
    assert (found.outcome, found.reason) == ("reject", reason)
    assert words in found.evidence
    assert found.claimed_rows == 0


def test_a_total_that_does_not_follow_from_the_score_is_rejected(
    honest: tuple[TurnScenario, list[Rollout]], tmp_path: Path
) -> None:
    made, rows = honest
    found = judged(tmp_path, facts(made, Judged()), made, [replace(rows[0], reward=1.0), *rows[1:]])
    assert (found.outcome, found.reason) == ("reject", "reward")
    assert "reward is claimed as 1, computed again it is 0.25" in found.evidence


def test_tokens_are_proven_and_drawn_as_of_any_file(honest: tuple[TurnScenario, list[Rollout]], tmp_path: Path) -> None:
    made, rows = honest
    other = list(rows[0].completion_tokens)
    last = sampled_stretches(rows[0].completion_mask)[-1]
    other[last.start] = rows[1].completion_tokens[0] if rows[1].completion_tokens[0] != other[last.start] else 70
    found = judged(tmp_path, facts(made, Judged()), made, [made.proven(rows[0], completion_tokens=other), *rows[1:]])
    assert (found.outcome, found.reason) == ("reject", "redraw")


def test_without_the_pin_of_prepare_claims_count_nothing(
    honest: tuple[TurnScenario, list[Rollout]], tmp_path: Path
) -> None:
    made, rows = honest
    environment = Judged()
    environment.answers = Brief.answers.__get__(environment)  # type: ignore[method-assign]  # its functions alone can be repeated
    found = judged(tmp_path, facts(made, environment, claimed=False), made, rows)
    assert (found.outcome, found.reason) == ("reject", "reward")
    assert environment.asked > 0


def test_an_environment_that_can_be_scored_again_is(honest: tuple[TurnScenario, list[Rollout]], tmp_path: Path) -> None:
    made, rows = honest
    found = judged(tmp_path, facts(made, Brief()), made, claiming(rows, [None] * 4))
    assert found.outcome == "accept", found.evidence
    assert {reward.task_reward for reward in found.rewards} == {0.0}
    assert found.claimed_rows == 0
    assert b"claimed_rows" not in found.to_json()
