"""How a version leaves the trainer: a note of its step, its checkpoint into the outbox, its report; behind it its state, and what is old goes.
The last one is put into the store as the run's result before it goes to the outbox. So a run that is complete has its result.

In: a version's host copies with what was measured. Out: objects in the store and a folder in the outbox, in this order. Runs in the background
of every rank: one thread hands over one version at a time, another saves one state at a time. Called by `loop`.

An announced number never gets other bytes. What says so is the seal `versions/<v>/weights.json` in the store, and before it the folder in the outbox:
a version that has one is never handed over again, nor made again. A resume goes on from it, with the newest state there is (`published`).
Where a published version cannot be taken up (adapters, which are merged in it; what trainers share), its state goes first. Should that be damaged,
the step is trained again: with the same bytes on the same number of ranks. On another the published ones stand, and the log says so.

The outbox is where a version waits for the publisher: `outbox/v000007/` appears by one rename, and the publisher takes it away. The result is
`models/final/` and its seal `models/final.json`, which is written last: files without it are of a stop on the way, and whole ones are kept.
"""

import functools
import shutil
import threading
from collections.abc import Collection, Mapping
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
from shoal.files import file_sha256
from shoal.storage import NotFound, Store
from shoal.storage.checkpoint_files import flush, version_digest
from shoal.storage.growing import GrowingWriter, clear_unfinished, discard, partial_folder
from shoal.storage.promotions import BadPromotion, promoted_versions
from shoal.storage.versions import read_record, read_sealed_manifest, versions_with_shards
from shoal.training.export import Export
from shoal.training.objectives import needs_behaviour
from shoal.training.parallel import Ranks
from shoal.training.progress import ProgressReporter
from shoal.training.retention import (
    best_version,
    delete_shards,
    encoded_against,
    old_notes,
    old_states,
    old_versions,
)
from shoal.training.stability import History
from shoal.training.state import MadeVersion, States


class Outbox:
    """Folders by version under `folder`, written by `export`. What an earlier attempt left half written goes when this is made."""

    def __init__(self, folder: Path, export: Export, ranks: Ranks) -> None:
        self._folder = folder
        self._export = export
        self._ranks = ranks.in_background
        folder.mkdir(parents=True, exist_ok=True)
        if ranks.leader:
            clear_unfinished(folder)

    def holds(self, version: int) -> bool:
        """Whether the version lies there already: what was handed over stands."""
        there = (self._folder / keys.version_name(version)).is_dir()
        return self._ranks.broadcast(there, "whether a version was handed over")

    def put(self, copies: Mapping[str, Tensor], version: int) -> None:
        """Hand a version over that is not there yet. The publisher reads on while it is written, and counts it from its rename on."""
        target = self._folder / keys.version_name(version)
        growing = GrowingWriter(partial_folder(self._folder, version))
        try:
            partial = self.write(copies, version, growing)
        finally:
            growing.close()
        if self._ranks.leader:
            for path in partial.iterdir():
                flush(path)
            partial.rename(target)
            flush(self._folder)
            growing.end()

    def write(self, copies: Mapping[str, Tensor], version: int, growing: GrowingWriter | None = None) -> Path:
        """A folder with the version's files, which the publisher does not look at without `growing`; the leader removes it."""
        partial = partial_folder(self._folder, version)
        if self._ranks.leader:
            discard(partial)  # of what failed here before
        self._export.write(copies, partial, growing)
        return partial


