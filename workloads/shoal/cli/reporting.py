"""The report as the command line sees it: written at the end of `up` and by `shoal report`; it says why a report cannot be written.

A run elsewhere is reported from its object store alone (`report_elsewhere`), with Prometheus's samples if its address is given.

Imports of the report's libraries (matplotlib, pyarrow, obstore) are made when they are needed, so that `shoal --help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shoal.contracts.steps import StepMetrics
from shoal.errors import InputWrong
from shoal.report.run_folders import METRICS_FILE, MODEL_FOLDER, no_run_yet
from shoal.text import count, duration, number, percent, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.contracts.evaluation import BestVersion
    from shoal.evaluation.versions import VersionEvaluation
    from shoal.ledger.source import LedgerSource
    from shoal.report.facts import StoreFacts
    from shoal.report.write import Report


def write_report(run_dir: Path) -> tuple[Report | None, str]:
    """Write the report of a run; None and the reason when there is nothing to report or the store does not answer."""
    from shoal.report.access import NoRun, open_run
    from shoal.storage import StoreUnavailable

    try:
        open_run(run_dir)  # says at once that there is nothing to report, before the plots' libraries are loaded
        from shoal.report.write import make_report

        return make_report(run_dir, run_dir / METRICS_FILE, run_dir / MODEL_FOLDER), ""
    except NoRun as error:
        return None, no_run_yet(run_dir, error)
    except StoreUnavailable as error:
        return None, f"no report: {error}"


BEFORE_FIRST_STEP_SECONDS = 3600.0
"""Prometheus is asked from this long before the first step: the base model was made, and the parts started."""
AFTER_LAST_STEP_SECONDS = 900.0


def report_elsewhere(
    source: LedgerSource, output: Path | None, prometheus: str | None = None, namespace: str | None = None
) -> Report:
    """Write the report of a run from its store alone, into `output` or `<run>-report/`; raises `InputWrong`."""
    from shoal.report.access import access_of
    from shoal.report.facts import StoreReader
    from shoal.report.prometheus import NoReadings, read_prometheus
    from shoal.report.write import Readings, report_of
    from shoal.storage import StoreUnavailable

    try:
        access = access_of(source)
        facts = StoreReader(source.store).read()
        if not facts.steps and not facts.verdicts:
            raise InputWrong(
                f"run {access.run}: has trained no step and judged no file yet, so there is nothing to report"
            )
        folder = output if output is not None else Path(f"{access.run}-report")
        readings = Readings(notes=["wall time, utilisation and bytes broadcast are unknown: give --prometheus URL"])
        if prometheus is not None:
            readings = read_prometheus(prometheus, access.run, *_span(facts), namespace)
        folder.mkdir(parents=True, exist_ok=True)
        return report_of(access, readings, folder, folder / MODEL_FOLDER, facts)
    except (StoreUnavailable, NoReadings) as error:
        raise InputWrong(plain(error, 400)) from None
    except OSError as error:
        raise InputWrong(f"cannot write {plain(error.filename or output, 200)}: {error.strerror}") from None


def compare_runs(
    names: tuple[str, str], runs_dir: Path, output: Path | None, endpoint: str | None, credentials: Path | None
) -> list[str]:
    """Lay two runs over each other, from whatever each is: a run here, a copy of a store, an S3 URL. Returns lines for the terminal.

    Raises `InputWrong`.
    """
    from shoal.report.comparison import ComparedRun, compare
    from shoal.report.facts import read_steps
    from shoal.report.ledger_sources import open_place
    from shoal.storage import StoreUnavailable

    found = []
    try:
        for name in names:
            store, config = open_place(name, runs_dir, endpoint, credentials)
            steps = read_steps(store)
            if not steps:
                raise InputWrong(f"run {plain(name, 200)}: no step was trained yet, so there is nothing to compare")
            found.append((config.run if config is not None else Path(name).name, config, steps))
        same = found[0][0] == found[1][0]
        first, second = (
            ComparedRun(plain(f"{label} ({place})" if same else label, 60), config, steps)
            for place, (label, config, steps) in zip("AB", found, strict=True)
        )
        folder = output if output is not None else Path(f"{found[0][0]}-and-{found[1][0]}")
        folder.mkdir(parents=True, exist_ok=True)
        return compare(first, second, folder)
    except StoreUnavailable as error:
        raise InputWrong(plain(error, 400)) from None
    except OSError as error:
        raise InputWrong(f"cannot write {plain(error.filename or output, 200)}: {error.strerror}") from None


def _span(facts: StoreFacts) -> tuple[float, float]:
    """The period in which the run worked, from its store."""
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


def score_lines(evaluations: Sequence[VersionEvaluation], best: BestVersion | None) -> list[str]:
    """A line a benchmark: its first and its newest version with a score, the best one, and versions whose evaluation was not finished."""
    lines = []
    for benchmark in dict.fromkeys(each.benchmark.name for each in evaluations):
        of_it = sorted(
            (each for each in evaluations if each.benchmark.name == benchmark), key=lambda each: each.version
        )
        scored = [
            (each.version, value, each.short.interval)
            for each in of_it
            if each.complete and (value := each.short.avg_at_k) is not None
        ]
        ends = dict.fromkeys((*scored[:1], *scored[-1:]))
        told = [f"version {version}: {percent(value)} right{_within(interval)}" for version, value, interval in ends]
        if best is not None and best.benchmark == benchmark:
            told.append(f"best: version {best.version} with {percent(best.value)}")
        if unfinished := [str(each.version) for each in of_it if not each.complete]:
            told.append(f"not fully scored: version {', '.join(unfinished[-5:])}")
        lines.append(f"on {plain(benchmark, 40)}: {'; '.join(told) or 'nothing could be scored'}")
    return lines


def _within(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f" ({percent(interval[0])} to {percent(interval[1])})"


def last_words(report: Report) -> list[str]:
    """Lines that are printed at the end: the result, where the report is, and how to load the model."""
    data = report.data
    total = f"/{data.steps_total}" if data.steps_total is not None else ""
    time = f" in {duration(data.wall_seconds)}" if data.wall_seconds is not None else ""
    supervised = [metrics for metrics in data.steps if metrics.supervised]
    result = []
    if supervised:
        first, last = supervised[0], supervised[-1]
        result = [
            f"{len(data.steps)}{total} steps{time}; loss {number(first.loss)} -> {number(last.loss)}; held-out loss "
            f"{number(first.held_out_loss)} -> {number(last.held_out_loss)}"
        ]
    elif data.dataset is None:
        result = [
            f"{len(data.steps)}{total} steps{time}; task reward "
            f"{number(data.reward_start)} -> {number(data.reward_end)}; files {count(data.files['accept'])} accepted, "
            f"{count(data.files['reject'])} rejected",
        ]
    result += score_lines(data.evaluations, data.best_version)
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
