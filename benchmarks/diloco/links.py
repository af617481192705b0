"""Hosts in namespaces on links of a WAN's rate and delay: `tc tbf` for the rate, `delay` for the delay.

In: rate (Mb/s), delay one way (ms). Out: hosts, and the round trip of a TCP connection between them. Needs root, namespaces and `/dev/net/tun`;
`unusable()` says what is missing. Nothing reaches further than these namespaces, and `close` takes everything away. Called by `__main__`.
"""

import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.broadcast import network
from benchmarks.diloco.delay import DEVICE, enter
from benchmarks.diloco.islands import Host

ROOT = Path(__file__).resolve().parents[2]
SUBNET = "10.231.78"
MTU = 1500
START_SECONDS = 30.0


def unusable() -> str | None:
    """None, or why such links cannot be made here."""
    if why := network.usable():
        return why
    return None if os.path.exists("/dev/net/tun") else "there is no /dev/net/tun"


class Links:
    """`count` hosts that reach one another."""

    def __init__(self, count: int, mbit: float, delay_ms: float) -> None:
        self._namespaces = [f"shd{os.getpid()}n{number}" for number in range(1, count + 1)]
        self.hosts = [Host(f"{SUBNET}.{number}", name) for number, name in enumerate(self._namespaces, 1)]
        self._carrier: subprocess.Popen[bytes] | None = None
        try:
            for name in self._namespaces:
                _run("ip", "netns", "add", name)
            self._carrier = self._start(delay_ms)
            for host, name in zip(self.hosts, self._namespaces, strict=True):
                _run("ip", "-n", name, "addr", "add", f"{host.address}/24", "dev", DEVICE)
                _run("ip", "-n", name, "link", "set", DEVICE, "mtu", str(MTU), "txqueuelen", "1000", "up")
                _run("ip", "-n", name, "link", "set", "lo", "up")
                _run("ip", "netns", "exec", name, *network.shape(DEVICE, mbit))
        except BaseException:
            self.close()
            raise

    def _start(self, delay_ms: float) -> subprocess.Popen[bytes]:
        ends = [f"{host.namespace}={host.address}" for host in self.hosts]
        carrier = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.diloco.delay", "--milliseconds", f"{delay_ms:g}", *ends],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert carrier.stdout is not None
        self._carrier = carrier
        if not select.select([carrier.stdout], [], [], START_SECONDS)[0] or carrier.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the links were not up within {START_SECONDS:.0f} s")
        return carrier

    def round_trip_ms(self) -> float:
        """How long a TCP connection from the second host to the first takes: one round trip; the smallest of three."""
        first, second = self.hosts[:2]
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            enter(str(first.namespace))
            with socket.create_server((first.address, 0)) as server:
                enter(str(second.namespace))
                found = []
                for _ in range(3):
                    began = time.monotonic()
                    with socket.create_connection(server.getsockname(), timeout=30):
                        found.append(time.monotonic() - began)
                return 1000 * min(found)
        finally:
            enter(home)
            os.close(home)

    def close(self) -> None:
        """Take everything away; what still runs in the namespaces is the caller's."""
        if self._carrier is not None:
            self._carrier.kill()
            self._carrier.wait(10)
            for pipe in (self._carrier.stdin, self._carrier.stdout):
                assert pipe is not None
                pipe.close()
        for name in self._namespaces:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
