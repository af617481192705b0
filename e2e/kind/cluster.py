"""The cluster itself: made, loaded with images, deleted, and the machine put back, also by another process after one that was killed.

It has two nodes, and both take pods. With a node image of our own an agent of `e2e.nodes` in each node's network enforces NetworkPolicies; the
first also makes volumes.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from e2e import ROOT
from e2e.kind import engine as docker
from e2e.kind import machine, node_image
from e2e.kind.engine import DockerEngine
from e2e.kubectl import run_kubectl
from e2e.nodes.daemons import Daemon
from e2e.nodes.layout import built_tool, system_program

NAME = NETWORK = "shoal-e2e"
NODES = (f"{NAME}-control-plane", f"{NAME}-worker")
SUBNET, GATEWAY = "10.203.0.0/24", "10.203.0.1"
KUBECONFIG = machine.HOME / "kubeconfig"
VOLUMES = machine.HOME / "volumes"
AGENTS = {node: Daemon(f"agent-{node}", machine.HOME / "daemons", machine.HOME / "logs") for node in NODES}
EARLIER_AGENT = Daemon("agent", machine.HOME / "daemons", machine.HOME / "logs")
"""Of a cluster that an earlier checkout left, which had one node."""
KIND_SECONDS = 900.0
"""For one call of kind's; importing the runtime of gigabytes is the longest."""
READY_SECONDS = 240


def up(logs: Path) -> None:
    """A cluster that is Ready, or the one that is; `KUBECONFIG` is an administrator's. What kind knows of a failure is left in `logs`.

    Raises `Lacking` or RuntimeError, and then nothing stays.
    """
    if (found := docker.running()) is not None and NAME in _kind(found, "get", "clusters").split():
        return
    down()
    machine.remember()
    try:
        engine = docker.start()
        _create(engine, logs)
    except BaseException:
        down()
        raise


def load(archives: list[Path]) -> None:
    """Make the images of these archives known to every node."""
    engine = docker.start()
    for archive in archives:
        _kind(engine, "load", "image-archive", str(archive), "--name", NAME)


def share_registry(host: str) -> str:
    """Let every node look for a registry of this machine where it can be reached; returns that address and port. `host` stays its name in images."""
    engine, at = docker.start(), f"{GATEWAY}:{host.rpartition(':')[2]}"
    write = 'mkdir -p "$1" && echo "$2" >"$1/hosts.toml"'
    for node in NODES:
        folder = f"{node_image.REGISTRIES}/{host}"
        engine.docker("exec", node, "sh", "-c", write, "sh", folder, f'[host."http://{at}"]')
    return at


def down() -> list[str]:
    """Delete the cluster, end what was started for it, put the machine back. Nothing to do is fine. Returns what is not as it was."""
    for agent in (*AGENTS.values(), EARLIER_AGENT):
        agent.stop()
    engine = docker.running() if machine.MEMORY.exists() else None
    if engine is not None:
        if NAME in _kind(engine, "get", "clusters").split():
            if engine.has("container", NODES[0]):
                machine.restore_settings(lambda name, value: _write_setting(engine, name, value))
            _kind(engine, "delete", "cluster", "--name", NAME, "--kubeconfig", str(KUBECONFIG))
        if engine.has("network", NETWORK):
            engine.docker("network", "rm", NETWORK)
    docker.stop()
    for folder in (VOLUMES, machine.HOME / "agent"):
        shutil.rmtree(folder, ignore_errors=True)
    KUBECONFIG.unlink(missing_ok=True)
    return machine.put_back()


def status() -> dict[str, int | None]:
    """Process of each part that runs, on this machine."""
    engine = docker.running() if machine.MEMORY.exists() else None
    nodes = {
        node: _process(engine, node) if engine is not None and engine.has("container", node) else None for node in NODES
    }
    return {"dockerd": docker.DAEMON.pid, **nodes, **{agent.name: agent.pid for agent in AGENTS.values()}}


