"""Reads what a run left in its object store: step metrics, batches, verdicts, ledger entries, sealed versions.

The I/O edge of the report; `collect.py` works on `StoreFacts` alone. An object that cannot be read is a note, not an end of the report.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import ValidationError

from shoal.contracts import keys
from shoal.contracts.base import Contract
from shoal.contracts.canonical import Signed
from shoal.contracts.ledger import LedgerEntry
from shoal.contracts.steps import StepBatch, StepMetrics
from shoal.contracts.verdicts import Verdict
from shoal.storage import NotFound, Store
from shoal.storage.versions import sealed_versions

Parsed = TypeVar("Parsed", bound=Contract)


@dataclass
class StoreFacts:
    """Everything of the store that the report uses. `kind` is `folder` or `s3`."""

    kind: str
    steps: list[StepMetrics] = field(default_factory=list)
    batches: list[StepBatch] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    ledger_kinds: Counter[str] = field(default_factory=Counter)
    versions: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_store(store: Store) -> StoreFacts:
    """Read everything once; raises `storage.StoreUnavailable` when the store is away."""
    facts = StoreFacts(kind=store.kind)
    step_files = [info.key for info in store.list(keys.STEPS)]
    facts.steps = _all(store, facts, [k for k in step_files if k.endswith("/metrics.json")], StepMetrics.from_json)
    facts.batches = _all(store, facts, [k for k in step_files if k.endswith("/batch.json")], StepBatch.from_json)
    verdicts = [info.key for info in store.list(keys.VERDICTS) if info.key.endswith(".json")]
    facts.verdicts = _all(store, facts, verdicts, _verdict)
    entries = [info.key for info in store.list(keys.LEDGER) if info.key.endswith(".json")]
    facts.ledger_kinds = Counter(entry.kind for entry in _all(store, facts, entries, _ledger_entry))
    facts.versions = sealed_versions(store)
    facts.steps.sort(key=lambda metrics: metrics.step)
    facts.batches.sort(key=lambda batch: batch.step)
    return facts


def read_steps(store: Store) -> list[StepMetrics]:
    """Metrics of the steps trained so far, in order; what is not readable is left out."""
    names = [info.key for info in store.list(keys.STEPS) if info.key.endswith("/metrics.json")]
    found = _all(store, StoreFacts(kind=store.kind), names, StepMetrics.from_json)
    return sorted(found, key=lambda metrics: metrics.step)


def _verdict(data: bytes) -> Verdict:
    return Signed[Verdict].from_json(data).document


def _ledger_entry(data: bytes) -> LedgerEntry:
    return Signed[LedgerEntry].from_json(data).document


def _all(store: Store, facts: StoreFacts, names: list[str], parse: Callable[[bytes], Parsed]) -> list[Parsed]:
    found: list[Parsed] = []
    for name in names:
        try:
            found.append(parse(store.get(name)))
        except NotFound:
            continue  # removed since it was listed
        except ValidationError as error:
            facts.notes.append(f"{name} is not readable and was left out: {error.error_count()} mistakes")
    return found
