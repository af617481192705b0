"""A run in Kueue's queue whose parts name a scheduler that has queues too."""

from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import put, said

from shoal_operator.engine.cluster import ClusterError
from shoal_operator.reconcile import reconcile

POOL: dict[str, Any] = {"name": "pool", "podTemplate": {"schedulerName": "volcano"}}


def test_a_run_in_two_queues_is_refused_with_the_remedy_and_makes_nothing(cluster: MemoryCluster) -> None:
    trainer = {"podTemplate": {"schedulerName": "yunikorn"}}
    put(cluster, queueName="research", inferencePools=[POOL], trainer=trainer)
    with pytest.raises(ClusterError):
        reconcile(cluster, "TrainingRun", "sums")
    found = said(cluster, "Ready")
    assert found["reason"] == "TwoSchedulers"
    assert found["message"] == (
        "spec.queueName is research, so Kueue admits the run, and spec.inferencePools[0].podTemplate.schedulerName is volcano,"
        " spec.trainer.podTemplate.schedulerName is yunikorn, which has queues of its own: pods could wait for both forever. Take spec.queueName"
        " out, or name no scheduler that has queues"
    )
    assert cluster.objects.find("ConfigMap") == []


@pytest.mark.parametrize(
    "spec",
    [
        {"inferencePools": [POOL]},
        {
            "queueName": "research",
            "inferencePools": [{"name": "pool", "podTemplate": {"schedulerName": "packs-nodes"}}],
        },
    ],
    ids=["no queue", "a scheduler without queues"],
)
def test_one_queue_alone_is_fine(cluster: MemoryCluster, spec: dict[str, Any]) -> None:
    put(cluster, **spec)
    reconcile(cluster, "TrainingRun", "sums")
    assert said(cluster, "Ready")["reason"] != "TwoSchedulers"


def test_a_run_that_stands_goes_on(cluster: MemoryCluster) -> None:
    put(cluster, inferencePools=[POOL])
    reconcile(cluster, "TrainingRun", "sums")
    put(cluster, queueName="research", inferencePools=[POOL])
    reconcile(cluster, "TrainingRun", "sums")
    assert said(cluster, "Ready")["reason"] != "TwoSchedulers"
