"""Training state: what is needed to continue bit for bit after any stop. Kept in the store under `trainer/state/v000007/`.

In: a `HostCopy` and the metrics of the step that made it. Out: a distributed checkpoint (`torch.distributed.checkpoint`), one file a global rank and
one of metadata; then `state.json`, which seals them by their SHA-256 and is written last, when every rank's file is up: a state
without it does not exist. The data position is the version itself, since step `s` makes version `s+1` and its order of samples is
drawn from (seed, step). Any number of ranks may read what any other number wrote. Saving runs in the background. Called by `loop`.
"""

import hashlib
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from pydantic import Field, ValidationError
from torch import Tensor

from shoal import telemetry
from shoal.contracts import keys
from shoal.contracts.base import Contract, RunName, Sha256Hex
from shoal.contracts.steps import StepMetrics
from shoal.contracts.weights import VersionNumber
from shoal.storage import NotFound, Store
from shoal.training.host_copy import WEIGHTS, HostCopy
from shoal.training.parallel import Ranks, waiting_for
from shoal.training.stability import History

SEAL, METADATA = "state.json", "metadata"
METADATA_ON_DISK = ".metadata"
READ_AGAIN = 1
"""A file whose digest is wrong is fetched once more: the transfer may have been at fault. The second time it is the object."""


class BadState(ValueError):
    """A sealed state is damaged: an older one may do. The message says which object."""


class WrongState(ValueError):
    """A sealed state is of another run or model: nothing here may be trained on, nor overwritten."""


class SealedState(Contract):
    """`state.json`. `metrics` is of the step that made this version, so that a stop after the save loses no report."""

    run: RunName
    version: VersionNumber
    updates: int = Field(ge=0, description="optimizer steps applied since the run began")
    ranks: int = Field(ge=1, description="processes that wrote it, one file each")
    files: dict[str, Sha256Hex]
    metrics: StepMetrics | None
    history: History = History()
    data: Sha256Hex | None = Field(default=None, description="what all steps of the run train on, where that is fixed")


