"""The operator's pods and conditions as the command line shows them."""

from typing import Any

import pytest

from shoal.cli.local_run import message_of, parts_of
from shoal.cli.snapshot import Part
from shoal_operator.local.containers import ContainerView
from shoal_operator.local.pods import PodView


def container(**changes: Any) -> ContainerView:
    values: dict[str, Any] = {
        "name": "trainer", "state": "Running", "ready": True, "restarts": 0, "last_exit": None, "message": "", "pid": 42,
    }  # fmt: skip
    return ContainerView(**(values | changes))


def pod(*containers: ContainerView, **changes: Any) -> PodView:
    values: dict[str, Any] = {
        "name": "demo-trainer-1-0", "owner": "Job/demo-trainer-1", "component": "trainer", "address": "127.17.0.9",
        "phase": "Running", "ready": True, "restarts": 0, "message": "", "containers": containers,
    }  # fmt: skip
    return PodView(**(values | changes))


def test_every_container_is_a_part_with_the_address_of_its_pod() -> None:
    parts = parts_of([pod(container(), container(name="nginx", pid=43))])
    assert [(part.name, part.address, part.pid, part.state) for part in parts] == [
        ("demo-trainer-1-0/trainer", "127.17.0.9", 42, "ready"),
        ("demo-trainer-1-0/nginx", "127.17.0.9", 43, "ready"),
    ]


@pytest.mark.parametrize(
    ("phase", "changes", "state", "message"),
    [
        ("Running", {"ready": False, "message": "connection refused"}, "starting", "connection refused"),
        ("Running", {"state": "Waiting", "ready": False, "last_exit": -9, "message": "killed by SIGKILL"},
         "waiting", "killed by SIGKILL"),
        ("Succeeded", {"state": "Exited", "ready": False, "last_exit": 0, "message": "exit code 0"}, "done", ""),
        ("Failed", {"state": "Exited", "ready": False, "last_exit": 3, "message": "exit code 3"}, "failed", "exit code 3"),
        ("Stopping", {}, "stopping", ""),
    ],
)  # fmt: skip
def test_the_state_of_a_part_is_one_word(phase: str, changes: dict, state: str, message: str) -> None:
    (part,) = parts_of([pod(container(**changes), phase=phase)])
    assert (part.state, part.message) == (state, message)


def test_a_pod_that_waits_for_a_secret_is_one_part_that_says_so() -> None:
    (part,) = parts_of([pod(phase="Pending", message="pod demo-trainer-1-0: waits for Secret demo-trainer")])
    assert part == Part(
        "demo-trainer-1-0",
        "",
        "Pending",
        address="127.17.0.9",
        message="pod demo-trainer-1-0: waits for Secret demo-trainer",
    )
    assert (part.name, part.state) == ("demo-trainer-1-0", "pending")


def condition(kind: str, status: str, message: str, reason: str = "Because") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def test_a_failure_is_told_before_what_is_merely_not_ready() -> None:
    conditions = [condition("Ready", "False", "the trainer starts"), condition("Failed", "True", "prepare gave up")]
    assert message_of({"conditions": conditions}) == "prepare gave up"


def test_a_condition_without_a_message_gives_its_reason() -> None:
    assert message_of({"conditions": [condition("Ready", "False", "", "Preparing")]}) == "Preparing"


def test_a_ready_run_and_one_without_status_have_nothing_to_say() -> None:
    assert message_of({"conditions": [condition("Ready", "True", "all parts are ready")]}) == ""
    assert message_of({}) == ""
