"""A published version from the store to a folder: every piece is checked, a cut-off assembly goes on, and a folder appears whole or not at all."""

import hashlib
from pathlib import Path

import pytest

from samples import NODE_KEY, RUN, TRAINER_KEY
from shoal.contracts import keys
from shoal.contracts.canonical import BadSignature, document_digest, sign
from shoal.contracts.identity import PrivateKey
from shoal.contracts.weights import CheckpointFile, ShardDescriptor, VersionOpen, WeightsManifest
from shoal.storage import NotFound, Store
from shoal.storage.checkpoint_files import Assembler, WrongWeights, read_manifest
from shoal.storage.versions import materialise, read_sealed_manifest, sealed_versions

FILES = {
    "config.json": b'{"a": 1}',
    "empty": b"",
    "model.safetensors": bytes(range(256)) * 20,
    "tokenizer.json": b"t" * 77,
}
STREAM = b"".join(FILES.values())
SHARD = 1000


def record(version: int = 7, run: str = RUN) -> VersionOpen:
    files = [CheckpointFile(name=name, size=len(data)) for name, data in FILES.items()]
    return VersionOpen(run=run, version=version, files=files, shard_size=SHARD, shard_count=-(-len(STREAM) // SHARD))


def shards() -> list[bytes]:
    return [STREAM[start : start + SHARD] for start in range(0, len(STREAM), SHARD)]


def manifest(version: int = 7, **changes: object) -> WeightsManifest:
    fields = {
        "run": RUN, "version": version, "model": "arithmetic-tiny", "sha256": hashlib.sha256(STREAM).hexdigest(),
        "open_digest": document_digest(record(version)), "shards": [hashlib.sha256(data).hexdigest() for data in shards()],
    } | changes  # fmt: skip
    return WeightsManifest(**fields)  # type: ignore[arg-type]


def publish(store: Store, version: int = 7, key: PrivateKey = TRAINER_KEY, *, seal: bool = True) -> None:
    store.put(keys.version_open(version), sign(record(version), key).to_json())
    for index, data in enumerate(shards()):
        descriptor = ShardDescriptor(
            run=RUN, version=version, index=index, size=len(data), sha256=hashlib.sha256(data).hexdigest()
        )
        store.put(keys.version_descriptor(version, index), sign(descriptor, key).to_json())
        store.put(keys.version_shard(version, index), data)
    if seal:
        store.put(keys.version_weights(version), sign(manifest(version), key).to_json())


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


class TestFromTheStore:
    def test_a_sealed_version_becomes_a_folder_with_its_manifest(self, store: Store, tmp_path: Path) -> None:
        publish(store)
        folder = tmp_path / "v000007"
        found = materialise(store, 7, folder, RUN, TRAINER_KEY.public)
        assert found == manifest() == read_manifest(folder, TRAINER_KEY.public)
        assert contents(folder) == FILES
        assert not folder.with_name("v000007.partial").exists()

    def test_a_second_call_needs_no_store(self, store: Store, tmp_path: Path) -> None:
        publish(store)
        folder = tmp_path / "v000007"
        materialise(store, 7, folder, RUN, TRAINER_KEY.public)
        for info in store.list("versions/"):
            store.delete(info.key)
        assert materialise(store, 7, folder, RUN, TRAINER_KEY.public) == manifest()

    def test_only_sealed_versions_are_listed_and_made(self, store: Store, tmp_path: Path) -> None:
        publish(store, 3)
        publish(store, 10)
        publish(store, 7, seal=False)
        store.put("versions/notes/weights.json", b"{}")
        store.put("versions/index.json", b"{}")
        assert sealed_versions(store) == [3, 10]
        assert read_sealed_manifest(store, 10, TRAINER_KEY.public).version == 10
        with pytest.raises(NotFound, match=r"versions/v000007/weights\.json"):
            materialise(store, 7, tmp_path / "v", RUN, TRAINER_KEY.public)

    def test_what_another_key_signed_is_refused(self, store: Store, tmp_path: Path) -> None:
        publish(store, key=NODE_KEY)
        with pytest.raises(BadSignature):
            materialise(store, 7, tmp_path / "v", RUN, TRAINER_KEY.public)
        assert not (tmp_path / "v").exists()

    def test_a_version_of_another_run_or_number_is_refused(self, store: Store, tmp_path: Path) -> None:
        publish(store)
        with pytest.raises(WrongWeights, match=f"opening record is of {RUN} version 7, wanted is other 7"):
            materialise(store, 7, tmp_path / "v", "other", TRAINER_KEY.public)
        for info in store.list(keys.version(7)):
            store.put(info.key.replace("v000007", "v000008"), store.get(info.key))
        with pytest.raises(WrongWeights, match="version 7, wanted is"):
            materialise(store, 8, tmp_path / "v", RUN, TRAINER_KEY.public)

    def test_one_flipped_bit_is_found_and_names_the_shard(self, store: Store, tmp_path: Path) -> None:
        publish(store)
        key = keys.version_shard(7, 2)
        store.put(key, bytes([shards()[2][0] ^ 1]) + shards()[2][1:])
        with pytest.raises(WrongWeights, match="shard 2 of version 7 does not have the SHA-256 of its descriptor"):
            materialise(store, 7, tmp_path / "v", RUN, TRAINER_KEY.public)
        assert not (tmp_path / "v").exists()
        store.put(key, shards()[2])
        materialise(store, 7, tmp_path / "v", RUN, TRAINER_KEY.public)
        assert contents(tmp_path / "v") == FILES

    def test_descriptors_that_were_swapped_are_refused(self, store: Store, tmp_path: Path) -> None:
        publish(store)
        store.put(keys.version_descriptor(7, 1), store.get(keys.version_descriptor(7, 2)))
        with pytest.raises(WrongWeights, match="descriptor of shard 1 of version 7 belongs elsewhere"):
            materialise(store, 7, tmp_path / "v", RUN, TRAINER_KEY.public)


class TestAssembler:
    def test_shards_arrive_in_any_order(self, tmp_path: Path) -> None:
        assembler = Assembler(record(), tmp_path / "v")
        for index in reversed(range(len(shards()))):
            assembler.write_shard(index, shards()[index])
        assembler.finish(sign(manifest(), TRAINER_KEY), TRAINER_KEY.public)
        assert contents(tmp_path / "v") == FILES

    def test_a_new_process_goes_on_where_the_old_one_was_cut_off(self, tmp_path: Path) -> None:
        first = Assembler(record(), tmp_path / "v")
        first.write_shard(0, shards()[0])
        first.write_shard(3, shards()[3])
        second = Assembler(record(), tmp_path / "v")
        assert second.missing() == [1, 2, *range(4, len(shards()))]
        for index in second.missing():
            second.write_shard(index, shards()[index])
        second.finish(sign(manifest(), TRAINER_KEY), TRAINER_KEY.public)
        assert contents(tmp_path / "v") == FILES

    def test_a_shard_whose_log_line_was_cut_is_fetched_again(self, tmp_path: Path) -> None:
        assembler = Assembler(record(), tmp_path / "v")
        assembler.write_shard(1, shards()[1])
        with (tmp_path / "v.partial" / ".shards").open("ab") as log:
            log.write(b"2")
        assert 2 in Assembler(record(), tmp_path / "v").missing()

    def test_another_opening_record_starts_anew(self, tmp_path: Path) -> None:
        Assembler(record(7), tmp_path / "v").write_shard(0, shards()[0])
        assert Assembler(record(8), tmp_path / "v").missing() == list(range(len(shards())))

    def test_a_shard_of_the_wrong_size_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(WrongWeights, match="shard 0 has 999 bytes, the opening record says 1000"):
            Assembler(record(), tmp_path / "v").write_shard(0, shards()[0][:-1])

    def test_what_is_not_whole_does_not_appear(self, tmp_path: Path) -> None:
        assembler = Assembler(record(), tmp_path / "v")
        assembler.write_shard(0, shards()[0])
        with pytest.raises(WrongWeights, match=f"{len(shards()) - 1} shards of version 7 are missing"):
            assembler.finish(sign(manifest(), TRAINER_KEY), TRAINER_KEY.public)
        assert not (tmp_path / "v").exists()

    @pytest.mark.parametrize(
        ("sealed", "error"),
        [
            (manifest(sha256="0" * 64), "SHA-256 of the assembled checkpoint is"),
            (manifest(open_digest="0" * 64), "the manifest seals another opening record"),
            (manifest(version=8), f"manifest is of {RUN} version 8, not of 7"),
            (manifest(run="other"), "manifest is of other version 7, not of 7"),
        ],
        ids=["sha256", "open_digest", "version", "run"],
    )
    def test_a_manifest_that_does_not_fit_is_refused(self, tmp_path: Path, sealed: WeightsManifest, error: str) -> None:
        assembler = Assembler(record(), tmp_path / "v")
        for index, data in enumerate(shards()):
            assembler.write_shard(index, data)
        with pytest.raises(WrongWeights, match=error):
            assembler.finish(sign(sealed, TRAINER_KEY), TRAINER_KEY.public)
        assert not (tmp_path / "v").exists()
