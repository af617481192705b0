"""The PNGs: one an experiment, a panel a curve, a colour an arm, bands over seeds. In: runs by arm. Out: files. Called by `__main__`."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from benchmarks.reproduce.arms import SHOWN_ARMS, SHOWN_EXPERIMENTS, Experiment
from benchmarks.reproduce.summary import curve

COLOURS = ("#1769aa", "#c8590a", "#2a7d46", "#8a3ffc")
LABELS = {
    "held_out_reward": "task reward, held-out tasks",
    "signal_share": "share of groups with signal",
    "groups_sampled": "groups sampled a step",
    "gradient_norm": "gradient norm before the clip",
    "gradient_norm_max": "largest gradient norm of a step",
    "largest_ratio": "largest ratio of the last update",
    "length_error": "|length - target|, tokens",
    "lengths": "length of answers by target (dashed), tokens",
    "kl": "KL to the base model, nats a token",
    "entropy": "entropy, nats a token",
}
BY_TARGET = "lengths"
"""Not a column but several: the length of answers to prompts that ask for each target."""
LOGARITHMIC = {"gradient_norm", "gradient_norm_max", "largest_ratio"}
EXTREMES = {"gradient_norm", "gradient_norm_max", "largest_ratio"}
"""Where spikes are the matter the band is smallest to largest seed; elsewhere it is the 95 % interval of the mean."""
STYLE = {
    "font.size": 9.0, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e8ebee",
    "axes.edgecolor": "#c6cdd4", "legend.frameon": False,
}  # fmt: skip
PIXELS_AN_INCH = 130


def draw_all(runs: dict[str, Any], folder: Path) -> list[Path]:
    """One PNG for each experiment whose arms have all been run."""
    drawn = []
    for name, experiment in SHOWN_EXPERIMENTS.items():
        if all(arm in runs for arm in experiment.arms):
            folder.mkdir(parents=True, exist_ok=True)
            drawn.append(folder / f"{name}.png")
            _draw(experiment, runs, drawn[-1])
    return drawn


def _draw(experiment: Experiment, runs: dict[str, Any], path: Path) -> None:
    with matplotlib.rc_context(STYLE):
        count = len(experiment.curves)
        figure = Figure(figsize=(4.6 * count, 3.3), layout="constrained")
        for axes, name in zip(np.atleast_1d(figure.subplots(1, count)), experiment.curves, strict=True):
            axes.set_xlabel("step")
            axes.set_ylabel(LABELS[name])
            if name in LOGARITHMIC:
                axes.set_yscale("log")
            if name == BY_TARGET:
                _lengths_by_target(axes, experiment.arms[0], runs)
                continue
            for arm, colour in zip(experiment.arms, COLOURS, strict=False):
                found = curve(runs[arm]["seeds"], name, extremes=name in EXTREMES)
                axes.plot(
                    found.steps, found.mean, color=colour, linewidth=1.4, label=SHOWN_ARMS[arm].title.split(":")[0]
                )
                axes.fill_between(found.steps, found.low, found.high, color=colour, alpha=0.13, linewidth=0)
        figure.axes[0].legend(loc="best", fontsize=8)
        counts = [len(runs[arm]["seeds"]) for arm in experiment.arms]
        seeds = str(counts[0]) if len(set(counts)) == 1 else " / ".join(map(str, counts))
        figure.suptitle(f"{experiment.title} (seeds: {seeds})", fontsize=10)
        # Without metadata the same curves give the same bytes.
        figure.savefig(path, dpi=PIXELS_AN_INCH, metadata={"Software": None})


def _lengths_by_target(axes: Any, arm: str, runs: dict[str, Any]) -> None:
    for target, colour in zip(SHOWN_ARMS[arm].targets, COLOURS, strict=False):
        found = curve(runs[arm]["seeds"], f"length_at_{target}", extremes=True)
        axes.plot(found.steps, found.mean, color=colour, linewidth=1.4, label=f"asked for {target}")
        axes.fill_between(found.steps, found.low, found.high, color=colour, alpha=0.13, linewidth=0)
        axes.axhline(target, color=colour, linewidth=0.8, linestyle="--")
    axes.legend(loc="best", fontsize=8)
