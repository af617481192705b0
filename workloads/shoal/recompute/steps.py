"""Trainer steps repeated from the base model on, and each version compared with the published one, bit for bit.

In: the run's store and configuration. Out: each version as a folder, and how it differs from the published one. The trainer is the run's own
(`training.loop`), with one process on this machine's CPU, over an `Overlay`. The same kind of processor gives the same numbers, with the same
number of trainer processes and of threads: one, as the trainer's entry point sets it. Elsewhere they are off by rounding.

Optimizer moments follow from the step before. So an audit begins with version 0, or with the state that an earlier call with the same work folder
left. Stored training states of the run are not used: nobody signs them, their moments cannot be compared with anything, and they are pickles.
"""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from shoal.contracts import keys
from shoal.contracts.final_model import FinalModel
from shoal.contracts.signed import BadSignature
from shoal.contracts.steps import StepMetrics
from shoal.contracts.trust import HeldKeys
from shoal.crypto.canonical import document_digest
from shoal.files import file_sha256
from shoal.ledger.audit import first_line
from shoal.recompute.evidence import CannotCheck, Evidence, WrongEvidence
from shoal.recompute.overlay import Overlay
from shoal.storage import BadKey, NotFound
from shoal.storage.chains import BrokenDeltas
from shoal.storage.checkpoint_files import MANIFEST_FILE, WrongWeights, version_digest
from shoal.storage.versions import materialise, read_record, read_sealed_manifest
from shoal.telemetry import Liveness
from shoal.training.base_model import base_weights, fetch_base_model
from shoal.training.context import TrainerContext
from shoal.training.extensions.base import Extensions
from shoal.training.extensions.enabled import recipe_extensions
from shoal.training.loop import Trainer
from shoal.training.parallel import Ranks, start_ranks
from shoal.training.progress import ProgressReporter
from shoal.training.state import BadState

LIVENESS_SECONDS = 3600.0
BROKEN = (NotFound, BadKey, ValueError, BadSignature, WrongWeights, BrokenDeltas, KeyError, OSError)
"""What a store whose versions were changed makes of assembling one."""
MOST_TENSORS = 3
MOST_KEPT_STATES = 20
"""Of an audit, which saves one of each version, where steps began with older ones: at the size of a 32B model 8 TB."""


@dataclass(frozen=True)
class RepeatedVersion:
    """One version made again: its number and its folder."""

    version: int
    folder: Path


