"""What is printed of a failed end-to-end test: the first thing that went wrong, not the last."""

import json
from typing import Any

from e2e.artifacts import collect, first_error, pod_errors

Object = dict[str, Any]


def pod(**status: Any) -> Object:
    return {"metadata": {"name": "trainer-0"}, "spec": {"containers": [{"name": "trainer"}]}, "status": status}


def warning(at: str, reason: str) -> Object:
    return {
        "type": "Warning",
        "reason": reason,
        "message": f"it was {reason}",
        "firstTimestamp": at,
        "involvedObject": {"kind": "Pod", "name": "relay-0"},
        "metadata": {},
    }


CRASHED = pod(
    containerStatuses=[
        {
            "name": "trainer",
            "restartCount": 1,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
            "lastState": {"terminated": {"exitCode": 2, "reason": "Error", "message": "spec.model: no such folder\n"}},
        }
    ]
)


def test_a_container_that_ended_badly_comes_before_everything_with_its_own_words() -> None:
    found = first_error([warning("2026-01-01T00:00:00Z", "Unhealthy")], [CRASHED], {"a/b": "ERROR: late"})
    assert found == "pod trainer-0, container trainer ended with 2 (Error): spec.model: no such folder"


def test_an_image_that_is_not_there_is_named() -> None:
    waiting = {"reason": "ErrImageNeverPull", "message": "shoal/trainer is not present"}
    found = pod_errors(pod(containerStatuses=[{"name": "trainer", "state": {"waiting": waiting}}]))
    assert found == ["pod trainer-0, container trainer waits: ErrImageNeverPull: shoal/trainer is not present"]


def test_a_pod_that_has_no_node_says_why() -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: insufficient nvidia.com/gpu"}
    assert pod_errors(pod(conditions=[condition])) == [
        "pod trainer-0 is not scheduled: 0/1 nodes: insufficient nvidia.com/gpu"
    ]


def test_a_container_that_is_only_starting_is_not_an_error() -> None:
    starting = {"name": "trainer", "state": {"waiting": {"reason": "ContainerCreating"}}}
    assert pod_errors(pod(containerStatuses=[starting])) == []


def test_the_earliest_warning_is_told() -> None:
    events = [warning("2026-01-01T00:00:09Z", "Late"), warning("2026-01-01T00:00:01Z", "Early"), {"type": "Normal"}]
    assert first_error(events, [], {}) == "Pod relay-0: Early: it was Early"


def test_with_nothing_else_a_log_that_complains_is_quoted() -> None:
    logs = {"a/main": "all is well\nerrorless\n", "b/main": "fine\nhttpx.ConnectError: Error 111\nError again"}
    assert first_error([], [], logs) == "b/main: httpx.ConnectError: Error 111"


def test_a_healthy_namespace_has_no_first_error() -> None:
    assert first_error([], [pod()], {"a/main": "ready"}) == ""


def test_what_is_kept_never_asks_for_secrets_and_goes_on_when_a_question_fails(tmp_path: Any) -> None:
    asked = []

    def kubectl(*arguments: str) -> str:
        asked.append(" ".join(arguments))
        if "describe" in arguments:
            raise RuntimeError("the server is away")
        if arguments[2:4] == ("get", "pods"):
            return json.dumps({"items": [CRASHED]})
        return '{"items": []}' if "json" in arguments else "text"

    assert collect(kubectl, ["space"], tmp_path).startswith("pod trainer-0, container trainer ended with 2")
    assert not [each for each in asked if "secret" in each.lower()]
    kept = {path.name for path in (tmp_path / "space").iterdir()}
    assert {"describe.txt.failed", "events.txt", "trainer-0.trainer.log", "trainer-0.trainer.previous.log"} <= kept
    assert (tmp_path / "space" / "describe.txt.failed").read_text() == "the server is away"


def test_what_a_sidecar_said_before_it_was_started_anew_is_kept(tmp_path: Any) -> None:
    relay = {
        "metadata": {"name": "relay-0"},
        "spec": {"initContainers": [{"name": "nginx", "restartPolicy": "Always"}], "containers": [{"name": "sync"}]},
        "status": {
            "initContainerStatuses": [{"name": "nginx", "restartCount": 2}],
            "containerStatuses": [{"name": "sync", "restartCount": 0}],
        },
    }

    def kubectl(*arguments: str) -> str:
        if "json" in arguments:
            return json.dumps({"items": [relay] if "pods" in arguments else []})
        return "before" if "--previous" in arguments else "now"

    collect(kubectl, ["space"], tmp_path)
    kept = {path.name: path.read_text() for path in (tmp_path / "space").iterdir() if path.name.startswith("relay-0")}
    assert kept == {
        "relay-0.nginx.log": "now", "relay-0.nginx.previous.log": "before", "relay-0.sync.log": "now",
    }  # fmt: skip
