"""A real control plane for tests: etcd, kube-apiserver with RBAC and pod security, kube-controller-manager, each a process on one
loopback address.

`find_programs` looks for the programs; `ControlPlane` starts, freezes, kills, restarts and stops them by pid. There is no node:
`hollow_node.py` plays the kubelet. `kubeconfig` is an administrator's; `account_kubeconfig` makes one for a service account. Every
request of a service account outside kube-system is in the audit log (`kube_audit.py`).
"""

import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from kube_client import Kube
from kube_pki import Authority, signing_key

from servers import ROOT, Server, lacking, wait_until

ETCD_BYTES = 8 << 30
"""Of its store: the benchmark of 3,000 runs needs more than the 2 GiB that it has otherwise."""
ETCD_PORT, PEER_PORT, API_PORT, CONTROLLERS_PORT = 2379, 2380, 6443, 10257
START_SECONDS = 90.0
"""Eight seconds on two quiet cores."""

CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "deployment-controller",
    "disruption-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "persistentvolumeclaim-protection-controller",
    "replicaset-controller",
    "serviceaccount-controller",
    "statefulset-controller",
    "ttl-after-finished-controller",
)
"""What acts on the objects that the operator makes. Those of nodes are left out: a hollow node has no kubelet that renews its lease."""

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}


