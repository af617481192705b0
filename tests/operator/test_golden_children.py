"""Builders against golden files: `tests/golden/<kind>/<case>/{in,out}.yaml`. `pytest --update-golden` writes the outputs anew; read the diff."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.contracts.run import NodeConfig
from shoal_operator.api.manifest import check
from shoal_operator.children import (
    ObservedRun,
    inference_pool_children,
    names,
    relay_server_children,
    training_run_children,
    validator_children,
)
from shoal_operator.engine.cluster import CHILD_KINDS
from shoal_operator.render import placeholder_identity, to_yaml

GOLDEN = Path(__file__).parent.parent / "golden"
CASES = sorted(path.parent for path in GOLDEN.glob("*/*/in.yaml"))
IDENTITY = placeholder_identity("sums")
ADDRESSES = names.cluster_addresses("sums", "default", relays=2)


def build(case: Path) -> list[dict[str, Any]]:
    manifest, *observed = yaml.safe_load_all((case / "in.yaml").read_text())
    found, mistakes = check(manifest)
    assert not mistakes, mistakes
    match manifest["kind"]:
        case "TrainingRun":
            return training_run_children(found, IDENTITY, ObservedRun(**observed[0]), ADDRESSES)
        case "InferencePool":
            join = NodeConfig(
                run="sums", pool="pool", discovery=ADDRESSES.discovery, roster=IDENTITY.roster, run_key=IDENTITY.run_key
            )
            return inference_pool_children(found, join)
        case "RelayServer":
            return relay_server_children(found, "0123456789abcdef")
        case _:
            return validator_children(found, "0123456789abcdef")


@pytest.mark.parametrize("case", CASES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_children_are_as_in_the_golden_file(case: Path, request: pytest.FixtureRequest) -> None:
    built = to_yaml(build(case))
    expected = case / "out.yaml"
    if request.config.getoption("--update-golden"):
        expected.write_text(built)
    assert built == expected.read_text(), f"{expected} differs: run pytest --update-golden and read the diff"


def pods(case: Path) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{made['kind']}/{made['metadata']['name']}", made["spec"]["template"]["spec"])
        for made in build(case)
        if "template" in made.get("spec", {})
    ]


EVERY_POD = [pytest.param(pod, id=f"{case.name}-{name}") for case in CASES for name, pod in pods(case)]


@pytest.mark.parametrize("pod", EVERY_POD)
def test_every_pod_meets_the_restricted_pod_security_standard(pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("pod", EVERY_POD)
def test_every_mount_lies_under_shoal_and_has_a_volume(pod: dict[str, Any]) -> None:
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        for mount in container["volumeMounts"]:
            assert mount["mountPath"].startswith("/shoal/")
            assert mount["name"] in volumes | {"key", "weights", "www", "data"}


@pytest.mark.parametrize("pod", EVERY_POD)
def test_every_long_running_container_has_all_three_probes(pod: dict[str, Any]) -> None:
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        if container["name"] != "prepare":
            assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)


@pytest.mark.parametrize("case", CASES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_only_kinds_of_the_short_list_are_built(case: Path) -> None:
    assert {made["kind"] for made in build(case)} <= {*CHILD_KINDS, "InferencePool", "RelayServer", "Validator"}


def mounted_secrets(pod: dict[str, Any]) -> set[str]:
    found = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    for volume in pod["volumes"]:
        found |= {source["secret"]["name"] for source in volume.get("projected", {}).get("sources", [])}
    return found


def test_a_pod_mounts_the_key_of_its_own_role_only_and_a_worker_none() -> None:
    by_owner = {name: mounted_secrets(pod) for case in CASES for name, pod in pods(case) if "s3" not in case.name}
    assert by_owner == {
        "Job/sums-prepare": set(),
        "StatefulSet/sums-redis": set(),
        "Deployment/sums-discovery": {"sums-discovery-key"},
        "Deployment/sums-orchestrator": {"sums-orchestrator-key"},
        "Job/sums-trainer-2": {"sums-trainer-key"},
        "StatefulSet/sums-relay": {"sums-relay-key"},
        "Deployment/sums-validator": {"sums-validator-key"},
        "StatefulSet/sums-fast": set(),
    }


def test_no_pod_mounts_the_run_key() -> None:
    assert all("sums-run-key" not in mounted_secrets(pod) for case in CASES for _, pod in pods(case))


def test_a_worker_pod_sees_nothing_of_the_store_nor_of_the_orchestrator() -> None:
    text = to_yaml(build(GOLDEN / "inferencepool" / "two_workers"))
    assert "orchestrator.default" not in text
    assert "sums-store" not in text


def test_another_relay_starts_nothing_anew_but_the_orchestrator() -> None:
    manifest, observed = yaml.safe_load_all((GOLDEN / "trainingrun" / "running" / "in.yaml").read_text())
    run, _ = check(manifest)

    def hashes(relays: int) -> dict[str, str]:
        addresses = names.cluster_addresses("sums", "default", relays=relays)
        children = training_run_children(run, IDENTITY, ObservedRun(**observed), addresses)
        return {
            made["metadata"]["name"]: made["spec"]["template"]["metadata"]
            .get("annotations", {})
            .get("shoal.dev/config-hash")
            for made in children
            if "template" in made.get("spec", {})
        }

    two, three = hashes(2), hashes(3)
    assert [name for name in two if two[name] != three[name]] == ["sums-orchestrator"]
