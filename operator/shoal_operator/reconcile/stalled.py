"""Whether a run makes no progress, since when, and the cause: from what its orchestrator says and what its parts are. Pure.

Progress is more of what the run is for: a version, a step, a group with signal, an accepted file where each counts. It is seen by comparison with the
figures of the status before, so a restarted orchestrator, which says the same again, is none. Of several causes the first in the order of
work is named: store, orchestrator, trainer, signal, relays, validators, workers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from shoal.contracts.datasets import Mode
from shoal.contracts.protocol import RunProgress
from shoal.text import duration
from shoal_operator.children.training_run import Stage
from shoal_operator.engine.cluster import Object
from shoal_operator.engine.conditions import Condition, condition, is_true
from shoal_operator.reconcile.components import ComponentPart, State, component_state, counts
from shoal_operator.reconcile.decisions import bounded_time, parse_time, rfc3339

GROWING = ("policyVersion", "step", "groupsKept", "epoch", "bestVersion")
"""Figures of a status that grow with the run."""
PROGRESS_SECONDS = 3_600
"""`spec.progressDeadlineSeconds`, where it is absent."""
PREPARE_SECONDS = 21_600
"""Longest that a Job of prepare which works may take: 65 GB at 100 Mbit/s and 285,000 tasks take under two hours on slow disks."""
ENDS: Mapping[str, Stage] = {"Complete": "complete", "Failed": "failed"}
"""Stages of which nothing more is expected, by the condition that says so."""
BEFORE_WORK = ("Redis", "Discovery", "Orchestrator")
PAUSED = "paused"
"""How the trainer's phase begins while it waits for a person (contracts/recipe.py, Stability.action)."""


@dataclass(frozen=True)
class StallCause:
    """Why a run stands: one CamelCase word, what it is, and what to do."""

    reason: str
    what: str
    remedy: str


@dataclass(frozen=True)
class Stall:
    """A run that stands, since when, and for longer than how many seconds."""

    cause: StallCause
    since: str
    allowed_seconds: int

    @property
    def text(self) -> str:
        """What is wrong, since when, what to do."""
        return (
            f"no progress since {self.since}, for more than {duration(self.allowed_seconds)}: {self.cause.what};"
            f" {self.cause.remedy}"
        )


@dataclass(frozen=True)
class WorkSeen:
    """What a cause is found in.

    Attributes:
        waits_for: what keeps children from being made, in words; empty for nothing.
        waits_well: that is another run, which works.
        prepare: name of the Job of prepare.
        prepare_problem: reason and message of what keeps it from working.
        store_goes: why the store goes away, in words; empty while it stays.
    """

    stage: Stage
    parts: tuple[ComponentPart, ...]
    progress: RunProgress | None
    waits_for: str = ""
    waits_well: bool = False
    prepare: str = ""
    prepare_problem: tuple[str, str] | None = None
    store_goes: str = ""


def grown(before: Mapping[str, Any], after: Mapping[str, Any], mode: Mode) -> bool:
    """Whether a status says more than the one before. Of accepted files only those count that are not sampled for a training step."""
    names = GROWING if mode == "Train" and after.get("step") is not None else (*GROWING, "accepted")
    pairs = [(before.get(name), after.get(name)) for name in names]
    for nested, name in (("dataset", "slicesCollected"), ("islands", "round")):
        pairs.append(((before.get(nested) or {}).get(name), (after.get(nested) or {}).get(name)))
    return any(new is not None and new > (-1 if old is None else old) for old, new in pairs)


def last_progress(
    before: Mapping[str, Any], after: Mapping[str, Any], mode: Mode, *, anew: bool, earliest: str | None, now: datetime
) -> str:
    """When the run made progress last, RFC 3339. `anew`: it has just begun to work. Without an earlier time the clock starts now."""
    if anew or grown(before, after, mode):
        return rfc3339(now)
    return bounded_time(before.get("lastProgressTime"), earliest, now) or rfc3339(now)


def is_due(seen: WorkSeen) -> bool:
    """Whether progress is expected of the run itself: not while it rests or is queued, nor while another run works for it.

    Its clock starts when that ends.
    """
    return seen.stage in ("running", "preparing") and not seen.waits_well


def stall(seen: WorkSeen, since: str | None, deadline_seconds: int | None, now: datetime) -> Stall | None:
    """The stall of a run of which progress is expected; None while its time is not up."""
    deadline_seconds = deadline_seconds or PROGRESS_SECONDS
    works = seen.stage == "preparing" and not seen.waits_for and seen.prepare_problem is None
    allowed = max(deadline_seconds, PREPARE_SECONDS) if works else deadline_seconds
    began = parse_time(since)
    if since is None or began is None or now < began + timedelta(seconds=allowed):
        return None
    return Stall(stall_cause(seen), since, allowed)


def stall_of_failing(live: Object, failure: Condition, now: datetime) -> tuple[str | None, Condition]:
    """Time of the last progress and the condition `Stalled` of a run whose reconcile fails with this condition.

    Its figures are not compared meanwhile. Without a time its clock starts now.
    """
    if live["spec"].get("suspend"):
        return None, stalled_condition("suspended", None)
    for kind, stage in ENDS.items():
        if is_true(live, kind):
            return None, stalled_condition(stage, None)
    since = bounded_time(live.get("status", {}).get("lastProgressTime"), None, now) or rfc3339(now)
    began, allowed = parse_time(since) or now, live["spec"].get("progressDeadlineSeconds", PROGRESS_SECONDS)
    if not is_true(live, "Prepared"):
        allowed = max(allowed, PREPARE_SECONDS)
    if now < began + timedelta(seconds=allowed):
        return since, stalled_condition("running", None)
    cause = StallCause(failure["reason"], failure["message"], "see Ready")
    return since, stalled_condition("running", Stall(cause, since, allowed))