class States:
    """The states of a run in the store; files pass through `scratch`, a folder on this machine. `data`: digest of what the run trains on."""

    def __init__(self, store: Store, run: str, scratch: Path, ranks: Ranks, data: str | None = None) -> None:
        self._store = store
        self._run = run
        self._scratch = scratch
        self._ranks = ranks
        self._data = data

    def save(
        self, version: int, tensors: Mapping[str, Tensor], updates: int, metrics: StepMetrics | None, history: History
    ) -> None:
        """Make state `version` durable. All ranks call this, in the background thread."""
        ranks, prefix = self._ranks, keys.trainer_state(version)
        if ranks.leader:
            self._store.delete(
                prefix + SEAL
            )  # of an attempt that was given up; what is overwritten must not look whole
        folder = _fresh(self._scratch / f"save-{ranks.local_rank}")
        with waiting_for(f"state {version} to be written", ranks.rank):
            dcp.save(
                dict(tensors),
                # What makes it durable is the store; this folder is only on the way.
                storage_writer=dcp.FileSystemWriter(folder, single_file_per_rank=True, sync_files=False),
                process_group=ranks.background,
            )
        digests = {}
        for path in sorted(folder.iterdir()):
            name = object_name(path.name)
            digests[name] = _sha256(path)
            self._store.put_file(prefix + name, path)
        shutil.rmtree(folder)
        found: list[dict[str, str]] = [{}] * ranks.world
        with waiting_for(f"every rank's part of state {version} to be uploaded", ranks.rank):
            dist.all_gather_object(found, digests, group=ranks.background)
        if ranks.leader:
            sealed = SealedState(
                run=self._run,
                version=version,
                updates=updates,
                ranks=ranks.world,
                files={name: digest for part in found for name, digest in part.items()},
                metrics=metrics,
                history=history,
                data=self._data,
            )
            self._store.put(prefix + SEAL, sealed.to_json())

    def sealed(self) -> list[int]:
        """Versions that have a whole state, ascending."""
        found = []
        for info in self._store.list(keys.TRAINER_STATE):
            name, _, file = info.key.removeprefix(keys.TRAINER_STATE).partition("/")
            version = keys.parse_version(name)
            if version is not None and file == SEAL:
                found.append(version)
        return sorted(found)

    def restore_newest(self, copy: HostCopy, liveness: telemetry.Liveness) -> SealedState | None:
        """Put the newest intact state into policy and optimizer; None when there is no state at all.

        A damaged one is passed over and deleted: its step is trained again. So is what attempts that died while saving have left.
        Raises BadState when none is intact, and WrongState when one is of another run or model.
        """
        damaged: list[int] = []
        for version in reversed(self._ranks.broadcast(self.sealed(), "which states there are")):
            try:
                state = self.restore(version, copy, liveness)
            except BadState as error:
                damaged.append(version)
                telemetry.get_logger().error("a state is damaged; trying the previous one", reason=str(error))
                continue
            self._tidy(damaged)
            return state
        if damaged:
            raise BadState(
                f"none of the states {sorted(damaged)} is intact; the log says why. Put an intact one back"
                f" under {keys.TRAINER_STATE}, or delete that folder to train from version 0 again"
            )
        self._tidy([])
        return None

    def restore(self, version: int, copy: HostCopy, liveness: telemetry.Liveness) -> SealedState:
        """Put state `version` into policy, optimizer and random generators. All ranks call this. Raises BadState, WrongState."""
        sealed = self._read_seal(version)
        folder = self._fetch(sealed, liveness)
        reader = dcp.FileSystemReader(folder)
        there = set(reader.read_metadata().state_dict_metadata)
        _check_names(keys.trainer_state(version), reader, copy.shapes())
        self._load(version, copy.expect(there), reader)
        copy.give()
        self._done_reading(folder)
        return sealed

    def read_weights(self, version: int, copy: HostCopy, liveness: telemetry.Liveness) -> dict[str, Tensor]:
        """The weights alone, as host tensors sharded like the policy's. Raises BadState, WrongState; NotFound is a BadState too."""
        sealed = self._read_seal(version)
        folder = self._fetch(sealed, liveness)
        weights = copy.empty_weights()
        self._load(version, weights, dcp.FileSystemReader(folder))
        self._done_reading(folder)
        return weights

    def delete(self, version: int) -> None:
        """The seal first: what is half deleted must not look whole."""
        prefix = keys.trainer_state(version)
        self._store.delete(prefix + SEAL)
        for info in self._store.list(prefix):
            self._store.delete(info.key)

    def _tidy(self, damaged: Collection[int]) -> None:
        """Delete damaged states, and files without a seal. Nothing is being saved now."""
        if not self._ranks.leader:
            return
        there = {
            keys.parse_version(info.key.removeprefix(keys.TRAINER_STATE).partition("/")[0])
            for info in self._store.list(keys.TRAINER_STATE)
        }
        unsealed = {version for version in there if version is not None} - set(self.sealed())
        for version in unsealed | set(damaged):
            self.delete(version)

    def _read_seal(self, version: int) -> SealedState:
        """All ranks call this: a seal that one of them cannot read counts as damaged on all, or they would continue with different states."""
        key = keys.trainer_state(version) + SEAL
        sealed, problem = None, None
        try:
            sealed = SealedState.from_json(self._store.get(key))
        except NotFound:
            problem = f"there is no {key}; sealed states: {self.sealed()}"
        except ValidationError as error:
            problem = f"{key}: {error}"
        if self._ranks.any(problem is not None, f"the seal of state {version}") or sealed is None:
            raise BadState(problem or f"{key} could not be read on another rank; its log says why")
        if (sealed.run, sealed.version) != (self._run, version):
            raise WrongState(f"{key} is of run {sealed.run!r} version {sealed.version}; expected: {self._run!r}")
        if sealed.data != self._data:
            raise WrongState(
                f"{key} was trained on data {sealed.data}, those of this run are now {self._data}; restore the former data, or start"
                " a new run: one run cannot mix two data sets"
            )
        return sealed

    def _fetch(self, sealed: SealedState, liveness: telemetry.Liveness) -> Path:
        """A folder with the state's files, checked. One rank of a machine fetches for all of it."""
        folder = self._scratch / "restore"
        what = f"state {sealed.version} to be fetched"
        problem = self._ranks.each_does(
            what, lambda: self._download(sealed, folder), liveness.progress, first_of_node=True
        )
        if self._ranks.any(problem is not None, what):
            raise BadState(problem or f"state {sealed.version} could not be read on another rank; its log says why")
        return folder

    def _download(self, sealed: SealedState, folder: Path) -> str | None:
        """Download a state; returns its fault, or None. The metadata is a pickle: it is opened only after its digest matched."""
        _fresh(folder)
        prefix = keys.trainer_state(sealed.version)
        for name, digest in sealed.files.items():
            path = folder / name_on_disk(name)
            for attempt in range(1 + READ_AGAIN):
                try:
                    self._store.get_to_file(prefix + name, path)
                except NotFound:
                    return f"{prefix}{SEAL} seals {name}, but there is no such object"
                if (found := _sha256(path)) == digest:
                    break
                if attempt == READ_AGAIN:
                    return f"{prefix}{name} has SHA-256 {found}, but the seal has {digest}"
        return None

    def _load(self, version: int, tensors: dict[str, Tensor], reader: dcp.FileSystemReader) -> None:
        with waiting_for(f"state {version} to be read", self._ranks.rank):
            dcp.load(tensors, storage_reader=reader, process_group=self._ranks.background)

    def _done_reading(self, folder: Path) -> None:
        """Remove the files when no rank of this machine reads them any more."""
        self._ranks.all(True, "the state to be read by all")
        if self._ranks.first_on_node:
            shutil.rmtree(folder)


def object_name(on_disk: str) -> str:
    """`__7_0.distcp` of the library is `rank-00007.distcp` in the store, whose keys begin with a letter or digit."""
    if on_disk == METADATA_ON_DISK:
        return METADATA
    rank = on_disk.removeprefix("__").partition("_")[0]
    return f"rank-{int(rank):05d}.distcp"


def name_on_disk(name: str) -> str:
    """The way back of `object_name`."""
    return METADATA_ON_DISK if name == METADATA else f"__{int(name[5:10])}_0.distcp"


def _check_names(prefix: str, reader: Any, wanted: dict[str, torch.Size]) -> None:
    """Raise WrongState unless the state's weights are those of this policy, adapters or not, and of what is trained beside it."""
    found = {
        key: metadata.size
        for key, metadata in reader.read_metadata().state_dict_metadata.items()
        if key.partition("/")[0].rpartition(".")[2] == WEIGHTS
    }
    if found != wanted:
        different = sorted(found.keys() ^ wanted.keys()) or [key for key in wanted if found[key] != wanted[key]]
        raise WrongState(
            f"{prefix} is of another model than models/base/, trainer.lora and recipe.algorithm say: {different[:3]} differ"
        )


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
