"""The cluster itself: made, loaded with images, deleted, and the machine put back, also by another process after one that was killed.

With a node image of our own the agent of `e2e.nodes` enforces NetworkPolicies and makes volumes, from within the node's network.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
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
NODE = f"{NAME}-control-plane"
SUBNET = "10.203.0.0/24"
KUBECONFIG = machine.HOME / "kubeconfig"
VOLUMES = machine.HOME / "volumes"
AGENT = Daemon("agent", machine.HOME / "daemons", machine.HOME / "logs")
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
    """Make the images of these archives known to the node."""
    engine = docker.start()
    for archive in archives:
        _kind(engine, "load", "image-archive", str(archive), "--name", NAME)


def down() -> list[str]:
    """Delete the cluster, end what was started for it, put the machine back. Nothing to do is fine. Returns what is not as it was."""
    AGENT.stop()
    engine = docker.running() if machine.MEMORY.exists() else None
    if engine is not None:
        if NAME in _kind(engine, "get", "clusters").split():
            if engine.has("container", NODE):
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
    found = engine is not None and engine.has("container", NODE)
    node = json.loads(engine.docker("container", "inspect", NODE))[0]["State"]["Pid"] if engine and found else None
    return {"dockerd": docker.DAEMON.pid, "node": node, "agent": AGENT.pid}


def _create(engine: DockerEngine, logs: Path) -> None:
    image = "" if node_image.published_answers(engine) else node_image.own(engine)
    VOLUMES.mkdir(parents=True, exist_ok=True)
    # A name of our own for the bridge, so that it is known and taken away for sure.
    engine.docker(
        "network", "create", f"--subnet={SUBNET}", f"--opt=com.docker.network.bridge.name={machine.BRIDGE}", NETWORK
    )
    with tempfile.TemporaryDirectory() as scratch:
        settings = Path(scratch) / "kind.yaml"
        settings.write_text(yaml.safe_dump(node_image.configuration(image, VOLUMES)))
        try:
            _kind(
                engine, "create", "cluster", "--name", NAME, "--config", str(settings), "--kubeconfig", str(KUBECONFIG),
                "--wait", f"{READY_SECONDS}s", "--retain",
            )  # fmt: skip
        except RuntimeError:
            shutil.rmtree(logs, ignore_errors=True)
            _kind(engine, "export", "logs", str(logs), "--name", NAME)
            raise
    if image:
        _start_agent(engine)
    run_kubectl(
        KUBECONFIG, "-n", "kube-system", "rollout", "status", "deployment/coredns", f"--timeout={READY_SECONDS}s",
        seconds=READY_SECONDS + 20.0,
    )  # fmt: skip


def _start_agent(engine: DockerEngine) -> None:
    """Start the agent in the node's network, where the API server is at the loopback address that its certificate names."""
    folder = machine.HOME / "agent"
    folder.mkdir(mode=0o700, exist_ok=True)
    inside: dict[str, Any] = yaml.safe_load(KUBECONFIG.read_text())
    inside["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:6443"
    path = folder / "kubeconfig"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(inside))
    process = json.loads(engine.docker("container", "inspect", NODE))[0]["State"]["Pid"]
    enter = [system_program("nsenter"), f"--net=/proc/{process}/ns/net", "--"]
    AGENT.start(
        [*enter, sys.executable, "-m", "e2e.nodes.agent", str(path), str(VOLUMES)], {"PYTHONPATH": _python_path()}
    )


def _python_path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])


def _write_setting(engine: DockerEngine, name: str, value: str) -> None:
    """Through the node, which is privileged. Settings that are the node's own change nothing here; `machine.put_back` tells."""
    engine.docker("exec", NODE, "sh", "-c", 'echo "$1" >"/proc/sys/$2"', "sh", value, name)


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
