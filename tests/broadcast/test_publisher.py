"""The publisher as a process: order of pieces, restarts at any point, a new pod, a store or an orchestrator that is away."""

import shutil

import httpx
import pytest
from broadcast_pods import OriginPod, Pods
from broadcast_run import KEPT, SHARD, Keys, checkpoint

from servers import PLAIN, wait_until
from shoal.broadcast.nginx import ORIGIN_PORT
from shoal.contracts import keys
from shoal.contracts.signed import Signed
from shoal.contracts.weights import VersionIndex, VersionOpen, WeightsManifest
from shoal.storage.versions import materialise, sealed_versions

PUBLISHER = "shoal.broadcast.origin"


def _index(pod: OriginPod) -> list[int]:
    return VersionIndex.from_json((pod.home / "www" / "versions" / "index.json").read_bytes()).versions


def _start(pods: Pods, **changes: object) -> OriginPod:
    origin = pods.origin(**changes)
    origin.start("publisher", PUBLISHER)
    return origin


def _announced(pods: Pods, *versions: int) -> None:
    wait_until(f"announcements of {versions}", lambda: pods.announcements.versions() == list(versions), 60)


def _outbox(pod: OriginPod) -> list[str]:
    """Versions that wait; what is kept as a base for the next one waits no more."""
    return sorted(path.name for path in (pod.home / "outbox").iterdir() if path.name != ".base")


def test_a_version_is_in_the_store_before_it_is_announced_and_its_outbox_folder_goes_last(
    pods: Pods, run_keys: Keys
) -> None:
    pods.announcements.away = True
    origin = _start(pods)
    origin.hand_in(0)
    wait_until("version 0 to be sealed", lambda: origin.versions() == [0], 60)
    assert sealed_versions(origin.store) == [0]
    assert _outbox(origin) == ["v000000"]
    assert pods.announcements.taken == []
    pods.announcements.away = False
    _announced(pods, 0)
    wait_until("the outbox folder to go", lambda: not _outbox(origin), 10)
    manifest = materialise(origin.store, 0, origin.home / "copy", "tides", run_keys.trainer.public)
    assert manifest.sha256 == pods.announcements.taken[0].weights_digest
    assert (origin.home / "copy" / "model.safetensors").read_bytes() == checkpoint(0)["model.safetensors"]


def test_versions_are_announced_in_order_and_only_the_newest_are_served(pods: Pods) -> None:
    origin = pods.origin()
    for version in range(5):
        origin.hand_in(version, checkpoint(version, SHARD))
    origin.start("publisher", PUBLISHER)
    _announced(pods, 0, 1, 2, 3, 4)
    assert _index(origin) == [2, 3, 4]
    assert sealed_versions(origin.store) == [0, 1, 2, 3, 4]
    wait_until("the gauge", lambda: origin.metric(ORIGIN_PORT, "shoal_origin_newest_version") == 4, 10)


def test_a_new_pod_serves_the_newest_versions_from_the_store_and_announces_the_last_once_more(pods: Pods) -> None:
    origin = _start(pods)
    for version in range(KEPT + 1):
        origin.hand_in(version, checkpoint(version, SHARD))
    _announced(pods, 0, 1, 2, 3)
    before = {
        path.relative_to(origin.home): path.read_bytes() for path in (origin.home / "www" / "versions").glob("v*/*")
    }
    origin.kill("publisher")
    shutil.rmtree(origin.home / "www")
    pods.announcements.taken.clear()  # as if it had died before the last announcement
    origin.start("publisher", PUBLISHER)
    _announced(pods, 3)
    assert _index(origin) == [1, 2, 3]
    assert before == {
        path.relative_to(origin.home): path.read_bytes() for path in (origin.home / "www" / "versions").glob("v*/*")
    }


def test_a_sealed_number_never_gets_other_bytes(pods: Pods) -> None:
    """The trainer lost its memory and makes version 0 anew: what is published stays what it was."""
    origin = _start(pods)
    origin.hand_in(0)
    _announced(pods, 0)
    wait_until("the outbox folder to go", lambda: not _outbox(origin), 10)
    sealed = origin.store.get(keys.version_weights(0))
    origin.hand_in(0, checkpoint(50))
    wait_until("the second outbox folder to go", lambda: not _outbox(origin), 60)
    assert origin.store.get(keys.version_weights(0)) == sealed
    assert (origin.home / "www" / "versions" / "v000000" / "weights.json").read_bytes() == sealed
    assert "publishing its stored bytes" in origin.log("publisher")


