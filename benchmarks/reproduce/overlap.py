"""How a run of the system spent its time: what overlapped, and what a step waited for (paper, section 4.2).

In: what a finished run left in its store. Out: seconds by step beside the other columns of `system`, the bars of a few steps for the picture, and
Markdown. Pure. Called by `system` and `__main__`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reproduce.summary import Columns, column
from shoal.contracts import keys
from shoal.contracts.recipe import Recipe
from shoal.contracts.steps import StepMetrics
from shoal.contracts.verdicts import Verdict
from shoal.orchestrator.work.step_counter import signal_groups
from shoal.report.facts import StoreFacts
from shoal.report.times import StoreTimes
from shoal.ui.timeline import Interval, intervals, step_rows

SHOWN_STEPS = 6
"""Of the picture, from the middle of a run on."""
OF_TIMELINE = (
    "broadcast_seconds", "generation_seconds", "verification_seconds", "wait_seconds", "training_seconds", "overlap_seconds",
)  # fmt: skip
WARM_UP = 5
"""Steps at both ends that are left out of medians: the first ones wait for what starts, the last ones have nothing to overlap with."""
PAPER = (
    "| the paper, target-short | 14 min | 10 min | 22 min | within 1 min | 22 min | minimal | |",
    "| the paper, target-long | 14 min | | 29 min | within 1 min | 21 min | minimal | |",
)
"""Section 4.2. It has no figure for how long the trainer idled."""


@dataclass(frozen=True)
class Spent:
    """Medians over a run's steps, in seconds; `beside_sampling` is the share of all training during which some worker sampled."""

    broadcast: float
    first_file: float
    batch: float
    check: float
    training: float
    wait: float
    beside_sampling: float


def of_run(
    facts: StoreFacts, times: StoreTimes, recipe: Recipe
) -> tuple[list[dict[str, float | None]], list[list[Any]]]:
    """Seconds of each step, in the order of `facts.steps`, and the bars of the steps that are shown: [lane, step, start, end, who, state].

    Besides what the page's timeline says: `first_file_seconds` from a version's broadcast to its first file, `batch_seconds` to so many verified
    groups as a step needs, and `checked_files`. A broadcast ends when the version is sealed in the store; relays and workers fetch later.
    """
    bars = intervals(times, facts.verdicts, facts.verdict_unix, facts.steps)
    rows = {row["step"]: row for row in step_rows(bars, (), facts.steps)}
    accepted = [each for each in facts.verdicts if each.outcome == "accept"]
    judged = sorted(
        (facts.verdict_unix[keys.verdict(each.node, each.sha256)], _groups(each, recipe)) for each in accepted
    )
    found = []
    for metrics in facts.steps:
        step, sealed = metrics.step, times.sealed.get(metrics.step)
        of_step = {name: rows[step][name] for name in OF_TIMELINE}
        files = [times.submitted.get((each.node, each.sha256)) for each in accepted if each.policy_version == step]
        first = min((each for each in files if each is not None), default=None)
        of_step["first_file_seconds"] = None if sealed is None or first is None else first - sealed
        of_step["batch_seconds"] = None if sealed is None else _until(judged, sealed, recipe.prompts_per_step)
        of_step["checked_files"] = sum(each.step == step and each.check_seconds > 0 for each in facts.verdicts)
        found.append(of_step)
    return found, _shown(bars, facts.steps)


