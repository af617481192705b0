"""Which sign foretells a fall of the reward, how many steps before it, and how many calm runs show it too.

In: runs by arm. Out: one `Sign` for each thing that can be measured, for each warning of `shoal.training.stability` at its default settings, and for
what opens an incident, on which a trainer acts.
A run has fallen at the first measurement whose held-out reward is below three quarters of the best before it; runs that never do are calm.

A sign's threshold is twice the largest value of all calm runs. Whether a calm run is a false alarm is asked with the threshold of the others.
All falls here have one cause, updates that are twenty times too large: a sign of these need not be one of other causes. Pure; called by `__main__`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks.reproduce.summary import Seeds, column
from shoal.contracts.failures import Stability
from shoal.contracts.recipe import Recipe
from shoal.contracts.steps import StepMetrics
from shoal.training.stability import History, in_force, observe

FALLEN_SHARE = 0.75
"""A quarter of the best reward, 0.36 at least, is three standard errors of a measurement on 256 tasks."""
STEPS = 3
"""A sign is the mean of so many steps: one step's spike is no trend."""
MARGIN = 2.0
INCIDENT = "any that acts"

Columns = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True)
class Sign:
    """`leads`: steps from a sign to the fall, of falls that it came before. `late` falls had it at the fall or after, `unseen` ones never.

    `threshold`: None of what has several.
    """

    name: str
    threshold: float | None
    leads: list[int]
    late: int
    unseen: int
    false_alarms: int
    calm: int

    @property
    def fallen(self) -> int:
        return len(self.leads) + self.late + self.unseen

    def document(self) -> dict[str, Any]:
        """As in `reproduction.json`."""
        return asdict(self) | {"threshold": None if self.threshold is None else float(f"{self.threshold:.4g}")}


def fall_of(run: Columns) -> int | None:
    """The step of the first measurement far below the best before it; None where the reward holds."""
    steps, rewards = column(run, "held_out_reward")
    best = np.maximum.accumulate(rewards)
    fallen = np.flatnonzero(rewards < FALLEN_SHARE * best)
    return int(steps[fallen[0]]) if len(fallen) else None


def signs(arms: Mapping[str, Seeds]) -> list[Sign]:
    """A sign for each column of `MEASURED`, then one for each warning; [] where no run fell or none was calm."""
    runs = [run for seeds in arms.values() for run in seeds.values()]
    falls = [fall_of(run) for run in runs]
    fallen = [(run, fall) for run, fall in zip(runs, falls, strict=True) if fall is not None]
    calm = [run for run, fall in zip(runs, falls, strict=True) if fall is None]
    if not fallen or len(calm) < 2:
        return []
    return [*(_of_level(name, of, fallen, calm) for name, of in MEASURED.items()), *_of_watch(fallen, calm)]


def _of_level(name: str, of: Callable[[Columns], np.ndarray], fallen: Any, calm: Sequence[Columns]) -> Sign:
    highest = sorted(float(of(run).max()) for run in calm)
    false_alarms = int(highest[-1] > MARGIN * highest[-2])  # only the highest can be above twice all others
    threshold = MARGIN * highest[-1]
    first = [_first(of(run) > threshold) for run, _ in fallen]
    return _sign(name, threshold, first, [fall for _, fall in fallen], false_alarms, len(calm))


def _of_watch(fallen: Any, calm: Sequence[Columns]) -> list[Sign]:
    settings = in_force(Stability(), Recipe())  # all arms clip tokens, as the default recipe does
    thresholds = {
        "gradient norm grew": settings.gradient_norm_growth,
        "entropy rose": settings.entropy_rise,
        "clip ratio grew": settings.clip_ratio_growth,
        "clip ratio is": settings.max_clip_ratio,
        INCIDENT: None,
    }
    warned, quiet = (
        [_warned(run, settings, list(thresholds)) for run in runs] for runs in ([run for run, _ in fallen], calm)
    )
    falls = [fall for _, fall in fallen]
    return [
        _sign(
            f"warning: {words}", threshold, [_first(run[words]) for run in warned], falls,
            sum(bool(run[words].any()) for run in quiet), len(calm),
        )
        for words, threshold in thresholds.items()
    ]  # fmt: skip


