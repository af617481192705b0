"""What overlapped and what waited: intervals of broadcast, generation, verification and training by step. Pure.

Times are when objects of the store were written (leases, submissions, verdicts, versions; a store on S3 tells whole seconds) and what the trainer
measured. An interval is shown only when both of its ends are known; nothing is guessed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal.contracts import keys
from shoal.contracts.steps import StepMetrics
from shoal.contracts.verdicts import Verdict
from shoal.contracts.work import WorkKind, kind_of
from shoal.ledger.entries import BatchSealed, BeaconRevealed, LedgerEntry
from shoal.report.times import StoreTimes

MOST_STEPS = 200
WAITS, EXCHANGES = ("wait", "paused", "join"), ("exchange",)
"""Phases of the trainer that are no training: before its work, and between updates (of islands)."""


@dataclass(frozen=True)
class Interval:
    """One bar: a step's (for broadcast the version that was sent), of `what` (node, validator, relay), with a state where it has one."""

    lane: str
    step: int
    start: float
    end: float
    what: str = ""
    state: str = ""


def intervals(
    times: StoreTimes, verdicts: Sequence[Verdict], verdict_unix: dict[str, float], steps: Sequence[StepMetrics]
) -> list[Interval]:
    """All bars, by start."""
    found: list[Interval] = []
    for verdict in verdicts:
        leased = times.leased.get((verdict.node, verdict.step, verdict.submission))
        submitted = times.submitted.get((verdict.node, verdict.sha256))
        if leased is not None and submitted is not None and submitted >= leased:
            found.append(Interval("generation", verdict.step, leased, submitted, verdict.node, verdict.outcome))
        judged = verdict_unix.get(keys.verdict(verdict.node, verdict.sha256))
        if judged is not None and verdict.check_seconds > 0:
            begin = judged - verdict.check_seconds
            found.append(
                Interval(
                    "verification", verdict.step, begin, judged, verdict.validator or verdict.node, verdict.outcome
                )
            )
    for version, begin in times.opened.items():
        end = times.sealed.get(version)
        if end is not None and end >= begin:
            found.append(Interval("broadcast", version, begin, end, f"version {version}"))
    for metrics in steps:
        found += _training(metrics)
    return sorted(found, key=lambda each: (each.start, each.end, each.lane, each.what))


def _training(metrics: StepMetrics) -> list[Interval]:
    """A step's work between its waits: those for the batch and for other islands come first, exchanges are drawn as one, at its end."""
    start, end = metrics.started_unix, max(metrics.started_unix, metrics.finished_unix)
    works = min(end, start + _seconds(metrics, WAITS))
    ends = max(works, end - _seconds(metrics, EXCHANGES))
    bars = [(start, works, "wait"), (works, ends, "work"), (ends, end, "exchange")]
    return [Interval("training", metrics.step, *bar[:2], metrics.attempt, bar[2]) for bar in bars if bar[1] > bar[0]]


def _seconds(metrics: StepMetrics, phases: Sequence[str]) -> float:
    return sum(max(0.0, metrics.phase_seconds.get(phase, 0.0)) for phase in phases)


def step_rows(
    bars: Sequence[Interval], entries: Sequence[LedgerEntry], steps: Sequence[StepMetrics]
) -> list[dict[str, float | int | None]]:
    """One row a step: when it opened and was sealed (ledger), seconds of each lane from first to last, and how long training overlapped sampling."""
    opened: dict[int, float] = {}
    sealed: dict[int, float] = {}
    for entry in entries:
        match entry.fact:
            case BeaconRevealed(step=step) if kind_of(step) is WorkKind.STEP:
                opened[step] = entry.unix
            case BatchSealed(step=step):
                sealed[step] = entry.unix
            case _:
                pass
    trained = {metrics.step: metrics for metrics in steps}
    by_step: dict[tuple[str, int], list[Interval]] = {}
    for bar in bars:
        by_step.setdefault((bar.lane, bar.step), []).append(bar)
    sampling = merged((bar.start, bar.end) for bar in bars if bar.lane == "generation")
    rows: list[dict[str, float | int | None]] = []
    for step in sorted({*opened, *sealed, *trained, *(bar.step for bar in bars if bar.lane == "generation")}):
        work = [(bar.start, bar.end) for bar in by_step.get(("training", step), []) if bar.state == "work"]
        metrics = trained.get(step)
        rows.append(
            {
                "step": step,
                "opened": opened.get(step),
                "sealed": sealed.get(step),
                "generation_seconds": _span(by_step.get(("generation", step), [])),
                "verification_seconds": _busy(by_step.get(("verification", step), [])),
                "wait_seconds": _waited(metrics, WAITS),
                "exchange_seconds": _waited(metrics, EXCHANGES),
                "training_seconds": sum(end - begin for begin, end in work) if work else None,
                "overlap_seconds": overlap(merged(work), sampling) if work else None,
                "broadcast_seconds": _span(by_step.get(("broadcast", step + 1), [])),
                "finished": metrics.finished_unix if metrics else None,
            }
        )
    return rows


def _waited(metrics: StepMetrics | None, phases: Sequence[str]) -> float | None:
    """Seconds of these phases, None where the step had none of them."""
    return _seconds(metrics, phases) if metrics and any(phase in metrics.phase_seconds for phase in phases) else None


def _span(bars: Sequence[Interval]) -> float | None:
    return max(bar.end for bar in bars) - min(bar.start for bar in bars) if bars else None


def _busy(bars: Sequence[Interval]) -> float | None:
    return sum(bar.end - bar.start for bar in bars) if bars else None


def merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The spans as a union: sorted, none touching another."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def overlap(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> float:
    """Seconds that lie in both of two unions."""
    total, place = 0.0, 0
    for begin, end in one:
        while place < len(other) and other[place][1] <= begin:
            place += 1
        at = place
        while at < len(other) and other[at][0] < end:
            total += min(end, other[at][1]) - max(begin, other[at][0])
            at += 1
    return total