def stalled_condition(stage: Stage, found: Stall | None) -> Condition:
    """The condition `Stalled`."""
    if found is not None:
        return condition("Stalled", True, found.cause.reason, found.text)
    return condition("Stalled", False, "Progressing" if stage in ("running", "preparing") else stage.capitalize())


def stall_cause(seen: WorkSeen) -> StallCause:
    """The first thing, in the order of work, without which nothing after it can go on."""
    if seen.waits_for:
        return StallCause("Waiting", seen.waits_for, "make what it waits for")
    if seen.stage == "preparing":
        return _prepare_cause(seen)
    if seen.store_goes:
        return StallCause("StoreAway", seen.store_goes, "then start a run on the copy")
    progress = seen.progress
    if progress is None:
        return _silent_cause(seen)
    if progress.store_away_since is not None:
        since = rfc3339(datetime.fromtimestamp(progress.store_away_since, UTC))
        return StallCause(
            "StoreAway",
            f"the store has not answered the orchestrator since {since}",
            "look at the store and its credentials (spec.storage), and at the orchestrator's log",
        )
    return _trainer_cause(seen, progress) or _signal_cause(progress) or _files_cause(seen, progress)


def _prepare_cause(seen: WorkSeen) -> StallCause:
    if seen.prepare_problem is not None:
        reason, message = seen.prepare_problem
        return StallCause(reason, f"Job {seen.prepare}: {message}", "remove what keeps its pods")
    return StallCause("PrepareSlow", f"Job {seen.prepare} has not ended", "read its log")


def _silent_cause(seen: WorkSeen) -> StallCause:
    for component in BEFORE_WORK:
        if not (state := component_state(component, seen.parts)).ready:
            return StallCause("OrchestratorSilent", f"{component}: {state.message}", f"see {component}Ready")
    return StallCause(
        "OrchestratorSilent",
        "the orchestrator's pod is ready and does not say how far the run is",
        "read its log, and let the operator reach its port",
    )


def _trainer_cause(seen: WorkSeen, progress: RunProgress) -> StallCause | None:
    if progress.trainer_phase == PAUSED:
        note = progress.trainer_note or "the trainer has paused"
        return StallCause("Paused", note, "set spec.stability.acknowledgedVersion to continue")
    for component in ("Trainer", "Island"):
        if not (state := component_state(component, seen.parts)).ready:
            return StallCause("TrainerPending", f"{component}: {state.message}", f"see {component}Ready")
    scored = progress.latest_version is not None and progress.latest_version >= progress.steps_total
    if progress.open_step is not None or scored or progress.dataset is not None:
        return None
    phase = f" (phase {progress.trainer_phase})" if progress.trainer_phase else ""
    waits = f" while the run waits for {progress.waiting_for}" if progress.waiting_for else ""
    return StallCause("TrainerWaiting", f"the trainer{phase} finishes no step{waits}", "read the trainer's log")


def _signal_cause(progress: RunProgress) -> StallCause | None:
    if progress.stalled_on_signal:
        return StallCause("NoSignal", progress.stalled_on_signal, "see the condition Learning")
    known = progress.learning
    if known is not None and known.reason is not None:
        return StallCause("NoSignal", known.message, "see status.answers")
    return None


def _files_cause(seen: WorkSeen, progress: RunProgress) -> StallCause:
    """Why no file is accepted: sent, fetched, sampled, judged."""
    lacks = {name: _lacking(name, seen.parts) for name in ("RelayServer", "Validator", "InferencePool", "Runner")}
    if (relay := lacks["RelayServer"]) is not None:
        return StallCause("NoRelay", f"no relay is ready: {relay.message}", "see RelayServerReady")
    waiting = f"{progress.files_pending} files wait for a verdict"
    if progress.files_pending and (validator := lacks["Validator"]) is not None:
        return StallCause(
            "NoValidator", f"{waiting} and no validator is ready: {validator.message}", "see ValidatorReady"
        )
    if progress.files_pending and (runner := lacks["Runner"]) is not None:
        return StallCause("NoRunner", f"{waiting} and no runner is ready: {runner.message}", "see RunnerReady")
    if progress.files_pending:
        return StallCause("ValidationQueue", f"{waiting} and none is accepted", "read the validators' logs")
    healthy = progress.nodes.get("Healthy", 0)
    if not healthy:
        pool = lacks["InferencePool"]
        why = f": {pool.message}" if pool is not None else ""
        return StallCause(
            "NoWorker", f"no node is healthy{why}", "see InferencePoolReady and the agents' logs, or scale a pool"
        )
    if (validator := lacks["Validator"]) is not None:
        return StallCause("NoValidator", f"no validator is ready: {validator.message}", "see ValidatorReady")
    refused = ", ".join(f"{reason} {times}" for reason, times in sorted(progress.reject_reasons.items()))
    return StallCause(
        "NoFileAccepted",
        f"{healthy} nodes are healthy and no file of theirs is accepted ({refused or 'none was rejected'})",
        "read the workers' logs",
    )


def _lacking(component: str, parts: tuple[ComponentPart, ...]) -> State | None:
    """Why a component that the run has is without a single ready pod; None for one that has some, or that the run lacks."""
    own = [part for part in parts if part.component == component]
    if not own or any(counts(part.workload)[1] for part in own):
        return None
    wanted = sum(counts(part.workload)[0] for part in own)
    state = component_state(component, own)
    return state if wanted and not state.ready else State(False, "NoPods", "none is asked for")
