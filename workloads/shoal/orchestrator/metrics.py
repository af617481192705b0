"""The orchestrator's metrics: the run's aggregates, read from its state once a round, and counters of its services.

In: `RunState`. Out: gauges and counters. Called by `background` and, for the counters, by the services. Series of single nodes are few: the run's
own, and strangers that have files accepted, because keys are free and anybody may come with new ones all day.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge

from shoal.contracts.answers import LearningProgress
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.orchestrator.evaluation import evaluations
from shoal.orchestrator.nodes.registry import NodeRecord
from shoal.orchestrator.progress import run_progress
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.work import program_time
from shoal.orchestrator.work.open_work import openable_steps
from shoal.sampling.curriculum import POOLS

SHOWN_NODES = 64
"""Nodes with series of their own: enough for a dashboard, and a bound on what strangers can put into Prometheus."""
NODE_LABEL_LENGTH = 12  # of the key in hex, as in logs

STEP = Gauge("shoal_open_step", "The open step, -1 while none is open.")
STEPS = Gauge("shoal_run_steps", "Steps of the run.")
COMPLETE = Gauge("shoal_run_complete", "1 when the run is complete.")
PROGRESS = Gauge("shoal_run_progress", "Announced versions plus sealed steps; grows in every mode.")
VERSION = Gauge("shoal_latest_version", "The newest announced policy version, -1 before the first.")
FILES = Gauge("shoal_files", "Submitted files by outcome.", ["outcome"])
REJECTED = Gauge("shoal_rejected_files", "Rejected files by reason.", ["reason"])
NODES = Gauge("shoal_nodes", "Nodes by state.", ["state"])
GROUPS = Gauge("shoal_step_groups", "Groups of the open step.", ["kind"])
JUDGED = Gauge("shoal_judged_groups", "Accepted groups of the run that the online filter kept or dropped.", ["outcome"])
POOL_PROBLEMS = Gauge("shoal_curriculum_problems", "Problems of each pool, as the open step draws from them.", ["pool"])
POOL_RATE = Gauge("shoal_curriculum_solve_rate", "Mean solve rate of each pool's problems.", ["pool"])
POOL_GROUPS = Gauge(
    "shoal_curriculum_groups",
    "Groups of each pool in the steps that the orchestrator sealed since its start.",
    ["pool"],
)
STALLED = Gauge("shoal_stalled_on_signal", "1 when the open step was sampled as often as it may be and lacks signal.")
LEARNING = Gauge(
    "shoal_learning", "1 when the newest groups carry signal, 0 when none does, -1 while too few were judged to tell."
)
ANSWERS = Gauge("shoal_answers_ratio", "Shares of the newest answers of training steps.", ["outcome"])
ALIKE = Gauge(
    "shoal_groups_alike_ratio", "Shares of the newest groups whose answers are all right or all wrong.", ["outcome"]
)
ACCEPTED_TOKENS = Gauge("shoal_accepted_completion_tokens", "Completion tokens of accepted files.")
SCORE = Gauge(
    "shoal_evaluation_score", "Mean score (avg@k) of the newest version that was fully scored.", ["benchmark"]
)
SCORE_BOUND = Gauge(
    "shoal_evaluation_score_bound", "Lower and upper end of its 95 % interval over tasks.", ["benchmark", "bound"]
)
BELOW_BEST = Gauge(
    "shoal_evaluation_below_best",
    "1 when its interval lies below that of the best version so far.",
    ["benchmark"],
)
UNFINISHED = Gauge(
    "shoal_evaluation_unfinished", "Versions whose evaluation ended before every task was answered.", ["benchmark"]
)
SCORED = Gauge("shoal_evaluation_version", "Newest version that was fully scored.", ["benchmark"])
SCORING = Gauge("shoal_evaluation_open_slices", "Files that evaluations in progress still need.")
BEST = Gauge("shoal_evaluation_best_version", "Version with the best score so far, -1 before the first.")
LEDGER = Gauge("shoal_ledger_entries", "Entries of the ledger.")
QUEUE_FILES = Gauge("shoal_validation_queue_files", "Files that wait for a verdict or are being checked.")
QUEUE_AGE = Gauge("shoal_validation_queue_age_seconds", "Age of the file that waits longest for a verdict, or 0.")
FALSE_REJECT = Gauge(
    "shoal_false_reject_ratio",
    "Share of honest files that the thresholds reject, from the model's calibration.",
    ["estimate"],
)

NODES_REGISTRY = CollectorRegistry()
"""Series of single nodes: served on a port of their own, which no Service of a run exposes. Strangers reach the orchestrator's other port."""
NODE_METRICS_PORT = 9108

