"""Which folder a run's name means, and that a run has one `shoal up` at a time."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.cli.down import down
from shoal.cli.reporting import write_report
from shoal.cli.ui import wait_for_orchestrator
from shoal.errors import InputWrong, RunFailed
from shoal.report.ledger_sources import open_source
from shoal.report.run_folders import RunLock, find_run, holder_of, still_prepares

HOLD = """
import signal, sys, time
from pathlib import Path
from shoal.report.run_folders import RunLock
stop = []
signal.signal(signal.SIGTERM, lambda *_: None if sys.argv[2] == "deaf" else stop.append(1))
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
while not stop:
    time.sleep(0.02)
"""


def run_folder(runs_dir: Path, name: str) -> Path:
    (runs_dir / name).mkdir(parents=True)
    (runs_dir / name / "up.lock").touch()
    return runs_dir / name


@pytest.fixture
def hold() -> Iterator:
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path, manner: str = "obedient") -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder), manner], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_run_is_found_by_name_by_path_and_when_it_is_the_only_one(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "arithmetic")
    assert find_run("arithmetic", tmp_path) == folder
    assert find_run(str(folder), tmp_path / "elsewhere") == folder
    assert find_run(None, tmp_path) == folder


def test_an_unknown_run_is_answered_with_the_list_of_runs(tmp_path: Path) -> None:
    run_folder(tmp_path, "arithmetic")
    with pytest.raises(InputWrong, match=r"no run 'arithmetik' in .*; known runs: arithmetic"):
        find_run("arithmetik", tmp_path)


def test_several_runs_and_no_name_asks_which(tmp_path: Path) -> None:
    run_folder(tmp_path, "a")
    run_folder(tmp_path, "b")
    with pytest.raises(InputWrong, match="say which run: a, b"):
        find_run(None, tmp_path)


def test_no_run_at_all_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(InputWrong, match=r"there is no run in .*; start one with `shoal up -f FILE`"):
        find_run(None, tmp_path)


def test_a_folder_that_shoal_did_not_make_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(InputWrong, match="there is none"):
        find_run("photos", tmp_path)


def test_a_second_up_of_the_same_run_is_refused_with_the_holder_and_what_to_do(tmp_path: Path, hold) -> None:
    first = hold(tmp_path / "demo")
    with pytest.raises(InputWrong) as refused:
        RunLock(tmp_path / "demo")
    assert str(refused.value) == (
        f"{tmp_path}/demo is in use by `shoal up` (process {first.pid}); stop it with `shoal down demo`, or give another --runs-dir"
    )


def test_two_runs_do_not_hinder_each_other(tmp_path: Path, hold) -> None:
    hold(tmp_path / "one")
    RunLock(tmp_path / "two").release()


def test_a_killed_up_leaves_no_lock(tmp_path: Path, hold) -> None:
    first = hold(tmp_path / "demo")
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert holder_of(tmp_path / "demo") is None
    RunLock(tmp_path / "demo").release()


def test_a_lock_with_a_reused_process_id_is_free(tmp_path: Path, hold) -> None:
    hold(tmp_path / "demo")
    (tmp_path / "demo" / "up.lock").write_text(f'{{"pid": {os.getpid()}, "start_ticks": 1}}')
    assert holder_of(tmp_path / "demo") is None


def test_down_stops_the_holder_and_waits_for_it(tmp_path: Path, hold) -> None:
    first = hold(tmp_path / "demo")
    assert down(tmp_path / "demo", deadline_seconds=20) is True
    assert first.wait(timeout=20) == 0


def test_down_of_a_run_that_is_not_running_says_so(tmp_path: Path) -> None:
    assert down(run_folder(tmp_path, "demo")) is False


def test_down_does_not_wait_forever(tmp_path: Path, hold) -> None:
    first = hold(tmp_path / "demo", "deaf")
    with pytest.raises(RunFailed, match=rf"`shoal up` \(process {first.pid}\) did not stop within 0 s"):
        down(tmp_path / "demo", deadline_seconds=0.1)


def test_a_run_in_preparation_is_reported_as_too_early_not_as_ended(tmp_path: Path, hold) -> None:
    folder = run_folder(tmp_path, "demo")
    assert not still_prepares(folder)
    holder = hold(folder)
    assert still_prepares(folder)
    for said in (
        write_report(folder)[1],
        refused(lambda: open_source("demo", tmp_path, run_key=None, join=None, endpoint=None, credentials=None)),
    ):
        assert "`shoal up` still makes the run's base model and task table" in said
        assert "ended" not in said
    holder.send_signal(signal.SIGTERM)
    holder.wait(timeout=20)
    assert "the run ended before its base model was prepared" in write_report(folder)[1]


def test_the_page_waits_for_a_run_in_preparation(tmp_path: Path, hold) -> None:
    folder, said = run_folder(tmp_path, "demo"), []
    wait_for_orchestrator(folder, said.append)
    assert said == []
    hold(folder)
    waiting = threading.Thread(target=wait_for_orchestrator, args=(folder, said.append), daemon=True)
    waiting.start()
    waiting.join(timeout=0.5)
    assert waiting.is_alive()
    assert "waiting until `shoal up` has made the run's base model" in said[0]
    home = folder / "pods" / "demo-orchestrator-0" / "config"
    home.mkdir(parents=True)
    (home / "run.json").write_text("{}")
    waiting.join(timeout=30)
    assert not waiting.is_alive()


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(InputWrong) as caught:
        call()
    return str(caught.value)
