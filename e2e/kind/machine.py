"""What a cluster of kind's changes on this machine, and how that is put back: kernel settings of its kubelet, control groups, mounts, a link.

`remember` writes all of it down before the first change, so that `put_back` works in another process too, after one that was killed.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from e2e.nodes import host
from e2e.nodes.layout import system_program

HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / "kind"
"""State: Docker's programs and images, logs, volumes of pods."""
RUN = Path("/run/shoal-kind")
"""Sockets, and what Docker's containerd mounts for a container."""
BRIDGE = "shoal-kind0"
GROUP = "shoal-kind"
"""The control group above all containers of a Docker that was started here."""
SETTINGS = (
    *host.KUBELETS,
    *host.SETTINGS,
    "fs/inotify/max_user_watches",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv6/conf/all/forwarding",
)
MEMORY = HOME / "machine.json"
Write = Callable[[str, str], None]


def snapshot() -> dict[str, list[str]]:
    """All that a cluster touches, as sorted lists: equal before and after, or something was left behind. Chains of the firewall with their policies
    are among it, though a Docker that was started here makes none."""
    return {
        "settings": [f"{name}={text}" for name in SETTINGS if (text := host.setting(name)) is not None],
        "links": [BRIDGE] if Path("/sys/class/net", BRIDGE).exists() else [],
        "cgroups": sorted(map(str, _groups())),
        "mounts": _mounts(),
        "folders": [str(RUN)] if RUN.exists() else [],
        "chains": _chains() if os.geteuid() == 0 else [],
    }


def remember() -> None:
    """Write down how this machine is, unless a cluster that is not put back yet did so."""
    if MEMORY.exists():
        return
    HOME.mkdir(parents=True, exist_ok=True)
    partial = MEMORY.with_suffix(".partial")
    partial.write_text(json.dumps(snapshot()))
    partial.rename(MEMORY)


def restore_settings(write: Write | None = None) -> None:
    """Give the kernel settings the values that were written down. `write` does it where this user may not."""
    if not MEMORY.exists():
        return
    for name, _, value in (each.partition("=") for each in json.loads(MEMORY.read_text())["settings"]):
        if host.setting(name) == value:
            continue
        if os.geteuid() == 0:
            Path("/proc/sys", name).write_text(value)
        elif write is not None:
            write(name, value)


def put_back() -> list[str]:
    """Undo what is left when the cluster is deleted and its Docker has ended. Returns what is not as it was. It is forgotten if that is nothing."""
    if not MEMORY.exists():
        return []
    before = json.loads(MEMORY.read_text())
    restore_settings()
    if os.geteuid() == 0:
        for mount in _mounts():
            subprocess.run([system_program("umount"), "-l", mount], capture_output=True, check=False, timeout=60)
        if BRIDGE not in before["links"]:
            delete = [system_program("ip"), "link", "delete", BRIDGE]
            subprocess.run(delete, capture_output=True, check=False, timeout=60)
        _remove_groups()
        if str(RUN) not in before["folders"] and not _mounts():
            shutil.rmtree(RUN, ignore_errors=True)
    left = host.differences(before, snapshot())
    if not left:
        MEMORY.unlink()
    return left


def _groups() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    return [each for each in (root / GROUP, *root.glob(f"*/{GROUP}")) if each.is_dir()]


def _remove_groups(seconds: float = 10.0) -> None:
    """Remove the control groups, which the kernel keeps for a moment after their last process. `snapshot` tells of what stays."""
    end = time.monotonic() + seconds
    while _groups() and time.monotonic() < end:
        for group in _groups():
            for folder, _, _ in os.walk(group, topdown=False):
                try:
                    Path(folder).rmdir()
                except OSError:
                    pass
        time.sleep(0.1)


def _mounts() -> list[str]:
    places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return sorted((each for each in places if each.startswith((f"{HOME}/", f"{RUN}/"))), reverse=True)


def _chains() -> list[str]:
    """Built-in chains with their policies, and chains of Docker, as `family table chain policy`."""
    found = set()
    for family in ("iptables", "ip6tables"):
        for table in host.TABLES:
            for line in host.rules(table, family):
                name, _, rest = line.removeprefix(":").partition(" ")
                policy = rest.partition(" ")[0]
                if line.startswith(":") and ((policy != "-" and policy != "ACCEPT") or name.startswith("DOCKER")):
                    found.add(f"{family} {table} {name} {policy}")
    return sorted(found)
