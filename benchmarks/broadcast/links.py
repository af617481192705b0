"""The links of the benchmark, and what one of them carries: the yardstick of all times.

In: the sizes of the checkpoint and the rates. Out: a `Stage` with its network and its folder. Called by `__main__`.
"""

import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.broadcast.network import Host, Network

ORIGIN_MBIT, RELAY_MBIT, CLIENT_MBIT = 1000.0, 500.0, 200.0
RELAYS, CLIENTS = 4, 8
UNEVEN_MBIT = (20.0, 40.0, 60.0, 100.0, 150.0, 200.0, 300.0, 400.0)
SHARED_MEMORY, DISK = Path("/dev/shm"), Path("/var/tmp")  # noqa: S108 - which file system; names in it come from tempfile
COPIES = (
    4 + RELAYS + CLIENTS
)  # of the checkpoint at the worst moment, over all hosts: source, outbox, `www/` and store at the origin, one elsewhere
SHARDCAST_COPIES = 2 + RELAYS + 2 * CLIENTS  # its clients put shards together from files
ROOM = 1.3  # for everything else in memory


@dataclass
class Stage:
    """An origin, relays and clients on shaped links, and a folder in memory or on disk for all of them."""

    network: Network
    origin: Host
    relays: list[Host]
    clients: list[Host]
    folder: Path
    in_memory: bool

    def close(self) -> None:
        self.network.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def stage(
    size: int,
    client_mbit: tuple[float, ...] = (CLIENT_MBIT,) * CLIENTS,
    relay_count: int = RELAYS,
    origin_and_relay_share: float = 1.0,
) -> Stage:
    """Links are symmetrical. Folders lie in memory when there is room, so that thirteen hosts do not share one disk.

    `origin_and_relay_share`: of the rates of these links; the clients' are given.
    """
    in_memory = SHARED_MEMORY.is_dir() and _free_memory() > ROOM * COPIES * size
    folder = Path(tempfile.mkdtemp(prefix="shb", dir=SHARED_MEMORY if in_memory else DISK))
    network = Network()
    try:
        origin = network.host("origin", *[ORIGIN_MBIT * origin_and_relay_share] * 2)
        relay_mbit = RELAY_MBIT * origin_and_relay_share
        relays = [network.host(f"relay{number}", relay_mbit, relay_mbit) for number in range(relay_count)]
        clients = [network.host(f"client{number}", rate, rate) for number, rate in enumerate(client_mbit)]
    except BaseException:
        network.close()
        raise
    return Stage(network, origin, relays, clients, folder, in_memory)


@contextmanager
def roomy(made: Stage, size: int) -> Iterator[Stage]:
    """The same stage, on disk if memory lacks for what shardcast keeps."""
    if not made.in_memory or _free_memory() > ROOM * SHARDCAST_COPIES * size:
        yield made
        return
    folder = Path(tempfile.mkdtemp(prefix="shb", dir=DISK))
    try:
        yield replace(made, folder=folder, in_memory=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def one_link_seconds(made: Stage, file: Path, mbit_of: int = 0) -> float:
    """How long one client's link needs for one copy of `file`: curl from an idle nginx at a relay, nothing else running."""
    from benchmarks.broadcast.peers import curl, nginx

    relay, client = made.relays[0], made.clients[mbit_of]
    nginx(relay, file.parent, made.folder / "yardstick")
    started = time.monotonic()
    process = curl(client, f"http://{relay.address}:8080/{file.name}", made.folder / "yardstick.bin")
    if process.wait(3600) != 0:
        raise RuntimeError(f"curl ended with {process.returncode}")
    seconds = time.monotonic() - started
    (made.folder / "yardstick.bin").unlink()
    made.network.stop_all()
    return seconds


def touch_memory(made: Stage, size: int) -> None:
    """Write and forget so many bytes where the stage lies: the first touch of memory in a fresh virtual machine costs 1.6 s a GB."""
    path, block = made.folder / "touch", bytes(1 << 20)
    with path.open("wb") as file:
        for _ in range(0, size, len(block)):
            file.write(block)
    path.unlink()


def random_file(path: Path, size: int, seed: int = 0) -> Path:
    """Bytes that do not compress."""
    chance = random.Random(seed)
    with path.open("wb") as file:
        for at in range(0, size, 1 << 20):
            file.write(chance.randbytes(min(1 << 20, size - at)))
    return path


def _free_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