NODE_SILENCE = Gauge(
    "shoal_node_silence_seconds", "Time since the last heartbeat.", ["node", "pool"], registry=NODES_REGISTRY
)
NODE_VERSION = Gauge(
    "shoal_node_policy_version",
    "Version that the node reports to hold; -1: none.",
    ["node", "pool"],
    registry=NODES_REGISTRY,
)
NODE_RATE = Gauge(
    "shoal_node_tokens_per_second", "Sampling rate that the node claims.", ["node", "pool"], registry=NODES_REGISTRY
)
NODE_STREAK = Gauge(
    "shoal_node_accepted_in_a_row",
    "Files accepted since the last rejected one.",
    ["node", "pool"],
    registry=NODES_REGISTRY,
)
NODE_ABANDONED = Gauge(
    "shoal_node_abandoned_leases", "Leases that ended without a file.", ["node", "pool"], registry=NODES_REGISTRY
)
NODE_PROGRAMS = Gauge(
    "shoal_node_program_seconds",
    "CPU seconds that programs and judges of the node's files took validators; of those an hour ago 37 % count.",
    ["node", "pool"],
    registry=NODES_REGISTRY,
)
OF_NODES = (NODE_SILENCE, NODE_VERSION, NODE_RATE, NODE_STREAK, NODE_ABANDONED, NODE_PROGRAMS)

HEARTBEATS = Counter("shoal_heartbeats_total", "Accepted heartbeats, by the node's state.", ["state"])
LEASES = Counter(
    "shoal_leases_total",
    "Lease requests: granted, refused by the node's hourly quota (quota), or refused for another reason, mostly a full step.",
    ["outcome"],
)
UPLOADS = Counter(
    "shoal_upload_grants_total",
    "Upload requests: granted, refused by the node's hourly quota (quota), or refused for another reason.",
    ["outcome"],
)
for _counter in (LEASES, UPLOADS):
    for _outcome in (
        "granted",
        "quota",
        "refused",
    ):  # from the start: a rate misses the first of a series that begins with it
        _counter.labels(_outcome)
SUBMISSIONS = Counter("shoal_submissions_total", "Files that nodes confirmed, by answer.", ["status"])
SUBMITTED_BYTES = Counter("shoal_submitted_bytes_total", "Bytes of confirmed files, by answer.")


@contextmanager
def counted(asked: Counter) -> Iterator[None]:
    """Count the answer that the block gives, by outcome, in `LEASES` or `UPLOADS`."""
    try:
        yield
    except Refusal as refusal:
        asked.labels("quota" if refusal.code in (ProblemCode.QUOTA_USED, ProblemCode.QUOTA_LEASED) else "refused").inc()
        raise
    asked.labels("granted").inc()


