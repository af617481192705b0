"""The report as the command line sees it: written at the end of `up` and by `shoal report`; what cannot be written is said in words.

Imports of the report's libraries (matplotlib, pyarrow, obstore) are made when they are needed, so that `shoal --help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.run_folders import METRICS_FILE, MODEL_FOLDER
from shoal.contracts.steps import StepMetrics
from shoal.report.text import count, duration, number

if TYPE_CHECKING:
    from shoal.report.write import Report


def write_report(run_dir: Path) -> tuple[Report | None, str]:
    """Write the report of a run; None and the reason when there is nothing to report or the store is away."""
    from shoal.report.access import NoRun, open_run
    from shoal.storage import StoreUnavailable

    try:
        open_run(run_dir)  # says at once that there is nothing to report, before the plots' libraries are loaded
        from shoal.report.write import make_report

        return make_report(run_dir, run_dir / METRICS_FILE, run_dir / MODEL_FOLDER), ""
    except NoRun as error:
        return None, str(error)
    except StoreUnavailable as error:
        return None, f"no report: {error}"


def seen_steps(run_dir: Path) -> list[StepMetrics]:
    """Steps that an earlier `shoal up` trained, for the curves; none when the store cannot be read."""
    from shoal.report.access import NoRun, open_run
    from shoal.report.facts import read_steps
    from shoal.storage import StoreUnavailable

    try:
        return read_steps(open_run(run_dir).store)
    except (NoRun, StoreUnavailable):
        return []


def last_words(report: Report) -> list[str]:
    """What is printed at the end: the result, where the report is, and how to load the model."""
    data = report.data
    result = (
        []
        if data.dataset is not None
        else [
            f"{len(data.steps)}/{data.steps_total} steps in {duration(data.wall_seconds)}; task reward "
            f"{number(data.reward_start)} -> {number(data.reward_end)}; files {count(data.files['accept'])} accepted, "
            f"{count(data.files['reject'])} rejected",
        ]
    )
    if data.filtered is not None:
        result.append(
            f"offline filter: {count(data.filtered.tasks_kept)} of {count(data.filtered.tasks_before)} tasks kept"
        )
    lines = [
        *result,
        f"report: {report.html} and {report.json}",
    ]
    if data.model is not None:
        lines.append(f"trained model: {data.model.path} (version {data.model.version})")
        for command in report.commands:
            lines += ["", command.title, command.text]
    return lines
