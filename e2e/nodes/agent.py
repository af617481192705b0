"""The node's own helper process: makes firewall rules of NetworkPolicies (`policy_rules`) and folders of volume claims (`volumes`).

    python -m e2e.nodes.agent KUBECONFIG [VOLUMES]

Runs as root beside kube-proxy, as a user who may read pods, namespaces, policies and claims and write volumes. Each node has one; volumes are made by
the one that is given their folder. Each kind is watched in a thread
that only says that something changed; the main thread then reads all anew and applies it whole. Rules of an agent that ended stay in force.
"""

import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
from kube_client import Kube, Refused, path_of

from e2e.nodes import layout as at
from e2e.nodes.layout import system_program
from e2e.nodes.policy_rules import ENTRY, World, compile_rules, restore_text
from e2e.nodes.volumes import settle

WATCHED = ("NetworkPolicy", "Pod", "Namespace", "PersistentVolumeClaim", "PersistentVolume")
PAUSE_SECONDS = 0.05
"""Lets changes that come together be one."""
AGAIN_SECONDS = 10.0
"""Everything is applied again after this long, changed or not: somebody may have touched the rules."""


def main(kubeconfig: Path, volumes: Path | None = None) -> None:
    """Run until killed."""
    changed = threading.Event()
    changed.set()
    for kind in WATCHED:
        threading.Thread(target=watch, args=(kubeconfig, kind, changed), daemon=True).start()
    kube = Kube(kubeconfig)
    while True:
        changed.wait(AGAIN_SECONDS)
        time.sleep(PAUSE_SECONDS)
        changed.clear()
        try:
            enforce(World.of(kube.list("NetworkPolicy"), kube.list("Pod"), kube.list("Namespace")))
            if volumes is not None:
                settle(kube, volumes)
        except (Refused, httpx.TransportError, RuntimeError, ValueError) as error:
            print(f"agent: {error}", flush=True)
            time.sleep(1.0)
            changed.set()


def watch(kubeconfig: Path, kind: str, changed: threading.Event) -> None:
    """Set the event at every change of a kind; list and watch again whenever the watch ends."""
    kube = Kube(kubeconfig)
    while True:
        try:
            version = kube.call("GET", path_of(kind, None), params={"limit": 1})["metadata"]["resourceVersion"]
            changed.set()
            for event in kube.watch(kind, version):
                if event["type"] == "ERROR":
                    break
                changed.set()
        except (Refused, httpx.TransportError, ValueError) as error:
            print(f"agent: watch of {kind}: {error}", flush=True)
            time.sleep(1.0)


def enforce(world: World) -> None:
    """Make the firewall as the policies say, in one step. Raises RuntimeError with iptables' own words."""
    saved = _run("iptables-save", "-t", "filter")
    present = [line.split()[0][1:] for line in saved.splitlines() if line.startswith(":")]
    _run("iptables-restore", "-w", "--noflush", text=restore_text(compile_rules(world), present))
    # Ahead of kube-proxy's and everybody's rules: what passes here may still be refused there, never the other way round.
    hooks = (f"-A FORWARD -j {ENTRY}", f"-A INPUT -s {at.POD_NETWORKS} -j {ENTRY}")
    for hook in hooks:
        chain = hook.split()[1]
        first = next((line for line in saved.splitlines() if line.startswith(f"-A {chain} ")), "")
        if first != hook:
            arguments = hook.split()[1:]
            if hook in saved.splitlines():
                _run("iptables", "-w", "-D", *arguments)
            _run("iptables", "-w", "-I", *arguments)


def _run(*command: str, text: str | None = None) -> str:
    done = subprocess.run(
        [system_program(command[0]), *command[1:]], input=text, capture_output=True, text=True, check=False, timeout=30
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
