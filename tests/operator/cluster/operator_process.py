"""The operator under test: `python -m shoal_operator` as a process of its own, as its own service account with the generated permissions.

`install_operator` applies what `python -m shoal_operator.install` prints (without the Deployment: there are no nodes that could run it);
`OperatorProcess` is one replica.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import yaml
from kube_client import Kube

from servers import PLAIN, ROOT, Loopback, Server, wait_until

OPERATOR_NAMESPACE = "shoal-system"
ACCOUNT = "shoal-operator"
USER = f"system:serviceaccount:{OPERATOR_NAMESPACE}:{ACCOUNT}"
PORT = 8080
PATIENT = 140
"""Seconds of the Lease where failover is not what is tested: the API server of a busy machine needs half a minute to start again."""


def install_operator(kube: Kube, *scope: str) -> None:
    """ServiceAccount and RBAC as `python -m shoal_operator.install <scope>` prints them, in place of those of before."""
    printed = subprocess.run(
        [sys.executable, "-m", "shoal_operator.install", *scope],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout
    for kind in ("ClusterRoleBinding", "ClusterRole", "RoleBinding", "Role"):
        for found in kube.list(kind, labels="app.kubernetes.io/name=shoal-operator"):
            kube.delete(kind, found["metadata"]["name"], found["metadata"].get("namespace"))
    for wanted in yaml.safe_load_all(printed):
        if wanted["kind"] not in ("Deployment", "PodDisruptionBudget"):
            kube.apply(wanted, manager="installer", force=True)


class OperatorProcess(Server):
    """One replica. `start` waits until it is ready; `log` is what it wrote; `metrics` are its figures by name with labels."""

    def __init__(
        self,
        name: str,
        kubeconfig: Path,
        scope: list[str],
        folder: Path,
        loopback: Loopback,
        services: str,
        release: str = "",
        lease_namespace: str = OPERATOR_NAMESPACE,
        patience: float | None = None,
    ) -> None:
        address = loopback.address()
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "shoal_operator", *scope, "--kubeconfig", str(kubeconfig)]
        command += ["--lease-namespace", lease_namespace, "--bind", address, "--port", str(PORT)]
        super().__init__(command, address, PORT, folder)
        self.name = name
        self.environment = {
            "PYTHONPATH": os.pathsep.join(
                [str(Path(__file__).parent / "cluster_dns"), str(ROOT / "operator"), str(ROOT / "workloads")]
            ),
            "SHOAL_TEST_SERVICES": services,
            "SHOAL_TEST_HOME": OPERATOR_NAMESPACE,
            "SHOAL_TEST_RELEASE": release,
            "SHOAL_TEST_PATIENCE": "" if patience is None else str(patience),
            "OMP_NUM_THREADS": "1",
        }

    def start(self) -> None:
        super().start()
        wait_until(f"operator {self.name} to be ready", self.is_ready, 60.0, interval=0.05)

    def is_ready(self) -> bool:
        return self._get("/readyz") == 200

    def is_healthy(self) -> bool:
        return self._get("/healthz") == 200

    def is_leader(self) -> bool:
        return self.metrics().get('leader_election_master_status{name="shoal-operator"}') == 1.0

    def _get(self, path: str) -> int:
        try:
            return httpx.get(f"http://{self.address}:{self.port}{path}", **PLAIN, timeout=5.0).status_code
        except httpx.TransportError:
            return 0

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def metrics(self) -> dict[str, float]:
        """Prometheus figures, `name{labels}` to value; empty while it does not answer."""
        try:
            text = httpx.get(f"http://{self.address}:{self.port}/metrics", **PLAIN, timeout=5.0).text
        except httpx.TransportError:
            return {}
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in lines}


StartOperator = Callable[..., OperatorProcess]
"""The fixture `start_operator`: `start_operator("--namespace", ns, name="a", server=proxy.url)`."""
