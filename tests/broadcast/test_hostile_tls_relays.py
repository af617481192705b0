"""Relays that lie, drip or flood behind a good certificate: TLS vouches for the line and not for the relay."""

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broadcast_certificates import Authority
from broadcast_client import Client, Published, shards_asked, weights_of
from broadcast_peers import OddRelay
from broadcast_run import SHARD, Keys, checkpoint

from servers import Loopback
from shoal.broadcast import connections, download
from shoal.broadcast.connections import GATHER_BYTES
from shoal.broadcast.download import BrokenOff, Downloader, SourceFailed
from shoal.broadcast.parts import FilePart
from shoal.broadcast.transfer import TransferOutcome
from shoal.contracts import keys
from shoal.storage.checkpoint_files import ShardPlace

SHARD_1 = keys.version_shard(7, 1)
VERSION_BYTES = sum(len(data) for data in checkpoint(7).values())
Relays = Callable[[], OddRelay]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("the run's authority")


@pytest.fixture
def tls(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.pem.decode())


@pytest.fixture
def secure(loopback: Loopback, authority: Authority, published: Published) -> Iterator[Relays]:
    """Makes relays that hold version 7 and speak HTTPS."""
    made: list[OddRelay] = []

    def make() -> OddRelay:
        made.append(OddRelay(published.www, loopback, authority=authority))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def client(tmp_path: Path, run_keys: Keys, tls: ssl.SSLContext) -> Client:
    return Client(tmp_path / "weights", run_keys, tls)


@pytest.fixture
def downloader(run_keys: Keys, tls: ssl.SSLContext) -> Downloader:
    return Downloader(run_keys.token, tls=tls)


def _lies(relay: OddRelay) -> None:
    """One byte in the middle of every shard is another one."""

    def twist(path: str, body: bytes) -> bytes:
        middle = len(body) // 2
        return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :] if path.endswith(".bin") else body

    relay.twist = twist


def _leaves_tls(relay: OddRelay) -> None:
    relay.rubbish_after = SHARD // 2


def _breaks_off(relay: OddRelay) -> None:
    relay.cut_after = SHARD // 2


def _crawls(relay: OddRelay) -> None:
    relay.rate = SHARD // 60


def _hangs(relay: OddRelay) -> None:
    relay.hangs_after = SHARD // 2


def _floods(relay: OddRelay) -> None:
    relay.endless = ".bin"


def _sends_too_much(relay: OddRelay) -> None:
    relay.too_long_by = 1


@pytest.mark.parametrize("spoil", [_lies, _leaves_tls, _breaks_off, _crawls, _hangs, _floods, _sends_too_much])
def test_a_version_arrives_whole_beside_a_hostile_relay(
    client: Client, secure: Relays, spoil: Callable[[OddRelay], None]
) -> None:
    bad, good = secure(), secure()
    spoil(bad)
    started = time.monotonic()
    assert client.fetch([bad, good], seed=4) is TransferOutcome.SEALED
    assert time.monotonic() - started < 60.0
    assert client.files() == checkpoint(7)
    assert shards_asked(bad), "chance asked it for nothing: take another seed"
    assert client.sources is not None
    weights = weights_of(client.sources)
    assert weights[bad.url] < weights[good.url]


def test_bytes_that_are_no_tls_are_never_taken_for_the_body(
    secure: Relays, downloader: Downloader, published: Published, tmp_path: Path
) -> None:
    source, part = secure(), FilePart(tmp_path / "part")
    source.rubbish_after = SHARD // 2
    with pytest.raises(SourceFailed, match="SSL"):
        downloader.shard(source.url, SHARD_1, SHARD, part, lambda _: None)
    assert part.have <= SHARD // 2
    assert (tmp_path / "part").read_bytes() == (published.www / SHARD_1).read_bytes()[: part.have]


def test_a_stream_that_is_cut_goes_on_from_its_last_byte(
    secure: Relays, downloader: Downloader, published: Published, tmp_path: Path
) -> None:
    source, part = secure(), FilePart(tmp_path / "part")
    source.cut_after = SHARD // 2
    with pytest.raises(BrokenOff, match=f"broke off after {SHARD // 2} of {SHARD} bytes"):
        downloader.shard(source.url, SHARD_1, SHARD, part, lambda _: None)
    downloader.shard(source.url, SHARD_1, SHARD, part, lambda _: None)
    assert (tmp_path / "part").read_bytes() == (published.www / SHARD_1).read_bytes()
    assert source.asked[-1] == (SHARD_1, f"bytes={SHARD // 2}-")


