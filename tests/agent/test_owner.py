"""What the machine's owner asks of its node: pause, resume, drain, leave, hours; the run has no say, other users of the machine neither."""

import contextlib
import errno
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
from joined_machine import SLEEPER, Machine

from protocol_stack import RUN, Stack
from servers import ROOT, wait_until
from shoal.agent.held_leases import HeldLeases
from shoal.agent.hours import Window
from shoal.agent.owner import STOP_SECONDS, Allowance, Owner, Request, request_file, standing
from shoal.cli import node_owner
from shoal.cli.node_join import Wishes, join, keep_to_oneself, only_one
from shoal.cli.node_status import ask_agent, print_status
from shoal.contracts.machine import OwnersRequest
from shoal.contracts.protocol import Lease
from shoal.contracts.run import AgentStatus
from shoal.errors import InputWrong, RunFailed
from shoal_operator.local.processes import ProcessTable

NOW = 1_800_000_000.0


def open_for(seconds: float) -> Window:
    return Window(True, NOW + seconds)


@pytest.mark.parametrize(
    ("request_", "window", "held", "allowed"),
    [
        ("work", None, 3, (True, True, False)),
        ("pause", None, 3, (False, False, False)),
        ("drain", None, 3, (True, False, False)),
        ("drain", None, 0, (False, False, True)),
        ("work", open_for(600), 0, (True, True, False)),
        ("work", open_for(100), 2, (True, False, False)),  # no lease of 120 s would be done
        ("work", open_for(100), 0, (False, False, False)),  # nothing to wait for: the GPU is free early
        ("work", open_for(STOP_SECONDS), 2, (False, False, False)),  # late: finish or give back now
        ("work", Window(False, NOW + 600), 0, (False, False, False)),
        ("pause", open_for(600), 0, (False, False, False)),
        ("drain", Window(False, NOW + 600), 0, (False, False, True)),
    ],
)
def test_what_is_allowed(request_: Request, window: Window | None, held: int, allowed: tuple[bool, bool, bool]) -> None:
    found = standing(request_, window, held, 120.0, NOW)
    assert (found.works, found.leases, found.ends) == allowed
    assert bool(found.words) == (found != Allowance())


def lease(name: str, expires: float) -> Lease:
    return Lease(lease=name * 32, node="4a" * 32, step=0, submission=0, expires_unix=expires)


def test_how_long_a_lease_takes_is_told_by_those_that_were_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("shoal.agent.held_leases.time.monotonic", lambda: now)
    held = HeldLeases()
    assert held.expected_seconds(900.0) == 900.0  # its whole life, while nothing is known
    held.note(lease("a", time.time() + 900))
    now = 100.0
    held.forget("a" * 32, done=True)
    held.note(lease("b", time.time() + 900))
    now = 1000.0
    held.forget("b" * 32)  # given back: says nothing
    assert held.expected_seconds(900.0) == 125.0
    assert held.expected_seconds(60.0) == 60.0


def test_a_lease_whose_time_is_over_keeps_no_node_from_draining() -> None:
    held = HeldLeases()
    held.note(lease("a", time.time() - 10))
    held.note(lease("b", time.time() - 1000))
    assert len(held.names()) == 2
    assert held.unfinished() == 1  # the first may still be uploaded


def test_a_request_outlives_its_writer_and_a_torn_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    owner = Owner(tmp_path)
    assert owner.request() == "work"
    node_owner.ask(tmp_path, "pause")
    assert (owner.request(), Owner(tmp_path).request()) == ("pause", "pause")
    assert stat.S_IMODE(request_file(tmp_path).stat().st_mode) == 0o600
    request_file(tmp_path).write_text('{"request": "wo')
    assert owner.request() == "pause"
    request_file(tmp_path).write_bytes(OwnersRequest(request="work", unix=1.0).to_json())
    assert owner.request() == "work"


def test_the_nodes_folder_is_closed_to_other_users(tmp_path: Path) -> None:
    home = tmp_path / RUN
    for name in ("config", "key", "log", "run", "secrets", "tmp", "weights"):
        (home / name).mkdir(parents=True, mode=0o777)
    keep_to_oneself(home)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (home, *home.iterdir())} == {0o700}
    if os.geteuid() == 0:
        os.chown(home, 12345, 12345)
        with pytest.raises(InputWrong, match="belongs to another user"):
            keep_to_oneself(home)


def works(machine: Machine) -> AgentStatus | None:
    status = machine.status()
    return status if status is not None and any(part.state == "running" for part in status.parts) else None


