"""Caps: what a bucket lets pass in a minute, shared by threads and processes; bodies over real sockets; a machine that was restarted."""

import json
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from benchmarks.release.join_commands import join_commands
from pydantic import ValidationError

from servers import ROOT, Loopback
from shoal.agent.hand_in import post_form
from shoal.broadcast.download import SLOWEST_BYTES_PER_SECOND, Downloader
from shoal.contracts.machine import LEAST_BITS, Lending
from shoal.contracts.protocol import UploadGrant
from shoal.transport import SignedClient
from shoal.transport.rate_limit import BURST_SECONDS, MOST_DEBT_SECONDS, NO_CAPS, RateLimit, caps, caps_of

RATE = 4_000_000.0  # bytes a second: 32 Mbit/s


def test_in_a_minute_as_much_passes_as_the_cap_allows_whoever_asks() -> None:
    limit, now, passed = RateLimit(RATE), 1000.0, 0
    while now < 1060.0:
        for size in (512 << 10, 4 << 10, 64 << 10):
            passed += size
            now += limit.reserve(size, now)
    assert abs(passed / (60.0 * RATE) - 1.0) < 0.01


def test_a_line_that_was_silent_makes_up_for_a_quarter_of_a_second_and_no_more() -> None:
    limit = RateLimit(RATE)
    limit.reserve(1, 1000.0)
    assert limit.reserve(int(RATE * BURST_SECONDS), 2000.0) == 0.0
    assert limit.reserve(int(RATE), 2000.0) == pytest.approx(1.0, abs=0.01)


def test_processes_share_a_bucket_through_its_file(tmp_path: Path) -> None:
    """Four processes at once take 8 MB at 32 Mbit/s: not faster than one alone could."""
    program = (
        "import sys; from pathlib import Path; from shoal.transport.rate_limit import RateLimit\n"
        f"limit = RateLimit({RATE}, Path(sys.argv[1]))\n"
        "sys.stdin.read(1)\n"
        "[limit.take(40_000) for _ in range(50)]\n"
    )
    file = tmp_path / "upload.rate"
    environment = {"PYTHONPATH": f"{ROOT / 'workloads'}:{ROOT / 'operator'}", "PATH": "/usr/bin:/bin"}
    four = [
        subprocess.Popen([sys.executable, "-c", program, str(file)], stdin=subprocess.PIPE, env=environment)
        for _ in range(4)
    ]
    began = time.monotonic()
    for each in four:
        assert each.communicate(b"x", timeout=60)[0] is None
        assert each.returncode == 0
    assert time.monotonic() - began >= 8_000_000 / RATE - BURST_SECONDS


def test_a_time_of_before_a_restart_of_the_machine_holds_nobody_up(tmp_path: Path) -> None:
    file = tmp_path / "download.rate"
    file.write_bytes(struct.pack("<d", 1000.0 + MOST_DEBT_SECONDS + 1))
    assert RateLimit(RATE, file).reserve(int(RATE), 1000.0) == pytest.approx(1.0)
    file.write_bytes(b"half")
    assert RateLimit(RATE, file).reserve(int(RATE), 1000.0) == pytest.approx(1.0 - BURST_SECONDS)


def test_a_link_in_the_place_of_a_bucket_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "upload.rate").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        RateLimit(RATE, tmp_path / "upload.rate")


def test_without_the_owners_file_there_are_no_caps(tmp_path: Path) -> None:
    assert caps_of(tmp_path) is NO_CAPS
    (tmp_path / "config").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "config" / "lending.json").write_bytes(Lending(download_bits=20_000_000).to_json())
    found = caps_of(tmp_path)
    assert found.upload is None
    assert found.download is not None
    assert found.download.bytes_per_second == 2_500_000
    with pytest.raises(ValidationError):
        Lending(upload_bits=LEAST_BITS - 1)


def test_under_the_least_cap_a_shard_is_not_given_up_for_its_slowness() -> None:
    limit = RateLimit(LEAST_BITS / 8)
    downloader = Downloader(lambda: None, limit=limit)
    assert downloader.in_flight is not None
    assert limit.bytes_per_second / downloader.in_flight > 1.5 * SLOWEST_BYTES_PER_SECOND
    assert Downloader(lambda: None).in_flight is None


class Sink:
    """A server that takes bodies and gives them; counts bytes."""

    def __init__(self, address: str) -> None:
        sink, self.received = self, 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                size = int(self.path.rpartition("/")[2])
                self.send_response(200)
                self.send_header("Content-Length", str(size))
                self.end_headers()
                self.wfile.write(b"x" * size)

            def do_POST(self) -> None:
                left = int(self.headers["Content-Length"])
                while left:
                    left -= len(got := self.rfile.read(min(left, 65536)))
                    sink.received += len(got)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer((address, 0), Handler)
        self.url = f"http://{address}:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def sink(loopback: Loopback) -> Iterator[Sink]:
    made = Sink(loopback.address())
    yield made
    made.server.shutdown()


def test_questions_answers_and_files_keep_to_the_caps_over_real_sockets(sink: Sink, tmp_path: Path) -> None:
    """Never faster than the cap; how near they come to it is `python -m benchmarks.release.caps`."""
    limits = caps(Lending(upload_bits=int(RATE * 8), download_bits=int(RATE * 8)), tmp_path)
    size = 3_000_000
    least = size / RATE - BURST_SECONDS
    client = SignedClient(sink.url, caps=limits)

    began = time.monotonic()
    assert len(client.request("GET", f"/{size}").content) == size
    assert time.monotonic() - began >= least

    began = time.monotonic()
    client.request("POST", "/", b"y" * size)
    assert time.monotonic() - began >= least

    file = tmp_path / "rollouts.parquet"
    file.write_bytes(b"z" * size)
    before, began = sink.received, time.monotonic()
    with file.open("rb") as opened:
        post_form(UploadGrant(url=f"{sink.url}/", fields={"key": "k"}, expires_unix=1e9), opened, caps=limits)
    assert time.monotonic() - began >= least
    assert sink.received - before > size


def test_the_committed_error_of_the_caps_is_at_most_a_tenth_and_a_node_takes_one_command() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "release.json").read_text())
    assert found["caps_error"] == max(one["error"] for one in found["caps"].values()) <= 0.10
    assert all(one["seconds"] > 55 for one in found["caps"].values())
    assert found["node_join_commands"] == join_commands() == 1


@pytest.mark.soak
def test_between_namespaces_a_minute_of_both_directions_is_within_a_tenth_of_the_caps() -> None:
    from benchmarks.release.caps import measure

    found = measure(60.0)
    assert {name: one for name, one in found.items() if one["error"] > 0.10} == {}


def test_a_part_without_caps_has_httpx_as_it_is() -> None:
    assert NO_CAPS.transport(True) is None
    assert isinstance(SignedClient("http://127.0.0.1:9")._http._transport, httpx.HTTPTransport)
