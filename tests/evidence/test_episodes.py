"""The benchmark of episodes a second: what its committed figures say, and that its engine keeps the rate that it states."""

import json

import pytest
from benchmarks.agents.episodes import RATE, TOGETHER, PacedEngine, episode, figures_of
from benchmarks.agents.verifiers_environments import RESULT

from shoal.inference.completions import Request

AIM = 1.0
"""Times the episodes that verifiers' own loop plays, on the same engine."""


def test_the_committed_figures_reach_the_aim_and_follow_from_their_rounds() -> None:
    stored = json.loads(RESULT.read_text())
    found = stored["episodes"]["together"]
    again = figures_of(found)
    for name in ("episodes_per_second", "episodes_per_second_of_verifiers", "episodes_per_second_ratio"):
        assert stored[name] == again[name]
    assert stored["rescoring_share_of_rollout"] == again["rescoring_share_of_rollout"]
    assert set(found) == {"1", str(TOGETHER)}
    for each in found.values():
        assert min(each["ratio"]) >= AIM, "no round may fall below"
        assert max(each["shoal"]) <= each["engine_alone"], "no loop is faster than its engine"


def test_a_turn_takes_a_step_for_each_token_and_turns_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    engine = PacedEngine([[[1, 2, 3], [4]], [[5, 6]]], TOGETHER)
    engine.start(Request([0], 0, 1.0, 8))
    engine.start(Request([0], 1, 1.0, 8))
    ended = [engine.step() for _ in range(3)]
    assert [[made.tokens for _, made in each] for each in ended] == [[], [[5, 6]], [[1, 2, 3]]]
    engine.start(Request([0], 0, 1.0, 8))
    assert [made.tokens for _, made in engine.step()] == [[4]]
    assert slept == [1 / RATE] * 4


def test_no_two_episodes_of_a_task_are_equal() -> None:
    """Shoal scores equal answers once: equal episodes would make it look faster than it is."""
    given = {"prompt": "What is the capital of Peru?", "answer": "Lima"}
    assert len({tuple(episode(given, number)) for number in range(TOGETHER)}) == TOGETHER
