"""Early warnings of a run that is about to collapse (paper section 3.5), and what is to be done about them.

In: the reports of finished steps and the `Stability` settings. Out: signals (for the metrics port), warnings in words (for the step's report), and a
decision before each step. The history is part of every sealed training state, so that a resumed run warns and decides as the one that was
not stopped; it is a function of the reports alone. Pure; called by `loop`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from shoal.contracts.base import Contract
from shoal.contracts.failures import Stability
from shoal.contracts.steps import StepMetrics
from shoal.contracts.weights import VersionNumber

WARNINGS_THAT_ACT = 2
"""One signal alone is often noise; the paper saw gradient norm, entropy and clip ratio rise together before a collapse."""
CLIP_RATIO_FLOOR = 1e-3
"""A clip ratio below one token in a thousand counts as this: growth from nothing to next to nothing is not a sign."""
NORM_FLOOR = 1e-12
LONGEST_WINDOW_STEPS = 1000


class Point(Contract):
    """The entry that one trained step adds to the history."""

    version: VersionNumber
    gradient_norm: float = Field(ge=0.0)
    entropy: float
    clip_ratio: float = Field(ge=0.0)


class Incident(Contract):
    """Several warnings at once, until the run was calm for a window. It is acted upon once."""

    version: VersionNumber = Field(description="version at which it opened")
    calm_version: VersionNumber = Field(description="newest version before the warnings began")
    settled: bool = Field(default=False, description="it was rolled back already")
    calm_steps: int = Field(default=0, ge=0, description="steps without a warning since")


class History(Contract):
    """The history of the steps so far: the last two windows, the lowest mean entropy of any window, and the open incident."""

    points: list[Point] = Field(default_factory=list, max_length=2 * LONGEST_WINDOW_STEPS)
    entropy_minimum: float | None = None
    warned_from: VersionNumber | None = Field(default=None, description="first version of the present row of warnings")
    incident: Incident | None = None


@dataclass(frozen=True)
class Signals:
    """Trends; None until there are enough steps. Slope: relative change of the gradient norm per step over the last window."""

    gradient_norm_slope: float | None = None
    gradient_norm_growth: float | None = None
    entropy_rise: float | None = None
    clip_ratio_growth: float | None = None


@dataclass(frozen=True)
class StabilityDecision:
    """The action before the next step: nothing, `pause`, or `roll_back` to a version; `reason` in words."""

    action: Literal["go", "pause", "roll_back"] = "go"
    to_version: int | None = None
    reason: str = ""


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
    warned_from = (history.warned_from or metrics.policy_version) if warnings else None
    incident = _follow(history.incident, metrics.policy_version, warned_from, len(warnings), window)
    kept = History(points=points, entropy_minimum=minimum, warned_from=warned_from, incident=incident)
    return kept, signals, warnings


def decide(history: History, settings: Stability, states: Collection[int]) -> StabilityDecision:
    """The action that an open incident needs. `states` are the versions that could be gone back to.

    A roll-back for which no state is left becomes a pause: a person must look.
    """
    incident = history.incident
    if incident is None or incident.settled or settings.action == "Report":
        return StabilityDecision()
    if incident.version <= settings.acknowledged_version:
        return StabilityDecision()
    what = f"version {incident.version} showed {WARNINGS_THAT_ACT} or more signs of instability at once"
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
    )


def _warnings(signals: Signals, settings: Stability) -> list[str]:
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
    if signals.clip_ratio_growth is not None and signals.clip_ratio_growth >= settings.clip_ratio_growth:
        found.append(
            f"the clip ratio grew {signals.clip_ratio_growth:.2f}-fold {over}; the warning starts at {settings.clip_ratio_growth:g}"
        )
    return found


def _follow(
    incident: Incident | None, version: int, warned_from: int | None, warnings: int, window: int
) -> Incident | None:
    """Opens at several warnings at once, closes after a window without any: in between nothing is acted upon twice."""
    if incident is None:
        if warnings < WARNINGS_THAT_ACT or warned_from is None:
            return None
        return Incident(version=version, calm_version=warned_from - 1)
    calm = 0 if warnings else incident.calm_steps + 1
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
