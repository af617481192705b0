"""A newer release of the operator takes a run over under way: whose images are said in its spec stays as it is, others get the release's."""

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import at_version, holds, put, running, status
from tools.docs.ports import everything

from servers import ROOT
from shoal_operator.children import names

POD_KINDS = ("Deployment", "StatefulSet", "Job")
OF_THIS_RELEASE = dict(names.IMAGES)
OF_THE_NEXT = {role: image.replace(names.SOFTWARE_VERSION, "9.9.9") for role, image in names.IMAGES.items()}
PARTS = {"ui": {}, "validator": {}, "relayServer": {"replicas": 2}, "inferencePools": [{"name": "pool"}]}


def images_in(made: dict[str, Any]) -> set[str]:
    pod = made["spec"]["template"]["spec"]
    return {each["image"] for each in [*pod.get("initContainers", []), *pod["containers"]]}


def claims(cluster: MemoryCluster) -> dict[str, str]:
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in cluster.objects.find("PersistentVolumeClaim")}


def live_pods(cluster: MemoryCluster) -> dict[str, dict[str, Any]]:
    return {
        f"{kind}/{each['metadata']['name']}": copy.deepcopy(each)
        for kind in POD_KINDS
        for each in cluster.objects.find(kind)
    }


@pytest.fixture
def upgrade(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it: from then on the operator is of the next release."""
    return lambda: monkeypatch.setattr(names, "IMAGES", OF_THE_NEXT)


def test_every_container_of_a_run_names_an_image_of_the_release() -> None:
    named: set[str] = set()
    for made in everything():
        if made["kind"] in POD_KINDS:
            named |= images_in(made)
    assert named == set(OF_THIS_RELEASE.values())


def test_a_run_that_pins_its_images_is_not_touched_by_another_release(
    cluster: MemoryCluster, upgrade: Callable[[], None]
) -> None:
    put(cluster, images=OF_THIS_RELEASE, **PARTS)
    running(cluster, version=2)
    before = live_pods(cluster)
    assert len(before) > 6
    cluster.writes.clear()
    upgrade()
    cluster.settle()
    assert (cluster.writes, cluster.objects.deleting()) == ([], [])
    assert live_pods(cluster) == before


def test_the_documented_patch_pins_the_images_of_this_release() -> None:
    [pinned] = re.findall(r'"images":(\{[^}]*\})', (ROOT / "docs" / "journeys" / "my-cluster.md").read_text())
    assert json.loads(pinned) == OF_THIS_RELEASE


def test_pinning_the_running_images_changes_no_pod(cluster: MemoryCluster, upgrade: Callable[[], None]) -> None:
    put(cluster, **PARTS)
    running(cluster, version=2)
    before = live_pods(cluster)
    put(cluster, images=OF_THIS_RELEASE, **PARTS)
    cluster.settle()
    upgrade()
    cluster.settle()
    after = live_pods(cluster)
    assert {name: each["spec"] for name, each in after.items()} == {name: each["spec"] for name, each in before.items()}
    assert cluster.objects.deleting() == []


def test_a_run_without_pinned_images_gets_the_releases_and_a_new_trainer_attempt(
    cluster: MemoryCluster, upgrade: Callable[[], None]
) -> None:
    put(cluster, **PARTS)
    running(cluster, version=2)
    volumes = claims(cluster)
    assert {"sums-store", "sums-outbox"} <= set(volumes)
    before = live_pods(cluster)
    upgrade()
    cluster.settle()
    # The trainer's Job cannot be changed: it is deleted, and its pods end before the next attempt begins.
    assert [each["metadata"]["name"] for each in cluster.objects.deleting()] == ["sums-trainer-1"]
    assert "Ready" not in holds(cluster)
    cluster.pods_end()
    cluster.settle()
    cluster.pods_start()
    cluster.settle()
    after = live_pods(cluster)
    assert set(after) == {*before, "Job/sums-trainer-2"} - {"Job/sums-trainer-1"}
    for name, made in after.items():
        assert images_in(made) <= set((OF_THIS_RELEASE if name == "Job/sums-prepare" else OF_THE_NEXT).values()), name
    assert after["Job/sums-prepare"] == before["Job/sums-prepare"], "what was prepared stays"
    # What the next attempt goes on from: the volumes, and the version that was reached; it is no failure.
    assert claims(cluster) == volumes
    assert status(cluster)["trainer"] == {"attempt": 2, "startedAtVersion": 2, "failures": 0, "lastFailed": 0}
    at_version(cluster, 3)
    cluster.settle()
    assert "Ready" in holds(cluster)
