"""The generated part of docs/reproduction.md: a table of ends and differences for each experiment, between two markers.

In: runs by arm. Out: the page with new tables; the prose around them is a person's. Called by `__main__`.
"""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.reproduce.arms import ARMS, SEEDS, SHOWN_ARMS, SHOWN_EXPERIMENTS, Experiment
from benchmarks.reproduce.claims import Decision
from benchmarks.reproduce.figures import BY_TARGET
from benchmarks.reproduce.summary import Seeds, at_end, each, largest, over_run, paired
from shoal.installed import installed

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
HOW = {
    "held_out_reward": at_end,
    "length_error": at_end,
    BY_TARGET: at_end,
    "kl": at_end,
    "entropy": at_end,
    "signal_share": over_run,
    "groups_sampled": over_run,
    "gradient_norm": over_run,
    "gradient_norm_max": largest,
    "largest_ratio": largest,
}
WORDS = {at_end: "at the end", over_run: "mean of the run", largest: "largest of the run"}


def measured_on() -> dict[str, str]:
    """Machine and versions, to stand beside the figures."""
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}; one thread"
    packages = {name: version(name).split("+")[0] for name in ("torch", "transformers")} | {
        "shoal": installed().version
    }
    return {"machine": machine, "python": platform.python_version()} | packages


def tables(runs: dict[str, Any]) -> str:
    """Markdown: for each experiment whose arms are there, a row an arm, with paired differences to the first."""
    return "\n".join(
        _table(name, experiment, {arm: runs[arm]["seeds"] for arm in experiment.arms})
        for name, experiment in SHOWN_EXPERIMENTS.items()
        if all(arm in runs for arm in experiment.arms)
    )


def _table(name: str, experiment: Experiment, arms: dict[str, Seeds]) -> str:
    first = experiment.arms[0]
    columns = [f"{curve.replace('_', ' ')}, {WORDS[HOW[curve]]}" for curve in experiment.curves]
    lines = [
        f"### {experiment.title}",
        "",
        f"{experiment.paper}",
        "",
        f"![{experiment.title}](images/reproduction/{name}.png)",
        "",
        "| arm | seeds | " + " | ".join(columns) + f" | reward minus that of `{first}` |",
        "|" + "---|" * (len(columns) + 3),
    ]
    for arm, seeds in arms.items():
        cells = [_cell(arm, seeds, curve) for curve in experiment.curves]
        gap = "" if arm == first else str(paired(seeds, arms[first], at_end, "held_out_reward"))
        lines.append(
            f"| `{arm}`: {SHOWN_ARMS[arm].title.removeprefix('default: ')} | {len(seeds)} | "
            + " | ".join(cells)
            + f" | {gap} |"
        )
    return "\n".join([*lines, ""])


def _cell(arm: str, seeds: Seeds, curve: str) -> str:
    if curve == BY_TARGET:
        each_target = (each(seeds, at_end, f"length_at_{target}").mean for target in SHOWN_ARMS[arm].targets)
        return " / ".join(f"{length:.1f}" for length in each_target)
    return str(each(seeds, HOW[curve], curve))


def claims_table(decisions: Sequence[Decision]) -> str:
    """Markdown: a row a claim, with what the paper says, the margin, the interval and what it comes to."""
    lines = [
        "### Claims of the paper, decided",
        "",
        "Each margin was committed before its arms ran (`benchmarks/reproduce/claims.json`). Intervals share 5 % between four looks.",
        "",
        "| claim | the paper | must be | here | seeds | outcome |",
        "|---|---|---|---|---|---|",
    ]
    for found in decisions:
        claim = found.claim
        here = (
            ""
            if found.interval[0] != found.interval[0]
            else f"{found.estimate:+.3f} ({found.interval[0]:+.3f} to {found.interval[1]:+.3f})"
        )
        low, high = claim.allowed
        bound = (
            f"{low:+g} to {high:+g}"
            if claim.says == "within"
            else f"above {low:+g}"
            if high == float("inf")
            else f"below {high:+g}"
        )
        arms = " minus ".join(f"`{arm}`" for arm in claim.arms)
        lines.append(
            f"| {claim.column.replace('_', ' ')} of {arms} | {claim.paper} | {bound} | {here} | {found.seeds} | {found.outcome} |"
        )
    return "\n".join([*lines, ""])


def write_page(runs: dict[str, Any], first: str, page: Path) -> None:
    """Put `first` and the tables between the markers of the page; a page that is not there begins with them."""
    text = page.read_text() if page.exists() else f"{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    counted = min((len(run["seeds"]) for name, run in runs.items() if name in ARMS), default=len(SEEDS))
    note = f"Arms with fewer than {len(SEEDS)} seeds are not done yet.\n\n" if counted < len(SEEDS) else ""
    page.write_text(f"{before}{BEGIN}\n\n{note}{first}{tables(runs)}\n{END}{after}")
