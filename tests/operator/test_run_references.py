"""Pools, relays and validators of a run: several of them, those that others made, and those that are no longer wanted."""

from typing import Any

from memory_cluster import MemoryCluster
from run_story import put, replicas, running, said, status

from shoal.contracts.pools import pool_ticket
from shoal.contracts.run import RunConfig
from shoal_operator.engine.api_server import ApiError
from shoal_operator.reconcile import reconcile

BOTH = [{"name": "fast", "replicas": 3}, {"name": "slow", "replicas": 1}]


def other(cluster: MemoryCluster, kind: str, name: str, **spec: Any) -> None:
    """Something that an admin made."""
    made = {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"run": "sums", **spec},
    }
    cluster.objects.apply(made)


def ready(cluster: MemoryCluster, kind: str, name: str) -> dict[str, Any]:
    found = cluster.get(kind, name)
    assert found is not None
    return next(each for each in found["status"]["conditions"] if each["type"] == "Ready")


def config(cluster: MemoryCluster) -> RunConfig:
    found = cluster.get("ConfigMap", "sums-config")
    assert found is not None
    return RunConfig.from_json(found["data"]["run.json"])


# Several pools.


def test_a_run_has_as_many_pools_as_it_lists(cluster: MemoryCluster) -> None:
    put(cluster, inferencePools=BOTH)
    running(cluster)
    assert (replicas(cluster)["sums-fast"], replicas(cluster)["sums-slow"]) == (3, 1)
    assert {each["name"]: (each["ready"], each["desired"]) for each in status(cluster)["components"]} == {
        "Redis": (1, 1), "Discovery": (1, 1), "Orchestrator": (1, 1), "Trainer": (1, 1), "RelayServer": (2, 2),
        "Validator": (1, 1), "InferencePool/sums-fast": (3, 3), "InferencePool/sums-slow": (1, 1),
    }  # fmt: skip


def test_a_pool_that_is_taken_off_the_list_goes_and_others_pools_stay(cluster: MemoryCluster) -> None:
    put(cluster, inferencePools=BOTH)
    other(cluster, "InferencePool", "sums-theirs", pool="theirs")
    running(cluster)
    put(cluster, inferencePools=BOTH[:1])
    cluster.settle()
    going = [each["metadata"]["name"] for each in cluster.objects.deleting() if each["kind"] == "InferencePool"]
    assert going == ["sums-slow"]


def test_one_unready_pool_makes_the_run_unready(cluster: MemoryCluster) -> None:
    put(cluster, inferencePools=BOTH)
    running(cluster)
    cluster.objects.set_status("StatefulSet", "sums-slow", {"replicas": 1, "readyReplicas": 0, "observedGeneration": 1})
    cluster.settle()
    assert said(cluster, "InferencePoolReady")["message"] == "sums-slow: 0 of 1 pods are ready"
    assert said(cluster, "Ready")["message"] == "waits for InferencePool"


def test_a_run_without_pools_is_ready_for_strangers_machines(cluster: MemoryCluster) -> None:
    put(cluster, inferencePools=[])
    running(cluster)
    assert said(cluster, "Ready")["status"] == "True"
    assert said(cluster, "InferencePoolReady")["reason"] == "NoParts"


def test_each_pool_has_a_ticket_that_the_orchestrator_can_derive(cluster: MemoryCluster) -> None:
    import base64

    put(cluster, inferencePools=BOTH)
    running(cluster)

    def entry(secret: str, key: str) -> bytes:
        found = cluster.get("Secret", secret)
        assert found is not None
        return base64.b64decode(found["data"][key])

    run_secret = entry("sums-orchestrator-key", "run_secret")
    for pool in ("fast", "slow"):
        assert bytes.fromhex(entry(f"sums-{pool}-ticket", "ticket").decode()) == pool_ticket(run_secret, pool)


# References.


def test_a_run_waits_for_relays_that_others_are_to_make(cluster: MemoryCluster) -> None:
    put(cluster, relayServerRef="shared")
    cluster.settle()
    assert cluster.names("Job") == []
    assert said(cluster, "Progressing")["message"] == (
        "waits for RelayServer shared (spec.relayServerRef), which does not exist"
    )
    assert said(cluster, "Ready")["message"] == said(cluster, "Progressing")["message"]


def test_relays_of_another_run_are_not_taken(cluster: MemoryCluster) -> None:
    other(cluster, "RelayServer", "shared", run="minus")
    put(cluster, relayServerRef="shared")
    cluster.settle()
    assert "whose spec.run is minus" in said(cluster, "Progressing")["message"]


