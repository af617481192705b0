"""`shoal up`: runs a manifest on this machine until it is done, fails or is stopped, and writes the report.

Thin: `driver.py` runs, `output.py` shows, `report.write` reports; this module decides the order of actions and the exit code.
"""

import shutil
import time
from pathlib import Path

import structlog
from rich.console import Console

from shoal.cli.driver import Driver
from shoal.cli.interrupts import Interrupts
from shoal.cli.local_run import Manifest, clean_up, open_local_run
from shoal.cli.log_lines import said
from shoal.cli.logs import last_line
from shoal.cli.output import LiveOutput, Output, PlainOutput, print_plain
from shoal.cli.reporting import last_words, seen_steps, write_report
from shoal.contracts.protocol import HEARTBEAT_SECONDS
from shoal.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_RUN_FAILED
from shoal.report.access import has_orchestrator
from shoal.report.run_folders import LOCK_FILE, LOGS_FOLDER, RunLock, is_run
from shoal.report.view import SnapshotHistory
from shoal.telemetry.logs import STEPS

TICK_SECONDS = 0.25
FAREWELL_SECONDS = HEARTBEAT_SECONDS + 2.0
"""A heartbeat's interval, and the time of its request."""
MOST_LAST_LINES = 3  # parts quoted when a run failed: the first that broke is most often the cause
RESUME_HINT = "the same command resumes from the last version"
AGAIN_HINT = "the same command tries again"
"""For a run that has no version to continue from."""
CLUSTER_HINT = "; read its log, and delete the Job to try again"
"""End of the operator's messages about failures; on this machine the same command retries."""


def up(manifest: Manifest, runs_dir: Path, console: Console, *, live: bool, fresh: bool) -> int:
    """Run until the end; returns the exit code. Raises `InputWrong` when another `shoal up` has the run."""
    local = open_local_run(manifest, runs_dir)
    run_dir = runs_dir / manifest.name
    before = is_run(run_dir)
    lock = RunLock(run_dir)
    try:
        if fresh and before:
            clean_up(run_dir)  # first, because the records of what a killed run left over are in the folder
            empty(run_dir)
            before = False
        log_to_file(run_dir)
        history = SnapshotHistory()
        history.seed(seen_steps(run_dir) if before else [])
        driver = Driver(local)
        interrupts = Interrupts(driver.kill)
        output: Output = LiveOutput(console, history) if live else PlainOutput(console, history)
        output.say(beginning(run_dir, history, before), time.time())
        outcome = _drive(driver, output, interrupts)
        return _end(outcome, run_dir, console, driver.ended_badly())
    finally:
        lock.release()


def _drive(driver: Driver, output: Output, interrupts: Interrupts) -> str:
    """Run to the end and stop every part, whatever happens; returns `complete`, `failed: why` or `interrupted`."""
    outcome = "failed: shoal up was aborted"
    try:
        driver.start()
        outcome = _follow(driver, output, interrupts)
        if outcome == "interrupted":
            output.say("stopping every process in order; Ctrl-C again kills them", time.time())
        output.show(driver.end_readings())
    except Exception as error:
        structlog.get_logger().exception("shoal up broke off")
        outcome = f"failed: {type(error).__name__}: {error}"
    finally:
        driver.stop(outcome)
        output.close()
    return outcome


def _follow(driver: Driver, output: Output, interrupts: Interrupts) -> str:
    while True:
        output.show(driver.tick())
        ended = driver.finished()
        if ended is not None:
            if ended == "complete" and (others := driver.strangers()):
                _let_go(others, driver, output, interrupts)
            return ended
        if interrupts.asked:
            return "interrupted"
        time.sleep(TICK_SECONDS)


def _let_go(others: int, driver: Driver, output: Output, interrupts: Interrupts) -> None:
    """Keep the orchestrator up until joined machines have learnt that the run is complete; Ctrl-C does not wait for them."""
    output.say(f"the run is complete; telling {others} joined machine{'s' if others > 1 else ''}", time.time())
    end = time.monotonic() + FAREWELL_SECONDS
    while time.monotonic() < end and not interrupts.asked:
        output.show(driver.tick())
        time.sleep(TICK_SECONDS)


def _end(outcome: str, run_dir: Path, console: Console, ended_badly: list[str]) -> int:
    """Print the outcome, write the report, return the exit code."""
    if outcome == "interrupted":
        print_plain(console, f"stopped; no process is left, {_hint(run_dir)}")
    elif outcome == "complete":
        print_plain(console, "the run is complete; writing the report")
    else:
        for name in ended_badly[:MOST_LAST_LINES]:
            print_plain(console, f"last line of {name}: {said(last_line(run_dir / LOGS_FOLDER, name))}")
        print_plain(console, f"the run {outcome.removesuffix(CLUSTER_HINT)}")
        print_plain(console, f"logs: shoal logs {run_dir.name} --runs-dir {run_dir.parent}; {_hint(run_dir)}")
    report, problem = write_report(run_dir)
    for line in last_words(report) if report is not None else [problem]:
        print_plain(console, line)
    if outcome == "interrupted":
        return EXIT_INTERRUPTED
    return EXIT_DONE if outcome == "complete" else EXIT_RUN_FAILED


def _hint(run_dir: Path) -> str:
    return RESUME_HINT if has_orchestrator(run_dir) else AGAIN_HINT


def beginning(run_dir: Path, history: SnapshotHistory, before: bool) -> str:
    """The first line: the run's folder, and whether it resumes."""
    steps = history.ordered()
    if steps:
        return f"{run_dir}: resumes after step {steps[-1].step + 1} with version {steps[-1].policy_version}"
    return f"{run_dir}: resumes; it has trained no step yet" if before else f"{run_dir}: a new run"


def empty(run_dir: Path) -> None:
    """Delete everything of an earlier run except the lock, which is held."""
    for path in run_dir.iterdir():
        if path.name == LOCK_FILE:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def log_to_file(run_dir: Path) -> None:
    """Our libraries' log lines go beside those of the parts, not through the live view."""
    path = run_dir / LOGS_FOLDER / "shoal" / "up.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    structlog.configure(
        processors=[*STEPS, structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(path.open("a", buffering=1)),
    )