def test_a_stream_that_drips_ends_at_its_deadline(
    secure: Relays, downloader: Downloader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PATIENCE_SECONDS", 0.5)
    source = secure()
    source.rate = 1000
    with pytest.raises(SourceFailed, match="did not arrive by its deadline; slower than 64 KiB/s"):
        downloader.shard(source.url, SHARD_1, SHARD, FilePart(tmp_path / "part"), lambda _: None)


def test_a_handshake_that_drips_ends_with_the_deadline_of_the_connection(
    loopback: Loopback, downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte of a record that never ends comes well before the timeout of one read."""
    monkeypatch.setattr(connections, "CONNECT_SECONDS", 0.5)
    over = threading.Event()

    def drip() -> None:
        line, _ = server.accept()
        with line, contextlib.suppress(OSError):
            for byte in b"\x16\x03\x03\x40\x00\x02\x00\x3f\x00" + bytes(16 << 10):
                line.send(bytes([byte]))
                if over.wait(0.05):
                    return

    with socket.create_server((loopback.address(), 0)) as server:
        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        address, port = server.getsockname()
        with pytest.raises(SourceFailed, match="TimeoutError"):
            downloader.document(f"https://{address}:{port}", "x.json", 10)
        over.set()
        thread.join(10)


def test_a_certificate_of_another_authority_is_no_source(secure: Relays, run_keys: Keys, published: Published) -> None:
    stranger = ssl.create_default_context(cadata=Authority("another authority").pem.decode())
    with pytest.raises(SourceFailed, match="certificate verify failed"):
        Downloader(run_keys.token, tls=stranger).document(secure().url, keys.version_open(7), 10_000)


def test_a_received_byte_is_hashed_once(client: Client, secure: Relays, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked on its way into its place; 65 GB were once read again at the end."""

    def again(*_: object) -> None:
        raise AssertionError("a shard was read again")

    monkeypatch.setattr(ShardPlace, "feed", again)
    assert client.fetch([secure()]) is TransferOutcome.SEALED
    assert client.files() == checkpoint(7)


def test_a_stream_that_falls_silent_ends_after_a_while(
    secure: Relays, downloader: Downloader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloader._connections, "_stall_seconds", 0.5)
    source = secure()
    source.hangs_after = SHARD // 2
    started = time.monotonic()
    with pytest.raises(SourceFailed, match=r"TimeoutError: nothing came for 0\.5 s"):
        downloader.shard(source.url, SHARD_1, SHARD, FilePart(tmp_path / "part"), lambda _: None)
    assert time.monotonic() - started < 10.0


def test_a_fast_stream_is_read_in_pieces_of_half_a_megabyte(
    secure: Relays, downloader: Downloader, published: Published, tmp_path: Path
) -> None:
    """A wait after each record of 16 KiB once held a connection to 31 Mb/s."""
    size = 16 * GATHER_BYTES
    path = keys.version_shard(7, 98)
    (published.www / path).write_bytes(bytes(range(256)) * (size // 256))
    counts = list[int]()
    downloader.shard(secure().url, path, size, FilePart(tmp_path / "part"), counts.append)
    assert sum(counts) == size
    assert len(counts) < 4 * size / GATHER_BYTES
    assert (tmp_path / "part").read_bytes() == (published.www / path).read_bytes()


def test_a_line_that_was_reset_while_idle_is_replaced_unseen(
    loopback: Loopback, authority: Authority, downloader: Downloader, tmp_path: Path
) -> None:
    """Such as a load balancer resets lines on which nothing is said."""
    address, reset = loopback.address(), threading.Event()
    authority.issue(tmp_path, address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")

    def answer() -> None:
        for after in (read, over):
            line, _ = server.accept()
            with context.wrap_socket(line, server_side=True) as secured:
                secured.recv(4096)
                secured.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                after.wait(10)
                secured.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            reset.set()

    read, over = threading.Event(), threading.Event()
    with socket.create_server((address, 0)) as server:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        url = f"https://{address}:{server.getsockname()[1]}"
        assert downloader.document(url, "x.json", 10) == b"{}"
        read.set()
        assert reset.wait(10)
        assert downloader.document(url, "x.json", 10) == b"{}"
        over.set()
        thread.join(10)
    downloader.close()
