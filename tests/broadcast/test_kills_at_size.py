"""Every part is killed while a version of 4 GB goes from the outbox to a client: a thousand shards, each whole and once at its end.

Twenty gigabytes of a disk and some minutes of a processor.
"""

import hashlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from broadcast_pods import ClientPod, Pod, Pods
from broadcast_run import Keys, cut_into

from servers import wait_until
from shoal.broadcast.nginx import stray_workers
from shoal.contracts import keys

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

SHARDS = 1000
SHARD_BYTES = 4 << 20
SIZE = SHARDS * SHARD_BYTES
WAIT_SECONDS = 1200.0


def hand_in(outbox: Path) -> str:
    """Version 0, every shard of it other bytes; the SHA-256 of its weights."""
    making = outbox / ".making-v000000"
    making.mkdir()
    (making / "config.json").write_bytes(b"{}")
    digest, noise = hashlib.sha256(), os.urandom(SHARD_BYTES - 8)
    with (making / "model.safetensors").open("wb") as file:
        for index in range(SHARDS):
            for piece in (index.to_bytes(8, "little"), noise):
                file.write(piece)
                digest.update(piece)
    making.rename(outbox / keys.version_name(0))
    return digest.hexdigest()


def in_tree(pod: Pod) -> int:
    """Shards that lie in what the pod serves."""
    return sum(1 for _ in (pod.home / "www").glob("versions/v000000/**/*.bin"))


def at_client(client: ClientPod) -> int:
    log = client.home / "weights" / "v000000.partial" / ".shards"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def kill_nginx(pod: Pod) -> None:
    master = pod.pid("nginx")
    pod.kill("nginx")
    for worker in stray_workers(master):
        os.kill(worker, signal.SIGKILL)


@pytest.fixture
def large(pods: Pods, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    """Pods whose gigabytes go with the test."""
    yield pods
    pods.stop()
    for folder in tmp_path_factory.getbasetemp().glob("b*/*-*"):
        shutil.rmtree(folder)


def test_each_part_is_killed_in_the_middle_of_4_gb_and_every_shard_arrives(large: Pods, run_keys: Keys) -> None:
    settings = {"broadcast": cut_into(SHARD_BYTES)}
    origin = large.origin(**settings)
    relay = large.relay(origin, **settings)
    client = large.client()
    client.agent.say(relays=[relay.url], latest_version=None, relay_token=run_keys.token(seconds=7200))
    for pod in (origin, relay, client):
        pod.run()
    digest = hand_in(origin.home / "outbox")

    wait_until("a quarter of the shards at the origin", lambda: in_tree(origin) > SHARDS // 4, WAIT_SECONDS)
    origin.kill("publisher")
    assert in_tree(origin) < SHARDS
    kill_nginx(origin)
    origin.run()

    wait_until("a third of the shards at the relay", lambda: in_tree(relay) > SHARDS // 3, WAIT_SECONDS)
    relay.kill("sync")
    assert in_tree(relay) < SHARDS
    relay.start("sync", "shoal.broadcast.relay")

    wait_until("half of the shards at the client", lambda: at_client(client) > SHARDS // 2, WAIT_SECONDS)
    kill_nginx(relay)
    client.kill("fetch")
    had = at_client(client)
    assert SHARDS // 2 < had < SHARDS
    relay.start_nginx("relay")
    client.run()

    wait_until("the announcement", lambda: large.announcements.versions() == [0], WAIT_SECONDS)
    client.agent.say(latest_version=0)
    wait_until("version 0 at the client", lambda: client.held() == [0], WAIT_SECONDS)
    with (client.home / "weights" / "v000000" / "model.safetensors").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == digest
    assert in_tree(relay) == in_tree(origin) == SHARDS + 1  # the bytes of config.json move all cuts
    assert sum(1 for key in origin.store.list("versions/") if key.key.endswith(".bin")) == SHARDS + 1
    assert list((client.home / "weights").glob("*.partial")) == []