class Remaking:
    """The run's trainer at work on this machine; a context. `made` gives versions one after the other.

    `work` is a folder of the auditor's, with `state/` (what the trainer writes), `outbox/` and `tmp/`; an earlier call's state there is continued. It
    needs room for three training states and two versions: at the size of a 32B model 1.3 TB. Where steps began with older states, it keeps more.
    """

    def __init__(self, evidence: Evidence, work: Path, ranks: Ranks | None = None) -> None:
        """`ranks`: this process as the only trainer, where it was started before (torch allows it once)."""
        self._evidence, self._work = evidence, work
        self._own_ranks = ranks is None
        self._ranks = ranks
        self._trainer: Trainer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._trainer is not None:
            with suppress(Exception):  # of a background that failed, which `made` has told
                self._trainer.handed_over()
            self._trainer.close()
        if self._own_ranks and self._ranks is not None:
            self._ranks.close()

    def made(self, last: int) -> Iterator[RepeatedVersion]:
        """Every version from where the work folder stands to `last`, ascending; each folder is removed when the next version is asked for.

        Raises `WrongEvidence` when the run's own trainer cannot have gone this way.
        """
        try:
            trainer = self._started()
            while True:
                trainer.handed_over()
                folder = self._work / "outbox" / keys.version_name(trainer.version)
                if not folder.is_dir():
                    raise WrongEvidence(f"the trainer gave out no version {trainer.version}")
                yield RepeatedVersion(trainer.version, folder)
                if trainer.version < last:
                    self._go_on_as_the_run_did(trainer, folder)
                shutil.rmtree(folder)
                if trainer.version >= last:
                    return
                self._advance(trainer)
        except (WrongEvidence, CannotCheck, GeneratorExit, KeyboardInterrupt):
            raise
        except Exception as error:  # whatever a store that was changed makes of a step
            raise WrongEvidence(f"it cannot be repeated: {type(error).__name__}: {first_line(error)}") from error

    def _advance(self, trainer: Trainer) -> None:
        """Make the next version. A roll-back on signs of instability comes from its report: limits are of the release that trained."""
        step = trainer.version
        target = self._reports[step].rolled_back_to if step in self._reports else None
        if target is None or self._evidence.config.stability.action != "RollBack" or self._asked_to_go_back(step):
            self._require_batch(step)
            trainer.advance()
            return
        try:
            trainer.go_back(target)
        except BadState as error:
            raise CannotCheck(
                f"step {step} went back to version {target}, whose state is not available here: {first_line(error)}"
            ) from None

    def _asked_to_go_back(self, step: int) -> bool:
        asked = self._evidence.config.roll_back
        return asked is not None and asked.at_step == step

    def _go_on_as_the_run_did(self, trainer: Trainer, folder: Path) -> None:
        """A step that began after a stop began with rounded weights and an older state: its report says which."""
        older = self._older_moments.get(trainer.version)
        if older is None:
            return
        try:
            trainer.go_on_from(folder, older)
        except BadState as error:
            which = f"the optimizer state of version {older}" if older >= 0 else "a fresh optimizer state"
            raise CannotCheck(
                f"step {trainer.version} began with {which}, which is not available here: {first_line(error)}"
            ) from None

    @cached_property
    def _reports(self) -> dict[int, StepMetrics]:
        """By step, those that are there and readable."""
        found = {}
        for step in range(self._evidence.config.steps):
            with suppress(CannotCheck, ValidationError):
                found[step] = StepMetrics.from_json(self._evidence.read(keys.step_metrics(step)))
        return found

    @cached_property
    def _older_moments(self) -> dict[int, int]:
        """The steps that began with an older optimizer state, with its version."""
        found = ((step, report.moments_of) for step, report in self._reports.items())
        return {step: version for step, version in found if version is not None and version < step}

    def _kept_states(self) -> int:
        """As many as the run's own, or as go back to what a step began with; a report may make an audit keep some more, not all."""
        went_back = ((step, report.rolled_back_to) for step, report in self._reports.items())
        began_from = [*self._older_moments.items(), *((step, to) for step, to in went_back if to is not None)]
        furthest = max((step - version + 1 for step, version in began_from if version >= 0), default=1)
        return max(self._evidence.config.trainer.kept_states, min(furthest, MOST_KEPT_STATES))

    def _require_batch(self, step: int) -> None:
        """Else the trainer would wait for it."""
        config = self._evidence.config
        if config.mode == "SFT" or self._asked_to_go_back(step):
            return
        if step not in self._evidence.sealed:
            raise CannotCheck(f"step {step} is not sealed")
        self._evidence.require_files(self._evidence.batch(step))

    def _started(self) -> Trainer:
        evidence, work = self._evidence, self._work
        if evidence.config.islands is not None:
            raise CannotCheck(
                "steps of a trainer of several islands are not repeated: their exchanges are not in the store"
            )
        torch.set_num_threads(1)
        self._ranks = self._ranks or start_ranks("cpu", environment={})
        store = Overlay(evidence.store, _folder(work / "state"))
        liveness = Liveness(LIVENESS_SECONDS)
        base = fetch_base_model(store, work / "base", liveness)
        # A pause changes no number, and nobody is here to end it; a roll-back is in the report of its step.
        calm = evidence.config.stability.model_copy(update={"action": "Report"})
        # A later call goes on bit for bit: from the state of its last version, never from a version that waits here.
        settings = {"state_every": 1, "kept_states": self._kept_states()}
        shutil.rmtree(work / "outbox", ignore_errors=True)
        context = TrainerContext(
            config=evidence.config.model_copy(
                update={"stability": calm, "trainer": evidence.config.trainer.model_copy(update=settings)}
            ),
            store=store,
            state_store=store,
            base=base,
            outbox=_folder(work / "outbox"),
            scratch=work / "tmp",
            attempt="audit",
            progress=ProgressReporter(evidence.config.run, None, store),
            liveness=liveness,
            ranks=self._ranks,
            signers=partial(HeldKeys, evidence.roster),
            weights=base_weights(store),
        )
        recipe = evidence.config.recipe
        extensions = [] if evidence.config.mode == "SFT" else recipe_extensions(recipe)
        self._trainer = Trainer(context, Extensions(*extensions))
        self._trainer.begin()
        return self._trainer


