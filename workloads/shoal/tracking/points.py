"""From a step's report to named numbers, the same for every tracker. Pure."""

from dataclasses import dataclass

from shoal.contracts.steps import StepMetrics

LEFT_OUT = frozenset({"step", "policy_version", "started_unix", "finished_unix"})
"""What places a point, and is none of its values."""


@dataclass(frozen=True)
class TrackedStep:
    """The numbers of one step. `unix` is when it ended."""

    step: int
    unix: float
    values: dict[str, float]


def point(metrics: StepMetrics) -> TrackedStep:
    """`train/<field>` for every number of the report, `seconds/<phase>`, `value/<boundary>`. A step that was not trained has no means:
    they would be zeros that nobody measured."""
    values = {"train/rows": float(metrics.rows)}
    if metrics.trained:
        values |= {
            f"train/{name}": float(value)
            for name, value in metrics
            if name not in LEFT_OUT and isinstance(value, int | float)
        }
        values |= {f"value/{at}": value for at, value in enumerate(metrics.value_by_boundary)}
        values["train/clip_ratio"] = metrics.clip_ratio
    values |= {f"seconds/{phase}": seconds for phase, seconds in metrics.phase_seconds.items()}
    values["seconds/step"] = metrics.finished_unix - metrics.started_unix
    return TrackedStep(metrics.step, metrics.finished_unix, values)
