"""`helm install` on real nodes: the operator becomes Ready, leads, survives its leader, and goes again."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e import clusters
from e2e.release import Release
from e2e.space import Space


@pytest.fixture
def release(space: Space, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Release]:
    made = Release(space, tmp_path)
    yield made
    if not request.config.getoption("--keep-cluster"):
        made.uninstall()


def test_helm_install_brings_two_ready_operators_of_which_one_leads_and_helm_test_passes(release: Release) -> None:
    release.install()
    assert len(release.ready_pods()) == 2
    leader = release.space.wait("a leader", release.leader, 60.0)
    assert any(pod in leader for pod in release.ready_pods())
    assert "Phase:          Succeeded" in release.helm("test", "shoal", "--timeout", "120s")
    for pod in release.space.kube.list("Pod", release.space.name):
        assert [each["restartCount"] for each in pod["status"]["containerStatuses"]] == [0]


def test_when_the_leading_pod_is_deleted_the_other_leads(release: Release) -> None:
    release.install()
    leader = release.space.wait("a leader", release.leader, 60.0)
    pod = next(each for each in release.ready_pods() if each in leader)
    release.space.kube.delete("Pod", pod, release.space.name)
    release.space.wait("another leader", lambda: release.leader() not in ("", leader), 60.0)
    release.space.wait("two Ready pods again", lambda: len(release.ready_pods()) == 2)


def test_an_object_of_ours_that_is_applied_gets_a_status_that_says_what_is_missing(release: Release) -> None:
    release.install()
    space = release.space
    space.apply(
        {
            "apiVersion": "shoal.dev/v1alpha1",
            "kind": "RelayServer",
            "metadata": {"name": "lonely"},
            "spec": {"run": "nobody"},
        }
    )

    def told() -> bool:
        found = space.kube.get("RelayServer", "lonely", space.name) or {}
        conditions = (found.get("status") or {}).get("conditions") or []
        return any(each["type"] == "Ready" and each["status"] == "False" for each in conditions)

    space.wait("the relay to be told that its run is not there", told, 30.0)


def test_the_charts_own_object_store_comes_up_with_its_bucket(
    release: Release, need_images: Callable[..., None]
) -> None:
    need_images("minio", "protocol")
    release.install(
        "--set", "minio.enabled=true", "--set", "minio.persistence.size=1Gi", "--set", "operator.replicas=1"
    )
    space = release.space
    store = space.kube.get("StatefulSet", "shoal-minio", space.name)
    assert store is not None
    assert store["status"]["readyReplicas"] == 1
    claims = space.kube.list("PersistentVolumeClaim", space.name)
    assert [each["status"]["phase"] for each in claims] == ["Bound"]
    # Helm removes the Job that made the bucket only once it has succeeded.
    assert [job["metadata"]["name"] for job in space.kube.list("Job", space.name)] == []


def test_helm_uninstall_keeps_the_kinds_and_what_is_of_them_unless_told_otherwise(
    release: Release, cluster: clusters.Cluster
) -> None:
    if isinstance(cluster, clusters.GivenCluster):
        pytest.skip("it would end every run of a cluster that is somebody's")
    space = release.space

    def kinds() -> int:
        return len(space.kube.list("CustomResourceDefinition", labels="app.kubernetes.io/part-of=shoal"))

    lonely = {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "RelayServer",
        "metadata": {"name": "lonely"},
        "spec": {"run": "nobody"},
    }
    release.install("--set", "operator.replicas=1")
    space.apply(lonely)
    release.uninstall()
    assert kinds() == 4
    assert space.kube.get("RelayServer", "lonely", space.name) is not None

    release.install("--set", "operator.replicas=1", "--set", "crds.keep=false")
    assert space.kube.get("RelayServer", "lonely", space.name) is not None
    release.uninstall()
    space.wait("the kinds to be gone", lambda: kinds() == 0)
