"""The client in a pool pod as a process: kills on both sides, an agent that is away, versions that do not add up, disks that are full."""

import os
import shutil
import signal
from collections import namedtuple
from pathlib import Path

import pytest
from broadcast_pods import ClientPod, Pods
from broadcast_run import RUN, SHARD, Keys, checkpoint, put_outbox

from servers import wait_until
from shoal.broadcast import cut, publishing, relay_target, weights_folder
from shoal.broadcast.nginx import stray_workers
from shoal.broadcast.pieces import WantedVersion
from shoal.broadcast.relay_target import NoSpace, TreeTarget
from shoal.broadcast.tree import OPEN, WEIGHTS, Tree
from shoal.broadcast.weights_folder import FolderTarget, WeightsFolder
from shoal.contracts import keys
from shoal.contracts.signed import sign
from shoal.contracts.weights import CheckpointFile

FETCH = "shoal.broadcast.fetch"
BIG = 300 * SHARD
Usage = namedtuple("Usage", "total used free")


def _publish(www: Path, run_keys: Keys, version: int, size: int = 10 * SHARD, **changes: object) -> Tree:
    """A sealed version in a served folder; `changes` go into its manifest."""
    tree = Tree(www)
    put_outbox(www, version, checkpoint(version, size))
    folder = www / keys.version_name(version)
    manifest = publishing.cut_into(tree, folder, run_keys.config(), version, run_keys.trainer, lambda: None)
    tree.publish(version, WEIGHTS, sign(manifest.model_copy(update=changes), run_keys.trainer).to_json())
    return tree


def _shards_here(client: ClientPod, version: int) -> int:
    log = client.home / "weights" / f"{keys.version_name(version)}.partial" / ".shards"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def test_a_client_killed_half_way_fetches_only_what_it_lacks(pods: Pods, run_keys: Keys, tmp_path: Path) -> None:
    _publish(tmp_path, run_keys, 3)
    relay = pods.odd_relay(tmp_path, lambda path, body: None if path.endswith(("8.bin", "9.bin")) else body)
    client = pods.client()
    client.agent.say(relays=[relay.url], latest_version=3)
    client.run()
    # Ten shards of weights after the config file: eleven in all.
    wait_until("nine of eleven shards", lambda: _shards_here(client, 3) == 9, 60)
    client.kill("fetch")
    relay.asked.clear()
    relay.twist = lambda _, body: body
    client.run()
    wait_until("version 3", lambda: client.held() == [3], 60)
    assert client.files(3) == checkpoint(3, 10 * SHARD)
    asked = sorted(path for path, _ in relay.asked if path.endswith(".bin"))
    assert asked == [keys.version_shard(3, 8), keys.version_shard(3, 9)]


def test_a_version_is_fetched_before_it_is_announced_and_visible_only_then(
    pods: Pods, run_keys: Keys, tmp_path: Path
) -> None:
    _publish(tmp_path, run_keys, 0)
    relay = pods.odd_relay(tmp_path)
    client = pods.client()
    client.agent.say(relays=[relay.url], latest_version=None)
    client.run()
    wait_until("eleven shards", lambda: _shards_here(client, 0) == 11, 60)
    assert client.held() == []
    client.agent.say(latest_version=0)
    wait_until("version 0", lambda: client.held() == [0], 60)
    _publish(tmp_path, run_keys, 1)
    wait_until("the next version's shards", lambda: _shards_here(client, 1) == 11, 60)
    assert client.held() == [0]
    client.agent.say(latest_version=1)
    wait_until("version 1", lambda: client.held() == [0, 1], 60)
    assert client.files(1) == checkpoint(1, 10 * SHARD)


def test_an_nginx_killed_while_it_serves_costs_the_client_nothing_but_time(pods: Pods) -> None:
    origin = pods.origin()
    relays = [pods.relay(origin), pods.relay(origin)]
    for pod in (origin, *relays):
        pod.run()
    origin.hand_in(0, checkpoint(0, BIG))
    for relay in relays:
        wait_until("version 0 on both relays", lambda: relay.versions() == [0], 60)
    client = pods.client()
    client.agent.say(relays=[relay.url for relay in relays], latest_version=0)
    client.run()
    wait_until("a good part of the shards", lambda: _shards_here(client, 0) > 20, 60, interval=0.001)
    master = relays[0].pid("nginx")
    relays[0].kill("nginx")
    for worker in stray_workers(master):
        os.kill(worker, signal.SIGKILL)
    wait_until("version 0", lambda: client.held() == [0], 60)
    assert client.files(0) == checkpoint(0, BIG)


def test_a_client_waits_for_its_agent_for_a_token_and_for_relays(pods: Pods, run_keys: Keys, tmp_path: Path) -> None:
    _publish(tmp_path, run_keys, 3)
    relay = pods.odd_relay(tmp_path)
    client = pods.client()
    client.agent.say(relays=[relay.url], latest_version=3, relay_token=None, state="Invited")
    socket = client.home / "run" / "agent.sock"
    socket.rename(socket.with_name("away"))
    client.run()
    wait_until("the client to miss its agent", lambda: "a turn failed, trying again" in client.log("fetch"), 60)
    socket.with_name("away").rename(socket)
    client.agent.say(relay_token=run_keys.token(), relays=[])
    client.agent.say(relays=[relay.url], state="Healthy")
    wait_until("version 3", lambda: client.held() == [3], 60)
    assert client.files(3) == checkpoint(3, 10 * SHARD)


