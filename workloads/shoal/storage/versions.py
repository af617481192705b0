"""Published versions as they lie in the object store: which are sealed, and how to get one as a folder.

For trusted roles (validators, the report); pool pods fetch from relays instead.
"""

import hashlib
from pathlib import Path

from shoal.contracts import keys
from shoal.contracts.canonical import Signed
from shoal.contracts.weights import ShardDescriptor, VersionOpen, WeightsManifest
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


def read_sealed_manifest(store: Store, version: int, trainer_key: str) -> WeightsManifest:
    """The verified manifest of a sealed version; raises `storage.NotFound` when it is not sealed."""
    return Signed[WeightsManifest].from_json(store.get(keys.version_weights(version))).verified(trainer_key)


def materialise(store: Store, version: int, folder: Path, run: str, trainer_key: str) -> WeightsManifest:
    """Make `folder` hold version `version` (an HF checkpoint), every piece checked; at once when it already does.

    Raises `storage.NotFound` when the version is not sealed, `WrongWeights` or `BadSignature` when a piece is not what the trainer signed.
    """
    if folder.is_dir():
        return read_manifest(folder, trainer_key)
    manifest = Signed[WeightsManifest].from_json(store.get(keys.version_weights(version)))
    record = Signed[VersionOpen].from_json(store.get(keys.version_open(version))).verified(trainer_key)
    if record.run != run or record.version != version:
        raise WrongWeights(f"opening record is of {record.run} version {record.version}, wanted is {run} {version}")
    assembler = Assembler(record, folder)
    for index in assembler.missing():
        descriptor = Signed[ShardDescriptor].from_json(store.get(keys.version_descriptor(version, index)))
        checked = descriptor.verified(trainer_key)
        data = store.get(keys.version_shard(version, index))
        if (checked.run, checked.version, checked.index) != (run, version, index):
            raise WrongWeights(f"descriptor of shard {index} of version {version} belongs elsewhere")
        if hashlib.sha256(data).hexdigest() != checked.sha256:
            raise WrongWeights(f"shard {index} of version {version} does not have the SHA-256 of its descriptor")
        assembler.write_shard(index, data)
    assembler.finish(manifest, trainer_key)
    return manifest.verified(trainer_key)
