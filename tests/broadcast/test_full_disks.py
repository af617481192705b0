"""Disks that fill up, at the origin, a relay and a client: nothing torn is served, and everybody goes on when there is room again.

Real file systems of a few megabytes (tmpfs), filled by a file that the test takes away again; mounting them needs root.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broadcast_pods import Pods
from broadcast_run import SHARD, checkpoint, cut_into, trained

from servers import lacking, wait_until
from shoal.broadcast.fetch import kept_versions
from shoal.broadcast.weights_folder import DISK_RESERVE_BYTES
from shoal.contracts.relays import RelayConfig

SMALL_BYTES = 160 << 20  # more than the reserve of 64 MiB that relays and clients leave
SIZE = 40 * SHARD
Mount = Callable[[Path], "Filler"]


class Filler:
    """A file that takes nearly all of a file system."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "filler"

    def fill(self, left_bytes: int) -> None:
        usage = os.statvfs(self._path.parent)
        with self._path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, usage.f_bavail * usage.f_frsize - left_bytes)

    def free(self) -> None:
        self._path.unlink()


@pytest.fixture
def mount() -> Iterator[Mount]:
    made: list[Path] = []

    def small(folder: Path) -> Filler:
        folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_BYTES}", "shoal-test", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
            lacking("a small file system", "run the tests as root on a kernel that lets root mount tmpfs")
        made.append(folder)
        return Filler(folder)

    yield small
    for folder in made:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_an_origin_whose_disk_is_full_publishes_when_there_is_room(pods: Pods, mount: Mount) -> None:
    origin = pods.origin()
    filler = mount(origin.home / "www")
    filler.fill(SIZE // 2)
    origin.start_nginx("origin")
    origin.start("publisher", "shoal.broadcast.origin")
    origin.hand_in(0, checkpoint(0, SIZE))
    wait_until("the publisher to say so", lambda: "No space left on device" in origin.log("publisher"), 60)
    assert origin.versions() == []
    assert pods.announcements.versions() == []
    filler.free()
    wait_until("the announcement", lambda: pods.announcements.versions() == [0], 60)


def test_a_relay_whose_disk_is_full_says_so_and_goes_on_when_there_is_room(pods: Pods, mount: Mount) -> None:
    origin = pods.origin()
    relay = pods.relay(origin)
    filler = mount(relay.home / "www")
    for pod in (origin, relay):
        pod.run()
    origin.hand_in(0, checkpoint(0, SHARD))
    wait_until("version 0 on the relay", lambda: relay.versions() == [0], 60)
    filler.fill((64 << 20) + SIZE // 2)
    origin.hand_in(1, checkpoint(1, SIZE))
    wait_until("the relay to say so", lambda: "give the relay a larger volume" in relay.log("sync"), 60)
    assert relay.versions() == [0]
    filler.free()
    wait_until("version 1 on the relay", lambda: relay.versions() == [0, 1], 60)


def test_a_client_whose_disk_is_full_keeps_its_version_and_goes_on_when_there_is_room(pods: Pods, mount: Mount) -> None:
    origin = pods.origin()
    relay = pods.relay(origin)
    client = pods.client()
    filler = mount(client.home / "weights")
    for pod in (origin, relay, client):
        pod.run()
    origin.hand_in(0, checkpoint(0, SHARD))
    wait_until("version 0 on the relay", lambda: relay.versions() == [0], 60)
    client.agent.say(relays=[relay.url], latest_version=0)
    wait_until("version 0 at the client", lambda: client.held() == [0], 60)
    filler.fill((64 << 20) + SIZE // 2)
    origin.hand_in(1, checkpoint(1, SIZE))
    wait_until("version 1 on the relay", lambda: relay.versions() == [0, 1], 60)
    client.agent.say(latest_version=1)
    wait_until("the client to say so", lambda: "give weights/ a larger volume" in client.log("fetch"), 60)
    assert client.held() == [0]
    filler.free()
    wait_until("version 1 at the client", lambda: client.held() == [0, 1], 60)
    assert client.files(1) == checkpoint(1, SIZE)


def test_a_volume_for_the_versions_kept_is_enough_for_a_whole_run(pods: Pods, mount: Mount) -> None:
    """Versions were once removed only after the next one had come, so that a volume for five of them stopped the run at the fifth."""
    kept, size = kept_versions(None), 8 << 20
    origin = pods.origin()
    relay = pods.relay(origin)
    client = pods.client()
    filler = mount(client.home / "weights")
    filler.fill(DISK_RESERVE_BYTES + kept * size + size // 2)
    for pod in (origin, relay, client):
        pod.run()
    client.agent.say(relays=[relay.url])
    for version in range(kept + 3):
        origin.hand_in(version, checkpoint(version, size))
        wait_until(f"version {version} on the relay", lambda: version in relay.versions(), 60)
        client.agent.say(latest_version=version)
        wait_until(f"version {version} at the client", lambda: version in client.held(), 60)
    assert "larger volume" not in client.log("fetch")
    assert client.held() == list(range(3, kept + 3))
    assert client.files(kept + 2) == checkpoint(kept + 2, size)


def test_a_client_that_was_away_has_room_for_a_chain_of_deltas(pods: Pods, mount: Mount) -> None:
    """Links of a chain are needed one after the other: they never take more room than two versions."""
    kept, size = kept_versions(None), 8 << 20
    deltas = cut_into(16 * SHARD, 100)
    origin = pods.origin(broadcast=deltas, kept_versions=12)
    relay = pods.relay(origin, RelayConfig(kept_versions=12), broadcast=deltas, kept_versions=12)
    client = pods.client()
    filler = mount(client.home / "weights")
    filler.fill(DISK_RESERVE_BYTES + kept * size + size // 2)
    for pod in (origin, relay, client):
        pod.run()
    for version in range(8):
        origin.hand_in(version, trained(version, size))
        wait_until(f"version {version} on the relay", lambda: version in relay.versions(), 60)
    client.agent.say(relays=[relay.url], latest_version=7)
    wait_until("version 7 at the client", lambda: 7 in client.held(), 60)
    assert client.files(7) == trained(7, size)
    assert '"chain": 8' in client.log("fetch")
    assert "larger volume" not in client.log("fetch")