def test_a_version_that_does_not_add_up_is_given_up_and_the_next_one_taken(
    pods: Pods, run_keys: Keys, tmp_path: Path
) -> None:
    _publish(tmp_path, run_keys, 3, sha256="0" * 64)
    relay = pods.odd_relay(tmp_path)
    client = pods.client()
    client.agent.say(relays=[relay.url], latest_version=3)
    client.run()
    wait_until(
        "the client to notice",
        lambda: "the assembled checkpoint differs from the announced one" in client.log("fetch"),
        60,
    )
    _publish(tmp_path, run_keys, 4)
    client.agent.say(latest_version=4)
    wait_until("version 4", lambda: client.held() == [4], 60)
    assert client.log("fetch").count("the assembled checkpoint differs from the announced one") == 1
    assert sorted(path.name for path in (client.home / "weights").iterdir()) == [".lock", ".parts", "v000004"]


def test_a_client_that_can_reach_no_relay_keeps_its_version_and_is_alive(
    pods: Pods, run_keys: Keys, tmp_path: Path
) -> None:
    _publish(tmp_path, run_keys, 3)
    relay = pods.odd_relay(tmp_path)
    client = pods.client()
    client.agent.say(relays=[relay.url], latest_version=3)
    client.run()
    wait_until("version 3", lambda: client.held() == [3], 60)
    client.agent.say(relays=["http://127.0.0.1:1"], latest_version=4)
    wait_until("failing tries", lambda: client.log("fetch").count("a try failed") > 3, 60)
    assert client.held() == [3]
    _publish(tmp_path, run_keys, 4)
    client.agent.say(relays=["http://127.0.0.1:1", relay.url])
    wait_until("version 4", lambda: client.held() == [3, 4], 60)


def test_weights_of_another_run_or_hand_are_removed_at_start(run_keys: Keys, tmp_path: Path) -> None:
    _publish(tmp_path / "www", run_keys, 3)
    other = tmp_path / "weights" / "v000003"
    other.mkdir(parents=True)
    shutil.copy(tmp_path / "www" / keys.version_weights(3), other / "shoal-weights.json")
    (tmp_path / "weights" / "v000004").mkdir()
    trainer = run_keys.trainer.public
    assert WeightsFolder(tmp_path / "weights", RUN, trainer).held() == [3]
    assert WeightsFolder(tmp_path / "weights", "another-run", trainer).held() == []


def test_the_newest_version_is_kept_whatever_the_count(tmp_path: Path, run_keys: Keys) -> None:
    weights = WeightsFolder(tmp_path, RUN, run_keys.trainer.public)
    for version in (1, 2, 3):
        weights.path(version).mkdir()
    assert weights.keep_newest(0) == [1, 2]
    assert weights.held() == [3]


def test_a_full_disk_is_said_before_anything_is_written(
    tmp_path: Path, run_keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_folder.shutil, "disk_usage", lambda _: Usage(1 << 30, 0, 1 << 20))
    record = cut.opening_record(RUN, 3, [CheckpointFile(name="a", size=5 << 20)], SHARD)
    trainer = run_keys.trainer
    target = FolderTarget(WeightsFolder(tmp_path, RUN, trainer.public), 3, trainer.public)
    with pytest.raises(
        NoSpace, match=r"version 3 needs 5242880 bytes, 1048576 are free: give weights/ a larger volume"
    ):
        target.opened(sign(record, trainer))
    assert not list(tmp_path.glob("v*"))


def test_a_relay_short_of_space_drops_old_versions_but_never_its_newest_whole_one(
    tmp_path: Path, run_keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path)
    for version in (1, 2, 3):
        tree.publish(version, OPEN, b"{}")
        tree.publish(version, WEIGHTS, b"{}")
    record = cut.opening_record(RUN, 4, [CheckpointFile(name="a", size=SHARD)], SHARD)
    target = TreeTarget(tree, WantedVersion(RUN, 4, run_keys.trainer.public))
    reserve = relay_target.DISK_RESERVE_BYTES
    free = iter([0, reserve + SHARD, reserve + SHARD])
    monkeypatch.setattr(Tree, "free_bytes", lambda _: next(free, reserve + SHARD))
    assert target.opened(sign(record, run_keys.trainer)) == {}
    assert tree.held() == [2, 3, 4]
    monkeypatch.setattr(Tree, "free_bytes", lambda _: 0)
    with pytest.raises(NoSpace, match="only 0 are free: give the relay a larger volume"):
        TreeTarget(tree, WantedVersion(RUN, 5, run_keys.trainer.public)).opened(
            sign(record.model_copy(update={"version": 5}), run_keys.trainer)
        )
    assert tree.sealed() == [3]
