"""Two runs laid over each other: `comparison.html` and `comparison.json`. Called by `shoal report A B`.

In: for each run its name, its configuration if it is known, and the metrics of its steps. Out: one plot a figure with a curve of each run, a table of
their ends, and the settings in which they differ. The page is self-contained, as the report's. Reads one small document a step of each run: 300
steps of two runs are 600 objects.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.contracts.run import RunConfig
from shoal.contracts.settings import RunSettings
from shoal.contracts.steps import StepMetrics
from shoal.files import write_atomically
from shoal.report.html import CSS, table, text
from shoal.report.plots import BLUE, ORANGE, Line, Plot, draw
from shoal.text import NONE, number

CURVES = (
    ("task_reward", "Task reward", "mean task reward"),
    ("reward", "Total reward", "mean reward"),
    ("completion_length_mean", "Length of completions", "tokens"),
    ("entropy", "Entropy of the policy", "nats per token"),
    ("kl", "KL to the base model", "nats per token"),
    ("gradient_norm", "Gradient norm before the clip", "L2 norm"),
    ("loss", "Loss", "loss"),
    ("held_out_loss", "Held-out loss", "nats per token"),
)
"""Fields of `StepMetrics`, with title and unit."""
ENDS = 5
"""Steps over which the first and the last mean of a figure are taken, as the report's running mean."""


@dataclass(frozen=True)
class ComparedRun:
    """One of the two. `label` tells runs of one name apart."""

    label: str
    config: RunConfig | None
    steps: Sequence[StepMetrics]

    def values(self, name: str) -> list[tuple[float, float]]:
        """(step, value) of a field, of steps that trained and have it."""
        return [
            (float(each.step), float(value))
            for each in self.steps
            if each.trained and (value := getattr(each, name)) is not None
        ]


def compare(first: ComparedRun, second: ComparedRun, folder: Path) -> list[str]:
    """Write `comparison.html` and `comparison.json` into `folder`, which is there; returns lines for the terminal."""
    ends = [_ends(first, second, name, title) for name, title, _ in CURVES if _known(first, second, name)]
    changed = differing_settings(first.config, second.config)
    html, data = folder / "comparison.html", folder / "comparison.json"
    document = {
        "runs": [each.label for each in (first, second)],
        "steps": [len(each.steps) for each in (first, second)],
        "ends": {row[0]: list(row[1:]) for row in ends},
        "settings": {name: list(pair) for name, pair in changed.items()},
        "curves": {
            name: [[list(point) for point in each.values(name)] for each in (first, second)] for name, _, _ in CURVES
        },
    }
    write_atomically(data, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode())
    write_atomically(html, _page(first, second, _plots(first, second), ends, changed).encode())
    lines = [
        f"{row[0]}: {row[1]} -> {row[2]} in {first.label}, {row[3]} -> {row[4]} in {second.label}" for row in ends[:2]
    ]
    lines += [
        f"{name}: {ours} in {first.label}, {theirs} in {second.label}" for name, (ours, theirs) in changed.items()
    ]
    return [*lines, f"comparison: {html} and {data}"]


def _known(first: ComparedRun, second: ComparedRun, name: str) -> bool:
    return any(value != 0.0 for each in (first, second) for _, value in each.values(name))


def _ends(first: ComparedRun, second: ComparedRun, name: str, title: str) -> tuple[str, ...]:
    """Title, then mean of the first and of the last steps of each run."""
    cells: list[str] = [title]
    for each in (first, second):
        values = [value for _, value in each.values(name)]
        cells.extend(number(sum(some) / len(some)) if some else NONE for some in (values[:ENDS], values[-ENDS:]))
    return tuple(cells)


def _plots(first: ComparedRun, second: ComparedRun) -> list[Plot]:
    plots = []
    for name, title, unit in CURVES:
        if not _known(first, second, name):
            continue
        lines = [
            Line(each.label, [step for step, _ in points], [value for _, value in points], colour, smooth=True)
            for each, colour in ((first, BLUE), (second, ORANGE))
            if (points := each.values(name))
        ]
        plots.append(Plot(name, f"{title}.", draw(name, lines, "step", unit)))
    return plots


def differing_settings(first: RunConfig | None, second: RunConfig | None) -> dict[str, tuple[str, str]]:
    """Settings of the two runs that are not the same, by their path; empty where one configuration is not known."""
    if first is None or second is None:
        return {}
    ours, theirs = (
        dict(_leaves(each.model_dump(mode="json", by_alias=True, include=set(RunSettings.model_fields)), ""))
        for each in (first, second)
    )
    return {
        name: (_shown(ours.get(name)), _shown(theirs.get(name)))
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    }


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from _leaves(below, f"{path}.{name}" if path else str(name))
    elif value is not None:
        yield path, value


def _shown(value: Any) -> str:
    return NONE if value is None else json.dumps(value)[:120]


def _page(
    first: ComparedRun,
    second: ComparedRun,
    plots: Sequence[Plot],
    ends: Sequence[tuple[str, ...]],
    changed: Mapping[str, tuple[str, str]],
) -> str:
    title = f"{first.label} and {second.label}"
    lead = f"{len(first.steps)} steps of {first.label}, {len(second.steps)} steps of {second.label}."
    head = ("", *(f"{each.label}, {when}" for each in (first, second) for when in ("first steps", "last steps")))
    settings = [(name, *pair) for name, pair in changed.items()]
    known = first.config is not None and second.config is not None
    no_settings = "They have the same settings." if known else "Their settings are not known from their stores."
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Shoal runs {text(title)}</title><style>{CSS}</style></head><body><main>",
            f"<h1>{text(title)}</h1>",
            f'<p class="lead">{text(lead)}</p>',
            '<div class="plots">',
            *(f"<figure><figcaption>{text(plot.caption)}</figcaption>{plot.svg}</figure>" for plot in plots),
            "</div>",
            f"<h2>Means of the first and the last {ENDS} steps</h2>",
            table(head, ends),
            "<h2>Settings that differ</h2>",
            table(("setting", first.label, second.label), settings) if settings else f"<p>{text(no_settings)}</p>",
            "</main></body></html>",
        ]
    )
