"""The measurement of a machine's way out, on the machine's own side, over a line that is too slow: it ends in time and says what is lacking. Real
services, and a line whose speed is set."""

import contextlib
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from joined_machine import Machine
from slow_line import SlowLine
from test_uplink import POOLS, WANTED

from protocol_stack import Stack
from servers import Loopback, wait_until
from shoal.agent import uplink
from shoal.contracts.uplink import UplinkTest
from shoal.crypto.keys import PrivateKey
from shoal.transport import SignedClient
from shoal.transport import client as transport_client
from shoal.transport.client import NotSentInTime
from stack_fixtures import running_stack


@pytest.fixture(scope="module")
def slow_address(loopback: Loopback) -> str:
    """Where discovery is reached over a slow line."""
    return loopback.address()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, loopback: Loopback, slow_address: str) -> Iterator[Stack]:
    public = f"http://{slow_address}:8081"
    with running_stack(tmp_path_factory, loopback.address(), public_discovery=public, pools=POOLS) as running:
        yield running


@pytest.fixture(scope="module")
def slow_line(stack: Stack, slow_address: str) -> Iterator[SlowLine]:
    """A quarter of what the pool wants."""
    made = SlowLine(slow_address, 8081, (stack.address, 8081), WANTED / 4)
    yield made
    made.close()


def test_join_on_a_slow_line_says_so_and_ends(
    stack: Stack, slow_line: SlowLine, tmp_path: Path, loopback: Loopback
) -> None:
    machine = Machine(tmp_path / "machine", loopback.address())
    try:
        machine.join(stack, url=slow_line.url, pool="pool")
        assert machine.ends(120) == 2
        found = re.search(r"pool 'pool' requires an uplink of 8 Mbit/s, it has ([0-9.]+)", machine.said())
        assert found is not None, machine.said()
        assert 0.0 < float(found[1]) <= WANTED / 4 * 1.05
    finally:
        machine.stop()


def test_an_agent_on_a_slow_line_stays_outside_and_says_why(
    stack: Stack, slow_line: SlowLine, tmp_path: Path, loopback: Loopback
) -> None:
    machine = Machine(tmp_path / "machine", loopback.address())
    try:
        machine.join(stack, url=slow_line.url, pool="pool", unchecked=True)

        def why() -> str | None:
            status = machine.status()
            return status.waits_for if status is not None and "were measured" in status.waits_for else None

        words = wait_until("the agent to say what it lacks", why, 120)
        assert re.search(r"the next try in 120 s: pool 'pool' requires an uplink of 8 Mbit/s, [0-2][0-9.]* were", words)
        assert not machine.works()
    finally:
        machine.stop()


def test_an_agent_behind_a_proxy_that_holds_bodies_hears_that_its_line_is_too_slow(
    stack: Stack, slow_line: SlowLine, tmp_path: Path, loopback: Loopback
) -> None:
    """The body comes to discovery when its time is over, where nobody can say what the line is; the proxy took all of it."""
    machine = Machine(tmp_path / "machine", loopback.address())
    slow_line.whole = True
    try:
        machine.join(stack, url=slow_line.url, pool="pool", unchecked=True)

        def why() -> str | None:
            status = machine.status()
            return status.waits_for if status is not None and "did not finish" in status.waits_for else None

        words = wait_until("the agent to say what it lacks", why, 120)
        assert words.startswith(
            "the next try in 120 s: pool 'pool' requires an uplink of 8 Mbit/s, it is not measured yet; "
        )
        assert words.endswith("the upload did not finish in 6 s: the uplink is below 4 Mbit/s")
    finally:
        machine.stop()
        slow_line.whole = False


def test_a_line_that_is_slow_by_itself_is_measured(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Discovery answers and hangs up while the rest of the body still comes, so that the connection is reset."""
    whole = transport_client._until

    def slowly(content: bytes, until: float) -> Iterator[bytes]:
        for piece in whole(content, until):
            yield piece
            time.sleep(len(piece) * 8 / (WANTED / 4 * 1e6))

    monkeypatch.setattr(transport_client, "_until", slowly)
    client = SignedClient(stack.addresses.discovery, key := PrivateKey.generate())
    assert uplink.show(client, key.public, "pool").mbps == pytest.approx(WANTED / 4, rel=0.2)


def test_an_upload_that_is_cut_off_by_discoverys_clock_was_too_slow(loopback: Loopback) -> None:
    """Its time begins where the test is given, ours where it is read."""
    key, address = PrivateKey.generate(), loopback.address()
    test = UplinkTest(test="0" * 32, node=key.public, size=16 << 20, limit_seconds=2.0)
    with socket.create_server((address, 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        threading.Thread(target=lambda: _cut_off(listener, test), daemon=True).start()
        client = SignedClient(f"http://{address}:{listener.getsockname()[1]}", key)
        with pytest.raises(uplink.TooSlowError, match="did not finish in 2 s"):
            uplink.show(client, key.public, "pool")


def _cut_off(listener: socket.socket, test: UplinkTest) -> None:
    """Give the test a little late, and reset the upload when its time is over."""
    asked, _ = listener.accept()
    asked.recv(64 << 10)
    until = time.monotonic() + test.limit_seconds
    time.sleep(0.2)
    body = test.to_json()
    asked.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    asked.close()
    upload, _ = listener.accept()
    time.sleep(until - time.monotonic())
    upload.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    upload.close()


def test_an_upload_ends_at_its_time_however_little_each_send_waits(loopback: Loopback) -> None:
    """A line that takes a piece a second: no single wait is long."""
    address = loopback.address()
    with socket.create_server((address, 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        threading.Thread(target=lambda: _sip(listener), daemon=True).start()
        client = SignedClient(f"http://{address}:{listener.getsockname()[1]}", PrivateKey.generate())
        began = time.monotonic()
        with pytest.raises(NotSentInTime, match=r"[0-9]+ of 33554432 bytes were sent in time"):
            client.request(
                "PUT", "/v1/uplink", bytes(32 << 20), deadline_seconds=0.0, timeout_seconds=60.0, send_seconds=3.0
            )
        assert time.monotonic() - began < 60.0


def _sip(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        made, _ = listener.accept()
        while made.recv(64 << 10):
            time.sleep(0.2)
