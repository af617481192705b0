"""What strangers meet: HTTPS with a given certificate, a PROXY header before it, limits a node and an address, on a live nginx."""

import http.client
import json
import random
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from broadcast_certificates import Authority
from broadcast_client import Client
from broadcast_pods import Pods, RelayPod
from broadcast_run import RUN, SHARD, Keys, checkpoint, cut_into

from servers import Loopback, wait_until
from shoal.broadcast.connections import GATHER_BYTES
from shoal.broadcast.download import Downloader, SourceFailed
from shoal.broadcast.fetch import trusted_authorities
from shoal.broadcast.nginx import NGINX_PORT, Outside, places_of, render
from shoal.broadcast.parts import FilePart
from shoal.broadcast.pieces import WantedVersion
from shoal.broadcast.sources import Sources
from shoal.broadcast.transfer import Transfer, TransferOutcome
from shoal.broadcast.weights_folder import FolderTarget
from shoal.contracts import keys
from shoal.contracts.relays import OUTSIDE_PORT, RateLimits, RelayConfig

INDEX = "versions/index.json"
PACE = 2 * SHARD
BIG = 6 * PACE
"""A shard that lasts four seconds at least: nginx counts whole seconds, the one of the request and its own included."""


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("the run's authority")


@pytest.fixture(scope="module")
def secured(
    run_keys: Keys, loopback: Loopback, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RelayPod]:
    """A relay with a certificate and modest limits that holds version 0."""
    made = Pods(run_keys, loopback, tmp_path_factory.mktemp("b"))
    origin = made.origin(broadcast=cut_into(BIG))
    limits = RateLimits(connections=3, bytes_per_second=PACE, address_connections=4)
    relay = made.relay(origin, RelayConfig(rate_limits=limits, trusted_proxies=[]))
    authority.issue(relay.home / "secrets" / "tls", relay.address)
    for pod in (origin, relay):
        pod.run()
    origin.hand_in(0, checkpoint(0, BIG))
    wait_until("version 0 on the relay", lambda: relay.versions() == [0], 60)
    yield relay
    made.stop()


def _outside(relay: RelayPod) -> str:
    return f"https://{relay.address}:{OUTSIDE_PORT}"


def _trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.pem.decode())


def test_a_stranger_fetches_a_version_over_https(
    secured: RelayPod, authority: Authority, run_keys: Keys, tmp_path: Path
) -> None:
    client = Client(tmp_path / "weights", run_keys)
    transfer = Transfer(
        WantedVersion(RUN, 0, client.trainer_key),
        Sources([_outside(secured)], random.Random(0)),
        Downloader(run_keys.token, tls=_trusting(authority)),
        FolderTarget(client.weights, 0, client.trainer_key),
        in_flight=2,
    )
    assert transfer.run() is TransferOutcome.SEALED
    assert client.files(0) == checkpoint(0, BIG)


def test_a_client_process_trusts_the_authority_in_its_config(
    pods: Pods, secured: RelayPod, authority: Authority
) -> None:
    client = pods.client()
    (client.home / "config" / "relay-ca.pem").write_bytes(authority.pem)
    client.agent.say(relays=[_outside(secured)], latest_version=0)
    client.run()
    wait_until("version 0 at the client", lambda: client.held() == [0], 60)


def test_a_new_connection_is_not_kept_waiting_for_more_than_it_lets_come(
    pods: Pods, authority: Authority, run_keys: Keys, tmp_path: Path
) -> None:
    """A wait for half a megabyte once took 0.2 s on each, until the sender's next try: one packet had filled the first window."""
    size = 8 * GATHER_BYTES
    origin = pods.origin(broadcast=cut_into(size))
    relay = pods.relay(origin)
    authority.issue(relay.home / "secrets" / "tls", relay.address)
    for pod in (origin, relay):
        pod.run()
    origin.hand_in(0, checkpoint(0, size))
    wait_until("version 0 on the relay", lambda: relay.versions() == [0], 60)
    taken = []
    for number in range(8):
        fresh = Downloader(run_keys.token, tls=_trusting(authority))
        fresh.document(_outside(relay), keys.version_open(0), 10_000)
        started = time.monotonic()
        fresh.shard(
            _outside(relay), keys.version_shard(0, 0), size, FilePart(tmp_path / f"part{number}"), lambda _: None
        )
        taken.append(time.monotonic() - started)
        fresh.close()
    assert sorted(taken)[2] < 0.2, taken  # of some that are slow for reasons of a busy machine


def test_rubbish_in_place_of_the_authority_is_refused_at_start(tmp_path: Path) -> None:
    assert trusted_authorities(tmp_path) is None
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "relay-ca.pem").write_text("rubbish")
    with pytest.raises(SystemExit, match=r"config/relay-ca\.pem has no readable certificate"):
        trusted_authorities(tmp_path)


def test_a_certificate_of_another_authority_is_refused(secured: RelayPod, run_keys: Keys) -> None:
    stranger = Authority("somebody else")
    for tls in (_trusting(stranger), None):  # None: those of the system
        with pytest.raises(SourceFailed, match="certificate verify failed"):
            Downloader(run_keys.token, tls=tls).document(_outside(secured), INDEX, 10_000)


def test_a_certificate_for_another_name_is_refused(secured: RelayPod, authority: Authority, run_keys: Keys) -> None:
    elsewhere = Downloader(run_keys.token, tls=_trusting(authority))
    with pytest.raises(SourceFailed, match=r"certificate is not valid for|doesn't match|mismatch"):
        elsewhere.document(f"https://{_alias(secured)}:{OUTSIDE_PORT}", INDEX, 10_000)


def _alias(relay: RelayPod) -> str:
    """The same address in other words, which no certificate names."""
    return str(int.from_bytes(socket.inet_aton(relay.address), "big"))


