"""From a step's report to named numbers, the same for every tracker. Pure."""

from dataclasses import dataclass

from shoal.contracts.steps import StepMetrics

LEFT_OUT = frozenset({"step", "policy_version", "started_unix", "finished_unix"})
"""What places a point, and is none of its values."""
OF_SUPERVISED = frozenset(
    {
        "loss", "held_out_loss", "epoch", "gradient_norm", "gradient_norm_max", "learning_rate", "rows", "completion_tokens",
        "packing_density", "skipped_updates",
    }
)  # fmt: skip
"""What a step of mode SFT measures; the rest of its report is zeros."""


@dataclass(frozen=True)
class TrackedStep:
    """The numbers of one step. `unix` is when it ended."""

    step: int
    unix: float
    values: dict[str, float]


def point(metrics: StepMetrics) -> TrackedStep:
    """`train/<field>` for every number of the report, `type/<task type>/<field>`, `seconds/<phase>`, `value/<boundary>`. A step that was not trained
    has no means, and a supervised one none of rollouts: they would be zeros that nobody measured."""
    values = {"train/rows": float(metrics.rows)}
    if metrics.trained:
        values |= {
            f"train/{name}": float(value)
            for name, value in metrics
            if name not in LEFT_OUT
            and isinstance(value, int | float)
            and (name in OF_SUPERVISED or not metrics.supervised)
        }
    if metrics.trained and not metrics.supervised:
        values["train/clip_ratio"] = metrics.clip_ratio
        values |= {f"value/{at}": value for at, value in enumerate(metrics.value_by_boundary)}
        values |= {
            f"type/{kind}/{name}": float(value)
            for kind, means in metrics.by_task_type.items()
            for name, value in means
            if isinstance(value, int | float)
        }
    values |= {f"seconds/{phase}": seconds for phase, seconds in metrics.phase_seconds.items()}
    values["seconds/step"] = metrics.finished_unix - metrics.started_unix
    return TrackedStep(metrics.step, metrics.finished_unix, values)
