"""A published version from the store to a folder: every piece is checked, a cut-off assembly goes on, and a folder appears whole or not at all."""

import hashlib
import shutil
from pathlib import Path

import pytest

from samples import NODE_KEY, RUN, TRAINER_KEY
from shoal.contracts import keys
from shoal.contracts.signed import BadSignature, sign
from shoal.contracts.weights import CheckpointFile, DeltaBase, ShardDescriptor, VersionOpen, WeightsManifest
from shoal.crypto.canonical import document_digest
from shoal.crypto.keys import PrivateKey
from shoal.storage import NotFound, Store
from shoal.storage.checkpoint_files import Assembler, WrongWeights, read_manifest
from shoal.storage.delta import encode
from shoal.storage.store import open_folder
from shoal.storage.versions import bases, materialise, read_sealed_manifest, sealed_versions

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
    return WeightsManifest(**fields)


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

    def test_a_folder_with_a_seal_that_is_not_believed_is_made_again(self, store: Store, tmp_path: Path) -> None:
        publish(store, key=NODE_KEY)
        folder = tmp_path / "v000007"
        materialise(store, 7, folder, RUN, NODE_KEY.public)
        (folder / "empty").write_bytes(b"of the thief")
        with pytest.raises(BadSignature):
            materialise(store, 7, folder, RUN, TRAINER_KEY.public)
        publish(store)
        assert materialise(store, 7, folder, RUN, TRAINER_KEY.public) == manifest()
        assert contents(folder) == FILES
        assert read_manifest(folder, TRAINER_KEY.public) == manifest()

    def test_a_version_of_another_run_or_number_is_refused(self, store: Store, tmp_path: Path) -> None:
        publish(store)
        with pytest.raises(WrongWeights, match=f"opening record is of {RUN} version 7; expected other 7"):
            materialise(store, 7, tmp_path / "v", "other", TRAINER_KEY.public)
        for info in store.list(keys.version(7)):
            store.put(info.key.replace("v000007", "v000008"), store.get(info.key))
        with pytest.raises(WrongWeights, match="version 7; expected"):
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
        with pytest.raises(WrongWeights, match="descriptor of shard 1 of version 7 belongs to another version"):
            materialise(store, 7, tmp_path / "v", RUN, TRAINER_KEY.public)


