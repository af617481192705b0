"""The picture of docs/adversaries.md: what an adaptive liar gains in a file, and how often it passes, by type of serving and kind of pool.

In: the parts of `trust.json`. Out: a file. A column is a type of serving, a row of panels a quantity, a colour what the liar does. Solid lines are of
files in good standing with more and more false rows, as `standing` measured them; dashed lines the most that passes where every row is checked, as
`adaptive` did; black marks honest files. What a part does not have is not drawn, and `captions` says so. Called by `page`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.reproduce.figures import COLOURS, STYLE
from benchmarks.trust.interval import clopper_pearson

QUANTITIES = {
    "tokens": "tokens not drawn, %",
    "reward": "mean reward of a file moved",
    "passed": "files not rejected, %",
    "accepted": "accepted one after another, %",
}
ROW_TICKS = (0, 2, 10, 25, 50, 100)
TOKEN_TICKS = (0, 0.1, 1, 10, 100)
LINEAR_BELOW = 0.1
"""Percent of tokens: the scale is logarithmic above, and zero is on it."""
MARKERS = (("o", 6.5), ("s", 4.0), ("^", 5.0), ("v", 4.0))
"""With sizes in points: what lies over another leaves a rim of it."""


@dataclass(frozen=True)
class ServedCurves:
    """One type of serving. `aims`: for each the quantities over `rows`, false rows in percent of a file's. `checked`: with every row checked."""

    aims: Mapping[str, Mapping[str, Sequence[float]]]
    checked: Mapping[str, Mapping[str, float]]
    honest: tuple[int, int] | None
    """Honest files with every row checked, and how many of them were rejected."""


def curves(
    standing: Mapping[str, Any], adaptive: Mapping[str, Any], honest: Mapping[str, tuple[int, int]]
) -> dict[str, ServedCurves]:
    """The figures by type of serving, of `standing` and `adaptive` without the facts of their measuring."""
    found = {}
    for name, each in standing.items():
        aims = {aim: _over_rows(files, each["rows"], each["looks"]) for aim, files in _aims(each).items()}
        found[name] = ServedCurves(aims, _checked(adaptive.get(name)), honest.get(name))
    return found


def _aims(each: Mapping[str, Any]) -> dict[str, Any]:
    return {aim: files for aim, files in each.items() if isinstance(files, list) and files}


def _over_rows(files: Sequence[Mapping[str, Any]], rows: int, looks: int) -> dict[str, list[float]]:
    return {
        "rows": [100 * file["false_rows"] / rows for file in files],
        "tokens": [100 * file["tokens_not_drawn"] for file in files],
        "reward": [file["reward_shift"] for file in files],
        "passed": [100 * (1 - file["rejected"] / looks) for file in files],
        "accepted": [100 * file["accepted"] / looks for file in files],
    }


def _checked(each: Mapping[str, Any] | None) -> dict[str, dict[str, float]]:
    """What passes where every row is checked: tokens of cheap weights, and the reward in either direction."""
    if each is None:
        return {}
    tokens = {kind: {"tokens": 100 * measured["share"]} for kind, measured in each["cheap"].items()}
    return tokens | {aim: {"reward": each[f"reward_shift_{aim}"]} for aim in ("up", "down")}


def draw(found: Mapping[str, ServedCurves], aims: Mapping[str, str], path: Path) -> None:
    """Panels of all quantities and types of serving; `aims` has the words for each."""
    with matplotlib.rc_context({**STYLE, "font.size": 8.0, "svg.hashsalt": "adaptive-liar"}):
        figure = Figure(figsize=(2.3 * len(found) + 0.5, 8.0), layout="constrained")
        panels = figure.subplots(len(QUANTITIES), len(found), sharex=True, sharey="row", squeeze=False)
        for column, (name, each) in zip(panels.T, found.items(), strict=True):
            column[0].set_title(name.replace(", ", ",\n"), fontsize=8.5)
            for axes, quantity in zip(column, QUANTITIES, strict=True):
                _panel(axes, each, quantity, aims)
            column[-1].set_xlabel("false rows of a file, %")
        for row, (quantity, label) in zip(panels, QUANTITIES.items(), strict=True):
            row[0].set_ylabel(label)
            if quantity == "tokens":
                row[0].set_yscale("symlog", linthresh=LINEAR_BELOW)
                row[0].set_yticks(TOKEN_TICKS, [f"{tick:g}" for tick in TOKEN_TICKS])
                row[0].minorticks_off()
                row[0].set_ylim(-0.01, 100)
            elif quantity != "reward":
                row[0].set_ylim(-5, 105)
        figure.legend(handles=_legend(aims), loc="outside upper center", ncols=4)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def _panel(axes: Any, each: ServedCurves, quantity: str, aims: Mapping[str, str]) -> None:
    axes.set_xscale("function", functions=(_root, _square))
    axes.set_xlim(-0.5, 112)
    axes.set_xticks(ROW_TICKS)
    for aim, colour, (marker, size) in zip(aims, COLOURS, MARKERS, strict=True):
        if aim in each.aims:
            curve = each.aims[aim]
            axes.plot(curve["rows"], curve[quantity], color=colour, marker=marker, markersize=size, linewidth=1.2)
        if quantity in each.checked.get(aim, {}):
            axes.axhline(each.checked[aim][quantity], color=colour, linewidth=1.0, linestyle="--")
    if quantity == "passed" and each.honest is not None:
        files, rejected = each.honest
        low, high = (100 * (1 - rate) for rate in reversed(clopper_pearson(rejected, files)))
        share = 100 * (1 - rejected / files)
        axes.errorbar([0], [share], yerr=[[share - low], [high - share]], color="black", marker="D", markersize=4)


def _root(values: Any) -> Any:
    return np.sign(values) * np.sqrt(np.abs(values))


def _square(values: Any) -> Any:
    return np.sign(values) * np.square(values)


def _legend(aims: Mapping[str, str]) -> list[Line2D]:
    lines = [
        Line2D([], [], color=colour, marker=marker, markersize=size, label=words)
        for words, colour, (marker, size) in zip(aims.values(), COLOURS, MARKERS, strict=True)
    ]
    return [
        *lines,
        Line2D([], [], color="#5b6570", label="good standing"),
        Line2D([], [], color="#5b6570", linestyle="--", label="every row checked"),
        Line2D([], [], color="black", marker="D", markersize=4, linestyle="", label="honest files, 95 %"),
    ]


def captions(found: Mapping[str, ServedCurves]) -> list[str]:
    """Lines of Markdown under the picture: honest files beside it, and what nobody measured."""
    counted = [f"{name} {each.honest[1]} of {each.honest[0]}" for name, each in found.items() if each.honest]
    missing = [name for name, each in found.items() if not each.checked]
    lines = [
        "Solid: good standing. Dashed: the most that passes where every row is checked, as on probation or with `proofRowsShare: 1`.",
        f"Honest files that were rejected with every row checked: {'; '.join(counted) or 'not measured'}.",
    ]
    if missing:
        lines.append(f"Not measured with every row checked: {'; '.join(missing)}.")
    return [
        *lines,
        "No adaptive liar was measured in a closed pool of `sampler: none`, where nobody draws tokens again.",
    ]
