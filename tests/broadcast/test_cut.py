"""Cutting: shards cover the stream exactly, in the order of the files, whatever the sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.broadcast import cut
from shoal.contracts.canonical import document_digest
from shoal.contracts.weights import CheckpointFile

SIZES = st.lists(st.integers(0, 500), min_size=1, max_size=6)


@given(SIZES, st.integers(1, 300))
def test_the_spans_of_all_shards_are_every_byte_of_every_file_once_and_in_order(sizes: list[int], shard: int) -> None:
    files = [CheckpointFile(name=f"f{index}", size=size) for index, size in enumerate(sizes)]
    record = cut.opening_record("r", 1, files, shard)
    covered = []
    for index in range(record.shard_count):
        spans = cut.spans(record, index)
        start, end = record.shard_bounds(index)
        assert sum(span.length for span in spans) == end - start
        covered += [(span.name, at) for span in spans for at in range(span.start, span.start + span.length)]
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
