"""The status of a TrainingRun from what was observed: figures from the orchestrator, the conditions of the whole, and one a component. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from shoal.contracts.answers import LearningProgress
from shoal.contracts.datasets import Mode
from shoal.contracts.evaluation import EvaluationProgress
from shoal.contracts.proof_profile import ProofTerms
from shoal.contracts.protocol import RunProgress
from shoal.contracts.roster import HOLDERS, KeyHolder, Roster
from shoal.contracts.signed import Signed
from shoal.planner.findings import Misfit
from shoal.text import duration
from shoal_operator.api.keys import FINGERPRINT_DIGITS
from shoal_operator.api.last_words import LastWords
from shoal_operator.api.training_run import AnswerShown, AnswersStatus
from shoal_operator.children.training_run import Stage
from shoal_operator.engine.apply import job_state
from shoal_operator.engine.cluster import Cluster, Object
from shoal_operator.engine.conditions import Condition, condition
from shoal_operator.reconcile.components import (
    BESIDE,
    COMPONENTS,
    ComponentPart,
    component_conditions,
    component_counts,
    component_state,
    counts,
)
from shoal_operator.reconcile.decisions import TrainerAttempt
from shoal_operator.reconcile.island_status import exchanging, islands_status
from shoal_operator.reconcile.last_words import said_of
from shoal_operator.reconcile.queue import QueueTurn
from shoal_operator.reconcile.releases import Upgrade
from shoal_operator.reconcile.stalled import PAUSED, Stall, stalled_condition

FIGURES = (
    "step",
    "reward",
    "gradientNorm",
    "clipRatio",
    "policyLag",
    "epoch",
    "loss",
    "heldOutLoss",
    "groupsKept",
    "groupsDropped",
    "answers",
    "revisions",
    "dataset",
    "bestVersion",
    "bestScore",
    "scores",
    "accepted",
    "rejected",
    "slashed",
    "nodes",
    "etaSeconds",
    "eta",
    "proofs",
    "islands",
)
HEARD = (*FIGURES, "policyVersion")
"""What the orchestrator says. Nobody else is believed, while this process has heard it once (`as_heard`)."""
OF_TRAINER = ("dataset", "islands", "epoch", "loss", "heldOutLoss")
"""Figures that a restarted orchestrator lacks until the trainer reports again."""
OF_LEDGER = ("step", "groupsKept", "accepted")
"""Figures that grow and that a restarted orchestrator lacks until it has read the ledger, where it finds the newest version too."""
WORK: Mapping[Mode, str] = {"Train": "Training", "Generate": "Generating", "SFT": "Training"}
LABELS = {"InferencePool": "pool", "RelayServer": "relay"}
"""Labels of components' pods where they are not the component's name."""
MOST_TEXT = 4000
"""Characters of a condition's message; an API server takes 32,768."""


@dataclass(frozen=True)
class Failure:
    """Why a run has failed: one CamelCase word, and the same for people. Both empty when it has not."""

    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Findings:
    """What a status is made from."""

    stage: Stage
    mode: Mode
    steps: int | None
    prepare: Object | None
    prepared: bool
    prepare_problem: tuple[str, str] | None
    parts: tuple[ComponentPart, ...]
    progress: RunProgress | None
    latest_version: int | None
    failure: Failure
    waits_for: str
    volumes: Condition | None
    """`VolumesReady`; None where volumes are plain folders."""
    exposed: Condition | None
    """`Exposed`; None where no Gateway lets clients in."""
    run_key: str
    roster: Signed[Roster]
    run_keys_away: tuple[str, ...]
    attempt: TrainerAttempt
    start_time: str | None
    completion_time: str | None
    endpoint: str | None
    island_key: str | None = None
    lighthouse: str | None = None
    has_islands: bool = False
    group_problem: str = ""
    last_failures: tuple[LastWords, ...] = ()
    not_known: tuple[str, str] | None = None
    """Reason and message why nobody can tell whether the run goes on, although its parts are ready."""
    misfits: tuple[Misfit, ...] | None = None
    """What cannot work; None while the model's size is not known."""
    upgrade: Upgrade | None = None
    queue: QueueTurn | None = None
    """Where a run with a queue is in it."""
    last_progress_time: str | None = None
    stall: Stall | None = None

    @property
    def steps_total(self) -> int:
        """Steps of the run: those of the spec, or what the orchestrator made of the task table; 0 while unknown."""
        return self.steps or (self.progress.steps_total if self.progress is not None else 0)

    @property
    def paused(self) -> bool:
        """The trainer has stopped by itself and waits for a person."""
        return self.stage == "running" and self.progress is not None and self.progress.trainer_phase == PAUSED

    @property
    def lacks_signal(self) -> bool:
        """The open step reached its sampling cap and lacks signal; a person must decide."""
        return self.stage == "running" and self.progress is not None and bool(self.progress.stalled_on_signal)

    @property
    def trains(self) -> bool:
        """An attempt of the trainer is there and has not ended."""
        return any(part.component == "Trainer" and counts(part.workload)[0] > 0 for part in self.parts)

    @property
    def missing(self) -> list[str]:
        """Components that the run needs and that are not ready."""
        needed = (name for name in COMPONENTS if name not in BESIDE)
        return [name for name in needed if not component_state(name, self.parts).ready]


