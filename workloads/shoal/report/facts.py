"""Reads what a run left in its object store: step metrics, batches, verdicts, ledger entries, sealed versions.

The I/O edge of the report and of the page of a run; `collect.py` works on `StoreFacts` alone. An object that cannot be read is a note, not an end
of the report. `StoreReader` reads again and again, what is new only.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import ValidationError

from shoal.contracts import keys
from shoal.contracts.base import Contract
from shoal.contracts.evaluation import BestVersion
from shoal.contracts.signed import Signed
from shoal.contracts.steps import StepBatch, StepMetrics
from shoal.contracts.verdicts import Verdict
from shoal.evaluation.versions import VersionEvaluation
from shoal.ledger.entries import LedgerEntry
from shoal.storage import Store, find
from shoal.storage.parallel import in_parallel
from shoal.storage.store import ObjectInfo
from shoal.storage.versions import sealed_versions

Parsed = TypeVar("Parsed", bound=Contract)

LARGEST_DOCUMENT_BYTES = 256 << 20
"""A verdict with a million rows has about 100 MB; what is larger is none of ours."""


@dataclass
class StoreFacts:
    """Everything of the store that the report uses. `kind` is `folder` or `s3`; `*_unix` is when a document was written, by its key."""

    kind: str
    steps: list[StepMetrics] = field(default_factory=list)
    batches: list[StepBatch] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    verdict_unix: dict[str, float] = field(default_factory=dict)
    batch_unix: dict[str, float] = field(default_factory=dict)
    ledger_kinds: Counter[str] = field(default_factory=Counter)
    versions: list[int] = field(default_factory=list)
    evaluations: list[VersionEvaluation] = field(default_factory=list)
    best_version: BestVersion | None = None
    notes: list[str] = field(default_factory=list)


def read_steps(store: Store) -> list[StepMetrics]:
    """Metrics of the steps trained so far, in order; what is not readable is left out."""
    reader = StoreReader(store)
    found = reader.documents(_named(store.list(keys.STEPS), "/metrics.json"), StepMetrics.from_json, [])
    return sorted(found, key=lambda metrics: metrics.step)


def read_evaluations(store: Store) -> list[VersionEvaluation]:
    """What versions scored, in the order of the keys; what is not readable is left out."""
    records = [info for info in store.list(keys.EVALUATIONS) if info.key != keys.BEST_VERSION]
    return StoreReader(store).documents(records, VersionEvaluation.from_json, [])


class StoreReader:
    """Reads a run's store, and on later calls only objects that are new or changed. Not for several threads at once."""

    def __init__(self, store: Store, *, ledger: bool = True) -> None:
        """`ledger` False leaves the ledger's entries out: for whoever audits the whole ledger anyway."""
        self._store = store
        self._ledger = ledger
        self._seen: dict[str, tuple[ObjectInfo, Contract | None, str]] = {}

    def read(self) -> StoreFacts:
        """Everything as it is now; raises `storage.StoreUnavailable` when the store is away."""
        store, facts = self._store, StoreFacts(kind=self._store.kind)
        step_files = store.list(keys.STEPS)
        facts.steps = self.documents(_named(step_files, "/metrics.json"), StepMetrics.from_json, facts.notes)
        batches = _named(step_files, "/batch.json")
        facts.batches = self.documents(batches, StepBatch.from_json, facts.notes)
        facts.batch_unix = {info.key: info.modified_unix for info in batches}
        verdicts = _named(store.list(keys.VERDICTS), ".json")
        facts.verdicts = self.documents(verdicts, _verdict, facts.notes)
        facts.verdict_unix = {info.key: info.modified_unix for info in verdicts}
        if self._ledger:
            entries = self.documents(_named(store.list(keys.LEDGER), ".json"), _ledger_entry, facts.notes)
            facts.ledger_kinds = Counter(entry.kind for entry in entries)
        facts.versions = sealed_versions(store)
        scored = list(store.list(keys.EVALUATIONS))
        records = [info for info in scored if info.key != keys.BEST_VERSION]
        facts.evaluations = self.documents(records, VersionEvaluation.from_json, facts.notes)
        best = [info for info in scored if info.key == keys.BEST_VERSION]
        facts.best_version = next(iter(self.documents(best, BestVersion.from_json, facts.notes)), None)
        facts.steps.sort(key=lambda metrics: metrics.step)
        facts.batches.sort(key=lambda batch: batch.step)
        return facts

    def documents(
        self, infos: Iterable[ObjectInfo], parse: Callable[[bytes], Parsed], notes: list[str]
    ) -> list[Parsed]:
        """The documents of these objects, in order. One that is not readable is a note; one that was removed meanwhile is left out."""
        infos = list(infos)
        fresh = [info for info in infos if info.key not in self._seen or self._seen[info.key][0] != info]

        def read(info: ObjectInfo) -> None:
            self._seen[info.key] = (info, *_parsed(info, self._bytes(info), parse))

        in_parallel(read, fresh)
        found: list[Parsed] = []
        for info in infos:
            _, document, note = self._seen[info.key]
            if note:
                notes.append(note)
            if document is not None:
                found.append(document)  # type: ignore[arg-type]  # a key has one kind of document
        return found

    def _bytes(self, info: ObjectInfo) -> bytes | None:
        if info.size > LARGEST_DOCUMENT_BYTES:
            return None
        return find(self._store, info.key, bytes) or b""


def _parsed(info: ObjectInfo, data: bytes | None, parse: Callable[[bytes], Parsed]) -> tuple[Parsed | None, str]:
    if data is None:
        return None, f"{info.key} has {info.size} bytes, more than any document of Shoal, and was left out"
    if not data and info.size:
        return None, ""  # removed since it was listed
    try:
        return parse(data), ""
    except ValidationError as error:
        return None, f"{info.key} cannot be read and was left out: {error.error_count()} mistakes"


def _named(infos: Iterable[ObjectInfo], end: str) -> list[ObjectInfo]:
    return [info for info in infos if info.key.endswith(end)]


def _verdict(data: bytes) -> Verdict:
    return Signed[Verdict].from_json(data).document


def _ledger_entry(data: bytes) -> LedgerEntry:
    return Signed[LedgerEntry].from_json(data).document
