"""What a stranger has of a run: its ledger, checked, and its store, of which nothing is believed before it was compared.

In: the ledger's entries, the run's configuration, the store. Out: files, sealed steps, beacons, verdicts, each with its check. Called by all stages.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from shoal.contracts import keys
from shoal.contracts.file_size import MAX_FILE_BYTES
from shoal.contracts.pools import Sampler
from shoal.contracts.protocol import ValidationJob
from shoal.contracts.run import Prepared, RunConfig
from shoal.contracts.signed import BadSignature, Signed
from shoal.contracts.steps import Beacon, StepBatch
from shoal.contracts.trust import HeldKeys
from shoal.contracts.verdicts import Verdict
from shoal.contracts.work import UnknownWorkError, Work, WorkCodec, draw, pools_digest
from shoal.files import file_sha256
from shoal.ledger.audit import Audit, first_line
from shoal.ledger.chain import identity
from shoal.ledger.entries import Accepted, BatchSealed, LedgerEntry, Rejected, VersionPublished
from shoal.ledger.reading import read_bounded
from shoal.orchestrator.work.records import SubmissionRecord
from shoal.orchestrator.work.schedule import Schedule, schedule_of
from shoal.sampling.draw import beacon_commitment
from shoal.storage import NotFound, Store


class CannotCheck(Exception):
    """Something cannot be checked, because what it takes is not in the store; says what."""


class WrongEvidence(Exception):
    """A document or file is not what it must be; says what is wrong."""


@dataclass(frozen=True)
class LedgerFile:
    """One file that the ledger has as accepted or rejected, and the number of that entry."""

    number: int
    unix: float
    fact: Accepted | Rejected

    @property
    def name(self) -> str:
        """Where a finding is, in words."""
        fact = self.fact
        return (
            f"entry {self.number} ({fact.kind}): step {fact.step}, file {fact.file[:16]}... of node {fact.node[:16]}..."
        )


@dataclass(frozen=True)
class Sealed:
    """One sealed step, and the number of its entry."""

    number: int
    fact: BatchSealed


class Evidence:
    """The run as its ledger has it. Nothing is written; safe for several threads."""

    def __init__(self, store: Store, config: RunConfig, audit: Audit, entries: Sequence[LedgerEntry]) -> None:
        """`entries`: all of the ledger that `audit` has checked."""
        self.store, self.config, self.roster = store, config, audit.roster
        self.commitment = audit.commitment
        self.files: list[LedgerFile] = []
        self.sealed: dict[int, Sealed] = {}
        self.versions: dict[int, str] = {}
        seen: set[object] = set()
        for entry in entries:
            name = identity(entry.fact)
            if name is None or name not in seen:  # a second record of the same fact changes nothing
                seen.add(name)
                self._fold(entry)

    def _fold(self, entry: LedgerEntry) -> None:
        match entry.fact:
            case Accepted() | Rejected() as fact:
                self.files.append(LedgerFile(entry.number, entry.unix, fact))
            case BatchSealed(step=step) as fact:
                self.sealed[step] = Sealed(entry.number, fact)
            case VersionPublished(version=version, weights=weights):
                self.versions[version] = weights
            case _:
                pass

    @cached_property
    def accepted(self) -> dict[int, list[LedgerFile]]:
        """Accepted files by the number of their work, in the ledger's order."""
        found: defaultdict[int, list[LedgerFile]] = defaultdict(list)
        for file in self.files:
            if isinstance(file.fact, Accepted):
                found[file.fact.step].append(file)
        return dict(found)

    @cached_property
    def prepared(self) -> Prepared:
        """What prepare pinned. Raises `WrongEvidence`."""
        try:
            return Prepared.from_json(self.read(keys.PREPARED))
        except (ValidationError, CannotCheck) as error:
            raise WrongEvidence(f"{keys.PREPARED}: {first_line(error)}") from None

    @cached_property
    def codec(self) -> WorkCodec:
        return self.prepared.codec(self.config, self.batch)

    @cached_property
    def schedule(self) -> Schedule:
        return schedule_of(self.config, lambda: self.prepared.task_count)

    def read(self, key: str) -> bytes:
        """A document; raises `CannotCheck` also for one that is larger than any of ours."""
        data = read_bounded(self.store, key)
        if data is None:
            raise CannotCheck(f"{key} is not in the store")
        return data

    def work(self, number: int) -> Work:
        """Raises `WrongEvidence` for a number that is none of this run's."""
        try:
            return self.codec.decode(number)
        except UnknownWorkError as error:
            raise WrongEvidence(str(error)) from None

    def verdict(self, fact: Accepted | Rejected) -> Verdict:
        """The validators' finding on a file, its signature checked, on this file and of the outcome that the ledger has."""
        key = keys.verdict(fact.node, fact.file)
        try:
            verdict = Signed[Verdict].from_json(self.read(key)).verified(HeldKeys(self.roster, "validator"))
        except (BadSignature, ValueError, KeyError) as error:
            raise WrongEvidence(f"{key}: {first_line(error)}") from None
        told = (self.config.run, fact.node, fact.step, fact.submission, fact.file, fact.kind)
        said = (verdict.run, verdict.node, verdict.step, verdict.submission, verdict.sha256, f"{verdict.outcome}ed")
        if told != said or (isinstance(fact, Accepted) and fact.part != verdict.part):
            raise WrongEvidence(f"{key} is on another file, or says {verdict.outcome}")
        return verdict

    def batch(self, step: int) -> StepBatch:
        """The sealed batch, of the bytes that the ledger names. Raises `WrongEvidence`."""
        key = keys.step_batch(step)
        try:
            data = self.read(key)
            batch = StepBatch.from_json(data)
        except (ValidationError, CannotCheck) as error:
            raise WrongEvidence(f"{key}: {first_line(error)}") from None
        if hashlib.sha256(data).hexdigest() != self.sealed[step].fact.batch:
            raise WrongEvidence(f"{key} is not the batch that entry {self.sealed[step].number} seals")
        return batch

    def beacon(self, work: Work) -> bytes:
        """The beacon that the work's prompts are drawn by: whatever the store says, if the ledger's commitment fits it. Raises `CannotCheck`."""
        number = work.beacon_number
        commitment = self.commitment(number)
        for key, kind in ((keys.beacon(number), Beacon), (keys.step_batch(work.number), StepBatch)):
            try:
                value = bytes.fromhex(kind.from_json(self.read(key)).beacon)
            except (CannotCheck, ValidationError):
                continue
            if commitment is not None and beacon_commitment(value) == commitment:
                return value
        raise CannotCheck(f"the store has no beacon of {number} that fits the ledger's commitment")

    def prompts(self, work: Work, beacon: bytes, verdict: Verdict) -> list[int]:
        """Rows of the task table that a file's groups are on, drawn again."""
        node, submission, part = verdict.node, verdict.submission, verdict.part
        drawn = draw(work, beacon=beacon, run=self.config.run, node=node, submission=submission, part=part)
        return [group.prompt_index for group in drawn]

    def job(self, fact: Accepted | Rejected, verdict: Verdict, *, every_row: bool) -> ValidationJob:
        """The claim that a validator had. The node counts as trusted, so that the audit's own share of rows is looked at, not one of the run's."""
        work = self.work(fact.step)
        oldest, newest = work.window
        return ValidationJob(
            claim="0" * 32,
            run=self.config.run,
            node=fact.node,
            lease=verdict.lease,
            step=fact.step,
            submission=fact.submission,
            sha256=fact.file,
            size=1,
            beacon=self.beacon(work).hex(),
            min_version=oldest,
            max_version=newest,
            accepted_files=1_000_000_000,
            on_probation=every_row,
            sampler=self._sampler(fact),
            part=verdict.part,
            pools=pools_digest(work),
        )

    def _sampler(self, fact: Accepted | Rejected) -> Sampler | None:
        """The rule by which tokens were drawn: that of all pools, or of several rules the one that was noted with the lease.

        Nobody signs that note, so it can only name a rule that some pool has.
        """
        rules = {pool.drawn_by for pool in self.config.pools}
        try:
            noted = SubmissionRecord.from_json(self.read(keys.submission(fact.node, fact.file))).drawn_by
        except (ValidationError, CannotCheck):
            noted = None
        if noted is not None and (noted.sampler in rules or not rules):
            return noted.sampler
        return next(iter(rules)) if len(rules) == 1 else None

    def require_files(self, batch: StepBatch) -> None:
        """Raises `CannotCheck` where the manifest lets files of trained steps go and one of this batch is gone. Otherwise a lack is a finding."""
        if self._let_go:
            for file in batch.files:
                if not self.store.exists(key := keys.upload(file.node, file.sha256)):
                    raise CannotCheck(f"{key} is not in the store{self._let_go}")

    @property
    def _let_go(self) -> str:
        """Why a file may be gone, in words; empty: it must be there."""
        retention = self.config.storage.retention
        gone = retention is not None and retention.keep == "Verify"
        return ": the run keeps no files of trained steps (storage.retention.keep: Verify)" if gone else ""

    def fetch(self, fact: Accepted | Rejected, path: Path) -> None:
        """The file's bytes at `path`. Raises `CannotCheck`, and `WrongEvidence` when they are others than were judged."""
        key = keys.upload(fact.node, fact.file)
        size = self.store.size(key)
        if size is None:
            raise CannotCheck(f"{key} is not in the store{self._let_go}")
        if size > MAX_FILE_BYTES:
            raise WrongEvidence(f"{key} has {size} bytes; allowed: {MAX_FILE_BYTES}")
        try:
            self.store.get_to_file(key, path)
        except NotFound as error:
            raise CannotCheck(str(error)) from None
        found = file_sha256(path)
        if found != fact.file:
            raise WrongEvidence(f"the stored file was swapped: its SHA-256 is {found}, judged was {fact.file}")


def span(numbers: Sequence[int]) -> str:
    """Numbers in words, however many."""
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown} and {len(numbers) - 8} more"
