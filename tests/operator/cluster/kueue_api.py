"""Kueue on an API server for tests: CRDs with the documented shape of what is used, and a thread that answers as the stand-in decides.

With `SHOAL_TEST_KUEUE=PROGRAM` a real Kueue takes their place: the program gets the path of an administrator's kubeconfig, installs Kueue there and
runs it until it is told to stop. Queues are made through the API server either way.
"""

import os
import subprocess
import threading
from datetime import UTC, datetime
from typing import Any

import httpx
from control_plane import install
from foreign_kinds import CONDITION, definition, fields, is_installed, remove
from kube_client import KUEUE, Kube, Object, Refused
from kueue_stand_in import World, next_statuses

from servers import wait_until

LOOK_SECONDS = 0.1
GROUP = "kueue.x-k8s.io"
OPEN: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
NAME: Object = {"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
COUNT: Object = {"type": "integer", "format": "int32", "minimum": 0}
RESERVED = "has({0}.status) && has({0}.status.conditions) && {0}.status.conditions.exists(c, c.type == 'QuotaReserved' && c.status == 'True')"


def _named(items: Object, most: int, key: str = "name") -> Object:
    return {
        "type": "array",
        "maxItems": most,
        "items": items,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": [key],
    }


POD_SET = fields(
    ["template"],
    name={**NAME, "default": "main"},
    count={**COUNT, "default": 1},
    minCount={**COUNT, "minimum": 1},
    template=OPEN,
) | {
    "x-kubernetes-validations": [
        {"rule": "!has(self.minCount) || self.minCount <= self.count", "message": "minCount is at most count"}
    ]
}
ASSIGNMENT = fields(
    ["name"],
    name=NAME,
    count=COUNT,
    flavors={"type": "object", "additionalProperties": {"type": "string"}},
    resourceUsage={"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}},
)
WORKLOAD = fields(
    [],
    spec=fields(
        [],
        queueName={"type": "string", "maxLength": 253},
        priority={"type": "integer", "format": "int32"},
        active={"type": "boolean", "default": True},
        podSets=_named(POD_SET, 8) | {"minItems": 1},
    ),
    status=fields(
        [],
        conditions=_named(CONDITION, 16, "type"),
        admission=fields(["clusterQueue"], clusterQueue={"type": "string"}, podSetAssignments=_named(ASSIGNMENT, 8)),
        requeueState=fields([], count=COUNT, requeueAt={"type": "string", "format": "date-time"}),
        admissionChecks=_named(
            fields(
                ["name", "state", "lastTransitionTime", "message"],
                name={"type": "string"},
                state={"type": "string", "enum": ["Pending", "Ready", "Retry", "Rejected"]},
                message={"type": "string"},
                lastTransitionTime={"type": "string", "format": "date-time"},
                podSetUpdates={"type": "array", "maxItems": 8, "items": OPEN},
            ),
            8,
        ),
    ),
) | {
    "x-kubernetes-validations": [
        {
            "rule": f"!({RESERVED.format('oldSelf')}) || !({RESERVED.format('self')}) || self.spec.queueName == oldSelf.spec.queueName",
            "message": "queueName is immutable while workload quota reserved",
        }
    ]
}
"""What v1beta2 documents of a Workload, as far as the operator writes or reads it. Eight sets were the most when v1beta2 came."""


CRDS = [
    definition(KUEUE, "Workload", WORKLOAD),
    definition(KUEUE, "LocalQueue", fields(["spec"], spec=fields(["clusterQueue"], clusterQueue={"type": "string"}))),
    definition(KUEUE, "ClusterQueue", fields([], spec=OPEN), scope="Cluster"),
    definition(KUEUE, "ResourceFlavor", fields([], spec=OPEN), scope="Cluster"),
]


class KueueApi:
    """`start`, then queues as one makes them for Kueue, `close` at the end."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.program = os.environ.get("SHOAL_TEST_KUEUE")
        """What runs a real Kueue; None for the stand-in."""
        self._process: subprocess.Popen[bytes] | None = None
        self.checks: dict[str, Object] = {}
        self.looks = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kueue", daemon=True)

    def start(self) -> None:
        if self.program is None:
            install(self.kube, CRDS)
            self._thread.start()
        else:
            self._process = subprocess.Popen([self.program, str(self.kube.kubeconfig)])
            wait_until("Kueue to be installed", lambda: is_installed(self.kube, "Workload"), 300.0)

    def close(self) -> None:
        """Stop; the stand-in takes its CRDs away again with all queues."""
        self._stop.set()
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60.0)
        elif self._thread.is_alive():
            self._thread.join(10.0)
            remove(self.kube, CRDS)

    def queue(
        self,
        namespace: str,
        gpus: int,
        name: str = "research",
        labels: dict[str, str] | None = None,
        *,
        cpus: int = 1000,
        **spec: Any,
    ) -> None:
        """A LocalQueue with a ClusterQueue of its own: so many GPUs and CPUs of one flavour, and room for everything else."""
        own = f"{namespace}-{name}"
        resources = [
            {"name": "nvidia.com/gpu", "nominalQuota": gpus},
            {"name": "cpu", "nominalQuota": cpus},
            {"name": "memory", "nominalQuota": "10Ti"},
        ]
        covered = [each["name"] for each in resources]
        group = {"coveredResources": covered, "flavors": [{"name": own, "resources": resources}]}
        flavor = (
            {"nodeLabels": labels, "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]}
            if labels
            else {}
        )
        self._apply("ResourceFlavor", own, flavor)
        self._apply("ClusterQueue", own, {"namespaceSelector": {}, "resourceGroups": [group], **spec})
        self._apply("LocalQueue", name, {"clusterQueue": own}, namespace=namespace)

    def _apply(self, kind: str, name: str, spec: Object, **metadata: str) -> None:
        version = KUEUE.removeprefix("/apis/")
        self.kube.apply(
            {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}, force=True
        )

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            try:
                self._look()
                self.looks += 1
            except (Refused, httpx.HTTPError):
                pass  # written by another meanwhile, or the CRDs are going: looked at again

    def _look(self) -> None:
        found = [self.kube.list(kind) for kind in ("LocalQueue", "ClusterQueue", "ResourceFlavor", "Workload")]
        for live, status in next_statuses(World(*found, self.checks), datetime.now(UTC)):
            metadata = live["metadata"]
            body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": status}
            self.kube.merge("Workload", metadata["name"], metadata["namespace"], body, sub="status", manager="kueue")
