"""Deltas end to end, with real processes: small broadcasts, chains for who comes late, and restarts anywhere in between."""

import shutil

import pytest
from broadcast_pods import ClientPod, OriginPod, Pods, RelayPod
from broadcast_run import RUN, SHARD, Keys, cut_into, trained

from servers import wait_until
from shoal.contracts import keys
from shoal.contracts.signed import Signed
from shoal.contracts.weights import VersionOpen
from shoal.storage.versions import materialise

PUBLISHER = "shoal.broadcast.origin"
ANCHOR_EVERY = 4
SIZE = 6 * SHARD
IMPATIENT = """
import runpy
from shoal.broadcast.transfer import Transfer
Transfer.__init__.__kwdefaults__["stall_seconds"] = 3.0  # STALL_SECONDS otherwise, a minute
runpy.run_module("shoal.broadcast.fetch", run_name="__main__", alter_sys=True)
"""


class Place:
    """An origin and a relay that publish a run whose versions differ a little, and clients of the relay."""

    def __init__(self, pods: Pods) -> None:
        self.pods = pods
        self.origin: OriginPod = pods.origin(broadcast=cut_into(SHARD, ANCHOR_EVERY), kept_versions=2)
        self.relay: RelayPod = pods.relay(self.origin, broadcast=cut_into(SHARD, ANCHOR_EVERY), kept_versions=2)
        self.origin.run()
        self.relay.run()

    def publish(self, version: int) -> None:
        self.origin.hand_in(version, trained(version, SIZE))
        announced = self.pods.announcements
        wait_until(f"the announcement of {version}", lambda: version in announced.versions(), 60)

    def client(self) -> ClientPod:
        client = self.pods.client()
        client.agent.say(relays=[self.relay.url])
        client.run()
        return client

    def fetched(self, client: ClientPod, version: int) -> None:
        client.agent.say(latest_version=version)
        wait_until(f"version {version} at the client", lambda: version in client.held(), 60)
        assert client.files(version) == trained(version, SIZE)

    def wire(self, pod: OriginPod | RelayPod, version: int) -> int:
        folder = pod.home / "www" / "versions" / keys.version_name(version)
        return sum(path.stat().st_size for path in folder.glob("*.bin"))


@pytest.fixture
def place(pods: Pods) -> Place:
    return Place(pods)


def _total(version: int) -> int:
    return sum(len(data) for data in trained(version, SIZE).values())


def _record(pod: OriginPod, version: int) -> VersionOpen:
    data = (pod.home / "www" / "versions" / keys.version_name(version) / "open.json").read_bytes()
    return Signed[VersionOpen].from_json(data).document


def test_versions_travel_as_deltas_arrive_as_checkpoints_and_whole_chains_are_kept(
    place: Place, run_keys: Keys
) -> None:
    follower = place.client()
    for version in range(4):
        place.publish(version)
        place.fetched(follower, version)
    assert [_record(place.origin, version).encoding for version in range(4)] == ["full", "delta", "delta", "delta"]
    assert place.wire(place.origin, 0) == _total(0)
    assert all(place.wire(place.origin, version) < _total(version) / 5 for version in (1, 2, 3))
    spent = follower.agent.metrics
    wait_until("the metrics", lambda: spent.get("fetch_version") == 3 or follower.agent.metrics["fetch_version"] == 3)
    assert follower.agent.metrics["fetch_bytes"] < 2 * _total(0)

    # Two versions are kept, and what they are based on: all four, down to the anchor.
    wait_until("the chain on the relay", lambda: place.relay.versions() == [0, 1, 2, 3], 60)
    late = place.client()
    place.fetched(late, 3)
    assert late.held() == [3]
    chain = late.home / "weights" / ".chain"
    wait_until("the steps on the way to be removed", lambda: not chain.exists() or not list(chain.iterdir()), 30)

    # The next two are an anchor and its delta: now nobody needs the old chain.
    for version in (4, 5):
        place.publish(version)
    assert _record(place.origin, 4).encoding == "full"
    wait_until("the old chain to go", lambda: place.relay.versions() == place.origin.versions() == [4, 5], 60)
    place.fetched(late, 5)
    assert late.held()[-1] == 5
    # Who had the version before the anchor took the delta beside it, though it was asked for the one after.
    assert late.log("fetch").count("delta beside") == 1

    # The same from the store, for validators.
    copy = materialise(place.origin.store, 3, place.origin.home / "copy", RUN, run_keys.trainer.public)
    assert copy.version == 3
    assert (place.origin.home / "copy" / "model.safetensors").read_bytes() == trained(3, SIZE)["model.safetensors"]


