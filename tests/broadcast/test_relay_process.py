"""A relay as processes: real nginx in front, the sync agent behind; who may read, what is served, and kills in between."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from broadcast_pods import OriginPod, Pods, RelayPod
from broadcast_run import RUN, SHARD, Keys, checkpoint

from servers import PLAIN, Loopback, answers, wait_until
from shoal.broadcast.nginx import NGINX_PORT, RELAY_PORT, places_of, render, stray_workers
from shoal.contracts import keys
from shoal.contracts.protocol import RelayToken
from shoal.contracts.relay_token import encode
from shoal.contracts.relays import RateLimits, RelayConfig
from shoal.contracts.weights import VersionIndex

Served = tuple[OriginPod, RelayPod]


@pytest.fixture(scope="module")
def served(
    run_keys: Keys, loopback: Loopback, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[OriginPod, RelayPod]]:
    """An origin and a relay that both hold version 0, shared by the tests that only read."""
    made = Pods(run_keys, loopback, tmp_path_factory.mktemp("b"))
    origin = made.origin()
    relay = made.relay(origin)
    for pod in (origin, relay):
        pod.run()
    origin.hand_in(0)
    wait_until("version 0 on the relay", lambda: relay.versions() == [0], 60)
    yield origin, relay
    made.stop()


def _get(
    pod: OriginPod | RelayPod, path: str, token: str | None, method: str = "GET", **headers: str
) -> httpx.Response:
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return httpx.request(method, f"{pod.url}/{path}", headers=headers, **PLAIN, timeout=20)


def test_a_relay_serves_exactly_the_origins_bytes(served: Served, run_keys: Keys) -> None:
    origin, relay = served
    theirs = origin.home / "www" / "versions"
    for path in sorted(theirs.glob("v000000/*")):
        answer = _get(relay, f"versions/v000000/{path.name}", run_keys.token())
        assert answer.status_code == 200
        assert answer.content == path.read_bytes()
    index = _get(relay, "versions/index.json", run_keys.token())
    assert VersionIndex.from_json(index.content).versions == [0]


def test_a_range_is_served_and_head_has_no_body(served: Served, run_keys: Keys) -> None:
    _, relay = served
    whole = (relay.home / "www" / keys.version_shard(0, 1)).read_bytes()
    part = _get(relay, keys.version_shard(0, 1), run_keys.token(), Range="bytes=1000-")
    assert (part.status_code, part.content) == (206, whole[1000:])
    assert part.headers["content-range"] == f"bytes 1000-{SHARD - 1}/{SHARD}"
    head = _get(relay, keys.version_shard(0, 1), run_keys.token(), "HEAD")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(SHARD))


@pytest.mark.parametrize("path", ["versions/index.json", "versions/v000000/open.json", "versions/v000000/00000.bin"])
def test_without_a_good_token_nothing_is_served(served: Served, run_keys: Keys, path: str) -> None:
    _, relay = served
    stranger = Keys()
    for token in (
        None,
        "rubbish",
        "a.b",
        "x" * 2000,
        run_keys.token(seconds=-5),
        run_keys.token(run="another-run"),
        run_keys.token(signer="trainer"),
        run_keys.token(signer="relay"),
        stranger.token(),
    ):
        answer = _get(relay, path, token)
        assert answer.status_code == 401, token
        assert answer.headers["www-authenticate"].startswith("Bearer ")


def test_a_token_dies_with_its_time_although_it_was_good_before(served: Served, run_keys: Keys) -> None:
    _, relay = served
    token = run_keys.token(seconds=2)
    assert _get(relay, "versions/index.json", token).status_code == 200
    wait_until("the token to expire", lambda: _get(relay, "versions/index.json", token).status_code == 401, 20)


def test_the_origin_takes_the_relays_token_and_nobody_elses(served: Served, run_keys: Keys) -> None:
    origin, _ = served
    relay_key = run_keys.roles["relay"]
    own = RelayToken(run=RUN, node=relay_key.public, expires_unix=int(time.time()) + 30)
    assert _get(origin, "versions/index.json", encode(own, relay_key)).status_code == 200
    assert _get(origin, "versions/index.json", run_keys.token()).status_code == 401
    assert _get(origin, "versions/index.json", run_keys.token(signer="relay")).status_code == 401
    assert _get(origin, "versions/index.json", None).status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "",
        "versions/",
        "versions/v000000/",
        "versions",
        "token",
        "auth",
        "logs/counted.json",
        "tmp/",
        "versions/../logs/counted.json",
        "versions/%2e%2e/logs/counted.json",
        "versions/v000000/passwd",
        "versions/v000009/open.json",
        "config/run.json",
        "none",
    ],
)
def test_there_is_nothing_else_to_read_and_no_listing(served: Served, run_keys: Keys, path: str) -> None:
    _, relay = served
    assert _get(relay, path, run_keys.token()).status_code == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_only_get_and_head_are_answered(served: Served, run_keys: Keys, method: str) -> None:
    _, relay = served
    assert _get(relay, "versions/index.json", run_keys.token(), method).status_code == 405


def test_what_is_served_is_counted_and_the_server_named(served: Served, run_keys: Keys) -> None:
    _, relay = served
    before = relay.metric(RELAY_PORT, "shoal_relay_served_bytes_total")
    for _ in range(3):
        _get(relay, keys.version_shard(0, 0), run_keys.token())
    wait_until(
        "three shards to be counted",
        lambda: relay.metric(RELAY_PORT, "shoal_relay_served_bytes_total") >= before + 3 * SHARD,
        20,
    )
    assert relay.metric(RELAY_PORT, 'shoal_relay_server_info{server="nginx/') == 1


def test_an_nginx_whose_master_was_killed_starts_again_on_its_port(served: Served, run_keys: Keys) -> None:
    _, relay = served
    old = relay.pid("nginx")
    relay.kill("nginx")
    wait_until("workers to be left without their master", lambda: not Path(f"/proc/{old}").exists(), 10)
    orphans = stray_workers(old)
    relay.start_nginx("relay")
    new = relay.pid("nginx")
    wait_until("the old workers to end", lambda: not stray_workers(old), 10)
    wait_until(
        "the new nginx to serve",
        lambda: f"pid {new}" and _get(relay, "versions/index.json", run_keys.token()).status_code == 200,
        10,
    )
    assert orphans
    assert not any(Path(f"/proc/{pid}").exists() for pid in orphans)


def test_a_live_masters_workers_are_no_strays() -> None:
    assert stray_workers(os.getpid()) == []
    assert stray_workers(0) == stray_workers(1) == []


def test_shards_are_on_the_relay_before_the_version_is_sealed(pods: Pods, run_keys: Keys) -> None:
    """The store takes no shards, so the origin cannot seal: everything but the seal is on the relay already."""
    origin = pods.origin()
    relay = pods.relay(origin)
    for pod in (origin, relay):
        pod.run()
    wait_until("the publisher to look at the store", lambda: "publisher started" in origin.log("publisher"), 60)
    origin.hand_in(0, checkpoint(0, SHARD))
    wait_until("version 0 on the relay", lambda: relay.versions() == [0], 60)
    folder = relay.home / "www" / "versions" / "v000001"
    in_the_way = origin.home / "store" / "shoal" / RUN / "versions" / "v000001" / "00000.bin" / "folder"
    in_the_way.mkdir(parents=True)
    origin.hand_in(1)
    shards = -(-sum(len(data) for data in checkpoint(1).values()) // SHARD)
    wait_until("every shard on the relay", lambda: len(list(folder.glob("*.bin"))) == shards, 60)
    assert not (folder / "weights.json").exists()
    assert _get(relay, keys.version_shard(1, 0), run_keys.token()).status_code == 200
    assert _get(relay, keys.version_weights(1), run_keys.token()).status_code == 404
    assert VersionIndex.from_json(_get(relay, "versions/index.json", run_keys.token()).content).versions == [0, 1]
    in_the_way.rmdir()
    in_the_way.parent.rmdir()
    wait_until("the seal on the relay", lambda: relay.versions() == [0, 1], 60)


def test_a_sync_agent_that_was_killed_goes_on_from_what_it_had_checked(pods: Pods) -> None:
    origin = pods.origin()
    size = 200 * SHARD
    origin.run()
    origin.hand_in(0, checkpoint(0, size))
    wait_until("version 0 on the origin", lambda: origin.versions() == [0], 60)
    relay = pods.relay(origin)
    relay.start("sync", "shoal.broadcast.relay")
    folder = relay.home / "www" / "versions" / "v000000"
    wait_until("some shards", lambda: len(list(folder.glob("*.bin"))) >= 20, 60, interval=0.001)
    relay.kill("sync")
    had = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.bin")}
    assert len(had) < 200
    torn = sorted(had)[3]
    (folder / torn).write_bytes(bytes(SHARD))  # a disk that lied: found by the digest, and fetched again
    relay.run()
    wait_until("the whole version on the relay", lambda: relay.versions() == [0], 60)
    theirs = {path.name: path.read_bytes() for path in (origin.home / "www" / "versions" / "v000000").iterdir()}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == theirs
    kept = [name for name, changed in had.items() if (folder / name).stat().st_mtime_ns == changed]
    assert sorted(kept) == sorted(set(had) - {torn})


def test_a_sealed_version_that_lost_a_shard_is_completed(pods: Pods) -> None:
    origin = pods.origin()
    relay = pods.relay(origin)
    origin.run()
    relay.run()
    origin.hand_in(0)
    wait_until("version 0 on the relay", lambda: relay.versions() == [0], 60)
    relay.kill("sync")
    lost = relay.home / "www" / keys.version_shard(0, 2)
    lost.unlink()
    relay.start("sync", "shoal.broadcast.relay")
    wait_until("the lost shard", lambda: lost.exists() and relay.versions() == [0], 60)
    assert lost.read_bytes() == (origin.home / "www" / keys.version_shard(0, 2)).read_bytes()


def test_a_relay_keeps_the_newest_versions_while_the_origin_is_away(pods: Pods, run_keys: Keys) -> None:
    origin = pods.origin()
    relay = pods.relay(origin)
    origin.run()
    relay.run()
    for version in range(5):
        origin.hand_in(version, checkpoint(version, SHARD))
        wait_until(f"version {version} on the relay", lambda: version in relay.versions(), 60)
    wait_until("old versions to go", lambda: relay.versions() == [2, 3, 4], 20)
    origin.kill("nginx")
    for pid in stray_workers_of(origin):
        os.kill(pid, 9)
    wait_until("the relay to miss the origin", lambda: "a turn failed, trying again" in relay.log("sync"), 60)
    assert _get(relay, keys.version_weights(4), run_keys.token()).status_code == 200
    origin.start_nginx("origin")
    origin.hand_in(5, checkpoint(5, SHARD))
    wait_until("the next version on the relay", lambda: relay.versions() == [3, 4, 5], 60)


def stray_workers_of(pod: OriginPod) -> list[int]:
    return stray_workers(int((pod.home / "tmp" / "nginx" / "nginx.pid").read_text()))


def test_two_relays_of_one_machine_do_not_share_a_port(served: Served, loopback: Loopback) -> None:
    _, relay = served
    assert not answers(loopback.address(), NGINX_PORT)
    assert answers(relay.address, NGINX_PORT)


def test_the_configuration_listens_where_the_pod_is_and_asks_its_own_agent() -> None:
    local = places_of("relay", Path("/shoal"), "127.1.2.3", 2, None)
    assert (local.listen, local.gate) == ("127.1.2.3:8090", "127.1.2.3:9102")
    cluster = places_of("origin", Path("/shoal"), "0.0.0.0", 64, None)
    assert (cluster.listen, cluster.gate, cluster.workers) == ("0.0.0.0:8090", "127.0.0.1:9101", 4)
    six = places_of("relay", Path("/shoal"), "::", 1, "nobody")
    assert (six.listen, six.gate) == ("[::]:8090", "[::1]:9102")
    text = render(six)
    assert "user nobody;" in text
    assert "user " not in render(local)
    assert 'root "/shoal/www";' in text
    assert 'access_log "/shoal/www/logs/access-$log_hour.log" served;' in text
    assert "/shoal/www/logs" not in render(cluster)


def test_a_relay_limits_what_one_node_may_take() -> None:
    limits = RateLimits(connections=7, requests_per_second=30, bytes_per_second=1_000_000)
    text = render(places_of("relay", Path("/shoal"), "127.1.2.3", 2, None, RelayConfig(rate_limits=limits)))
    for line in (
        "limit_conn nodes 7;",
        "limit_req_zone $shoal_node zone=requests:4m rate=30r/s;",
        "limit_req zone=requests burst=30 nodelay;",
        "limit_rate 1000000;",
    ):
        assert line in text
    assert "limit_rate " not in render(places_of("relay", Path("/shoal"), "127.1.2.3", 2, None, RelayConfig()))


def test_nginx_takes_the_largest_limits_that_a_manifest_may_ask_for(tmp_path: Path) -> None:
    schema = RateLimits.model_json_schema()["properties"]
    largest = {
        name: max(each.get("maximum", 0) for each in field.get("anyOf", [field])) for name, field in schema.items()
    }
    places = places_of("relay", tmp_path, "127.1.2.3", 2, None, RelayConfig(rate_limits=RateLimits(**largest)))
    places.temporary.mkdir(parents=True)
    (tmp_path / "www" / "logs").mkdir(parents=True)
    file = tmp_path / "nginx.conf"
    file.write_text(render(places))
    said = subprocess.run(["nginx", "-t", "-p", tmp_path, "-c", file, "-e", "stderr"], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr


def test_a_home_that_would_end_the_configurations_quotes_is_refused() -> None:
    with pytest.raises(ValueError, match="nginx needs an absolute path without quotes"):
        render(places_of("relay", Path('/shoal";evil'), "127.1.2.3", 1, None))