class Chain:
    """Versions 8 (in full), 9 and 10 (deltas) in a store, made here with the codec alone."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.files = {8: FILES}
        publish(store, 8)
        for version in (9, 10):
            self._publish(version)

    def anchor(self, version: int) -> None:
        """In full, with a delta beside it."""
        self._publish(version, anchor=True)

    def _publish(self, version: int, *, anchor: bool = False) -> None:
        old = self.files[version - 1]
        changed = bytes([version]) * 3 + old["model.safetensors"][3:]
        self.files[version] = new = {**old, "model.safetensors": changed}
        before, after = b"".join(old.values()), b"".join(new.values())
        base = DeltaBase(version=version - 1, sha256=hashlib.sha256(before).hexdigest(), item_size=2)
        opening = record(version).model_copy(update={"beside": base} if anchor else {"encoding": "delta", "base": base})
        self.store.put(keys.version_open(version), sign(opening, TRAINER_KEY).to_json())
        digests = []
        in_full = [after[start:end] for start, end in map(opening.shard_bounds, range(opening.shard_count))]
        for index, data in enumerate(in_full if anchor else ()):
            whole = ShardDescriptor(
                run=RUN, version=version, index=index, size=len(data), sha256=hashlib.sha256(data).hexdigest()
            )
            self.store.put(keys.version_descriptor(version, index), sign(whole, TRAINER_KEY).to_json())
            self.store.put(keys.version_shard(version, index), data)
        for index in range(opening.shard_count):
            start, end = opening.shard_bounds(index)
            packed = encode(after[start:end], before[start:end], 2)
            encoding, data = ("full", after[start:end]) if packed is None else packed
            digests.append(hashlib.sha256(data).hexdigest())
            descriptor = ShardDescriptor(
                run=RUN, version=version, index=index, size=len(data), sha256=digests[-1], encoding=encoding
            )
            self.store.put(
                keys.version_descriptor(version, index, beside=anchor), sign(descriptor, TRAINER_KEY).to_json()
            )
            self.store.put(keys.version_shard(version, index, beside=anchor), data)
        sealing = manifest(
            version,
            sha256=hashlib.sha256(after).hexdigest(),
            open_digest=document_digest(opening),
            shards=[hashlib.sha256(data).hexdigest() for data in in_full] if anchor else digests,
            beside=digests if anchor else None,
        )
        self.store.put(keys.version_weights(version), sign(sealing, TRAINER_KEY).to_json())

    def make(self, version: int, root: Path) -> Path:
        folder = root / keys.version_name(version)
        materialise(self.store, version, folder, RUN, TRAINER_KEY.public)
        assert contents(folder) == self.files[version]
        return folder


class TestChains:
    """On a folder only: which store it is makes no difference here."""

    @pytest.fixture
    def made(self, tmp_path: Path) -> Chain:
        return Chain(open_folder(tmp_path / "store", f"shoal/{RUN}"))

    def test_a_delta_is_made_from_its_anchor_and_only_it_is_left(self, made: Chain, tmp_path: Path) -> None:
        made.make(10, tmp_path / "w")
        assert [path.name for path in (tmp_path / "w").iterdir()] == ["v000010"]

    def test_a_base_beside_it_is_used_and_kept(self, made: Chain, tmp_path: Path) -> None:
        made.make(9, tmp_path / "w")
        for info in made.store.list(keys.version(8)):
            made.store.delete(info.key)
        made.make(10, tmp_path / "w")
        assert sorted(path.name for path in (tmp_path / "w").iterdir()) == ["v000009", "v000010"]

    def test_a_base_that_rotted_on_this_disk_is_not_trusted(self, made: Chain, tmp_path: Path) -> None:
        rotten = made.make(9, tmp_path / "w") / "model.safetensors"
        rotten.write_bytes(bytes([rotten.read_bytes()[0] ^ 1]) + rotten.read_bytes()[1:])
        made.make(10, tmp_path / "w")

    @pytest.mark.parametrize("left", [None, b"", b"some bytes"])
    def test_a_base_some_versions_back_that_lost_a_file_on_this_disk_is_not_trusted(
        self, made: Chain, tmp_path: Path, left: bytes | None
    ) -> None:
        damaged = made.make(8, tmp_path / "w") / "model.safetensors"
        damaged.unlink()
        if left is not None:
            damaged.write_bytes(left)
        made.make(10, tmp_path / "w")

    def test_a_chain_cut_off_half_way_goes_on(self, made: Chain, tmp_path: Path) -> None:
        missing = keys.version_shard(10, 2)
        data = made.store.get(missing)
        made.store.delete(missing)
        with pytest.raises(NotFound):
            made.make(10, tmp_path / "w")
        assert not (tmp_path / "w" / "v000010").exists()
        assert (tmp_path / "w" / "v000010.partial").is_dir()  # what was made of it stays
        made.store.put(missing, data)
        made.make(10, tmp_path / "w")
        assert [path.name for path in (tmp_path / "w").iterdir()] == ["v000010"]

    def test_a_shard_that_is_no_delta_of_its_base_is_refused(self, made: Chain, tmp_path: Path) -> None:
        rubbish = b"rubbish"
        descriptor = ShardDescriptor(
            run=RUN, version=10, index=1, size=7, sha256=hashlib.sha256(rubbish).hexdigest(), encoding="delta"
        )
        made.store.put(keys.version_descriptor(10, 1), sign(descriptor, TRAINER_KEY).to_json())
        made.store.put(keys.version_shard(10, 1), rubbish)
        with pytest.raises(WrongWeights, match="shard 1 of version 10: the delta does not unpack"):
            made.make(10, tmp_path / "w")
        assert not (tmp_path / "w" / "v000010").exists()

    def test_an_anchor_whose_delta_beside_is_lost_or_bad_is_made_in_full(self, made: Chain, tmp_path: Path) -> None:
        made.anchor(11)
        made.make(10, tmp_path / "w")
        assert made.make(11, tmp_path / "w").is_dir()
        for name, damage in (("lost", None), ("other", b"other bytes")):
            folder = tmp_path / name
            made.make(10, folder)
            for beside in (keys.version_shard(11, 1, beside=True), keys.version_descriptor(11, 3, beside=True)):
                kept = made.store.get(beside)
                made.store.delete(beside)
                if damage is not None and beside.endswith(".bin"):
                    made.store.put(beside, damage)
                made.make(11, folder)
                shutil.rmtree(folder / "v000011")
                made.store.put(beside, kept)

    def test_the_store_tells_what_versions_are_based_on(self, made: Chain) -> None:
        assert bases(made.store, [8, 9, 10]) == {8: None, 9: 8, 10: 9}


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
            (manifest(open_digest="0" * 64), "the manifest seals a different opening record"),
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