def report(state: RunState) -> None:
    """Put the aggregates into the metrics."""
    progress = run_progress(state)
    STEP.set(progress.open_step if progress.open_step is not None else -1)
    STEPS.set(progress.steps_total)
    COMPLETE.set(progress.complete)
    newest = -1 if progress.latest_version is None else progress.latest_version
    VERSION.set(newest)
    PROGRESS.set(newest + 1 + len(state.view.sealed))
    for outcome in ("accepted", "rejected", "expired", "inconclusive", "pending"):
        FILES.labels(outcome).set(getattr(progress, f"files_{outcome}"))
    for reason, count in progress.reject_reasons.items():
        REJECTED.labels(reason).set(count)
    for kind in ("accepted", "needed", "pending"):
        GROUPS.labels(kind).set(getattr(progress, f"{kind}_groups"))
    JUDGED.labels("kept").set(progress.groups_accepted_total)
    JUDGED.labels("dropped").set(progress.groups_dropped_total)
    STALLED.set(bool(progress.stalled_on_signal))
    if progress.learning is not None:
        _report_learning(progress.learning)
    ACCEPTED_TOKENS.set(progress.completion_tokens_accepted)
    NODES.clear()
    for state_name, number in progress.nodes.items():
        NODES.labels(state_name).set(number)
    _report_scores(state)
    _report_pools(state)
    SCORING.set(sum(scored.slices - scored.slices_done for scored in progress.evaluations if not scored.ended))
    BEST.set(progress.best_version.version if progress.best_version is not None else -1)
    LEDGER.set(state.view.next_number)
    honest = progress.proofs.honest if progress.proofs is not None else None
    if honest is not None:
        FALSE_REJECT.labels("measured").set(honest.rejected_files.share)
        FALSE_REJECT.labels("upper_bound").set(honest.rejected_files.high)


def _report_pools(state: RunState) -> None:
    """What a curriculum draws from, and how much it drew; nothing in a run without one."""
    curriculum = state.codec.curriculum
    steps = openable_steps(state)
    if curriculum is None or not steps:
        return
    pools = curriculum.of(steps[0])
    for name, rows, rate in zip(POOLS, pools.rows, pools.rates, strict=True):
        POOL_PROBLEMS.labels(name).set(len(rows))
        POOL_GROUPS.labels(name).set(state.pool_groups[name])
        if rate is not None:
            POOL_RATE.labels(name).set(rate)


def _report_learning(learning: LearningProgress) -> None:
    LEARNING.set(-1 if not learning.decided else int(learning.reason is None))
    for outcome, share in (
        ("right", learning.right),
        ("cut", learning.cut),
        ("unscorable", learning.unscorable),
        ("unanswered", learning.unanswered),
    ):
        if share is not None:
            ANSWERS.labels(outcome).set(share)
    ALIKE.labels("right").set(learning.groups_right)
    ALIKE.labels("wrong").set(learning.groups_wrong)


def _report_scores(state: RunState) -> None:
    for benchmark, newest in evaluations.standings(state).items():
        SCORE.labels(benchmark).set(newest.avg_at_k)
        SCORED.labels(benchmark).set(newest.version)
        for bound, value in zip(("low", "high"), newest.interval, strict=True):
            SCORE_BOUND.labels(benchmark, bound).set(value)
        BELOW_BEST.labels(benchmark).set(newest.below_best)
    for benchmark, number in evaluations.unfinished(state).items():
        UNFINISHED.labels(benchmark).set(number)


def report_details(state: RunState) -> None:
    """Gauges that need every node and every waiting file: less often."""
    QUEUE_FILES.set(state.queue.size())
    oldest = state.queue.oldest_unix()
    QUEUE_AGE.set(0.0 if oldest is None else max(0.0, state.clock() - oldest))
    credit = state.view.accepted_in_a_row
    shown = [
        record
        for record in state.nodes.all()
        if record.last_heartbeat_unix > 0 and (record.outside is False or credit.get(record.node, 0) > 0)
    ]
    shown.sort(key=lambda record: (record.outside is not False, -credit.get(record.node, 0), record.node))
    for gauge in OF_NODES:
        gauge.clear()
    for record in shown[:SHOWN_NODES]:
        _report_node(state, record)


def _report_node(state: RunState, record: NodeRecord) -> None:
    labels = (record.node[:NODE_LABEL_LENGTH], record.pool)
    NODE_SILENCE.labels(*labels).set(max(0.0, state.clock() - record.last_heartbeat_unix))
    NODE_VERSION.labels(*labels).set(-1 if record.policy_version is None else record.policy_version)
    claimed = record.metrics.get("worker_tokens_per_second", 0.0)
    NODE_RATE.labels(*labels).set(claimed if math.isfinite(claimed) else 0.0)
    NODE_STREAK.labels(*labels).set(state.view.accepted_in_a_row.get(record.node, 0))
    NODE_ABANDONED.labels(*labels).set(record.abandoned_leases)
    NODE_PROGRAMS.labels(*labels).set(program_time.used(record, state.clock()))
