"""What anybody may ask unsigned of discovery and orchestrator: an address has a pace at `/v1/join`, and `/metrics` costs a flood few readings."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

from protocol_stack import config, new_role_keys
from servers import Redis
from shoal.contracts.run import Addresses
from shoal.crypto.keys import PrivateKey
from shoal.discovery import discovery
from shoal.transport.redis_access import connect_async
from shoal.transport.service import add_health
from shoal.transport.shared_answer import KEPT_SECONDS, READINGS_AT_ONCE, READINGS_PER_SECOND

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
)
"""What Prometheus 3 sends."""


@pytest.fixture
def app(redis_server: Redis, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    """Discovery, at which an address may ask three times."""
    monkeypatch.setattr(discovery, "OFFERS_PER_SECOND", 0.01)
    monkeypatch.setattr(discovery, "OFFERS_AT_ONCE", 3)
    addresses = Addresses(
        discovery="http://discovery.test",
        orchestrator="http://orchestrator.test",
        origin="http://origin.test",
        relays=["http://relay.test"],
        redis=redis_server.url,
    )
    return discovery.make_app(
        config(addresses, new_role_keys(), PrivateKey.generate()), connect_async(redis_server.url)
    )


@pytest.mark.parametrize(
    ("hurried", "same", "other"),
    [
        ("192.0.2.7", "192.0.2.7", "192.0.2.8"),
        ("2001:db8::1", "2001:db8::ffff", "2001:db8:0:1::1"),  # one household has a /64
    ],
)
def test_an_address_that_asks_what_the_run_is_without_end_is_told_when_to_come_again(
    app: FastAPI, hurried: str, same: str, other: str
) -> None:
    answers = [TestClient(app, client=(hurried, 40000 + n)).get("/v1/join") for n in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    refused = TestClient(app, client=(same, 40000)).get("/v1/join")
    assert (refused.status_code, refused.headers["content-type"]) == (429, "application/problem+json")
    assert refused.json()["type"] == "urn:shoal:problem:too-many-requests"
    assert "an address has 3 at once" in refused.json()["detail"]
    assert 1 <= int(refused.headers["retry-after"]) <= 100
    assert TestClient(app, client=(other, 40000)).get("/v1/join").status_code == 200


class Counted(Collector):
    """A figure that is how often all figures were read."""

    readings = 0

    def collect(self) -> Iterator[GaugeMetricFamily]:
        self.readings += 1
        yield GaugeMetricFamily("shoal_test_readings", "Readings.", self.readings)


@pytest.fixture
def counted() -> Iterator[Counted]:
    found = Counted()
    REGISTRY.register(found)  # asks once for its names
    found.readings = 0
    yield found
    REGISTRY.unregister(found)


@pytest.fixture
def figures() -> Iterator[TestClient]:
    app = FastAPI()
    add_health(app, lambda: None, lambda: None)
    with TestClient(app) as client:
        yield client


def test_a_flood_at_metrics_is_always_answered_and_costs_few_readings(counted: Counted, figures: TestClient) -> None:
    began = time.monotonic()
    for _ in range(1000):
        answer = figures.get("/metrics")
        assert answer.status_code == 200
        assert b"shoal_test_readings" in answer.content
    seconds = time.monotonic() - began
    assert counted.readings <= 2 + READINGS_AT_ONCE + seconds * (READINGS_PER_SECOND + 1 / KEPT_SECONDS)


def test_whoever_reads_figures_now_and_then_gets_those_of_that_moment(counted: Counted, figures: TestClient) -> None:
    for number in range(1, 6):
        families = {each.name: each for each in parse_text(figures.get("/metrics").text)}
        assert families["shoal_test_readings"].samples[0].value == number


def test_probes_are_answered_while_every_thread_is_at_a_request() -> None:
    app, busy, go_on = FastAPI(), threading.Semaphore(0), threading.Event()
    add_health(app, lambda: None, lambda: "not read yet")

    @app.get("/busy")
    def _busy() -> None:
        busy.release()
        go_on.wait(60)

    with TestClient(app) as client, ThreadPoolExecutor(40) as threads:
        asked = [threads.submit(client.get, "/busy") for _ in range(40)]
        for _ in asked:
            assert busy.acquire(timeout=30)
        try:
            with ThreadPoolExecutor(1) as probe:
                assert probe.submit(client.get, "/healthz").result(10).status_code == 200
                assert probe.submit(client.get, "/readyz").result(10).text == "not read yet"
        finally:
            go_on.set()
        assert [each.result(30).status_code for each in asked] == [200] * 40


@pytest.mark.parametrize("version", ["1.0.0", "1.0.1", "2.7.3"])
def test_prometheus_gets_openmetrics_and_no_header_makes_a_kind_of_its_own(
    counted: Counted, figures: TestClient, version: str
) -> None:
    prometheus = figures.get("/metrics", headers={"Accept": PROMETHEUS})
    other = figures.get("/metrics", headers={"Accept": f"application/openmetrics-text;version={version};escaping=dots"})
    assert prometheus.headers["content-type"] == other.headers["content-type"]
    assert prometheus.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert prometheus.content.endswith(b"# EOF\n")
    plain = figures.get("/metrics", headers={"Accept": "text/html"})
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
