"""What the node changes on this machine, and how it is put back: kernel settings, an address, firewall chains, mounts, network namespaces, cgroups.

`snapshot` lists all of these, so that a test can compare before and after. Nothing is removed that is not the node's by its name or its folder.
"""

import json
import os
import subprocess
import time
from pathlib import Path

from e2e.nodes import layout as at
from e2e.nodes.layout import Lacking, Layout, system_program

SETTINGS = {
    "net/ipv4/ip_forward": "1",
    "net/bridge/bridge-nf-call-iptables": "1",
    "fs/inotify/max_user_instances": "1024",
}
KUBELETS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/netfilter/nf_conntrack_max")
"""Set by kubelet and kube-proxy themselves; remembered and put back too."""

NAMESPACE_SECONDS = 5.0
"""For a network namespace to be let go of."""
NAMESPACES = (Path("/run/netns"), Path("/var/run/netns"))
CNI_NOTES = Path("/var/lib/cni/results")
OWN_CHAINS = ("KUBE-", "CNI-", "SHOAL-")
IDLE_CHAINS = ("CNI-FORWARD", "CNI-ADMIN")
"""What CNI's firewall plugin makes for the first container of an engine (podman, buildah) and leaves when the last one has gone."""
TABLES = ("filter", "nat", "mangle")


def _call(*command: str, check: bool = True, text: str | None = None) -> str:
    done = subprocess.run(
        [system_program(command[0]), *command[1:]], input=text, capture_output=True, text=True, check=False, timeout=60
    )
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def prepare(layout: Layout) -> None:
    """Set the machine up for a node. What was before is written to `host.json`. Raises `Lacking` when another Kubernetes works here."""
    memory = layout.home / "host.json"
    if not memory.exists():
        if strangers := own_chains():
            raise Lacking(
                f"another kubelet, kube-proxy or CNI works on this machine (iptables has {strangers[0]}): the node would disturb it"
            )
        before = {name: text for name in (*SETTINGS, *KUBELETS) if (text := setting(name)) is not None}
        layout.home.mkdir(parents=True, exist_ok=True)
        memory.write_text(json.dumps(before))
    for name, value in SETTINGS.items():
        path = Path("/proc/sys", name)
        if path.exists():
            path.write_text(value)
    if f" {at.NODE_ADDRESS}/32" not in _call("ip", "-o", "address", "show", "dev", "lo"):
        _call("ip", "address", "add", f"{at.NODE_ADDRESS}/32", "dev", "lo")
    # A container engine of the machine may have set the policy of FORWARD to DROP.
    for direction in ("-i", "-o"):
        rule = ["FORWARD", direction, at.BRIDGE, "-m", "comment", "--comment", "shoal-node", "-j", "ACCEPT"]
        if not _succeeds("iptables", "-w", "-C", *rule):
            _call("iptables", "-w", "-A", *rule)
    layout.run.mkdir(parents=True, exist_ok=True)


def restore(layout: Layout) -> None:
    """Undo what the node's programs and `prepare` did. Call it when they have ended; a second call finds nothing to do."""
    for _ in range(20):  # a mount may lie under another, and be busy for a moment
        mounts = _mounts_below(layout)
        for mount in mounts:
            subprocess.run([system_program("umount"), "-l", mount], capture_output=True, check=False)
        if not mounts:
            break
        time.sleep(0.1)
    _remove_chains()
    for direction in ("-i", "-o"):
        rule = ["FORWARD", direction, at.BRIDGE, "-m", "comment", "--comment", "shoal-node", "-j", "ACCEPT"]
        while _succeeds("iptables", "-w", "-D", *rule):
            pass
    remove_namespaces()
    for line in _call("ip", "-o", "link", "show", "master", at.BRIDGE, check=False).splitlines():
        _call("ip", "link", "delete", line.split(": ")[1].split("@")[0], check=False)
    _call("ip", "link", "delete", at.BRIDGE, check=False)
    _call("ip", "address", "delete", f"{at.NODE_ADDRESS}/32", "dev", "lo", check=False)
    for group in _pod_cgroups():
        for folder, _, _ in os.walk(group, topdown=False):
            try:
                Path(folder).rmdir()
            except OSError:  # somebody's process is in it: snapshot tells
                pass
    memory = layout.home / "host.json"
    if memory.exists():
        for name, value in json.loads(memory.read_text()).items():
            Path("/proc/sys", name).write_text(value)
        memory.unlink()
    subprocess.run(["rm", "-rf", "--one-file-system", str(layout.run)], check=True, timeout=60)


def remove_namespaces() -> None:
    """Remove the network namespaces that CNI made for pods which were not taken down in order, by CNI's own notes of our network."""
    for note in CNI_NOTES.glob(f"{at.NETWORK_NAME}-*"):
        container = note.name.removeprefix(f"{at.NETWORK_NAME}-").partition("-")[0]
        for path in _noted_namespaces(note):
            _remove_namespace(path)
        for each in (CNI_NOTES / f"cni-loopback-{container}-lo", note):
            each.unlink(missing_ok=True)