def find_programs() -> Path:
    """The folder with kube-apiserver, kube-controller-manager, etcd and kubectl: `KUBEBUILDER_ASSETS`, or what `make tools` built."""
    given = os.environ.get("KUBEBUILDER_ASSETS")
    if given:
        # envtest's own archives hold no kube-controller-manager: without it nothing is collected and no pod is made.
        wanted = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
        absent = [name for name in wanted if not Path(given, name).exists()]
        if absent:
            lacking(f"{', '.join(absent)} in KUBEBUILDER_ASSETS={given}", "run `make tools` and unset it")
        return Path(given)
    found = subprocess.run(
        [ROOT / "tools/build.sh", "--path", "kubernetes"], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        lacking("a Kubernetes control plane", found.stderr.strip() or "run `make tools`, it builds the pinned one")
    return Path(found.stdout.strip())


@dataclass
class ControlPlane:
    """One control plane, not yet started. All its files lie in `folder`."""

    address: str
    folder: Path
    programs: Path
    etcd: Server = field(init=False)
    api_server: Server = field(init=False)
    controllers: Server = field(init=False)
    kubeconfig: Path = field(init=False)
    audit_log: Path = field(init=False)
    authority: Authority = field(init=False)

    def __post_init__(self) -> None:
        for name in ("pki", "etcd", "api", "controllers"):
            (self.folder / name).mkdir()
        self.authority = Authority(self.folder / "pki")
        self.audit_log = self.folder / "audit.log"
        self.kubeconfig = self._kubeconfig("admin", self.authority.client("admin", "system:masters"))
        self.etcd = Server(self._etcd_command(), self.address, ETCD_PORT, self.folder / "etcd")
        self.api_server = Server(self._api_command(), self.address, API_PORT, self.folder / "api")
        self.controllers = Server(
            self._controllers_command(), self.address, CONTROLLERS_PORT, self.folder / "controllers"
        )

    @property
    def url(self) -> str:
        return f"https://{self.address}:{API_PORT}"

    def start(self, crds: list[dict[str, Any]]) -> None:
        """Start everything. The CRDs are installed before the controllers: the garbage collector looks for new kinds at its start, then each 30 s."""
        self.etcd.start()
        self.start_api_server()
        kube = Kube(self.kubeconfig)
        try:
            install(kube, crds)
            self.controllers.start()
            wait_until("the default service account", lambda: kube.get("ServiceAccount", "default", "default"), 60.0)
        finally:
            kube.close()

    def start_api_server(self) -> None:
        """Start the API server, after `api_server.kill()` too, and wait until it is ready."""
        self.api_server.start()
        kube = Kube(self.kubeconfig)
        try:
            wait_until("the API server's /readyz", kube.is_ready, START_SECONDS, interval=0.1)
        finally:
            kube.close()

    def stop(self) -> None:
        """End all processes at once: an API server that is asked waits for its watches, and nothing here is kept."""
        for server in (self.controllers, self.api_server, self.etcd):
            if server.process is not None:
                server.kill()

    def kubectl(self, *arguments: str, kubeconfig: Path | None = None, check: bool = True) -> str:
        """What kubectl prints; as the administrator unless told otherwise. Fails with what it says."""
        done = subprocess.run(
            [self.programs / "kubectl", *arguments],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder),
                "KUBECONFIG": str(kubeconfig or self.kubeconfig),
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout + ("" if check else done.stderr)

    def account_kubeconfig(self, kube: Kube, namespace: str, name: str, server: str | None = None) -> Path:
        """A kubeconfig with a token of a service account; `server` is another way to the API server, such as a fault proxy."""
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 24 * 3600},
        }
        made = kube.call("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", request)
        path = self.folder / f"{namespace}-{name}-{time.monotonic_ns()}.kubeconfig"
        return self._write_kubeconfig(path, {"token": made["status"]["token"]}, server or self.url, namespace)

    def _kubeconfig(self, name: str, client: tuple[Path, Path]) -> Path:
        certificate, key = client
        user = {"client-certificate": str(certificate), "client-key": str(key)}
        return self._write_kubeconfig(self.folder / f"{name}.kubeconfig", user, self.url, "default")

    def _write_kubeconfig(self, path: Path, user: dict[str, str], server: str, namespace: str) -> Path:
        cluster = {"server": server, "certificate-authority": str(self.authority.certificate)}
        path.touch(mode=0o600)
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": "test", "user": user}],
                    "contexts": [
                        {"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}
                    ],
                    "current-context": "test",
                }
            )
        )
        return path

    def _etcd_command(self) -> list[str]:
        client, peer = f"http://{self.address}:{ETCD_PORT}", f"http://{self.address}:{PEER_PORT}"
        return [
            str(self.programs / "etcd"),
            "--name=test",
            f"--data-dir={self.folder / 'etcd' / 'data'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=test={peer}",
            f"--quota-backend-bytes={ETCD_BYTES}",
            "--unsafe-no-fsync",  # only a machine that loses power would notice
            "--logger=zap",
            "--log-level=warn",
        ]

    def _api_command(self) -> list[str]:
        pki = self.folder / "pki"
        certificate, key = self.authority.server(
            "apiserver", [self.address, "10.96.0.1"], ["kubernetes.default.svc", "localhost"]
        )
        signing, public = signing_key(pki)
        policy = self.folder / "audit.yaml"
        policy.write_text(yaml.safe_dump(AUDIT_POLICY))
        return [
            str(self.programs / "kube-apiserver"),
            f"--etcd-servers=http://{self.address}:{ETCD_PORT}",
            f"--bind-address={self.address}",
            f"--secure-port={API_PORT}",
            f"--cert-dir={pki}",
            f"--client-ca-file={self.authority.certificate}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={signing}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--endpoint-reconciler-type=none",  # a loopback address may not be the endpoint of Service kubernetes
            "--authorization-mode=RBAC",
            # Some clusters have it on: who sets blockOwnerDeletion must then have permission for the owner.
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
            "--profiling=false",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log}",
        ]

    def _controllers_command(self) -> list[str]:
        pki = self.folder / "pki"
        user = "system:kube-controller-manager"
        kubeconfig = self._kubeconfig("controllers", self.authority.client(user))
        return [
            str(self.programs / "kube-controller-manager"),
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            f"--bind-address={self.address}",
            f"--secure-port={CONTROLLERS_PORT}",
            f"--cert-dir={pki}",
            f"--root-ca-file={self.authority.certificate}",
            f"--service-account-private-key-file={pki / 'service-accounts.key'}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--profiling=false",
            f"--controllers={','.join(CONTROLLERS)}",
            # The default of 20 requests a second for each controller is for clusters with many of them.
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ]


def shipped_crds() -> list[dict[str, Any]]:
    """The CRDs in `crds/`, as a user installs them."""
    return [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]


def older_crds() -> list[dict[str, Any]]:
    """The CRDs as they were once."""
    return [yaml.safe_load(path.read_text()) for path in sorted((Path(__file__).parent / "older_crds").glob("*.yaml"))]


def install(kube: Kube, crds: list[dict[str, Any]]) -> None:
    """Apply CRDs as `kubectl apply --server-side --force-conflicts -f crds/` does, and wait until they are served."""
    for crd in crds:
        kube.apply(crd, manager="installer", force=True)
    for crd in crds:
        name = crd["metadata"]["name"]

        def is_served(name: str = name) -> bool:
            found = kube.get("CustomResourceDefinition", name) or {}
            conditions = found.get("status", {}).get("conditions") or []
            return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

        wait_until(f"CRD {name} to be established", is_served, 30.0, interval=0.05)
