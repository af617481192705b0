"""What the paper says, as tests that can decide: each claim is a margin written down before its arms are run.

In: `claims.json`, and runs by arm. Out: for each claim an estimate, its interval, and whether it is shown, contradicted or not decided. Seeds are
added at fixed looks (`LOOKS`) until a claim is decided, so each interval has its part of the 5 %: over all looks a claim is decided wrongly with 5 %
at most. An arm is never dropped for its result. Pure; called by `__main__` and `page`.

What `says` asks of the value `d` (the first arm's minus the second's, or the only arm's own) and the margin `m`:

    within      |d| < m
    more        d > m
    less        d < -m for two arms, d < m for one
    not less    d > -m
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.reproduce.arms import MATCHED_ARMS
from benchmarks.reproduce.summary import Columns, Seeds, at_end, column, largest, over_run, pairs

CLAIMS = Path(__file__).with_name("claims.json")
LOOKS = (4, 8, 16, 24)
"""Seeds at which a claim is looked at."""
STUDENT = {4: 5.392, 8: 3.335, 16: 2.837, 24: 2.710}
"""Student's t at the two-sided level of 5 % shared by the four looks (Bonferroni), by seeds."""

Says = Literal["within", "more", "less", "not less"]
Outcome = Literal["shown", "contradicted", "not decided"]


@dataclass(frozen=True)
class Claim:
    """`arms`: one, or the two that are compared by seed. `how` is a name of `VALUES`."""

    name: str
    paper: str
    says: Says
    arms: tuple[str, ...]
    column: str
    how: str
    margin: float
    most_seeds: int

    @property
    def allowed(self) -> tuple[float, float]:
        """Values between which the claim is right."""
        endless = float("inf")
        match self.says:
            case "within":
                return -self.margin, self.margin
            case "more":
                return self.margin, endless
            case "less":
                return -endless, self.margin if len(self.arms) == 1 else -self.margin
            case "not less":
                return -self.margin, endless


@dataclass(frozen=True)
class Decision:
    """What the runs say of a claim. The interval is (nan, nan) before the first look."""

    claim: Claim
    estimate: float
    interval: tuple[float, float]
    seeds: int
    outcome: Outcome

    @property
    def decided(self) -> bool:
        return self.outcome != "not decided"

    @property
    def wanted_seeds(self) -> int:
        """How many seeds its arms should have next; no more than they have once it is decided or at its most."""
        more = [look for look in LOOKS if self.seeds < look <= self.claim.most_seeds]
        return self.seeds if self.decided or not more else more[0]

    def document(self) -> dict[str, Any]:
        """As in `reproduction.json`."""
        return {
            "margin": self.claim.margin,
            "estimate": None if np.isnan(self.estimate) else round(self.estimate, 4),
            "interval": None if np.isnan(self.interval[0]) else [round(each, 4) for each in self.interval],
            "seeds": self.seeds,
            "decided": self.decided,
            "outcome": self.outcome,
        }


def read(path: Path = CLAIMS) -> dict[str, Claim]:
    """The claims by name. ValueError: two of one name, a margin below 0, a number of seeds that is no look, an unknown `how`."""
    found: dict[str, Claim] = {}
    for entry in json.loads(path.read_text()):
        claim = Claim(**entry | {"arms": tuple(entry["arms"])})
        problem = (
            "is there twice" if claim.name in found
            else "has a margin below 0" if claim.margin < 0
            else f"has {claim.most_seeds} seeds at most; allowed: {LOOKS}" if claim.most_seeds not in LOOKS
            else f"measures by {claim.how!r}; allowed: {', '.join(VALUES)}" if claim.how not in VALUES
            else f"has {len(claim.arms)} arms; allowed: 1 or 2" if len(claim.arms) not in (1, 2)
            else None
        )  # fmt: skip
        if problem is not None:
            raise ValueError(f"{path.name}: claim {claim.name!r} {problem}")
        found[claim.name] = claim
    return found


def decide(claim: Claim, runs: Mapping[str, Seeds]) -> Decision:
    """By the seeds that all its arms have, as many as the last look that they reach.

    Where arms share a base model, runs of a seed that began with two of them do not count.
    """
    arms, shared = [runs.get(arm, {}) for arm in claim.arms], _seeds_of(claim, runs)
    look = max((look for look in LOOKS if look <= min(len(shared), claim.most_seeds)), default=0)
    if not look:
        return Decision(claim, float("nan"), (float("nan"), float("nan")), 0, "not decided")
    of = VALUES[claim.how]
    values = np.array([of(arms[0][seed], claim.column) for seed in shared[:look]])
    if len(arms) == 2:
        values = values - np.array([of(arms[1][seed], claim.column) for seed in shared[:look]])
    mean, half = float(values.mean()), float(STUDENT[look] * values.std(ddof=1) / np.sqrt(look))
    low, high = mean - half, mean + half
    least, most = claim.allowed
    outcome: Outcome = (
        "shown" if least < low and high < most else "contradicted" if high < least or most < low else "not decided"
    )
    return Decision(claim, mean, (low, high), look, outcome)


def apart(claim: Claim, runs: Mapping[str, Seeds]) -> int:
    """Seeds that all arms of a claim have, but with base models of two kinds of machine."""
    one, other = runs.get(claim.arms[0], {}), runs.get(claim.arms[-1], {})
    return sum(seed in other for seed in one) - len(_seeds_of(claim, runs))


def _seeds_of(claim: Claim, runs: Mapping[str, Seeds]) -> list[str]:
    one, other = runs.get(claim.arms[0], {}), runs.get(claim.arms[-1], {})
    if len({MATCHED_ARMS[arm].base for arm in claim.arms if arm in MATCHED_ARMS}) > 1:
        return [seed for seed in one if seed in other]
    return pairs(one, other)


def _growth(values: np.ndarray) -> float:
    """Decades by which the last fifth is above the first; what is 0 counts as a millionth."""
    first, last = (max(float(part.mean()), 1e-6) for part in (_fifth(values, 0), _fifth(values, 4)))
    return float(np.log10(last / first))


def _late_rise(values: np.ndarray) -> float:
    """How far the last fifth is above the middle one: the lowest place would be below the end in any run."""
    return float(_fifth(values, 4).mean() - _fifth(values, 2).mean())


def _fifth(values: np.ndarray, number: int) -> np.ndarray:
    return np.array_split(values, 5)[number]


def _of_steps(of: Any) -> Any:
    return lambda seed, name: of(_values(seed, name))


def _values(seed: Columns, name: str) -> np.ndarray:
    """A column, or the sum of those that it is made of."""
    if name == "clip_share":
        return np.asarray(_values(seed, "clip_low") + _values(seed, "clip_high") + _values(seed, "clip_delta"))
    return column(seed, name)[1]


VALUES: Mapping[str, Any] = {
    "end": at_end,
    "mean": over_run,
    "largest_log10": lambda seed, name: float(np.log10(max(largest(seed, name), 1e-6))),
    "growth_log10": _of_steps(_growth),
    "late_rise": _of_steps(_late_rise),
}
"""What is measured of a column of one run."""
