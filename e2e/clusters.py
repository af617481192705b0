"""Which cluster the tests run on: one that is given, one of kind's, or a node on this machine. All are loaded with images and closed in the same way.

`choose` decides by `--kubeconfig` and `E2E_CLUSTER`; without either, kind where it and Docker are there, and otherwise this machine.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Protocol

from kube_client import Kube

from e2e.kind import cluster as kind_cluster
from e2e.nodes import host
from e2e.nodes.node import Node

Object = dict[str, Any]


class Cluster(Protocol):
    """A cluster that is up."""

    kubeconfig: Path

    def load(self, archives: list[Path]) -> None:
        """Make these images known to every node."""

    def share_registry(self, host: str) -> str | None:
        """Where a registry of this machine has to listen besides `host`, so that every node reaches it as `host`; None: nodes are elsewhere."""

    def close(self) -> list[str]:
        """Take down what was started. Returns what could not be put back as it was."""


class GivenCluster:
    """Somebody's cluster: it has its images from its registry, and stays as it is. One that has Shoal already is refused: the tests' releases would
    take over its kinds, and leave them to a release that is gone."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        kube = Kube(kubeconfig)
        try:
            problem = in_use(kube.list("CustomResourceDefinition"), kube.list("Namespace"))
        finally:
            kube.close()
        if problem:
            raise RuntimeError(problem)

    def load(self, archives: list[Path]) -> None:
        pass

    def share_registry(self, host: str) -> str | None:
        return None

    def close(self) -> list[str]:
        return []


class LocalCluster:
    """The node on this machine (`e2e.nodes`). One that `--keep-cluster` left behind is used again."""

    def __init__(self, keep: bool) -> None:
        self.keep = keep
        self.node = Node()
        self.kubeconfig = self.node.layout.kubeconfig
        self.before: dict[str, list[str]] | None = None
        if self.node.is_up and self._answers():
            return
        self.node.down()
        self.before = host.snapshot(self.node.layout)
        self.node.up()

    def load(self, archives: list[Path]) -> None:
        for archive in archives:
            self.node.load(archive)

    def share_registry(self, host: str) -> str | None:
        return host

    def close(self) -> list[str]:
        if self.keep:
            return []
        self.node.down()
        return host.differences(self.before, host.snapshot(self.node.layout)) if self.before is not None else []

    def _answers(self) -> bool:
        kube = Kube(self.kubeconfig)
        try:
            return bool(kube.is_ready())
        finally:
            kube.close()


class KindCluster:
    """A cluster of kind's (`e2e.kind`). One that `--keep-cluster` left behind is used again."""

    kubeconfig = kind_cluster.KUBECONFIG

    def __init__(self, keep: bool, folder: Path) -> None:
        self.keep = keep
        self._loaded: set[Path] = set()
        kind_cluster.up(folder / "kind")

    def load(self, archives: list[Path]) -> None:
        for archive in archives:
            if archive not in self._loaded:
                kind_cluster.load([archive])
                self._loaded.add(archive)

    def share_registry(self, host: str) -> str | None:
        return kind_cluster.share_registry(host)

    def close(self) -> list[str]:
        return [] if self.keep else kind_cluster.down()


def in_use(definitions: list[Object], namespaces: list[Object]) -> str:
    """Why these tests must not touch the cluster: whose our kinds are. Empty when they are of nobody, or of a test that is over."""
    tests = {each["metadata"]["name"]: "shoal.dev/e2e" in (each["metadata"].get("labels") or {}) for each in namespaces}
    for found in definitions:
        name = found["metadata"]["name"]
        if not name.endswith(".shoal.dev"):
            continue
        owner = (found["metadata"].get("annotations") or {}).get("meta.helm.sh/release-namespace")
        if owner is None or tests.get(owner) is False:
            whose = "was installed without Helm" if owner is None else f"is of a release in namespace {owner}"
            return (
                f"the cluster has Shoal already: {name} {whose}, and these tests would overwrite it; give a cluster without Shoal,"
                " or uninstall it and delete its CustomResourceDefinitions"
            )
    return ""


def kind_of_cluster(kubeconfig: str | None, environment: dict[str, str], programs: set[str]) -> str:
    """`given`, `kind` or `local`. `programs` are those of kind and docker that work here. Raises ValueError for an unknown E2E_CLUSTER."""
    wanted = environment.get("E2E_CLUSTER", "")
    if kubeconfig:
        if wanted:
            raise ValueError(f"--kubeconfig and E2E_CLUSTER={wanted} name two clusters: give one of them")
        return "given"
    if wanted in ("local", "kind"):
        return wanted
    if wanted:
        raise ValueError(
            f"E2E_CLUSTER={wanted}: known are local (a node on this machine) and kind; for another cluster give --kubeconfig"
        )
    return "kind" if {"kind", "docker"} <= programs else "local"


def choose(kubeconfig: str | None, keep: bool, folder: Path) -> Cluster:
    """The cluster, up. Raises `Lacking` or RuntimeError with the reason, ValueError for bad settings."""
    kind = kind_of_cluster(kubeconfig, dict(os.environ), working_programs())
    if kind == "given":
        return GivenCluster(Path(str(kubeconfig)).resolve())
    return KindCluster(keep, folder) if kind == "kind" else LocalCluster(keep)


def working_programs() -> set[str]:
    """Which of kind and docker work here."""
    found = {name for name in ("kind", "docker") if shutil.which(name)}
    if "docker" in found and subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
        found.remove("docker")
    return found
