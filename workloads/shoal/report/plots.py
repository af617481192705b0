"""Plots of the report as inline SVG. In: series of numbers. Out: SVG text without references to anything outside.

One look for all: light background, one thin colour a series, units on both axes, the raw value faint behind its running mean where it is
noisy. Text stays text (`svg.fonttype: none`), so that it can be searched and read aloud.
"""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from shoal.contracts.steps import StepMetrics
from shoal.report.collect import ReportData

BLUE, ORANGE, GREEN, GREY = "#1769aa", "#c8590a", "#2a7d46", "#6b7683"
SMOOTH_STEPS = 5
"""Window of the running mean: the spread of one step's reward at 256 rows is larger than what five steps learn."""

STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Segoe UI", "Helvetica Neue", "Arial", "DejaVu Sans", "sans-serif"],
    "font.size": 9.0,
    "axes.edgecolor": "#c6cdd4",
    "axes.labelcolor": "#414b55",
    "xtick.color": "#6b7683",
    "ytick.color": "#6b7683",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e8ebee",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Line:
    """One series: `x` and `y` of equal length. `smooth` draws it faint behind its running mean."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = BLUE
    smooth: bool = False


@dataclass(frozen=True)
class Plot:
    """One plot with its caption."""

    name: str
    caption: str
    svg: str


def running_mean(values: Sequence[float]) -> list[float]:
    """Mean of each value with the up to `SMOOTH_STEPS - 1` before it."""
    parts = (values[max(0, end - SMOOTH_STEPS) : end] for end in range(1, len(values) + 1))
    return [sum(part) / len(part) for part in parts]


def draw(
    name: str, lines: Sequence[Line], x_label: str, y_label: str, *, whole_x: bool = True, from_zero: bool = False,
    top: float | None = None,
) -> str:  # fmt: skip
    """Draw lines into one SVG. `name` makes its ids unique within a page."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 2.9), layout="constrained")
        axes = figure.add_subplot()
        for line in lines:
            marker = "o" if len(line.x) == 1 else None
            if line.smooth and len(line.x) > SMOOTH_STEPS:
                axes.plot(line.x, line.y, color=line.colour, linewidth=0.9, alpha=0.3)
                axes.plot(line.x, running_mean(line.y), color=line.colour, linewidth=1.8, label=line.label)
            else:
                axes.plot(line.x, line.y, color=line.colour, linewidth=1.6, label=line.label, marker=marker)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=whole_x))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
        axes.margins(x=0.02, y=0.12)
        if from_zero:
            axes.set_ylim(bottom=0.0)
        if top is not None:
            axes.set_ylim(top=top)
        if len(lines) > 1:
            axes.legend(
                loc="lower left",
                bbox_to_anchor=(0.0, 1.0),
                ncols=len(lines),
                fontsize=8.5,
                handlelength=1.4,
                borderpad=0.2,
            )
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return inline(buffer.getvalue(), name)


