"""Where the node keeps its files, which addresses it uses, and where its programs are. Read by every module of this folder; starts nothing."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e import ROOT

NODE_NAME = "shoal-node"
NODE_ADDRESS = "10.202.0.1"
"""On the loopback device: this kernel may have no dummy devices, and no address of the machine's own network is touched."""
POD_NETWORK, POD_NETWORKS = "10.200.0.0/24", "10.200.0.0/16"
"""Of the one node here; and of all nodes of a cluster that has several, such as kind's."""
SERVICE_NETWORK = "10.201.0.0/16"
API_SERVICE, DNS_SERVICE = "10.201.0.1", "10.201.0.10"
API_PORT, ETCD_PORT, ETCD_PEER_PORT = 6443, 12379, 12380
BRIDGE, NETWORK_NAME = "shoal0", "shoal"
API_URL = f"https://{NODE_ADDRESS}:{API_PORT}"

PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "mount": "mount",
}
"""Programs of the system, and the Debian package that brings each. The plugins of the package containernetworking-plugins lie in CNI_PLUGINS."""
CNI_PLUGINS = Path("/usr/lib/cni")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Lacking(RuntimeError):
    """This machine cannot hold a node; the text says what is missing and how to get it."""


@dataclass(frozen=True)
class Layout:
    """The folders of the one node of this machine."""

    home: Path
    """State: certificates, etcd, volumes, logs. containerd's part is kept from one start to the next, for importing images is slow."""
    run: Path
    """Sockets and namespaces, on a file system that a restart of the machine empties."""

    @property
    def socket(self) -> Path:
        return self.run / "containerd.sock"

    @property
    def kubeconfig(self) -> Path:
        """An administrator's."""
        return self.home / "kubeconfig"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def pods_logs(self) -> Path:
        return self.home / "pod-logs"

    def folder(self, name: str) -> Path:
        """A folder of the state, made if it is missing."""
        made = self.home / name
        made.mkdir(parents=True, exist_ok=True)
        return made


def default_layout() -> Layout:
    """In the user's cache, `$XDG_CACHE_HOME/shoal/node`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Layout(home=cache / "shoal" / "node", run=Path("/run/shoal-node"))


def system_program(name: str) -> str:
    """Path of a program of this system. Raises `Lacking`."""
    found = shutil.which(name, path=SYSTEM_PATH)
    if found is None:
        raise Lacking(f"{name} is not here; `tools/node.sh` installs it (Debian package {PACKAGES.get(name, name)})")
    return found


def built_tool(name: str) -> Path:
    """What `tools/build.sh NAME` built: a program, or for Kubernetes the folder of its programs. Raises `Lacking`."""
    found = subprocess.run(
        [ROOT / "tools/build.sh", "--path", name], capture_output=True, text=True, check=False, timeout=60
    )
    if found.returncode != 0:
        raise Lacking(found.stderr.strip() or f"{name} is not built; `tools/build.sh {name}` builds it")
    return Path(found.stdout.strip())


def check_machine() -> None:
    """Raise `Lacking` with everything that keeps this machine from holding a node, in one text."""
    wrong = []
    if os.geteuid() != 0:
        wrong.append("a node needs root: it mounts, and makes network namespaces")
    for name in PACKAGES:
        try:
            system_program(name)
        except Lacking as lacking:
            wrong.append(str(lacking))
    wrong += [
        f"{CNI_PLUGINS / name} is not here; `tools/node.sh` installs it (Debian package containernetworking-plugins)"
        for name in ("bridge", "host-local", "portmap", "loopback")
        if not (CNI_PLUGINS / name).exists()
    ]
    for name in ("kubernetes", "coredns", "pause"):
        try:
            built_tool(name)
        except Lacking as lacking:
            wrong.append(str(lacking))
    if wrong:
        raise Lacking("; ".join(wrong))