def _groups(verdict: Verdict, recipe: Recipe) -> int:
    """Groups of a file that count."""
    groups = range(len(verdict.rewards) // recipe.group_size)
    return len(signal_groups(verdict.rewards, groups, recipe.group_size, recipe.online_filter))


def _until(judged: Sequence[tuple[float, int]], begin: float, groups: int) -> float | None:
    """Seconds from `begin` until so many groups were judged; None where they never were."""
    count = 0
    for unix, more in judged:
        count += more if unix >= begin else 0
        if count >= groups:
            return unix - begin
    return None


def _shown(bars: Sequence[Interval], steps: Sequence[StepMetrics]) -> list[list[Any]]:
    """Bars that touch the time in which the shown steps were trained, from its begin on, to a hundredth of a second."""
    shown = steps[len(steps) // 2 :][:SHOWN_STEPS]
    if not shown:
        return []
    begin, end = shown[0].started_unix, shown[-1].finished_unix
    who = {name: number for number, name in enumerate(sorted({bar.what for bar in bars if bar.lane == "generation"}))}
    return [
        [
            bar.lane,
            bar.step,
            round(max(bar.start, begin) - begin, 2),
            round(min(bar.end, end) - begin, 2),
            who.get(bar.what, 0),
            bar.state,
        ]
        for bar in bars
        if bar.end > begin and bar.start < end
    ]


def spent(columns: Columns) -> Spent:
    """From the columns of one run. NaN where no step has the figure."""

    def median(name: str) -> float:
        steps, values = column(columns, name)
        inner = values[(steps >= WARM_UP) & (steps < max(steps, default=0) + 1 - WARM_UP)]
        return float(np.median(inner)) if inner.size else float("nan")

    files, training = (column(columns, name)[1].sum() for name in ("checked_files", "training_seconds"))
    check, beside = (column(columns, name)[1].sum() for name in ("verification_seconds", "overlap_seconds"))
    return Spent(
        broadcast=median("broadcast_seconds"),
        first_file=median("first_file_seconds"),
        batch=median("batch_seconds"),
        check=float(check / files) if files else float("nan"),
        training=median("training_seconds"),
        wait=median("wait_seconds"),
        beside_sampling=float(beside / training) if training else float("nan"),
    )


def table(document: Mapping[str, Any]) -> str:
    """Markdown: the paper's figures and a row a run; nothing where there are no runs."""
    rows = []
    for arm, run in document["arms"].items():
        for seed, columns in run["seeds"].items():
            found = spent(columns["system"])
            seconds = (found.broadcast, found.first_file, found.batch, found.check, found.training, found.wait)
            cells = [f"`{arm}`, {seed}", *(f"{each:.2f} s" for each in seconds), f"{found.beside_sampling:.0%}"]
            rows.append(f"| {' | '.join(cells)} |")
    if not rows:
        return ""
    lines = [
        "### What overlaps in the real system",
        "",
        "Medians over steps. First file and full batch count from the end of a version's broadcast. Here all parts share two cores.",
        "",
        "![Six steps of each arm: broadcast, generation, verification and training](images/reproduction/overlap.png)",
        "",
        "| run | published in | first file | full batch | check of a file | training | trainer waited | training beside sampling |",
        "|---|---|---|---|---|---|---|---|",
        *PAPER,
        *rows,
    ]
    return "\n".join([*lines, ""])


def draw(document: Mapping[str, Any], path: Path) -> None:
    """The PNG of `table`: a panel an arm, of its first seed; nothing where there are no runs."""
    arms = {arm: next(iter(run["seeds"].values())) for arm, run in document["arms"].items()}
    if not arms:
        return
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from benchmarks.reproduce.figures import COLOURS, PIXELS_AN_INCH, STYLE

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 2.1 * len(arms)), layout="constrained")
        for axes, (arm, run) in zip(np.atleast_1d(figure.subplots(len(arms), 1)), arms.items(), strict=True):
            lanes = sorted({_lane(bar) for bar in run["bars"]}, key=_order)
            for bar in run["bars"]:
                _, step, start, end, _, state = bar
                colour = "#d5dae0" if state == "wait" else COLOURS[step % len(COLOURS)]
                axes.broken_barh([(start, end - start)], (lanes.index(_lane(bar)) - 0.4, 0.8), color=colour)
            axes.set_yticks(range(len(lanes)), lanes)
            axes.invert_yaxis()
            axes.set_title(f"{arm}: a colour a step; grey: the trainer waits for its batch", fontsize=9, loc="left")
        axes.set_xlabel("seconds")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=PIXELS_AN_INCH, metadata={"Software": None})


LANES = ("broadcast", "generation", "verification", "training")


def _lane(bar: Sequence[Any]) -> str:
    return f"{bar[0]} {bar[4] + 1}" if bar[0] == "generation" else str(bar[0])


def _order(lane: str) -> tuple[int, str]:
    return LANES.index(lane.split()[0]), lane