def _create(engine: DockerEngine, logs: Path) -> None:
    image = "" if node_image.published_answers(engine) else node_image.own(engine)
    VOLUMES.mkdir(parents=True, exist_ok=True)
    # A name of our own for the bridge, so that it is known and taken away for sure.
    engine.docker(
        "network",
        "create",
        f"--subnet={SUBNET}",
        f"--gateway={GATEWAY}",
        f"--opt=com.docker.network.bridge.name={machine.BRIDGE}",
        NETWORK,
    )
    with tempfile.TemporaryDirectory() as scratch:
        settings = Path(scratch) / "kind.yaml"
        settings.write_text(yaml.safe_dump(node_image.configuration(image, VOLUMES)))
        try:
            _kind(
                engine, "create", "cluster", "--name", NAME, "--config", str(settings), "--kubeconfig", str(KUBECONFIG), "--retain"
            )  # fmt: skip
            if image:
                _connect(engine)
            _wait("wait", "--for=condition=Ready", "nodes", "--all")
        except RuntimeError:
            shutil.rmtree(logs, ignore_errors=True)
            _kind(engine, "export", "logs", str(logs), "--name", NAME)
            raise
    # kind keeps pods off a control plane that has workers.
    run_kubectl(KUBECONFIG, "taint", "nodes", NODES[0], "node-role.kubernetes.io/control-plane-")
    if image:
        _start_agents(engine)
    _wait("-n", "kube-system", "rollout", "status", "deployment/coredns")


def _wait(*arguments: str) -> None:
    run_kubectl(KUBECONFIG, *arguments, f"--timeout={READY_SECONDS}s", seconds=READY_SECONDS + 20.0)


def _connect(engine: DockerEngine) -> None:
    """Give each node's pods a network of their own, of the subnet that Kubernetes chose for the node, and routes to the others'."""
    subnets = _subnets()
    for node, subnet in subnets.items():
        network = json.dumps(node_image.pod_network(subnet))
        write = 'echo "$1" >/etc/cni/net.d/10-shoal.conflist'
        others = [(subnets[other], _address(engine, other)) for other in subnets if other != node]
        for command in (["sh", "-c", write, "sh", network], *node_image.routing(others)):
            engine.docker("exec", node, *command)


def _subnets() -> dict[str, str]:
    """Of every node's pods. `kind create` returns before the last node is known, or has one."""
    end = time.monotonic() + READY_SECONDS
    while True:
        found = json.loads(run_kubectl(KUBECONFIG, "get", "nodes", "-o", "json"))["items"]
        subnets = {node["metadata"]["name"]: node["spec"].get("podCIDR", "") for node in found}
        if subnets.keys() >= set(NODES) and all(subnets.values()):
            return subnets
        if time.monotonic() > end:
            raise RuntimeError(f"waited {READY_SECONDS} s for each node to have a subnet of its own: {subnets}")
        time.sleep(0.5)


def _start_agents(engine: DockerEngine) -> None:
    """Start an agent in each node's network. It speaks to the API server at the first's address, which its certificate names."""
    folder = machine.HOME / "agent"
    folder.mkdir(mode=0o700, exist_ok=True)
    inside: dict[str, Any] = yaml.safe_load(KUBECONFIG.read_text())
    inside["clusters"][0]["cluster"]["server"] = f"https://{_address(engine, NODES[0])}:6443"
    path = folder / "kubeconfig"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(inside))
    for node, volumes in zip(NODES, ([str(VOLUMES)], []), strict=True):
        enter = [system_program("nsenter"), f"--net=/proc/{_process(engine, node)}/ns/net", "--"]
        command = [*enter, sys.executable, "-m", "e2e.nodes.agent", str(path), *volumes]
        AGENTS[node].start(command, {"PYTHONPATH": _python_path()})


def _address(engine: DockerEngine, node: str) -> str:
    return str(_container(engine, node)["NetworkSettings"]["Networks"][NETWORK]["IPAddress"])


def _process(engine: DockerEngine, node: str) -> int:
    return int(_container(engine, node)["State"]["Pid"])


def _container(engine: DockerEngine, node: str) -> dict[str, Any]:
    """What Docker knows of a node."""
    [found] = json.loads(engine.docker("container", "inspect", node))
    return dict(found)


def _python_path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])


def _write_setting(engine: DockerEngine, name: str, value: str) -> None:
    """Through the node, which is privileged. Settings that are the node's own change nothing here; `machine.put_back` tells."""
    engine.docker("exec", NODES[0], "sh", "-c", 'echo "$1" >"/proc/sys/$2"', "sh", value, name)


def _kind(engine: DockerEngine, *arguments: str) -> str:
    program = built_tool("kind")
    environment = engine.environment | {
        "KIND_EXPERIMENTAL_DOCKER_NETWORK": NETWORK,
        "KIND_EXPERIMENTAL_PROVIDER": "docker",
    }
    done = subprocess.run(
        [program, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=KIND_SECONDS
    )
    if done.returncode != 0:
        raise RuntimeError(f"kind {' '.join(arguments)}: {done.stderr.strip()[-3000:]}")
    return done.stdout
