"""tools/core.sh decides what is a skip and what a failure, and takes the node down however it ends.

Its steps are stand-ins here: with the real ones it is the last step of `make test`.
"""

import ast
import fcntl
import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from servers import ROOT, wait_until

SECONDS = 60.0
PREPARATIONS = ["node.sh", "status", "down", "archives.sh operator", "snapshot", "up", "load"]
END = ["down", "compare"]
SKIPPED = "skipped: core of the end-to-end tests: "
STAND_IN = """#!/usr/bin/env bash
what="{name}"
[[ $what != python ]] || {{ what=$3; [[ $2 != pytest ]] || what=pytest; }}
echo "$what${{1:+{arguments}}}" >>calls
act=acts/$what
[[ -f $act ]] || exit 0
source "$act"
"""


class Checkout:
    """A folder with the scripts, and stand-ins for what they call: each notes its call, and does what its act says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = folder / "cache" / "shoal" / "node.lock"
        for name in ("tools", ".venv/bin", "acts", "bin", "cache"):
            (folder / name).mkdir(parents=True)
        for name in ("core.sh", "e2e.sh", "test.sh"):
            shutil.copy(ROOT / "tools" / name, folder / "tools" / name)
        self.stand_in("tools/node.sh")
        self.stand_in("tools/kind.sh")
        self.stand_in("tools/archives.sh", " $*")
        for name in ("python", "ruff", "mypy", "lint-imports"):
            self.stand_in(f".venv/bin/{name}")
        self.stand_in("bin/id")
        self.act("id", "echo 0")

    def stand_in(self, place: str, arguments: str = "") -> None:
        path = self.folder / place
        path.write_text(STAND_IN.format(name=path.name, arguments=arguments))
        path.chmod(0o755)

    def act(self, name: str, text: str) -> None:
        (self.folder / "acts" / name).write_text(text)

    def start(self, script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [f"tools/{script}", *arguments],
            cwd=self.folder,
            env={"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "XDG_CACHE_HOME": f"{self.folder}/cache", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip

    def run(self, script: str, *arguments: str, **environment: str) -> tuple[int, str]:
        process = self.start(script, *arguments, **environment)
        said, _ = process.communicate(timeout=SECONDS)
        return process.returncode, said

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return [each for each in path.read_text().splitlines() if each != "id"] if path.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_preparations_tests_and_taking_down_follow_each_other(checkout: Checkout) -> None:
    status, said = checkout.run("core.sh")
    assert (status, checkout.calls) == (0, [*PREPARATIONS, "pytest", *END]), said
    assert "skipped" not in said
    assert checkout.lock.read_text() == ""


def test_the_core_on_kind_is_prepared_and_taken_down_by_the_same_steps(checkout: Checkout) -> None:
    checkout.act("status", "echo $2 $E2E_CLUSTER >>modules")
    checkout.act("down", "echo $2 $E2E_CLUSTER >>modules")
    status, said = checkout.run("e2e.sh", "kind", "core")
    assert (status, checkout.calls) == (0, ["kind.sh", *PREPARATIONS[1:], "pytest", *END]), said
    assert set((checkout.folder / "modules").read_text().splitlines()) == {"e2e.kind kind"}


@pytest.mark.parametrize(
    ("step", "act", "reason", "taken_down"),
    [
        ("node.sh", "echo 'node: needs iptables'; exit 1", "programs of the node: node: needs iptables", False),
        ("node.sh", "echo 'tools: pause needs Go'; exit 3", "programs of the node: tools: pause needs Go", False),
        ("archives.sh", "echo much; echo 'images: no base'; exit 1", "the operator's image: images: no base", False),
        ("up", "printf 'node: waited for DNS; its log ends:\\nnoise\\n\\n'; exit 1", "the node: node: waited for DNS", True),
        ("load", "echo 'node: no space'; exit 1", "the image on the node: node: no space", True),
    ],
)  # fmt: skip
def test_what_the_machine_lacks_is_a_skip_with_its_reason(
    checkout: Checkout, step: str, act: str, reason: str, taken_down: bool
) -> None:
    checkout.act(step, act)
    status, said = checkout.run("core.sh")
    assert status == 0
    assert f"{SKIPPED}{reason}" in said
    assert "noise" not in said
    assert "pytest" not in checkout.calls
    assert (checkout.calls[-2:] == END) is taken_down


def test_a_user_who_is_not_root_gets_a_skip_and_nothing_is_tried(checkout: Checkout) -> None:
    checkout.act("id", "echo 1000")
    status, said = checkout.run("core.sh")
    assert (status, checkout.calls) == (0, [])
    assert f"{SKIPPED}a node needs root" in said


def test_preparations_that_take_too_long_are_a_skip(checkout: Checkout) -> None:
    checkout.act("archives.sh", "sleep 300")
    status, said = checkout.run("core.sh", CORE_PREPARE_SECONDS="4")
    assert status == 0
    assert f"{SKIPPED}the operator's image: preparations took longer than 4 s" in said
    assert "up" not in checkout.calls


def test_a_start_of_the_node_that_takes_too_long_is_a_skip_and_the_node_is_taken_down(checkout: Checkout) -> None:
    checkout.act("up", "sleep 300")
    status, said = checkout.run("core.sh", CORE_PREPARE_SECONDS="4")
    assert status == 0
    assert f"{SKIPPED}the node: preparations took longer than 4 s" in said
    assert checkout.calls[-2:] == END


def test_a_failing_test_is_a_failure_and_the_node_is_taken_down(checkout: Checkout) -> None:
    checkout.act("pytest", "exit 1")
    status, said = checkout.run("core.sh")
    assert status == 1
    assert "tests failed" in said
    assert checkout.calls[-3:] == ["pytest", *END]


def test_tests_that_hang_are_a_failure_and_the_node_is_taken_down(checkout: Checkout) -> None:
    checkout.act("pytest", "sleep 300")
    status, said = checkout.run("core.sh", CORE_TESTS_SECONDS="1")
    assert status == 1
    assert "the tests did not end within their time" in said
    assert checkout.calls[-3:] == ["pytest", *END]


@pytest.mark.parametrize("step", ["compare", "down"])
def test_a_machine_that_is_not_as_it_was_is_a_failure(checkout: Checkout, step: str) -> None:
    checkout.act(step, "[[ $(grep -c pytest calls) == 0 ]]")
    status, said = checkout.run("core.sh")
    assert status == 1
    assert "not taken down cleanly" in said
    assert checkout.lock.read_text() == "core\n", "the next run takes it down"


@pytest.mark.parametrize("step", ["up", "pytest"])
def test_a_terminated_script_ends_its_step_and_takes_the_node_down(checkout: Checkout, step: str) -> None:
    checkout.act(step, "echo $$ >pid; sleep 300")
    process = checkout.start("core.sh")
    at = checkout.folder / "pid"
    pid = int(wait_until("the step", lambda: (at.exists() and at.read_text().strip()) or None, SECONDS))
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 128 + signal.SIGTERM
    assert checkout.calls[-2:] == END
    wait_until("the step's process to be gone", lambda: not Path(f"/proc/{pid}").exists())
    assert checkout.lock.read_text() == ""


def test_what_a_step_started_may_clean_up_before_the_script_ends(checkout: Checkout) -> None:
    checkout.act(
        "archives.sh", "(trap 'sleep 1; touch cleaned; exit' TERM; touch reached; while :; do sleep 0.1; done) & wait"
    )
    process = checkout.start("core.sh")
    wait_until("the step", lambda: (checkout.folder / "reached").exists(), SECONDS)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 128 + signal.SIGTERM
    assert (checkout.folder / "cleaned").exists()


def test_a_node_that_is_up_already_is_left_alone(checkout: Checkout) -> None:
    checkout.act("status", "echo 'etcd -'; echo 'kubelet 4711'")
    status, said = checkout.run("core.sh")
    assert status == 0
    assert f"{SKIPPED}a node is up that was not started here" in said
    assert checkout.calls == ["node.sh", "status"]


def test_the_node_of_a_run_that_was_killed_outright_is_taken_down_by_the_next(checkout: Checkout) -> None:
    checkout.act("pytest", "kill -KILL $(ps -o ppid= -p $PPID) $PPID")  # the script, and the `timeout` between
    status, _ = checkout.run("core.sh")
    assert (status, checkout.calls[-1]) == (-signal.SIGKILL, "pytest")
    (checkout.folder / "calls").unlink()
    checkout.act("status", "echo 'kubelet 4711'")
    checkout.act("pytest", "exit 0")
    status, said = checkout.run("core.sh")
    assert (status, checkout.calls) == (0, ["node.sh", "down", *PREPARATIONS[3:], "pytest", *END]), said


def test_a_second_run_at_the_same_time_is_a_skip(checkout: Checkout) -> None:
    checkout.lock.parent.mkdir(parents=True)
    with checkout.lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, said = checkout.run("core.sh")
    assert (status, checkout.calls) == (0, [])
    assert f"{SKIPPED}another run" in said


@pytest.mark.parametrize(
    ("arguments", "runs"),
    [
        ((), True),
        (("-m", "not soak"), True),
        (("--only-tests",), False),
        (("--only-tests", "-m", "not soak"), False),
        (("-m", "not soak", "tests/ui"), False),
        (("-m", "soak"), False),
        (("-k", "core"), False),
    ],
)
def test_the_core_runs_in_a_whole_make_test_only(checkout: Checkout, arguments: tuple[str, ...], runs: bool) -> None:
    checkout.stand_in("tools/build.sh")
    checkout.stand_in("tools/core.sh")
    status, said = checkout.run("test.sh", *arguments)
    assert status == 0, said
    assert ("core.sh" in checkout.calls) is runs
    assert not runs or checkout.calls[-1] == "core.sh", "it runs last"


def test_a_whole_make_test_runs_whole_systems_after_all_others_and_leaves_none_out(checkout: Checkout) -> None:
    checkout.stand_in("tools/build.sh")
    checkout.stand_in("tools/core.sh")
    checkout.stand_in(".venv/bin/python", " $*")
    status, said = checkout.run("test.sh", "-m", "not soak")
    assert status == 0, said
    others, *systems = (shlex.split(each) for each in checkout.calls if each.startswith("pytest"))
    assert {tuple(each[-3:]) for each in (others, *systems)} == {("-m", "not", "soak")}
    (last,) = re.findall(r"^LAST = \((.*)\)$", (ROOT / "tests" / "conftest.py").read_text(), re.M)
    folders = [each.strip().strip('"').rstrip("/") for each in last.split(",")]
    assert sorted(each for folder in systems for each in folder if each.startswith("tests/")) == sorted(folders)
    assert [each for each in others if each.startswith("--ignore")] == [f"--ignore={each}" for each in folders]
    assert not [each for each in others if each.startswith("tests/")], "they are all tests but those"


@pytest.mark.parametrize(("environment", "runs"), [({"CI": "true"}, False), ({}, True)])
def test_in_ci_a_core_that_could_not_end_in_time_is_not_begun(
    checkout: Checkout, environment: dict[str, str], runs: bool
) -> None:
    checkout.stand_in("tools/build.sh")
    checkout.stand_in("tools/core.sh")
    status, said = checkout.run("test.sh", SECONDS="4400", **environment)
    assert (status, "core.sh" in checkout.calls) == (0, runs), said
    assert runs or "skipped: core of the end-to-end tests: 73 minutes have passed, and CI stops at 90" in said


def test_a_failing_core_fails_make_test_by_name(checkout: Checkout) -> None:
    checkout.stand_in("tools/build.sh")
    checkout.stand_in("tools/core.sh")
    checkout.act("core.sh", "exit 1")
    status, said = checkout.run("test.sh")
    assert status == 1
    assert said.endswith("failed: core of the end-to-end tests\n")


def test_a_signal_to_make_test_reaches_the_core_and_its_end_is_waited_for(checkout: Checkout) -> None:
    checkout.stand_in("tools/build.sh")
    checkout.act("pytest", "[[ $(grep -c pytest calls) -le 3 ]] || { touch reached; sleep 300; }")
    process = checkout.start("test.sh")
    wait_until("the core's tests", lambda: (checkout.folder / "reached").exists(), SECONDS)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 1
    assert checkout.calls[-2:] == END


def test_the_core_leaves_out_the_tests_that_want_more_images_and_no_other() -> None:
    (listed,) = re.findall(r"^tests=\((.*?)\)$", (ROOT / "tools" / "core.sh").read_text(), re.M | re.S)
    left_out = set(re.findall(r"--deselect (\S+)", listed))
    files = re.findall(r"(?<!--deselect )\be2e/\w+\.py\b(?!::)", listed)
    assert len(files) == 3
    assert left_out == {
        f"{file}::{each.name}"
        for file in files
        for each in ast.parse((ROOT / file).read_text()).body
        if isinstance(each, ast.FunctionDef) and "need_images" in {given.arg for given in each.args.args}
    }
