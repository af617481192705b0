"""Relays that are slow, silent, or drip: their shards go on elsewhere, and a version arrives while one relay is good."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from broadcast_client import Client, Published, shards_asked, weights_of
from broadcast_peers import OddRelay
from broadcast_run import SHARD, Keys, checkpoint

from servers import wait_until
from shoal.broadcast import download
from shoal.broadcast.download import Attempt, Cancelled, Downloader, SourceFailed
from shoal.broadcast.parts import FilePart
from shoal.broadcast.transfer import HEDGED, STOLEN, TransferOutcome
from shoal.contracts import keys

Relays = Callable[..., OddRelay]
SHARDS = 10
VERSION_BYTES = sum(len(data) for data in checkpoint(7).values())
LONGEST_SECONDS = 60.0
"""What a client would need at least if it stayed with a relay of `SLOW` bytes a second; none of these tests may come near."""
SLOW = SHARD // 60


def _slow(relay: OddRelay) -> OddRelay:
    relay.rate = SLOW
    return relay


def _silent(relay: OddRelay) -> OddRelay:
    relay.silent = ".bin"
    return relay


def _silent_documents(relay: OddRelay) -> OddRelay:
    relay.silent = ".json"
    return relay


def _drips(relay: OddRelay) -> OddRelay:
    relay.drips_headers = ".bin"
    return relay


@pytest.mark.parametrize("spoil", [_slow, _silent, _drips, _silent_documents])
def test_a_version_arrives_although_one_of_two_relays_crawls(
    published: Published, client: Client, relay: Relays, spoil: Callable[[OddRelay], OddRelay]
) -> None:
    bad, good = spoil(relay(published.www)), relay(published.www)
    started = time.monotonic()
    assert client.fetch([bad, good], seed=4) is TransferOutcome.SEALED
    assert time.monotonic() - started < LONGEST_SECONDS
    assert client.files() == checkpoint(7)
    assert bad.asked


def test_a_stolen_shard_goes_on_from_the_byte_it_had_reached(
    published: Published, client: Client, relay: Relays
) -> None:
    bad, good = relay(published.www), relay(published.www)
    bad.rate = SHARD // 20
    before = STOLEN._value.get()
    assert client.fetch([bad, good], seed=4) is TransferOutcome.SEALED
    assert client.files() == checkpoint(7)
    assert shards_asked(bad)
    assert STOLEN._value.get() + HEDGED._value.get() > before
    resumed = [wanted for path, wanted in good.asked if path.endswith(".bin") and wanted is not None]
    assert resumed
    assert all(wanted.startswith("bytes=") and wanted != "bytes=0-" for wanted in resumed)
    assert client.sources is not None
    weights = weights_of(client.sources)
    assert weights[bad.url] < weights[good.url]


def test_the_last_shard_is_asked_for_twice_and_the_loser_is_cancelled(
    published: Published, client: Client, relay: Relays
) -> None:
    """Both relays are known; the one that has the last shard falls silent, and no other shard is left to do."""
    first, second = relay(published.www), relay(published.www)
    last = keys.version_shard(7, SHARDS - 1)
    asked = threading.Event()

    def stuck(path: str, body: bytes) -> bytes:
        if path == last and not asked.is_set():
            asked.set()
            time.sleep(8)
        return body

    first.twist = second.twist = stuck
    before = HEDGED._value.get() + STOLEN._value.get()
    started = time.monotonic()
    assert client.fetch([first, second]) is TransferOutcome.SEALED
    assert time.monotonic() - started < 8
    assert client.files() == checkpoint(7)
    assert HEDGED._value.get() + STOLEN._value.get() > before
    # Twice; where the second answer is slow to come as well, the first try may also be moved.
    assert (shards_asked(first) + shards_asked(second)).count(last) in (2, 3)


def test_a_single_slow_relay_is_left_in_peace(published: Published, client: Client, relay: Relays) -> None:
    only = relay(published.www)
    only.rate = SHARD
    assert client.fetch([only]) is TransferOutcome.SEALED
    assert client.files() == checkpoint(7)
    assert sorted(shards_asked(only)) == [keys.version_shard(7, index) for index in range(SHARDS)]


def test_a_transfer_that_is_given_up_ends_at_once_and_keeps_what_came(
    published: Published, client: Client, relay: Relays
) -> None:
    """Every shard hangs: the stall ends the transfer without waiting for ten seconds of silence."""
    source = _silent(relay(published.www))
    started = time.monotonic()
    assert client.fetch([source], stall_seconds=1.0) is TransferOutcome.STALLED
    assert time.monotonic() - started < download.STALL_SECONDS
    source.silent = None
    assert client.fetch([source]) is TransferOutcome.SEALED


def test_a_request_that_drips_its_headers_ends_at_its_deadline(
    published: Published, relay: Relays, tmp_path: Path, run_keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(download, "DOCUMENT_SECONDS", 0.5)
    source = relay(published.www)
    source.drips_headers = "00001.bin"
    path = keys.version_shard(7, 1)
    with pytest.raises(SourceFailed, match=r"00001\.bin: did not arrive by its deadline; slower than 64 KiB/s"):
        Downloader(run_keys.token).shard(source.url, path, SHARD, FilePart(tmp_path / "part"), lambda _: None)
    with pytest.raises(SourceFailed, match="did not arrive by its deadline"):
        Downloader(run_keys.token).document(source.url, path, 4000)


def test_a_request_can_be_cancelled_while_it_waits_for_an_answer(
    published: Published, relay: Relays, tmp_path: Path, run_keys: Keys
) -> None:
    source = _silent(relay(published.www))
    attempt, seen = Attempt(), list[str]()

    def ask() -> None:
        try:
            path = keys.version_shard(7, 1)
            Downloader(run_keys.token).shard(
                source.url, path, SHARD, FilePart(tmp_path / "part"), lambda _: None, attempt
            )
        except Cancelled:
            seen.append("cancelled")

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until("the request", lambda: bool(source.asked))
    attempt.cancel()
    thread.join(5)
    assert seen == ["cancelled"]
    with pytest.raises(Cancelled):
        Downloader(run_keys.token).shard(source.url, "x.bin", 1, FilePart(tmp_path / "other"), lambda _: None, attempt)


def test_a_connection_that_the_server_closed_while_idle_is_replaced_unseen(
    published: Published, relay: Relays, run_keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = relay(published.www)
    downloader = Downloader(run_keys.token)
    path = keys.version_open(7)
    assert downloader.document(source.url, path, 10_000)
    for connection in downloader._connections._idle[next(iter(downloader._connections._idle))]:
        connection.sock.shutdown(2)
    assert downloader.document(source.url, path, 10_000)
    downloader.close()


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "http://", "127.0.0.1:80", "http://127.0.0.1:99999999"])
def test_a_relay_whose_address_is_no_web_address_is_a_failed_source(url: str, run_keys: Keys) -> None:
    with pytest.raises(SourceFailed, match="ValueError"):
        Downloader(run_keys.token).document(url, "x", 10)
