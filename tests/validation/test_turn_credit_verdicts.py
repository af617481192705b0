"""Rewards of turns before the judge: the validator computes them from what the model wrote, and no file has a say in them."""

from dataclasses import replace
from pathlib import Path

import pytest
import test_evaluation_rows
from court import JOB, METADATA, Court, OnePolicy
from turn_policy import ENVIRONMENT, LEASE, PUBLIC, REST, Brief, TurnScenario, call, facts_of_turns

from shoal.contracts.rollouts import Rollout, sampled_stretches
from shoal.contracts.tasks import Task
from shoal.contracts.verdicts import UNSCORED, Verdict
from shoal.environments import Score, Unscorable
from shoal.environments.turns import TURN_END
from shoal.orchestrator.verdicts.learning import JudgedAnswers, learning_of
from shoal.report.collect import collect
from shoal.report.facts import StoreFacts
from shoal.validation.metrics import TURN_FAULTS
from shoal.validation.policies import LoadedPolicy
from shoal.validation.setup import with_benchmarks

LEASED = JOB.model_copy(update={"lease": LEASE.lease, "submission": LEASE.submission, "on_probation": True})


class ByTurn(Brief):
    """A first turn that calls earns a quarter, and a last turn with an answer half."""

    rewards_turns = True

    def score(self, task: Task, completion: str) -> Score | Unscorable:
        turns = completion.split(TURN_END)
        earned = [0.25 * ("<tool_call>" in turn) + 0.5 * ("Answer:" in turn) for turn in turns]
        return Score(sum(earned), turn_rewards=tuple(earned))


class OneTooFew(ByTurn):
    def score(self, task: Task, completion: str) -> Score | Unscorable:
        found = super().score(task, completion)
        return replace(found, turn_rewards=found.turn_rewards[1:]) if isinstance(found, Score) else found


class OtherTotal(ByTurn):
    def score(self, task: Task, completion: str) -> Score | Unscorable:
        return Score(1.0, turn_rewards=tuple(0.125 for _ in completion.split(TURN_END)))


class OutOfRange(ByTurn):
    def score(self, task: Task, completion: str) -> Score | Unscorable:
        found = super().score(task, completion)
        return replace(found, turn_rewards=(1.5, *found.turn_rewards[1:])) if isinstance(found, Score) else found


@pytest.fixture(scope="module")
def honest() -> tuple[TurnScenario, list[Rollout]]:
    made = TurnScenario(call("6*7"), REST)
    unclaimed = {"task_reward": None, "length_penalty": None, "reward": None}
    return made, [replace(row, **unclaimed) for row in made.rows()]


def judged(folder: Path, made: TurnScenario, rows: list[Rollout], environment: Brief, *, by_turn: bool) -> Verdict:
    facts = replace(facts_of_turns(made), environment=environment, turn_credit=by_turn)
    court = Court(made, facts, OnePolicy(LoadedPolicy(3, "cd" * 32, made.model)), folder)
    return court.judge(rows, replace(METADATA, environment_digest=PUBLIC.environment_digest), LEASED)


def test_the_verdict_tells_what_each_turn_earned(honest: tuple[TurnScenario, list[Rollout]], tmp_path: Path) -> None:
    made, rows = honest
    found = judged(tmp_path, made, rows, ByTurn(), by_turn=True)
    assert found.outcome == "accept", found.evidence
    for row, reward in zip(rows, found.rewards, strict=True):
        assert len(sampled_stretches(row.completion_mask)) == 2
        assert (reward.turns, reward.task_reward) == ((0.25, 0.5), 0.75)


def test_without_credit_by_turns_a_verdict_tells_none(
    honest: tuple[TurnScenario, list[Rollout]], tmp_path: Path
) -> None:
    found = judged(tmp_path, *honest, ByTurn(), by_turn=False)
    assert found.outcome == "accept", found.evidence
    assert {reward.turns for reward in found.rewards} == {None}
    assert b'"turns"' not in found.to_json()


def test_a_benchmark_in_such_a_run_is_scored_by_episodes(honest: tuple[TurnScenario, list[Rollout]]) -> None:
    facts = replace(facts_of_turns(honest[0]), turn_credit=True)
    benchmark = (test_evaluation_rows.TERMS, ENVIRONMENT, test_evaluation_rows.TASKS)
    assert not with_benchmarks(facts, {"sums": benchmark}).benchmarks["sums"].turn_credit


@pytest.mark.parametrize("environment", [OneTooFew(), OtherTotal(), OutOfRange(), ENVIRONMENT])
def test_rewards_that_are_not_those_of_the_episode_leave_the_row_out_and_blame_nobody(
    honest: tuple[TurnScenario, list[Rollout]], tmp_path: Path, environment: Brief
) -> None:
    found = judged(tmp_path, *honest, environment, by_turn=True)
    assert found.outcome == "accept", found.evidence
    assert found.rewards == [UNSCORED] * len(honest[1])
    assert found.answers is not None
    told = found.answers.turn_faults
    assert told is not None
    assert (told.environment, told.rows) == (environment.name, len(honest[1]))


def test_both_counts_and_the_environment_are_told_by_verdict_metric_condition_and_report(
    honest: tuple[TurnScenario, list[Rollout]], tmp_path: Path
) -> None:
    environment, counted = OneTooFew(), TURN_FAULTS.labels(OneTooFew.name)
    before = counted._value.get()
    found = judged(tmp_path, *honest, environment, by_turn=True)
    assert found.answers is not None
    rows = len(honest[1])
    assert counted._value.get() - before == rows
    words = f"{rows} rows are not scored because environment {environment.name} gives wrong rewards of turns (`turn_rewards`; row 0: 1 turns have"
    files = [JudgedAnswers(found.answers, 0), JudgedAnswers(found.answers.model_copy(update={"turn_faults": None}), 1)]
    for some, signal in ((files[:1], None), (files, "carries signal")):
        message = learning_of(some, 1).message
        assert f"; {words} a reward, and the episode has 2): check it with `shoal env check`" in message
        assert signal is None or signal in message
        assert "at the validators' logs" not in message
    facts = StoreFacts(kind="folder", verdicts=[found])
    assert any(note.startswith(words) for note in collect("arithmetic", None, facts, []).notes)


def test_a_verdict_without_such_rows_has_the_bytes_of_before(
    honest: tuple[TurnScenario, list[Rollout]], tmp_path: Path
) -> None:
    found = judged(tmp_path, *honest, ByTurn(), by_turn=True)
    assert b"turn_faults" not in found.to_json()
    notes = collect("arithmetic", None, StoreFacts(kind="folder", verdicts=[found]), []).notes
    assert (
        f"credit goes by turns (`recipe.credit: Turn`): {len(honest[1])} rows have a reward for each of their {2 * len(honest[1])} turns"
        in notes
    )


@pytest.mark.parametrize(
    ("rewards", "words"),
    [
        ((0.5,), "1 turns have a reward, and the episode has 2"),
        ((0.5, 2.0), r"a turn's reward is 2.0; allowed: -1 to 1"),
        ((0.5, float("nan")), "a turn's reward is nan"),
        ((0.5, 0.25), "the rewards of its turns are 0.75 together, and the task reward is 1"),
        ((0.5, 0.5), None),
        ((-0.5, 1.0), "are 0.5 together"),
    ],
)
def test_a_fault_of_rewards_is_one_line(rewards: tuple[float, ...], words: str | None) -> None:
    fault = Score(1.0, turn_rewards=rewards).turn_fault(2)
    assert (fault is None) == (words is None)
    assert words is None or words in str(fault)
