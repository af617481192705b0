"""A namespace for one test, on a real cluster: what a test applies there, runs there and waits for.

Waits have deadlines, and when one passes, the failure says what the namespace looks like. `probe_pod` is a pod of the operator's image (it has
Python) that stays until it is deleted; `reaches` asks from inside such a pod.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
from kube_client import Kube

from e2e.artifacts import pod_errors
from e2e.kubectl import run_kubectl
from servers import wait_until

Object = dict[str, Any]
Value = TypeVar("Value")

POD_SECONDS = 90.0
"""From an accepted pod to a ready one, with the image there; three seconds on a quiet machine."""
PATIENCE = float(os.environ.get("E2E_PATIENCE", "1"))
"""All deadlines of tests are so many times as long: for a machine that has other work."""
STEADY_TRIES = 3
"""How often in a row a thing must hold that shall hold from now on."""

STAY = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); signal.pause()"
CONNECT = """import socket, sys
host, port, tries = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
address = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4]
for _ in range(tries):
    try:
        socket.create_connection(address, timeout=1).close()
        print('yes')
    except OSError:
        print('no')
"""
FETCH = """import sys, urllib.error, urllib.request
headers = {'Authorization': 'Bearer ' + sys.argv[2]} if sys.argv[2] else {}
try:
    answer = urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers=headers, method=sys.argv[3]), timeout=20)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status)
print(answer.read().decode())
"""
SERVE = """import functools, http.server
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory='/shoal/tmp')
http.server.ThreadingHTTPServer(('', {port}), handler).serve_forever()
"""

SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 23456,  # not the image's own: any uid must do
    "runAsGroup": 23456,
    "fsGroup": 23456,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY = {
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}


@dataclass(frozen=True)
class Space:
    """A namespace under the restricted pod security standard. `image("operator")` names an image of ours as this cluster knows it."""

    kube: Kube
    name: str
    kubeconfig: Path
    image: Callable[[str], str]

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """kubectl in this namespace."""
        return run_kubectl(self.kubeconfig, "--namespace", self.name, *arguments, text=text)

    def apply(self, *objects: Object) -> None:
        """Apply objects, in this namespace."""
        for made in objects:
            made["metadata"]["namespace"] = self.name
            self.kube.apply(made, force=True)

    def gpus(self) -> int:
        """The most GPUs that one node of the cluster has."""
        return max(int(node["status"]["allocatable"].get("nvidia.com/gpu", 0)) for node in self.kube.list("Node"))

    def probe_pod(
        self, name: str, labels: dict[str, str] | None = None, *, serves: int | None = None, **spec: Any
    ) -> Object:
        """A pod that stays, or an HTTP server on port `serves`, named `http`. `spec` are further fields of the pod."""
        container: Object = {
            "name": "probe",
            "image": self.image("operator"),
            "imagePullPolicy": "IfNotPresent",
            "command": ["python", "-c", STAY if serves is None else SERVE.format(port=serves)],
            "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
            "securityContext": CONTAINER_SECURITY,
            "volumeMounts": [{"name": "tmp", "mountPath": "/shoal/tmp"}],
        }
        if serves is not None:
            container["ports"] = [{"name": "http", "containerPort": serves}]
            container["readinessProbe"] = {"tcpSocket": {"port": "http"}, "periodSeconds": 1}
        volumes = [{"name": "tmp", "emptyDir": {}}, *spec.pop("volumes", [])]
        container["volumeMounts"] += spec.pop("mounts", [])
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name, **(labels or {})}},
            "spec": {
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 2,
                "securityContext": SECURITY,
                "containers": [container],
                "volumes": volumes,
                **spec,
            },
        }

    def wait(self, what: str, poll: Callable[[], Value | None], seconds: float = POD_SECONDS) -> Value:
        """The first value of `poll` that is neither None nor False; afterwards the test fails with what is wrong with the pods here.

        Until then an API server that does not answer is asked again.
        """
        end = time.monotonic() + seconds * PATIENCE
        while time.monotonic() < end:
            value: Value | None = None
            with contextlib.suppress(httpx.TransportError):
                value = poll()
            if value is not None and value is not False:
                return value
            time.sleep(0.2)
        wrong = [text for pod in self.kube.list("Pod", self.name) for text in pod_errors(pod)]
        found: Value = wait_until("; ".join([what, *wrong]), poll, seconds=0.0)
        return found

    def wait_ready(self, *pods: str, seconds: float = POD_SECONDS) -> None:
        """Until these pods are Ready."""
        for name in pods:
            found = partial(self.kube.get, "Pod", name, self.name)
            self.wait(f"pod {name} to be Ready", lambda found=found: condition(found(), "Ready"), seconds)  # type: ignore[misc]  # mypy infers no default

    def address(self, pod: str) -> str:
        """The pod's own address."""
        found = self.kube.get("Pod", pod, self.name)
        assert found is not None
        return str(found["status"]["podIP"])

    def run(self, pod: str, *command: str) -> str:
        """What a command prints inside a pod. Raises RuntimeError when it fails."""
        return self.kubectl("exec", pod, "--", *command).strip()

    def reaches(self, pod: str, host: str, port: int) -> bool:
        """Whether a connection from inside the pod is taken. Raises RuntimeError for a name that is not known: that is no closed door."""
        return self._connections(pod, host, port, 1) == ["yes"]

    def wait_reach(self, pod: str, host: str, port: int, *, can: bool, seconds: float = 30.0) -> None:
        """Until the pod reaches, or does not reach, that port; then it must stay so for some tries."""
        verb = "can" if can else "cannot"
        self.wait(f"pod {pod} {verb} reach {host}:{port}", lambda: self.reaches(pod, host, port) is can, seconds)
        seen = self._connections(pod, host, port, STEADY_TRIES)
        assert seen == ["yes" if can else "no"] * STEADY_TRIES, (
            f"{pod} {verb} reach {host}:{port} at first, then {seen}"
        )

    def fetch(self, pod: str, url: str, token: str, method: str = "GET") -> tuple[int, Object]:
        """Status and JSON of a request from inside the pod, with a bearer token where one is given; what is not 200 counts as empty."""
        status, _, body = self.run(pod, "python", "-c", FETCH, url, token, method).partition("\n")
        return int(status), json.loads(body) if status == "200" else {}

    def _connections(self, pod: str, host: str, port: int, tries: int) -> list[str]:
        return self.run(pod, "python", "-c", CONNECT, host, str(port), str(tries)).split()


def condition(found: Object | None, name: str) -> bool:
    """Whether an object's condition is True."""
    conditions = ((found or {}).get("status") or {}).get("conditions") or []
    return any(each["type"] == name and each["status"] == "True" for each in conditions)
