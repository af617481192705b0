"""Cutting: shards cover the stream exactly, in the order of the files, whatever the sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.broadcast import cut
from shoal.contracts.weights import CheckpointFile, DeltaBase, VersionOpen
from shoal.crypto.canonical import document_digest
from shoal.storage.checkpoint_files import extents

SIZES = st.lists(st.integers(0, 500), min_size=1, max_size=6)


@given(SIZES, st.integers(1, 300))
def test_the_spans_of_all_shards_are_every_byte_of_every_file_once_and_in_order(sizes: list[int], shard: int) -> None:
    files = [CheckpointFile(name=f"f{index}", size=size) for index, size in enumerate(sizes)]
    record = cut.opening_record("r", 1, files, shard)
    covered = []
    for index in range(record.shard_count):
        spans = extents(record, index)
        start, end = record.shard_bounds(index)
        assert sum(span.length for span in spans) == end - start
        covered += [(span.name, at) for span in spans for at in range(span.start, span.start + span.length)]
        assert [span.at for span in spans] == [sum(other.length for other in spans[:n]) for n in range(len(spans))]
    assert covered == [(file.name, at) for file in files for at in range(file.size)]


def test_files_are_ordered_by_name_so_that_two_publishers_cut_the_same() -> None:
    files = [CheckpointFile(name=name, size=10) for name in ("b", "a", "c")]
    record = cut.opening_record("r", 1, files, 100)
    assert [file.name for file in record.files] == ["a", "b", "c"]
    assert record == cut.opening_record("r", 1, files[::-1], 100)


def test_a_version_without_files_is_refused() -> None:
    with pytest.raises(cut.CannotCut, match="version 7 has no files"):
        cut.opening_record("r", 7, [], 100)


def test_too_many_shards_are_refused_with_the_shard_size_that_would_do() -> None:
    with pytest.raises(cut.CannotCut, match=r"make 1000000 shards, at most 99999 are allowed; set a shard size of 11 "):
        cut.opening_record("r", 1, [CheckpointFile(name="a", size=1_000_000)], 1)


def test_the_manifest_ties_stream_record_and_shards_together() -> None:
    record = cut.opening_record("r", 1, [CheckpointFile(name="a", size=150)], 100)
    sealed = cut.manifest(record, "model", "5" * 64, ["1" * 64, "2" * 64])
    assert (sealed.open_digest, sealed.sha256, sealed.shards) == (
        document_digest(record),
        "5" * 64,
        ["1" * 64, "2" * 64],
    )
    with pytest.raises(ValueError, match="1 shard digests for 2 shards"):
        cut.manifest(record, "model", "5" * 64, ["1" * 64])


def _record(version: int, size: int = 150, shard: int = 100) -> VersionOpen:
    return cut.opening_record("r", version, [CheckpointFile(name="a", size=size)], shard)


def test_a_version_is_a_delta_against_the_one_before_it() -> None:
    base = cut.base_for(_record(7), _record(6), "6" * 64, 2, anchor_every=8)
    assert base == DeltaBase(version=6, sha256="6" * 64, item_size=2)
    assert not cut.is_anchor(_record(7), anchor_every=8, chain_bytes=149)
    delta = cut.as_delta(_record(7), base)
    assert (delta.encoding, delta.base, delta.files) == ("delta", base, _record(7).files)


@pytest.mark.parametrize(
    ("record", "candidate", "anchor_every"),
    [
        (_record(7), _record(5), 8),
        (_record(7), _record(6, size=151), 8),
        (_record(7), _record(6, shard=90), 8),
        (_record(7), _record(6), 1),
    ],
    ids=["old base", "other sizes", "other shards", "switched off"],
)
def test_a_version_has_no_delta(record: VersionOpen, candidate: VersionOpen, anchor_every: int) -> None:
    assert cut.base_for(record, candidate, "6" * 64, 2, anchor_every=anchor_every) is None


@pytest.mark.parametrize(("version", "chain_bytes"), [(8, 0), (7, 150)], ids=["every eighth", "large deltas"])
def test_an_anchor_goes_out_in_full_with_its_delta_beside_it(version: int, chain_bytes: int) -> None:
    record = _record(version)
    assert cut.is_anchor(record, anchor_every=8, chain_bytes=chain_bytes)
    base = cut.base_for(record, _record(version - 1), "6" * 64, 2, anchor_every=8)
    assert base is not None
    both = cut.with_delta_beside(record, base)
    assert (both.encoding, both.base, both.beside) == ("full", None, base)
    sealed = cut.manifest(both, "model", "5" * 64, ["1" * 64, "2" * 64], ["3" * 64, "4" * 64])
    assert (sealed.sent(beside=False), sealed.sent(beside=True)) == (["1" * 64, "2" * 64], ["3" * 64, "4" * 64])
    with pytest.raises(ValueError, match="0 shard digests for 2 shards"):
        cut.manifest(both, "model", "5" * 64, ["1" * 64, "2" * 64])
    with pytest.raises(ValueError, match="1 shard digests for 0 shards"):
        cut.manifest(record, "model", "5" * 64, ["1" * 64, "2" * 64], ["3" * 64])


@pytest.mark.parametrize(
    ("version", "last_bytes", "beside"),
    [(8, 0, True), (8, 150, True), (7, 74, True), (7, 75, False), (7, 150, False)],
)
def test_an_anchor_that_large_deltas_made_has_none_beside_it(version: int, last_bytes: int, beside: bool) -> None:
    assert cut.has_delta_beside(_record(version), anchor_every=8, last_bytes=last_bytes) == beside
