"""Shards on their way: hashed as they pass, kept across a crash, and never written over by somebody who came second."""

import hashlib
import os
from pathlib import Path

import pytest
from broadcast_run import RUN, SHARD, Keys

from shoal.broadcast import cut, parts
from shoal.broadcast.parts import FilePart, PlacedPart, ShardPart
from shoal.broadcast.weights_folder import FolderTarget, WeightsFolder
from shoal.contracts.signed import sign
from shoal.contracts.weights import CheckpointFile, ShardDescriptor, VersionOpen, WeightsManifest
from shoal.storage.checkpoint_files import Assembler, WrongWeights, digest_of_shards

FILES = [CheckpointFile(name="a.bin", size=SHARD // 2), CheckpointFile(name="b.bin", size=3 * SHARD)]
STREAM = os.urandom(sum(file.size for file in FILES))


@pytest.fixture
def record() -> VersionOpen:
    return cut.opening_record(RUN, 3, FILES, SHARD)


def _bytes(record: VersionOpen, index: int) -> bytes:
    start, end = record.shard_bounds(index)
    return STREAM[start:end]


def _manifest(record: VersionOpen) -> WeightsManifest:
    digests = [hashlib.sha256(_bytes(record, index)).hexdigest() for index in range(record.shard_count)]
    return cut.manifest(record, "model", digest_of_shards(digests), digests)


def _append(part: ShardPart, data: bytes, step: int = 10_000) -> None:
    for at in range(0, len(data), step):
        part.append(memoryview(data)[at : at + step])


def test_a_placed_shard_lies_in_its_files_without_a_second_copy(record: VersionOpen, tmp_path: Path) -> None:
    """Shard 0 spans both files."""
    assembler = Assembler(record, tmp_path / "v")
    for index in (2, 0, 3, 1):
        part = PlacedPart(assembler, index, tmp_path / f"{index}.at")
        _append(part, _bytes(record, index))
        assert part.sha256() == hashlib.sha256(_bytes(record, index)).hexdigest()
        part.drop()
        assembler.placed(index)
    key = Keys().trainer
    folder = assembler.finish(sign(_manifest(record), key), key.public)
    assert (folder / "a.bin").read_bytes() + (folder / "b.bin").read_bytes() == STREAM
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v"]


def test_what_an_earlier_process_had_of_a_whole_version_is_hashed_with_signs_of_life(
    record: VersionOpen, tmp_path: Path
) -> None:
    """Nothing is missing, so that all is read at the end: at the paper's size minutes of a slow disk, and a silent client is killed after three."""
    first = Assembler(record, tmp_path / "v")
    for index in range(record.shard_count):
        first.write_shard(index, bytearray(_bytes(record, index)))
    beats: list[None] = []
    again = Assembler(record, tmp_path / "v", beat=lambda: beats.append(None))
    assert again.missing() == []
    key = Keys().trainer
    again.finish(sign(_manifest(record), key), key.public)
    assert len(beats) == record.shard_count


def test_a_shard_that_was_cut_by_a_crash_goes_on_from_its_note(
    record: VersionOpen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "NOTE_BYTES", 20_000)
    data = _bytes(record, 1)
    first = PlacedPart(Assembler(record, tmp_path / "v"), 1, tmp_path / "1.at")
    _append(first, data[:50_000])  # and here the process ends: nothing is paused or closed
    second = PlacedPart(Assembler(record, tmp_path / "v"), 1, tmp_path / "1.at")
    assert second.have == 40_000
    _append(second, data[40_000:])
    assert second.sha256() == hashlib.sha256(data).hexdigest()


def test_a_file_goes_on_from_what_it_has(tmp_path: Path) -> None:
    first = FilePart(tmp_path / "part")
    _append(first, STREAM[:30_000])
    first.pause()
    second = FilePart(tmp_path / "part")
    assert second.have == 30_000
    _append(second, STREAM[30_000:SHARD])
    assert second.sha256() == hashlib.sha256(STREAM[:SHARD]).hexdigest()


@pytest.mark.parametrize("note", [b"", b"rubbish", b"-5", b"99999999999"])
def test_a_note_that_says_nothing_sensible_costs_no_more_than_the_shard(
    record: VersionOpen, tmp_path: Path, note: bytes
) -> None:
    (tmp_path / "1.at").write_bytes(note)
    part = PlacedPart(Assembler(record, tmp_path / "v"), 1, tmp_path / "1.at")
    assert part.have in (0, SHARD)  # the file is preallocated: what is hashed then is not the shard
    part.restart()
    _append(part, _bytes(record, 1))
    assert part.sha256() == hashlib.sha256(_bytes(record, 1)).hexdigest()


@pytest.mark.parametrize("placed", [True, False])
def test_a_part_that_starts_anew_forgets_what_it_had(record: VersionOpen, tmp_path: Path, placed: bool) -> None:
    path = tmp_path / "1.at"
    part = PlacedPart(Assembler(record, tmp_path / "v"), 1, path) if placed else FilePart(path)
    _append(part, bytes(5000))
    part.restart()
    assert (part.have, part.sha256()) == (0, hashlib.sha256(b"").hexdigest())
    _append(part, b"again")
    assert part.sha256() == hashlib.sha256(b"again").hexdigest()


def test_a_file_that_starts_anew_while_no_bytes_come_is_not_left_open(tmp_path: Path) -> None:
    part = FilePart(tmp_path / "part")
    _append(part, bytes(5000))
    part.pause()
    before = len(os.listdir("/proc/self/fd"))
    part.restart()
    assert len(os.listdir("/proc/self/fd")) == before
    assert (tmp_path / "part").stat().st_size == 0


def test_a_version_that_was_opened_anew_forgets_how_far_its_shards_were(tmp_path: Path) -> None:
    """A process that ended in between: the next one must not take the new, empty files for what the note speaks of."""
    key = Keys().trainer
    weights = WeightsFolder(tmp_path, RUN, key.public)
    descriptor = ShardDescriptor(run=RUN, version=3, index=1, size=SHARD, sha256="0" * 64)
    for files in (FILES, [*FILES, CheckpointFile(name="c.bin", size=SHARD)]):
        target = FolderTarget(weights, 3, key.public)
        target.opened(sign(cut.opening_record(RUN, 3, files, SHARD), key))
        part = target.part(descriptor, second=False)
        assert part.have == 0
        _append(part, bytes(5000))
        part.pause()
    again = FolderTarget(weights, 3, key.public)
    again.opened(sign(cut.opening_record(RUN, 3, files, SHARD), key))
    assert again.part(descriptor, second=False).have == 5000


def test_who_lost_a_shard_writes_nothing_more_to_its_place(record: VersionOpen, tmp_path: Path) -> None:
    assembler = Assembler(record, tmp_path / "v")
    loser = PlacedPart(assembler, 1, tmp_path / "1.at")
    _append(loser, bytes(20_000))
    loser.close_for_good()
    assembler.write_shard(1, _bytes(record, 1))
    _append(loser, bytes(20_000))
    with assembler.place(1) as place:
        assert b"".join(place.read(at, 10_000) for at in range(0, SHARD, 10_000)) == _bytes(record, 1)


def test_a_shard_that_is_replaced_after_it_was_hashed_is_hashed_again(record: VersionOpen, tmp_path: Path) -> None:
    assembler = Assembler(record, tmp_path / "v")
    for index in range(record.shard_count):
        assembler.write_shard(index, _bytes(record, index) if index != 1 else bytes(SHARD))
    assembler.write_shard(1, _bytes(record, 1))
    key = Keys().trainer
    assembler.finish(sign(_manifest(record), key), key.public)


def test_a_file_that_became_shorter_meanwhile_is_said(record: VersionOpen, tmp_path: Path) -> None:
    assembler = Assembler(record, tmp_path / "v")
    for index in range(1, record.shard_count):
        assembler.write_shard(index, _bytes(record, index))
    os.truncate(tmp_path / "v.partial" / "b.bin", SHARD)
    assembler.write_shard(0, _bytes(record, 0))
    key = Keys().trainer
    with pytest.raises(WrongWeights, match=r"b\.bin is shorter than its version requires"):
        assembler.finish(sign(_manifest(record), key), key.public)
    assert assembler.missing() == list(range(record.shard_count)), "all is fetched again"
