"""Placement and quota on several nodes: a queue's flavour, the cluster's scheduler and our operator together, on nodes that KWOK plays."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kube_client import Kube
from kueue_api import KueueApi
from kueue_stand_in import requests

from e2e import clusters, identity_store
from e2e.fake_nodes import LABEL, fake_nodes
from e2e.queues import kueue, queue_rights
from e2e.release import Release
from e2e.space import Object, Space
from e2e.story import Story
from servers import Loopback
from shoal_operator.engine.conditions import is_true

__all__ = ["kueue"]

RUN = "placed"
TRAINER, WORKERS = 2, 4
"""GPUs: those of the trainer in one pod, and one of each worker. Together more than one node has."""
NODES = {"h100": (2, 4), "a100": (2, 8)}
"""Of each kind, how many nodes with how many GPUs. The larger ones are not the queue's."""


@pytest.fixture
def nodes(kube: Kube, cluster: clusters.Cluster, tmp_path: Path) -> Iterator[list[str]]:
    if isinstance(cluster, clusters.GivenCluster):
        pytest.skip("nodes that run nothing are no guests for somebody's cluster")
    with closing(Loopback()) as loopback:
        address = loopback.address()
        with fake_nodes(kube, tmp_path, f"{address}:{loopback.port(address)}", **NODES) as names:
            yield names


def run(space: Space) -> Object:
    """A run of six GPUs. Nobody has its images: pods that ask for nothing are on the node that is real, and do not start."""
    images = dict.fromkeys(("protocol", "redis", "relay", "trainer", "validator", "worker"), "shoal/none:0")
    spec = {
        "model": {"generated": {"name": "arithmetic"}},
        "tasks": {"environment": "arithmetic", "count": 64},
        "images": images,
        "queueName": "research",
        "steps": 1,
        "storage": identity_store.storage(space),
        "trainer": {"gpu": {"count": TRAINER}, "resources": {"requests": {"cpu": "1"}}},
        "inferencePools": [{"name": "pool", "replicas": WORKERS, "gpu": {"count": 1}}],
    }
    return {"apiVersion": "shoal.dev/v1alpha1", "kind": "TrainingRun", "metadata": {"name": RUN}, "spec": spec}


def gpus(space: Space) -> Counter[str]:
    """GPUs of the run's pods by their node; those of pods that no node has taken under an empty name."""
    found: Counter[str] = Counter()
    for pod in space.kube.list("Pod", space.name, labels=f"shoal.dev/run={RUN}"):
        if pod["status"]["phase"] not in ("Succeeded", "Failed"):
            found[pod["spec"].get("nodeName", "")] += requests(pod["spec"]).get("nvidia.com/gpu", 0) // 1000
    return +found


def test_a_runs_gpus_are_taken_within_quota_on_nodes_of_its_flavor_and_given_back(
    space: Space, kueue: KueueApi, nodes: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    story = Story(space, Release(space, tmp_path), run=RUN)
    all_gpus = TRAINER + WORKERS
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": identity_store.ACCOUNT}}

    def queue(count: int) -> None:
        kueue.queue(space.name, count, labels={LABEL: "h100"})

    def placed() -> bool:
        there = gpus(space)
        assert there.total() <= all_gpus
        return there.total() == all_gpus and "" not in there

    with queue_rights(space.kube, space.name):
        try:
            story.release.install("--set", "operator.replicas=1")
            queue(all_gpus - 1)
            space.apply(account, run(space))
            # Prepare asks for the trainer's CPU and no GPU: it is admitted, and its pod ends on a node of the flavour.
            story.wait("prepare to have ended", lambda: story.holds("Prepared"), 120.0)
            short = "insufficient unused quota for nvidia.com/gpu"
            story.wait("the queue to be short of a GPU", lambda: short in story.condition("Queued")["message"], 60.0)
            assert gpus(space) == Counter()

            queue(all_gpus)
            story.wait("all pods with GPUs to be placed", placed, 120.0)
            on = gpus(space)
            assert set(on) == {"fake-h100-0", "fake-h100-1"}, "the GPUs of one node are not enough"
            assert max(on.values()) <= NODES["h100"][1]

            change = {"spec": {"active": False}}
            space.kube.merge("Workload", f"{RUN}-workload", space.name, change)

            def given_back() -> bool:
                live = space.kube.get("Workload", f"{RUN}-workload", space.name) or {"status": {}}
                reserved = is_true(live, "QuotaReserved")
                assert reserved or not gpus(space), "quota is back, and there are pods with GPUs"
                return not reserved

            story.wait("the quota to be back", given_back, 120.0)
        finally:
            if not request.config.getoption("--keep-cluster"):
                story.release.uninstall()
