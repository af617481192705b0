"""What a run does when it goes wrong: `stability`, `rollBack` and `failurePolicy` of a manifest, and parts of `config/run.json`. Pure."""

from typing import Literal

from pydantic import Field

from shoal.contracts.base import SpecModel, unset


class Stability(SpecModel):
    """Early warnings of a run that is about to collapse, and what to do (paper section 3.5)."""

    window_steps: int = Field(10, ge=2, le=1000, description="Steps over which a trend is measured.")
    gradient_norm_growth: float = Field(
        3.0,
        gt=1.0,
        le=1e6,
        description="Warn when the window's mean gradient norm exceeds this multiple of the previous window's.",
    )
    entropy_rise: float = Field(
        0.5, gt=0.0, le=100.0, description="Warn when entropy exceeds its minimum so far by this share."
    )
    clip_ratio_growth: float = Field(
        3.0,
        gt=1.0,
        le=1e6,
        description="Warn when the window's mean clip ratio exceeds this multiple of the previous window's.",
    )
    max_clip_ratio: float | None = Field(
        None,
        gt=0.0,
        le=1.0,
        exclude_if=unset,
        description="Warn, and act, when the mean clip ratio of three steps exceeds this; 1: never. Absent: 0.02, but never where the run or one"
        " of its sources has ratios of whole completions (`gspo`) or an objective of its own.",
    )
    action: Literal["Report", "Pause", "RollBack"] = Field(
        "Report",
        description="What the run does at two warnings at once, or a clip ratio above its limit: report, pause before the next step, or roll back.",
    )
    acknowledged_version: int = Field(
        0, ge=0, le=999_999, description="Ignore warnings up to this policy version. Raise it to end a pause."
    )


class RollBack(SpecModel):
    """Take up an earlier version's training state. Numbers go on: step `atStep` publishes it as version `atStep + 1`."""

    to_version: int = Field(
        ..., ge=0, le=999_998, description="Version whose weights and optimizer state the trainer loads."
    )
    at_step: int = Field(
        ...,
        ge=1,
        le=999_998,
        description="Step that loads them instead of training. The run must not have trained it yet.",
    )


class FailurePolicy(SpecModel):
    """Reactions to failures."""

    bad_data: Literal["LeaveOut", "Stop"] = Field(
        "LeaveOut",
        description="What happens to a row or file that cannot be trained on. LeaveOut: count and skip it. Stop: fail the run.",
    )
    max_trainer_attempts: int = Field(
        10,
        ge=1,
        le=10_000,
        description="The run fails after this many consecutive starts of the trainer without a new policy version.",
    )
