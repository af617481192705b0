"""What of a TrainingRun one machine cannot do is refused before anything starts; what has no meaning there is left out."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal_operator.api import TrainingRun
from shoal_operator.api.manifest import load_manifest
from shoal_operator.api.rules import AZURE_EXAMPLE, GCS_EXAMPLE
from shoal_operator.local.containers import ContainerView
from shoal_operator.local.limits import beyond_one_machine, for_one_machine
from shoal_operator.local.pod_objects import pod_object
from shoal_operator.local.pods import PodView
from shoal_operator.local.volumes import prepare_home
from shoal_operator.reconcile.pod_problems import pod_problem


def run(**spec: Any) -> TrainingRun:
    base = {"model": {"generated": {}}, "tasks": {"environment": "arithmetic"}, "steps": 4}
    manifest = {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "sums"},
        "spec": base | spec,
    }
    [found] = load_manifest(yaml.safe_dump(manifest))
    assert isinstance(found, TrainingRun)
    return found


IDENTITY = {"serviceAccount": "store", "roleArn": "arn:aws:iam::1:role/research", "stsEndpoint": "https://sts.example"}


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"trainer": {"replicas": 2}}, "run.yaml: spec.trainer.replicas: given 2; one machine has one trainer pod"),
        (
            {"storage": {"s3": {"endpoint": "http://s3", "bucket": "rollouts", "workloadIdentity": IDENTITY}}},
            "run.yaml: spec.storage.s3.workloadIdentity: one machine gives no service account tokens",
        ),
        (
            {"storage": {"azure": AZURE_EXAMPLE}},
            "run.yaml: spec.storage.azure: one machine gives no service account tokens",
        ),
        (
            {"storage": {"gcs": GCS_EXAMPLE}},
            "run.yaml: spec.storage.gcs: one machine gives no service account tokens",
        ),
        (
            {"inferencePools": [{"weightsClaim": "node-a-weights"}]},
            "run.yaml: spec.inferencePools.0.weightsClaim: one machine has no claims",
        ),
        ({"relayServerRef": "shared"}, "run.yaml: spec.relayServerRef: one machine has no objects that others made"),
        ({"validatorRef": "strict"}, "run.yaml: spec.validatorRef: one machine has no objects that others made"),
        ({"inferencePoolRefs": ["a"]}, "run.yaml: spec.inferencePoolRefs: one machine has no objects that others made"),
    ],
)
def test_what_one_machine_cannot_do_is_refused_at_its_field(spec: dict[str, Any], problem: str) -> None:
    [found] = beyond_one_machine(run(**spec), "run.yaml")
    assert str(found).startswith(problem)


def test_queues_and_times_to_live_are_left_out() -> None:
    found = for_one_machine(run(queueName="research", ttlSecondsAfterFinished=0))
    assert (found.spec.queue_name, found.spec.ttl_seconds_after_finished) == (None, None)


def test_what_says_where_pods_run_and_who_may_come_in_is_accepted() -> None:
    exposed = {"exposure": {"type": "LoadBalancer"}}
    placed = {"podTemplate": {"nodeSelector": {"disk": "fast"}, "runtimeClassName": "nvidia"}}
    found = run(relayServer=exposed, controlPlane=exposed, trainer=placed | {"processesPerReplica": 2})
    assert not beyond_one_machine(found, "run.yaml")


# Volumes that only some objects use.


def test_config_maps_share_a_folder_and_what_is_optional_may_be_absent(tmp_path: Path) -> None:
    maps = {"run-config": {"data": {"run.json": "1"}}, "relay-limits": {"data": {"relay.json": "2"}}}
    sources = [{"configMap": {"name": name}} for name in maps]
    absent = {"configMap": {"name": "sums-parts", "optional": True}}
    spec = {
        "containers": [
            {
                "volumeMounts": [
                    {"name": "config", "mountPath": "/shoal/config"},
                    {"name": "secrets", "mountPath": "/shoal/secrets"},
                    {"name": "shm", "mountPath": "/dev/shm"},
                ]
            }
        ],
        "volumes": [
            {"name": "config", "projected": {"sources": [*sources, absent]}},
            {"name": "secrets", "secret": {"secretName": "sums-pool-ticket", "optional": True}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    prepare_home(
        tmp_path / "pod",
        spec,
        claims={},
        volumes_folder=tmp_path,
        lookup=lambda kind, name: maps.get(name),
        where="pod",
    )
    assert {path.name for path in (tmp_path / "pod" / "config").iterdir()} == {"run.json", "relay.json"}
    assert list((tmp_path / "pod" / "secrets").iterdir()) == []


# Pods as reconcile sees them.


def view(phase: str, container: ContainerView | None = None, message: str = "") -> PodView:
    return PodView("sums-0", "trainer", "127.0.0.2", phase, False, 0, message, (container,) if container else ())


def test_a_process_that_keeps_ending_is_a_crashing_pod() -> None:
    ended = ContainerView("trainer", "Waiting", False, 3, 1, "exit code 1", None)
    problem = pod_problem(pod_object(view("Running", ended), {"shoal.dev/run": "sums"}), datetime.now(UTC))
    assert problem is not None
    assert str(problem) == "pod sums-0: container trainer: ended 3 times, last: exit code 1"


def test_a_pod_that_waits_for_a_volume_says_for_which() -> None:
    problem = pod_problem(
        pod_object(view("Pending", message="pod sums-0: waits for Secret minio"), {}), datetime.now(UTC)
    )
    assert problem is not None
    assert "waits for Secret minio" in str(problem)


def test_a_pod_that_stops_has_no_problem() -> None:
    assert pod_problem(pod_object(view("Stopping"), {}), datetime.now(UTC)) is None
