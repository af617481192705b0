"""The three ways of a version's bytes: outbox to `www/`, `www/` to the store, store to `www/`. Each may be broken off anywhere and done again.

Called by `origin`, which decides which is due. Shards stream.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from shoal import telemetry
from shoal.broadcast import cut, pieces
from shoal.broadcast.bases import Base
from shoal.broadcast.encoding import ShardWriter, Written
from shoal.broadcast.pieces import WantedVersion
from shoal.broadcast.tree import OPEN, WEIGHTS, Tree
from shoal.contracts import keys
from shoal.contracts.run import RunConfig
from shoal.contracts.signed import Signed, Signer, sign
from shoal.contracts.weights import CheckpointFile, ShardDescriptor, VersionOpen, WeightsManifest
from shoal.crypto.keys import PrivateKey
from shoal.files import file_sha256
from shoal.retries import Words
from shoal.storage import Store, delta
from shoal.storage.checkpoint_files import digest_of_shards

COPIES = 4
"""Shards on their way to the store at a time."""
WORD_SECONDS = 20.0
"""Between two lines about a version on its way to or from the store."""


class CannotRestore(ValueError):
    """The store's bytes of a sealed version are not what its manifest says."""


class SealedMeanwhile(Exception):
    """Another publisher sealed this version in the store first, with other bytes: those stand."""


def checkpoint_files(folder: Path) -> list[CheckpointFile]:
    """Names and sizes (bytes) of the files of a version folder; raises `cut.CannotCut` for anything but plain files."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_file():
            raise cut.CannotCut(
                f"{folder.name}/{path.name} is not a plain file; a checkpoint is a flat folder of files"
            )
        try:
            found.append(CheckpointFile(name=path.name, size=path.stat().st_size))
        except ValueError as error:
            raise cut.CannotCut(
                f"{folder.name}/{path.name}: the name is not allowed; use letters, digits, '.', '_' and '-', no leading '.' or '-'"
            ) from error
    return found


def at_once(index: int, record: VersionOpen) -> None:
    """Of a checkpoint that is whole, each shard may be read."""


def cut_into(
    tree: Tree,
    folder: Path,
    config: RunConfig,
    version: int,
    key: PrivateKey,
    beat: Callable[[], None],
    base: Base | None = None,
    *,
    ready: Callable[[int, VersionOpen], None] = at_once,
    visible: Callable[[int], None] = lambda index: None,
) -> WeightsManifest:
    """Cut the checkpoint in `folder` and make its pieces visible: opening record, then each shard after its descriptor. Not sealed yet.

    With `base`, as a delta or with one beside it. Pieces of an earlier, broken-off attempt that differ are replaced: nobody holds them sealed.
    `ready` returns when a shard's bytes are in the files; `visible` gets the index of each shard in `www/`, in several threads.
    """
    record = cut.opening_record(config.run, version, checkpoint_files(folder), config.broadcast.shard_bytes)
    if base is not None:
        width = delta.item_size(delta.safetensors_headers(folder))
        every = config.broadcast.anchor_every
        against = cut.base_for(record, base.record, base.sha256, width, anchor_every=every)
        if against is not None:
            if not cut.is_anchor(record, anchor_every=every, chain_bytes=base.chain_bytes):
                record = cut.as_delta(record, against)
            elif cut.has_delta_beside(record, anchor_every=every, last_bytes=base.last_bytes):
                record = cut.with_delta_beside(record, against)
    opening = sign(record, key).to_json()
    if tree.read(version, OPEN) not in (None, opening):
        tree.drop(version)
    tree.unseal(version)
    tree.publish(version, OPEN, opening)
    tree.write_index()

    def part(index: int, beside: bool) -> Path:
        return tree.temporary(version, keys.shard_name(index, beside=beside))

    def publish(shard: Written) -> None:
        for beside, sent in shard.each():
            described = cut.descriptor(record, shard.index, sent.size, sent.sha256, sent.encoding)
            name = keys.descriptor_name(shard.index, beside=beside)
            tree.publish(version, name, sign(described, key).to_json())
            tree.publish_file(version, keys.shard_name(shard.index, beside=beside), part(shard.index, beside))
        beat()
        visible(shard.index)

    writer = ShardWriter(record, folder, base.folder if base is not None else None, part)
    shards = writer.write(lambda index: ready(index, record), publish)
    digest = digest_of_shards(shard.assembled for shard in shards)
    beside = [shard.beside.sha256 for shard in shards if shard.beside is not None]
    return cut.manifest(record, config.model_id, digest, [shard.sent.sha256 for shard in shards], beside)


def seal(tree: Tree, version: int, manifest: WeightsManifest, sealing: bytes) -> None:
    """Seal what lies complete in `www/`: the delta beside the version first, for nobody looks for it once the version is sealed."""
    for beside in (True, False) if manifest.beside is not None else (False,):
        tree.publish(version, keys.seal_name(beside=beside), sealing)


class StoreCopy:
    """Copies the pieces of one version to the store, some at a time, while others are still cut. What is there stays known when it is broken off.

    Pieces are read from files, so memory is bounded by obstore's parts. `COPIES` at a time hide the store's latency.
    """

    def __init__(self, store: Store, tree: Tree, version: int, beat: Callable[[], None]) -> None:
        self._store = store
        self._tree = tree
        self._version = version
        self._beat = beat
        self._there: set[int] = set()
        self._pool = ThreadPoolExecutor(COPIES, thread_name_prefix="store")
        self._begun: dict[int, Future[None]] = {}
        self._began = time.monotonic()
        self._words = Words(WORD_SECONDS)

    def begin(self, index: int) -> None:
        """A shard is visible in `www/`: copy it behind the caller's back. Any thread may call this; what goes wrong is seen by `seal`."""
        self._begun[index] = self._pool.submit(self._copy, index)

    def settle(self) -> None:
        """Wait until nothing is being copied; what was not begun is not. Each copy has the store's deadline."""
        for each in self._begun.values():
            each.cancel()
        wait(self._begun.values())

    def seal(self, manifest: WeightsManifest, signed: Signed[WeightsManifest]) -> None:
        """Copy what is not there yet, then create `weights.json`, which seals. Raises `SealedMeanwhile` when another version of it is there already,
        `StoreUnavailable` when the store is away: then this may be called again."""
        version = self._version
        _put_small(self._store, keys.version_open(version), self._tree.path(version, OPEN).read_bytes())
        for index in range(len(manifest.shards)):
            if index not in self._begun:
                self.begin(index)
        try:
            for each in list(self._begun.values()):
                each.result()
        finally:
            self.settle()
            self._begun = {index: each for index, each in self._begun.items() if index in self._there}
        sealing = keys.version_weights(version)
        if not self._store.create(sealing, signed.to_json()) and self._store.get(sealing) != signed.to_json():
            raise SealedMeanwhile(f"version {version}")

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _copy(self, index: int) -> None:
        version = self._version
        for beside in (True, False):
            described = self._tree.read(version, keys.descriptor_name(index, beside=beside))
            if described is None and beside:
                continue
            assert described is not None
            shard = self._tree.path(version, keys.shard_name(index, beside=beside))
            key = keys.version_shard(version, index, beside=beside)
            _put_small(self._store, keys.version_descriptor(version, index, beside=beside), described)
            digest = Signed[ShardDescriptor].from_json(described).document.sha256
            # An object is there already when an earlier attempt was broken off.
            if self._store.size(key) != shard.stat().st_size or self._store.sha256(key, self._beat)[0] != digest:
                self._store.put_file(key, shard)
        self._there.add(index)
        self._beat()
        if self._words.due(self._began):
            _say("a version is on its way to the store", version, len(self._there), self._began)


