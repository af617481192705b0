"""`python -m benchmarks.queue`: what a queue costs its runs. It writes `kueue_runs` and others into `benchmarks/results/citizen.json`.

    python -m benchmarks.queue                        20 runs on 100 nodes of 8 GPUs, some five minutes
    python -m benchmarks.queue --runs 4 --nodes 20 --out /tmp/citizen.json

API server, controllers of pods and the operator are real; the queue is the stand-in of `tests/operator/kueue_stand_in.py`. Nodes are objects, and a
thread places pods on those with free GPUs and the flavour's labels. Runs ask for 48 GPUs each. A third, or as many as fit, comes later with a higher
priority, and preempts where no room is left. No run ends before these work, so each preempted run has to resume. A sample each quarter of a second
holds GPUs of live pods against reserved ones.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/operator"), str(ROOT / "tests/operator/cluster")]

import hollow_node
from control_plane import ControlPlane, find_programs, shipped_crds
from hollow_node import HollowNode
from kube_client import Kube, Object, Refused
from kube_manifests import run as manifest
from kueue_api import KueueApi
from kueue_stand_in import requests
from operator_process import ACCOUNT, OPERATOR_NAMESPACE, OperatorProcess, install_operator
from orchestrators import Orchestrators

from servers import Loopback
from shoal.contracts.protocol import RunProgress
from shoal_operator.engine.conditions import is_true

RESULT = ROOT / "benchmarks/results/citizen.json"
NAMESPACE, GPU, LABELS = "research", "nvidia.com/gpu", {"gpus": "h100"}
GPUS_A_NODE, GPUS_A_RUN = 8, 48
SAMPLE_SECONDS, WORK_SECONDS = 0.25, 5.0
SPEC: dict[str, Any] = {
    "queueName": "research",
    "trainer": {"gpu": {"count": 8}},
    "inferencePools": [{"name": "pool", "replicas": 5, "gpu": {"count": 8}}],
}


class Rack(HollowNode):
    """Nodes with GPUs. A pod goes to the first with its labels and enough free GPUs, and waits while there is none."""

    def __init__(self, kube: Kube, nodes: int) -> None:
        super().__init__(kube)
        self._names = [f"gpu-{number:03d}" for number in range(nodes)]
        self._placing = threading.Lock()
        self._held: dict[str, tuple[str, int]] = {}
        self.unplaced = 0

    def start(self) -> None:
        for name in self._names:
            self.kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": LABELS}})
        super().start()

    def _bind(self, namespace: str, name: str) -> None:
        pod = self.kube.get("Pod", name, namespace)
        if pod is None:
            return
        asked = requests(pod["spec"]).get(GPU, 0) // 1000
        if asked and not pod["spec"].get("nodeSelector", {}).items() >= LABELS.items():
            raise RuntimeError(f"pod {name} lacks its flavour's labels")
        with self._placing:
            there = {each["metadata"]["uid"] for each in self.kube.list("Pod", namespace) if lives(each)}
            self._held = {uid: held for uid, held in self._held.items() if uid in there}
            used: dict[str, int] = {}
            for node, gpus in self._held.values():
                used[node] = used.get(node, 0) + gpus
            free = [node for node in self._names if used.get(node, 0) + asked <= GPUS_A_NODE]
            if not free:
                self.unplaced += 1
                raise Refused(409, "no node has room")
            self._held[pod["metadata"]["uid"]] = (free[0], asked)
        target = {"apiVersion": "v1", "kind": "Node", "name": free[0]}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self.kube.call("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/binding", binding)


def lives(pod: Object) -> bool:
    return pod["status"].get("phase") not in ("Succeeded", "Failed")


class Meter:
    """GPUs of live pods beyond those that their runs' Workloads reserve, over time; and which runs were preempted."""

    def __init__(self, kube: Kube) -> None:
        self.kube, self.outside, self.most = kube, 0.0, 0
        self.preempted: set[str] = set()
        self._last = time.monotonic()

    def sample(self) -> list[Object]:
        """One look; returns the Workloads."""
        pods = self.kube.list("Pod", NAMESPACE)
        workloads: list[Object] = self.kube.list(
            "Workload", NAMESPACE
        )  # after the pods: quota that comes meanwhile is in favour of none
        used: dict[str, int] = {}
        for pod in filter(lives, pods):
            run = pod["metadata"]["labels"]["shoal.dev/run"]
            used[run] = used.get(run, 0) + requests(pod["spec"]).get(GPU, 0) // 1000
        reserved: dict[str, int] = {}
        for each in workloads:
            run = each["metadata"]["name"].removesuffix("-workload")
            if any(
                one["type"] == "Preempted" and one["status"] == "True"
                for one in each.get("status", {}).get("conditions", [])
            ):
                self.preempted.add(run)
            if is_true(each, "QuotaReserved") and not is_true(each, "Finished"):
                sets = each["status"]["admission"]["podSetAssignments"]
                reserved[run] = sum(int(one["resourceUsage"].get(GPU, "0m").removesuffix("m")) for one in sets) // 1000
        now = time.monotonic()
        beyond = sum(max(0, gpus - reserved.get(run, 0)) for run, gpus in used.items())
        self.outside += beyond * (now - self._last)
        self.most = max(self.most, sum(used.values()))
        self._last = now
        return workloads


