"""How a version leaves the trainer: its state made durable, its checkpoint into the outbox, its report written, what is old deleted.
The last one is put into the store as the run's result before it goes to the outbox. So a run that is complete has its result.

In: a version's host copies with what was measured. Out: objects in the store and a folder in the outbox, in this order. So a version
can be announced only after its state is durable. Runs in the background of every rank, one version at a time (`handover`). Called by
`loop`.

An announced number never gets other bytes. What says so is the seal `versions/<v>/weights.json` in the store: a version that has one is never
handed over again. A step that had to be trained a second time (its state was damaged) gives the same bytes on the same number
of ranks; they are bytes that differ by rounding on another. Then the published ones stand, training continues from its own, and the log says so.

The outbox is where a version waits for the publisher: `outbox/v000007/` appears by one rename, and the publisher takes it away. The result is
`models/final/` and its seal `models/final.json`, which is written last: files without it are of a stop on the way, and whole ones are kept.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from shoal import telemetry
from shoal.contracts import keys
from shoal.contracts.final_model import FinalModel
from shoal.contracts.run import RunConfig
from shoal.contracts.signed import BadSignature
from shoal.contracts.steps import StepMetrics
from shoal.storage import NotFound, Store
from shoal.storage.versions import read_sealed_manifest
from shoal.training.export import Export
from shoal.training.objectives import needs_behaviour
from shoal.training.parallel import Ranks
from shoal.training.progress import ProgressReporter
from shoal.training.retention import (
    best_version,
    delete_shards,
    encoded_against,
    old_states,
    old_versions,
    versions_with_shards,
)
from shoal.training.stability import History
from shoal.training.state import States


class Outbox:
    """Folders by version under `folder`, written by `export`."""

    def __init__(self, folder: Path, export: Export, ranks: Ranks) -> None:
        self._folder = folder
        self._export = export
        self._ranks = ranks.in_background
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, copies: Mapping[str, Tensor], version: int) -> None:
        """Write the version unless it lies there already: what was handed over stands."""
        target = self._folder / keys.version_name(version)
        if self._ranks.broadcast(target.is_dir(), "whether a version was handed over"):
            return
        partial = self.write(copies, version)
        if self._ranks.leader:
            for path in partial.iterdir():
                _flush(path)
            partial.rename(target)
            _flush(self._folder)

    def digest(self, copies: Mapping[str, Tensor], version: int) -> str:
        """SHA-256 that the version would have if it were published: over its files, in order of their names. Empty but on the leader."""
        partial = self.write(copies, version)
        if not self._ranks.leader:
            return ""
        found = version_digest(partial)
        shutil.rmtree(partial)
        return found

    def write(self, copies: Mapping[str, Tensor], version: int) -> Path:
        """A folder with the version's files, which the publisher does not look at; the leader removes it."""
        partial = self._folder / f"partial-{keys.version_name(version)}"
        if self._ranks.leader:
            shutil.rmtree(partial, ignore_errors=True)
        self._export.write(copies, partial)
        return partial


def version_digest(folder: Path) -> str:
    """SHA-256 of a version, in hex, as its manifest has it: over its files, in order of their names."""
    running = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            while data := file.read(1 << 22):
                running.update(data)
    return running.hexdigest()


