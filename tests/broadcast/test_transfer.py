"""One version over several relays, some of which break off, lie, flip bits or never end: what arrives is what the trainer signed, or nothing."""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from broadcast_client import Client, Published, shards_asked, weights_of
from broadcast_peers import OddRelay
from broadcast_pods import Pods
from broadcast_run import RUN, SHARD, Keys, checkpoint

from servers import wait_until
from shoal.broadcast import documents, publishing, transfer
from shoal.broadcast.documents import FAILURES
from shoal.broadcast.download import Downloader
from shoal.broadcast.pieces import WantedVersion
from shoal.broadcast.sources import Sources
from shoal.broadcast.transfer import Transfer, TransferOutcome
from shoal.broadcast.tree import WEIGHTS
from shoal.broadcast.weights_folder import FolderTarget
from shoal.contracts import keys
from shoal.contracts.signed import sign
from shoal.storage.checkpoint_files import WrongWeights

SHARDS = 10
Relays = Callable[..., OddRelay]


def _flip(body: bytes) -> bytes:
    return body[:100] + bytes([body[100] ^ 1]) + body[101:]


def test_a_version_comes_over_several_relays_and_each_shard_once(
    published: Published, client: Client, relay: Relays
) -> None:
    relays = [relay(published.www), relay(published.www)]
    assert client.fetch(relays) is TransferOutcome.SEALED
    assert client.files() == checkpoint(7)
    asked = [shards_asked(one) for one in relays]
    assert sorted(asked[0] + asked[1]) == [keys.version_shard(7, index) for index in range(SHARDS)]


