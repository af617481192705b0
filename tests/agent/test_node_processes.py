"""The processes of a joined machine: pauses, success, restarts on request, logs, environment, and nothing left behind."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers import wait_until
from shoal.cli import node_processes
from shoal.cli.node_processes import LONGEST_PAUSE_SECONDS, Processes, environment, restart_pause, tail, trim
from shoal.contracts.machine import OWNERS_CHOICES
from shoal.contracts.protocol import Assignment
from shoal.contracts.run import PartStatus
from shoal_operator.local.processes import ProcessTable, group_alive, start_ticks

WORK = Assignment()
WAITS = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.05)"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[Processes]]:
    running: list[Processes] = []
    yield running
    for each in running:
        each.end()


def processes(made: list[Processes], home: Path, program: str) -> Processes:
    made.append(Processes(home, "127.0.0.1", "node-x", {"rollouts": {"worker": [sys.executable, "-c", program]}}))
    return made[-1]


def followed(work: Processes, assignment: Assignment | None = WORK) -> PartStatus:
    work.follow(assignment)
    return work.parts()[0]


def test_pauses_double_and_are_bounded() -> None:
    assert [restart_pause(n) for n in (0, 1, 2, 3, 4)] == [1, 1, 2, 4, 8]
    assert restart_pause(10_000) == LONGEST_PAUSE_SECONDS


def test_exit_code_0_is_success_and_starts_nothing_again(tmp_path: Path, made: list[Processes]) -> None:
    work = processes(made, tmp_path, "print('done')")
    wait_until("the end", lambda: followed(work).state == "finished", 60)
    part = followed(work)
    assert (part.last_exit, part.restarts, part.note) == (0, 0, "done (exit code 0)")
    assert work.logs() == {"worker": "done\n"}


def test_a_failure_starts_again_after_a_pause_that_is_said(tmp_path: Path, made: list[Processes]) -> None:
    work = processes(made, tmp_path, "import sys; sys.exit(3)")
    wait_until("a second failure", lambda: followed(work).restarts >= 2, 60)
    assert followed(work).note.startswith("exit code 3; restarting in 2 s")


def test_a_restart_that_is_asked_for_ends_the_process_and_starts_another(tmp_path: Path, made: list[Processes]) -> None:
    work = processes(made, tmp_path, WAITS)
    wait_until("the process to have begun", lambda: followed(work) and "begun" in work.logs().get("worker", ""), 60)
    before = followed(work).pid
    asked = Assignment(restarts=7)
    wait_until("another process", lambda: followed(work, asked).pid not in (None, before), 60)
    again = followed(work, asked).pid
    for stale in (asked, WORK):  # Redis was lost: the number begins anew, and nothing is asked for
        assert followed(work, stale).pid == again


LEAVES_A_CHILD = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time, signal; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
sys.exit({code})
"""


@pytest.mark.parametrize("code", [0, 3])
def test_what_a_process_leaves_is_killed_while_its_number_is_surely_its_own(
    tmp_path: Path, made: list[Processes], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    killed: list[tuple[int, str]] = []
    kill = node_processes.signal_group

    def noted(leader: int, number: signal.Signals) -> None:
        killed.append((leader, Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[0]))
        kill(leader, number)

    monkeypatch.setattr(node_processes, "signal_group", noted)
    work = processes(made, tmp_path, LEAVES_A_CHILD.format(code=code))
    pid = followed(work).pid
    assert pid is not None
    wait_until("the end", lambda: followed(work).last_exit == code, 60)
    assert not group_alive(pid), "nothing is left once the end is told"
    assert (pid, "Z") in killed
    assert all(state == "Z" for leader, state in killed), "the leader is not waited for before its children are gone"


def test_a_process_that_does_not_listen_is_not_forgotten_with_its_assignment(
    tmp_path: Path, made: list[Processes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_processes, "KILL_AFTER_SECONDS", 0.2)
    work = processes(made, tmp_path, f"import signal; signal.signal(15, signal.SIG_IGN)\n{WAITS}")
    wait_until("the process to have begun", lambda: followed(work) and "begun" in work.logs().get("worker", ""), 60)
    pid = followed(work).pid
    assert pid is not None

    def gone() -> bool:
        work.follow(None)
        return work.parts() == []

    wait_until("the process to be forgotten", gone, 60)
    assert start_ticks(pid) is None


def test_without_assignment_nothing_runs(tmp_path: Path, made: list[Processes]) -> None:
    work = processes(made, tmp_path, WAITS)
    pid = followed(work).pid
    assert pid is not None

    def gone() -> bool:
        work.follow(None)
        return work.parts() == [] and start_ticks(pid) is None

    wait_until("the process to end", gone, 60)


def test_what_a_killed_agent_left_is_ended_by_the_next(tmp_path: Path, made: list[Processes]) -> None:
    table = ProcessTable(tmp_path / "run" / "processes")
    left = table.spawn(
        "worker", [sys.executable, "-c", WAITS], environment={}, cwd=tmp_path, log=tmp_path / "log" / "w"
    )
    work = processes(made, tmp_path, WAITS)
    assert left.wait(timeout=60) in (-signal.SIGTERM, -signal.SIGKILL)
    assert followed(work).pid is not None


def test_a_program_that_is_not_there_is_said_and_tried_again(tmp_path: Path, made: list[Processes]) -> None:
    made.append(Processes(tmp_path, "127.0.0.1", "node-x", {"rollouts": {"worker": ["/no/such/program"]}}))
    part = followed(made[-1])
    assert (part.state, part.note) == ("waiting", "cannot start: No such file or directory")


def test_the_owners_secrets_are_not_passed_on(tmp_path: Path) -> None:
    kept = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1", "SHOAL_GPUS": "1", **dict.fromkeys(OWNERS_CHOICES, "c")}
    secret = {"AWS_SECRET_ACCESS_KEY": "s", "SHOAL_INVITE_CODE": "s"}
    found = environment(kept | secret, tmp_path, "127.0.0.1", "worker", "node-x")
    assert set(found) == {*kept, "SHOAL_HOME", "SHOAL_BIND", "SHOAL_ROLE", "SHOAL_POD"}


def test_a_log_is_cut_in_place_and_its_end_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.cli.node_processes.MAX_LOG_BYTES", 1000)
    path = tmp_path / "worker.log"
    with path.open("a") as log:
        for number in range(200):
            log.write(f"line {number}\n")
        log.flush()
        trim(path)
        log.write("last\n")
    kept = path.read_text().splitlines()
    assert (kept[-2:], kept[0].startswith("line ")) == (["line 199", "last"], True)
    assert len(path.read_bytes()) <= 510
    assert tail(path, 9) == "199\nlast\n"
    assert tail(tmp_path / "none") == ""