def _noted_namespaces(note: Path) -> set[Path]:
    try:
        interfaces = (json.loads(note.read_text()).get("result") or {}).get("interfaces") or []
    except ValueError:  # cut short
        return set()
    paths = {Path(each["sandbox"]) for each in interfaces if each.get("sandbox")}
    return {path for path in paths if path.name.startswith("cni-") and path.parent in NAMESPACES}


def _remove_namespace(path: Path) -> None:
    """Gives up after a while: `snapshot` tells of what is left."""
    end = time.monotonic() + NAMESPACE_SECONDS
    while path.exists() and time.monotonic() < end:
        subprocess.run([system_program("umount"), "-l", str(path)], capture_output=True, check=False)
        try:
            path.unlink(missing_ok=True)
        except OSError:  # busy until the kernel has let go of the mount
            time.sleep(0.1)


def snapshot(layout: Layout) -> dict[str, list[str]]:
    """Everything of the host that a node touches, as sorted lists: equal before and after, or something was left behind."""
    namespaces = NAMESPACES[0]
    return {
        "mounts": sorted(_mounts_below(layout)),
        # Those of CNI: others on this machine make and remove some of theirs meanwhile.
        "namespaces": sorted(each.name for each in namespaces.glob("cni-*")) if namespaces.exists() else [],
        "links": sorted(line.split(": ")[1].split("@")[0] for line in _call("ip", "-o", "link").splitlines()),
        "addresses": [at.NODE_ADDRESS] if at.NODE_ADDRESS in _call("ip", "-o", "address", "show", "dev", "lo") else [],
        "chains": own_chains(),
        "rules": sorted(line for line in rules("filter") + rules("nat") if "shoal" in line or at.BRIDGE in line),
        "cgroups": sorted(map(str, _pod_cgroups())),
        "settings": [f"{name}={text}" for name in (*SETTINGS, *KUBELETS) if (text := setting(name)) is not None],
        "folders": [str(each) for each in (layout.run, *CNI_NOTES.glob(f"{at.NETWORK_NAME}-*")) if each.exists()],
    }


def differences(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    """What two snapshots do not have in common, in words. A setting that was not there before came with a kernel module, and counts for nothing."""
    known = {setting.partition("=")[0] for setting in before["settings"]}
    after = after | {"settings": [each for each in after["settings"] if each.partition("=")[0] in known]}
    return [f"{name}: {before[name]} became {after[name]}" for name in after if after[name] != before[name]]


def own_chains() -> list[str]:
    """Firewall chains that Kubernetes, CNI or our agent makes, as `table/chain`, but for those of an engine that runs no container."""
    return sorted(
        f"{table}/{chain}"
        for family in ("iptables", "ip6tables")
        for table in TABLES
        for chain in chains_in_use(rules(table, family))
    )


def chains_in_use(lines: list[str]) -> list[str]:
    """Chains of Kubernetes, CNI or our agent among the lines of `iptables-save`, without `IDLE_CHAINS` where no rule of theirs is a container's."""
    chains = _chains(lines)
    rules = [line for line in lines if line.startswith(tuple(f"-A {idle} " for idle in IDLE_CHAINS))]
    if all(rule.startswith("-A CNI-FORWARD ") and rule.endswith("-j CNI-ADMIN") for rule in rules):
        return [chain for chain in chains if chain not in IDLE_CHAINS]
    return chains


def _chains(lines: list[str]) -> list[str]:
    return [line.split()[0][1:] for line in lines if line.startswith(tuple(f":{prefix}" for prefix in OWN_CHAINS))]


def _remove_chains() -> None:
    for family in ("iptables", "ip6tables"):
        for table in TABLES:
            lines = rules(table, family)
            chains = _chains(lines)
            if not chains:
                continue
            # In one step: empty them all, take out the jumps from the built-in chains, then remove what nothing refers to any more.
            jumps = [
                line.replace("-A ", "-D ", 1)
                for line in lines
                if line.startswith("-A ")
                and line.split()[1] not in chains
                and any(f" -j {chain}" in f"{line} " or f" -g {chain}" in f"{line} " for chain in chains)
            ]
            text = [f"*{table}", *(f":{each} - [0:0]" for each in chains), *jumps, *(f"-X {each}" for each in chains)]
            _call(f"{family}-restore", "-w", "--noflush", text="\n".join([*text, "COMMIT", ""]))


def rules(table: str, family: str = "iptables") -> list[str]:
    """Lines of `iptables-save` of one table."""
    return _call(f"{family}-save", "-t", table, check=False).splitlines()


def _succeeds(*command: str) -> bool:
    done = subprocess.run([system_program(command[0]), *command[1:]], capture_output=True, check=False, timeout=60)
    return done.returncode == 0


def setting(name: str) -> str | None:
    """A kernel setting by its path below /proc/sys; None where this kernel has none of that name."""
    path = Path("/proc/sys", name)
    return path.read_text().strip() if path.exists() else None


def _mounts_below(layout: Layout) -> list[str]:
    places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    prefixes = (f"{layout.home}/", f"{layout.run}/")
    return sorted((each for each in places if each.startswith(prefixes)), reverse=True)


def _pod_cgroups() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    return [each for each in (root / "kubepods", *root.glob("*/kubepods")) if each.is_dir()]
