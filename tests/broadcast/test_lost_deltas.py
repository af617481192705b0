"""The delta beside an anchor, at a client: only one that is really lost or bad sends it to the version in full, and no version is given up for it."""

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from broadcast_client import Published, shards_asked
from broadcast_peers import AgentSocket, OddRelay
from broadcast_run import RUN, SHARD, Keys, cut_into, trained

from shoal import telemetry
from shoal.broadcast import fetch
from shoal.broadcast.fetch import Agent, Fetcher
from shoal.broadcast.transfer import Transfer
from shoal.broadcast.tree import WEIGHTS
from shoal.broadcast.weights_folder import WeightsFolder
from shoal.contracts import keys
from shoal.contracts.signed import Signed, sign
from shoal.contracts.weights import ShardDescriptor, WeightsManifest
from shoal.storage.checkpoint_files import OWN_FILES
from shoal.transport import SignedClient

Relays = Callable[..., OddRelay]
SIZE = 6 * SHARD
ANCHOR = 4


class Node:
    """A client's own code without its loop, and the agent's socket. It holds the version before the anchor."""

    def __init__(self, home: Path, run_keys: Keys, relays: list[OddRelay]) -> None:
        self.agent = AgentSocket(run_keys, home / "a.sock")
        self.agent.say(relays=[relay.url for relay in relays])
        client = SignedClient("http://agent", unix_socket=home / "a.sock")
        self.weights = WeightsFolder(home / "weights", RUN, run_keys.trainer.public)
        liveness = telemetry.Liveness(60.0)
        self.fetcher = Fetcher(RUN, run_keys.trainer.public, Agent(client), self.weights, liveness)

    def turn(self, announced: int) -> bool:
        self.agent.say(latest_version=announced)
        return self.fetcher.turn()

    def files(self, version: int) -> dict[str, bytes]:
        folder = self.weights.path(version)
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in OWN_FILES}


@pytest.fixture
def anchored(tmp_path: Path, run_keys: Keys, monkeypatch: pytest.MonkeyPatch) -> Published:
    """Version 3 in full, 4 as an anchor with its delta, 5 as a delta. A transfer stalls after a second, or gives way after half of one."""
    monkeypatch.setattr(fetch, "Transfer", partial(Transfer, stall_seconds=1.0))
    monkeypatch.setattr(fetch, "GIVE_WAY_SECONDS", 0.5)
    made = Published(tmp_path, run_keys, broadcast=cut_into(SHARD, ANCHOR))
    for version in (ANCHOR - 1, ANCHOR, ANCHOR + 1):
        made.publish(version, trained(version, SIZE), based=version >= ANCHOR)
    return made


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory, run_keys: Keys) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def make(*relays: OddRelay) -> Node:
        made.append(Node(tmp_path_factory.mktemp("n"), run_keys, list(relays)))
        assert made[-1].turn(ANCHOR - 1)
        for relay in relays:
            relay.asked.clear()
        return made[-1]

    yield make
    for one in made:
        one.agent.close()


def _in_full(relay: OddRelay) -> list[str]:
    return [path for path in shards_asked(relay) if path.startswith(f"{keys.version(ANCHOR)}0")]


def test_a_relay_that_answers_nothing_for_a_while_sends_nobody_to_the_version_in_full(
    anchored: Published, relay: Relays, node: Callable[..., Node]
) -> None:
    broken = relay(anchored.www)

    def breaks(path: str, body: bytes) -> bytes | None:
        if "beside-00002.bin" in path:
            broken.refuse = True
            return None
        return body

    here = node(broken)
    broken.twist = breaks
    assert not here.turn(ANCHOR)
    broken.refuse = False
    broken.twist = lambda _, body: body
    assert here.turn(ANCHOR)
    assert here.files(ANCHOR) == trained(ANCHOR, SIZE)
    assert _in_full(broken) == []


def test_a_delta_that_a_relay_has_not_wholly_yet_is_waited_for(
    anchored: Published, relay: Relays, node: Callable[..., Node]
) -> None:
    """The relay has not sealed the version in full either: more of the delta will come."""
    late = relay(anchored.www)
    here = node(late)
    late.twist = lambda path, body: None if "beside-00003" in path or path.endswith(WEIGHTS) else body
    assert not here.turn(ANCHOR)
    late.twist = lambda _, body: body
    assert here.turn(ANCHOR)
    assert _in_full(late) == []


@pytest.mark.parametrize("lost", ["beside-00003.bin", "beside-00003.json", "beside.json"])
@pytest.mark.parametrize("announced", [ANCHOR, ANCHOR + 1], ids=["stalled", "gave way"])
def test_who_waits_for_a_delta_that_is_lost_takes_the_version_in_full(
    anchored: Published,
    relay: Relays,
    node: Callable[..., Node],
    lost: str,
    announced: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where a newer version is announced, to which the transfer gives way."""
    if announced > ANCHOR:
        monkeypatch.setattr(fetch, "Transfer", Transfer)
    whole, away = relay(anchored.www), relay(anchored.www)
    here = node(whole, away)
    away.refuse = True

    def loses(path: str, body: bytes) -> bytes | None:
        if lost not in path:
            return body
        here.agent.say(latest_version=announced)
        return None

    whole.twist = loses
    assert not here.turn(ANCHOR)
    assert here.turn(announced)
    assert here.files(announced) == trained(announced, SIZE)
    assert _in_full(whole) or lost == "beside.json"  # without the seal alone, all shards may be here already


def test_a_bad_delta_beside_an_anchor_costs_one_try_and_no_version(
    anchored: Published, relay: Relays, node: Callable[..., Node], run_keys: Keys
) -> None:
    tree, rubbish = anchored.tree, b"rubbish"
    digest = hashlib.sha256(rubbish).hexdigest()
    described = ShardDescriptor(run=RUN, version=ANCHOR, index=1, size=7, sha256=digest, encoding="sparse")
    tree.publish(ANCHOR, keys.descriptor_name(1, beside=True), sign(described, run_keys.trainer).to_json())
    tree.publish(ANCHOR, keys.shard_name(1, beside=True), rubbish)
    sealed = Signed[WeightsManifest].from_json(tree.read(ANCHOR, WEIGHTS) or b"").document
    assert sealed.beside is not None
    beside = [digest if index == 1 else each for index, each in enumerate(sealed.beside)]
    sealing = sign(sealed.model_copy(update={"beside": beside}), run_keys.trainer).to_json()
    for name in (keys.seal_name(beside=True), WEIGHTS):
        tree.publish(ANCHOR, name, sealing)
    here = node(relay(anchored.www))
    assert not here.turn(ANCHOR)
    assert here.turn(ANCHOR)
    assert here.files(ANCHOR) == trained(ANCHOR, SIZE)
    assert here.turn(ANCHOR + 1)
