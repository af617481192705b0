"""The report as the command line sees it: written at the end of `up` and by `shoal report`; what cannot be written is said in words.

A run elsewhere is reported from its object store alone (`report_elsewhere`), with what Prometheus scraped of it where its address is given.

Imports of the report's libraries (matplotlib, pyarrow, obstore) are made when they are needed, so that `shoal --help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.errors import InputWrong
from shoal.cli.run_folders import METRICS_FILE, MODEL_FOLDER
from shoal.contracts.steps import StepMetrics
from shoal.report.text import count, duration, number, plain

if TYPE_CHECKING:
    from shoal.cli.ledger_sources import LedgerSource
    from shoal.report.facts import StoreFacts
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


BEFORE_FIRST_STEP_SECONDS = 3600.0
"""Prometheus is asked from so long before the first step: the base model was made, and the parts started."""
AFTER_LAST_STEP_SECONDS = 900.0


def report_elsewhere(
    source: LedgerSource, output: Path | None, prometheus: str | None = None, namespace: str | None = None
) -> Report:
    """Write the report of a run of which only the store is known, into `output` or `<run>-report/`; raises `InputWrong`."""
    from shoal.contracts.ledger_audit import BadLedger, trusted_roster
    from shoal.report.access import RunAccess
    from shoal.report.facts import read_store
    from shoal.report.prometheus import NoReadings, read_prometheus
    from shoal.report.write import Readings, report_of
    from shoal.storage import StoreUnavailable

    try:
        roster = trusted_roster(source.trust.roster, source.trust.run_key)
        facts = read_store(source.store)
        if not facts.steps and not facts.verdicts:
            raise InputWrong(
                f"run {roster.run}: no step was trained and no file judged yet, so there is nothing to report"
            )
        folder = output if output is not None else Path(f"{roster.run}-report")
        readings = Readings(notes=["wall time, utilisation and bytes broadcast are not known: give --prometheus URL"])
        if prometheus is not None:
            readings = read_prometheus(prometheus, roster.run, *_span(facts), namespace)
        folder.mkdir(parents=True, exist_ok=True)
        return report_of(RunAccess(None, roster, source.store), readings, folder, folder / MODEL_FOLDER, facts)
    except (BadLedger, StoreUnavailable, NoReadings) as error:
        raise InputWrong(plain(error, 400)) from None
    except OSError as error:
        raise InputWrong(f"cannot write {plain(error.filename or output, 200)}: {error.strerror}") from None


def _span(facts: StoreFacts) -> tuple[float, float]:
    """When the run worked, as its store tells it."""
    times = [each for step in facts.steps for each in (step.started_unix, step.finished_unix)]
    times += facts.verdict_unix.values()
    return min(times) - BEFORE_FIRST_STEP_SECONDS, max(times) + AFTER_LAST_STEP_SECONDS


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
    total = f"/{data.steps_total}" if data.steps_total is not None else ""
    time = f" in {duration(data.wall_seconds)}" if data.wall_seconds is not None else ""
    result = (
        []
        if data.dataset is not None
        else [
            f"{len(data.steps)}{total} steps{time}; task reward "
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
