"""Turns facts of the store and readings of the parts into `ReportData`. Pure: every figure of the report is defined here, once.

What a figure needs and is not there makes it None, and a note says so; nothing is estimated.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.contracts.answers import together
from shoal.contracts.dataset_card import DatasetCard
from shoal.contracts.evaluation import BestVersion
from shoal.contracts.filtering import FilterReport
from shoal.contracts.steps import StepMetrics
from shoal.contracts.tasks import TaskReport
from shoal.contracts.vine import VineSettings
from shoal.evaluation.versions import VersionEvaluation
from shoal.ledger.entries import EntryKind
from shoal.report.continuations import completions_of
from shoal.report.evaluations import without_problems
from shoal.report.facts import StoreFacts
from shoal.report.records import (
    SampleRecord,
    SessionRecord,
    cpu_readings,
    increases,
    metric_labels,
    part_of,
    readings_of,
    samples_of,
    total_increase,
    wall_seconds,
)

REWARD_START_STEPS = 3
"""`reward_start` is the mean task reward of this many first steps, at most: before the policy has moved much."""
REWARD_END_STEPS = 5
"""`reward_end` is the mean task reward of this many last steps, at most."""
UTILISATION_BIN_SECONDS = 15.0
"""Three readings: shorter bins show the rhythm of the readings, not of the parts."""

BUSY_METRIC = "shoal_busy_seconds_total"
WAITING_PHASES = ("wait", "idle")
"""Phases that begin with these words are time without work, and no part of utilisation."""
ENGINE_METRIC = "shoal_engine_info"
BYTES_SERVED_METRIC = "shoal_relay_served_bytes_total"
RELAY_SERVER_METRIC = "shoal_relay_server_info"

Series = list[tuple[float, float]]
"""(seconds since the start of the run, value)."""
AnyRecord = SessionRecord | SampleRecord


@dataclass(frozen=True)
class ModelPlace:
    """Where the trained model is, as a person would type it."""

    path: str
    version: int


@dataclass
class ReportData:
    """All that the report says. Seconds are wall-clock except for `busy_seconds`, which are CPU seconds."""

    run: str
    steps_total: int | None
    store: str
    steps: list[StepMetrics]
    reward_start: float | None = None
    reward_end: float | None = None
    sampled_reward_start: float | None = None
    sampled_reward_end: float | None = None
    files: Counter[str] = field(default_factory=Counter)
    reject_reasons: Counter[str] = field(default_factory=Counter)
    ledger: dict[str, int] = field(default_factory=dict)
    versions: list[int] = field(default_factory=list)
    groups_used: int = 0
    groups_dropped: int = 0
    completion_tokens: int = 0
    bytes_broadcast: int | None = None
    engine: str | None = None
    relay: str | None = None
    wall_seconds: float | None = None
    busy_seconds: dict[str, float] = field(default_factory=dict)
    phase_seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    utilisation: dict[str, Series] = field(default_factory=dict)
    model: ModelPlace | None = None
    tasks: TaskReport | None = None
    filtered: FilterReport | None = None
    dataset: DatasetCard | None = None
    evaluations: list[VersionEvaluation] = field(default_factory=list)
    best_version: BestVersion | None = None
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """`report.json`."""
        return {
            "run": self.run,
            "reward_start": self.reward_start,
            "reward_end": self.reward_end,
            "sampled_reward_start": self.sampled_reward_start,
            "sampled_reward_end": self.sampled_reward_end,
            "steps": len(self.steps),
            "steps_total": self.steps_total,
            "files_accepted": self.files["accept"],
            "files_rejected": self.files["reject"],
            "files_expired": self.files["expired"],
            "files_inconclusive": self.files["inconclusive"],
            "reject_reasons": dict(self.reject_reasons),
            "groups_used": self.groups_used,
            "groups_dropped": self.groups_dropped,
            "completion_tokens": self.completion_tokens,
            "versions": len(self.versions),
            "last_version": self.versions[-1] if self.versions else None,
            "bytes_broadcast": self.bytes_broadcast,
            "engine": self.engine,
            "relay": self.relay,
            "store": self.store,
            "wall_seconds": self.wall_seconds,
            "busy_seconds": self.busy_seconds or None,
            "phase_seconds": self.phase_seconds or None,
            "ledger": self.ledger,
            "tasks": self.tasks.model_dump(mode="json") if self.tasks else None,
            "offline_filter": self.filtered.model_dump(mode="json") if self.filtered else None,
            "dataset": self.dataset.model_dump(mode="json") if self.dataset else None,
            "evaluations": [without_problems(each) for each in self.evaluations] or None,
            "best_version": self.best_version.model_dump(mode="json") if self.best_version else None,
            "model": self.model.path if self.model else None,
            "model_version": self.model.version if self.model else None,
            "step_metrics": [metrics.model_dump(mode="json") for metrics in self.steps],
            "notes": self.notes,
        }


def collect(
    run: str,
    steps_total: int | None,
    facts: StoreFacts,
    records: Sequence[AnyRecord],
    *,
    unreadable_records: int = 0,
    model: ModelPlace | None = None,
    vine: VineSettings | None = None,
) -> ReportData:
    """The report of a run from what its store holds and what was read of its parts. `vine`: that of its recipe."""
    samples = samples_of(records)
    data = ReportData(run=run, steps_total=steps_total, store=facts.kind, steps=facts.steps, model=model)
    data.evaluations, data.best_version = facts.evaluations, facts.best_version
    data.notes += facts.notes
    _rewards(data)
    _sampled_rewards(data, facts, vine)
    _files(data, facts)
    data.wall_seconds = wall_seconds(records)
    data.busy_seconds = busy_seconds(samples)
    data.phase_seconds = phase_seconds(samples)
    data.bytes_broadcast = bytes_broadcast(samples)
    data.engine = _label_values(samples, "worker", ENGINE_METRIC, "engine")
    data.relay = _label_values(samples, "sync", RELAY_SERVER_METRIC, "server")
    data.utilisation = utilisation(samples, _start(records))
    _say_what_is_missing(data, unreadable_records)
    return data


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def first_and_last(rewards: Sequence[float]) -> tuple[float | None, float | None]:
    """Means over the first and the last steps. A run too short for both windows is parted in its middle, so that they share no step.

    Args:
        rewards: one mean reward a step, in order.

    Returns:
        Both None for no step; of a single step its reward, twice.
    """
    first = min(REWARD_START_STEPS, max(1, len(rewards) // 2))
    last = min(REWARD_END_STEPS, max(1, len(rewards) - first))
    return mean(rewards[:first]), mean(rewards[-last:])


def _rewards(data: ReportData) -> None:
    rewards = [metrics.task_reward for metrics in data.steps if metrics.trained and not metrics.supervised]
    data.reward_start, data.reward_end = first_and_last(rewards)
    if len(rewards) == 1:
        data.notes.append("only one step: its reward is both reward_start and reward_end")
    data.completion_tokens = sum(metrics.completion_tokens for metrics in data.steps)


def _sampled_rewards(data: ReportData, facts: StoreFacts, vine: VineSettings | None) -> None:
    """Mean task reward over every accepted rollout of the first and last steps, also of groups that the online filter dropped.
    Continuations are none.

    The trained rewards cannot rise past what groups with signal have: a group that is all right is dropped.
    """
    sampled: dict[int, list[float]] = {}
    for verdict in facts.verdicts:
        if verdict.outcome == "accept":
            own = verdict.rewards[: completions_of(len(verdict.rewards), verdict.step, vine)]
            rewards = [row.task_reward for row in own if row.task_reward is not None]
            sampled.setdefault(verdict.step, []).extend(rewards)
    means = [mean(sampled[metrics.step]) for metrics in data.steps if sampled.get(metrics.step)]
    known = [value for value in means if value is not None]
    data.sampled_reward_start, data.sampled_reward_end = first_and_last(known)


def _files(data: ReportData, facts: StoreFacts) -> None:
    data.files = Counter(verdict.outcome for verdict in facts.verdicts)
    data.reject_reasons = Counter(verdict.reason for verdict in facts.verdicts if verdict.reason)
    data.ledger = dict(facts.ledger_kinds)
    data.versions = facts.versions
    data.groups_used = sum(batch.groups for batch in facts.batches)
    data.groups_dropped = sum(batch.groups_dropped for batch in facts.batches)
    if claimed := sum(verdict.claimed_rows for verdict in facts.verdicts):
        data.notes.append(
            f"{claimed} rows have the reward that their worker claimed: their environment's scores cannot be made again, and no validator did"
        )
    if faults := together(verdict.answers.turn_faults for verdict in facts.verdicts if verdict.answers is not None):
        data.notes.append(faults.text)
    if by_turn := [len(row.turns) for verdict in facts.verdicts for row in verdict.rewards if row.turns is not None]:
        data.notes.append(
            f"credit goes by turns (`recipe.credit: Turn`): {len(by_turn)} rows have a reward for each of their {sum(by_turn)} turns"
        )
    compared: tuple[tuple[str, EntryKind], ...] = (("accept", "accepted"), ("reject", "rejected"))
    for outcome, entry in compared:
        if facts.ledger_kinds and facts.ledger_kinds[entry] != data.files[outcome]:
            data.notes.append(
                f"the ledger has {facts.ledger_kinds[entry]} entries '{entry}', the store {data.files[outcome]} verdicts "
                f"'{outcome}'; the report counts verdicts"
            )


def _start(records: Sequence[AnyRecord]) -> float:
    return min((record.unix for record in records), default=0.0)


Samples = dict[tuple[str, str], list[SampleRecord]]


def busy_seconds(samples: Samples) -> dict[str, float]:
    """CPU seconds (user and system) of each part, over all its pods and restarts, up to the last reading."""
    total: dict[str, float] = defaultdict(float)
    for (pod, container), readings in samples.items():
        if cpu := cpu_readings(readings):
            total[part_of(pod, container)] += total_increase(cpu)
    return {part: round(seconds, 2) for part, seconds in sorted(total.items())}


def phase_seconds(samples: Samples) -> dict[str, dict[str, float]]:
    """Wall-clock seconds of each part by phase, from its own `shoal_busy_seconds_total`."""
    total: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (pod, container), readings in samples.items():
        for key in _keys(readings, BUSY_METRIC):
            phase = metric_labels(key)[1].get("phase", "")
            total[part_of(pod, container)][phase] += total_increase(readings_of(readings, key))
    return {
        part: {phase: round(seconds, 2) for phase, seconds in sorted(phases.items())}
        for part, phases in sorted(total.items())
    }


def bytes_broadcast(samples: Samples) -> int | None:
    """Bytes that relays served to nodes, from their access logs' counters; None when no relay was ever read.

    This counter is saved with the log and goes on when its process is started again: only a value that fell is a new beginning.
    """
    found: list[float] = []
    for (_, container), readings in samples.items():
        if container == "sync":
            for key in _keys(readings, BYTES_SERVED_METRIC):
                lasting = [(unix, None, value) for unix, _, value in readings_of(readings, key)]
                found.append(total_increase(lasting))
    return round(sum(found)) if found else None


def _label_values(samples: Samples, part: str, metric: str, label: str) -> str | None:
    """Values of a label over all pods, without a version after `/`; several are joined, so that a mixture is seen."""
    names = {
        metric_labels(key)[1].get(label, "").partition("/")[0]
        for (_, container), readings in samples.items()
        if container == part
        for key in _keys(readings, metric)
    }
    return "+".join(sorted(names - {""})) or None


def _keys(readings: Sequence[SampleRecord], name: str) -> list[str]:
    return sorted({key for sample in readings for key in sample.metrics if key.partition("{")[0] == name})


def utilisation(samples: Samples, start_unix: float) -> dict[str, Series]:
    """Share of time at work, by part, in bins of `UTILISATION_BIN_SECONDS`: trainer, and the mean over the workers.

    Work is what the part counts as busy (all phases but waiting). A bin has a value only when it was read from first to last.
    """
    found: dict[str, Series] = {}
    for part in ("trainer", "worker"):
        work: dict[int, float] = defaultdict(float)
        covered: dict[int, float] = defaultdict(float)
        for (pod, container), readings in samples.items():
            if part_of(pod, container) != part:
                continue
            names = [
                key
                for key in _keys(readings, BUSY_METRIC)
                if not metric_labels(key)[1].get("phase", "").startswith(WAITING_PHASES)
            ]
            if not names:
                continue
            totals = [
                (sample.unix, sample.pid, sum(sample.metrics.get(key, 0.0) for key in names))
                for sample in readings
                if sample.metrics
            ]
            for begin, end, increase in increases(totals):
                if end > begin:
                    _spread(work, covered, begin - start_unix, end - start_unix, increase)
        series = [
            ((number + 0.5) * UTILISATION_BIN_SECONDS, min(1.0, work[number] / covered[number]))
            for number in sorted(covered)
            if covered[number] > 0.5 * UTILISATION_BIN_SECONDS
        ]
        if series:
            found[part] = series
    return found


def _spread(work: dict[int, float], covered: dict[int, float], begin: float, end: float, increase: float) -> None:
    """Share an increase out over the bins between two readings, evenly in time."""
    first, last = int(begin // UTILISATION_BIN_SECONDS), int(end // UTILISATION_BIN_SECONDS)
    for number in range(first, last + 1):
        low = max(begin, number * UTILISATION_BIN_SECONDS)
        high = min(end, (number + 1) * UTILISATION_BIN_SECONDS)
        if high > low:
            work[number] += increase * (high - low) / (end - begin)
            covered[number] += high - low


def _say_what_is_missing(data: ReportData, unreadable_records: int) -> None:
    if not data.steps:
        data.notes.append("no step was trained: rewards and curves are missing")
    for value, what in (
        (data.bytes_broadcast, "bytes_broadcast: no counter of a relay was read"),
        (data.engine, f"engine: no worker's {ENGINE_METRIC} was read"),
        (data.relay, f"relay: no relay's {RELAY_SERVER_METRIC} was read"),
        (data.wall_seconds, "wall_seconds: there are no readings of a session"),
        (data.busy_seconds or None, "busy_seconds: no process's CPU time was read"),
        (data.phase_seconds or None, f"phase_seconds: no part's {BUSY_METRIC} was read"),
        (data.model, "model: no trained version was exported"),
    ):
        if value is None:
            data.notes.append(f"missing: {what}")
    if data.steps and len(data.steps) != data.steps[-1].step + 1:
        data.notes.append(f"metrics of {data.steps[-1].step + 1 - len(data.steps)} earlier steps are missing")
    if untrained := [metrics.step for metrics in data.steps if not metrics.trained]:
        data.notes.append(
            f"steps that trained nothing (rolled back, or without usable rows) are left out of the curves: {untrained}"
        )
    if unreadable_records:
        data.notes.append(f"{unreadable_records} truncated or unreadable lines of metrics.jsonl were left out")