def test_a_paused_node_frees_the_machine_and_stays_paused_when_it_is_started_again_outside_its_hours_too(
    stack: Stack, new_machine: Callable[..., Machine]
) -> None:
    stack.announce(0)
    machine = new_machine().join(stack)
    first = wait_until("the machine to work", lambda: works(machine), 90)
    said: list[str] = []
    node_owner.pause(machine.folder, None, said.append)
    assert said[-1].startswith("paused:")
    assert not Path(f"/proc/{first.parts[0].pid}").exists()
    status = ask_agent(machine.home)
    assert status is not None
    assert (status.state, status.parts) == ("Healthy", [])
    lines: list[str] = []
    print_status(machine.folder, None, lines.append, as_json=False)
    assert "owner      paused by its owner until `shoal node resume`" in lines

    node_owner.resume(machine.folder, None, said.append)
    assert said[-1] == "resumed"
    wait_until("the machine to work", lambda: works(machine), 90)

    node_owner.pause(machine.folder, None, said.append)
    machine.stop()
    lent = hours_from_now(6, 8)  # once: the hour may change meanwhile
    machine.join(stack, hours=lent, upload_limit="20Mbit")
    wait_until("the node to say that it is paused", lambda: "this node is paused" in machine.said(), 90)
    wait_until("the node to be a member again", lambda: state(machine) == "Healthy", 90)
    assert works(machine) is None
    node_owner.resume(machine.folder, None, said.append)
    status = wait_until("the hours to hold", lambda: told(machine, "outside its hours until"), 30)
    assert (status.state, status.parts) == ("Healthy", [])
    print_status(machine.folder, None, lines.append, as_json=False)
    assert any(line.startswith(f"hours      {lent} ") for line in lines)
    assert "limits     upload 20 Mbit/s" in lines


def hours_from_now(begin: int, end: int) -> str:
    """A range of the day that does not hold now, for some hours."""
    times = [time.localtime(time.time() + hours * 3600) for hours in (begin, end)]
    return "-".join(f"{each.tm_hour:02}:{each.tm_min:02}" for each in times)


def state(machine: Machine) -> str | None:
    status = ask_agent(machine.home)
    return status.state if status is not None else None


def told(machine: Machine, words: str) -> AgentStatus | None:
    status = ask_agent(machine.home)
    return status if status is not None and (status.owner or "").startswith(words) else None


HOLDS_A_LEASE = """
import sys, time, json
sys.path[:0] = [{workloads!r}, {operator!r}]
from shoal.contracts.protocol import LeaseRequest, Lease, LocalReturn, StepInfo
from shoal.contracts.run import AgentState, home
from shoal.transport import SignedClient, Refused, Unavailable
agent = SignedClient("http://agent", unix_socket=home() / "run" / "agent.sock")
held = None
while True:
    try:
        node = agent.call("GET", "/v1/state", reply=AgentState).node
        step = agent.call("GET", "/v1/step", reply=StepInfo)
        if step is not None:
            held = agent.call("POST", "/v1/leases", LeaseRequest(node=node, step=step.step), Lease)
            print("held", flush=True)
            break
    except (Refused, Unavailable) as error:
        print(error, flush=True)
    time.sleep(0.2)
while not (home() / "tmp" / "finish").exists():
    time.sleep(0.1)
try:
    agent.call("POST", "/v1/leases", LeaseRequest(node=node, step=step.step), Lease)
except Refused as refused:
    print("refused:", refused, flush=True)
agent.call("POST", "/v1/returns", LocalReturn(lease=held.lease))
while True: time.sleep(0.1)
"""


def test_a_drained_node_takes_no_lease_finishes_what_it_holds_and_ends_once(
    stack: Stack, new_machine: Callable[..., Machine]
) -> None:
    stack.announce(0)
    program = HOLDS_A_LEASE.format(workloads=str(ROOT / "workloads"), operator=str(ROOT / "operator"))
    machine = new_machine([sys.executable, "-c", program]).join(stack)
    log = machine.home / "log" / "worker.log"
    wait_until("the worker to hold a lease", lambda: log.is_file() and "held" in log.read_text(), 90)
    said: list[str] = []
    asked = Thread(target=node_owner.drain, args=(machine.folder, None, said.append, 120.0))
    asked.start()
    wait_until(
        "the node to say that it drains", lambda: any("finishes the 1 that it holds" in each for each in said), 30
    )
    assert machine.process is not None
    assert machine.process.poll() is None
    (machine.home / "tmp" / "finish").touch()
    assert machine.ends() == 0
    asked.join(60)
    assert said[-1].startswith("drained:")
    assert "drains: takes no lease" in log.read_text()
    assert not request_file(machine.home).exists()  # the next join works

    node_owner.leave(machine.folder, None, said.append, 120.0, delete_key=False)
    assert sorted(path.relative_to(machine.home).as_posix() for path in machine.home.rglob("*") if path.is_file()) == [
        "config/node.json",
        "key/node.pem",
        "lock",
    ]
    node_owner.leave(machine.folder, None, said.append, 120.0, delete_key=True)
    assert not machine.home.exists()


