"""The node as a whole: up, down, and what lies between. Each start begins with an empty etcd; containerd keeps its images.

Used by `e2e.clusters` and by hand: `python -m e2e.nodes up`. Waits are conditions with deadlines; a program that ends while it is waited for is an
error that quotes its log.
"""

import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from kube_client import Kube, Refused, path_of

from e2e import ROOT
from e2e.nodes import host, images, manifests, settings
from e2e.nodes import layout as at
from e2e.nodes.daemons import Daemon
from e2e.nodes.layout import Layout, built_tool, check_machine

ORDER = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "containerd",
    "kubelet",
    "kube-proxy",
    "agent",
)
UP_SECONDS = 120.0
"""For one step of the start; all of it takes some 25 s on two quiet cores."""

CRI_COMES = "server is not initialized yet"
"""What the kubelet says before it ends when containerd answers and its CRI plugin does not yet."""
PODS_SECONDS = 30.0
"""For all pods to end, at the end."""


class Node:
    """The one node of this machine."""

    def __init__(self, layout: Layout | None = None) -> None:
        self.layout = layout or at.default_layout()
        self.daemons = {name: Daemon(name, self.layout.home / "daemons", self.layout.logs) for name in ORDER}

    @property
    def is_up(self) -> bool:
        """Whether all its programs run."""
        return all(daemon.pid is not None for daemon in self.daemons.values())

    def up(self) -> None:
        """Start it, and wait until it is Ready with DNS. Raises `Lacking` when this machine cannot hold one, RuntimeError with a log otherwise."""
        check_machine()
        self.down()
        for name in ("pki", "etcd", "kubelet", "logs", "pod-logs", "volumes"):
            shutil.rmtree(self.layout.home / name, ignore_errors=True)
        host.prepare(self.layout)
        try:
            self._start()
        except BaseException:
            self.down()
            raise

    def load(self, archive: Path) -> list[str]:
        """Make the images of an archive known to the node. Returns their references."""
        return images.load(self.layout, archive)

    def down(self) -> None:
        """End everything and put the machine back as it was. Nothing to do is fine."""
        for name in ("kube-scheduler", "kube-controller-manager"):
            self.daemons[name].stop()
        self._end_pods()
        for name in ("agent", "kubelet", "kube-proxy"):
            self.daemons[name].stop()
        self._end_containers()
        for name in ("containerd", "kube-apiserver", "etcd"):
            self.daemons[name].stop(20.0)
        if (self.layout.home / "host.json").exists() or self.layout.run.exists():
            host.restore(self.layout)

    def _start(self) -> None:
        credentials = settings.Credentials(self.layout)
        folder = self.layout.folder("archives")
        pause, pause_archive = images.program_image(built_tool("pause"), "pause", folder)
        dns, dns_archive = images.program_image(built_tool("coredns"), "coredns", folder)
        settings.write_all(self.layout, credentials, pause)
        commands = settings.commands(self.layout, credentials, built_tool("kubernetes"))

        self._launch("etcd", commands, _answers(f"http://127.0.0.1:{at.ETCD_PORT}/health"))
        kube = Kube(self.layout.kubeconfig)
        try:
            self._launch("kube-apiserver", commands, kube.is_ready)
            for name in ("kube-controller-manager", "kube-scheduler"):
                self.daemons[name].start(commands[name])
            self._launch("containerd", commands, lambda: bool(images.ctr(self.layout, "version", check=False)))
            self.load(pause_archive)
            self.load(dns_archive)
            self._launch_kubelet(commands, lambda: kube.get("Node", at.NODE_NAME) is not None)
            self.daemons["kube-proxy"].start(commands["kube-proxy"])
            for made in manifests.system(dns):
                kube.apply(made, force=True)
            self.daemons["agent"].start(self._agent(credentials), {"PYTHONPATH": str(ROOT)})
            self._until("kubelet", "the node to be Ready", lambda: _condition(kube.get("Node", at.NODE_NAME), "Ready"))
            self._until(
                "kube-controller-manager",
                "the default service account",
                lambda: kube.get("ServiceAccount", "default", "default") is not None,
            )
            self._until(
                "kubelet",
                "cluster DNS",
                lambda: _condition(kube.get("Deployment", "coredns", "kube-system"), "Available"),
            )
        finally:
            kube.close()

    def _agent(self, credentials: settings.Credentials) -> list[str]:
        return [
            sys.executable,
            "-m",
            "e2e.nodes.agent",
            str(credentials.path("agent")),
            str(self.layout.folder("volumes")),
        ]

    def _launch(self, name: str, commands: dict[str, list[str]], ready: Callable[[], bool]) -> None:
        self.daemons[name].start(commands[name])
        self._until(name, f"{name} to answer", ready)

    def _launch_kubelet(self, commands: dict[str, list[str]], ready: Callable[[], bool]) -> None:
        """Once more where it asked for containerd's CRI plugin too early, and ended: `ctr version` is answered without that plugin."""
        for again in (True, True, False):
            try:
                self._launch("kubelet", commands, ready)
                return
            except RuntimeError as error:
                if not (again and CRI_COMES in str(error)):
                    raise
                self.daemons["kubelet"].stop()
                time.sleep(1.0)

    def _until(self, name: str, what: str, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + UP_SECONDS
        while not ready():
            ended = [each for each, daemon in self.daemons.items() if daemon.has_ended]
            if ended or time.monotonic() > end:
                culprit = ended[0] if ended else name
                reason = "ended" if ended else f"after {UP_SECONDS:.0f} s"
                raise RuntimeError(
                    f"waited for {what}: {culprit} {reason}; its log ends:\n{self.daemons[culprit].tail()}"
                )
            time.sleep(0.1)

    def _end_pods(self) -> None:
        """Let the kubelet end all pods, so that CNI takes down what it made for each. Whatever does not go is killed afterwards."""
        if any(self.daemons[name].pid is None for name in ("etcd", "kube-apiserver", "containerd", "kubelet")):
            return
        kube = Kube(self.layout.kubeconfig)
        end = time.monotonic() + PODS_SECONDS
        try:
            for pod in kube.list("Pod"):
                where = path_of("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
                kube.call("DELETE", where, {"gracePeriodSeconds": 1})
            while kube.list("Pod") and time.monotonic() < end:
                time.sleep(0.2)
        except (Refused, httpx.TransportError):  # an API server that does not answer: the containers are killed
            pass
        finally:
            kube.close()

    def _end_containers(self) -> None:
        """Kill and remove every container of this containerd."""
        if self.daemons["containerd"].pid is None:
            return
        for task in images.ctr(self.layout, "tasks", "list", "-q", check=False).split():
            images.ctr(self.layout, "tasks", "kill", "-a", "-s", str(int(signal.SIGKILL)), task, check=False)
            images.ctr(self.layout, "tasks", "delete", "-f", task, check=False)
        for container in images.ctr(self.layout, "containers", "list", "-q", check=False).split():
            images.ctr(self.layout, "containers", "delete", container, check=False)


def _condition(found: dict[str, Any] | None, name: str) -> bool:
    conditions = ((found or {}).get("status") or {}).get("conditions") or []
    return any(each["type"] == name and each["status"] == "True" for each in conditions)


def _answers(url: str) -> Callable[[], bool]:
    def ask() -> bool:
        try:
            return httpx.get(url, timeout=2.0, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    return ask
