"""A run whose store is reached by workload identity: which pods have the service account and its token, what they may reach, what is refused."""

import copy
from typing import Any

import pytest
import yaml
from memory_cluster import MemoryCluster
from run_story import MANIFEST, put, running, said
from test_golden_children import GOLDEN, built

from shoal_operator.api.manifest import check
from shoal_operator.children import names
from shoal_operator.children.site import NotAllowedHere, Site, at_site

IDENTITY = {
    "serviceAccount": "research-store",
    "roleArn": "arn:aws:iam::123456789012:role/research",
    "stsEndpoint": "https://sts.eu-central-1.amazonaws.com",
}
S3 = {"endpoint": "http://minio:9000", "bucket": "rollouts", "workloadIdentity": IDENTITY}
USERS = {"prepare", "orchestrator", "trainer", "ui", "tracker"}
"""Components of the golden case that read or write the store; its validator is an object of its own."""


def pods() -> dict[str, dict[str, Any]]:
    """Pod specs of the golden case, by component."""
    text = (GOLDEN / "trainingrun" / "workload_identity" / "out.yaml").read_text()
    return {
        made["metadata"]["labels"][names.COMPONENT_LABEL]: made["spec"]["template"]["spec"]
        for made in yaml.safe_load_all(text)
        if "template" in made.get("spec", {})
    }


def tokens(pod: dict[str, Any]) -> list[tuple[str, str]]:
    """Where the tokens of a pod lie, below `/shoal`, and whom they are for."""
    found = []
    mounts = [mount for container in pod["containers"] for mount in container["volumeMounts"]]
    for volume in pod["volumes"]:
        for source in volume.get("projected", {}).get("sources", []):
            if token := source.get("serviceAccountToken"):
                [place] = {mount["mountPath"] for mount in mounts if mount["name"] == volume["name"]}
                found.append((f"{place}/{token['path']}", token["audience"]))
    return found


def test_parts_that_use_the_store_run_as_the_account_and_have_its_token() -> None:
    users = {name: pod for name, pod in pods().items() if name in USERS}
    assert users.keys() == USERS
    for pod in users.values():
        assert pod["serviceAccountName"] == "research-store"
        assert pod["automountServiceAccountToken"] is False, "no token of the API server comes with it"
        assert tokens(pod) == [("/shoal/secrets/store/token", "sts.amazonaws.com")]
    [validator] = [made for name, made in built("validator", "workload_identity").items() if "Deployment/" in name]
    spec = validator["spec"]["template"]["spec"]
    assert (spec["serviceAccountName"], tokens(spec)) == (
        "research-store",
        [("/shoal/secrets/store/token", "sts.amazonaws.com")],
    )


def test_no_other_part_has_an_account_or_a_token() -> None:
    others = {name: pod for name, pod in pods().items() if name not in USERS}
    assert {"redis", "discovery"} <= others.keys()
    pools = {
        name: made["spec"]["template"]["spec"]
        for case in ("inferencepool/two_workers", "relayserver/two_relays")
        for name, made in built(*case.split("/")).items()
        if "template" in made.get("spec", {})
    }
    for pod in (*others.values(), *pools.values()):
        assert "serviceAccountName" not in pod
        assert tokens(pod) == []


def test_pools_may_not_reach_the_token_service() -> None:
    made = built("trainingrun", "workload_identity")

    def ports(component: str) -> set[int]:
        egress = made[f"NetworkPolicy/sums-{component}"]["spec"]["egress"]
        return {port["port"] for rule in egress if "to" not in rule for port in rule["ports"]}

    assert {9000, 443} <= ports("orchestrator")
    assert 9000 in ports("pool")
    assert 443 not in ports("pool")


def test_a_part_with_an_account_of_its_own_keeps_it(cluster: MemoryCluster) -> None:
    put(cluster, storage={"s3": S3}, controlPlane={"podTemplate": {"serviceAccountName": "orchestrators"}})
    running(cluster)
    found = cluster.get("Deployment", "sums-orchestrator")
    assert found is not None
    assert found["spec"]["template"]["spec"]["serviceAccountName"] == "orchestrators"


def test_a_run_with_a_workload_identity_waits_for_no_secret(cluster: MemoryCluster) -> None:
    put(cluster, storage={"s3": S3})
    running(cluster)
    assert said(cluster, "Ready")["status"] == "True"


def test_an_audience_of_the_api_server_is_refused() -> None:
    child = copy.deepcopy(built("trainingrun", "workload_identity")["Deployment/sums-orchestrator"])
    for volume in child["spec"]["template"]["spec"]["volumes"]:
        for source in volume.get("projected", {}).get("sources", []):
            if "serviceAccountToken" in source:
                source["serviceAccountToken"]["audience"] = "https://kubernetes.default.svc"
    with pytest.raises(NotAllowedHere, match="needs the audience of a cloud or a vault"):
        at_site(child, Site())


@pytest.mark.parametrize(
    ("s3", "problem"),
    [
        ({"credentialsSecret": "keys", "workloadIdentity": IDENTITY}, "one of credentialsSecret and workloadIdentity"),
        ({}, "one of credentialsSecret and workloadIdentity"),
        ({"workloadIdentity": IDENTITY | {"stsEndpoint": "sts"}}, "must be a URL that starts with http:// or https://"),
        ({"workloadIdentity": IDENTITY | {"durationSeconds": 60}}, "durationSeconds"),
        ({"workloadIdentity": IDENTITY | {"serviceAccount": "No Account"}}, "serviceAccount"),
        ({"workloadIdentity": {"serviceAccount": "store"}}, "roleArn"),
    ],
)
def test_a_store_without_one_way_in_is_refused(s3: dict[str, Any], problem: str) -> None:
    manifest = copy.deepcopy(MANIFEST)
    manifest["spec"]["storage"] = {"s3": {"endpoint": "http://minio:9000", "bucket": "rollouts", **s3}}
    assert problem in str(check(manifest))
