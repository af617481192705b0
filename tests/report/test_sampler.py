"""Readings of real processes: metrics over HTTP, CPU time from the system, and a file that a kill cannot spoil."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from servers import PLAIN
from shoal.report import sampler
from shoal.report.records import SampleRecord, SessionRecord, parse_records
from shoal.report.sampler import SampledProcess, Sampler, cpu_seconds, parse_metrics

PAGE = b"""# TYPE shoal_busy_seconds_total counter
shoal_busy_seconds_total{phase="update"} 12.5
shoal_busy_seconds_created{phase="update"} 1.7e9
# TYPE shoal_check_seconds histogram
shoal_check_seconds_bucket{le="1.0"} 3
shoal_check_seconds_count 3
# TYPE python_info gauge
python_info{version="3.11"} 1
# TYPE shoal_age_seconds gauge
shoal_age_seconds +Inf
"""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    httpd = HTTPServer(("127.17.0.2", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield httpd
    httpd.shutdown()
    httpd.server_close()


def test_only_our_own_finite_metrics_are_kept() -> None:
    assert parse_metrics(PAGE.decode()) == {
        'shoal_busy_seconds_total{phase="update"}': 12.5,
        "shoal_check_seconds_count": 3.0,
    }


def test_cpu_seconds_count_children_that_run_and_children_that_ended() -> None:
    spin = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]]); print('ready', flush=True); input()"
    parent = subprocess.Popen(
        [sys.executable, "-c", program, spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    assert (cpu_seconds(parent.pid) or 0.0) >= 0.3
    parent.communicate("\n")


def test_a_process_that_is_gone_has_no_cpu_seconds() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert cpu_seconds(gone.pid) is None


def read(tmp_path: Path, targets: list[SampledProcess]) -> list[object]:
    path = tmp_path / "metrics.jsonl"
    reader = Sampler(path, lambda: targets)
    with httpx.Client(**PLAIN, timeout=2.0) as client:
        reader.read_once(client)
    return list(parse_records(path.read_text().splitlines())[0])


def test_a_reading_has_metrics_and_cpu_time(tmp_path, server, monkeypatch) -> None:
    monkeypatch.setitem(sampler.METRIC_PORTS, "trainer", server.server_port)
    (record,) = read(tmp_path, [SampledProcess("demo-trainer-1", "trainer", "127.17.0.2", os.getpid())])
    assert isinstance(record, SampleRecord)
    assert record.metrics['shoal_busy_seconds_total{phase="update"}'] == 12.5
    assert record.cpu_seconds is not None
    assert record.cpu_seconds > 0


def test_a_part_that_does_not_answer_still_has_its_cpu_time(tmp_path) -> None:
    (record,) = read(tmp_path, [SampledProcess("demo-trainer-1", "trainer", "127.17.0.3", os.getpid())])
    assert isinstance(record, SampleRecord)
    assert record.metrics == {}
    assert record.cpu_seconds is not None


def test_a_cut_last_line_does_not_spoil_the_next_session(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind":"sample","un')
    Sampler(path, list).stop("complete")
    records, unreadable = parse_records(path.read_text().splitlines())
    assert [type(record) for record in records] == [SessionRecord]
    assert unreadable == 1


def test_a_session_is_framed_by_its_start_and_stop_and_read_between(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = Sampler(path, lambda: [SampledProcess("demo-redis-0", "redis", "", os.getpid())], seconds=0.05)
    reader.start()
    deadline = time.monotonic() + 20
    while "sample" not in path.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    reader.end_readings()
    reader.stop("interrupted")
    records, _ = parse_records(path.read_text().splitlines())
    assert isinstance(records[0], SessionRecord)
    assert isinstance(records[1], SampleRecord)
    last = records[-1]
    assert isinstance(last, SessionRecord)
    assert (last.event, last.outcome) == ("stop", "interrupted")
