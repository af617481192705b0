"""Values that change over a run's steps: the member `schedules` of a recipe. Piecewise linear. Part of `Recipe`. Pure."""

from typing import Annotated

from pydantic import Field

from shoal.contracts.base import SpecModel, unset


class SchedulePoint(SpecModel):
    """The value at a step."""

    step: int = Field(..., ge=0, le=999_999, description="Step of the run, from 0.")
    value: float = Field(..., ge=0.0, le=100.0, description="Value at this step.")


Points = Annotated[list[SchedulePoint], Field(min_length=1, max_length=64)]


class Schedules(SpecModel):
    """Lists of points: linear between two, constant before the first and after the last. They may stand in any order."""

    learning_rate: Points | None = Field(
        None, exclude_if=unset, description="Replaces learningRate, above 0 to 1; the warm-up multiplies it."
    )
    kl_coefficient: Points | None = Field(None, exclude_if=unset, description="Replaces klCoefficient, 0 to 10.")
    clip_epsilon: Points | None = Field(
        None, exclude_if=unset, description="Replaces the algorithm's clipEpsilon, above 0 and below 1."
    )
    clip_epsilon_high: Points | None = Field(
        None, exclude_if=unset, description="Replaces the algorithm's clipEpsilonHigh, above 0 to 100."
    )


def value_at(points: list[SchedulePoint] | None, step: int, constant: float) -> float:
    """The value at a step; `constant` where there is no schedule."""
    if not points:
        return constant
    ordered = sorted(points, key=lambda point: point.step)
    before = [point for point in ordered if point.step <= step]
    after = [point for point in ordered if point.step > step]
    if not before or not after:
        return (before[-1] if before else after[0]).value
    left, right = before[-1], after[0]
    return left.value + (right.value - left.value) * (step - left.step) / (right.step - left.step)
