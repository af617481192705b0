"""Relays that feed relays, what nginx says of itself, limits of the disk, and readers who hold on to what is dropped."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from broadcast_pods import Pods
from broadcast_run import SHARD, Keys, checkpoint, cut_into

from servers import PLAIN, wait_until
from shoal.broadcast import cut
from shoal.broadcast.nginx import NGINX_PORT, ORIGIN_PORT, RELAY_PORT
from shoal.broadcast.pieces import WantedVersion
from shoal.broadcast.relay_target import NoSpace, TreeTarget
from shoal.broadcast.tree import OPEN, WEIGHTS, Tree
from shoal.contracts import keys
from shoal.contracts.relays import RateLimits, RelayConfig
from shoal.contracts.signed import sign
from shoal.contracts.weights import CheckpointFile, DeltaBase


def test_a_relay_can_be_fed_by_another_relay_and_never_asks_the_origin(pods: Pods) -> None:
    origin = pods.origin()
    first = pods.relay(origin)
    # Its run.json names an origin where nobody listens.
    second = pods.relay(pods.origin(), RelayConfig(sources=[first.url], kept_versions=3))
    client = pods.client()
    for pod in (origin, first, second):
        pod.run()
    origin.hand_in(0)
    wait_until("version 0 on the second relay", lambda: second.versions() == [0], 60)
    client.agent.say(relays=[second.url], latest_version=0)
    client.run()
    wait_until("version 0 at the client", lambda: client.held() == [0], 60)
    assert client.files(0) == checkpoint(0)
    assert second.metric(RELAY_PORT, "shoal_relay_newest_version") == 0

    # With its source away it keeps what it has, and goes on when the source is back.
    first.kill("nginx")
    first.kill("sync")
    wait_until("the second relay to miss the first", lambda: "a turn failed, trying again" in second.log("sync"), 60)
    assert second.versions() == [0]
    first.run()
    origin.hand_in(1)
    wait_until("version 1 on the second relay", lambda: second.versions() == [0, 1], 60)


def test_nginxs_own_figures_are_among_the_metrics_of_its_neighbour(pods: Pods, run_keys: Keys) -> None:
    origin = pods.origin()
    relay = pods.relay(origin)
    for pod in (origin, relay):
        pod.run()
    origin.hand_in(0)
    wait_until("version 0 on the relay", lambda: relay.versions() == [0], 60)
    for _ in range(3):
        httpx.get(f"{relay.url}/versions/index.json", headers=_token(run_keys), **PLAIN)
    assert relay.metric(RELAY_PORT, "shoal_nginx_up") == 1
    assert relay.metric(RELAY_PORT, "shoal_nginx_requests_total") >= 3
    assert relay.metric(RELAY_PORT, 'shoal_nginx_connections{state="active"}') >= 1
    assert origin.metric(ORIGIN_PORT, "shoal_nginx_requests_total") >= 3
    relay.kill("nginx")
    assert relay.metric(RELAY_PORT, "shoal_nginx_up") in (0, 1)  # workers may outlive their killed master
    relay.start_nginx("relay")  # over the socket that the killed one left
    assert relay.metric(RELAY_PORT, "shoal_nginx_up") == 1


def _token(run_keys: Keys, node: str = "a" * 64) -> dict[str, str]:
    return {"Authorization": f"Bearer {run_keys.token(node)}"}


def test_a_node_that_asks_too_much_is_told_when_to_come_again_and_others_are_not(pods: Pods, run_keys: Keys) -> None:
    origin = pods.origin()
    relay = pods.relay(origin, RelayConfig(rate_limits=RateLimits(requests_per_second=1)))
    for pod in (origin, relay):
        pod.run()
    origin.hand_in(0)
    wait_until("version 0 on the relay", lambda: relay.versions() == [0], 60)
    greedy = _token(run_keys)
    answers = [httpx.get(f"{relay.url}/versions/index.json", headers=greedy, **PLAIN) for _ in range(30)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert all(answer.headers["retry-after"] == "1" for answer in refused)
    modest = _token(run_keys, "b" * 64)
    assert httpx.get(f"{relay.url}/versions/index.json", headers=modest, **PLAIN).status_code == 200


def test_a_relay_fills_its_share_of_the_disk_and_no_more_and_serves_the_newest(pods: Pods) -> None:
    """Room for two versions of 20 MiB and the reserve: older ones go, the newest whole one stays."""
    origin = pods.origin(broadcast=cut_into(1 << 20), kept_versions=5)
    size = 20 << 20
    limit = (64 << 20) + 2 * size + (5 << 20)
    relay = pods.relay(origin, RelayConfig(kept_versions=5, disk_bytes=limit))
    for pod in (origin, relay):
        pod.run()
    for version in range(4):
        origin.hand_in(version, checkpoint(version, size))
        wait_until(f"version {version} on the relay", lambda: version in relay.versions(), 60)
        used = sum(path.stat().st_size for path in (relay.home / "www" / "versions").glob("v*/*"))
        assert used <= limit
    assert relay.versions()[-1] == 3
    assert len(relay.versions()) < 4
    assert "dropping a version because the volume is full" in relay.log("sync")


def test_who_reads_a_version_while_it_is_dropped_reads_it_to_the_end(pods: Pods, run_keys: Keys) -> None:
    """A node that is held to 64 KiB a second reads a shard of 16 s; meanwhile three newer versions push its version out."""
    origin = pods.origin(kept_versions=2, broadcast=cut_into(16 * SHARD))
    relay = pods.relay(origin, RelayConfig(kept_versions=2, rate_limits=RateLimits(bytes_per_second=SHARD)))
    client = pods.client()
    for pod in (origin, relay):
        pod.run()
    origin.hand_in(0, checkpoint(0, 40 * SHARD))
    wait_until("version 0 on the relay", lambda: relay.versions() == [0], 60)
    expected = (relay.home / "www" / keys.version_shard(0, 0)).read_bytes()
    client.agent.say(relays=[relay.url], latest_version=0)
    client.run()
    got = bytearray()

    def read() -> None:
        url = f"{relay.url}/{keys.version_shard(0, 0)}"
        with httpx.stream("GET", url, headers=_token(run_keys, "c" * 64), **PLAIN, timeout=30) as answer:
            for data in answer.iter_raw():
                got.extend(data)

    thread = threading.Thread(target=read)
    thread.start()
    wait_until("the first bytes", lambda: len(got) > 0)
    for version in (1, 2, 3):
        origin.hand_in(version, checkpoint(version, SHARD))
    wait_until("version 0 to be dropped", lambda: relay.versions() == [2, 3], 60)
    assert len(got) < len(expected)
    thread.join(60)
    assert bytes(got) == expected
    client.agent.say(latest_version=3)
    wait_until("the newest version at the client that was on the old one", lambda: 3 in client.held(), 60)


def test_two_hundred_clients_at_once_all_get_every_byte(
    pods: Pods, run_keys: Keys, read_all: Callable[[str, list[str], list[str]], list[int]]
) -> None:
    origin = pods.origin()
    relay = pods.relay(origin)
    for pod in (origin, relay):
        pod.run()
    origin.hand_in(0, checkpoint(0, 2 * SHARD))
    wait_until("version 0 on the relay", lambda: relay.versions() == [0], 60)
    folder = relay.home / "www" / "versions" / "v000000"
    names = sorted(path.name for path in folder.iterdir())
    tokens = [run_keys.token(f"{number:064x}") for number in range(200)]
    # Sixty connections that ask for a shard and never read it, and some that never ask.
    idle = [_idle(relay.address, run_keys.token("f" * 64)) for _ in range(60)]
    mute = [socket.create_connection((relay.address, NGINX_PORT)) for _ in range(20)]
    total = sum((folder / name).stat().st_size for name in names)
    counted = read_all(relay.url, [f"versions/v000000/{name}" for name in names], tokens)
    for connection in (*idle, *mute):
        connection.close()
    assert counted == [total] * 200


def _idle(address: str, token: str) -> "httpx.Client":
    client = httpx.Client(trust_env=False, verify=False)
    request = client.build_request(
        "GET", f"http://{address}:8090/{keys.version_shard(0, 0)}", headers={"Authorization": f"Bearer {token}"}
    )
    client.send(request, stream=True)
    return client


@pytest.fixture
def read_all() -> Callable[[str, list[str], list[str]], list[int]]:
    """Reads every path once with every token, all tokens at the same time; returns bytes a token."""

    def read(url: str, paths: list[str], tokens: list[str]) -> list[int]:
        counted = [0] * len(tokens)
        start = threading.Barrier(len(tokens))

        def one(number: int) -> None:
            headers = {"Authorization": f"Bearer {tokens[number]}"}
            with httpx.Client(headers=headers, trust_env=False, timeout=60, verify=False) as client:
                start.wait(60)
                for path in paths:
                    answer = client.get(f"{url}/{path}")
                    assert answer.status_code == 200, (path, answer.status_code)
                    counted[number] += len(answer.content)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(len(tokens))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        return counted

    return read


def test_space_for_a_delta_is_not_made_by_dropping_what_it_is_based_on(
    tmp_path: Path, run_keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path)
    record = cut.opening_record("tides", 0, [CheckpointFile(name="a", size=SHARD)], SHARD)
    records = [record]
    for version in (1, 2, 3):
        full = record.model_copy(update={"version": version})
        base = DeltaBase(version=version - 1, sha256="0" * 64, item_size=2)
        records.append(full if version == 1 else cut.as_delta(full, base))
    for version in (0, 1, 2):
        tree.publish(version, OPEN, sign(records[version], run_keys.trainer).to_json())
        tree.publish(version, WEIGHTS, b"{}")
    target = TreeTarget(tree, WantedVersion("tides", 3, run_keys.trainer.public))
    monkeypatch.setattr(Tree, "free_bytes", lambda _: 0)
    with pytest.raises(NoSpace, match="give the relay a larger volume"):
        target.opened(sign(records[3], run_keys.trainer))
    assert tree.held() == [1, 2]