def test_a_run_uses_relays_and_validators_that_others_made(cluster: MemoryCluster) -> None:
    other(cluster, "RelayServer", "shared", replicas=3, keptVersions=9)
    other(cluster, "Validator", "strict", validation={"proofRowsShare": 1.0})
    put(cluster, relayServerRef="shared", validatorRef="strict")
    running(cluster)
    assert [url.split(".")[0] for url in config(cluster).addresses.relays] == [f"http://shared-{n}" for n in range(3)]
    assert (config(cluster).kept_versions, config(cluster).validation.proof_rows_share) == (9, 1.0)
    assert (replicas(cluster)["shared"], replicas(cluster)["strict"]) == (3, 1)
    assert "sums-relay" not in replicas(cluster)
    assert said(cluster, "Ready")["status"] == "True"


def test_relays_of_the_run_go_when_others_take_their_place(cluster: MemoryCluster) -> None:
    running(cluster)
    other(cluster, "RelayServer", "shared")
    put(cluster, relayServerRef="shared")
    cluster.settle()
    assert ("RelayServer", "sums-relay") in {
        (each["kind"], each["metadata"]["name"]) for each in cluster.objects.deleting()
    }


def test_validators_with_another_spec_than_the_runs_are_not_started(cluster: MemoryCluster) -> None:
    other(cluster, "Validator", "lenient", validation={"proofRowsShare": 0.0})
    running(cluster)
    assert ready(cluster, "Validator", "lenient")["message"] == (
        "TrainingRun sums has a different spec.validation; name this Validator in its spec.validatorRef, "
        "or make the two equal"
    )
    assert "lenient" not in replicas(cluster)


def test_pools_of_others_are_counted_where_the_run_names_them(cluster: MemoryCluster) -> None:
    other(cluster, "InferencePool", "sums-theirs", pool="theirs", replicas=4, open=True)
    put(cluster, inferencePoolRefs=["sums-theirs"])
    running(cluster)
    assert {"name": "InferencePool/sums-theirs", "ready": 4, "desired": 4} in status(cluster)["components"]
    assert [(pool.name, pool.open) for pool in config(cluster).pools] == [("pool", False), ("theirs", True)]
    assert "sums-theirs-ticket" in cluster.names("Secret")


def test_scaling_a_pool_of_others_writes_what_is_that_pools_alone(cluster: MemoryCluster) -> None:
    other(cluster, "InferencePool", "sums-theirs", pool="theirs", replicas=2)
    put(cluster, inferencePoolRefs=["sums-theirs"])
    running(cluster)
    cluster.writes.clear()
    other(cluster, "InferencePool", "sums-theirs", pool="theirs", replicas=5)
    cluster.settle()
    assert replicas(cluster)["sums-theirs"] == 5
    assert {each.partition("/")[2] for each in cluster.writes} == {"sums-theirs", "sums-theirs-release"}
    cluster.writes.clear()
    other(cluster, "InferencePool", "sums-theirs", pool="theirs", replicas=5, open=True)
    cluster.settle()
    assert {"ConfigMap/sums-config", "Secret/sums-release"} <= set(cluster.writes)


def test_an_unnamed_pool_of_the_run_is_admitted_but_not_waited_for(cluster: MemoryCluster) -> None:
    other(cluster, "InferencePool", "sums-theirs", pool="theirs")
    other(cluster, "InferencePool", "minus-pool", run="minus", pool="elsewhere")
    running(cluster)
    cluster.objects.set_status("StatefulSet", "sums-theirs", {"replicas": 2, "readyReplicas": 0})
    cluster.settle()
    assert [pool.name for pool in config(cluster).pools] == ["pool", "theirs"]
    assert "sums-theirs-ticket" in cluster.names("Secret")
    assert said(cluster, "Ready")["status"] == "True"


def test_a_pool_that_is_named_twice_or_is_the_runs_own_is_counted_once(cluster: MemoryCluster) -> None:
    other(cluster, "InferencePool", "sums-theirs", pool="theirs")
    put(cluster, inferencePoolRefs=["sums-theirs", "sums-pool", "sums-theirs"])
    running(cluster)
    counted = [each["name"] for each in status(cluster)["components"]]
    assert len(counted) == len(set(counted)), "an API server refuses a status with two items of one key"
    assert {"InferencePool/sums-pool", "InferencePool/sums-theirs"} <= set(counted)


def test_validators_of_another_store_are_not_started(cluster: MemoryCluster) -> None:
    other(cluster, "Validator", "elsewhere", storage={"prefix": "other"})
    put(cluster, validatorRef="elsewhere")
    running(cluster)
    assert "has a different spec.storage" in ready(cluster, "Validator", "elsewhere")["message"]
    assert "elsewhere" not in replicas(cluster)


