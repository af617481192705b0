"""Disks that fill up, at the origin, a relay and a client: nothing torn is served, and everybody goes on when there is room again.

The disks are real ones of some megabytes, filled by a file that the test takes away again.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broadcast_pods import Pods
from broadcast_run import SHARD, checkpoint, cut_into, trained

from servers import wait_until
from shoal.broadcast.fetch import kept_versions
from shoal.broadcast.weights_folder import DISK_RESERVE_BYTES
from shoal.contracts.relays import RelayConfig
from small_disks import SmallDisk

SMALL_BYTES = 160 << 20  # more than the reserve of 64 MiB that relays and clients leave
SIZE = 40 * SHARD
Mount = Callable[[Path], SmallDisk]


@pytest.fixture
def mount() -> Iterator[Mount]:
    made: list[SmallDisk] = []

    def small(folder: Path) -> SmallDisk:
        made.append(SmallDisk(folder, SMALL_BYTES))
        return made[-1]

    yield small
    for disk in made:
        disk.unmount()


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
