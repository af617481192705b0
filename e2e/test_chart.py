"""`helm install` on real nodes: the operator becomes Ready, leads, survives its leader, and goes again."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.space import Space, condition
from helm import CHART, run_helm

INSTALL_SECONDS = 180


class Release:
    """The release `shoal` in the namespace of one test, which serves that namespace only."""

    def __init__(self, space: Space, folder: Path) -> None:
        self.space = space
        self._folder = folder

    def helm(self, *arguments: str) -> str:
        where = ("--kubeconfig", str(self.space.kubeconfig), "--namespace", self.space.name)
        return run_helm(*arguments, *where, folder=self._folder)

    def install(self, *options: str) -> str:
        """Install and wait as a person does, with Helm's own --wait."""
        return self.helm(
            "upgrade", "--install", "shoal", str(CHART), "--take-ownership", "--wait", "--timeout", f"{INSTALL_SECONDS}s",
            "--set", f"operator.namespaces={{{self.space.name}}}", *self._images(), *options,
        )  # fmt: skip

    def _images(self) -> list[str]:
        options = []
        for field, role in (
            ("operator.image", "operator"),
            ("minio.image", "minio"),
            ("minio.client.image", "protocol"),
        ):
            repository, _, tag = self.space.image(role).rpartition(":")
            options += ["--set", f"{field}.repository={repository}", "--set-string", f"{field}.tag={tag}"]
        return options

    def ready_pods(self) -> list[str]:
        """Pods of the operator that are Ready and not on their way out."""
        pods = self.space.kube.list("Pod", self.space.name, labels="app.kubernetes.io/name=shoal-operator")
        return [
            pod["metadata"]["name"]
            for pod in pods
            if condition(pod, "Ready") and "deletionTimestamp" not in pod["metadata"]
        ]

    def leader(self) -> str:
        """The pod that holds the Lease, or an empty text."""
        lease = self.space.kube.get("Lease", "shoal-operator", self.space.name) or {}
        return (lease.get("spec") or {}).get("holderIdentity") or ""


@pytest.fixture
def release(space: Space, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Release]:
    made = Release(space, tmp_path)
    yield made
    if not request.config.getoption("--keep-cluster"):
        made.helm("uninstall", "shoal", "--ignore-not-found", "--no-hooks", "--wait")


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
