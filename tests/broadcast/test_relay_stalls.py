"""A version that nobody goes on writing, as of a trainer that ended half way: it must not keep a relay from the versions before it."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from broadcast_client import Published
from broadcast_peers import OddRelay
from broadcast_run import SHARD, Keys, cut_into, trained

from shoal.broadcast import relay as relay_module
from shoal.broadcast import relay_target
from shoal.broadcast.pieces import WantedVersion
from shoal.broadcast.relay import Relay
from shoal.broadcast.transfer import Transfer
from shoal.broadcast.tree import Tree
from shoal.contracts.relays import RelayConfig
from shoal.contracts.signed import Signed
from shoal.contracts.weights import VersionOpen
from shoal.files import file_sha256

Relays = Callable[..., OddRelay]


@pytest.fixture
def half_made(tmp_path: Path, run_keys: Keys, monkeypatch: pytest.MonkeyPatch) -> Published:
    """Version 6 is whole; of version 7 all is there but the seal."""
    monkeypatch.setattr(relay_module, "Transfer", partial(Transfer, stall_seconds=1.5))
    made = Published(tmp_path, run_keys)
    made.publish(6)
    made.publish(7, seal=False)
    return made


def empty_relay(tmp_path: Path, run_keys: Keys, source: OddRelay) -> tuple[Relay, Tree]:
    tree = Tree(tmp_path / "relay")
    own = RelayConfig(kept_versions=3, sources=[source.url])
    return Relay(run_keys.config(), own, run_keys.roles["relay"], tree, lambda: None), tree


def test_a_relay_fills_in_older_versions_while_the_newest_stands_still_and_hashes_none_of_it_again(
    half_made: Published, relay: Relays, tmp_path: Path, run_keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncing, tree = empty_relay(tmp_path, run_keys, relay(half_made.www))
    syncing.turn()
    assert (tree.held(), tree.sealed()) == ([7], [])
    assert syncing.lag_seconds() > 0.0
    assert syncing.turn()
    assert tree.sealed() == [6]
    hashed: list[Path] = []

    def counted(path: Path) -> str:
        hashed.append(path)
        return file_sha256(path)

    monkeypatch.setattr(relay_target, "file_sha256", counted)
    syncing.turn()
    assert hashed == []
    assert syncing.lag_seconds() == 0.0  # nobody is to be woken about relays
    half_made.publish(7)
    assert syncing.turn()
    assert tree.sealed() == [6, 7]


def test_a_version_that_stood_still_comes_first_again_when_it_is_sealed(
    half_made: Published, relay: Relays, tmp_path: Path, run_keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Lock()

    def lacks_a_shard_of_6(path: str, body: bytes) -> bytes | None:
        if not path.endswith("v000006/00003.bin"):
            return body
        with asked:
            if 7 not in half_made.tree.sealed():
                half_made.publish(7)
        return None

    syncing, tree = empty_relay(tmp_path, run_keys, relay(half_made.www, lacks_a_shard_of_6))
    syncing.turn()
    monkeypatch.setattr(relay_module, "Transfer", partial(Transfer, stall_seconds=100.0))
    assert not syncing.turn()
    assert tree.sealed() == []
    assert syncing.turn()
    assert tree.sealed() == [7]


def test_a_relay_keeps_the_last_whole_chain_until_the_next_anchor_is_there_in_full(
    tmp_path: Path, run_keys: Keys, relay: Relays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of version 2, an anchor, only the delta came when version 3 was made from it."""
    monkeypatch.setattr(relay_module, "Transfer", partial(Transfer, stall_seconds=1.5))
    made = Published(tmp_path, run_keys, broadcast=cut_into(SHARD, 2))
    source = relay(made.www, lambda path, body: None if path.startswith("versions/v000002/0") else body)
    tree = Tree(tmp_path / "relay")
    own = RelayConfig(kept_versions=2, sources=[source.url])
    syncing = Relay(run_keys.config(), own, run_keys.roles["relay"], tree, lambda: None)
    for version in range(4):
        made.publish(version, trained(version), based=version > 0)
        syncing.turn()
    while syncing.turn():
        pass
    assert (tree.held(), tree.sealed()) == ([0, 1, 2, 3], [0, 1, 3])
    source.twist = lambda _, body: body
    while syncing.turn():
        pass
    assert tree.sealed() == tree.held() == [2, 3]


def test_what_an_earlier_process_left_is_hashed_with_signs_of_life(
    half_made: Published, relay: Relays, tmp_path: Path, run_keys: Keys
) -> None:
    syncing, tree = empty_relay(tmp_path, run_keys, relay(half_made.www))
    syncing.turn()
    beats: list[None] = []
    again = relay_target.TreeTarget(
        tree, WantedVersion("tides", 7, run_keys.trainer.public), lambda: beats.append(None)
    )
    record = Signed[VersionOpen].from_json(tree.read(7, "open.json") or b"")
    assert len(again.opened(record)) == len(beats) == record.document.shard_count
