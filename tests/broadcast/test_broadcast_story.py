"""The whole way of a version with real processes: outbox, origin, relays, client; and what happens when parts of it are killed."""

import json

from broadcast_pods import Pods
from broadcast_run import SHARD, Keys, checkpoint

from servers import wait_until
from shoal.broadcast.nginx import RELAY_PORT
from shoal.contracts import keys
from shoal.storage.checkpoint_files import read_manifest


def test_a_version_goes_from_the_outbox_to_the_client_and_every_part_tells_of_it(pods: Pods, run_keys: Keys) -> None:
    origin = pods.origin()
    relays = [pods.relay(origin), pods.relay(origin)]
    client = pods.client()
    for pod in (origin, *relays, client):
        pod.run()
    origin.hand_in(0)
    wait_until("the announcement of version 0", lambda: pods.announcements.versions() == [0], 60)
    client.agent.say(relays=[relay.url for relay in relays], latest_version=0)
    wait_until("version 0 at the client", lambda: client.held() == [0], 60)

    assert client.files(0) == checkpoint(0)
    manifest = read_manifest(client.home / "weights" / "v000000", run_keys.trainer.public)
    assert manifest.sha256 == pods.announcements.taken[0].weights_digest
    assert not (origin.home / "outbox" / "v000000").exists()
    assert (
        origin.store.get(keys.version_weights(0))
        == (origin.home / "www" / "versions" / "v000000" / "weights.json").read_bytes()
    )
    total = sum(len(data) for data in checkpoint(0).values())
    wait_until("the metrics at the agent", lambda: client.agent.metrics.get("fetch_bytes") == total, 10)
    wait_until(
        "the relays' count of what they served",
        lambda: sum(relay.metric(RELAY_PORT, "shoal_relay_served_bytes_total") for relay in relays) >= total,
        15,
    )

    # One relay dies with its agent; the next version comes over the other.
    relays[0].kill("sync")
    relays[0].kill("nginx")
    origin.hand_in(1)
    wait_until("the announcement of version 1", lambda: pods.announcements.versions() == [0, 1], 60)
    client.agent.say(latest_version=1)
    wait_until("version 1 at the client", lambda: client.held() == [0, 1], 60)
    assert client.files(1) == checkpoint(1)

    # It comes back where it was: nginx takes its port although workers of the old one were left behind.
    relays[0].run()
    wait_until("version 1 on the relay that was away", lambda: relays[0].versions() == [0, 1], 60)

    # With every relay away the client stays as it is, and goes on when one is back.
    for relay in relays:
        relay.kill("sync")
    origin.hand_in(2)
    wait_until("the announcement of version 2", lambda: pods.announcements.versions() == [0, 1, 2], 60)
    client.agent.say(latest_version=2)
    wait_until("tries that fail", lambda: "a try failed" in client.log("fetch"), 60)
    assert client.held() == [0, 1]
    relays[1].start("sync", "shoal.broadcast.relay")
    wait_until("version 2 at the client", lambda: 2 in client.held(), 60)
    assert client.files(2) == checkpoint(2)


def test_a_client_skips_to_the_newest_version_and_keeps_the_last_few(pods: Pods) -> None:
    origin = pods.origin(kept_versions=10)
    relay = pods.relay(origin, kept_versions=10)
    client = pods.client()
    for pod in (origin, relay):
        pod.run()
    for version in range(3):
        origin.hand_in(version, checkpoint(version, SHARD // 2))
    wait_until("three announcements", lambda: pods.announcements.versions() == [0, 1, 2], 60)
    client.agent.say(relays=[relay.url], latest_version=2)
    client.run()
    wait_until("the newest version at the client", lambda: client.held() == [2], 60)
    for version in range(3, 10):
        origin.hand_in(version, checkpoint(version, SHARD // 2))
        wait_until(f"the announcement of {version}", lambda: version in pods.announcements.versions(), 60)
        client.agent.say(latest_version=version)
        wait_until(f"version {version} at the client", lambda: client.held()[-1] == version, 60)
    # Until the run's async level is known, the greatest possible one (4) counts: 4 + 2 versions.
    wait_until("old versions to go", lambda: client.held() == [4, 5, 6, 7, 8, 9], 10)
    assert json.loads((relay.home / "www" / "versions" / "index.json").read_text())["versions"] == list(range(10))
