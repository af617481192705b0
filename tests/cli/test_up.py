"""`shoal up` from start to end: exit codes, Ctrl-C in order, a second Ctrl-C, no process left, resuming."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run_documents import RunFolder, step_metrics

from shoal.cli.up import beginning, empty
from shoal.errors import InputWrong
from shoal.report.records import SessionRecord, parse_records
from shoal.report.run_folders import RunLock
from shoal.report.view import SnapshotHistory

PROGRAM = Path(__file__).with_name("up_program.py")


class Up:
    """One running `shoal up`; reads its lines as they come."""

    def __init__(self, runs_dir: Path, behaviour: str, *more: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(runs_dir), behaviour, *more],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self.child = 0

    def until(self, words: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith("pid "):
                self.child = int(line.split()[1])
            if words in line:
                return line
        raise AssertionError(f"{words!r} was never said; said was: {self.lines}")

    def end(self) -> int:
        assert self.process.stdout is not None
        self.lines += self.process.stdout.read().splitlines()
        return self.process.wait(timeout=60)

    def left(self) -> bool:
        """Whether the part's process still runs."""
        return Path(f"/proc/{self.child}").exists()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(behaviour: str, *more: str) -> Up:
        started.append(Up(tmp_path, behaviour, *more))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()
        if each.child and each.left():
            os.kill(each.child, signal.SIGKILL)


def sessions(tmp_path: Path) -> list[tuple[str, str]]:
    records, _ = parse_records((tmp_path / "demo" / "metrics.jsonl").read_text().splitlines())
    return [(each.event, each.outcome) for each in records if isinstance(each, SessionRecord)]


def test_a_run_that_completes_exits_with_0_and_leaves_no_process(tmp_path: Path, up) -> None:
    run = up("complete")
    assert run.end() == 0
    assert not run.left()
    assert any("demo-trainer-1-0/trainer: ready at 127.17.0.8" in line for line in run.lines)
    assert sessions(tmp_path) == [("start", ""), ("stop", "complete")]


def test_a_run_that_fails_exits_with_1_and_says_why_and_where_to_look(tmp_path: Path, up) -> None:
    run = up("failed")
    assert run.end() == 1
    assert "the run failed: the trainer gave up" in run.lines
    assert f"logs: shoal logs demo --runs-dir {tmp_path}; the same command tries again" in run.lines


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_stop_every_part_in_order_and_say_how_to_resume(tmp_path: Path, up, number) -> None:
    run = up("forever")
    run.until("trainer: ready")
    run.process.send_signal(number)
    assert run.end() == 130
    assert not run.left()
    assert sum("stopping every process in order; Ctrl-C again kills them" in line for line in run.lines) == 1
    assert "stopped; no process is left, the same command tries again" in run.lines
    assert sessions(tmp_path)[-1] == ("stop", "interrupted")


def test_a_second_ctrl_c_kills_at_once(up) -> None:
    run = up("hangs")
    run.until("trainer: ready")
    run.process.send_signal(signal.SIGINT)
    run.until("stopping every process in order")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    assert not run.left()
    assert any(line.startswith("killed every process at once") for line in run.lines)


def test_an_internal_error_stops_every_part_and_is_one_line_with_the_rest_in_the_log(tmp_path: Path, up) -> None:
    run = up("breaks")
    assert run.end() == 1
    assert not run.left()
    assert "the run failed: RuntimeError: the disk is on fire" in run.lines
    assert "Traceback" not in "\n".join(run.lines)
    assert "the disk is on fire" in (tmp_path / "demo/logs/shoal/up.log").read_text()


def test_a_report_of_the_store_is_written_at_the_end(tmp_path: Path, up) -> None:
    RunFolder(tmp_path).add_step(step_metrics(0))
    run = up("complete")
    assert run.end() == 0
    assert f"report: {tmp_path}/demo/report.html and {tmp_path}/demo/report.json" in run.lines


def test_events_of_the_last_second_are_shown_too(up) -> None:
    run = up("scored")
    assert run.end() == 0
    assert any(line.endswith("version 2 on sums: 100.0 % right") for line in run.lines)
    assert any(line.endswith("version 1 on sums: not fully scored") for line in run.lines)


def test_machines_that_joined_are_told_that_the_run_is_complete_before_it_stops(up) -> None:
    run = up("scored")
    run.until("the run is complete; telling 2 joined machines")
    assert run.end() == 0


def test_resuming_a_run_says_from_which_step(tmp_path: Path, up) -> None:
    RunFolder(tmp_path).add_step(step_metrics(4))
    run = up("complete")
    run.end()
    assert run.lines[0].endswith(f"{tmp_path}/demo: resumes after step 5 with version 5")


def test_a_new_run_and_a_run_without_steps_have_different_first_lines(tmp_path: Path) -> None:
    assert beginning(tmp_path, SnapshotHistory(), before=False).endswith(": a new run")
    assert beginning(tmp_path, SnapshotHistory(), before=True).endswith(": resumes; it has trained no step yet")


def test_fresh_deletes_the_earlier_run_but_follows_no_link(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").touch()
    (run.path / "link").symlink_to(outside)
    lock = RunLock(run.path)
    empty(run.path)
    lock.release()
    assert [path.name for path in run.path.iterdir()] == ["up.lock"]
    assert (outside / "keep").exists()


def test_a_second_up_of_the_same_run_is_refused_and_harms_nothing(tmp_path: Path, up) -> None:
    run = up("forever")
    run.until("trainer: ready")
    with pytest.raises(InputWrong, match=rf"is in use by `shoal up` \(process {run.process.pid}\)"):
        RunLock(tmp_path / "demo")
    assert run.process.poll() is None
    assert run.left()
