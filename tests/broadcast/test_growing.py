"""A version is cut while its trainer still writes it: shards come early, seal and announcement only when its folder is handed over."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from broadcast_client import Published
from broadcast_pods import OriginPod, Pods
from broadcast_run import SHARD, Keys, checkpoint

from servers import wait_until
from shoal.broadcast import cut
from shoal.broadcast.bases import Bases
from shoal.broadcast.origin import identity
from shoal.contracts import keys
from shoal.contracts.weights import CheckpointFile, VersionOpen
from shoal.storage import growing
from shoal.storage.growing import Growing, GrowingWriter, Piece, Unfinished, growing_versions, partial_folder
from shoal.storage.versions import materialise

PIECES = 8
SIZE = PIECES * 2 * SHARD
NAME = "model.safetensors"


class Written:
    """A trainer that writes version `version` piece by piece."""

    def __init__(self, outbox: Path, version: int, seed: int) -> None:
        self.outbox = outbox
        self.files = checkpoint(seed, SIZE)
        self.folder = partial_folder(outbox, version)
        self.target = outbox / keys.version_name(version)
        self.pieces = [Piece(NAME, at * SIZE // PIECES, SIZE // PIECES) for at in range(PIECES)]
        self.growing = GrowingWriter(self.folder)
        self.growing.end()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        (self.folder / "config.json").write_bytes(self.files["config.json"])
        with (self.folder / NAME).open("wb") as file:
            file.truncate(SIZE)
        self.growing.begin(self.pieces)

    def write(self, *numbers: int) -> None:
        for number in numbers:
            piece = self.pieces[number]
            with (self.folder / NAME).open("r+b") as file:
                file.seek(piece.start)
                file.write(self.files[NAME][piece.start : piece.start + piece.size])
            self.growing.wrote(number)

    def hand_over(self) -> None:
        self.folder.rename(self.target)
        self.growing.end()


def shards_of(pod: OriginPod) -> int:
    return len(list((pod.home / "www" / "versions" / "v000000").glob("?????.bin")))


def started(pods: Pods) -> OriginPod:
    origin = pods.origin()
    origin.start("publisher", "shoal.broadcast.origin")
    return origin


def is_published(pods: Pods, origin: OriginPod, run_keys: Keys, files: dict[str, bytes]) -> None:
    wait_until("the announcement", lambda: pods.announcements.versions() == [0], 60)
    manifest = materialise(origin.store, 0, origin.home / "copy", "tides", run_keys.trainer.public)
    assert manifest.sha256 == pods.announcements.taken[0].weights_digest
    assert {name: (origin.home / "copy" / name).read_bytes() for name in files} == files
    wait_until("the outbox to be empty", lambda: [p.name for p in (origin.home / "outbox").iterdir()] == [".base"], 10)


def test_shards_are_served_and_stored_while_the_rest_is_written_and_nothing_is_sealed_before(
    pods: Pods, run_keys: Keys
) -> None:
    origin = started(pods)
    version = Written(origin.home / "outbox", 0, seed=1)
    version.write(0, 1, 3)
    wait_until("the shards before the gap", lambda: shards_of(origin) == 4, 60)
    wait_until(
        "these in the store", lambda: sum(k.key.endswith(".bin") for k in origin.store.list("versions/")) == 4, 60
    )
    version.write(*(set(range(PIECES)) - {0, 1, 3}))
    wait_until("all shards", lambda: shards_of(origin) == -(-(SIZE + 14) // SHARD), 60)
    time.sleep(0.5)
    assert origin.versions() == []
    assert not origin.store.exists(keys.version_weights(0))
    assert pods.announcements.taken == []
    version.hand_over()
    is_published(pods, origin, run_keys, version.files)
    assert "left a version" not in origin.log("publisher")


def test_a_trainer_that_ends_while_it_writes_leaves_nothing_announced_and_the_next_ones_bytes_count(
    pods: Pods, run_keys: Keys
) -> None:
    origin = started(pods)
    Written(origin.home / "outbox", 0, seed=1).write(0, 1, 2)
    wait_until("shards of the first", lambda: shards_of(origin) >= 5, 60)
    again = Written(origin.home / "outbox", 0, seed=2)
    again.write(*range(PIECES))
    again.hand_over()
    is_published(pods, origin, run_keys, again.files)
    assert "version 0 was given up" in origin.log("publisher")


@pytest.mark.parametrize("written", [0, 3, PIECES])
def test_a_publisher_killed_while_a_version_grows_does_it_again(pods: Pods, run_keys: Keys, written: int) -> None:
    origin = started(pods)
    version = Written(origin.home / "outbox", 0, seed=1)
    version.write(*range(written))
    wait_until("its shards", lambda: shards_of(origin) >= max(0, written * 2 - 1), 60)
    origin.kill("publisher")
    version.write(*range(written, PIECES))
    version.hand_over()
    origin.start("publisher", "shoal.broadcast.origin")
    is_published(pods, origin, run_keys, version.files)


def test_what_grows_where_a_sealed_version_stands_is_left_alone(pods: Pods, run_keys: Keys) -> None:
    origin = started(pods)
    origin.hand_in(0)
    is_published(pods, origin, run_keys, checkpoint(0))
    sealed = origin.store.get(keys.version_weights(0))
    Written(origin.home / "outbox", 0, seed=5).write(*range(PIECES))
    origin.hand_in(1)
    wait_until("version 1", lambda: pods.announcements.versions() == [0, 1], 60)
    assert origin.store.get(keys.version_weights(0)) == sealed


@pytest.fixture
def record() -> VersionOpen:
    files = [CheckpointFile(name="config.json", size=14), CheckpointFile(name=NAME, size=SIZE)]
    return cut.opening_record("tides", 0, files, SHARD)


def follow(outbox: Path, stopped: Callable[[], bool] = lambda: False) -> Growing:
    return Growing(outbox, 0, lambda: None, stopped)


def test_a_shard_waits_for_every_piece_that_it_has_bytes_of(tmp_path: Path, record: VersionOpen) -> None:
    """Shard 2 begins 14 bytes before piece 1: `config.json` lies before the weights."""
    version = Written(tmp_path, 0, seed=1)
    assert growing_versions(tmp_path) == [0]
    answers = iter([False, True, True, True])
    with follow(tmp_path, lambda: next(answers)) as reader:
        version.write(0)
        reader.ready(0, record)
        with pytest.raises(Unfinished, match="asked to stop while waiting for shard 2 of version 0"):
            reader.ready(2, record)
        version.write(1)
        reader.ready(2, record)


def test_a_folder_is_known_by_itself_and_not_by_its_name(tmp_path: Path, record: VersionOpen) -> None:
    first = Written(tmp_path, 0, seed=1)
    first.write(*range(PIECES))
    with follow(tmp_path) as reader:
        second = Written(tmp_path, 0, seed=2)
        second.write(*range(PIECES))
        second.hand_over()
        with pytest.raises(Unfinished, match="version 0 was given up before the version to be handed over"):
            reader.handed_over()
    third = Written(tmp_path, 1, seed=3)
    with Growing(tmp_path, 1, lambda: None, lambda: False) as reader:
        third.hand_over()
        reader.handed_over()
        assert (reader.folder / "config.json").read_bytes() == third.files["config.json"]


def test_a_trainer_that_stands_still_is_waited_for_until_a_deadline(
    tmp_path: Path, record: VersionOpen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "SILENCE_SECONDS", 0.1)
    Written(tmp_path, 0, seed=1)
    with follow(tmp_path) as reader, pytest.raises(Unfinished, match="nothing written for 0 s, before shard 0"):
        reader.ready(0, record)


def test_a_trainer_that_is_being_stopped_hands_over_a_whole_folder_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files go one by one: a folder that was renamed meanwhile would be published without some."""
    version = Written(tmp_path, 0, seed=1)
    remove = shutil.rmtree
    tried: list[str] = []

    def hands_over_meanwhile(path: Path, ignore_errors: bool = False) -> None:
        if path.is_dir():
            tried.append(path.name)
            with pytest.raises(FileNotFoundError):
                version.hand_over()
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", hands_over_meanwhile)
    growing.discard(version.folder)
    assert tried == ["partial-gone-v000000"]
    assert list(tmp_path.iterdir()) == []
    growing.discard(version.folder)


