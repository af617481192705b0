"""One trace for each submission, from its lease to the training step that used it, made from what the store holds. Pure.

Ids are digests of (run, step, node, submission), so every reader makes the same ones, and nothing that a node wrote is ever an id: a stranger cannot
put spans into the trace of another. A span needs both of its ends; what is not known has no span.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from shoal.contracts import keys
from shoal.contracts.steps import StepBatch, StepMetrics
from shoal.contracts.verdicts import Verdict
from shoal.report.facts import StoreFacts
from shoal.report.times import StoreTimes
from shoal.text import plain

Value = str | int | float | bool


@dataclass(frozen=True)
class Span:
    """One span. `service` is the part that worked; `parent` is empty for the root. Times are unix seconds."""

    trace: str
    span: str
    parent: str
    service: str
    name: str
    start: float
    end: float
    attributes: dict[str, Value] = field(default_factory=dict)
    failed: str = ""


def trace_id(run: str, step: int, node: str, submission: int) -> str:
    """16 bytes in hex: the trace of one submission."""
    return hashlib.sha256(f"shoal trace\0{run}\0{step}\0{node}\0{submission}".encode()).hexdigest()[:32]


def span_id(trace: str, name: str) -> str:
    """8 bytes in hex: a span has a name that is once in its trace."""
    return hashlib.sha256(f"{trace}\0{name}".encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Submission:
    """One judged file, and what came of it."""

    verdict: Verdict
    leased: float | None
    submitted: float | None
    judged: float | None
    batch: StepBatch | None = None
    sealed: float | None = None
    trained: StepMetrics | None = None

    @property
    def final(self) -> bool:
        """Whether nothing more will come of it."""
        if self.verdict.outcome != "accept":
            return self.verdict.outcome != "inconclusive"
        return self.batch is not None and (not self.used or self.trained is not None)

    @property
    def used(self) -> bool:
        """Whether its step trains on it."""
        return self.batch is not None and any(file.sha256 == self.verdict.sha256 for file in self.batch.files)


def submissions(facts: StoreFacts, times: StoreTimes) -> Iterator[Submission]:
    """Every judged file, in the order of the store."""
    batches = {batch.step: batch for batch in facts.batches}
    trained = {metrics.step: metrics for metrics in facts.steps}
    for verdict in facts.verdicts:
        yield Submission(
            verdict,
            times.leased.get((verdict.node, verdict.step, verdict.submission)),
            times.submitted.get((verdict.node, verdict.sha256)),
            facts.verdict_unix.get(keys.verdict(verdict.node, verdict.sha256)),
            batches.get(verdict.step),
            facts.batch_unix.get(keys.step_batch(verdict.step)),
            trained.get(verdict.step),
        )


def spans(found: Submission) -> list[Span]:
    """The trace of one submission, the root first; empty when not even the root's ends are known."""
    verdict = found.verdict
    trace = trace_id(verdict.run, verdict.step, verdict.node, verdict.submission)
    root = span_id(trace, "submission")
    children: list[Span] = []

    def child(
        name: str, service: str, start: float | None, end: float | None, attributes: dict[str, Value] | None = None
    ) -> None:
        if start is not None and end is not None and end >= start:
            children.append(Span(trace, span_id(trace, name), root, service, name, start, end, attributes or {}))

    checked = found.judged - verdict.check_seconds if found.judged is not None and verdict.check_seconds else None
    child("sample and upload", "worker", found.leased, found.submitted)
    child("wait for a validator", "orchestrator", found.submitted, checked)
    checks: dict[str, Value] = {
        f"shoal.check.{plain(name, 40)}_seconds": seconds for name, seconds in verdict.seconds_by_check.items()
    }
    validator = plain(verdict.validator, 100)
    child("verify", "validator", checked, found.judged, {"shoal.validator": validator, **checks})
    if found.used and found.trained is not None:
        metrics = found.trained
        began = metrics.started_unix + metrics.phase_seconds.get("wait", 0.0)
        child("wait for the batch", "orchestrator", found.judged, found.sealed)
        child("wait for the trainer", "trainer", found.sealed, began)
        phases: dict[str, Value] = {
            f"shoal.phase.{plain(name, 40)}_seconds": seconds for name, seconds in metrics.phase_seconds.items()
        }
        child("train", "trainer", began, metrics.finished_unix, {"shoal.version": metrics.policy_version, **phases})
    if not children:
        return []
    about: dict[str, Value] = {
        "shoal.run": verdict.run, "shoal.step": verdict.step, "shoal.node": verdict.node, "shoal.submission": verdict.submission,
        "shoal.file": verdict.sha256, "shoal.outcome": verdict.outcome, "shoal.rows": verdict.rows,
        "shoal.tokens": verdict.completion_tokens, "shoal.used": found.used,
    }  # fmt: skip
    if verdict.policy_version is not None:
        about["shoal.policy_version"] = verdict.policy_version
    start, end = min(each.start for each in children), max(each.end for each in children)
    failed = f"{verdict.reason}: {plain(verdict.evidence, 200)}" if verdict.reason is not None else ""
    return [Span(trace, root, "", "orchestrator", "submission", start, end, about, failed), *children]
