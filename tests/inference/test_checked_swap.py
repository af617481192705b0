"""A swap holds the bytes that it loads to the signed manifest, each rank its share, before it loads any."""

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
import tiny_policy

from shoal.broadcast.publishing import checkpoint_files
from shoal.contracts.signed import sign
from shoal.contracts.weights import VersionOpen, WeightsManifest
from shoal.crypto.canonical import document_digest
from shoal.crypto.keys import PrivateKey
from shoal.inference.completions import Request
from shoal.storage.checkpoint_files import Assembler, digest_of_shards, read_shard

KEY = PrivateKey.from_seed(b"t" * 32)
REQUESTS = [Request(tuple(range(40, 60)), number, 0.9, 6) for number in range(4)]
SHARD_BYTES = 1 << 18


def assembled(made: Path, folder: Path, key: PrivateKey = KEY, version: int = 3) -> VersionOpen:
    """A version on disk as the agent puts it there."""
    files = checkpoint_files(made)
    count = -(-sum(file.size for file in files) // SHARD_BYTES)
    record = VersionOpen(
        run="tiny", version=version, files=files, shard_size=SHARD_BYTES, shard_count=count, digest_of="shards"
    )
    assembler = Assembler(record, folder)
    shards = [read_shard(record, made, index) for index in range(count)]
    for index, data in enumerate(shards):
        assembler.write_shard(index, data)
    digests = [hashlib.sha256(data).hexdigest() for data in shards]
    sealed = WeightsManifest(
        run="tiny",
        version=version,
        model="m",
        sha256=digest_of_shards(digests),
        open_digest=document_digest(record),
        shards=digests,
    )
    assembler.finish(sign(sealed, key), key.public, notes_shards=True)
    return record


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def test_two_ranks_refuse_a_version_by_the_shard_that_changed_and_keep_what_they_have(folder: Path) -> None:
    for seed, name in enumerate(("old", "new")):
        tiny_policy.make_policy(folder / name, seed)
    for name in ("good", "even", "odd"):
        record = assembled(folder / "new", folder / name)
    size = (folder / "good" / "model.safetensors").stat().st_size
    before = sum(file.size for file in record.files[: [each.name for each in record.files].index("model.safetensors")])
    wrong = {}
    for name, parity in (("even", 0), ("odd", 1)):
        index = next(number for number in range(3, record.shard_count) if number % 2 == parity)
        at = index * SHARD_BYTES + 1000 - before
        assert 0 < at < size
        with (folder / name / "model.safetensors").open("r+b") as file:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1]))
        wrong[name] = index

    def swap(name: str) -> dict[str, Any]:
        return {"do": "swap", "folder": str(folder / name), "checked": True}

    generate = {"do": "generate", "requests": [tiny_policy.request_json(request) for request in REQUESTS]}
    start = {"do": "start", "folder": str(folder / "old"), "settings": {"tensor_parallel_size": 2}}
    _, first, even, odd, kept, good, new = tiny_policy.run_engine(
        [start, generate, swap("even"), swap("odd"), generate, swap("good"), generate]
    ).results
    assert (
        f"is not loaded, its bytes changed since they were assembled: rank 0 on {gethostname()}: shard {wrong['even']}"
        in even
    )
    assert (
        f"is not loaded, its bytes changed since they were assembled: rank 1 on {gethostname()}: shard {wrong['odd']}"
        in odd
    )
    assert "(model.safetensors from byte " in odd
    assert "rank 0" not in odd
    assert {path.name for path in folder.iterdir()} == {"old", "new", "good", ".old-even", ".old-odd"}
    assert kept == first
    assert good is None
    assert new != first
