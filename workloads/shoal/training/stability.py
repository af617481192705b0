"""Early warnings of a run that is about to collapse (paper section 3.5), and what is to be done about them.

In: the reports of finished steps and the `Stability` settings. Out: signals (for the metrics port), warnings in words (for the step's report), and a
decision before each step. The history is part of every sealed training state, so that a resumed run warns and decides as the one that was
not stopped; it is a function of the reports alone. Pure; called by `loop`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from pydantic import Field

from shoal.contracts.base import Contract
from shoal.contracts.failures import Stability
from shoal.contracts.recipe import Recipe
from shoal.contracts.steps import StepMetrics
from shoal.contracts.weights import VersionNumber

WARNINGS_THAT_ACT = 2
"""One signal alone is often noise; the paper saw gradient norm, entropy and clip ratio rise together before a collapse."""
CLIP_RATIO_FLOOR = 1e-3
"""A clip ratio below one token in a thousand counts as this: growth from nothing to next to nothing is not a sign."""
NORM_FLOOR = 1e-12
LEVEL_STEPS = 3
"""A level is the mean of three steps: one step may have a spike."""
CLIPPED_IN_ORDER = frozenset({"gspo", "custom"})
"""Objectives of which a large clip ratio says nothing. A calm run of GSPO cuts 0.15 of its tokens (arXiv:2507.18071, figure 2); what an objective of
the run's own cuts is not known here."""
MAX_CLIP_RATIO = 0.02
"""Where a manifest gives no limit; ADR 0146 has the runs that it was chosen from."""
LONGEST_WINDOW_STEPS = 1000


class Point(Contract):
    """The entry that one trained step adds to the history."""

    version: VersionNumber
    gradient_norm: float = Field(ge=0.0)
    entropy: float
    clip_ratio: float = Field(ge=0.0)


class Incident(Contract):
    """Several warnings at once, or a clip ratio above its limit, until there was neither for a window. It is acted upon once."""

    version: VersionNumber = Field(description="version at which it opened")
    calm_version: VersionNumber = Field(description="newest version before the warnings began")
    settled: bool = Field(default=False, description="it was rolled back already")
    calm_steps: int = Field(default=0, ge=0, description="steps since that would not have opened it")


class History(Contract):
    """The history of the steps so far: the last two windows, the lowest mean entropy of any window, and the open incident."""

    points: list[Point] = Field(default_factory=list, max_length=2 * LONGEST_WINDOW_STEPS)
    entropy_minimum: float | None = None
    warned_from: VersionNumber | None = Field(
        default=None, description="first version of the present row of warnings, of those in `points`"
    )
    incident: Incident | None = None


@dataclass(frozen=True)
class Signals:
    """Trends and a level; None until there are enough steps. Slope: relative change of the gradient norm per step over the last window.

    `incident`: 1 while one is open, else 0.
    """

    gradient_norm_slope: float | None = None
    gradient_norm_growth: float | None = None
    entropy_rise: float | None = None
    clip_ratio_growth: float | None = None
    clip_ratio_level: float | None = None
    incident: float | None = None


@dataclass(frozen=True)
class StabilityDecision:
    """The action before the next step: nothing, `pause`, or `roll_back` to a version; `reason` in words."""

    action: Literal["go", "pause", "roll_back"] = "go"
    to_version: int | None = None
    reason: str = ""


def in_force(settings: Stability, recipe: Recipe) -> Stability:
    """The settings with the limit that a manifest leaves to the release."""
    objectives = {recipe.objective, *(recipe.of_source(each.name).objective for each in recipe.sources or [])}
    limit = settings.max_clip_ratio or (1.0 if objectives & CLIPPED_IN_ORDER else MAX_CLIP_RATIO)
    return settings.model_copy(update={"max_clip_ratio": limit})


def observe(history: History, metrics: StepMetrics, settings: Stability) -> tuple[History, Signals, list[str]]:
    """The history with a step added, the signals now, and the warnings that they give.

    A step that trained on nothing, or whose updates were all left out, says nothing about trends and adds nothing.
    """
    if metrics.rows == 0 or (metrics.skipped_updates and metrics.gradient_norm == 0.0):
        return history, Signals(), []
    window = settings.window_steps
    point = Point(
        version=metrics.policy_version,
        gradient_norm=metrics.gradient_norm,
        entropy=metrics.entropy,
        clip_ratio=metrics.clip_ratio,
    )
    points = [*history.points, point][-2 * window :]
    entropy = _mean([point.entropy for point in points], window)
    minimum = entropy if history.entropy_minimum is None else min(history.entropy_minimum, entropy or np.inf)
    signals = _signals(points, entropy, minimum, window)
    warnings = _warnings(signals, settings)
    # A sign that stays, such as entropy above its minimum, takes a later incident back by two windows at most.
    warned_from = max(history.warned_from or metrics.policy_version, points[0].version) if warnings else None
    acts = len(warnings) >= WARNINGS_THAT_ACT or _above_clip_limit(signals, settings)
    incident = _follow(history.incident, metrics.policy_version, warned_from, acts, window)
    kept = History(points=points, entropy_minimum=minimum, warned_from=warned_from, incident=incident)
    return kept, replace(signals, incident=float(incident is not None)), warnings


