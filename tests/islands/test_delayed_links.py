"""Links with delay for the benchmark of islands: packets come out late, in order and bounded, and a real TCP connection feels it."""

import os
import socket
import subprocess
import sys
import threading

import pytest
from benchmarks.diloco.__main__ import main as benchmark_diloco
from benchmarks.diloco.delay import Line, destination, enter
from benchmarks.diloco.links import Links, unusable

DELAY_MS = 40.0


def test_packets_come_out_in_order_and_each_after_the_delay() -> None:
    line = Line(0.05)
    line.put(b"first", 1.0)
    line.put(b"second", 1.02)
    assert line.next_due == 1.05
    assert line.due(1.04) == []
    assert line.due(1.06) == [b"first"]
    assert line.due(2.0) == [b"second"]
    assert (line.next_due, line.held_bytes, line.dropped) == (None, 0, 0)


def test_what_is_more_than_a_line_holds_is_dropped_and_counted() -> None:
    line = Line(0.05, most_bytes=8)
    for _ in range(3):
        line.put(b"four", 0.0)
    assert (line.held_bytes, line.dropped) == (8, 1)
    assert line.due(1.0) == [b"four"] * 2
    line.put(b"four", 1.0)
    assert line.due(2.0) == [b"four"]


@pytest.mark.parametrize(
    ("packet", "address"),
    [
        (b"\x45" + bytes(15) + b"\x0a\xe7\x4e\x01" + b"rest", b"\x0a\xe7\x4e\x01"),
        (b"\x60" + bytes(39), None),  # IPv6
        (b"\x45" + bytes(10), None),
        (b"", None),
    ],
)
def test_a_packet_goes_by_its_ipv4_destination(packet: bytes, address: bytes | None) -> None:
    assert destination(packet) == address


@pytest.mark.skipif(unusable() is not None, reason=str(unusable()))
def test_a_connection_over_such_links_takes_the_delay_and_keeps_its_bytes() -> None:
    links = Links(2, 100.0, DELAY_MS)
    names = [str(host.namespace) for host in links.hosts]
    try:
        assert links.round_trip_ms() >= 2 * DELAY_MS
        sent = os.urandom(300_000)
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            enter(names[0])
            server = socket.create_server((links.hosts[0].address, 0))
            enter(names[1])
            client = socket.create_connection(server.getsockname(), timeout=30)
        finally:
            enter(home)
            os.close(home)
        with server, client:
            accepted, _ = server.accept()
            accepted.settimeout(30)
            thread = threading.Thread(target=lambda: (client.sendall(sent), client.shutdown(socket.SHUT_WR)))
            thread.start()
            with accepted, accepted.makefile("rb") as stream:
                assert stream.read() == sent
            thread.join(30)
    finally:
        links.close()
    there = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    assert not set(names) & set(there.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--quick"], "--quick gives no figures to keep: say with --out where they go"),
        (["--delay-ms", "-1"], "--delay-ms -1: allowed: 0 to 1000"),
    ],
)
def test_the_benchmark_refuses_options_that_make_no_sense(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.diloco", *arguments])
    with pytest.raises(SystemExit) as ended:
        benchmark_diloco()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
