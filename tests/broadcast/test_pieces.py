"""Pieces from anywhere: well signed is not enough, each must be of this run, this version and this place."""

import pytest
from broadcast_run import Keys

from shoal.broadcast import cut, pieces
from shoal.broadcast.pieces import BadPiece, OtherOpening, WantedVersion
from shoal.contracts.signed import sign
from shoal.contracts.weights import CheckpointFile, DeltaBase, VersionOpen


def _record(version: int = 3, size: int = 250) -> VersionOpen:
    return cut.opening_record("tides", version, [CheckpointFile(name="a", size=size)], 100)


@pytest.fixture
def wanted(run_keys: Keys) -> WantedVersion:
    return WantedVersion("tides", 3, run_keys.trainer.public)


def test_the_trainers_pieces_are_read(run_keys: Keys, wanted: WantedVersion) -> None:
    record = _record()
    shard = cut.descriptor(record, 2, record.shard_bounds(2)[1] - record.shard_bounds(2)[0], "1" * 64)
    sealed = cut.manifest(record, "model", "5" * 64, ["1" * 64] * 3)
    key = run_keys.trainer
    assert pieces.read_open(sign(record, key).to_json(), wanted).document == record
    assert pieces.read_descriptor(sign(shard, key).to_json(), wanted, record, 2).document == shard
    assert pieces.read_manifest(sign(sealed, key).to_json(), wanted, record).document == sealed


def test_bytes_that_are_no_document_are_refused_with_the_place(wanted: WantedVersion) -> None:
    with pytest.raises(BadPiece, match=r"open\.json of version 3 cannot be read: Invalid JSON"):
        pieces.read_open(b"<html>", wanted)
    with pytest.raises(BadPiece, match=r"open\.json of version 3 cannot be read: document: Field required"):
        pieces.read_open(b"{}", wanted)


def test_a_piece_of_a_later_release_is_refused_with_what_to_do(run_keys: Keys, wanted: WantedVersion) -> None:
    """A signature is over all keys, so none may be left out (ADR 0092)."""
    data = sign(_record(), run_keys.trainer).to_json().replace(b'"files":', b'"compressed":true,"files":')
    with pytest.raises(BadPiece, match=r"document\.compressed: not known here; .* a later release: upgrade this one"):
        pieces.read_open(data, wanted)


def test_a_piece_signed_by_another_role_is_refused(run_keys: Keys, wanted: WantedVersion) -> None:
    with pytest.raises(BadPiece, match=r"VersionOpen is signed by .*; required:"):
        pieces.read_open(sign(_record(), run_keys.roles["relay"]).to_json(), wanted)


def test_a_piece_changed_after_signing_is_refused(run_keys: Keys, wanted: WantedVersion) -> None:
    data = sign(_record(), run_keys.trainer).to_json().replace(b'"size":250', b'"size":251')
    with pytest.raises(BadPiece, match="does not fit the document"):
        pieces.read_open(data, wanted)


def test_an_old_versions_piece_under_a_new_name_is_refused(run_keys: Keys, wanted: WantedVersion) -> None:
    old = _record(version=2)
    with pytest.raises(BadPiece, match=r"open\.json is of run tides version 2; expected tides version 3"):
        pieces.read_open(sign(old, run_keys.trainer).to_json(), wanted)
    sealed = cut.manifest(old, "model", "5" * 64, ["1" * 64] * 3)
    with pytest.raises(BadPiece, match=r"weights\.json is of run tides version 2"):
        pieces.read_manifest(sign(sealed, run_keys.trainer).to_json(), wanted, _record())


def test_another_shards_descriptor_is_refused(run_keys: Keys, wanted: WantedVersion) -> None:
    record = _record()
    other = sign(cut.descriptor(record, 1, 100, "1" * 64), run_keys.trainer).to_json()
    with pytest.raises(BadPiece, match="descriptor of shard 0 of version 3: it is that of shard 1"):
        pieces.read_descriptor(other, wanted, record, 0)


def test_a_descriptor_of_another_size_is_refused(run_keys: Keys, wanted: WantedVersion) -> None:
    shard = cut.descriptor(_record(size=300), 2, 100, "1" * 64)
    with pytest.raises(BadPiece, match="it gives 100 bytes, the opening record 50"):
        pieces.read_descriptor(sign(shard, run_keys.trainer).to_json(), wanted, _record(), 2)


def test_a_manifest_over_another_opening_record_is_told_apart(run_keys: Keys, wanted: WantedVersion) -> None:
    sealed = cut.manifest(_record(size=260), "model", "5" * 64, ["1" * 64] * 3)
    with pytest.raises(OtherOpening, match="seals a different opening record"):
        pieces.read_manifest(sign(sealed, run_keys.trainer).to_json(), wanted, _record())


def test_a_manifest_with_too_few_shards_is_refused(run_keys: Keys, wanted: WantedVersion) -> None:
    record = _record()
    sealed = cut.manifest(record, "model", "5" * 64, ["1" * 64] * 3).model_copy(update={"shards": ["1" * 64]})
    with pytest.raises(BadPiece, match="lists 1 shards, the opening record 3"):
        pieces.read_manifest(sign(sealed, run_keys.trainer).to_json(), wanted, record)


def test_a_delta_is_taken_only_where_the_record_allows_one_and_only_if_it_is_smaller(
    run_keys: Keys, wanted: WantedVersion
) -> None:
    full = _record()
    delta = cut.as_delta(full, DeltaBase(version=2, sha256="2" * 64, item_size=2))

    def read(size: int, record: VersionOpen) -> object:
        shard = cut.descriptor(record, 2, size, "1" * 64, "delta")
        return pieces.read_descriptor(sign(shard, run_keys.trainer).to_json(), wanted, record, 2).document

    assert read(49, delta) == cut.descriptor(delta, 2, 49, "1" * 64, "delta")
    with pytest.raises(BadPiece, match="a delta of 50 bytes, where the opening record allows fewer than 50"):
        read(50, delta)
    with pytest.raises(BadPiece, match="a delta of 10 bytes, where the opening record allows none"):
        read(10, full)
