"""Whether the bytes of an assembled version are still those that were assembled."""

import hashlib
from pathlib import Path

import pytest

from samples import RUN, TRAINER_KEY
from shoal.contracts.signed import sign
from shoal.contracts.weights import CheckpointFile, VersionOpen, WeightsManifest
from shoal.crypto.canonical import document_digest
from shoal.storage.checkpoint_files import (
    SHARDS_FILE,
    AssembledShards,
    Assembler,
    digest_of_shards,
    version_digest,
    wrong_shard,
)

FILES = {"a.safetensors": bytes(range(250)) * 10, "b.safetensors": b"weights" * 300}
STREAM = b"".join(FILES.values())
SHARDS = [STREAM[start : start + 1000] for start in range(0, len(STREAM), 1000)]
DIGESTS = [hashlib.sha256(shard).hexdigest() for shard in SHARDS]
RECORD = VersionOpen(
    run=RUN,
    version=7,
    files=[CheckpointFile(name=name, size=len(data)) for name, data in FILES.items()],
    shard_size=1000,
    shard_count=len(SHARDS),
    digest_of="shards",
)
SEALS = (document_digest(RECORD), digest_of_shards(DIGESTS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An assembled version, some shards of which an earlier process had written and one that came twice."""
    Assembler(RECORD, tmp_path / "v").write_shard(2, SHARDS[2])
    assembler = Assembler(RECORD, tmp_path / "v")
    for index in (0, 1, 3, 0, 4):
        assembler.write_shard(index, SHARDS[index])
    sealed = WeightsManifest(run=RUN, version=7, model="m", sha256=SEALS[1], open_digest=SEALS[0], shards=DIGESTS)
    return assembler.finish(sign(sealed, TRAINER_KEY), TRAINER_KEY.public, notes_shards=True)


def test_an_assembled_version_is_right_in_every_part_and_has_its_digest(folder: Path) -> None:
    assert [wrong_shard(folder, *SEALS, part, 3) for part in range(3)] == ["", "", ""]
    assert version_digest(RECORD, folder) == SEALS[1]


def test_a_changed_byte_is_found_by_whoever_answers_for_its_shard(folder: Path) -> None:
    data = bytearray(FILES["b.safetensors"])
    data[3] ^= 1  # byte 2,503 of the stream
    (folder / "b.safetensors").write_bytes(data)
    assert wrong_shard(folder, *SEALS, 0, 2).startswith(
        "shard 2 (a.safetensors from byte 2000 to 2500, b.safetensors from byte 0 to 500) has SHA-256 "
    )
    assert wrong_shard(folder, *SEALS, 1, 2) == ""


def test_a_file_that_is_cut_or_gone_is_named(folder: Path) -> None:
    (folder / "b.safetensors").write_bytes(FILES["b.safetensors"][:-1])
    assert (
        wrong_shard(folder, *SEALS) == "shard 4 is not readable: v/b.safetensors is shorter than its version requires"
    )
    (folder / "a.safetensors").unlink()
    assert "shard 0 is not readable: [Errno 2] No such file" in wrong_shard(folder, *SEALS)


def test_digests_that_the_manifest_does_not_seal_are_refused(folder: Path) -> None:
    assert "is not of the version that the manifest seals" in wrong_shard(folder, SEALS[0], "0" * 64)
    assert "is not of the version that the manifest seals" in wrong_shard(folder, "0" * 64, SEALS[1])
    others = AssembledShards(open=RECORD, sha256=["0" * 64, *DIGESTS[1:]])
    (folder / SHARDS_FILE).write_bytes(others.to_json())
    assert "is not of the version that the manifest seals" in wrong_shard(folder, *SEALS)
    (folder / SHARDS_FILE).write_bytes(b"{}")
    assert f"{SHARDS_FILE} is not readable" in wrong_shard(folder, *SEALS)


def test_a_version_that_an_earlier_release_assembled_is_not_looked_at(folder: Path) -> None:
    (folder / SHARDS_FILE).unlink()
    (folder / "a.safetensors").unlink()
    assert wrong_shard(folder, *SEALS) == ""


def test_a_version_that_is_gone_is_not_taken_for_one_of_an_earlier_release(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    assert wrong_shard(folder, *SEALS).endswith("v is not there")