def story(
    kube: Kube, rack: Rack, orchestrators: Orchestrators, runs: int, room: int, deadline: float
) -> dict[str, Any]:
    """Create the runs, of which `room` fit at once, let each work for a while and end, and meter it."""
    meter, began = Meter(kube), time.monotonic()
    names = [f"r{number:02d}" for number in range(runs)]
    late = set(names[runs - min(runs // 3, room) :])
    early = min(runs - len(late), room)
    worked: set[str] = set()
    ready_at: dict[str, float] = {}
    done: set[str] = set()

    def create(name: str, priority: int) -> None:
        orchestrators.say(NAMESPACE, RunProgress(run=name, steps_total=4, open_step=0, latest_version=0))
        kube.create(manifest(NAMESPACE, name, queuePriority=priority, **SPEC))

    for name in names:
        if name not in late:
            create(name, 0)
    waiting = sorted(late)
    while len(done) < runs:
        if time.monotonic() - began > deadline:
            raise SystemExit(f"after {deadline:.0f} s {sorted(set(names) - done)} have not ended")
        workloads = meter.sample()
        for found in kube.list("TrainingRun", NAMESPACE):
            name = found["metadata"]["name"]
            if not is_true(found, "Ready"):
                ready_at.pop(name, None)
                continue
            since = ready_at.setdefault(name, time.monotonic())
            worked.add(name)
            # None ends before the late ones work: whoever ends gives them room, and they preempt nobody.
            if time.monotonic() - since > WORK_SECONDS and late <= worked:
                ended = RunProgress(run=name, steps_total=4, open_step=None, latest_version=4, complete=True)
                orchestrators.say(NAMESPACE, ended)
                rack.play(NAMESPACE, f"{name}-trainer-*", hollow_node.succeeded)
        if waiting and len(worked) >= early:
            create(waiting.pop(), 10)
        done = {each["metadata"]["name"].removesuffix("-workload") for each in workloads if is_true(each, "Finished")}
        time.sleep(SAMPLE_SECONDS)
    return {
        "kueue_runs": len(done),
        "gpu_seconds_outside_quota": round(meter.outside, 3),
        "preempted_runs": len(meter.preempted),
        "preempted_runs_resumed": len(meter.preempted & done),
        "most_gpus_at_once": meter.most,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue", description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="runs (default 20)")
    parser.add_argument("--nodes", type=int, default=100, metavar="N", help="nodes of eight GPUs (default 100)")
    parser.add_argument(
        "--deadline", type=float, default=900.0, metavar="S", help="seconds until it fails (default 900)"
    )
    parser.add_argument("--out", type=Path, default=RESULT, metavar="FILE", help="where the figures go, beside others")
    given = parser.parse_args()
    room = given.nodes * GPUS_A_NODE // GPUS_A_RUN
    if room < 1:
        parser.error(f"--nodes must be at least {GPUS_A_RUN // GPUS_A_NODE}: a run needs {GPUS_A_RUN} GPUs")
    loopback = Loopback()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        plane = ControlPlane(loopback.address(), Path(folder), find_programs())
        orchestrators, operator, kueue = Orchestrators(loopback.address()), None, None
        try:
            plane.start(shipped_crds())
            kube = Kube(plane.kubeconfig)
            for name in (OPERATOR_NAMESPACE, NAMESPACE):
                kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            kueue = KueueApi(kube)
            kueue.start()
            preemption = {"withinClusterQueue": "LowerPriority"}
            kueue.queue(NAMESPACE, given.nodes * GPUS_A_NODE, labels=LABELS, preemption=preemption)
            install_operator(kube, "--all-namespaces")
            account = plane.account_kubeconfig(kube, OPERATOR_NAMESPACE, ACCOUNT)
            arguments = ["--all-namespaces", "--lease-seconds", "140"]
            operator = OperatorProcess(
                "operator", account, arguments, Path(folder) / "operator", loopback, orchestrators.address
            )
            operator.start()
            rack = Rack(kube, given.nodes)
            rack.start()
            rack.play(NAMESPACE, "*-prepare-*", hollow_node.succeeded)
            figures = story(kube, rack, orchestrators, given.runs, room, given.deadline)
            figures["kueue_nodes"] = given.nodes
            figures["pods_that_found_no_node"] = rack.unplaced
            rack.close()
        finally:
            if operator is not None:
                operator.stop()
            if kueue is not None:
                kueue.close()
            orchestrators.close()
            plane.stop()
    before = json.loads(given.out.read_text()) if given.out.exists() else {}
    given.out.write_text(json.dumps(before | figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    well = (
        figures["gpu_seconds_outside_quota"] == 0 and figures["preempted_runs"] == figures["preempted_runs_resumed"] > 0
    )
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
