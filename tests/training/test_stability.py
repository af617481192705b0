"""Stability: signs are seen when they are there and only then, act once, and mean the same after a restart."""

from typing import Any

import pytest

from samples import METRICS
from shoal.contracts.algorithm import Algorithm, Clip, Gspo, SourceAlgorithm
from shoal.contracts.failures import Stability
from shoal.contracts.recipe import Recipe
from shoal.contracts.sources import SourceObjective
from shoal.training.stability import History, Incident, after_roll_back, decide, in_force, needed_states, observe

WINDOW = 4
SETTINGS = Stability(window_steps=WINDOW, action="RollBack")
"""Trends alone: the clip ratio has no limit before `in_force`."""


def step(version: int, norm: float = 0.1, entropy: float = 1.0, clip: float = 0.01, **changes: Any) -> Any:
    fields = {
        "step": version - 1, "policy_version": version, "gradient_norm": norm, "entropy": entropy,
        "clip_low": clip, "clip_high": 0.0, "clip_delta": 0.0, "rows": 16, "skipped_updates": 0,
    }  # fmt: skip
    return METRICS.model_copy(update=fields | changes)


def follow(*reports: Any, settings: Stability = SETTINGS, start: History | None = None) -> tuple[History, list[str]]:
    history, warnings = start or History(), []
    for report in reports:
        history, _, warnings = observe(history, report, settings)
        history = History.from_json(history.to_json())  # as it comes back from a sealed state
    return history, warnings


def calm(first: int, count: int) -> list[Any]:
    return [step(version) for version in range(first, first + count)]


def storm(first: int, count: int) -> list[Any]:
    return [step(version, norm=1.0, clip=0.2) for version in range(first, first + count)]


def test_a_steady_run_gives_no_warning() -> None:
    history, warnings = follow(*calm(1, 20))
    assert warnings == []
    assert history.incident is None
    assert decide(history, SETTINGS, [19, 20]).action == "go"


def test_nothing_is_said_before_there_are_two_windows() -> None:
    _, warnings = follow(*storm(1, 2 * WINDOW - 1))
    assert warnings == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"norm": 0.4}, r"the gradient norm grew 4.00-fold over 4 steps; the warning starts at 3"),
        ({"entropy": 1.6}, r"the entropy rose 60% above its minimum over 4 steps; the warning starts at 50%"),
        ({"clip": 0.05}, r"the clip ratio grew 5.00-fold over 4 steps; the warning starts at 3"),
    ],
)
def test_each_sign_is_named_with_its_figures(changes: dict[str, float], said: str) -> None:
    _, warnings = follow(*calm(1, 8), *[step(version, **changes) for version in range(9, 13)])
    assert warnings == [said]


IN_FORCE = in_force(SETTINGS, Recipe())


def test_a_level_is_named_after_three_steps_and_not_before() -> None:
    two = [step(version, clip=0.024) for version in (1, 2)]
    history, warnings = follow(*two, settings=IN_FORCE)
    assert warnings == []
    said = ["the clip ratio is 2.40% over 3 steps; maxClipRatio is 2.00%"]
    assert follow(step(3, clip=0.024), settings=IN_FORCE, start=history)[1] == said
    assert follow(*two, step(3), settings=IN_FORCE)[1] == []  # a mean of three, and one of them is calm


def test_a_large_clip_ratio_is_acted_upon_alone_and_long_before_there_are_two_windows() -> None:
    history, warnings = follow(*calm(1, 2), *[step(version, clip=0.1) for version in (3, 4)], settings=IN_FORCE)
    assert len(warnings) == 1
    assert decide(history, IN_FORCE, [1, 2, 3]).to_version == 2


def test_a_clip_ratio_that_is_large_and_grows_is_one_sign() -> None:
    _, warnings = follow(*calm(1, 8), *[step(version, clip=0.2) for version in range(9, 13)], settings=IN_FORCE)
    assert len(warnings) == 1


def test_a_sign_that_stays_takes_a_later_incident_back_by_two_windows_and_no_further() -> None:
    drift = [step(version, entropy=2.0) for version in range(9, 100)]
    history, warnings = follow(*calm(1, 8), *drift)
    assert len(warnings) == 1
    assert needed_states(history, range(100)) == {99 - 2 * WINDOW}
    history, _ = follow(*[step(version, entropy=2.0, norm=9.0) for version in range(100, 103)], start=history)
    assert history.incident is not None
    assert 100 - 2 * WINDOW <= history.incident.calm_version < 100


def test_a_sign_that_stays_does_not_hold_an_incident_open() -> None:
    drift = [step(version, entropy=2.0) for version in range(10, 10 + WINDOW)]
    opened, _ = follow(*calm(1, 4), *[step(version, entropy=2.0) for version in range(5, 9)])
    opened = opened.model_copy(update={"incident": Incident(version=9, calm_version=7, settled=True)})
    history, warnings = follow(*drift, start=opened)
    assert len(warnings) == 1
    assert history.incident is None


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(algorithm=Algorithm(gspo=Gspo())),
        Recipe(sources=[SourceObjective(name="code", algorithm=SourceAlgorithm(gspo=Gspo()))]),
    ],
    ids=["the run", "a source"],
)
def test_a_clip_of_whole_completions_has_no_limit_unless_the_manifest_gives_one(recipe: Recipe) -> None:
    cut = [step(version, clip=0.15) for version in range(1, 9)]
    assert follow(*cut, settings=in_force(SETTINGS, recipe))[1] == []
    asked = in_force(Stability(max_clip_ratio=0.1), recipe)
    assert follow(*cut, settings=asked)[1] == ["the clip ratio is 15.00% over 3 steps; maxClipRatio is 10.00%"]


