"""The operator's pods and conditions as the command line shows them."""

from pathlib import Path
from typing import Any

import pytest

from shoal.cli.local_run import PREPARING, message_of, open_local_run, parts_of, read_manifest, warm_start
from shoal.errors import InputWrong
from shoal.report.snapshot import Part
from shoal_operator.local.containers import ContainerView
from shoal_operator.local.pods import PodView
from shoal_operator.reconcile import run_status


def container(**changes: Any) -> ContainerView:
    values: dict[str, Any] = {
        "name": "trainer", "state": "Running", "ready": True, "restarts": 0, "last_exit": None, "message": "", "pid": 42,
    }  # fmt: skip
    return ContainerView(**(values | changes))


def pod(*containers: ContainerView, **changes: Any) -> PodView:
    values: dict[str, Any] = {
        "name": "demo-trainer-1-0", "component": "trainer", "address": "127.17.0.9", "phase": "Running", "ready": True,
        "restarts": 0, "message": "", "containers": containers,
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


def test_the_newest_pass_rate_of_the_warm_start_is_read_from_prepare_s_log(tmp_path: Path) -> None:
    assert warm_start(tmp_path) is None
    log = tmp_path / "demo-prepare-1" / "prepare.log"
    log.parent.mkdir()
    log.write_text('{"event": "task table written"}\n')
    assert warm_start(tmp_path) is None
    with log.open("a") as file:
        file.write(
            "{}\n" * 3000 + '{"event": "warm start", "pass_rate": 0.04}\n{"event": "warm start", "pass_rate": 0.125}\n'
        )
        file.write('Loading weights\n{"event": "warm start", "pass')
    assert warm_start(tmp_path) == 0.125


def test_every_obstacle_to_a_run_on_this_machine_is_reported_at_once(tmp_path: Path) -> None:
    manifest, secret = tmp_path / "run.yaml", tmp_path / "store.yaml"
    manifest.write_text(
        MISTAKEN.replace("environment: arithmetik", "environment: 'lm-eval:/nowhere/task.yaml'")
        + "  trainer: {replicas: 2}\n  validatorRef: shared\n"
    )
    secret.write_text("kind: Pod")
    with pytest.raises(InputWrong) as caught:
        open_local_run(read_manifest(manifest, [str(secret)]), tmp_path / "runs")
    told = [line.removeprefix(f"{manifest}: ") for line in caught.value.lines]
    assert told[1] == (
        "spec.evaluation.benchmarks[0].tasks.environment: lm-eval:/nowhere/task.yaml: there is no such file on this machine; "
        "allowed: the absolute path of a task's YAML"
    )
    assert [line.partition(":")[0] for line in told] == [
        "spec.tasks.environment", "spec.evaluation.benchmarks[0].tasks.environment", "spec.model.path", "spec.trainer.replicas",
        "spec.validatorRef",
    ]  # fmt: skip
    manifest.write_text(MISTAKEN.replace("nonsense", "math").replace("arithmetik", "'lm-eval:a@c'"))
    with pytest.raises(InputWrong, match="'c' is not a revision") as caught:
        open_local_run(read_manifest(manifest, [str(secret)]), tmp_path / "runs")
    assert caught.value.lines[-1] == f"{secret}: must hold one object of kind Secret with metadata.name"


def test_the_pass_rate_follows_the_operators_message_for_preparing() -> None:
    assert PREPARING in Path(run_status.__file__).read_text()


MISTAKEN = """
apiVersion: shoal.dev/v1alpha1
kind: TrainingRun
metadata: {name: demo}
spec:
  model: {path: /nowhere/model}
  tasks: {environment: nonsense}
  evaluation: {benchmarks: [{name: sums, tasks: {environment: arithmetik}}]}
  steps: 3
"""


def test_missing_environments_and_models_are_reported_before_anything_starts(tmp_path: Path) -> None:
    manifest = tmp_path / "run.yaml"
    manifest.write_text(MISTAKEN)
    with pytest.raises(InputWrong) as caught:
        open_local_run(read_manifest(manifest), tmp_path / "runs")
    environment, benchmark, model = caught.value.lines
    assert (
        f"{manifest}: spec.tasks.environment: environment 'nonsense' is not installed here; installed: arithm"
        in environment
    )
    assert "spec.evaluation.benchmarks[0].tasks.environment: environment 'arithmetik'" in benchmark
    assert "spec.model.path: /nowhere/model is not a folder on this machine" in model
    assert not (tmp_path / "runs").exists()
    manifest.write_text(
        MISTAKEN.replace("nonsense", "math").replace("arithmetik", "tool").replace("/nowhere/model", "here")
    )
    open_local_run(read_manifest(manifest), tmp_path / "runs")