def test_nobody_who_holds_the_version_before_an_anchor_downloads_it_in_full(place: Place, run_keys: Keys) -> None:
    for version in range(4):
        place.publish(version)
    wait_until("the chain on the relay", lambda: place.relay.versions() == [0, 1, 2, 3], 60)
    watched = place.pods.odd_relay(place.relay.home / "www", lambda _, body: body)
    holder, stranger = place.pods.client(), place.pods.client()
    holder.agent.say(relays=[watched.url], latest_version=3)
    holder.run()
    wait_until("version 3", lambda: holder.held() == [3], 60)
    store = place.origin.store
    materialise(store, 3, place.origin.home / "v000003", RUN, run_keys.trainer.public)
    watched.asked.clear()
    place.publish(4)
    holder.agent.say(latest_version=4)
    wait_until("the anchor at its holder", lambda: 4 in holder.held(), 60)
    assert holder.files(4) == trained(4, SIZE)
    record = _record(place.origin, 4)
    assert record.beside is not None
    assert (record.encoding, record.beside.version) == ("full", 3)
    taken = {path for path, _ in watched.asked if path.endswith(".bin")}
    assert taken == {keys.version_shard(4, index, beside=True) for index in range(record.shard_count)}
    folder = place.origin.home / "www" / "versions" / "v000004"
    assert sum(path.stat().st_size for path in folder.glob("beside-*.bin")) < _total(4) / 5

    # Who holds nothing takes the version in full, and no delta.
    wait_until("all of the anchor", lambda: (place.relay.home / "www/versions/v000004/weights.json").exists(), 60)
    watched.asked.clear()
    stranger.agent.say(relays=[watched.url], latest_version=4)
    stranger.run()
    wait_until("the anchor at a stranger", lambda: stranger.held() == [4], 60)
    assert stranger.files(4) == trained(4, SIZE)
    taken = {path for path, _ in watched.asked if path.endswith(".bin")}
    assert taken == {keys.version_shard(4, index) for index in range(record.shard_count)}

    # A validator that has the version before makes it from the delta alone: the shards in full may be gone.
    for index in range(record.shard_count):
        store.delete(keys.version_shard(4, index))
    materialise(store, 4, place.origin.home / "v000004", RUN, run_keys.trainer.public)
    assert (place.origin.home / "v000004" / "model.safetensors").read_bytes() == trained(4, SIZE)["model.safetensors"]


def test_a_holder_whose_delta_beside_an_anchor_is_lost_takes_the_anchor_in_full(place: Place) -> None:
    for version in range(4):
        place.publish(version)
    wait_until("the chain on the relay", lambda: place.relay.versions() == [0, 1, 2, 3], 60)
    www = place.relay.home / "www"
    lost = place.pods.odd_relay(www, lambda path, body: None if "beside-00003.bin" in path else body)
    client = place.pods.client()
    client.agent.say(relays=[lost.url], latest_version=3)
    client.start_python("fetch", "-c", IMPATIENT)
    wait_until("version 3", lambda: client.held() == [3], 60)
    place.publish(4)
    client.agent.say(latest_version=4)
    wait_until("the anchor", lambda: 4 in client.held(), 90)
    assert client.log("fetch").count('"stalled"') >= 1
    assert client.files(4) == trained(4, SIZE)


def test_a_new_trainer_pod_restores_the_delta_beside_an_anchor(place: Place) -> None:
    for version in range(5):
        place.publish(version)
    folder = place.origin.home / "www" / "versions"
    before = {path.name: path.read_bytes() for path in (folder / "v000004").iterdir()}
    assert "beside.json" in before
    place.origin.kill("publisher")
    shutil.rmtree(folder)
    place.origin.start("publisher", PUBLISHER)
    wait_until("the anchor at the origin", lambda: (folder / "v000004" / "weights.json").exists(), 60)
    assert {path.name: path.read_bytes() for path in (folder / "v000004").iterdir()} == before


