"""A node that is evicted on a live relay: 403 within seconds, what it was reading ends, and what others read arrives to the last byte."""

import json
import socket
import threading
import time
from typing import Any

import httpx
from broadcast_pods import ClientPod, Pods, RelayPod
from broadcast_run import Keys, checkpoint, cut_into

from servers import PLAIN, wait_until
from shoal.broadcast.fetch import FETCH_PORT
from shoal.broadcast.nginx import NGINX_PORT
from shoal.contracts import keys
from shoal.contracts.relays import RateLimits, RelayConfig

EVICTED, OTHER = "e" * 64, "b" * 64
BIG = 8 << 20
"""A shard that is larger than what a kernel takes from nginx for a reader that is slow."""
LIMIT_SECONDS = 30.0
"""What issue and page promise: everything of an evicted node has ended by then."""


class SlowReader:
    """Reads a shard a few bytes at a time, for as long as it is let."""

    def __init__(self, relay: RelayPod, token: str) -> None:
        self.ended = threading.Event()
        self.hurry = threading.Event()
        self.got = 0
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.connect((relay.address, NGINX_PORT))
        request = f"GET /{keys.version_shard(0, 0)} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
        self._socket.sendall(request.encode())
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while data := self._socket.recv(4096 if self.hurry.is_set() else 256):
                self.got += len(data)
                self.hurry.wait(0.1)
        except OSError:
            pass
        self.ended.set()

    def close(self) -> None:
        self._socket.close()


def _status(relay: RelayPod, token: str) -> int:
    url = f"{relay.url}/versions/index.json"
    return httpx.get(url, headers={"Authorization": f"Bearer {token}"}, **PLAIN, timeout=20).status_code


Entry = dict[str, Any]


def _shards_read(relay: RelayPod, node: str) -> list[Entry]:
    """What nginx wrote of shards that this node has read, as far as it was let."""
    logs = sorted((relay.home / "www" / "logs").glob("access-*.log"))
    entries = [json.loads(line) for path in logs for line in path.read_text().splitlines()]
    return [entry for entry in entries if entry["node"] == node and entry["uri"].endswith(".bin")]


def _received(client: ClientPod) -> float:
    """Bytes of shards that a client has; what it notes on its disk comes too late to cut it before its end."""
    try:
        return client.metric(FETCH_PORT, "shoal_broadcast_received_bytes_total")
    except httpx.ConnectError:  # it does not serve them yet
        return 0.0


def test_an_evicted_node_is_refused_and_cut_off_while_others_read_on(pods: Pods, run_keys: Keys) -> None:
    """All connections are held to a pace at which a shard takes twenty seconds: none ends before the evicted node is cut off."""
    origin = pods.origin(broadcast=cut_into(BIG))
    relay = pods.relay(origin, RelayConfig(eviction_seconds=6, rate_limits=RateLimits(bytes_per_second=BIG // 20)))
    client = pods.client()
    for pod in (origin, relay):
        pod.run()
    files = checkpoint(0, 4 * BIG - 1000)
    origin.hand_in(0, files)
    wait_until("version 0 on the relay", lambda: relay.versions() == [0], 60)
    token = run_keys.token(EVICTED)
    assert _status(relay, token) == 200
    slow = SlowReader(relay, token)
    wait_until("the slow reader's first bytes", lambda: slow.got > 0)
    client.agent.say(relays=[relay.url], latest_version=0)
    client.run()
    wait_until("the client to be reading", lambda: _received(client) > 0, 60)

    evicted_at = time.monotonic()
    pods.announcements.excluded = [EVICTED]
    wait_until("403 for the evicted node", lambda: _status(relay, token) == 403, LIMIT_SECONDS)
    [entry] = wait_until(
        "the evicted node's transfer to end", lambda: _shards_read(relay, EVICTED) or None, LIMIT_SECONDS
    )
    assert time.monotonic() - evicted_at < LIMIT_SECONDS
    assert entry["bytes"] < BIG
    slow.hurry.set()  # what the kernel had taken is all there is
    wait_until("the slow reader's end", slow.ended.is_set, LIMIT_SECONDS)
    assert slow.got <= entry["bytes"]
    assert _status(relay, run_keys.token(OTHER)) == 200
    # The client's transfers were longer than the evicted node was let: they went on by Range, and nobody was blamed.
    wait_until("version 0 at the client", lambda: client.held() == [0], 60)
    assert client.files(0) == files
    assert any(entry["range"] for entry in _shards_read(relay, client.agent.state.node))
    assert "a try failed" not in client.log("fetch")
    slow.close()


def test_an_evicted_node_is_told_so_even_when_its_token_has_run_out(pods: Pods, run_keys: Keys) -> None:
    origin = pods.origin()
    relay = pods.relay(origin)
    for pod in (origin, relay):
        pod.run()
    pods.announcements.excluded = [EVICTED]
    wait_until("403", lambda: _status(relay, run_keys.token(EVICTED, seconds=-100)) == 403, LIMIT_SECONDS)
    assert _status(relay, run_keys.token(OTHER, seconds=-100)) == 401

    # The orchestrator does not answer: who was excluded stays so, all others are served.
    pods.announcements.away = True
    wait_until(
        "the relay to miss the orchestrator", lambda: "cannot read the list of evicted nodes" in relay.log("sync"), 60
    )
    assert _status(relay, run_keys.token(EVICTED)) == 403
    assert _status(relay, run_keys.token(OTHER)) in (200, 404)