def decide(history: History, settings: Stability, states: Collection[int]) -> StabilityDecision:
    """The action that an open incident needs. `states` are the versions that could be gone back to.

    A roll-back for which no state is left becomes a pause: a person must look.
    """
    incident = history.incident
    if incident is None or incident.settled or settings.action == "Report":
        return StabilityDecision()
    if incident.version <= settings.acknowledged_version:
        return StabilityDecision()
    what = f"version {incident.version} showed signs of instability"
    if settings.action == "Pause":
        return StabilityDecision(
            "pause", reason=f"{what}; set stability.acknowledgedVersion to {incident.version} to continue"
        )
    target = max((version for version in states if version <= incident.calm_version), default=None)
    if target is None:
        return StabilityDecision(
            "pause",
            reason=f"{what}, and no state of version {incident.calm_version} or older is left to return to;"
            f" set stability.acknowledgedVersion to {incident.version} to continue from here",
        )
    return StabilityDecision("roll_back", target, f"{what}; version {target} is the newest before the signs began")


def after_roll_back(restored: History, incident: Incident | None) -> History:
    """The history of the version that was gone back to, with the incident settled, so that it acts once."""
    settled = None if incident is None else incident.model_copy(update={"settled": True, "calm_steps": 0})
    return restored.model_copy(update={"incident": settled, "warned_from": None})


def needed_states(history: History, states: Sequence[int]) -> set[int]:
    """The versions that a roll-back would need: the newest state before the present warnings began."""
    borders = [] if history.warned_from is None else [history.warned_from - 1]
    if history.incident is not None and not history.incident.settled:
        borders.append(history.incident.calm_version)
    return {max(old) for border in borders if (old := [version for version in states if version <= border])}


def _signals(points: Sequence[Point], entropy: float | None, minimum: float | None, window: int) -> Signals:
    norms = [max(point.gradient_norm, NORM_FLOOR) for point in points]
    clips = [max(point.clip_ratio, CLIP_RATIO_FLOOR) for point in points]
    rise = None
    if entropy is not None and minimum is not None and minimum > 0:
        rise = entropy / minimum - 1
    return Signals(
        gradient_norm_slope=_slope(norms, window),
        gradient_norm_growth=_growth(norms, window),
        entropy_rise=rise,
        clip_ratio_growth=_growth(clips, window),
        clip_ratio_level=_mean([point.clip_ratio for point in points], LEVEL_STEPS),
    )


def _warnings(signals: Signals, settings: Stability) -> list[str]:
    """One for each quantity that shows a sign."""
    over = f"over {settings.window_steps} steps"
    found = []
    if signals.gradient_norm_growth is not None and signals.gradient_norm_growth >= settings.gradient_norm_growth:
        found.append(
            f"the gradient norm grew {signals.gradient_norm_growth:.2f}-fold {over}; the warning starts at {settings.gradient_norm_growth:g}"
        )
    if signals.entropy_rise is not None and signals.entropy_rise >= settings.entropy_rise:
        found.append(
            f"the entropy rose {signals.entropy_rise:.0%} above its minimum {over}; the warning starts at {settings.entropy_rise:.0%}"
        )
    if _above_clip_limit(signals, settings):
        found.append(
            f"the clip ratio is {signals.clip_ratio_level:.2%} over {LEVEL_STEPS} steps; maxClipRatio is {settings.max_clip_ratio:.2%}"
        )
    elif signals.clip_ratio_growth is not None and signals.clip_ratio_growth >= settings.clip_ratio_growth:
        found.append(
            f"the clip ratio grew {signals.clip_ratio_growth:.2f}-fold {over}; the warning starts at {settings.clip_ratio_growth:g}"
        )
    return found


def _above_clip_limit(signals: Signals, settings: Stability) -> bool:
    """A sign that acts alone. Without a limit, as before `in_force`, there is none."""
    level, limit = signals.clip_ratio_level, settings.max_clip_ratio
    return level is not None and limit is not None and level > limit


def _follow(
    incident: Incident | None, version: int, warned_from: int | None, acts: bool, window: int
) -> Incident | None:
    """Opens when signs are such that the run acts, closes after a window without them: in between nothing is acted upon twice."""
    if incident is None:
        if not acts or warned_from is None:
            return None
        return Incident(version=version, calm_version=warned_from - 1)
    calm = 0 if acts else incident.calm_steps + 1
    return None if calm >= window else incident.model_copy(update={"calm_steps": calm})


def _mean(values: Sequence[float], window: int) -> float | None:
    """Of the last window; None while it is not full."""
    return float(np.mean(values[-window:])) if len(values) >= window else None


def _growth(values: Sequence[float], window: int) -> float | None:
    """Mean of the last window over the mean of the one before; None while there are no two."""
    if len(values) < 2 * window:
        return None
    return float(np.mean(values[-window:]) / np.mean(values[-2 * window : -window]))


def _slope(values: Sequence[float], window: int) -> float | None:
    """Least-squares slope of the logarithm over the last window, as relative change per step."""
    if len(values) < window:
        return None
    return float(np.expm1(np.polyfit(np.arange(window), np.log(values[-window:]), 1)[0]))