def copy_to_store(
    store: Store, tree: Tree, manifest: WeightsManifest, signed: Signed[WeightsManifest], beat: Callable[[], None]
) -> None:
    """Copy every piece of a version that is cut, then seal it; raises as `StoreCopy.seal` does."""
    copy = StoreCopy(store, tree, manifest.version, beat)
    try:
        copy.seal(manifest, signed)
    finally:
        copy.close()


def _put_small(store: Store, key: str, data: bytes) -> None:
    """Write a document unless the same bytes are there. What differs is of an attempt that was never sealed, and is replaced."""
    if not store.create(key, data) and store.get(key) != data:
        store.put(key, data)


def restore(
    store: Store, tree: Tree, run: str, version: int, trainer_key: Signer, beat: Callable[[], None]
) -> WeightsManifest:
    """Make `www/` hold exactly what the store holds of a sealed version; cheap when it does already.

    Raises `BadPiece` or `CannotRestore` when the store's pieces are not the trainer's, `NotFound` when one is missing.
    """
    wanted = WantedVersion(run, version, trainer_key)
    opening = store.get(keys.version_open(version))
    record = pieces.read_open(opening, wanted).document
    sealing = store.get(keys.version_weights(version))
    manifest = pieces.read_manifest(sealing, wanted, record).document
    if tree.read(version, WEIGHTS) == sealing and tree.read(version, OPEN) == opening:
        return manifest
    if tree.read(version, OPEN) not in (None, opening):
        tree.drop(version)
    tree.publish(version, OPEN, opening)
    tree.write_index()
    began, words = time.monotonic(), Words(WORD_SECONDS)
    for beside in (True, False):
        for index, digest in enumerate(manifest.sent(beside=beside)):
            _restore_shard(store, tree, replace(wanted, beside=beside), record, index, digest, beat)
            beat()
            if words.due(began):
                _say("a version is on its way from the store", version, index + 1, began)
    seal(tree, version, manifest, sealing)
    return manifest


def _say(event: str, version: int, shards: int, began: float) -> None:
    telemetry.get_logger().info(
        event, version=version, shards=shards, waited_seconds=round(time.monotonic() - began, 1)
    )


def _restore_shard(
    store: Store,
    tree: Tree,
    wanted: WantedVersion,
    record: VersionOpen,
    index: int,
    digest: str,
    beat: Callable[[], None],
) -> None:
    version, beside = wanted.version, wanted.beside
    descriptor_name = keys.descriptor_name(index, beside=beside)
    descriptor = store.get(keys.version_descriptor(version, index, beside=beside))
    if pieces.read_descriptor(descriptor, wanted, record, index).document.sha256 != digest:
        raise CannotRestore(f"the store's descriptor of shard {index} of version {version} does not match the manifest")
    path = tree.path(version, keys.shard_name(index, beside=beside))
    if not (path.is_file() and file_sha256(path) == digest):
        part = tree.temporary(version, path.name)
        store.get_to_file(keys.version_shard(version, index, beside=beside), part, beat)
        if file_sha256(part) != digest:
            raise CannotRestore(f"the store's shard {index} of version {version} does not have its SHA-256")
        tree.publish(version, descriptor_name, descriptor)
        tree.publish_file(version, path.name, part)
    elif tree.read(version, descriptor_name) != descriptor:
        tree.publish(version, descriptor_name, descriptor)