def test_a_run_whose_relays_were_taken_away_can_still_be_suspended(cluster: MemoryCluster) -> None:
    other(cluster, "RelayServer", "shared")
    put(cluster, relayServerRef="shared")
    running(cluster)
    cluster.objects.remove("RelayServer", "shared")
    put(cluster, relayServerRef="shared", suspend=True)
    cluster.settle()
    counts = replicas(cluster)
    assert {counts[name] for name in ("sums-pool", "sums-validator", "sums-orchestrator", "sums-redis")} == {0}


def test_a_run_that_is_resumed_without_its_relays_begins_no_attempt_and_says_what_it_waits_for(
    cluster: MemoryCluster,
) -> None:
    other(cluster, "RelayServer", "shared")
    put(cluster, relayServerRef="shared")
    running(cluster)
    cluster.objects.remove("RelayServer", "shared")
    for suspend in (True, False):
        put(cluster, relayServerRef="shared", suspend=suspend)
        cluster.settle()
        cluster.pods_end()
    cluster.settle()
    assert status(cluster)["trainer"]["attempt"] == 1
    problem = "waits for RelayServer shared (spec.relayServerRef), which does not exist"
    assert said(cluster, "Ready")["message"].startswith(f"{problem}; waits for ")
    assert said(cluster, "Progressing")["message"].startswith(problem)
    other(cluster, "RelayServer", "another")
    put(cluster, relayServerRef="another")
    cluster.settle()
    assert "sums-trainer-2" in cluster.names("Job")


# Ways in.


def test_a_removed_exposure_removes_its_objects_and_address(cluster: MemoryCluster) -> None:
    exposed = {"exposure": {"type": "NodePort", "nodeAddress": "nodes.example.org"}}
    put(cluster, relayServer=exposed, controlPlane=exposed)
    running(cluster)
    for name, number in (("sums-relay-0", 30001), ("sums-relay-1", 30002), ("sums-discovery-public", 30003)):
        service = cluster.get("Service", name)
        assert service is not None
        service["spec"]["ports"][0]["nodePort"] = number
        cluster.objects.apply(service)
    cluster.settle()
    assert status(cluster)["endpoint"] == "http://nodes.example.org:30003"
    assert config(cluster).addresses.public_relays == [
        "http://nodes.example.org:30001",
        "http://nodes.example.org:30002",
    ]
    put(cluster)
    cluster.settle()
    cluster.pods_end()
    cluster.settle()
    assert not [name for name in cluster.names("Service") if name.endswith(("-public", "-0", "-1"))]
    assert status(cluster)["endpoint"] == "http://sums-discovery.default.svc:8081"
    assert config(cluster).addresses.public_relays == []


# Volumes.


def claim_made(cluster: MemoryCluster, of_set: str) -> None:
    """The first claim of a StatefulSet's first pod, as its controller makes it."""
    made = cluster.get("StatefulSet", of_set)
    assert made is not None
    template = made["spec"]["volumeClaimTemplates"][0]
    labels = template["metadata"]["labels"] | made["spec"]["selector"]["matchLabels"]
    name = f"{template['metadata']['name']}-{of_set}-0"
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "labels": labels}}
    cluster.objects.apply(claim | {"spec": template["spec"]})


def claim_sizes(cluster: MemoryCluster) -> dict[str, str]:
    found = cluster.objects.find("PersistentVolumeClaim")
    return {each["metadata"]["name"]: each["spec"]["resources"]["requests"]["storage"] for each in found}


def test_claims_grow_with_their_template_and_never_shrink(cluster: MemoryCluster) -> None:
    running(cluster)
    claim_made(cluster, "sums-relay")
    put(cluster, relayServer={"cacheSize": "40Gi"}, trainer={"scratchSize": "40Gi"})
    cluster.settle()
    cluster.settle()
    sizes = claim_sizes(cluster)
    assert (sizes["www-sums-relay-0"], sizes["sums-outbox"]) == ("40Gi", "40Gi")
    put(cluster, relayServer={"cacheSize": "1Gi"}, trainer={"scratchSize": "1Gi"})
    cluster.settle()
    assert claim_sizes(cluster)["sums-outbox"] == "40Gi"


def test_the_claim_of_trackers_grows_and_its_refusal_is_told(cluster: MemoryCluster) -> None:
    put(cluster, trackers={"tensorboard": {}})
    running(cluster)
    claim_made(cluster, "sums-tracker")
    put(cluster, trackers={"tensorboard": {}, "volumeSize": "8Gi"})
    cluster.refuses["PersistentVolumeClaim/tracks-sums-tracker-0"] = ApiError("no resizing", 403)
    reconcile(cluster, "TrainingRun", "sums")
    assert said(cluster, "VolumesReady")["message"] == "claim tracks-sums-tracker-0 cannot grow: no resizing"
    cluster.refuses.clear()
    cluster.settle()
    assert claim_sizes(cluster)["tracks-sums-tracker-0"] == "8Gi"
