"""The status of a TrainingRun from what was observed: figures from the orchestrator, one condition a component, and the five of the whole. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.contracts.protocol import RunProgress
from shoal_operator.children.training_run import Stage
from shoal_operator.engine.apply import job_state
from shoal_operator.engine.cluster import Object
from shoal_operator.engine.conditions import Condition, condition
from shoal_operator.reconcile.common import replica_counts, up_to_date
from shoal_operator.reconcile.decisions import Attempt

COMPONENTS = ("Redis", "Discovery", "Orchestrator", "Trainer", "RelayServer", "Validator", "InferencePool")
"""Components with a condition `<name>Ready`, in the order in which they start."""


@dataclass(frozen=True)
class Findings:
    """What a status is made from. `workloads`: live StatefulSet, Deployment, Job or custom object by component."""

    stage: Stage
    steps: int
    prepare: Object | None
    prepared: bool
    workloads: Mapping[str, Object | None]
    progress: RunProgress | None
    latest_version: int | None
    failure: str
    waits_for: str
    run_key: str
    attempt: Attempt


def run_status(findings: Findings, before: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of the status. While the orchestrator does not answer, those of before stand."""
    status = {
        key: before.get(key)
        for key in (
            "step", "reward", "gradientNorm", "clipRatio", "policyLag", "accepted", "rejected", "etaSeconds",
        )
    }  # fmt: skip
    progress = findings.progress
    if progress is not None:
        status |= {"step": progress.open_step, "accepted": progress.files_accepted, "rejected": progress.files_rejected}
        if (last := progress.last_step) is not None:
            status |= {
                "reward": last.task_reward,
                "gradientNorm": last.gradient_norm,
                "clipRatio": last.clip_ratio,
                "policyLag": last.policy_lag_mean,
                "etaSeconds": eta_seconds(progress),
            }
    if findings.stage == "complete":
        status |= {"step": None, "etaSeconds": 0.0}
    status |= {
        "phase": phase(findings),
        "policyVersion": findings.latest_version,
        "runPublicKey": findings.run_key,
        "trainer": {"attempt": findings.attempt.number, "startedAtVersion": findings.attempt.started_at_version},
    }
    return status


def eta_seconds(progress: RunProgress) -> float | None:
    """Steps that are left, at the pace of the last one."""
    last = progress.last_step
    if last is None:
        return None
    left = max(0, progress.steps_total - last.step - 1)
    return round(left * max(0.0, last.finished_unix - last.started_unix), 1)


def phase(findings: Findings) -> str:
    """One word for printer columns."""
    if findings.stage == "running":
        return "Running" if all_ready(findings) else "Starting"
    return findings.stage.capitalize()


def all_ready(findings: Findings) -> bool:
    return all(component_ready(findings, name)[0] for name in COMPONENTS)


def run_conditions(findings: Findings) -> list[Condition]:
    """The conditions of the run: five of the whole, then Prepared, then one a component."""
    stage, ready = findings.stage, findings.stage == "running" and all_ready(findings)
    missing = [name for name in COMPONENTS if not component_ready(findings, name)[0]]
    progress = findings.progress
    if ready:
        message = (
            f"step {progress.open_step} of {findings.steps}" if progress and progress.open_step is not None else ""
        )
        if progress and progress.waiting_for:
            message = progress.waiting_for
        doing = condition("Progressing", True, "Training", message)
    elif stage == "running":
        doing = condition("Progressing", True, "Starting", f"waits for {', '.join(missing)}")
    elif stage == "preparing":
        message = findings.waits_for or "makes the base model and the task table"
        doing = condition("Progressing", True, "Waiting" if findings.waits_for else "Preparing", message)
    else:
        doing = condition("Progressing", False, stage.capitalize())
    why_not = f"waits for {', '.join(missing)}" if stage == "running" else f"the run is {stage}"
    done = stage == "complete"
    return [
        condition("Ready", ready, "ComponentsReady" if ready else "ComponentsNotReady", "" if ready else why_not),
        doing,
        condition("Suspended", stage == "suspended", "SpecSuspend" if stage == "suspended" else "NotSuspended"),
        condition("Complete", done, "StepsTrained" if done else "StepsLeft", _versions(findings)),
        condition("Failed", stage == "failed", "JobFailed" if stage == "failed" else "NoFailure", findings.failure),
        _prepared(findings),
        *(_component(findings, name) for name in COMPONENTS),
    ]


def _versions(findings: Findings) -> str:
    return f"policy version {findings.latest_version or 0} of {findings.steps} is announced"


def _prepared(findings: Findings) -> Condition:
    if findings.prepared:
        return condition("Prepared", True, "JobSucceeded")
    reason = {"failed": "JobFailed", "running": "JobRunning"}.get(job_state(findings.prepare), "JobNotStarted")
    return condition("Prepared", False, reason)


def component_ready(findings: Findings, name: str) -> tuple[bool, str, str]:
    """Whether a component is as it should be, with reason and message."""
    workload = findings.workloads.get(name)
    if workload is None:
        return False, "Absent", ""
    if workload["kind"] == "Job":
        state = job_state(workload)
        if state == "running":
            ready = workload.get("status", {}).get("ready", 0) >= 1
            return ready, "PodsReady" if ready else "PodsNotReady", f"attempt Job {workload['metadata']['name']}"
        return state == "succeeded", f"Job{state.capitalize()}", ""
    wanted, _, ready_pods = replica_counts(workload)
    message = f"{ready_pods} of {wanted} pods are ready"
    if not up_to_date(workload):
        return False, "NotObserved", message
    ready = ready_pods >= wanted
    return ready, "PodsReady" if ready else "PodsNotReady", message


def _component(findings: Findings, name: str) -> Condition:
    ready, reason, message = component_ready(findings, name)
    return condition(f"{name}Ready", ready, reason, message)
