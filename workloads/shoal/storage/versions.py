"""Published versions as they lie in the object store: which are sealed, what they are based on, and how to get one as a folder.

For trusted roles (validators, the report); pool pods fetch from relays instead.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from shoal.contracts import keys
from shoal.contracts.signed import BadSignature, Signed, Signer
from shoal.contracts.weights import DeltaBase, ShardDescriptor, VersionOpen, WeightsManifest
from shoal.storage import chains
from shoal.storage.checkpoint_files import Assembler, WrongWeights, read_manifest
from shoal.storage.store import Store


def sealed_versions(store: Store) -> list[int]:
    """Numbers of the versions whose `weights.json` is there, ascending."""
    found = set()
    for info in store.list(keys.VERSIONS):
        parts = info.key.split("/")
        if len(parts) == 3 and parts[2] == "weights.json" and (number := keys.parse_version(parts[1])) is not None:
            found.add(number)
    return sorted(found)


def read_sealed_manifest(store: Store, version: int, trainer_key: Signer) -> WeightsManifest:
    """The verified manifest of a sealed version; raises `storage.NotFound` when it is not sealed."""
    return Signed[WeightsManifest].from_json(store.get(keys.version_weights(version))).verified(trainer_key)


def bases(store: Store, versions: Iterable[int]) -> dict[int, int | None]:
    """The base of each of these versions (see `chains`), from its opening record in the store; None for versions in full."""
    return {
        number: chains.base_of(Signed[VersionOpen].from_json(store.get(keys.version_open(number))).document)
        for number in versions
    }


def materialise(
    store: Store, version: int, folder: Path, run: str, trainer_key: Signer, beat: Callable[[], None] = lambda: None
) -> WeightsManifest:
    """Make `folder` hold version `version` (an HF checkpoint), every piece checked; at once when it already does. `beat` is called for each piece.

    A folder with a seal that `trainer_key` does not believe is made again. A delta is made on its base: the sibling folder of that version's name if
    it is there, else the chain from its anchor, made beside `folder` and removed again. Raises `storage.NotFound` when a version is not sealed,
    `WrongWeights`, `BrokenChain` or `BadSignature` when a piece is not what the trainer signed.
    """
    if folder.is_dir():
        with suppress(BadSignature):
            return read_manifest(folder, trainer_key)
    # The seal is looked for first: without it there is nothing to plan.
    manifest = read_sealed_manifest(store, version, trainer_key)
    shutil.rmtree(folder, ignore_errors=True)  # it has a seal that is not believed, as of a key that leaked
    try:
        _follow(store, version, folder, run, trainer_key, beat, beside=True)
    except WrongWeights:
        # A base that was taken from this disk may have rotted there: from the anchor, everything is checked again.
        _remove_links(folder)
        _follow(store, version, folder, run, trainer_key, beat, beside=False)
    _remove_links(folder)
    return manifest


def _follow(
    store: Store, version: int, folder: Path, run: str, trainer_key: Signer, beat: Callable[[], None], *, beside: bool
) -> None:
    """Assemble what `folder` needs, oldest first; with `beside`, start from a base that lies on this disk."""
    records: dict[int, VersionOpen] = {}
    held: dict[int, Path] = {}
    wanted: int | None = version
    while wanted is not None:
        records[wanted] = _read_record(store, wanted, run, trainer_key)
        base = records[wanted].base
        if base is not None and beside:
            places = (folder.with_name(keys.version_name(base.version)), _link(folder, base.version))
            found = [place for place in places if _holds(place, base, trainer_key)]
            held.update((base.version, place) for place in found[:1])
        wanted = chains.next_wanted(records, held, version)
    for number in chains.plan(records, held, version):
        record, target = records[number], folder if number == version else _link(folder, number)
        under = held[record.base.version] if record.base is not None else None
        _assemble(store, record, target, under, trainer_key, beat)
        held[number] = target
        if record.base is not None:
            shutil.rmtree(_link(folder, record.base.version), ignore_errors=True)


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
    record = Signed[VersionOpen].from_json(store.get(keys.version_open(version))).verified(trainer_key)
    if record.run != run or record.version != version:
        raise WrongWeights(f"opening record is of {record.run} version {record.version}; expected {run} {version}")
    return record


def _assemble(
    store: Store, record: VersionOpen, folder: Path, base: Path | None, trainer_key: Signer, beat: Callable[[], None]
) -> None:
    run, version = record.run, record.version
    manifest = Signed[WeightsManifest].from_json(store.get(keys.version_weights(version)))
    assembler = Assembler(record, folder, base)
    for index in assembler.missing():
        descriptor = Signed[ShardDescriptor].from_json(store.get(keys.version_descriptor(version, index)))
        checked = descriptor.verified(trainer_key)
        data = store.get(keys.version_shard(version, index))
        if (checked.run, checked.version, checked.index) != (run, version, index):
            raise WrongWeights(f"descriptor of shard {index} of version {version} belongs to another version")
        if hashlib.sha256(data).hexdigest() != checked.sha256:
            raise WrongWeights(f"shard {index} of version {version} does not have the SHA-256 of its descriptor")
        assembler.put(checked, data)
        beat()
    assembler.finish(manifest, trainer_key)
