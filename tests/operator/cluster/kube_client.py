"""What a test does to an API server: raw JSON over HTTP, by kind and name. Independent of the operator's own client on purpose.

A `Kube` speaks for the user of one kubeconfig file. Errors of the server are `Refused` with its status and message.
"""

import base64
import json
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import yaml

Object = dict[str, Any]

SECONDS = 30.0
"""Deadline of a call: an API server that was just started on two busy cores may take some."""

SHOAL = "/apis/shoal.dev/v1alpha1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
LWS = "/apis/leaderworkerset.x-k8s.io/v1"
GATEWAY = "/apis/gateway.networking.k8s.io/v1"
RESOURCES: dict[str, tuple[str, str]] = {
    "Namespace": ("/api/v1", "namespaces"),
    "Node": ("/api/v1", "nodes"),
    "Pod": ("/api/v1", "pods"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "Service": ("/api/v1", "services"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims"),
    "PersistentVolume": ("/api/v1", "persistentvolumes"),
    "StorageClass": ("/apis/storage.k8s.io/v1", "storageclasses"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "ReplicaSet": ("/apis/apps/v1", "replicasets"),
    "ControllerRevision": ("/apis/apps/v1", "controllerrevisions"),
    "Job": ("/apis/batch/v1", "jobs"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "Ingress": ("/apis/networking.k8s.io/v1", "ingresses"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "ResourceQuota": ("/api/v1", "resourcequotas"),
    "LimitRange": ("/api/v1", "limitranges"),
    "PriorityClass": ("/apis/scheduling.k8s.io/v1", "priorityclasses"),
    "RuntimeClass": ("/apis/node.k8s.io/v1", "runtimeclasses"),
    "ValidatingWebhookConfiguration": (ADMISSION, "validatingwebhookconfigurations"),
    "ValidatingAdmissionPolicy": (ADMISSION, "validatingadmissionpolicies"),
    "ValidatingAdmissionPolicyBinding": (ADMISSION, "validatingadmissionpolicybindings"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "Event": ("/apis/events.k8s.io/v1", "events"),
    "CustomResourceDefinition": ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "TrainingRun": (SHOAL, "trainingruns"),
    "InferencePool": (SHOAL, "inferencepools"),
    "RelayServer": (SHOAL, "relayservers"),
    "Validator": (SHOAL, "validators"),
    "ScaledObject": ("/apis/keda.sh/v1alpha1", "scaledobjects"),
    "HTTPRoute": (GATEWAY, "httproutes"),
    "LeaderWorkerSet": (LWS, "leaderworkersets"),
    "Workload": (KUEUE, "workloads"),
    "LocalQueue": (KUEUE, "localqueues"),
    "ClusterQueue": (KUEUE, "clusterqueues"),
    "ResourceFlavor": (KUEUE, "resourceflavors"),
}
"""Where each kind lives: prefix and plural."""

CLUSTER_SCOPED = {
    "Namespace",
    "Node",
    "PersistentVolume",
    "StorageClass",
    "PriorityClass",
    "RuntimeClass",
    "ValidatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "ClusterQueue",
    "ResourceFlavor",
}

APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"


class Refused(RuntimeError):
    """The API server said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Kube:
    """A client as the user of `kubeconfig`'s current context."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        cluster, user = _context(yaml.safe_load(kubeconfig.read_text()), kubeconfig.parent)
        self.server: str = cluster["server"].rstrip("/")
        headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        self.http = httpx.Client(
            base_url=self.server,
            headers=headers,
            verify=_tls(cluster, user),
            timeout=SECONDS,
            trust_env=False,
            limits=httpx.Limits(max_connections=100),
        )

    def close(self) -> None:
        self.http.close()

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str | int] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """One request. Raises `Refused` for any status of 400 and above, `httpx.TransportError` when nobody answers."""
        answer = self.http.request(
            method,
            path,
            content=None if body is None else json.dumps(body),
            params=params,
            headers={"Content-Type": content_type, "Accept": "application/json"},
        )
        if answer.status_code >= 400:
            try:
                message = answer.json().get("message", answer.text)
            except ValueError:
                message = answer.text
            raise Refused(answer.status_code, message)
        try:
            found = answer.json()
        except ValueError:
            return {"text": answer.text}
        return found if isinstance(found, dict) else {"value": found}

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """The object, or None."""
        try:
            return self.call("GET", path_of(kind, namespace, name))
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def list(self, kind: str, namespace: str | None = None, labels: str = "") -> list[Object]:
        """Objects by selector; of all namespaces when none is given. `kind` and `apiVersion` are filled in, as single objects have them."""
        found = self.call("GET", path_of(kind, namespace), params={"labelSelector": labels} if labels else None)
        group = found["apiVersion"]
        return [{"apiVersion": group, "kind": kind, **item} for item in found["items"]]

    def create(self, made: Object, *, dry_run: bool = False) -> Object:
        """POST the object."""
        path = path_of(made["kind"], made["metadata"].get("namespace"))
        return self.call("POST", path, made, params={"dryRun": "All"} if dry_run else None)

    def apply(self, made: Object, *, manager: str = "tester", force: bool = False, dry_run: bool = False) -> Object:
        """Server-side apply."""
        params: dict[str, str | int] = {"fieldManager": manager, "force": str(force).lower()}
        if dry_run:
            params["dryRun"] = "All"
        path = path_of(made["kind"], made["metadata"].get("namespace"), made["metadata"]["name"])
        return self.call("PATCH", path, made, params=params, content_type=APPLY)

    def merge(
        self, kind: str, name: str, namespace: str | None, patch: Object, *, sub: str = "", manager: str = "tester"
    ) -> Object:
        """Merge patch of the object, or of its subresource `sub` (`status`, `scale`)."""
        path = path_of(kind, namespace, name) + (f"/{sub}" if sub else "")
        return self.call("PATCH", path, patch, params={"fieldManager": manager}, content_type=MERGE)

    def delete(
        self, kind: str, name: str, namespace: str | None = None, *, propagation: str | None = None, now: bool = False
    ) -> None:
        """Delete; with `now`, without the grace that a pod has. One that is gone already is fine."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if propagation:
            options["propagationPolicy"] = propagation
        if now:
            options["gracePeriodSeconds"] = 0
        try:
            self.call("DELETE", path_of(kind, namespace, name), options)
        except Refused as refused:
            if refused.status != 404:
                raise

    def watch(self, kind: str, version: str, seconds: int = 60) -> Iterator[Object]:
        """Events of a kind in all namespaces after a resource version, until the server ends the watch."""
        params: dict[str, str | int] = {"watch": 1, "resourceVersion": version, "timeoutSeconds": seconds}
        with self.http.stream("GET", path_of(kind, None), params=params, timeout=seconds + SECONDS) as answer:
            if answer.status_code >= 400:
                raise Refused(answer.status_code, "watch refused")
            for line in answer.iter_lines():
                yield json.loads(line)

    def is_ready(self) -> bool:
        """Whether the API server says that it is ready."""
        try:
            return self.http.get("/readyz", timeout=2.0).status_code == 200
        except httpx.TransportError:
            return False


def path_of(kind: str, namespace: str | None, name: str = "") -> str:
    """The path of a kind's collection, or of one object."""
    prefix, plural = RESOURCES[kind]
    within = "" if namespace is None or kind in CLUSTER_SCOPED else f"/namespaces/{namespace}"
    return f"{prefix}{within}/{plural}" + (f"/{name}" if name else "")


def _context(config: Object, folder: Path) -> tuple[Object, Object]:
    def named(kind: str, name: str) -> Object:
        return next(each for each in config[f"{kind}s"] if each["name"] == name)[kind]

    context = named("context", config["current-context"])
    cluster, user = named("cluster", context["cluster"]), named("user", context["user"])
    for part in (cluster, user):
        for key in ("certificate-authority", "client-certificate", "client-key"):
            if key in part:
                part[f"{key}-data"] = base64.b64encode((folder / part[key]).read_bytes()).decode()
    return cluster, user


def _tls(cluster: Object, user: Object) -> ssl.SSLContext:
    authority = cluster.get("certificate-authority-data")
    context = ssl.create_default_context(cadata=base64.b64decode(authority).decode() if authority else None)
    if "client-certificate-data" in user:
        # The ssl module reads a client's certificate from files only.
        with tempfile.TemporaryDirectory() as folder:
            certificate, key = Path(folder, "crt"), Path(folder, "key")
            key.touch(mode=0o600)
            certificate.write_bytes(base64.b64decode(user["client-certificate-data"]))
            key.write_bytes(base64.b64decode(user["client-key-data"]))
            context.load_cert_chain(certificate, key)
    return context


_numbers = count(1)


def make_namespace(kube: Kube) -> str:
    """A namespace in which only pods under the `restricted` pod security standard are admitted."""
    name = f"t{next(_numbers)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    return name
