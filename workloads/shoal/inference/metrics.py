"""What a worker counts, for Prometheus on its own port and, as plain numbers, for the node's heartbeat."""

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

TOKENS = Counter("shoal_worker_completion_tokens_total", "Completion tokens sampled, those of lost leases too.")
LOST = Counter(
    "shoal_worker_lost_tokens_total",
    "Completion tokens sampled for leases that were given back, or whose file nobody took, or again under newer weights (swap), by cause.",
    ["reason"],
)
RESUMED = Counter(
    "shoal_worker_resumed_tokens_total", "Completion tokens taken over from the process before, out of its journal."
)
ROLLOUTS = Counter("shoal_worker_rollouts_total", "Completions generated.")
CONTINUATIONS = Counter(
    "shoal_worker_continuations_total",
    "Continuations of completions generated (algorithm vineppo); their tokens count.",
)
SUBMISSIONS = Counter("shoal_worker_submissions_total", "Files handed to the agent, by its answer.", ["status"])
TOOL_CALLS = Counter("shoal_worker_tool_calls_total", "Calls of tools: answered, unanswered or failed.", ["outcome"])
RETURNED = Counter(
    "shoal_worker_returned_total",
    "Leases without a file, by cause: leaving, sealed, tool, late (its time is over, or would be), failed or refused (its file), swap"
    " (the weights are too new for it).",
    ["reason"],
)
REASONS = ("leaving", "sealed", "tool", "late", "failed", "refused", "swap")
USES = ("row", "no-lease", "swap", "upload", "tail", "no-version")
SLOT_SECONDS = Counter(
    "shoal_worker_slot_seconds_total",
    "Seconds of the engine's places for sequences, by use: a row, or why none is there. Occupancy is the share of use row.",
    ["use"],
)
ENGINE_IDLE_SECONDS = Counter(
    "shoal_worker_engine_idle_seconds_total", "Seconds in which the engine decoded nothing, by cause.", ["cause"]
)
OPEN_LEASES = Gauge("shoal_worker_open_leases", "Leases that the worker has: generated, scored or handed in.")
# From the start: a rate misses the first of a series that begins with it.
for _reason in REASONS:
    RETURNED.labels(_reason)
    LOST.labels(_reason)
for _use in USES:
    SLOT_SECONDS.labels(_use)
    if _use != "row":
        ENGINE_IDLE_SECONDS.labels(_use)
POLICY_VERSION = Gauge("shoal_worker_policy_version", "Policy version in the engine.")
GENERATED_PER_SECOND = Gauge("shoal_worker_tokens_per_second", "Tokens per second between the last two files.")
POLICY_LAG = Gauge(
    "shoal_worker_policy_lag_steps", "Step that the worker samples for, minus the version in the engine."
)
RUNNING = Gauge("shoal_worker_running_sequences", "Sequences that the engine decodes now.")
WAITING = Gauge("shoal_worker_waiting_sequences", "Rows of open leases that wait for a place in the engine.")
SWAP_SECONDS = Histogram(
    "shoal_worker_swap_seconds",
    "Time that the engine took to continue with another version; exemplars name the version.",
    buckets=(0.03, 0.1, 0.3, 1, 3, 10, 30, 100),  # a tiny model on a CPU; tens of gigabytes from a slow disk
)
PROOF_WAIT_SECONDS = Histogram(
    "shoal_worker_proof_wait_seconds",
    "Time from a completion's last token to its proofs.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
)
COMPLETION_TOKENS = Histogram(
    "shoal_worker_completion_length_tokens",
    "Sampled tokens of a completion; exemplars name the step.",
    buckets=(16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),  # to the paper's longest sequence
)

ENGINE = Gauge("shoal_engine_info", "1 for the engine of this worker.", ["engine", "version"])

PHASES = ("start", "swap", "generate", "score", "submit")
"""Phases of `shoal_busy_seconds_total` in this process."""


def heartbeat_metrics() -> dict[str, float]:
    """The numbers that the orchestrator is told; names as in `Heartbeat.metrics`."""
    values = {
        "worker_completion_tokens": _value("shoal_worker_completion_tokens_total"),
        "worker_rollouts": _value("shoal_worker_rollouts_total"),
        "worker_policy_version": _value("shoal_worker_policy_version"),
        "worker_tokens_per_second": _value("shoal_worker_tokens_per_second"),
    }
    for phase in PHASES:
        values[f"worker_busy_{phase}_seconds"] = _value("shoal_busy_seconds_total", {"phase": phase})
    return values


def _value(name: str, labels: dict[str, str] | None = None) -> float:
    return REGISTRY.get_sample_value(name, labels or {}) or 0.0
