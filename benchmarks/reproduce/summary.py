"""Numbers from the curves of a few seeds: means, confidence bands, paired differences. Pure; called by `figures` and `page`.

In: the columns of an arm by seed, as in benchmarks/results/reproduction.json. Out: arrays and intervals. Seeds are paired across arms: the
same seed has the same base model, the same tasks and the same chance, so differences are tighter than the arms' own bands. Another kind of machine
makes another base model of a seed, so only runs that began alike are a pair.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

STUDENT_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Two-sided 95 % quantiles of Student's t by degrees of freedom (any table of them)."""
LAST_MEASUREMENTS = 3
"""An arm's end is the mean of so many last measurements, since one has a standard error of 3 %."""

OF_START = ("held_out_reward", "length_error")
"""Measurements at step 0 that tell two base models apart."""

Columns = Mapping[str, Sequence[float | None]]
Seeds = Mapping[str, Columns]


@dataclass(frozen=True)
class Interval:
    """A mean over `count` seeds and half the width of its 95 % interval (NaN with one seed)."""

    mean: float
    half: float
    count: int

    def __str__(self) -> str:
        digits = 3 if abs(self.mean) < 10 else 1 if abs(self.mean) < 1000 else 0
        return f"{self.mean:,.{digits}f} ± {self.half:,.{digits}f}" if self.count > 1 else f"{self.mean:,.{digits}f}"


@dataclass(frozen=True)
class Curve:
    """Steps, means over seeds, and the lower and upper edge of the band, all of one length."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def interval(values: Sequence[float]) -> Interval:
    """Mean and Student's 95 % interval of independent values."""
    found = np.asarray(values, dtype=np.float64)
    count = len(found)
    if count == 1:
        return Interval(float(found[0]), float("nan"), 1)
    quantile = STUDENT_95.get(count - 1, 1.96)
    return Interval(float(found.mean()), float(quantile * found.std(ddof=1) / np.sqrt(count)), count)


def prediction(values: Sequence[float]) -> Interval:
    """Mean, and half the width of the interval in which one further independent value lies with 95 % (Student's t; NaN of one value)."""
    found = interval(values)
    return Interval(found.mean, float(found.half * np.sqrt(found.count + 1)), found.count)


def column(seed: Columns, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of a column where it has a value."""
    kept = [(step, value) for step, value in zip(seed["step"], seed[name], strict=True) if value is not None]
    pairs = np.array(kept, dtype=np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def curve(seeds: Seeds, name: str, *, extremes: bool) -> Curve:
    """The mean over seeds with its 95 % interval, or with the smallest and largest seed where `extremes` matter (spikes)."""
    steps = column(next(iter(seeds.values())), name)[0]
    values = np.array([column(seed, name)[1] for seed in seeds.values()])
    mean = values.mean(axis=0)
    if extremes or len(values) == 1:
        return Curve(steps, mean, values.min(axis=0), values.max(axis=0))
    half = np.array([interval(values[:, place].tolist()).half for place in range(values.shape[1])])
    return Curve(steps, mean, mean - half, mean + half)


def at_end(seed: Columns, name: str) -> float:
    """Mean of the last measurements of a column."""
    return float(column(seed, name)[1][-LAST_MEASUREMENTS:].mean())


def over_run(seed: Columns, name: str) -> float:
    """Mean of a column over the whole run."""
    return float(column(seed, name)[1].mean())


def largest(seed: Columns, name: str) -> float:
    """Largest value of a column."""
    return float(column(seed, name)[1].max())


def each(seeds: Seeds, value: Any, name: str) -> Interval:
    """`value(seed's columns, name)` over the seeds."""
    return interval([value(seed, name) for seed in seeds.values()])


def began_alike(one: Columns, other: Columns) -> bool:
    """Whether two runs began with the same base model."""
    return all(one[name][0] == other[name][0] for name in OF_START if name in one and name in other)


def pairs(one: Seeds, other: Seeds) -> list[str]:
    """Seeds that both have and began alike, in the order of `one`."""
    return [seed for seed, columns in one.items() if seed in other and began_alike(columns, other[seed])]


def paired(one: Seeds, other: Seeds, value: Any, name: str) -> Interval:
    """Difference of `value`, `one` minus `other`, over their pairs."""
    return interval([value(one[seed], name) - value(other[seed], name) for seed in pairs(one, other)])
