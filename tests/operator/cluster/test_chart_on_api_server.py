"""The Helm chart on a real API server: installed, upgraded, tested for what it leaves behind. Hooks need nodes: e2e/ runs them."""

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane, install, older_crds, shipped_crds
from kube_client import Kube

from helm import CHART, run_helm
from servers import wait_until


class Release:
    """A release `shoal` in the namespace of one test, which serves that namespace only."""

    def __init__(self, kubeconfig: Path, namespace: str, folder: Path) -> None:
        self.namespace = namespace
        self._where = ("--kubeconfig", str(kubeconfig), "--namespace", namespace)
        self._folder = folder

    def helm(self, *arguments: str) -> str:
        return run_helm(*arguments, *self._where, folder=self._folder)

    def apply(self, verb: str, *options: str, chart: Path = CHART) -> str:
        """Install or upgrade; CRDs that are there already, not by Helm, are taken over."""
        return self.helm(
            verb, "shoal", str(chart), "--take-ownership", "--no-hooks", "--set", f"operator.namespaces={{{self.namespace}}}", *options
        )  # fmt: skip


@pytest.fixture
def release(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Release]:
    made = Release(control_plane.kubeconfig, namespace, tmp_path)
    yield made
    made.helm("uninstall", "shoal", "--ignore-not-found", "--no-hooks")


@pytest.fixture
def older_chart(kube: Kube, tmp_path: Path) -> Iterator[Path]:
    """A chart with the CRDs of once, which the API server has too, and with another default; afterwards the CRDs are today's."""
    chart = tmp_path / "older" / "shoal"
    shutil.copytree(CHART, chart)
    shutil.rmtree(chart / "files" / "crds")
    shutil.copytree(Path(__file__).parent / "older_crds", chart / "files" / "crds")
    values = (chart / "values.yaml").read_text()
    assert "\n  workers: 4\n" in values
    (chart / "values.yaml").write_text(values.replace("\n  workers: 4\n", "\n  workers: 3\n"))
    install(kube, older_crds())
    yield chart
    install(kube, shipped_crds())


def crd_specs(kube: Kube) -> dict[str, Any]:
    return {each["metadata"]["name"]: each["spec"] for each in kube.list("CustomResourceDefinition")}


def workers(kube: Kube, namespace: str) -> str:
    [container] = kube.get("Deployment", "shoal-operator", namespace)["spec"]["template"]["spec"]["containers"]
    return str(container["args"][container["args"].index("--workers") + 1])


def keys(kube: Kube, namespace: str) -> tuple[str, str]:
    data = kube.get("Secret", "shoal-storage", namespace)["data"]
    return base64.b64decode(data["accessKey"]).decode(), base64.b64decode(data["secretKey"]).decode()


def test_the_chart_is_installed_into_a_restricted_namespace_and_says_what_to_do_next(
    release: Release, kube: Kube, namespace: str
) -> None:
    said = release.apply("install", "--set", "minio.enabled=true")
    notes = said[said.index("NOTES:") :]
    assert f"endpoint: http://shoal-minio.{namespace}.svc:9000" in notes
    assert "bucket: rollouts" in notes
    assert "credentialsSecret: shoal-storage" in notes
    assert f"it serves {namespace}" in notes
    assert keys(kube, namespace)[1] not in said

    def admitted() -> bool:
        pods = kube.list("Pod", namespace)
        of = [pod["metadata"]["labels"]["app.kubernetes.io/name"] for pod in pods]
        return sorted(of) == ["minio", "shoal-operator", "shoal-operator"]

    wait_until("two pods of the operator and MinIO's are admitted under the restricted standard", admitted, 30.0)