def compare(evidence: Evidence, made: RepeatedVersion, scratch: Path) -> list[str]:
    """How a version that was made again differs from the published one: the first tensors and how far they are apart. Empty: not by a bit."""
    version = made.version
    key = keys.version_weights(version)
    try:
        signer = HeldKeys(evidence.roster, "trainer")
        manifest = read_sealed_manifest(evidence.store, version, signer)
        record = read_record(evidence.store, version, signer)
    except NotFound as error:
        raise CannotCheck(f"{error.args[0]} is not in the store") from None
    except (BadSignature, ValueError) as error:
        return [f"{key}: {first_line(error)}"]
    announced = evidence.versions.get(version)
    if announced not in (None, manifest.sha256):
        return [f"the ledger announces digest {announced}, {key} seals {manifest.sha256}"]
    if document_digest(record) != manifest.open_digest:
        return [f"{keys.version_open(version)} is not the opening record that {key} seals"]
    digest = version_digest(record, made.folder)
    if digest == manifest.sha256:
        return _final_problems(evidence, made)
    return [
        f"the published version {version} is not what its step makes: {_apart(evidence, made, manifest.sha256, digest, scratch)}"
    ]


def _apart(evidence: Evidence, made: RepeatedVersion, sealed: str, found: str, scratch: Path) -> str:
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    theirs = scratch / keys.version_name(made.version)
    try:
        materialise(evidence.store, made.version, theirs, evidence.config.run, HeldKeys(evidence.roster, "trainer"))
        return differing(made.folder, theirs)
    except BROKEN as error:
        return (
            f"its digest is {sealed[:16]}..., made again {found[:16] or 'none'}...; which tensors differ cannot be said, its bytes are not"
            f" available ({type(error).__name__}: {first_line(error)})"
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def differing(ours: Path, theirs: Path) -> str:
    """Which tensors of two checkpoints differ, and by how much; one tensor of each is in memory at a time."""
    apart: list[str] = []
    tensors = 0
    names = [{path.name for path in folder.iterdir() if path.name != MANIFEST_FILE} for folder in (ours, theirs)]
    if names[0] != names[1]:
        return f"its files are {sorted(names[1])}, must be {sorted(names[0])}"
    for name in sorted(names[0]):
        if name.endswith(".safetensors"):
            try:
                found = list(_tensors(ours / name, theirs / name))
            except (SafetensorError, OSError) as error:
                return f"{name} is not readable: {first_line(error)}"
            tensors += len(found)
            apart += found
        elif (ours / name).read_bytes() != (theirs / name).read_bytes():
            apart.append(f"file {name}")
            tensors += 1
    if not apart:
        return "every tensor is equal, and the bytes around them differ"
    return f"{tensors} tensors or files differ, the first: {'; '.join(apart[:MOST_TENSORS])}"


def _tensors(ours: Path, theirs: Path) -> Iterator[str]:
    with safe_open(ours, framework="pt") as mine, safe_open(theirs, framework="pt") as other:
        if set(mine.keys()) != set(other.keys()):
            yield f"tensors {sorted(set(mine.keys()) ^ set(other.keys()))[:MOST_TENSORS]}"
            return
        for name in sorted(mine.keys()):
            a, b = mine.get_tensor(name), other.get_tensor(name)
            if a.shape != b.shape or a.dtype != b.dtype:
                yield f"{name}: {tuple(b.shape)} of {b.dtype}, must be {tuple(a.shape)} of {a.dtype}"
                continue
            off = (a.double() - b.double()).abs()
            places = int((a.view(torch.uint8) != b.view(torch.uint8)).sum()) if a.numel() else 0
            if places:
                yield f"{name}: {int((off != 0).sum())} of {a.numel()} values, by at most {float(np.float64(off.max())):.3g}"


def _final_problems(evidence: Evidence, made: RepeatedVersion) -> list[str]:
    """Whether the run's result, where this version is it, has the same files."""
    if made.version != evidence.config.steps:
        return []
    try:
        final = FinalModel.from_json(evidence.read(keys.FINAL_SEAL))
    except (CannotCheck, ValidationError):
        return []
    files = {path.name: file_sha256(path) for path in sorted(made.folder.iterdir())}
    if final.version != made.version or final.files == files:
        return []
    different = sorted(name for name in files.keys() | final.files.keys() if files.get(name) != final.files.get(name))
    return [f"{keys.FINAL_SEAL} seals other files than version {made.version} has: {', '.join(different[:5])}"]


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path