def test_leaving_ends_a_node_that_runs_and_then_removes_its_files(
    stack: Stack, new_machine: Callable[..., Machine]
) -> None:
    machine = new_machine().join(stack)
    wait_until("the node to be a member", lambda: state(machine) == "Healthy", 90)
    said: list[str] = []
    node_owner.leave(machine.folder, None, said.append, 90.0, delete_key=True)
    assert said[-1].startswith("left run")
    assert not machine.home.exists()
    assert machine.ends() == 0


@pytest.fixture
def joined(tmp_path: Path) -> Path:
    """The folder of a node that does not run."""
    home = tmp_path / RUN
    for name in ("config/node.json", "config/lending.json", "key/node.pem", "weights/v1/shard", "log/agent.log"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    return home


def test_a_node_whose_agent_does_not_answer_has_not_ended_and_its_request_stands(joined: Path) -> None:
    with (
        only_one(joined),
        pytest.raises(RunFailed, match="waited 0 s for it to finish the leases that it holds; the request stands"),
    ):
        node_owner.drain(joined.parent, None, print, 0.0)
    assert Owner(joined).request() == "drain"


@pytest.mark.parametrize("verb", ["pause", "leave"])
def test_what_works_on_for_a_node_that_was_killed_is_ended_too(joined: Path, verb: str) -> None:
    left = ProcessTable(joined / "run" / "processes").spawn(
        "worker", SLEEPER, environment={"PATH": "/usr/bin:/bin"}, cwd=joined, log=joined / "log" / "worker.log"
    )
    if verb == "pause":
        node_owner.pause(joined.parent, None, print)
    else:
        node_owner.leave(joined.parent, None, print, 0.0, delete_key=False)
    assert left.wait(timeout=10) < 0


@pytest.mark.parametrize("removed", range(6))
def test_leaving_that_was_killed_is_done_by_the_next_call(
    joined: Path, removed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, calls = node_owner._remove, 0

    def killed(path: Path, stays: list[str]) -> None:
        nonlocal calls
        if calls == removed:
            raise KeyboardInterrupt
        calls += 1
        remove(path, stays)

    with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
        patched.setattr(node_owner, "_remove", killed)
        node_owner.leave(joined.parent, None, print, 0.0, delete_key=True)
    if joined.exists():
        node_owner.leave(joined.parent, None, print, 0.0, delete_key=True)
    assert not joined.exists()


def test_files_that_stay_are_told(joined: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(name: str, **_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", name)

    monkeypatch.setattr("os.unlink", refuses)
    with pytest.raises(RunFailed, match=r"could not be removed, such as .*agent\.log: Permission denied"):
        node_owner.leave(joined.parent, None, print, 0.0, delete_key=False)


def test_a_folder_that_takes_no_files_is_told_in_one_line(stack: Stack) -> None:
    with tempfile.NamedTemporaryFile() as file:  # its name is short: the folder has room for a socket
        # A file where its folders would be: as a full disk.
        wishes = Wishes(stack.addresses.discovery, Path(file.name))
        with pytest.raises(InputWrong, match="Not a directory; free some room, or give another --folder"):
            join(wishes, print)


def test_a_folder_whose_name_leaves_no_room_for_a_socket_is_told_before_anything_is_made(
    stack: Stack, tmp_path: Path
) -> None:
    long = tmp_path / ("a" * 100)
    with pytest.raises(InputWrong, match="bytes long; allowed: 92, for a socket in it: give a shorter --folder"):
        join(Wishes(stack.addresses.discovery, long), print)
    assert not long.exists()


def test_options_that_are_wrong_are_all_told_before_anything_is_asked(tmp_path: Path) -> None:
    wishes = Wishes("http://127.0.0.1:9", tmp_path, upload_limit="20", download_limit="1kbit", hours="9-5", gpus="0,,1")
    with pytest.raises(InputWrong) as wrong:
        join(wishes, print)
    assert [line.split(":")[0].split(" '")[0] for line in wrong.value.lines] == [
        "--upload-limit",
        "--download-limit 1kbit",
        "--hours",
        "--gpus",
    ]
    assert not list(tmp_path.iterdir())