def _scores(evaluations: Iterable[EvaluationProgress]) -> list[dict[str, Any]]:
    """The newest version that is fully scored, of each benchmark."""
    newest: dict[str, dict[str, Any]] = {}
    for each in sorted(evaluations, key=lambda found: found.version):
        if each.avg_at_k is not None:
            figures = {"score": each.avg_at_k, "low": each.low, "high": each.high}
            rounded = {name: round(value, 6) for name, value in figures.items() if value is not None}
            newest[each.benchmark] = {"benchmark": each.benchmark, "version": each.version, **rounded}
    return [newest[name] for name in sorted(newest)]


def as_heard(cluster: Cluster, live: Object) -> dict[str, Any]:
    """The status of a run with the figures that its orchestrator said last. Those of the status stand where this process has not heard it.

    So a restart writes nothing while the orchestrator is silent: the condition Ready then says that nobody knows how far the run is.
    """
    before, metadata = live.get("status", {}), live["metadata"]
    said = cluster.heard.find(cluster.namespace, metadata["name"], metadata["uid"])
    return dict(before) if said is None else before | said


def run_status(findings: Findings, before: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of the status. While the orchestrator is silent, those `before` stand (`as_heard`); what it does not say when it answers, goes."""
    progress = findings.progress
    status = {key: before.get(key) if progress is None else None for key in FIGURES}
    if progress is not None:
        nodes = progress.nodes
        status |= {
            "step": progress.open_step,
            "groupsKept": progress.groups_accepted_total,
            "groupsDropped": progress.groups_dropped_total,
            "accepted": progress.files_accepted,
            "rejected": progress.files_rejected,
            "slashed": nodes.get("Evicted", 0) + nodes.get("Banned", 0),
            "nodes": nodes.get("Healthy", 0),
        }
        if progress.islands is not None:
            status |= {"islands": islands_status(progress.islands)}
        if progress.proofs is not None:
            status |= {"proofs": proof_status(progress.proofs)}
        if (learning := progress.learning) is not None and learning.groups:
            status["answers"] = answers_status(learning)
        if progress.commits:
            status["revisions"] = [each.model_dump(mode="json") for each in progress.commits]
        if (dataset := progress.dataset) is not None:
            status["dataset"] = {
                "slices": dataset.steps,
                "slicesCollected": dataset.steps_collected,
                "rowsSeen": dataset.rows_seen,
                "rowsKept": dataset.rows_kept,
            }
        if (best := progress.best_version) is not None:
            status |= {"bestVersion": best.version, "bestScore": round(best.value, 6)}
        if scores := _scores(progress.evaluations):
            status["scores"] = scores
        if (last := progress.last_step) is not None:
            left = eta_seconds(progress)
            status |= {"gradientNorm": last.gradient_norm, "etaSeconds": left, "eta": duration(left)}
            if last.supervised:
                status |= {"epoch": last.epoch, "loss": last.loss, "heldOutLoss": last.held_out_loss}
            else:
                status |= {
                    "reward": last.task_reward,
                    "clipRatio": last.clip_ratio,
                    "policyLag": last.policy_lag_mean,
                }
        # They would seem to have grown when they come back (stalled.py).
        lacking = OF_TRAINER if not progress.trainer_phase else ()
        status |= {name: before.get(name) for name in lacking if status[name] is None}
        if progress.latest_version is None and findings.steps is not None:
            status |= {name: before[name] for name in OF_LEDGER if before.get(name) is not None}
    if findings.stage == "complete":
        status |= {"step": None, "etaSeconds": 0.0, "eta": duration(0.0)}
    attempt = findings.attempt
    return status | {
        "release": findings.upgrade.release if findings.upgrade is not None else None,
        "phase": phase(findings),
        "startTime": findings.start_time,
        "completionTime": findings.completion_time,
        "lastProgressTime": findings.last_progress_time,
        "policyVersion": findings.latest_version,
        "runPublicKey": findings.run_key,
        "endpoint": findings.endpoint,
        "keys": keys_status(findings.roster, findings.run_keys_away),
        "islandPublicKey": findings.island_key,
        "lighthouse": findings.lighthouse,
        "trainer": {
            "attempt": attempt.number,
            "startedAtVersion": attempt.started_at_version,
            "failures": attempt.failures,
            "lastFailed": attempt.last_failed,
        },
        "lastFailures": [
            each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in findings.last_failures
        ],
        "components": component_counts(findings.parts),
    }


def keys_status(signed: Signed[Roster], run_keys_away: Collection[str] = ()) -> list[dict[str, Any]]:
    """Number, fingerprint and age of every key; of the run key also which Secrets of it are not here."""
    roster = signed.document
    held: dict[KeyHolder, str] = {"run": signed.signer}
    held.update((role, key) for role, key in roster.keys.items())
    found: list[dict[str, Any]] = []
    for holder in HOLDERS:
        changes = roster.changes_of(holder)
        status: dict[str, Any] = {
            "name": holder,
            "generation": 1 + len(changes),
            "fingerprint": held[holder][:FINGERPRINT_DIGITS],
        }
        if changes:
            status["since"] = datetime.fromtimestamp(changes[-1].unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if holder == "run" and run_keys_away:
            status["secretsAway"] = list(run_keys_away)
        found.append(status)
    return found


def proof_status(terms: ProofTerms) -> dict[str, Any]:
    """Thresholds of proofs, and the rates that were measured with the calibrated ones."""
    status = {
        "calibrated": terms.calibrated,
        "thresholds": terms.thresholds.model_dump(by_alias=True, exclude_none=True),
        "maskedDimensions": terms.masked_dimensions,
        "honestChunks": 0,
        "falseRejectChunksBound": None,
        "falseRejectFilesBound": None,
        "controls": [
            {"name": control.name, "acceptedChunks": control.chunks.share, "acceptedFiles": control.files.share}
            for control in terms.controls
        ],
    }
    if terms.quantization is not None:
        status["quantization"] = terms.quantization
    if (honest := terms.honest) is not None:
        status |= {
            "honestChunks": honest.rejected_chunks.trials,
            "falseRejectChunksBound": honest.rejected_chunks.high,
            "falseRejectFilesBound": honest.rejected_files.high,
        }
    return status


def answers_status(learning: LearningProgress) -> dict[str, Any]:
    """Shares rounded, so that a status is not written for a change that nobody sees."""
    shown = {
        name: round(value, 3)
        for name in ("groups_right", "groups_wrong", "right", "cut", "unscorable", "unanswered")
        if (value := getattr(learning, name)) is not None
    }
    found = AnswersStatus(
        groups=learning.groups,
        groups_with_signal=learning.groups_with_signal,
        samples=[AnswerShown(**each.model_dump()) for each in learning.samples],
        **shown,
    )
    return found.model_dump(mode="json", by_alias=True, exclude_none=True)


def eta_seconds(progress: RunProgress) -> float | None:
    """Steps that are left, at the pace of the last one."""
    last = progress.last_step
    if last is None:
        return None
    left = max(0, progress.steps_total - last.step - 1)
    return round(left * max(0.0, last.finished_unix - last.started_unix), 1)


def phase(findings: Findings) -> str:
    """One word for printer columns."""
    if findings.paused:
        return "Paused"
    if findings.stall is not None:
        return "Stalled"
    if findings.stage == "running":
        return "Starting" if findings.missing else "Running"
    return findings.stage.capitalize()


def run_conditions(findings: Findings) -> list[Condition]:
    """The conditions of the run: those of the whole, then Prepared, then one a component."""
    stage, failure = findings.stage, findings.failure
    suspended, done = stage == "suspended", stage == "complete"
    return [
        _ready(findings),
        _progressing(findings),
        condition("Suspended", suspended, "SpecSuspend" if suspended else "NotSuspended"),
        *([findings.queue.condition()] if findings.queue is not None else []),
        condition(
            "Complete",
            done,
            ("DatasetWritten" if findings.mode == "Generate" else "StepsTrained") if done else "StepsLeft",
            _how_far(findings),
        ),
        condition("Failed", stage == "failed", failure.reason or "NoFailure", failure.message),
        _paused(findings),
        stalled_condition(stage, findings.stall),
        _lacks_signal(findings),
        *_fits(findings),
        *([findings.volumes] if findings.volumes is not None else []),
        *([findings.exposed] if findings.exposed is not None else []),
        *_learning(findings),
        _stable(findings),
        _prepared(findings),
        *(findings.upgrade.conditions() if findings.upgrade is not None else []),
        *_exchanging(findings),
        *component_conditions(findings.parts),
    ]


def _how_far(findings: Findings) -> str:
    if findings.mode != "Generate":
        if findings.prepared and findings.progress is None and findings.stage != "complete":
            return f"nobody says how many of {findings.steps} policy versions are announced"
        return f"policy version {findings.latest_version or 0} of {findings.steps} is announced"
    dataset = findings.progress.dataset if findings.progress is not None else None
    if dataset is None:
        return ""
    return f"{dataset.steps_collected} of {dataset.steps} parts of the task table are collected, {dataset.rows_kept} rows kept"


def _ready(findings: Findings) -> Condition:
    """Whether the run makes progress with all its parts. `kubectl get` shows the message, so it starts with the problem."""
    stage, missing = findings.stage, findings.missing
    well = stage == "running" and not missing and not findings.paused and not findings.lacks_signal
    if well and findings.stall is not None:
        return condition("Ready", False, findings.stall.cause.reason, findings.stall.text[:MOST_TEXT])
    if well and findings.not_known is not None:
        return condition("Ready", None, *findings.not_known)
    if well:
        return condition("Ready", True, "ComponentsReady", _doing(findings))
    if findings.paused:
        return condition("Ready", False, "Paused", _pause_text(findings))
    if findings.lacks_signal and findings.progress is not None:
        return condition("Ready", False, "StalledOnSignal", findings.progress.stalled_on_signal)
    if stage == "failed":
        return condition("Ready", False, findings.failure.reason, findings.failure.message)
    if stage == "queued" and findings.queue is not None:
        return condition("Ready", False, findings.queue.reason, findings.queue.message[:MOST_TEXT])
    if stage != "running":
        doing = _prepare_text(findings) or f"the run is {stage}"
        misfits = _misfit_text(findings) if stage == "preparing" else ""
        problem = (
            findings.prepare_problem[0] if stage == "preparing" and findings.prepare_problem else "ComponentsNotReady"
        )
        return condition("Ready", False, problem, "; ".join(filter(None, [misfits, doing])))
    state = component_state(missing[0], findings.parts)
    if state.reason in ("Absent", "NotObserved", "PodsNotReady"):
        # Pods that were ended as a whole are replaced at once: what was said of them is all that there is.
        before = said_of(LABELS.get(missing[0], missing[0].lower()), findings.last_failures)
        text = f"{_waits_text(findings)} ({missing[0]}: {before})" if before else _waits_text(findings)
        return condition("Ready", False, "ComponentsNotReady", text)
    return condition("Ready", False, state.reason, f"{_waits_text(findings)} ({missing[0]}: {state.message})")


def _waits_text(findings: Findings) -> str:
    """What a run lacks: first what keeps its parts from being made."""
    return "; ".join(filter(None, [findings.waits_for, f"waits for {', '.join(findings.missing)}"]))


def _progressing(findings: Findings) -> Condition:
    stage = findings.stage
    if findings.paused:
        return condition("Progressing", False, "Paused", _pause_text(findings))
    if stage == "running" and findings.missing:
        return condition("Progressing", True, "Waiting" if findings.waits_for else "Starting", _waits_text(findings))
    if stage == "running":
        return condition("Progressing", True, WORK[findings.mode], _doing(findings))
    if stage == "preparing":
        message = _prepare_text(findings) or "makes the base model and the task table"
        return condition("Progressing", True, "Waiting" if findings.waits_for else "Preparing", message)
    if stage == "queued" and findings.queue is not None:
        return condition("Progressing", True, "Queued", findings.queue.message[:MOST_TEXT])
    return condition("Progressing", False, stage.capitalize())


def _doing(findings: Findings) -> str:
    progress = findings.progress
    doing = ""
    if progress is not None:
        step = f"step {progress.open_step} of {findings.steps_total}" if progress.open_step is not None else ""
        doing = progress.waiting_for or step
    known = progress.learning if progress is not None else None
    lost = known.message if known is not None and known.reason is not None else ""
    # It trains on without exchanging, and nothing else in `kubectl get` would say so.
    apart = [each["message"] for each in _exchanging(findings) if each["status"] == "False"]
    # A list of members that is wrong is said there.
    waits_for = findings.waits_for if findings.waits_for != findings.group_problem else ""
    return "; ".join(filter(None, [_misfit_text(findings), doing, waits_for, lost, *apart]))


def _exchanging(findings: Findings) -> list[Condition]:
    """The condition of a run whose trainer is one of several islands."""
    if not findings.has_islands:
        return []
    said = findings.progress.islands if findings.progress is not None else None
    return [exchanging(said, findings.group_problem, running=findings.stage == "running", trains=findings.trains)]


def _prepare_text(findings: Findings) -> str:
    """What a preparing run waits for."""
    if findings.stage != "preparing":
        return ""
    return findings.waits_for or (findings.prepare_problem[1] if findings.prepare_problem else "")


def _pause_text(findings: Findings) -> str:
    """The trainer's note on how to resume, or a default one."""
    version = findings.latest_version or 0
    said = findings.progress.trainer_note if findings.progress else ""
    return said or f"the trainer has paused; set spec.stability.acknowledgedVersion to {version} to continue"


def _lacks_signal(findings: Findings) -> Condition:
    """The online filter's cap: a step reached it, so more sampling is of no use."""
    if findings.lacks_signal and findings.progress is not None:
        return condition("StalledOnSignal", True, "SamplingCap", findings.progress.stalled_on_signal)
    return condition("StalledOnSignal", False, "EnoughSignal")


def _fits(findings: Findings) -> list[Condition]:
    """Of a run of mode Train: whether its volumes, GPUs and limits can hold its model at all. Estimates are for `shoal plan`."""
    if findings.mode != "Train":
        return []
    if findings.misfits is None:
        return [condition("Fits", None, "SizeNotKnown", "the size of the model is known when version 0 is announced")]
    if findings.misfits:
        return [condition("Fits", False, findings.misfits[0].reason, _misfit_text(findings))]
    return [condition("Fits", True, "SizesChecked")]


def _misfit_text(findings: Findings) -> str:
    return "; ".join(map(str, findings.misfits or ()))[:MOST_TEXT]


def _learning(findings: Findings) -> list[Condition]:
    """Of a run of mode Train: whether its newest groups carry signal. False as soon as enough of them carry none, with the cause."""
    if findings.mode != "Train":
        return []
    found = findings.progress.learning if findings.progress is not None else None
    if found is None or not found.decided:
        return [condition("Learning", None, "FewGroupsJudged", found.message if found is not None else "")]
    return [condition("Learning", found.reason is None, found.reason or "GroupsCarrySignal", found.message)]


def _paused(findings: Findings) -> Condition:
    if findings.paused:
        return condition("Paused", True, "StabilityAction", _pause_text(findings))
    return condition("Paused", False, "NotPaused")


def _stable(findings: Findings) -> Condition:
    """The trainer's early warnings of a collapse in its last step."""
    last = findings.progress.last_step if findings.progress is not None else None
    if last is None:
        return condition("Stable", None, "NoStepSeen")
    if last.warnings:
        return condition("Stable", False, "Warnings", f"step {last.step}: {'; '.join(last.warnings)}")
    return condition("Stable", True, "NoWarnings")


def _prepared(findings: Findings) -> Condition:
    if findings.prepared:
        return condition("Prepared", True, "JobSucceeded")
    if findings.prepare_problem is not None:
        return condition("Prepared", False, *findings.prepare_problem)
    state = job_state(findings.prepare)
    reason = {"failed": "JobFailed", "running": "JobRunning"}.get(state, "JobNotStarted")
    return condition("Prepared", False, reason, findings.failure.message if state == "failed" else "")
