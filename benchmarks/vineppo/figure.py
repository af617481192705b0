"""The picture of docs/vineppo.md: pass@1 over steps and over sampled tokens. In: vineppo.json's curves. Out: a file."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.reproduce.figures import COLOURS, STYLE

ARMS = (("grpo", "GRPO"), ("vineppo", "VinePPO"))


def draw(found: dict[str, Any], path: Path) -> None:
    """One thin line a seed, and their mean, a colour an arm."""
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "vineppo"}):
        figure = Figure(figsize=(8.4, 3.3), layout="constrained")
        for axes, name, words, unit in zip(
            figure.subplots(1, 2, sharey=True),
            ("steps", "tokens"),
            ("steps", "sampled tokens, thousands"),
            (1, 1000),
            strict=True,
        ):
            for (arm, title), colour in zip(ARMS, COLOURS, strict=False):
                curves = [arms[arm] for arms in found["seeds"].values()]
                for curve in curves:
                    places = [place / unit for place in curve[name]]
                    axes.plot(places, curve["pass_rates"], color=colour, linewidth=0.7, alpha=0.5)
                places = [
                    sum(each) / len(curves) / unit for each in zip(*(curve[name] for curve in curves), strict=True)
                ]
                rates = [
                    sum(each) / len(curves) for each in zip(*(curve["pass_rates"] for curve in curves), strict=True)
                ]
                axes.plot(places, rates, color=colour, marker="o", markersize=3, linewidth=1.6, label=title)
            axes.set_xlabel(words)
        figure.axes[0].set_ylabel("pass@1, held-out tasks")
        figure.axes[0].legend(loc="lower right")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
