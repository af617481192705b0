"""Builders against golden files: `tests/golden/<kind>/<case>/{in,out}.yaml`. `pytest --update-golden` writes the outputs anew; read the diff."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from shoal.contracts.run import NodeConfig, RunConfig
from shoal_operator.api import InferencePool, RelayServer, Validator
from shoal_operator.api.manifest import check
from shoal_operator.children import (
    ObservedRun,
    References,
    inference_pool_children,
    names,
    relay_server_children,
    training_run_children,
    validator_children,
)
from shoal_operator.children.islands import island_count, serves_lighthouse
from shoal_operator.children.releases import Builder
from shoal_operator.children.runner import runner_count
from shoal_operator.children.site import Site, with_digests
from shoal_operator.children.workloads import WITH_PODS, template_of
from shoal_operator.engine.cluster import CHILD_KINDS, MAYBE_KINDS
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
            others = [check(each)[0] for each in observed[0].pop("references", [])]
            references = References(
                relay_server=next((each for each in others if isinstance(each, RelayServer)), None),
                validator=next((each for each in others if isinstance(each, Validator)), None),
                pools=tuple(each for each in others if isinstance(each, InferencePool)),
            )
            islands = island_count(found)
            addresses = names.cluster_addresses(
                "sums", "default", relays=2, runners=runner_count(found), islands=serves_lighthouse(found)
            )
            identity = placeholder_identity("sums", islands)
            return training_run_children(found, identity, ObservedRun(**observed[0], references=references), addresses)
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
        (f"{made['kind']}/{made['metadata']['name']}", template_of(made)["spec"])
        for made in build(case)
        if made["kind"] in WITH_PODS
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
            assert mount["mountPath"].startswith("/shoal/") or mount["mountPath"] in ("/dev/shm", "/models")
            assert mount["name"] in volumes | {"key", "weights", "www", "data", "tracks"}


@pytest.mark.parametrize("pod", EVERY_POD)
def test_every_long_running_container_has_all_three_probes(pod: dict[str, Any]) -> None:
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        if container["name"] != "prepare":
            assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)


@pytest.mark.parametrize("case", CASES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_only_kinds_of_the_short_list_are_built(case: Path) -> None:
    assert {made["kind"] for made in build(case)} <= {
        *CHILD_KINDS,
        *MAYBE_KINDS,
        "InferencePool",
        "RelayServer",
        "Validator",
    }


def mounted_secrets(pod: dict[str, Any]) -> set[str]:
    found = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    for volume in pod["volumes"]:
        sources = volume.get("projected", {}).get("sources", [])
        found |= {source["secret"]["name"] for source in sources if "secret" in source}
    return found


def test_a_pod_mounts_the_key_of_its_own_role_only_and_a_worker_none() -> None:
    by_owner = {
        name.replace("/traces-", "/sums-"): {secret.replace("traces-", "sums-") for secret in mounted_secrets(pod)}
        for case in CASES
        for name, pod in pods(case)
        if "s3" not in case.name
    }
    trainers = [name for name in by_owner if name.startswith("Job/sums-trainer-")]
    assert all(by_owner.pop(name) - {"sums-island-0-key"} == {"sums-trainer-key"} for name in trainers)
    assert by_owner == {
        "Job/sums-prepare": set(),
        "StatefulSet/sums-redis": set(),
        "Deployment/sums-discovery": {"sums-discovery-key"},
        "Deployment/sums-orchestrator": {"sums-orchestrator-key"},
        "StatefulSet/sums-lighthouse": set(),
        "StatefulSet/sums-island-1": {"sums-island-1-key"},
        "StatefulSet/sums-island-2": {"sums-island-2-key"},
        "StatefulSet/sums-relay": {"sums-relay-key"},
        "Deployment/sums-validator": {"sums-validator-key"},
        "StatefulSet/sums-runner": set(),
        "StatefulSet/sums-tracker": set(),
        "Deployment/sums-ui": {"sums-ui-token"},
        "StatefulSet/sums-fast": {"sums-fast-ticket"},
        "StatefulSet/sums-wide": {"sums-wide-ticket"},
        "LeaderWorkerSet/sums-wide": {"sums-wide-ticket"},
        "StatefulSet/sums-big": {"sums-big-ticket"},
    }


def test_of_a_pools_pod_only_the_agent_has_a_secret() -> None:
    for case in CASES:
        for _, pod in pods(case) if case.parent.name == "inferencepool" else []:
            holders = {
                container["name"]
                for container in pod["containers"]
                for mount in container["volumeMounts"]
                if mount["name"] == "secrets"
            }
            assert holders == {"agent"}


def test_no_pod_mounts_the_run_key() -> None:
    assert all("sums-run-key" not in mounted_secrets(pod) for case in CASES for _, pod in pods(case))


def test_a_worker_pod_sees_nothing_of_the_store_nor_of_the_orchestrator() -> None:
    text = to_yaml(build(GOLDEN / "inferencepool" / "two_workers"))
    assert "orchestrator.default" not in text
    assert "sums-store" not in text


def test_another_relay_or_parts_of_leases_restart_only_the_orchestrator() -> None:
    manifest, observed = yaml.safe_load_all((GOLDEN / "trainingrun" / "running" / "in.yaml").read_text())

    def hashes(relays: int, **changes: object) -> dict[str, str]:
        run, _ = check(manifest | {"spec": manifest["spec"] | changes})
        addresses = names.cluster_addresses("sums", "default", relays=relays)
        children = training_run_children(run, IDENTITY, ObservedRun(**observed), addresses)
        return {
            made["metadata"]["name"]: made["spec"]["template"]["metadata"]
            .get("annotations", {})
            .get("shoal.dev/config-hash")
            for made in children
            if "template" in made.get("spec", {})
        }

    two = hashes(2)
    for changed in (hashes(3), hashes(2, rollouts={"handInEverySeconds": 60})):
        assert [name for name in two if two[name] != changed[name]] == ["sums-orchestrator"]


def built(kind: str, case: str) -> dict[str, dict[str, Any]]:
    return {f"{made['kind']}/{made['metadata']['name']}": made for made in build(GOLDEN / kind / case)}


def test_ranks_of_several_pods_meet_at_pod_0_and_none_restarts_alone() -> None:
    made = built("trainingrun", "several_trainer_pods")
    job = made["Job/sums-trainer-3"]
    assert (job["spec"]["completions"], job["spec"]["parallelism"], job["spec"]["backoffLimit"]) == (4, 4, 0)
    pod = job["spec"]["template"]["spec"]
    assert (pod["restartPolicy"], pod["subdomain"]) == ("Never", "sums-ranks")
    command = next(each["command"] for each in pod["containers"] if each["name"] == "trainer")
    assert " ".join(command) == (
        "python -m torch.distributed.run --nproc-per-node 8 --nnodes 4 --node-rank $(JOB_COMPLETION_INDEX) "
        "--master-addr sums-trainer-3-0.sums-ranks --master-port 29500 -m shoal.training"
    )
    assert made["Service/sums-ranks"]["spec"]["publishNotReadyAddresses"] is True
    origin = made["Service/sums-trainer"]["spec"]["selector"]
    assert origin["batch.kubernetes.io/job-completion-index"] == "0", "only rank 0 publishes"
    assert not [name for name in made if name.endswith(("-outbox", "-www"))], "pods on several nodes share no volume"


def test_a_trainer_of_one_process_is_started_without_torchrun() -> None:
    pod = built("trainingrun", "running")["Job/sums-trainer-2"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"] == ["python", "-m", "shoal.training"]


def test_every_edge_is_allowed_at_both_ends_and_nothing_else_comes_in() -> None:
    """Every caller that an ingress rule names has an egress rule to the same pods and port, and the other way round."""
    made = built("trainingrun", "running")
    policies = {name.split("/")[1]: each["spec"] for name, each in made.items() if name.startswith("NetworkPolicy/")}
    assert policies["sums-deny"] == {
        "podSelector": {"matchLabels": {"shoal.dev/run": "sums"}},
        "policyTypes": ["Ingress", "Egress"],
    }

    def component(peer: dict[str, Any]) -> str:
        return peer["podSelector"]["matchLabels"].get("shoal.dev/component", "operator")

    incoming, outgoing = set(), set()
    for spec in policies.values():
        own = component(spec)
        for rule in spec.get("ingress", []):
            incoming |= {(component(peer), own, port["port"]) for peer in rule["from"] for port in rule["ports"]}
        for rule in spec.get("egress", []):
            outgoing |= {(own, component(peer), port["port"]) for peer in rule.get("to", []) for port in rule["ports"]}
    assert incoming - outgoing == {("operator", "orchestrator", 8080)}
    assert outgoing <= incoming
    assert ("trainer", "relay", 8090) not in incoming


def test_what_is_open_to_the_world_is_what_is_exposed() -> None:
    made = built("trainingrun", "overrides")
    open_to_all = {
        name
        for name, each in made.items()
        if name.startswith("NetworkPolicy/") and any("from" not in rule for rule in each["spec"].get("ingress", []))
    }
    assert open_to_all == {f"NetworkPolicy/sums-{each}" for each in ("relay", "discovery", "orchestrator")}


def test_relays_have_one_way_in_each() -> None:
    made = built("relayserver", "load_balancers")
    for number in (0, 1):
        spec = made[f"Service/sums-relay-{number}"]["spec"]
        assert spec["selector"] == {"statefulset.kubernetes.io/pod-name": f"sums-relay-{number}"}
        assert (spec["type"], spec["externalTrafficPolicy"]) == ("LoadBalancer", "Local")


def test_referenced_objects_replace_the_runs_own_settings() -> None:
    made = built("trainingrun", "references")
    assert not [name for name in made if name.split("/")[0] in ("RelayServer", "Validator", "InferencePool")]
    config = RunConfig.from_json(made["ConfigMap/sums-config"]["data"]["run.json"])
    assert (config.kept_versions, config.validation.proof_rows_share) == (9, 1.0)
    assert [(pool.name, pool.open) for pool in config.pools] == [("fast", True)]


FOR_RECORDS = (
    "gpus_and_placement",
    "islands",
    "load_balancers",
    "overrides",
    "pod_fields",
    "runners",
    "several_gpus",
    "tracked",
)
"""Cases that have every kind of child and of pod between them."""


def test_whatever_a_builder_makes_a_record_of_a_release_may_have() -> None:
    """Else an upgrade would replace every pod of such a run."""
    chosen = [case for case in CASES if case.name in FOR_RECORDS]
    assert len(chosen) == len(FOR_RECORDS)
    for case in chosen:
        manifest = next(yaml.safe_load_all((case / "in.yaml").read_text()))
        owner = manifest["metadata"]["name"]
        made = [each for each in build(case) if each["kind"] != "Secret"]
        builder = Builder(TypeAdapter(dict[str, str]), lambda inputs, made=made: made)
        kept = builder.read(
            "0.0.1",
            builder.record({}, b"{}", partial(with_digests, site=Site())),
            owner,
            manifest["spec"].get("run", owner),
        )
        assert list(kept.was.values()) == made, case
