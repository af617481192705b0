"""A network of shaped links on this machine: a namespace a host, a bridge between them, `tc tbf` on both ends of every link.

In: rates in Mb/s. Out: hosts in which commands are run. Needs root and network namespaces; `usable()` says whether there are any. Nothing
reaches further than the bridge, and `close` takes everything away. Called by `ours` and `peers`.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SUBNET = "10.231.77"
LATENCY = "50ms"  # tbf's queue: about a switch's buffer
TICKS = os.sysconf("SC_CLK_TCK")


def usable() -> str | None:
    """None, or why shaped links cannot be made here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "ip and tc are not installed (Debian package iproute2)"
    name = f"shb{os.getpid()}t"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"this kernel or container allows no network namespaces: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return None


def wait(what: str, poll: Callable[[], bool], seconds: float, interval: float = 0.05) -> None:
    """Until `poll` says True; raises TimeoutError with `what` after `seconds`."""
    end = time.monotonic() + seconds
    while not poll():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(interval)


@dataclass
class Host:
    """One host. Its processes end with the network."""

    name: str
    namespace: str
    address: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self, command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command in this host; its output goes to `log`."""
        with log.open("ab") as out:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *map(str, command)],
                env={
                    "PATH": os.environ["PATH"],
                    "OMP_NUM_THREADS": "1",
                    "HOME": str(log.parent),
                    **(environment or {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def cpu_seconds(self) -> float:
        """CPU time so far of everything that was started here and lives, children included."""
        return sum(_group_seconds(process.pid) for process in self.processes)

    def stop(self) -> None:
        for process in self.processes:
            _signal(process.pid, signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                pass
            _signal(process.pid, signal.SIGKILL)
            process.wait(5)
        self.processes.clear()


class Network:
    """Hosts on one bridge."""

    def __init__(self) -> None:
        self._prefix = f"shb{os.getpid()}"
        self._hub = f"{self._prefix}hub"
        self.hosts: list[Host] = []
        _ip("netns", "add", self._hub)
        self._in_hub("ip", "link", "add", "br0", "type", "bridge")
        self._in_hub("ip", "link", "set", "br0", "up")

    def host(self, name: str, up_mbit: float, down_mbit: float) -> Host:
        """A host whose link carries `up_mbit` from it and `down_mbit` to it."""
        number = len(self.hosts) + 1
        host = Host(name, f"{self._prefix}n{number}", f"{SUBNET}.{number}")
        self.hosts.append(host)
        _ip("netns", "add", host.namespace)
        _ip(
            "-n",
            self._hub,
            "link",
            "add",
            f"p{number}",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            host.namespace,
        )
        self._in_hub("ip", "link", "set", f"p{number}", "master", "br0", "up")
        _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", host.namespace, "link", "set", device, "up")
        _run(["ip", "netns", "exec", host.namespace, *shape("eth0", up_mbit)])
        self._in_hub(*shape(f"p{number}", down_mbit))
        return host

    def stop_all(self) -> None:
        """End all processes, keep the links."""
        for host in self.hosts:
            host.stop()

    def close(self) -> None:
        self.stop_all()
        for host in self.hosts:
            subprocess.run(["ip", "netns", "del", host.namespace], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", self._hub], check=False, capture_output=True)

    def _in_hub(self, *command: str) -> None:
        _run(["ip", "netns", "exec", self._hub, *command])


def shape(device: str, mbit: float) -> list[str]:
    """The command that bounds what leaves a device."""
    burst = max(32 << 10, int(mbit * 1e6 / 8 / 100))  # 10 ms of the rate: more than a timer tick
    return f"tc qdisc add dev {device} root tbf rate {mbit:g}mbit burst {burst} latency {LATENCY}".split()


def _ip(*arguments: str) -> None:
    _run(["ip", *arguments])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def _group_seconds(group: int) -> float:
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        if int(fields[2]) == group:
            ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass
