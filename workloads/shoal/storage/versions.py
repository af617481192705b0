"""Published versions as they lie in the object store: which are sealed, what they are based on, and how to get one as a folder.

For trusted roles (validators, the report); pool pods fetch from relays instead.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from shoal.contracts import keys
from shoal.contracts.signed import BadSignature, Signed, Signer
from shoal.contracts.weights import DeltaBase, ShardDescriptor, VersionOpen, WeightsManifest
from shoal.crypto.canonical import document_digest
from shoal.storage import chains, delta
from shoal.storage.checkpoint_files import Assembler, WrongWeights, read_manifest, read_shard, unpacked
from shoal.storage.delta import Bytes
from shoal.storage.parallel import in_parallel
from shoal.storage.store import NotFound, Store


def sealed_versions(store: Store) -> list[int]:
    """Numbers of the versions whose `weights.json` is there, ascending."""
    found = set()
    for info in store.list(keys.VERSIONS):
        parts = info.key.split("/")
        if len(parts) == 3 and parts[2] == "weights.json" and (number := keys.parse_version(parts[1])) is not None:
            found.add(number)
    return sorted(found)


def versions_with_shards(store: Store) -> list[int]:
    """Sealed versions that still have more than their seal, ascending."""
    sealed = set(sealed_versions(store))
    shards = {
        number
        for info in store.list(keys.VERSIONS)
        if info.key.endswith(".bin") and (number := keys.parse_version(info.key.split("/")[1])) is not None
    }
    return sorted(sealed & shards)


def read_sealed_manifest(store: Store, version: int, trainer_key: Signer) -> WeightsManifest:
    """The verified manifest of a sealed version; raises `storage.NotFound` when it is not sealed."""
    return Signed[WeightsManifest].from_json(store.get(keys.version_weights(version))).verified(trainer_key)


def read_record(store: Store, version: int, trainer_key: Signer) -> VersionOpen:
    """The verified opening record of a version; raises `storage.NotFound`."""
    return Signed[VersionOpen].from_json(store.get(keys.version_open(version))).verified(trainer_key)


def bases(store: Store, versions: Iterable[int]) -> dict[int, int | None]:
    """The base of each of these versions (see `chains`), from its opening record in the store; None for versions in full."""
    return {
        number: chains.base_of(Signed[VersionOpen].from_json(store.get(keys.version_open(number))).document)
        for number in versions
    }


@dataclass(frozen=True)
class SealedShard:
    """One shard as it lies in the store, with the SHA-256 that the trainer's seal gives it."""

    version: int
    index: int
    sha256: str

    @property
    def keys(self) -> tuple[str, str]:
        """Its descriptor and its bytes."""
        return keys.version_descriptor(self.version, self.index), keys.version_shard(self.version, self.index)


def pieces_of(store: Store, version: int, run: str, trainer_key: Signer) -> list[SealedShard]:
    """All that must be in the store for `version` to be assembled: its own shards, and those of every version that it is a delta to.

    Costs two small reads a version of the chain.
    Raises `storage.NotFound`, `WrongWeights` or `BadSignature` for records that are not what was signed.
    """
    found: list[SealedShard] = []
    wanted: int | None = version
    while wanted is not None:
        manifest, record = (
            read_sealed_manifest(store, wanted, trainer_key),
            _read_record(store, wanted, run, trainer_key),
        )
        if manifest.open_digest != document_digest(record) or len(manifest.shards) != record.shard_count:
            raise WrongWeights(f"the seal of version {wanted} is not of its opening record")
        found += [SealedShard(wanted, index, digest) for index, digest in enumerate(manifest.shards)]
        wanted = chains.base_of(record)
    return found


def missing(store: Store, pieces: Iterable[SealedShard]) -> list[str]:
    """Keys of these pieces that the store does not have; a listing a version."""
    wanted = {key: piece.version for piece in pieces for key in piece.keys}
    there = {info.key for version in set(wanted.values()) for info in store.list(keys.version(version))}
    return sorted(set(wanted) - there)


def check_pieces(store: Store, pieces: Iterable[SealedShard], run: str, trainer_key: Signer) -> None:
    """Read every piece and compare it with its seal. 65.5 GB and eight deltas are 80 GB read; nothing is written and memory holds chunks.

    Raises `storage.NotFound`, `WrongWeights` or `BadSignature`.
    """

    def check(piece: SealedShard) -> None:
        described, data = piece.keys
        found = Signed[ShardDescriptor].from_json(store.get(described)).verified(trainer_key)
        place = f"shard {piece.index} of version {piece.version}"
        if (found.run, found.version, found.index) != (run, piece.version, piece.index):
            raise WrongWeights(f"descriptor of {place} belongs to another version")
        if not found.sha256 == piece.sha256 == store.sha256(data)[0]:
            raise WrongWeights(f"{place} does not have the SHA-256 of its seal")

    in_parallel(check, pieces)


def materialise(
    store: Store, version: int, folder: Path, run: str, trainer_key: Signer, beat: Callable[[], None] = lambda: None
) -> WeightsManifest:
    """Make `folder` hold version `version` (an HF checkpoint), every piece checked; at once when it already does. `beat` is called for each piece.

    A folder with a seal that `trainer_key` does not believe is made again. A delta is made on its base: the sibling folder of that version's name if
    it is there, else from its anchor on. An anchor is made from such a base too, where a delta lies beside it. Shards are made side by side, each
    along the whole chain, and written once: at 65.5 GB and eight versions 80 GB are read. Memory stays within `delta.MOST_BYTES`. Only where shards
    change their size on the way, a version is made beside `folder`.
    Raises `storage.NotFound` when a version is not sealed, `WrongWeights`, `BrokenChain` or `BadSignature` when a piece is not what was signed.
    """
    if folder.is_dir():
        with suppress(BadSignature):
            return read_manifest(folder, trainer_key)
    # The seal is looked for first: without it there is nothing to plan.
    manifest = read_sealed_manifest(store, version, trainer_key)
    shutil.rmtree(folder, ignore_errors=True)  # it has a seal that is not believed, as of a key that leaked
    try:
        _follow(store, version, folder, run, trainer_key, beat, from_disk=True)
    except WrongWeights:
        # A base that was taken from this disk may have rotted there, or the delta beside an anchor is lost or bad. So all comes from the anchor.
        _remove_links(folder)
        _follow(store, version, folder, run, trainer_key, beat, from_disk=False)
    _remove_links(folder)
    return manifest


def _follow(
    store: Store,
    version: int,
    folder: Path,
    run: str,
    trainer_key: Signer,
    beat: Callable[[], None],
    *,
    from_disk: bool,
) -> None:
    """Assemble what `folder` needs, oldest first; with `from_disk`, start from a base that lies on this disk."""
    records: dict[int, VersionOpen] = {}
    held: dict[int, Path] = {}
    wanted: int | None = version
    while wanted is not None:
        records[wanted] = _read_record(store, wanted, run, trainer_key)
        base = records[wanted].base or records[wanted].beside
        if base is not None and from_disk:
            places = (folder.with_name(keys.version_name(base.version)), _link(folder, base.version))
            found = [place for place in places if _holds(place, base, trainer_key)]
            held.update((base.version, place) for place in found[:1])
        wanted = chains.next_wanted(records, held, version)
    way = [records[number] for number in chains.plan(records, held, version)]
    for _, alike in groupby(way, lambda record: (record.files, record.shard_size)):
        part = list(alike)
        first, last = part[0], part[-1]
        target = folder if last.version == version else _link(folder, last.version)
        base = chains.against(first, held)
        _assemble(store, part, target, held[base.version] if base is not None else None, trainer_key, beat)
        held[last.version] = target
        if base is not None:
            shutil.rmtree(_link(folder, base.version), ignore_errors=True)


def _link(folder: Path, version: int) -> Path:
    """Where a version of the chain is made on the way to `folder`; it outlives a kill, and goes when the next one is there."""
    return folder.with_name(f".{folder.name}-from-{keys.version_name(version)}")


def _remove_links(folder: Path) -> None:
    for path in folder.parent.glob(f".{folder.name}-from-*"):
        shutil.rmtree(path, ignore_errors=True)


def _holds(folder: Path, base: DeltaBase, trainer_key: Signer) -> bool:
    try:
        found = read_manifest(folder, trainer_key)
    except (OSError, ValueError):
        return False
    return (found.version, found.sha256) == (base.version, base.sha256)


def _read_record(store: Store, version: int, run: str, trainer_key: Signer) -> VersionOpen:
    record = read_record(store, version, trainer_key)
    if record.run != run or record.version != version:
        raise WrongWeights(f"opening record is of {record.run} version {record.version}; expected {run} {version}")
    return record


def _assemble(
    store: Store,
    way: Sequence[VersionOpen],
    folder: Path,
    base: Path | None,
    trainer_key: Signer,
    beat: Callable[[], None],
) -> None:
    """Make the last version of `way`, whose shards are all cut alike; the first one is in full, or has a delta to what lies in `base`."""
    first, last = way[0], way[-1]
    manifest = Signed[WeightsManifest].from_json(store.get(keys.version_weights(last.version)))
    assembler = Assembler(last, folder, base, beat, whole_shards=len(way) > 1)

    def assemble(index: int) -> None:
        data: Bytes = b"" if base is None else read_shard(first, base, index)
        for record in way:
            beside = record is first and base is not None and record.base is None
            found = _shard(store, record, index, trainer_key, beside=beside)
            data = unpacked(record, *found, data)
        assembler.write_shard(index, data)
        beat()

    in_parallel(assemble, assembler.missing(), delta.side_by_side(last.largest_shard))
    assembler.finish(manifest, trainer_key)


def _shard(
    store: Store, record: VersionOpen, index: int, trainer_key: Signer, *, beside: bool
) -> tuple[ShardDescriptor, bytes]:
    """A shard as it travels, of the version or of the delta beside it, checked against its descriptor.

    Raises `WrongWeights` where a delta beside a version is not whole, since the version in full may be.
    """
    run, version = record.run, record.version
    try:
        described = store.get(keys.version_descriptor(version, index, beside=beside))
        data = store.get(keys.version_shard(version, index, beside=beside))
    except NotFound as error:
        if beside:
            raise WrongWeights(f"the delta beside version {version} is not whole: {error}") from error
        raise
    checked = Signed[ShardDescriptor].from_json(described).verified(trainer_key)
    if (checked.run, checked.version, checked.index) != (run, version, index):
        raise WrongWeights(f"descriptor of shard {index} of version {version} belongs to another version")
    if hashlib.sha256(data).hexdigest() != checked.sha256:
        raise WrongWeights(f"shard {index} of version {version} does not have the SHA-256 of its descriptor")
    return checked, data