def _sign(
    name: str, threshold: float | None, first: Sequence[int | None], falls: Sequence[int], false_alarms: int, calm: int
) -> Sign:
    seen = [fall - step for step, fall in zip(first, falls, strict=True) if step is not None]
    leads = [lead for lead in seen if lead > 0]
    return Sign(name, threshold, leads, len(seen) - len(leads), len(falls) - len(seen), false_alarms, calm)


def _first(places: np.ndarray) -> int | None:
    return int(np.argmax(places)) if places.any() else None


def _warned(run: Columns, settings: Stability, words: Sequence[str]) -> dict[str, np.ndarray]:
    """By the words of a warning: at which trained steps the trainer would have given it."""
    names = ("gradient_norm", "entropy", "clip_low", "clip_high", "clip_delta")
    values = np.array([column(run, name)[1] for name in names]).T
    history, found = History(), []
    for step, row in enumerate(values):
        report = StepMetrics.model_construct(
            step=step, policy_version=step + 1, rows=1, skipped_updates=0, **dict(zip(names, row.tolist(), strict=True))
        )
        history, _, warnings = observe(history, report, settings)
        found.append([*warnings, *([f"the {INCIDENT} "] if history.incident is not None else [])])
    return {each: np.array([any(f"the {each} " in warning for warning in said) for said in found]) for each in words}


def _mean(values: np.ndarray) -> np.ndarray:
    """Of the last `STEPS` steps, of fewer at the beginning."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - STEPS, 0)
    return np.asarray((sums[ends] - sums[begins]) / (ends - begins))


def _level(name: str) -> Callable[[Columns], np.ndarray]:
    return lambda run: _mean(column(run, name)[1])


def _clip_ratio(run: Columns) -> np.ndarray:
    return _mean(sum((column(run, name)[1] for name in ("clip_low", "clip_high", "clip_delta")), np.zeros(1)))


def _entropy_rise(run: Columns) -> np.ndarray:
    entropy = _mean(column(run, "entropy")[1])
    return np.asarray(entropy / np.minimum.accumulate(entropy) - 1.0)


MEASURED: Mapping[str, Callable[[Columns], np.ndarray]] = {
    "clip ratio": _clip_ratio,
    "KL between versions, nats a token": _level("moved_kl"),
    "KL to the base model, nats a token": _level("kl"),
    "largest ratio": _level("largest_ratio"),
    "gradient norm": _level("gradient_norm"),
    "largest gradient norm": _level("gradient_norm_max"),
    "entropy above its lowest": _entropy_rise,
}


def table(found: Sequence[Sign]) -> str:
    """Markdown: a row a sign, those first that come before most falls."""
    if not found:
        return ""
    fallen, calm = found[0].fallen, found[0].calm
    lines = [
        "### What foretells a fall",
        "",
        f"{fallen} runs fell below three quarters of their best reward, {calm} did not. A sign is the mean of {STEPS} steps, and its threshold"
        " twice what any calm run shows. A warning is the trainer's own (`spec.stability`) at its defaults.",
        "",
        "| sign | from | before the fall | steps before, median (least to most) | later | never | false alarms |",
        "|---|---|---|---|---|---|---|",
    ]
    for sign in sorted(found, key=lambda sign: -len(sign.leads)):
        steps = f"{median(sign.leads):g} ({min(sign.leads)} to {max(sign.leads)})" if sign.leads else ""
        before, alarms = f"{len(sign.leads)} of {sign.fallen}", f"{sign.false_alarms} of {sign.calm}"
        cells = (
            sign.name,
            "" if sign.threshold is None else f"{sign.threshold:.3g}",
            before,
            steps,
            sign.late,
            sign.unseen,
            alarms,
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, ""])