class Final:
    """Writes the result of one run; `outbox` makes the checkpoint's files."""

    def __init__(self, config: RunConfig, store: Store, outbox: Outbox, ranks: Ranks) -> None:
        self._config = config
        self._store = store
        self._outbox = outbox
        self._ranks = ranks.in_background

    def put(self, copies: Mapping[str, Tensor], version: int, *, in_the_world: bool) -> None:
        """Make `version` the result, unless it is already. The result of a run that was given more steps is replaced.

        So is that of an attempt which ended before it handed the version over (not `in_the_world`): its bytes may have been others.
        """
        if self._ranks.broadcast(in_the_world and self._is_there(version), "whether the result is written"):
            return
        folder = self._outbox.write(copies, version)

        def upload() -> None:
            if self._ranks.leader:
                self._upload(folder, version)

        # The others wait in short agreements: with a slow store this takes longer than one collective may.
        self._ranks.each_does("the run's result to be written", upload, lambda: None)

    def _upload(self, folder: Path, version: int) -> None:
        if self._store.exists(keys.FINAL_SEAL):
            self._store.delete(keys.FINAL_SEAL)
        there = {info.key: info.size for info in self._store.list(keys.FINAL_MODEL)}
        paths = {keys.FINAL_MODEL + path.name: path for path in sorted(folder.iterdir())}
        for key in there.keys() - paths.keys():
            self._store.delete(key)
        files = {}
        for key, path in paths.items():
            files[path.name] = file_sha256(path)
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

    def made(self, run: str) -> MadeVersion:
        return MadeVersion(
            run=run, version=self.version, updates=self.updates, metrics=self.metrics, history=self.history
        )


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
        state_first: bool = False,
    ) -> None:
        """Without `publishes` (another trainer announces the run's versions) only states and reports are kept. `state_first`: no version may be in
        the world before its state is durable."""
        self._publishes = publishes
        self._state_first = state_first
        self._tidying = threading.Lock()
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
        if artifacts.save and self._state_first:
            self._save(artifacts)
        first = self._publishes and self._publish(artifacts)
        if self._ranks.leader:
            if artifacts.metrics is not None:
                self._progress.report(artifacts.metrics, replace=first)
            self._delete_old(artifacts.history)

    def save(self, artifacts: VersionArtifacts) -> None:
        """The version's state, behind `deliver`, unless that saved it first; all ranks call this, in a thread of its own."""
        self._save(artifacts)
        if self._ranks.leader:
            self._delete_old(artifacts.history)

    def _save(self, artifacts: VersionArtifacts) -> None:
        self._states.save(artifacts.version, artifacts.tensors, artifacts.updates, artifacts.metrics, artifacts.history)

    def _publish(self, artifacts: VersionArtifacts) -> bool:
        """Whether the version's step is to be reported again: a report that is there may be of an attempt whose outbox was lost. For a version that
        waits in the outbox there is its own report, unless it was made again from a state."""
        version = artifacts.version
        published = self._ranks.leader and self._store.exists(keys.version_weights(version))
        published = self._ranks.broadcast(published, "whether a version is published")
        in_the_world = published or self._outbox.holds(version)
        if self._ranks.leader and not in_the_world:
            self._states.note(artifacts.made(self._config.run))
        if version == self._config.steps:
            self._final.put(artifacts.tensors, version, in_the_world=in_the_world)
        if not in_the_world:
            self._outbox.put(artifacts.tensors, version)
        elif published and artifacts.save and self._state_first:
            self._compare(artifacts)
        return not in_the_world or not (published or self._state_first)

    def _compare(self, artifacts: VersionArtifacts) -> None:
        """A version was made again that the world has already: say whether it came out the same."""
        folder = self._outbox.write(artifacts.tensors, artifacts.version)
        if not self._ranks.leader:
            return
        log = telemetry.get_logger().bind(version=artifacts.version)
        try:
            published = read_sealed_manifest(self._store, artifacts.version, self._trainer_key).sha256
            digest = version_digest(read_record(self._store, artifacts.version, self._trainer_key), folder)
        except (ValueError, BadSignature) as error:
            log.error(
                "the trainer did not sign the seal of a published version; leaving it unchanged", reason=str(error)
            )
            return
        finally:
            shutil.rmtree(folder)
        if published == digest:
            log.info("made a version again, with the published bytes")
        else:
            log.warning(
                "made a version again that differs from the published one; the published one stays, and training continues from the new one",
                published=published,
                made_again=digest,
            )

    def _delete_old(self, history: History) -> None:
        with self._tidying:
            self._delete_states_and_versions(history)

    def _delete_states_and_versions(self, history: History) -> None:
        sealed = self._states.sealed()
        old = old_states(sealed, self._config, history, behaviour=needs_behaviour(self._config.recipe))
        for version in old:
            self._states.delete(version)
        served = versions_with_shards(self._store)
        bases = encoded_against(self._store, served, self._trainer_key)
        best = best_version(self._store) if self._config.evaluation is not None else None
        gone = []

        def may_go(promoted: Collection[int]) -> list[int]:
            return old_versions(served, set(sealed) - set(old), self._config, bases, best, promoted)

        def still_may_go(version: int) -> bool:
            return version in may_go(promoted_versions(self._store))

        for version in may_go(()):
            try:
                # Read again before and in each deletion: somebody may promote a version while others go, or this one.
                if still_may_go(version) and delete_shards(
                    self._store, version, functools.partial(still_may_go, version)
                ):
                    gone.append(version)
            except BadPromotion as error:
                telemetry.get_logger().error("cannot read which versions are promoted; keeping all", reason=str(error))
                break
        for version in old_notes(self._states.notes(), [version for version in served if version not in gone]):
            self._states.forget_note(version)