def bars(name: str, heights: Sequence[int], x_label: str, y_label: str, marked: Callable[[int], bool]) -> str:
    """A histogram, one bar a number from 0 on; those that are `marked` are blue, the others grey."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 2.9), layout="constrained")
        axes = figure.add_subplot()
        colours = [BLUE if marked(place) else GREY for place in range(len(heights))]
        axes.bar(range(len(heights)), list(heights), color=colours, width=0.8)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=16, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return inline(buffer.getvalue(), name)


def inline(svg: str, name: str) -> str:
    """The `<svg>` element alone: no prologue, no metadata, sized by the page, every id prefixed by `name`."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\b(id|xlink:href|clip-path)="(#|url\(#)?', lambda found: f"{found[0]}{name}-", svg)
    opening, rest = svg.split(">", 1)
    return re.sub(r'\s(width|height)="[^"]*"', "", opening).replace("<svg", '<svg role="img"', 1) + ">" + rest


OF_RECIPES = (
    ("mismatch", "Share cut for the ratio of trainer to engine.", "share",
     (("tokens truncated", "mismatch_truncated"), ("tokens masked", "mismatch_masked"), ("completions masked", "completions_masked"))),
    ("kl-schedule", "Scheduled weight of the KL penalty.", "coefficient", (("KL coefficient", "kl_coefficient"),)),
    ("clip-schedule", "Scheduled half-widths of the clip.", "half-width", (("lower", "clip_epsilon"), ("upper", "clip_epsilon_high"))),
)  # fmt: skip


def _of_recipe(trained: Sequence[StepMetrics]) -> list[Plot]:
    """What only some recipes have: the shares of a mismatch correction, and schedules."""
    plots = []
    for name, caption, y_label, series in OF_RECIPES:
        lines = []
        for (label, key), colour in zip(series, (BLUE, ORANGE, GREEN), strict=False):
            own = [metrics for metrics in trained if getattr(metrics, key) is not None]
            if own:
                steps, values = [float(each.step) for each in own], [float(getattr(each, key)) for each in own]
                lines.append(Line(label, steps, values, colour))
        if lines:
            plots.append(Plot(name, caption, draw(name, lines, "step", y_label, from_zero=True)))
    return plots


def _by_task_type(trained: Sequence[StepMetrics]) -> list[Plot]:
    """Task reward, completion length, signal and shares of each task type, where a run has several."""
    names = sorted({name for metrics in trained for name in metrics.by_task_type})
    plots = []
    for key, attribute, what, unit in (
        ("reward-by-type", "task_reward", "Task reward", "mean task reward"),
        ("length-by-type", "completion_length_mean", "Length of completions", "tokens"),
        ("signal-by-type", "signal_share", "Groups with signal, as a share of those sampled,", "share of groups"),
        ("sampled-by-type", "sampled_share", "Share of the groups that were sampled,", "share of groups"),
        ("share-by-type", "share", "Share of the groups that were trained on,", "share of groups"),
        ("loss-by-type", "loss", "Loss without its weight", "mean loss of a token"),
        ("clip-by-type", "clip_ratio", "Share of completion tokens whose ratio was cut,", "share of tokens"),
        ("entropy-by-type", "entropy", "Entropy of the policy on completions", "nats per token"),
    ):
        lines = []
        for name, colour in zip(names, cycle((BLUE, ORANGE, GREEN, GREY)), strict=False):
            own = [
                (float(metrics.step), float(value))
                for metrics in trained
                if name in metrics.by_task_type
                and (value := getattr(metrics.by_task_type[name], attribute)) is not None
            ]
            if own:
                lines.append(Line(name, [step for step, _ in own], [value for _, value in own], colour, True))
        if lines:
            drawn = draw(key, lines, "step", unit, from_zero=attribute != "loss")
            # A single line has no legend.
            of = "each task type" if len(lines) > 1 else f"task type {lines[0].label}"
            plots.append(Plot(key, f"{what} of {of}.", drawn))
    return plots


def all_plots(data: ReportData) -> list[Plot]:
    """The plots for which there are numbers."""
    plots = []
    trained = [metrics for metrics in data.steps if metrics.trained]
    steps = [float(metrics.step) for metrics in trained]

    def per_step(
        name: str, caption: str, y_label: str, *series: tuple[str, str, str, bool], zero: bool = False
    ) -> None:
        lines = [
            Line(label, steps, [float(getattr(metrics, key)) for metrics in trained], colour, smooth)
            for label, key, colour, smooth in series
        ]
        plots.append(Plot(name, caption, draw(name, lines, "step", y_label, from_zero=zero)))

    if steps:
        per_step(
            "reward", "Reward. Task reward is 0 or 1; the total has the length penalty taken off.", "mean reward",
            ("task reward", "task_reward", BLUE, True), ("total", "reward", ORANGE, True),
        )  # fmt: skip
        plots += _by_task_type(trained)
        per_step(
            "gradient", "Gradient norm before the clip.", "L2 norm",
            ("mean of the step", "gradient_norm", BLUE, False), ("largest", "gradient_norm_max", GREY, False), zero=True,
        )  # fmt: skip
        per_step(
            "clip", "Share of completion tokens whose ratio was cut.", "share of tokens",
            ("at 1 - epsilon", "clip_low", BLUE, False), ("at 1 + epsilon", "clip_high", ORANGE, False),
            ("at delta", "clip_delta", GREEN, False), zero=True,
        )  # fmt: skip
        plots += _of_recipe(trained)
        per_step("entropy", "Entropy of the policy.", "nats per token", ("entropy", "entropy", BLUE, True))
        per_step(
            "lag", "Policy lag: versions between sampling and training.", "versions",
            ("mean", "policy_lag_mean", BLUE, False), ("largest", "policy_lag_max", GREY, False), zero=True,
        )  # fmt: skip
        per_step(
            "length", "Length of completions.", "tokens", ("mean", "completion_length_mean", BLUE, True), zero=True
        )
    if data.filtered is not None:
        found = data.filtered
        low, high = (round(share * found.samples, 6) for share in (found.min_correct, found.max_correct))
        plots.append(
            Plot(
                "filter",
                f"Offline filter: problems by right samples of {found.samples}; {found.tasks_kept} of {found.tasks_before} tasks were kept (blue).",
                bars("filter", found.histogram, "right samples", "problems", lambda right: low <= right <= high),
            )
        )
    if data.dataset is not None:
        made = data.dataset
        caption = f"Problems by right samples of {made.samples_per_problem}; {made.problems_solved} of {made.problems} were solved (blue)."
        plots.append(Plot("solved", caption, bars("solved", made.correct_histogram, "right samples", "problems", bool)))
    if data.utilisation:
        colours = {"trainer": ORANGE, "worker": BLUE}
        lines = [
            Line(
                {"trainer": "trainer", "worker": "workers (mean)"}[part],
                [x / 60 for x, _ in series],
                [100 * y for _, y in series],
                colours[part],
            )
            for part, series in data.utilisation.items()
        ]
        svg = draw("utilisation", lines, "minutes", "% of time at work", whole_x=False, from_zero=True, top=104.0)
        plots.append(Plot("utilisation", "Utilisation of trainer and workers, by their own count of busy time.", svg))
    return plots