def test_a_plan_without_its_folder_is_no_version(tmp_path: Path) -> None:
    version = Written(tmp_path, 0, seed=1)
    os.rename(version.folder, version.target)  # and killed before the plan went
    with pytest.raises(OSError, match="partial-v000000"):
        follow(tmp_path)


def test_a_folder_made_again_is_another_one_although_the_disk_gives_it_the_same_number(tmp_path: Path) -> None:
    first = Written(tmp_path, 0, seed=1)
    known = identity(first.folder)
    first.write(0)
    assert identity(first.folder) == known
    again = Written(tmp_path, 0, seed=1)
    assert identity(again.folder) != known
    known = identity(again.folder)
    again.hand_over()
    assert identity(again.target) == known


def test_a_base_that_a_restarted_publisher_reads_is_read_with_signs_of_life(tmp_path: Path, run_keys: Keys) -> None:
    """At the paper's size it takes minutes of a slow disk, and a silent publisher is killed after three."""
    made = Published(tmp_path, run_keys)
    made.publish(0)
    kept = tmp_path / "outbox" / ".base"
    kept.mkdir()
    (tmp_path / "outbox" / "v000000").rename(kept / "v000000")
    beats: list[None] = []
    bases = Bases(tmp_path / "outbox", made.tree, lambda: beats.append(None))
    bases.check()
    assert len(beats) == 10
    assert bases.before(1) is not None