def test_a_limit_of_the_manifest_is_kept_and_one_is_never_exceeded() -> None:
    asked = Stability(max_clip_ratio=1.0)
    assert in_force(asked, Recipe(algorithm=Algorithm(rloo=Clip()))) == asked
    assert follow(*[step(version, clip=1.0) for version in range(1, 9)], settings=asked)[1] == []


def test_entropy_is_measured_against_its_minimum_however_long_ago_that_was() -> None:
    low = [step(version, entropy=0.5) for version in range(5, 9)]
    slow = [step(version, entropy=0.5 + 0.01 * version) for version in range(9, 40)]
    _, warnings = follow(*calm(1, 4), *low, *slow)
    assert len(warnings) == 1
    assert "entropy rose" in warnings[0]


def test_a_clip_ratio_that_grows_from_nothing_to_next_to_nothing_is_no_sign() -> None:
    still = [step(version, clip=0.0) for version in range(1, 9)]
    _, warnings = follow(*still, *[step(version, clip=0.002) for version in range(9, 13)])
    assert warnings == []


@pytest.mark.parametrize("changes", [{"rows": 0}, {"skipped_updates": 2, "norm": 0.0}])
def test_a_step_that_says_nothing_adds_nothing(changes: dict[str, Any]) -> None:
    before, _ = follow(*calm(1, 6))
    after, _ = follow(step(7, **changes), start=before)
    assert after == before


def test_one_sign_alone_is_reported_and_not_acted_upon() -> None:
    history, warnings = follow(*calm(1, 8), *[step(version, norm=1.0) for version in range(9, 12)])
    assert len(warnings) == 1
    assert decide(history, SETTINGS, [11]).action == "go"


def test_two_signs_at_once_roll_back_to_the_newest_state_before_they_began() -> None:
    early = [step(version, norm=1.0) for version in range(9, 11)]  # one sign, from version 9 or 10 on
    history, _ = follow(*calm(1, 8), *early, *storm(11, 2))
    assert history.warned_from is not None
    assert history.incident is not None
    assert history.incident.calm_version == history.warned_from - 1 < 10
    states = [6, 7, 8, 9, 10, 11, 12]
    decision = decide(history, SETTINGS, states)
    assert (decision.action, decision.to_version) == ("roll_back", history.incident.calm_version)
    assert needed_states(history, states) == {history.incident.calm_version}


def test_an_incident_rolls_back_once_and_a_new_one_again() -> None:
    restored, _ = follow(*calm(1, 8))
    history, _ = follow(*storm(9, 3), start=restored)
    after = after_roll_back(restored, history.incident)
    again, warnings = follow(*storm(13, 3), start=after)
    assert len(warnings) == 2
    assert decide(again, SETTINGS, [8]).action == "go"
    quiet, _ = follow(*calm(16, 5 * WINDOW), start=again)
    assert quiet.incident is None
    anew, _ = follow(*storm(40, 3), start=quiet)
    assert decide(anew, SETTINGS, [30]).action == "roll_back"


def test_a_moment_of_calm_does_not_close_an_incident() -> None:
    opened = History(incident=Incident(version=9, calm_version=7, settled=True))
    history, _ = follow(*calm(10, WINDOW - 1), start=opened)
    assert history.incident is not None
    closed, _ = follow(*calm(20, 1), start=history)
    assert closed.incident is None


def test_with_no_state_left_to_go_back_to_the_run_pauses() -> None:
    history, _ = follow(*calm(1, 8), *storm(9, 3))
    decision = decide(history, SETTINGS, [11, 12])
    assert decision.action == "pause"
    assert "no state of version" in decision.reason


def test_a_pause_says_how_it_ends_and_ends_when_it_is_acknowledged() -> None:
    settings = SETTINGS.model_copy(update={"action": "Pause"})
    history, _ = follow(*calm(1, 8), *storm(9, 3), settings=settings)
    assert history.incident is not None
    version = history.incident.version
    decision = decide(history, settings, [])
    assert decision.action == "pause"
    assert f"set stability.acknowledgedVersion to {version}" in decision.reason
    settled = settings.model_copy(update={"acknowledged_version": version})
    later, _ = follow(*storm(12, 1), settings=settled, start=history)
    assert decide(later, settled, []).action == "go"


def test_report_only_never_acts() -> None:
    settings = SETTINGS.model_copy(update={"action": "Report"})
    history, warnings = follow(*calm(1, 8), *storm(9, 3), settings=settings)
    assert len(warnings) == 2
    assert decide(history, settings, [8]).action == "go"