def test_a_second_release_serves_other_namespaces_beside_the_first(
    control_plane: ControlPlane, release: Release, kube: Kube, namespace: str, tmp_path: Path
) -> None:
    release.apply("install")
    other = f"{namespace}-other"
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}})
    second = Release(control_plane.kubeconfig, other, tmp_path)
    chosen = (
        "--set",
        f"operator.namespaces={{{other}}}",
        "--set",
        "people.enabled=false",
        "--set",
        "crds.enabled=false",
    )
    try:
        second.helm("install", "shoal", str(CHART), "--no-hooks", *chosen)
        for own in (namespace, other):
            roles = {each["metadata"]["name"] for each in kube.list("Role", own)}
            assert "shoal-operator" in roles, "each serves its own namespace"
    finally:
        second.helm("uninstall", "shoal", "--ignore-not-found", "--no-hooks")
        kube.delete("Namespace", other)
    assert "REVISION: 1" in release.helm("status", "shoal")
    assert crd_specs(kube), "the first one's CRDs and runs stand"
    assert kube.get("Role", "shoal-operator", namespace)


def test_an_upgrade_keeps_the_keys_that_were_made_and_changes_what_was_asked(
    release: Release, kube: Kube, namespace: str
) -> None:
    release.apply("install", "--set", "minio.enabled=true")
    made = keys(kube, namespace)
    assert len(made[0]) == 20
    assert len(made[1]) == 40
    release.apply(
        "upgrade",
        "--set",
        "minio.enabled=true",
        "--set",
        "operator.replicas=3",
        "--set",
        "minio.resources.limits.memory=3Gi",
    )
    assert keys(kube, namespace) == made
    assert kube.get("Deployment", "shoal-operator", namespace)["spec"]["replicas"] == 3
    assert "REVISION: 2" in release.helm("status", "shoal")


def test_an_upgrade_from_an_older_chart_brings_its_crds_and_defaults_and_keeps_objects_and_what_was_asked(
    older_chart: Path, release: Release, kube: Kube, namespace: str
) -> None:
    said = release.apply("install", "--set", "operator.replicas=1", chart=older_chart)
    assert "No disruption budget: with operator.replicas=1" in said
    older = crd_specs(kube)
    assert workers(kube, namespace) == "3"
    lonely = kube.create(
        {
            "apiVersion": "shoal.dev/v1alpha1",
            "kind": "RelayServer",
            "metadata": {"name": "lonely", "namespace": namespace},
            "spec": {"run": "nobody"},
        }
    )
    # As docs/journeys/my-cluster.md says it.
    release.helm("upgrade", "shoal", str(CHART), "--reset-then-reuse-values")
    upgraded = crd_specs(kube)
    install(kube, shipped_crds())
    assert upgraded == crd_specs(kube)
    assert all(upgraded[crd["metadata"]["name"]] != older[crd["metadata"]["name"]] for crd in shipped_crds())
    assert workers(kube, namespace) == "4", "a default of the newer chart counts"
    deployment = kube.get("Deployment", "shoal-operator", namespace)
    assert deployment["spec"]["replicas"] == 1, "what was asked at the install stays"
    assert kube.get("RelayServer", "lonely", namespace)["metadata"]["uid"] == lonely["metadata"]["uid"]
    # Not left to the namespace's end: one that is deleted while the API server takes up a new schema can leave its objects behind.
    kube.delete("RelayServer", "lonely", namespace)
    wait_until("the relay to be gone", lambda: kube.get("RelayServer", "lonely", namespace) is None, 30.0)


def test_an_uninstall_leaves_the_crds_with_every_run_and_nothing_else(
    release: Release, kube: Kube, namespace: str
) -> None:
    release.apply("install")
    assert "These resources were kept" in release.helm("uninstall", "shoal", "--no-hooks")
    assert (
        kube.list("Deployment", namespace) == kube.list("Role", namespace) == kube.list("RoleBinding", namespace) == []
    )
    for plural in ("trainingruns", "inferencepools", "relayservers", "validators"):
        crd = kube.get("CustomResourceDefinition", f"{plural}.shoal.dev")
        assert crd["metadata"]["labels"]["app.kubernetes.io/part-of"] == "shoal"