@pytest.mark.parametrize("shards_seen", [0, 40])
def test_a_publisher_killed_while_it_publishes_does_it_again_to_the_end(
    pods: Pods, run_keys: Keys, shards_seen: int
) -> None:
    size = 64 * SHARD
    origin = _start(pods)
    origin.hand_in(0, checkpoint(0, size))
    folder = origin.home / "www" / "versions" / "v000000"
    wait_until(f"shard {shards_seen}", lambda: (folder / keys.shard_name(shards_seen)).exists(), 60, interval=0.001)
    origin.kill("publisher")
    origin.start("publisher", PUBLISHER)
    _announced(pods, 0)
    manifest = materialise(origin.store, 0, origin.home / "copy", "tides", run_keys.trainer.public)
    assert manifest.sha256 == pods.announcements.taken[0].weights_digest
    assert (origin.home / "copy" / "model.safetensors").read_bytes() == checkpoint(0, size)["model.safetensors"]


def test_an_unsealed_attempt_with_other_bytes_is_replaced_here_and_in_the_store(pods: Pods, run_keys: Keys) -> None:
    origin = pods.origin()
    pods.announcements.away = True
    origin.hand_in(0, checkpoint(7))
    origin.start("publisher", PUBLISHER)
    wait_until("version 0 to be sealed", lambda: origin.versions() == [0], 60)
    origin.kill("publisher")
    # As if it had been killed just before the seal; and the trainer, started anew, made other bytes.
    origin.store.delete(keys.version_weights(0))
    (origin.home / "www" / "versions" / "v000000" / "weights.json").unlink()
    shutil.rmtree(origin.home / "outbox" / "v000000")
    origin.hand_in(0, checkpoint(8))
    pods.announcements.away = False
    origin.start("publisher", PUBLISHER)
    _announced(pods, 0)
    materialise(origin.store, 0, origin.home / "copy", "tides", run_keys.trainer.public)
    assert (origin.home / "copy" / "model.safetensors").read_bytes() == checkpoint(8)["model.safetensors"]


def test_a_store_that_is_away_delays_the_seal_but_not_the_shards(pods: Pods) -> None:
    origin = _start(pods)
    origin.hand_in(0)
    _announced(pods, 0)
    (origin.home / "store").rename(origin.home / "gone")
    origin.hand_in(1)
    folder = origin.home / "www" / "versions" / "v000001"
    wait_until("the publisher to wait for the store", lambda: "store away" in origin.log("publisher"), 60)
    assert not (folder / "weights.json").exists()
    (origin.home / "gone").rename(origin.home / "store")
    _announced(pods, 0, 1)
    assert sealed_versions(origin.store) == [0, 1]


def test_what_is_no_checkpoint_is_reported_and_does_not_stop_the_next_version(pods: Pods) -> None:
    origin = pods.origin()
    (origin.home / "outbox" / "v000000" / "folder").mkdir(parents=True)
    origin.hand_in(1)
    origin.start("publisher", PUBLISHER)
    _announced(pods, 1)
    assert "v000000/folder is not a plain file; a checkpoint is a flat folder of files" in origin.log("publisher")


def test_the_opening_record_and_every_descriptor_carry_the_trainers_signature(pods: Pods, run_keys: Keys) -> None:
    origin = _start(pods)
    origin.hand_in(0)
    _announced(pods, 0)
    folder = origin.home / "www" / "versions" / "v000000"
    trainer = run_keys.trainer.public
    record = Signed[VersionOpen].from_json((folder / "open.json").read_bytes()).verified(trainer)
    manifest = Signed[WeightsManifest].from_json((folder / "weights.json").read_bytes()).verified(trainer)
    assert record.total_size == sum(len(data) for data in checkpoint(0).values())
    assert len(list(folder.glob("?????.bin"))) == len(list(folder.glob("?????.json"))) == len(manifest.shards)


def test_another_roles_key_is_refused_at_start(pods: Pods, run_keys: Keys) -> None:
    origin = pods.origin()
    origin.configure(origin.config, run_keys.roles["relay"])
    origin.start("publisher", PUBLISHER)
    wait_until("the refusal", lambda: "is not the roster's trainer key" in origin.log("publisher"), 60)


def test_health_tells_whether_there_is_something_to_serve(pods: Pods) -> None:
    origin = _start(pods)
    origin.wait_port("publisher", ORIGIN_PORT)
    health = f"http://{origin.address}:{ORIGIN_PORT}"
    answer = httpx.get(f"{health}/readyz", **PLAIN)
    assert (answer.status_code, answer.text) == (
        503,
        "no version is published yet: waiting for the trainer's first one",
    )
    origin.hand_in(0)
    wait_until("readiness", lambda: httpx.get(f"{health}/readyz", **PLAIN).status_code == 200, 60)
    assert httpx.get(f"{health}/healthz", **PLAIN).status_code == 200