def test_a_client_killed_on_its_way_along_a_chain_goes_on_from_the_step_it_had(place: Place) -> None:
    for version in range(4):
        place.publish(version)
    wait_until("the chain on the relay", lambda: place.relay.versions() == [0, 1, 2, 3], 60)
    www = place.relay.home / "www"
    stuck = place.pods.odd_relay(www, lambda path, body: None if path == keys.version_shard(2, 3) else body)
    client = place.pods.client()
    client.agent.say(relays=[stuck.url], latest_version=3)
    client.run()
    chain = client.home / "weights" / ".chain"
    wait_until("the step before the last", lambda: (chain / "v000001").exists(), 60)
    done = chain / "v000002.partial" / ".shards"
    wait_until("six of seven shards", lambda: done.exists() and done.read_bytes().count(b"\n") == 6, 60)
    client.kill("fetch")
    stuck.asked.clear()
    stuck.twist = lambda _, body: body
    client.run()
    wait_until("version 3", lambda: client.held() == [3], 60)
    assert client.files(3) == trained(3, SIZE)
    shards = {path for path, _ in stuck.asked if path.endswith(".bin")}
    assert {path for path in shards if "v000003" not in path} == {keys.version_shard(2, 3)}


def test_a_client_whose_base_rotted_on_its_disk_makes_the_version_from_the_anchor(place: Place) -> None:
    client = place.client()
    for version in range(2):
        place.publish(version)
        place.fetched(client, version)
    weights = client.home / "weights" / "v000001" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[SHARD] ^= 1
    weights.write_bytes(data)
    place.publish(2)
    place.fetched(client, 2)
    assert client.log("fetch").count("the assembled checkpoint differs from the announced one") == 1


def test_a_publisher_that_lost_its_base_publishes_in_full(place: Place) -> None:
    place.publish(0)
    wait_until("the base", lambda: (place.origin.home / "outbox" / ".base" / "v000000").exists(), 20)
    place.origin.kill("publisher")
    shutil.rmtree(place.origin.home / "outbox" / ".base")
    place.origin.start("publisher", PUBLISHER)
    place.publish(1)
    assert _record(place.origin, 1).encoding == "full"
    place.publish(2)
    assert _record(place.origin, 2).base is not None


def test_a_restarted_publisher_checks_its_base_and_goes_on_with_deltas(place: Place) -> None:
    place.publish(0)
    wait_until("the base", lambda: (place.origin.home / "outbox" / ".base" / "v000000").exists(), 20)
    place.origin.kill("publisher")
    place.origin.start("publisher", PUBLISHER)
    # Published at once, it would go out in full: the base is checked when there is nothing else to do.
    wait_until("the publisher to be up", lambda: place.pods.announcements.versions().count(0) and _up(place.origin), 60)
    place.publish(1)
    place.publish(2)
    assert _record(place.origin, 2).base is not None
    base = place.origin.home / "outbox" / ".base" / "v000002" / "model.safetensors"
    wait_until("the next base", base.exists, 20)
    place.origin.kill("publisher")
    base.write_bytes(bytes(base.stat().st_size))
    place.origin.start("publisher", PUBLISHER)
    wait_until("the check", lambda: "removing a kept base that differs" in place.origin.log("publisher"), 60)
    place.publish(3)
    assert _record(place.origin, 3).encoding == "full"


def _up(pod: OriginPod) -> bool:
    return pod.log("publisher").count("publisher started") == 2


def test_a_publisher_killed_in_the_middle_of_a_delta_makes_the_same_one_again(pods: Pods, run_keys: Keys) -> None:
    origin = pods.origin(broadcast=cut_into(SHARD, ANCHOR_EVERY))
    size = 100 * SHARD
    origin.start("publisher", PUBLISHER)
    origin.hand_in(0, trained(0, size))
    wait_until("the base", lambda: (origin.home / "outbox" / ".base" / "v000000").exists(), 60)
    origin.hand_in(1, trained(1, size))
    folder = origin.home / "www" / "versions" / "v000001"
    wait_until("some shards", lambda: len(list(folder.glob("*.bin"))) > 5, 60, interval=0.001)
    origin.kill("publisher")
    origin.start("publisher", PUBLISHER)
    wait_until("the announcement", lambda: pods.announcements.versions() == [0, 1], 60)
    materialise(origin.store, 1, origin.home / "copy", RUN, run_keys.trainer.public)
    assert (origin.home / "copy" / "model.safetensors").read_bytes() == trained(1, size)["model.safetensors"]


def test_a_new_trainer_pod_restores_whole_chains_from_the_store(place: Place) -> None:
    for version in range(4):
        place.publish(version)
    place.origin.kill("publisher")
    shutil.rmtree(place.origin.home / "www" / "versions")
    place.origin.start("publisher", PUBLISHER)
    wait_until("the chain at the origin", lambda: place.origin.versions() == [0, 1, 2, 3], 60)
