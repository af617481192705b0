"""Nodes that KWOK plays: the cluster's own scheduler places pods on them, and their containers are said to run without any.

Pods of prepare are said to have ended well, all others to be Ready until they are deleted. Called by the tests of placement.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kube_client import Kube

from e2e.space import Object, condition
from servers import built, wait_until

ANNOTATION = {"kwok.x-k8s.io/node": "fake"}
LABEL = "shoal.dev/fake"
"""What a flavour's nodes have; no other node does."""
_READY = """phase: Running
podIP: {{ PodIPWith .spec.nodeName ( or .spec.hostNetwork false ) ( or .metadata.uid "" ) ( or .metadata.name "" ) ( or .metadata.namespace "" ) }}
startTime: {{ Now | Quote }}
conditions:
- {type: Initialized, status: "True", lastTransitionTime: {{ Now | Quote }}}
- {type: ContainersReady, status: "True", lastTransitionTime: {{ Now | Quote }}}
- {type: Ready, status: "True", lastTransitionTime: {{ Now | Quote }}}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  started: true
  restartCount: 0
  state: {running: {startedAt: {{ Now | Quote }}}}
{{ end }}
"""
_ENDED = """phase: Succeeded
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: false
  restartCount: 0
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ Now | Quote }}, finishedAt: {{ Now | Quote }}}}
{{ end }}
"""


_NODE = """conditions:
- type: Ready
  status: "True"
  reason: KubeletReady
  message: KWOK says so
  lastHeartbeatTime: {{ Now | Quote }}
  lastTransitionTime: {{ Now | Quote }}
"""


def _stage(name: str, selector: list[tuple[str, str, list[str]]], then: Object, kind: str = "Pod") -> Object:
    chosen = [{"key": key, "operator": how} | ({"values": values} if values else {}) for key, how, values in selector]
    spec = {"resourceRef": {"apiGroup": "v1", "kind": kind}, "selector": {"matchExpressions": chosen}, "next": then}
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


_STAYS: tuple[str, str, list[str]] = (".metadata.deletionTimestamp", "DoesNotExist", [])
_UNREADY = ('.status.conditions.[] | select( .type == "Ready" ) | .status', "NotIn", ["True"])
STAGES = [
    _stage("node", [_UNREADY], {"statusTemplate": _NODE}, "Node"),
    _stage("ready", [_STAYS, (".status.podIP", "DoesNotExist", [])], {"statusTemplate": _READY}),
    _stage(
        "prepared",
        [_STAYS, (".status.phase", "In", ["Running"]), ('.metadata.labels["shoal.dev/component"]', "In", ["prepare"])],
        {"statusTemplate": _ENDED},
    ),
    _stage("gone", [(".metadata.deletionTimestamp", "Exists", [])], {"finalizers": {"empty": True}, "delete": True}),
]


def _node(name: str, kind: str, gpus: int) -> Object:
    room = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {LABEL: kind, "kubernetes.io/os": "linux"}, "annotations": ANNOTATION},
        # Pods that ask for no such node stay away.
        "spec": {"taints": [{"key": "gpu", "value": "fake", "effect": "NoSchedule"}]},
        "status": {"capacity": room, "allocatable": room},
    }


@contextmanager
def fake_nodes(kube: Kube, folder: Path, address: str, **kinds: tuple[int, int]) -> Iterator[list[str]]:
    """Nodes of each kind: how many, and the GPUs of each. They go at the end. `address`: host and port of KWOK's own health."""
    config, log = folder / "kwok.yaml", folder / "kwok.log"
    config.write_text("---\n".join(json.dumps(stage) + "\n" for stage in STAGES))
    selector = ",".join(f"{key}={value}" for key, value in ANNOTATION.items())
    command = [
        built("kwok"),
        "--kubeconfig",
        str(kube.kubeconfig),
        "--config",
        str(config),
        "--server-address",
        address,
    ]
    command += ["--manage-all-nodes=false", f"--manage-nodes-with-annotation-selector={selector}"]
    names = [f"fake-{kind}-{number}" for kind, (count, _) in kinds.items() for number in range(count)]
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "--node-lease-duration-seconds=40"], stdout=out, stderr=out)
    try:
        for kind, (count, gpus) in kinds.items():
            for number in range(count):
                kube.create(_node(f"fake-{kind}-{number}", kind, gpus))

        def are_ready() -> bool:
            assert process.poll() is None, log.read_text()[-2000:]
            return all(condition(kube.get("Node", name), "Ready") for name in names)

        wait_until("KWOK's nodes to be Ready", are_ready, 60.0, interval=0.2)
        yield names
    finally:
        for name in names:
            kube.delete("Node", name)
        process.terminate()
        process.wait(30)