def test_a_version_is_visible_as_soon_as_its_last_shard_is_here(
    published: Published, client: Client, relay: Relays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the next poll: at the speed of a fast line that was a twentieth of the time that half a gigabyte takes."""
    for module in (documents, transfer):
        monkeypatch.setattr(module, "POLL_SECONDS", 60.0)
    slow = relay(published.www)
    slow.rate = 2 * SHARD
    started = time.monotonic()
    assert client.fetch([slow]) is TransferOutcome.SEALED
    assert time.monotonic() - started < 30.0
    assert client.files() == checkpoint(7)


def test_nothing_is_visible_before_the_whole_is_checked(published: Published, client: Client, relay: Relays) -> None:
    (published.www / keys.version_weights(7)).unlink()
    assert client.fetch([relay(published.www)], stall_seconds=1.0) is TransferOutcome.STALLED
    assert client.weights.held() == []


def test_shards_are_fetched_while_the_version_is_still_being_made(
    published: Published, client: Client, relay: Relays
) -> None:
    """Pieces appear one by one, in the publisher's order; each is fetched before the next one appears."""
    full = published.www / keys.version(7)
    growing = published.www.parent / "growing"
    target = growing / keys.version(7)
    target.mkdir(parents=True)
    source = relay(growing)
    done: list[TransferOutcome] = []
    thread = threading.Thread(target=lambda: done.append(client.fetch([source])))
    thread.start()
    (target / "open.json").write_bytes((full / "open.json").read_bytes())
    for index in range(SHARDS):
        for name in (keys.descriptor_name(index), keys.shard_name(index)):
            (target / name).write_bytes((full / name).read_bytes())
        wanted = keys.version_shard(7, index)
        wait_until(f"shard {index} to be asked for", lambda: wanted in shards_asked(source))
        assert not done
    (target / "weights.json").write_bytes((full / "weights.json").read_bytes())
    thread.join(30)
    assert done == [TransferOutcome.SEALED]
    assert client.files() == checkpoint(7)


def test_a_flipped_bit_costs_one_shard_from_another_relay(published: Published, client: Client, relay: Relays) -> None:
    bad = relay(published.www, lambda path, body: _flip(body) if path.endswith("00004.bin") else body)
    good = relay(published.www)
    for seed in range(20):  # until chance asks the bad relay for that shard first
        assert client.fetch([bad, good], seed=seed) is TransferOutcome.SEALED
        assert client.files() == checkpoint(7)
        if keys.version_shard(7, 4) in shards_asked(bad):
            break
        client.weights.path(7).rename(client.weights.root / f"old-{seed}")
        bad.asked.clear()
        good.asked.clear()
    asked = shards_asked(bad) + shards_asked(good)
    assert sorted(asked) == sorted(
        [keys.version_shard(7, index) for index in range(SHARDS)] + [keys.version_shard(7, 4)]
    )


def test_a_relay_that_breaks_off_is_left_and_the_shard_goes_on_elsewhere_by_range(
    published: Published, client: Client, relay: Relays
) -> None:
    breaking = relay(published.www)
    breaking.cut_after = 10_000
    good = relay(published.www)
    assert client.fetch([breaking, good]) is TransferOutcome.SEALED
    assert client.files() == checkpoint(7)
    assert {"bytes=10000-"} == {range_ for path, range_ in good.asked if path.endswith(".bin") and range_}
    assert client.transfer is not None
    assert client.transfer.received_bytes == sum(len(data) for data in checkpoint(7).values())
    assert client.sources is not None
    weights = weights_of(client.sources)
    assert weights[breaking.url] < weights[good.url]


def test_a_lone_relay_that_always_breaks_off_still_gets_the_version_through(
    published: Published, client: Client, relay: Relays
) -> None:
    breaking = relay(published.www)
    breaking.cut_after = SHARD // 2 + 1
    assert client.fetch([breaking]) is TransferOutcome.SEALED
    assert client.files() == checkpoint(7)


def test_a_relay_that_serves_an_old_version_under_the_new_name_is_not_believed(
    published: Published, client: Client, relay: Relays, tmp_path: Path
) -> None:
    published.publish(6)
    old = tmp_path / "old" / "versions"
    old.mkdir(parents=True)
    (published.www / keys.version(6)).rename(old / "v000007")
    liar = relay(old.parent)
    assert client.fetch([liar], stall_seconds=1.0) is TransferOutcome.STALLED
    assert client.fetch([liar, relay(published.www)]) is TransferOutcome.SEALED
    assert client.files() == checkpoint(7)


def test_a_relay_with_its_own_signatures_is_not_believed(
    published: Published, client: Client, relay: Relays, tmp_path: Path
) -> None:
    (tmp_path / "stranger").mkdir()
    stranger = Published(tmp_path / "stranger", Keys())
    stranger.publish(7, checkpoint(99))
    liar = relay(stranger.www)
    before = FAILURES.labels("bad_piece")._value.get()
    assert client.fetch([liar], stall_seconds=1.0) is TransferOutcome.STALLED
    assert FAILURES.labels("bad_piece")._value.get() > before
    assert client.fetch([liar, relay(published.www)]) is TransferOutcome.SEALED
    assert client.files() == checkpoint(7)


@pytest.mark.parametrize("piece", ["open.json", "00002.json", "00002.bin", "weights.json"])
def test_an_endless_body_is_cut_at_the_size_that_the_piece_can_have(
    published: Published, client: Client, relay: Relays, piece: str
) -> None:
    endless = relay(published.www)
    endless.endless = piece
    assert client.fetch([endless, relay(published.www)]) is TransferOutcome.SEALED
    assert client.files() == checkpoint(7)
    assert client.transfer is not None
    # At most the shard that was cut was in vain.
    assert client.transfer.received_bytes <= sum(len(data) for data in checkpoint(7).values()) + SHARD


def test_a_version_that_was_made_anew_before_its_seal_is_told_apart(
    published: Published, client: Client, relay: Relays, tmp_path: Path, run_keys: Keys
) -> None:
    published.publish(8, seal=False)
    source = relay(published.www)
    done: list[TransferOutcome] = []
    thread = threading.Thread(target=lambda: done.append(client.fetch([source], 8)))
    thread.start()
    wait_until("the last shard to be asked for", lambda: keys.version_shard(8, SHARDS - 1) in shards_asked(source))
    (tmp_path / "again").mkdir()
    again = Published(tmp_path / "again", run_keys)
    again.publish(8, checkpoint(80, 5 * SHARD))
    published.tree.drop(8)
    (again.www / keys.version(8)).rename(published.www / keys.version(8))
    thread.join(30)
    assert done == [TransferOutcome.CHANGED]
    assert client.weights.held() == []
    FolderTarget(client.weights, 8, client.trainer_key).discard()
    assert client.fetch([source], 8) is TransferOutcome.SEALED
    assert client.files(8) == checkpoint(80, 5 * SHARD)


def test_shards_that_do_not_fit_the_seal_are_fetched_again(published: Published, client: Client, relay: Relays) -> None:
    """Same sizes, other bytes: the opening record is the same, only the digests of the seal tell."""
    published.publish(8, seal=False)
    source = relay(published.www)
    done: list[TransferOutcome] = []
    thread = threading.Thread(target=lambda: done.append(client.fetch([source], 8)))
    thread.start()
    wait_until("the last shard to be asked for", lambda: keys.version_shard(8, SHARDS - 1) in shards_asked(source))
    other = {**checkpoint(8), "model.safetensors": checkpoint(80)["model.safetensors"]}
    folder = published.www.parent / "outbox" / "v000008"
    (folder / "model.safetensors").write_bytes(other["model.safetensors"])
    published.publish(8)
    thread.join(30)
    assert done == [TransferOutcome.SEALED]
    assert client.files(8) == other


def test_a_whole_that_is_not_the_announced_one_is_given_up_and_nothing_is_left(
    published: Published, client: Client, relay: Relays, run_keys: Keys
) -> None:
    """Every shard fits its digest, but the manifest's digest of the whole is wrong: the trainer signed nonsense."""
    published.publish(8, seal=False)
    manifest = publishing.cut_into(
        published.tree,
        published.www.parent / "outbox" / "v000008",
        run_keys.config(),
        8,
        run_keys.trainer,
        lambda: None,
    ).model_copy(update={"sha256": "0" * 64})
    published.tree.publish(8, WEIGHTS, sign(manifest, run_keys.trainer).to_json())
    with pytest.raises(
        WrongWeights, match=r"version 8: SHA-256 of the assembled checkpoint is .*, the manifest says 000000000000"
    ):
        client.fetch([relay(published.www)], 8)
    assert client.weights.held() == []
    assert not list(client.weights.root.glob("*.partial"))


def test_what_an_earlier_process_had_is_not_fetched_again(published: Published, client: Client, relay: Relays) -> None:
    def lacks_last(path: str, body: bytes) -> bytes | None:
        return None if path.endswith("00009.bin") else body

    assert client.fetch([relay(published.www, lacks_last)], stall_seconds=1.0) is TransferOutcome.STALLED
    source = relay(published.www)
    assert client.fetch([source]) is TransferOutcome.SEALED
    assert shards_asked(source) == [keys.version_shard(7, 9)]
    assert client.files() == checkpoint(7)


def test_a_refused_token_is_no_fault_of_the_relay(published: Published, client: Client, pods: Pods) -> None:
    source = pods.odd_relay(published.www)
    sources = Sources([source.url], random.Random(1))
    before = weights_of(sources)
    source.refuse = True
    transfer = Transfer(
        WantedVersion(RUN, 7, client.trainer_key),
        sources,
        Downloader(lambda: None),
        FolderTarget(client.weights, 7, client.trainer_key),
        stall_seconds=0.5,
    )
    assert transfer.run() is TransferOutcome.STALLED
    assert weights_of(sources) == before