def _flush(path: Path) -> None:
    """To the disk, so that a name that is seen after a crash has its bytes."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Final:
    """Writes the result of one run; `outbox` makes the checkpoint's files."""

    def __init__(self, config: RunConfig, store: Store, outbox: Outbox, ranks: Ranks) -> None:
        self._config = config
        self._store = store
        self._outbox = outbox
        self._ranks = ranks.in_background

    def put(self, copies: Mapping[str, Tensor], version: int) -> None:
        """Make `version` the result, unless it is already. The result of a run that was given more steps is replaced."""
        if self._ranks.broadcast(self._is_there(version), "whether the result is written"):
            return
        folder = self._outbox.write(copies, version)
        if not self._ranks.leader:
            return
        if self._store.exists(keys.FINAL_SEAL):
            self._store.delete(keys.FINAL_SEAL)
        there = {info.key: info.size for info in self._store.list(keys.FINAL_MODEL)}
        paths = {keys.FINAL_MODEL + path.name: path for path in sorted(folder.iterdir())}
        for key in there.keys() - paths.keys():
            self._store.delete(key)
        files = {}
        for key, path in paths.items():
            with path.open("rb") as file:
                files[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
            # A stop on the way costs the file that was being written: a large model has many.
            if there.get(key) != path.stat().st_size or self._store.sha256(key)[0] != files[path.name]:
                self._store.put_file(key, path)
        shutil.rmtree(folder)
        seal = FinalModel(run=self._config.run, version=version, model_id=self._config.model_id, files=files)
        self._store.put(keys.FINAL_SEAL, seal.to_json())
        telemetry.get_logger().info("wrote the run's result", key=keys.FINAL_MODEL, version=version)

    def _is_there(self, version: int) -> bool:
        if not self._ranks.leader:
            return False  # what the leader finds is what counts
        try:
            return FinalModel.from_json(self._store.get(keys.FINAL_SEAL)).version == version
        except (NotFound, ValidationError):
            return False


@dataclass(frozen=True)
class VersionArtifacts:
    """A version: host copies of all that is trained, the report of its step (None for version 0), and whether its state is still to be saved."""

    version: int
    tensors: Mapping[str, Tensor]
    updates: int
    metrics: StepMetrics | None
    history: History
    save: bool


class Delivery:
    """Delivers the versions of one run."""

    def __init__(
        self,
        config: RunConfig,
        store: Store,
        states: States,
        outbox: Outbox,
        progress: ProgressReporter,
        ranks: Ranks,
        *,
        publishes: bool = True,
    ) -> None:
        """Without `publishes` (another trainer announces the run's versions) only states and reports are kept."""
        self._publishes = publishes
        self._config = config
        self._store = store
        self._states = states
        self._outbox = outbox
        self._progress = progress
        self._final = Final(config, store, outbox, ranks)
        self._ranks = ranks.in_background
        self._trainer_key = config.trust.of("trainer")

    def deliver(self, artifacts: VersionArtifacts) -> None:
        """Do what is still to be done for a version; all ranks call this. Whatever was done before a stop is not done again."""
        if self._ranks.device.type == "cuda":
            # A new thread begins on device 0: each rank's would take some hundred megabytes of the leader's device.
            torch.cuda.set_device(self._ranks.device)
        if artifacts.save:
            self._states.save(
                artifacts.version, artifacts.tensors, artifacts.updates, artifacts.metrics, artifacts.history
            )
        if self._publishes:
            self._publish(artifacts)
        if self._ranks.leader:
            if artifacts.metrics is not None:
                self._progress.report(artifacts.metrics)
            self._delete_old(artifacts.history)

    def _publish(self, artifacts: VersionArtifacts) -> None:
        if artifacts.version == self._config.steps:
            self._final.put(artifacts.tensors, artifacts.version)
        published = self._ranks.leader and self._store.exists(keys.version_weights(artifacts.version))
        if not self._ranks.broadcast(published, "whether a version is published"):
            self._outbox.put(artifacts.tensors, artifacts.version)
        elif artifacts.save:
            self._compare(artifacts)

    def _compare(self, artifacts: VersionArtifacts) -> None:
        """A version was made again that the world has already: say whether it came out the same."""
        digest = self._outbox.digest(artifacts.tensors, artifacts.version)
        if not self._ranks.leader:
            return
        log = telemetry.get_logger().bind(version=artifacts.version)
        try:
            published = read_sealed_manifest(self._store, artifacts.version, self._trainer_key).sha256
        except (ValueError, BadSignature) as error:
            log.error(
                "the trainer did not sign the seal of a published version; leaving it unchanged", reason=str(error)
            )
            return
        if published == digest:
            log.info("made a version again, with the published bytes")
        else:
            log.warning(
                "made a version again that differs from the published one; the published one stays, and training continues from the new one",
                published=published,
                made_again=digest,
            )

    def _delete_old(self, history: History) -> None:
        sealed = self._states.sealed()
        old = old_states(sealed, self._config, history, behaviour=needs_behaviour(self._config.recipe))
        for version in old:
            self._states.delete(version)
        served = versions_with_shards(self._store)
        bases = encoded_against(self._store, served, self._trainer_key)
        best = best_version(self._store) if self._config.evaluation is not None else None
        for version in old_versions(served, set(sealed) - set(old), self._config, bases, best):
            delete_shards(self._store, version)
