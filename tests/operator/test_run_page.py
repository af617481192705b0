"""The page of a run (`spec.ui`): which objects it is, what it may reach, what it is told of the parts, and that no run waits for it."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml
from memory_cluster import MemoryCluster
from run_story import MANIFEST, holds, prepared, put, running, said, status

from shoal.contracts.run_parts import PartState, RunParts
from shoal.ui.access import checked_token
from shoal_operator.api import TrainingRun
from shoal_operator.api.manifest import check
from shoal_operator.children.ui import parts_map
from shoal_operator.engine.api_server import ApiError
from shoal_operator.engine.cluster import ClusterError
from shoal_operator.local.limits import for_one_machine
from shoal_operator.reconcile import reconcile

GOLDEN = Path(__file__).parent.parent / "golden" / "trainingrun"
OBJECTS = [("Deployment", "sums-ui"), ("Service", "sums-ui"), ("NetworkPolicy", "sums-ui"), ("ConfigMap", "sums-parts")]


def told(cluster: MemoryCluster) -> dict[str, PartState]:
    """What the page is told, by name of the part."""
    found = cluster.get("ConfigMap", "sums-parts")
    assert found is not None
    parts = RunParts.from_json(found["data"]["parts.json"])
    assert parts.run == "sums"
    return {part.name: part for part in parts.parts}


def token(cluster: MemoryCluster) -> str:
    found = cluster.get("Secret", "sums-ui-token")
    assert found is not None
    assert found["immutable"] is True
    return base64.b64decode(found["data"]["token"]).decode()


def page_built(case: str, kind: str, name: str = "sums-ui") -> dict[str, Any]:
    objects = yaml.safe_load_all((GOLDEN / case / "out.yaml").read_text())
    return next(each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))


def test_a_run_has_no_page_unless_it_asks_for_one(cluster: MemoryCluster) -> None:
    put(cluster)
    running(cluster)
    assert [cluster.get(kind, name) for kind, name in (*OBJECTS, ("Secret", "sums-ui-token"))] == [None] * 5
    assert "UiReady" not in {each["type"] for each in status(cluster)["conditions"]}


def test_the_page_gets_every_part_and_then_only_changes(cluster: MemoryCluster) -> None:
    put(cluster, ui={})
    running(cluster)
    parts = told(cluster)
    assert {"sums-orchestrator", "sums-redis", "sums-relay", "sums-validator", "sums-pool", "sums-ui"} <= parts.keys()
    assert all(part.ready for part in parts.values()), parts
    assert parts["sums-ui"].message == "1 of 1 pods are ready"
    before = len(cluster.writes)
    cluster.settle()
    assert len(cluster.writes) == before, "nothing changed, and nothing is written"
    cluster.objects.set_status(
        "StatefulSet", "sums-redis", {"replicas": 1, "readyReplicas": 0, "observedGeneration": 1}
    )
    cluster.settle()
    redis = told(cluster)["sums-redis"]
    assert (redis.component, redis.ready, redis.pods_ready, redis.pods_desired) == ("Redis", False, 0, 1)


def test_the_page_gets_the_state_while_the_run_waits_for_something(cluster: MemoryCluster) -> None:
    put(cluster, ui={})
    running(cluster)
    put(cluster, ui={}, validatorRef="others")
    cluster.settle()
    assert "Ready" not in holds(cluster)
    assert told(cluster)["others"].message == "others does not exist"


def test_the_page_learns_about_a_refused_child_and_starts_without_its_config_map(
    cluster: MemoryCluster,
) -> None:
    put(cluster, ui={})
    prepared(cluster)
    cluster.objects.remove("ConfigMap", "sums-parts")
    cluster.objects.remove("StatefulSet", "sums-redis")
    cluster.refuses["StatefulSet/sums-redis"] = ApiError("no more pods for this team", 403, "Forbidden")
    with pytest.raises(ClusterError, match="no more pods"):
        reconcile(cluster, "TrainingRun", "sums")
    assert told(cluster)["sums-redis"].message == "sums-redis does not exist"
    assert said(cluster, "Ready")["message"] == "no more pods for this team"
    pod = cluster.get("Deployment", "sums-ui")["spec"]["template"]["spec"]
    [sources] = [volume["projected"]["sources"] for volume in pod["volumes"] if volume["name"] == "config"]
    assert [(each["configMap"]["name"], each["configMap"].get("optional", False)) for each in sources] == [
        ("sums-config", False),
        ("sums-parts", True),
    ]


def test_a_run_continues_without_its_page(cluster: MemoryCluster) -> None:
    put(cluster, ui={})
    running(cluster)
    assert said(cluster, "UiReady")["status"] == "True"
    cluster.objects.set_status("Deployment", "sums-ui", {"replicas": 1, "readyReplicas": 0, "observedGeneration": 1})
    cluster.settle()
    assert said(cluster, "UiReady")["status"] == "False"
    assert "Ready" in holds(cluster)
    assert status(cluster)["phase"] == "Running"


def test_the_token_is_made_once_is_valid_and_is_made_again_after_deletion(
    cluster: MemoryCluster,
) -> None:
    put(cluster, ui={})
    running(cluster)
    first = token(cluster)
    assert checked_token(first, Path("token")) == first
    cluster.settle()
    assert token(cluster) == first
    cluster.delete("Secret", "sums-ui-token")
    cluster.pods_end()
    cluster.settle()
    assert token(cluster) != first


def test_removing_the_page_deletes_it_and_nothing_else(cluster: MemoryCluster) -> None:
    put(cluster, ui={"exposure": {"type": "Ingress", "domain": "runs.example.org"}})
    running(cluster)
    kinds = ("Deployment", "Service", "NetworkPolicy", "ConfigMap", "Ingress", "StatefulSet", "InferencePool")
    before = {kind: set(cluster.names(kind)) for kind in kinds}
    assert "sums-ui-public" in before["Ingress"]
    put(cluster)
    running(cluster)
    gone = {kind: before[kind] - set(cluster.names(kind)) for kind in kinds}
    assert gone == {
        "Deployment": {"sums-ui"},
        "Service": {"sums-ui", "sums-ui-public"},
        "NetworkPolicy": {"sums-ui"},
        "ConfigMap": {"sums-parts"},
        "Ingress": {"sums-ui-public"},
        "StatefulSet": set(),
        "InferencePool": set(),
    }
    assert cluster.get("Secret", "sums-ui-token") is not None, (
        "what was handed out is good again when the page comes back"
    )


def test_a_suspended_run_has_no_page_at_work_and_a_complete_one_has(cluster: MemoryCluster) -> None:
    put(cluster, ui={})
    running(cluster)
    put(cluster, ui={}, suspend=True)
    cluster.settle()
    assert cluster.get("Deployment", "sums-ui")["spec"]["replicas"] == 0
    put(cluster, ui={})
    running(cluster, version=4)
    assert "Complete" in holds(cluster)
    assert cluster.get("Deployment", "sums-ui")["spec"]["replicas"] == 1


def test_the_page_cannot_write_the_store_and_holds_no_key_of_a_role() -> None:
    pod = page_built("page", "Deployment")["spec"]["template"]["spec"]
    [store] = [volume for volume in pod["volumes"] if volume["name"] == "store"]
    assert store["persistentVolumeClaim"] == {"claimName": "sums-store", "readOnly": True}
    [mount] = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "store"]
    assert mount["readOnly"] is True
    [secret] = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
    assert secret == "sums-ui-token"
    assert pod["automountServiceAccountToken"] is False


def test_the_page_has_a_readers_credentials_where_the_run_gives_them() -> None:
    pod = page_built("page_s3", "Deployment")["spec"]["template"]["spec"]
    [sources] = [volume["projected"]["sources"] for volume in pod["volumes"] if volume["name"] == "secrets"]
    assert [source["secret"]["name"] for source in sources] == ["sums-ui-token", "rollout-reader"]
    manifest = next(yaml.safe_load_all((GOLDEN / "page_s3" / "in.yaml").read_text()))
    del manifest["spec"]["ui"]["credentialsSecret"]
    found, _ = check(manifest)
    assert isinstance(found, TrainingRun)
    from shoal_operator.children.ui import ui_children

    pod = ui_children(found, 1, "0" * 16)[1]["spec"]["template"]["spec"]
    [sources] = [volume["projected"]["sources"] for volume in pod["volumes"] if volume["name"] == "secrets"]
    assert [source["secret"]["name"] for source in sources] == ["sums-ui-token", "rollout-store"]


def test_only_the_cluster_reaches_the_page_unless_it_is_exposed_and_strangers_code_never_does() -> None:
    inside = page_built("page", "NetworkPolicy")["spec"]
    assert inside["ingress"] == [
        {"from": [{"namespaceSelector": {}}], "ports": [{"protocol": "TCP", "port": 8082}]}
    ]  # fmt: skip
    [orchestrator, names] = inside["egress"]
    assert orchestrator["to"][0]["podSelector"]["matchLabels"]["shoal.dev/component"] == "orchestrator"
    assert {port["port"] for port in names["ports"]} == {53, 5353}
    assert page_built("page_s3", "NetworkPolicy")["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8082}]}]
    for case in ("page", "page_s3"):
        allowed = page_built(case, "NetworkPolicy", "sums-pool")["spec"]["egress"]
        reached = {
            each["podSelector"]["matchLabels"]["shoal.dev/component"] for rule in allowed for each in rule.get("to", [])
        }
        assert reached == {"discovery", "orchestrator", "relay"}
        assert 8082 not in {port["port"] for rule in allowed for port in rule["ports"]}


def test_a_run_without_a_page_lets_no_page_call_its_orchestrator() -> None:
    policy = page_built("running", "NetworkPolicy", "sums-orchestrator")["spec"]
    callers = [each["podSelector"]["matchLabels"].get("shoal.dev/component") for each in policy["ingress"][0]["from"]]
    assert "ui" not in callers


def test_more_parts_than_the_page_lists_are_cut() -> None:
    part = PartState(component="InferencePool", name="p", ready=True, pods_ready=1, pods_desired=1, reason="PodsReady")
    made = parts_map("sums", [part] * 200)
    assert len(RunParts.from_json(made["data"]["parts.json"]).parts) == 128


def test_on_one_machine_the_program_is_the_page() -> None:
    run = TrainingRun.model_validate({**MANIFEST, "spec": MANIFEST["spec"] | {"ui": {}}})
    assert for_one_machine(run).spec.ui is None


@pytest.mark.parametrize(
    ("ui", "words"),
    [
        ({"replicas": 2}, "spec.ui"),
        (
            {"exposure": {"type": "NodePort", "nodeAddress": "n.example.org", "tlsSecret": "t"}},
            "does not speak TLS itself",
        ),
        ({"credentialsSecret": "reader"}, "spec.ui.credentialsSecret"),
        ({"credentialsSecret": "Reader!"}, "spec.ui.credentialsSecret"),
    ],
    ids=["replicas", "TLS without an Ingress", "credentials for a folder", "no name"],
)
def test_an_impossible_page_is_refused_with_the_fields_path(ui: dict[str, Any], words: str) -> None:
    _, mistakes = check({**MANIFEST, "spec": MANIFEST["spec"] | {"ui": ui}})
    assert any(words in str(mistake) for mistake in mistakes), mistakes


def test_a_pool_cannot_take_the_pages_name() -> None:
    _, mistakes = check({**MANIFEST, "spec": MANIFEST["spec"] | {"inferencePools": [{"name": "ui"}]}})
    assert any("must not be the name of another part" in str(mistake) for mistake in mistakes), mistakes
