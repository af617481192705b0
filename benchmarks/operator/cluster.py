"""The cluster that is measured: etcd and kube-apiserver of the tests, the operator as its own process and account, many InferencePools.

There is no node and, while figures are taken, no controller-manager: pods would be the load of others. Built on the helpers of
`tests/operator/cluster`, so that what is measured is what is tested.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/operator/cluster")]

from control_plane import ControlPlane as ControlPlane
from control_plane import find_programs as find_programs
from control_plane import shipped_crds as shipped_crds
from hollow_node import HollowNode as HollowNode
from hollow_node import waiting as waiting
from kube_audit import AuditLog
from kube_client import Kube as Kube  # `as` itself: the other modules take these from here, where the path is set
from kube_client import Object as Object
from kube_client import Refused as Refused
from kube_client import path_of
from kube_manifests import manifest
from kube_manifests import run as run
from operator_process import ACCOUNT as ACCOUNT
from operator_process import OPERATOR_NAMESPACE as OPERATOR_NAMESPACE
from operator_process import OperatorProcess as OperatorProcess
from operator_process import install_operator as install_operator
from orchestrators import Orchestrators as Orchestrators
from tried_cases import OWN as OWN
from tried_cases import Stage as Stage
from tried_cases import read_cases as read_cases

from servers import Loopback as Loopback

NAMESPACE = "bench"
RUN = "bench"
CREATORS = 8
"""People, or a pipeline, that create at the same time."""


class Deadline(RuntimeError):
    """What was waited for did not come; the text says what and how long."""


def wait(what: str, holds: Callable[[], object], seconds: float, interval: float = 0.05) -> None:
    """Wait until `holds`; raises Deadline."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise Deadline(f"waited {seconds:.0f} s for {what}")
        time.sleep(interval)


class Bench:
    """A control plane with CRDs, permissions and one TrainingRun that is not prepared: its `<run>-join` is what all pools read."""

    def __init__(self, folder: Path, loopback: Loopback) -> None:
        self.folder, self.loopback = folder, loopback
        self.services = "127.0.0.1"
        """Where every `*.svc` name leads: nobody answers there, and nobody is asked while no orchestrator is ready."""
        (folder / "plane").mkdir()
        self.plane = ControlPlane(loopback.address(), folder / "plane", find_programs())
        self.plane.start(shipped_crds())
        self.kube = Kube(self.plane.kubeconfig)
        for name in (OPERATOR_NAMESPACE, NAMESPACE):
            self.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        wait("the account's default", lambda: self.kube.get("ServiceAccount", "default", NAMESPACE), 30)
        install_operator(self.kube, "--all-namespaces")
        self.audit = AuditLog(self.plane.audit_log)
        self.operators: list[OperatorProcess] = []
        self.plane.controllers.stop()

    def operator(self, name: str, namespaces: Sequence[str] = ()) -> OperatorProcess:
        """Start a replica of the operator, for all namespaces where none is named."""
        scope = [argument for each in namespaces for argument in ("--namespace", each)] or ["--all-namespaces"]
        kubeconfig = self.plane.account_kubeconfig(self.kube, OPERATOR_NAMESPACE, ACCOUNT)
        process = OperatorProcess(name, kubeconfig, scope, self.folder / name, self.loopback, self.services)
        self.operators.append(process)
        process.start()
        return process

    def make_run(self) -> None:
        """The run that the pools serve, and wait for its ConfigMap."""
        self.kube.create(run(NAMESPACE, RUN))
        wait("the run's join ConfigMap", lambda: self.kube.get("ConfigMap", f"{RUN}-join", NAMESPACE), 60)

    def make_pools(self, count: int) -> None:
        """Create the pools as fast as the API server takes them, by several clients."""

        def create(number: int) -> None:
            self.kube.create(manifest("InferencePool", pool_name(number), NAMESPACE, run=RUN, replicas=1))

        with ThreadPoolExecutor(CREATORS) as people:
            list(people.map(create, range(count)))

    def close(self) -> None:
        for process in self.operators:
            process.stop()
        self.kube.close()
        self.plane.stop()


def _replicas(found: Object) -> Any:
    return found["spec"]["replicas"]


class Seen:
    """A watch of a kind: how many objects there are, and when each reached which number of replicas, or what else `reads` reads."""

    def __init__(self, kubeconfig: Path, kind: str = "StatefulSet", reads: Callable[[Object], Any] = _replicas) -> None:
        self.names: set[str] = set()
        self.replicas: dict[tuple[str, Any], float] = {}
        self._kube, self._kind, self._reads = Kube(kubeconfig), kind, reads
        self._stopped = False
        listed = self._kube.call("GET", path_of(kind, None))
        self._version = listed["metadata"]["resourceVersion"]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            for event in self._events():
                self._take(event)

    def _events(self) -> Iterator[Object]:
        try:
            yield from self._kube.watch(self._kind, self._version, seconds=3600)
        except (httpx.HTTPError, RuntimeError):
            time.sleep(0.1)  # ended with the API server, or by `close`

    def _take(self, event: Object) -> None:
        found = event["object"]
        if event["type"] not in ("ADDED", "MODIFIED"):
            return
        self._version = found["metadata"]["resourceVersion"]
        name = found["metadata"]["name"]
        self.names.add(name)
        self.replicas.setdefault((name, self._reads(found)), time.monotonic())

    def close(self) -> None:
        self._stopped = True
        self._kube.close()


def pool_name(number: int) -> str:
    return f"p{number:04d}"


def resident_mib(process: OperatorProcess) -> float:
    """Resident memory of a process now."""
    assert process.process is not None
    for line in Path(f"/proc/{process.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS: only Linux tells it")


def cpu_seconds(process: OperatorProcess) -> float:
    """CPU time that a process has used."""
    assert process.process is not None
    fields = Path(f"/proc/{process.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def on_one_core(process: OperatorProcess) -> Iterator[None]:
    """The operator has one core while this lasts."""
    assert process.process is not None
    before = os.sched_getaffinity(process.process.pid)
    for thread in Path(f"/proc/{process.process.pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {max(before)})
    yield
    if process.process.poll() is None:
        for thread in Path(f"/proc/{process.process.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), before)


def kill(process: OperatorProcess) -> None:
    """SIGKILL, as when its node dies."""
    assert process.process is not None
    os.kill(process.process.pid, signal.SIGKILL)
