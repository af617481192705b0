"""Who owns the replicas of pools, relays and validators: the run's template at first, then `kubectl scale` and autoscalers."""

from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import put, replicas, running

from shoal.contracts.run import RunConfig
from shoal_operator.children.scale import RESUME_REPLICAS, TEMPLATE_REPLICAS, Scale, decide_scale
from shoal_operator.engine.apply import template_hash
from shoal_operator.engine.cluster import Object
from shoal_operator.reconcile.training_run import reconcile_training_run


def live(replicas: int, **annotations: str) -> dict[str, Any]:
    return {"metadata": {"annotations": annotations}, "spec": {"replicas": replicas}}


SCALED_TO_5 = live(5, **{TEMPLATE_REPLICAS: "2"})
STOPPED_AT_5 = live(0, **{TEMPLATE_REPLICAS: "2", RESUME_REPLICAS: "5"})


@pytest.mark.parametrize(
    ("template", "child", "work", "expected"),
    [
        (2, None, True, Scale(2, 2, 2)),
        (2, None, False, Scale(0, 2, 2)),
        (2, SCALED_TO_5, True, Scale(5, 5, 2, asked=False)),
        (3, SCALED_TO_5, True, Scale(3, 3, 3)),
        (2, SCALED_TO_5, False, Scale(0, 5, 2)),
        (2, STOPPED_AT_5, False, Scale(0, 5, 2)),
        (2, STOPPED_AT_5, True, Scale(5, 5, 2)),
        (3, STOPPED_AT_5, True, Scale(3, 3, 3)),
        (2, live(7), True, Scale(2, 2, 2)),
        (2, live(4, **{TEMPLATE_REPLICAS: "2", RESUME_REPLICAS: "many"}), True, Scale(4, 4, 2, asked=False)),
    ],
    ids=[
        "new", "new without work", "scaled by others", "the template changed", "stopped", "still stopped", "resumed",
        "changed while stopped", "nothing remembered", "an annotation that is no number",
    ],
)  # fmt: skip
def test_what_others_set_stands_until_the_template_changes(
    template: int, child: dict[str, Any] | None, work: bool, expected: Scale
) -> None:
    assert decide_scale(template, child, work=work) == expected


def test_replicas_are_not_compared() -> None:
    pool = {"kind": "InferencePool", "metadata": {}, "spec": {"replicas": 2, "run": "sums"}}
    assert template_hash(pool) == template_hash({**pool, "spec": {"replicas": 9, "run": "sums"}})
    workload = {"kind": "StatefulSet", "metadata": {}, "spec": {"replicas": 2}}
    assert template_hash(workload) != template_hash({**workload, "spec": {"replicas": 9}})


def scale(cluster: MemoryCluster, kind: str, name: str, count: int) -> None:
    """`kubectl scale`."""
    found = cluster.get(kind, name)
    assert found is not None
    found["spec"]["replicas"] = count
    cluster.objects.apply(found)


@pytest.mark.parametrize(
    ("kind", "name"), [("InferencePool", "sums-pool"), ("Validator", "sums-validator"), ("RelayServer", "sums-relay")]
)
def test_a_run_does_not_fight_kubectl_scale(cluster: MemoryCluster, kind: str, name: str) -> None:
    running(cluster)
    scale(cluster, kind, name, 6)
    cluster.writes.clear()
    cluster.settle()
    assert replicas(cluster)[name] == 6
    assert f"{kind}/{name}" not in cluster.writes


def test_what_was_scaled_stands_when_something_else_of_the_template_changes(cluster: MemoryCluster) -> None:
    running(cluster)
    scale(cluster, "InferencePool", "sums-pool", 6)
    put(cluster, inferencePools=[{"name": "pool", "replicas": 2, "weightsSize": "40Gi"}])
    cluster.settle()
    assert replicas(cluster)["sums-pool"] == 6


@pytest.mark.parametrize("read", range(1, 5))
@pytest.mark.parametrize("template", [{"replicas": 2}, {"replicas": 2, "weightsSize": "40Gi"}], ids=["same", "edited"])
def test_a_number_written_while_a_reconcile_is_under_way_stands(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, template: dict[str, Any], read: int
) -> None:
    """An autoscaler writes right after the `read`-th time that the pool was looked at."""
    running(cluster)
    scale(cluster, "InferencePool", "sums-pool", 5)
    put(cluster, inferencePools=[{"name": "pool", **template}])
    plain, reads = cluster.get, 0

    def get(kind: str, name: str) -> Object | None:
        nonlocal reads
        found = plain(kind, name)
        if (kind, name) == ("InferencePool", "sums-pool"):
            reads += 1
            if reads == read:
                assert found is not None
                cluster.objects.apply({**found, "spec": {**found["spec"], "replicas": 1}})
        return found

    monkeypatch.setattr(cluster, "get", get)
    cluster.settle()
    assert reads >= read
    assert replicas(cluster)["sums-pool"] == 1


def test_a_pool_deleted_while_a_reconcile_is_under_way_is_made_with_the_templates_number(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(cluster)
    scale(cluster, "InferencePool", "sums-pool", 5)
    put(cluster, inferencePools=[{"name": "pool", "replicas": 2, "weightsSize": "40Gi"}])
    plain, reads = cluster.get, 0

    def get(kind: str, name: str) -> Object | None:
        nonlocal reads
        found = plain(kind, name)
        if (kind, name) == ("InferencePool", "sums-pool"):
            reads += 1
            if reads == 2:  # the first one asks which release made it
                cluster.objects.remove(kind, name)
        return found

    monkeypatch.setattr(cluster, "get", get)
    reconcile_training_run(cluster, "sums")
    assert cluster.objects.get("InferencePool", "sums-pool") is None, "made without a number of the run's"
    reconcile_training_run(cluster, "sums")
    made = cluster.objects.get("InferencePool", "sums-pool")
    assert made is not None
    assert made["spec"]["replicas"] == 2


def test_another_number_in_the_template_wins(cluster: MemoryCluster) -> None:
    running(cluster)
    scale(cluster, "InferencePool", "sums-pool", 6)
    put(cluster, inferencePools=[{"name": "pool", "replicas": 3}])
    cluster.settle()
    assert replicas(cluster)["sums-pool"] == 3


def test_a_resumed_run_has_its_earlier_replicas(cluster: MemoryCluster) -> None:
    running(cluster)
    scale(cluster, "InferencePool", "sums-pool", 6)
    put(cluster, suspend=True)
    cluster.settle()
    assert replicas(cluster)["sums-pool"] == 0
    put(cluster)
    cluster.settle()
    assert replicas(cluster)["sums-pool"] == 6


def test_every_relay_that_exists_is_listed_and_suspension_changes_no_configuration(cluster: MemoryCluster) -> None:
    def config() -> RunConfig:
        found = cluster.get("ConfigMap", "sums-config")
        assert found is not None
        return RunConfig.from_json(found["data"]["run.json"])

    running(cluster)
    scale(cluster, "RelayServer", "sums-relay", 3)
    cluster.settle()
    before = config()
    assert len(before.addresses.relays) == 3
    put(cluster, suspend=True)
    cluster.settle()
    assert config() == before
