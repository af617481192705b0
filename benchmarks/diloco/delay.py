"""Links with delay where the kernel has no netem: a TUN device in each namespace, and one process that carries packets between them, late.

    python -m benchmarks.diloco.delay --milliseconds 50 NAMESPACE=ADDRESS NAMESPACE=ADDRESS

In: namespaces that exist, and the address of each. Out: `ready` on standard output once every namespace has a device `eth0`; then each packet comes
out at the device of its destination so many milliseconds after it went in, in order. Any protocol works: what a program sees is a slow link. It ends
with its standard input. At most `MOST_BYTES` are under way to one host; what is more is dropped, as on any link. Started by `links`.
"""

import argparse
import ctypes
import fcntl
import ipaddress
import os
import selectors
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
DEVICE = "eth0"
PACKET_BYTES = 1 << 16
MOST_BYTES = 32 << 20
"""A second of 100 Mb/s is 12 MB."""
PACKETS_A_TURN = 64


@dataclass
class Line:
    """What is under way to one host, oldest first. Times are those of one monotonic clock, in seconds."""

    seconds: float
    most_bytes: int = MOST_BYTES
    held_bytes: int = 0
    dropped: int = 0
    _packets: deque[tuple[float, bytes]] = field(default_factory=deque)

    def put(self, packet: bytes, now: float) -> None:
        """Take a packet, or drop it when too much is under way."""
        if self.held_bytes + len(packet) > self.most_bytes:
            self.dropped += 1
            return
        self.held_bytes += len(packet)
        self._packets.append((now + self.seconds, packet))

    def due(self, now: float) -> list[bytes]:
        """Packets whose time has come, in the order in which they were put."""
        found = []
        while self._packets and self._packets[0][0] <= now:
            found.append(self._packets.popleft()[1])
        self.held_bytes -= sum(map(len, found))
        return found

    @property
    def next_due(self) -> float | None:
        """When the oldest packet comes out, None when there is none."""
        return self._packets[0][0] if self._packets else None


def destination(packet: bytes) -> bytes | None:
    """The four bytes of an IPv4 packet's destination, None for anything else."""
    return packet[16:20] if len(packet) >= 20 and packet[0] >> 4 == 4 else None


def carry(devices: dict[bytes, int], seconds: float) -> None:
    """Carry packets between devices (by address) until standard input ends."""
    lines = {address: Line(seconds) for address in devices}
    with selectors.DefaultSelector() as selector:
        for device in devices.values():
            os.set_blocking(device, False)
            selector.register(device, selectors.EVENT_READ)
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while True:
            times = [line.next_due for line in lines.values() if line.next_due is not None]
            ready = selector.select(max(0.0, min(times) - time.monotonic()) if times else None)
            now = time.monotonic()
            for key, _ in ready:
                if key.fd == sys.stdin.fileno():
                    return
                for packet in _read(key.fd):
                    line = lines.get(destination(packet) or b"")
                    if line is not None:
                        line.put(packet, now)
            for address, line in lines.items():
                for packet in line.due(time.monotonic()):
                    try:
                        os.write(devices[address], packet)
                    except OSError:  # the device's queue is full, or it is going down: a link loses packets
                        line.dropped += 1


def _read(device: int) -> list[bytes]:
    found = []
    for _ in range(PACKETS_A_TURN):
        try:
            found.append(os.read(device, PACKET_BYTES))
        except BlockingIOError:
            break
    return found


def enter(namespace: str | int) -> None:
    """Move this process into a namespace of `ip netns`, or into one by its descriptor."""
    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY) if isinstance(namespace, str) else namespace
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"entering namespace {namespace}")
    finally:
        if isinstance(namespace, str):
            os.close(descriptor)


def make_device() -> int:
    """A TUN device `eth0` in this process's namespace; it lives as long as its descriptor."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    except OSError:
        os.close(device)
        raise
    return device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, required=True, help="delay one way")
    parser.add_argument("hosts", nargs="+", metavar="NAMESPACE=ADDRESS")
    asked = parser.parse_args()
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    devices = {}
    for host in asked.hosts:
        namespace, _, address = host.partition("=")
        enter(namespace)
        devices[ipaddress.IPv4Address(address).packed] = make_device()
        enter(home)
    print("ready", flush=True)
    carry(devices, asked.milliseconds / 1000)


if __name__ == "__main__":
    main()
