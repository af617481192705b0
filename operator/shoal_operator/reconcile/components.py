"""The parts of a run and whether each is ready: one condition and one pair of counts a part. Pure.

A part is a workload that the run made, or one of our own kinds; there may be several parts of one component (pools).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.contracts.run_parts import MAX_MESSAGE, PartState
from shoal_operator.engine.apply import job_state
from shoal_operator.engine.cluster import Object
from shoal_operator.engine.conditions import Condition, condition
from shoal_operator.reconcile.common import replica_counts, up_to_date

COMPONENTS = (
    "Redis",
    "Discovery",
    "Orchestrator",
    "Lighthouse",
    "Trainer",
    "Island",
    "Runner",
    "RelayServer",
    "Validator",
    "InferencePool",
    "Tracker",
    "Ui",
)
"""Components with a condition `<name>Ready`, in the order in which they start."""
OPTIONAL = frozenset({"Runner", "Lighthouse", "Island", "Tracker", "Ui"})
"""Components that many runs do not have; those have no condition for them."""
SEVERAL = frozenset({"InferencePool", "Island"})
"""Components that may have several parts in a run."""
BESIDE = frozenset({"Tracker", "Ui"})
"""Components that a run continues without: they have a condition, but do not affect the run's readiness."""


@dataclass(frozen=True)
class ComponentPart:
    """One workload of a component: live StatefulSet, Deployment, Job or custom object. `problem`: reason and message of its pods' worst problem."""

    component: str
    name: str
    workload: Object | None
    problem: tuple[str, str] | None = None


@dataclass(frozen=True)
class State:
    """Whether a part or a component is ready, and why not."""

    ready: bool
    reason: str
    message: str = ""


def part_state(part: ComponentPart) -> State:
    """State of one part."""
    workload = part.workload
    if workload is None:
        return State(False, "Absent", f"{part.name} does not exist")
    if workload["kind"] == "Job":
        return _job_state(workload, part.problem)
    wanted, _, ready_pods = replica_counts(workload)
    message = f"{ready_pods} of {wanted} pods are ready{_isolation(part)}"
    said = _own_ready(workload)
    if said is not None and said["status"] != "True" and wanted:
        return State(False, said["reason"], said["message"])
    if not up_to_date(workload):
        return State(False, "NotObserved", message)
    if ready_pods >= wanted:
        return State(True, "PodsReady", message)
    if part.problem is not None:
        return State(False, part.problem[0], f"{message}; {part.problem[1]}")
    return State(False, "PodsNotReady", message)


def _isolation(part: ComponentPart) -> str:
    """The isolation of a runner's programs outside its pod; the pod reports its own (`shoal_sandbox_isolation_info`)."""
    if part.component != "Runner" or part.workload is None:
        return ""
    name = part.workload["spec"]["template"]["spec"].get("runtimeClassName")
    return f"; programs run in them under runtime class {name}" if name else "; programs run only in them"


def _job_state(job: Object, problem: tuple[str, str] | None) -> State:
    name, state = job["metadata"]["name"], job_state(job)
    if state != "running":
        return State(state == "succeeded", f"Job{state.capitalize()}", f"Job {name}")
    wanted, ready = counts(job)
    message = f"Job {name}: {ready} of {wanted} pods are ready"
    if ready >= wanted:
        return State(True, "PodsReady", message)
    if problem is not None:
        return State(False, problem[0], f"{message}; {problem[1]}")
    return State(False, "PodsNotReady", message)


def _own_ready(workload: Object) -> Condition | None:
    """The Ready condition of one of our own kinds, which knows its pods."""
    if not workload["apiVersion"].startswith("shoal.dev/"):
        return None
    conditions = workload.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == "Ready"), None)


def counts(workload: Object | None) -> tuple[int, int]:
    """Pods wanted and ready."""
    if workload is None:
        return 0, 0
    if workload["kind"] == "Job":
        wanted = workload["spec"].get("parallelism", 1)
        return (0 if job_state(workload) != "running" else wanted), workload.get("status", {}).get("ready", 0)
    wanted, _, ready = replica_counts(workload)
    return wanted, ready


def component_state(component: str, parts: Iterable[ComponentPart]) -> State:
    """State of a component: that of its first part that is not ready."""
    states = [(part, part_state(part)) for part in parts if part.component == component]
    if not states:
        return State(True, "NoParts", "the run makes none")
    if len(states) == 1:
        return states[0][1]
    wrong = [(part, state) for part, state in states if not state.ready]
    if wrong:
        first, state = wrong[0]
        return State(False, state.reason, f"{first.name}: {state.message}")
    return State(True, "PodsReady", f"{len(states)} of {len(states)} are ready")


def component_counts(parts: Iterable[ComponentPart]) -> list[Object]:
    """Ready and desired pods of each part, for the status."""
    made = []
    for part in parts:
        wanted, ready = counts(part.workload)
        name = f"{part.component}/{part.name}" if part.component in SEVERAL else part.component
        made.append({"name": name, "ready": ready, "desired": wanted})
    return made


def part_states(parts: Iterable[ComponentPart]) -> list[PartState]:
    """Each part as the page of the run shows it."""
    made = []
    for part in parts:
        state, (wanted, ready) = part_state(part), counts(part.workload)
        made.append(
            PartState(
                component=part.component,
                name=part.name,
                ready=state.ready,
                pods_ready=ready,
                pods_desired=wanted,
                reason=state.reason,
                message=state.message[:MAX_MESSAGE],
            )
        )
    return made


def component_conditions(parts: Iterable[ComponentPart]) -> list[Condition]:
    """One condition `<component>Ready` a component."""
    listed = list(parts)
    made = []
    for component in COMPONENTS:
        if component in OPTIONAL and all(part.component != component for part in listed):
            continue
        state = component_state(component, listed)
        made.append(condition(f"{component}Ready", state.ready, state.reason, state.message))
    return made
