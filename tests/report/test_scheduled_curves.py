"""What a recipe schedules over steps is drawn in the report, and what it does not schedule is not."""

from run_documents import step_metrics

from shoal.report.collect import ReportData
from shoal.report.plots import all_plots

SCHEDULED = {"kl-schedule", "clip-schedule"}


def curves(*steps: dict[str, float]) -> dict[str, str]:
    """The drawn schedules by name, as SVG."""
    made = [step_metrics(number, **values) for number, values in enumerate(steps)]
    plots = all_plots(ReportData(run="demo", steps_total=3, store="", steps=made))
    return {plot.name: plot.svg for plot in plots if plot.name in SCHEDULED}


def test_schedules_of_kl_and_clip_are_curves() -> None:
    first = {"kl_coefficient": 0.1, "clip_epsilon": 0.2, "clip_epsilon_high": 0.28}
    second = {"kl_coefficient": 0.01, "clip_epsilon": 0.1, "clip_epsilon_high": 0.14}
    found = curves(first, second)
    assert found.keys() == SCHEDULED
    assert all(f">{bound}<" in found["clip-schedule"] for bound in ("lower", "upper"))
    assert found["kl-schedule"] != curves(first, first)["kl-schedule"], "the second step's weight is drawn"
    assert found["clip-schedule"] != curves(first, first)["clip-schedule"], "the second step's bounds are drawn"


def test_what_is_not_scheduled_has_no_curve() -> None:
    assert curves({}, {}) == {}
    assert curves({"kl_coefficient": 0.1}, {}).keys() == {"kl-schedule"}
