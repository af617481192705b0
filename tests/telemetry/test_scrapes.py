"""What a scrape gets: OpenMetrics with exemplars for who accepts it, Prometheus text for others, and the room on a pod's volumes."""

import os
import socket
import struct
import threading
from pathlib import Path

import httpx
import pytest
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from servers import PLAIN, Loopback
from shoal.report.sampler import parse_metrics
from shoal.telemetry import Liveness, disk, render_metrics, serve_health
from shoal.telemetry.disk import DiskSpace

ACCEPTS_BOTH = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
"""What Prometheus sends."""


@pytest.fixture
def seconds() -> object:
    from shoal.inference import metrics

    return metrics.SWAP_SECONDS


def test_who_accepts_openmetrics_gets_it_with_exemplars(seconds) -> None:
    seconds.observe(0.05, exemplar={"version": "7"})
    body, content_type = render_metrics(ACCEPTS_BOTH)
    assert content_type.startswith("application/openmetrics-text")
    [family] = [each for each in parse_openmetrics(body.decode()) if each.name == "shoal_worker_swap_seconds"]
    assert {"version": "7"} in [sample.exemplar.labels for sample in family.samples if sample.exemplar]


@pytest.mark.parametrize("accept", [None, "", "*/*", "text/html", "application/openmetrics-text;version=abc"])
def test_others_get_prometheus_text_without_them(seconds, accept: str | None) -> None:
    seconds.observe(0.05, exemplar={"version": "7"})
    body, content_type = render_metrics(accept)
    assert content_type.startswith("text/plain")
    assert "shoal_worker_swap_seconds" in {family.name for family in parse_text(body.decode())}
    assert parse_metrics(body.decode())["shoal_worker_swap_seconds_count"] >= 1  # as `shoal up` reads it


def test_no_series_says_when_a_counter_was_made() -> None:
    assert b"_created" not in render_metrics(ACCEPTS_BOTH)[0]


def test_a_health_server_listens_to_what_the_scraper_accepts(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = loopback.address()
    monkeypatch.setenv("SHOAL_BIND", address)
    server = serve_health(9105, Liveness(60), lambda: None)
    try:
        with httpx.Client(**PLAIN, base_url=f"http://{address}:9105") as client:
            plain, open_ = client.get("/metrics"), client.get("/metrics", headers={"Accept": ACCEPTS_BOTH})
    finally:
        server.shutdown()
        server.server_close()
    assert plain.headers["Content-Type"].startswith("text/plain")
    assert open_.headers["Content-Type"].startswith("application/openmetrics-text")
    assert open_.text.endswith("# EOF\n")


@pytest.mark.parametrize(("fault", "told"), [(None, False), (BrokenPipeError("gone"), False), (OSError("disk"), True)])
def test_a_client_that_leaves_before_its_answer_is_no_error(
    loopback: Loopback,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    fault: OSError | None,
    told: bool,
) -> None:
    address, answered = loopback.address(), threading.Event()
    monkeypatch.setenv("SHOAL_BIND", address)

    def large(_: object) -> tuple[int, dict[str, str], bytes]:
        answered.set()
        if fault is not None:
            raise fault
        return 200, {}, bytes(64 << 20)  # more than the kernel keeps for a client that does not read

    server = serve_health(9105, Liveness(60), lambda: None, {"/large": large})
    server.daemon_threads = False  # so that closing it waits for its answers
    try:
        with socket.create_connection((address, 9105), timeout=10) as client:
            # Closed with unread bytes at once: the server finds the connection reset.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(b"GET /large HTTP/1.0\r\n\r\n")
            assert answered.wait(10)
        with httpx.Client(**PLAIN, base_url=f"http://{address}:9105") as client:
            assert client.get("/healthz").status_code == 200
    finally:
        server.shutdown()
        server.server_close()
    output = capfd.readouterr()
    said = output.out + output.err
    assert ("a request to the health server failed" in said and "disk" in said) if told else said == ""


def test_volumes_that_a_pod_has_are_measured_and_others_are_not(tmp_path: Path) -> None:
    for name in ("www", "outbox", "secrets"):
        (tmp_path / name).mkdir()
    size, free = DiskSpace(tmp_path).collect()
    assert [sample.labels["folder"] for sample in size.samples] == ["outbox", "www"]
    found = os.statvfs(tmp_path)
    assert {sample.value for sample in size.samples} == {found.f_blocks * found.f_frsize}
    assert all(0 < sample.value <= found.f_blocks * found.f_frsize for sample in free.samples)


def test_a_pod_without_volumes_has_no_series(tmp_path: Path) -> None:
    assert [family.samples for family in DiskSpace(tmp_path / "nowhere").collect()] == [[], []]


def test_volumes_are_registered_once_however_often_a_process_starts_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").mkdir()
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    monkeypatch.setattr(disk, "_watching", watching := [])
    already = [each for each in list(REGISTRY._collector_to_names) if isinstance(each, DiskSpace)]
    for each in already:
        REGISTRY.unregister(each)
    try:
        disk.watch_disks()
        disk.watch_disks()
        assert len(watching) == 1
        assert REGISTRY.get_sample_value("shoal_disk_size_bytes", {"folder": "weights"})
    finally:
        for each in watching:
            REGISTRY.unregister(each)
        for each in already:
            REGISTRY.register(each)


def test_series_of_single_nodes_are_not_on_the_port_that_strangers_reach() -> None:
    from shoal.orchestrator import metrics

    metrics.NODE_SILENCE.labels("0123456789ab", "pool").set(1.0)
    assert b"shoal_node_silence_seconds" not in render_metrics()[0]
    assert b"shoal_nodes" in render_metrics()[0]
    assert (
        b'shoal_node_silence_seconds{node="0123456789ab",pool="pool"} 1.0'
        in render_metrics(None, metrics.NODES_REGISTRY)[0]
    )
    metrics.NODE_SILENCE.clear()