def test_an_expired_certificate_is_refused_and_its_successor_taken_up_without_a_restart(
    secured: RelayPod, authority: Authority, run_keys: Keys
) -> None:
    def refusal() -> str:
        try:
            Downloader(run_keys.token, tls=_trusting(authority)).document(_outside(secured), INDEX, 10_000)
        except SourceFailed as error:
            return str(error)
        return ""

    authority.issue(secured.home / "secrets" / "tls", secured.address, days=-1)
    wait_until("nginx to take up the expired one", lambda: "certificate has expired" in refusal(), 30)
    authority.issue(secured.home / "secrets" / "tls", secured.address)
    wait_until("nginx to take up the new one", lambda: not refusal(), 30)


def test_plain_http_is_refused_where_the_certificate_is(secured: RelayPod) -> None:
    plain = http.client.HTTPConnection(secured.address, OUTSIDE_PORT, timeout=10)
    plain.request("GET", f"/{INDEX}")
    assert plain.getresponse().status == 400


def _begin(relay: RelayPod, token: str) -> http.client.HTTPResponse:
    """An answer whose body nobody reads yet."""
    connection = http.client.HTTPConnection(relay.address, NGINX_PORT, timeout=20)
    connection.request("GET", f"/{keys.version_shard(0, 0)}", headers={"Authorization": f"Bearer {token}"})
    return connection.getresponse()


def test_a_node_has_so_many_connections_and_an_address_so_many_more(secured: RelayPod, run_keys: Keys) -> None:
    """Three a node, four an address; who is refused is told when to come again, and who was let in gets every byte."""
    mine, other = run_keys.token("c" * 64), run_keys.token("d" * 64)
    answers = [_begin(secured, token) for token in (mine, mine, mine, mine, other, other)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429, 200, 429]
    assert {answer.getheader("Retry-After") for answer in answers if answer.status == 429} == {"1"}
    assert [len(answer.read()) for answer in answers if answer.status == 200] == [BIG] * 4


def test_a_connection_gets_no_more_bytes_a_second_than_its_limit(secured: RelayPod, run_keys: Keys) -> None:
    answer = wait_until("a free connection", lambda: _served(secured, run_keys.token("f" * 64)))
    started = time.monotonic()
    assert len(answer.read()) == BIG
    assert time.monotonic() - started >= 3  # of four, less what the answer's head took


def _served(relay: RelayPod, token: str) -> http.client.HTTPResponse | None:
    answer = _begin(relay, token)
    return answer if answer.status == 200 else None


def test_a_node_is_known_by_its_own_address_behind_a_trusted_load_balancer_only(
    pods: Pods, run_keys: Keys, loopback: Loopback
) -> None:
    balancer, stranger = loopback.address(), loopback.address()
    origin = pods.origin()
    relay = pods.relay(origin, RelayConfig(trusted_proxies=[f"{balancer}/32"]))
    for pod in (origin, relay):
        pod.run()
    origin.hand_in(0, checkpoint(0, SHARD))
    wait_until("version 0 on the relay", lambda: relay.versions() == [0], 60)

    def ask(source: str, claimed: str, node: str) -> bytes:
        with socket.create_connection((relay.address, OUTSIDE_PORT), 10, (source, 0)) as raw:
            raw.sendall(f"PROXY TCP4 {claimed} {relay.address} 4000 {OUTSIDE_PORT}\r\n".encode())
            token = run_keys.token(node)
            raw.sendall(f"GET /{INDEX} HTTP/1.0\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
            return raw.recv(4096)

    assert ask(balancer, "203.0.113.7", "1" * 64).startswith(b"HTTP/1.1 200")
    assert ask(stranger, "203.0.113.9", "2" * 64).startswith(b"HTTP/1.1 200")

    def logged() -> dict[str, str]:
        lines = [line for path in (relay.home / "www/logs").glob("*.log") for line in path.read_text().splitlines()]
        return {entry["node"]: entry["address"] for entry in map(json.loads, lines)}

    seen = wait_until("both in the log", lambda: logged() if len(logged()) == 2 else None)
    assert seen == {"1" * 64: "203.0.113.7", "2" * 64: stranger}
    # Whoever comes without the header is not served there.
    with socket.create_connection((relay.address, OUTSIDE_PORT), 10) as raw:
        raw.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert not raw.recv(100).startswith(b"HTTP/1.1 200")


def test_the_listener_for_outside_is_there_when_there_is_something_to_say(tmp_path: Path) -> None:
    assert places_of("relay", tmp_path, "127.1.2.3", 2, None, RelayConfig()).outside is None
    behind = places_of("relay", tmp_path, "127.1.2.3", 2, None, RelayConfig(trusted_proxies=["10.0.0.0/8"]))
    assert behind.outside == Outside("127.1.2.3:8443", None, None, ("10.0.0.0/8",))
    assert "listen 127.1.2.3:8443 proxy_protocol;" in render(behind)
    assert "ssl" not in render(behind)
    Authority("any").issue(tmp_path / "secrets" / "tls", "127.1.2.3")
    secured = render(places_of("relay", tmp_path, "127.1.2.3", 2, None, RelayConfig(trusted_proxies=["10.0.0.0/8"])))
    assert "listen 127.1.2.3:8443 ssl proxy_protocol;" in secured
    assert "listen 127.1.2.3:8090;" in secured
    assert places_of("origin", tmp_path, "127.1.2.3", 2, None).outside is None


@pytest.mark.parametrize("network", ["everybody", "10.0.0.0/8; evil", "", "10.0.0.0/8\n"])
def test_what_is_no_network_is_refused(network: str) -> None:
    with pytest.raises(ValueError, match="String should match pattern"):
        RelayConfig(trusted_proxies=[network])
