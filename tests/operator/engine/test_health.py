"""The port of health and metrics."""

import socket
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from shoal_operator.engine.health import HealthServer


@pytest.fixture
def health() -> Iterator[HealthServer]:
    made = HealthServer("", 0, CollectorRegistry(), lambda: "", lambda: "")
    made.start()
    yield made
    made.stop()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_without_an_address_it_is_reached_by_both_families(health: HealthServer, address: str) -> None:
    if ":" in address and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with socket.create_connection((address, health.port), 5) as client:
        client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.0 200 ")


def test_without_ipv6_it_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    made = HealthServer("", 0, CollectorRegistry(), lambda: "", lambda: "")
    made.start()
    socket.create_connection(("127.0.0.1", made.port), 5).close()
    made.stop()
