"""The chart's release `shoal` in one namespace, as a person installs, upgrades and removes it with Helm."""

from dataclasses import dataclass
from pathlib import Path

from e2e.space import Space, condition
from helm import CHART, run_helm

INSTALL_SECONDS = 280
NAME = "shoal"
OPERATOR_LABEL = "app.kubernetes.io/name=shoal-operator"


@dataclass(frozen=True)
class Release:
    """The release in the namespace of `space`, which it serves alone. `folder` is for Helm's own files."""

    space: Space
    folder: Path

    def helm(self, *arguments: str) -> str:
        """Helm in this namespace, as the administrator of the cluster."""
        where = ("--kubeconfig", str(self.space.kubeconfig), "--namespace", self.space.name)
        return str(run_helm(*arguments, *where, folder=self.folder))

    def install(self, *options: str) -> str:
        """Install or upgrade, and wait as a person does, with Helm's own --wait."""
        return self.helm(
            "upgrade", "--install", NAME, str(CHART), "--take-ownership", "--wait", "--timeout", f"{INSTALL_SECONDS}s",
            "--set", f"operator.namespaces={{{self.space.name}}}", *self._images(), *options,
        )  # fmt: skip

    def uninstall(self) -> None:
        """Remove it; one that is not there is fine."""
        self.helm("uninstall", NAME, "--ignore-not-found", "--no-hooks", "--wait")

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
        pods = self.space.kube.list("Pod", self.space.name, labels=OPERATOR_LABEL)
        return [
            pod["metadata"]["name"]
            for pod in pods
            if condition(pod, "Ready") and "deletionTimestamp" not in pod["metadata"]
        ]

    def leader(self) -> str:
        """The pod that holds the Lease, or an empty text."""
        lease = self.space.kube.get("Lease", "shoal-operator", self.space.name) or {}
        return (lease.get("spec") or {}).get("holderIdentity") or ""
