"""The picture of docs/prime.md: pass@1 over steps, from the plain base and after the warm start. In: prime.json's curves. Out: a file."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.reproduce.figures import COLOURS, STYLE

ARMS = (("plain", "from the plain base"), ("warm", "after the warm start"))


def draw(found: dict[str, Any], path: Path) -> None:
    """One line a seed, a colour an arm, and the target."""
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "prime"}):
        figure = Figure(figsize=(5.6, 3.3), layout="constrained")
        axes = figure.subplots()
        for (arm, title), colour in zip(ARMS, COLOURS, strict=False):
            for number, curves in enumerate(found["seeds"].values()):
                curve = curves[arm]
                label = title if number == 0 else None
                axes.plot(curve["steps"], curve["pass_rates"], color=colour, marker="o", markersize=3, label=label)
        axes.axhline(found["target_pass_at_1"], color="#5b6570", linewidth=0.8, linestyle="--")
        axes.annotate("target", (sum(axes.get_xlim()) / 4, found["target_pass_at_1"]), va="bottom", fontsize=8)
        axes.set_xlabel("steps of PRIME")
        axes.set_ylabel("pass@1, held-out tasks")
        axes.legend(loc="lower right")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
