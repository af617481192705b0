"""Whether runs of the real system lie where the simulator's do: the band, the lag as it was measured, the table of docs/reproduction.md.

In: `reproduction_system.json`, and the simulator's runs by arm. Out: a `Comparison` for each run of the system, and Markdown. Pure but for `read`.
Called by `system` and `__main__`.

A run agrees where its end lies inside of the band: where one further seed of the simulator would lie with 95 %, by Student's t over its seeds. Of six
runs that agree, one lies outside by chance in a quarter of all cases.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reproduce.arms import MATCHED_ARMS
from benchmarks.reproduce.summary import Columns, Interval, Seeds, at_end, column, over_run, prediction

MEASURE_EVERY_STEPS = 5
BEHIND = "rows_behind_"
LEAST_SEEDS = 3
"""Of the simulator: with two the band is wider than any reward."""


@dataclass(frozen=True)
class Lag:
    """Versions that trained rows were behind: `mean` and `most` over a run, and the share of rows by lag, from 0 on."""

    mean: float
    most: int
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """One run of the system. `reward`: of held-out tasks at its end. `band`: None where the simulator has too few seeds.

    `gap`: the reward minus the simulator's from the same base model. `groups`: sampled a step, here and there.
    """

    arm: str
    seed: str
    reward: float
    band: Interval | None
    points_inside: int
    points: int
    gap: float
    lag: Lag
    simulated_lag: float
    groups: tuple[float, float]
    files_accepted: int
    files_rejected: int

    @property
    def inside(self) -> bool | None:
        """Whether the end lies in the band; None without one."""
        return None if self.band is None else _holds(self.band, self.reward)


def read(path: Path) -> dict[str, Any]:
    """The committed runs of the system; none where there is no such file."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"steps": 0, "arms": {}}
    return found


def lag_of(columns: Columns) -> Lag:
    """The lag of a run from its columns `rows_behind_0`, `rows_behind_1`, ... Raises ValueError where no row was trained on."""
    names = sorted((name for name in columns if name.startswith(BEHIND)), key=lambda name: int(name[len(BEHIND) :]))
    rows = np.array([column(columns, name)[1].sum() for name in names])
    if not rows.sum():
        raise ValueError(f"no row was trained on: columns {', '.join(names) or 'of rows behind are missing'}")
    lags = np.arange(len(rows))
    return Lag(float(rows @ lags / rows.sum()), int(lags[rows > 0].max()), tuple((rows / rows.sum()).tolist()))


def until(columns: Columns, step: int) -> dict[str, list[float | None]]:
    """Columns up to and with `step`."""
    count = sum(each is not None and each <= step for each in columns["step"])
    return {name: list(values[:count]) for name, values in columns.items()}


def band(seeds: Seeds, step: int) -> Interval | None:
    """Where the end of one further run of `step` steps lies with 95 %; None with fewer than `LEAST_SEEDS` seeds."""
    if len(seeds) < LEAST_SEEDS:
        return None
    return prediction([at_end(until(seed, step), "held_out_reward") for seed in seeds.values()])


def _holds(found: Interval, value: float) -> bool:
    return abs(value - found.mean) <= found.half


def _points(columns: Columns, seeds: Seeds) -> tuple[int, int]:
    """Measurements of a run that lie in the band of their own step, and of how many. Step 0 is the base model's."""
    inside = total = 0
    for step, value in zip(*column(columns, "held_out_reward"), strict=True):
        at_step = [
            reward for each in seeds.values() for at, reward in zip(*column(each, "held_out_reward"), strict=True) if at == step
        ]  # fmt: skip
        if step > 0 and len(at_step) >= LEAST_SEEDS:
            inside += _holds(prediction(at_step), value)
            total += 1
    return inside, total


def compare(document: Mapping[str, Any], simulator: Mapping[str, Seeds]) -> list[Comparison]:
    """Every run of the system beside the simulator's seeds of its arm, by arm and seed."""
    found = []
    for arm, run in document["arms"].items():
        seeds = simulator.get(arm, {})
        for seed, columns in run["seeds"].items():
            ours, theirs = columns["system"], columns["simulator"]
            inside, points = _points(ours, seeds)
            steps, versions = column(theirs, "version")
            found.append(
                Comparison(
                    arm=arm,
                    seed=seed,
                    reward=at_end(ours, "held_out_reward"),
                    band=band(seeds, document["steps"]),
                    points_inside=inside,
                    points=points,
                    gap=at_end(ours, "held_out_reward") - at_end(theirs, "held_out_reward"),
                    lag=lag_of(ours),
                    simulated_lag=float((steps - versions).mean()),
                    groups=(over_run(ours, "groups_sampled"), over_run(theirs, "groups_sampled")),
                    files_accepted=int(column(ours, "files_accepted")[1].sum()),
                    files_rejected=int(column(ours, "files_rejected")[1].sum()),
                )
            )
    return found


def table(document: Mapping[str, Any], simulator: Mapping[str, Seeds]) -> str:
    """Markdown: a row a run; nothing where there are no runs."""
    found = compare(document, simulator)
    if not found:
        return ""
    lines = [
        "### The real system beside the simulator",
        "",
        f"Each run is {document['steps']} steps of `shoal up`: vLLM workers, proofs, validator, relays (`benchmarks/reproduce/system.py`)."
        " The band is where one more seed of the simulator ends with 95 %. The gap is to the simulator from the same base model.",
        "",
        "| arm, seed | held-out reward | band | inside | measurements inside | gap | versions behind, mean: here, simulator | rows 0, 1, ... behind"
        " | groups sampled a step: here, simulator | files accepted, rejected |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in found:
        limits = each.band
        cells = (
            f"`{each.arm}`, {each.seed}",
            f"{each.reward:.3f}",
            "" if limits is None else f"{limits.mean - limits.half:.3f} to {limits.mean + limits.half:.3f}",
            {None: "", True: "yes", False: "**no**"}[each.inside],
            f"{each.points_inside} of {each.points}" if each.points else "",
            f"{each.gap:+.3f}",
            f"{each.lag.mean:.2f} of {MATCHED_ARMS[each.arm].async_level}, {each.simulated_lag:.2f}",
            " / ".join(f"{share:.0%}" for share in each.lag.shares),
            f"{each.groups[0]:.1f}, {each.groups[1]:.1f}",
            f"{each.files_accepted}, {each.files_rejected}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
