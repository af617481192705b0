"""The operator with many TrainingRuns, of which a tenth is silent and a tenth has a part that crashes: `python -m benchmarks.operator --runs 1000`.

Runs are spread over twenty namespaces, as tenants have them, and have all children that builders make. `measure_runs` gives the figures; names of
those that depend on the number of runs have it in them. At 1,000 runs the operator makes some 50,000 objects: five minutes for it and the API server.

With `--operators K` each operator has twenty namespaces of its own (the chart's `operator.namespaces`). On two cores they take turns: each makes its
part and stops, and the last one is measured beside all that the others made.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.operator.cluster import (
    CREATORS,
    OPERATOR_NAMESPACE,
    Bench,
    Deadline,
    Kube,
    Object,
    OperatorProcess,
    Seen,
    cpu_seconds,
    kill,
    on_one_core,
    resident_mib,
    run,
    wait,
)
from benchmarks.operator.controllers import Controllers, failing_runs
from benchmarks.operator.measures import MANAGED, percentile, reconciles
from benchmarks.operator.orchestrators import healthy, run_name, start
from shoal_operator.engine.kinds import CHILDREN, OWN

TENANTS = 20
SETTLE_SECONDS = 30.0
"""Between the last child and what is measured as steady: what follows writes of our own is over then."""
LONGEST_COLD_START = 300.0
"""Seconds; a figure as high as this says that an edit was never applied."""
EDITS_PER_SECOND = 4.0
VALUES = 250
"""Replicas of validators that an edit asks for, from 2 on: with the run's name a number that says which edit it was. The CRD takes 256."""


@dataclass(frozen=True)
class Part:
    """The runs of one operator: `spaces` are their namespaces by name, `at_work` those that neither are silent nor crash."""

    spaces: dict[str, str]
    at_work: list[str]
    served: tuple[str, ...]
    """Namespaces that the operator is told to serve; empty for all of them."""


def parts_of(runs: int, operators: int) -> list[Part]:
    """The runs of each operator, cut into parts that are as long but for one."""
    parts = []
    for place in range(operators):
        numbers = range(place * runs // operators, (place + 1) * runs // operators)
        spaces = {run_name(number): f"tenant-{place * TENANTS + number % TENANTS}" for number in numbers}
        served = tuple(sorted(set(spaces.values()))) if operators > 1 else ()
        parts.append(Part(spaces, [name for name in map(run_name, healthy(runs)) if name in spaces], served))
    return parts


def measure_runs(
    bench: Bench, runs: int, seconds: float, say: Callable[[str], None], operators: int = 1
) -> dict[str, Any]:
    """All figures. The operator has one core while runs are made, rest and are edited."""
    address = bench.loopback.address()
    bench.services = address
    parts = parts_of(runs, operators)
    spaces = {name: space for part in parts for name, space in part.spaces.items()}
    for name in sorted(set(spaces.values())):
        bench.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        # Its controller is not running.
        bench.kube.create(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
        )
    stand_in = start(address)
    seen, phases = Seen(bench.plane.kubeconfig, "Validator"), Seen(bench.plane.kubeconfig, "TrainingRun", _phase)
    controllers = Controllers(bench.kube, failing_runs(runs, spaces))
    try:
        for place, part in enumerate(parts[:-1]):
            operator = bench.operator(f"runs-{place}", part.served)
            with on_one_core(operator):
                _make(bench, operator, part, phases, say)
            operator.stop()
        part, at_work = parts[-1], parts[-1].at_work
        spaces, count = part.spaces, len(part.spaces)
        operator = bench.operator("runs", part.served)
        with on_one_core(operator):
            made = _make(bench, operator, part, phases, say)
            time.sleep(SETTLE_SECONDS)
            used, looked, at = cpu_seconds(operator), reconciles(operator), time.monotonic()
            time.sleep(seconds)
            lasted = time.monotonic() - at
            share = (cpu_seconds(operator) - used) / lasted / count
            looks = (reconciles(operator) - looked) / lasted
            say(f"editing runs for {seconds:.0f} s")
            edits = _edit_latencies(bench.kube, seen, spaces, at_work, seconds)
        memory = resident_mib(operator)
        operator.stop()
        say("starting the operator again")
        operator, cold = _cold_start(bench, seen, part, say)
        memory = max(memory, resident_mib(operator))
        say("killing the leader")
        failover = _failover(bench, seen, operator, part)
        children = sum(len(bench.kube.list(kind, None, MANAGED)) for kind in CHILDREN)
        figures = {
            "runs": runs,
            "runs_silent": sum(number % 10 == 3 for number in range(runs)),
            "runs_failing": sum(number % 10 == 7 for number in range(runs)),
            "children_per_run": round(children / runs, 1),
            f"apply_seconds_{count}_runs": round(made, 1),
            "cpu_share_per_run": round(share, 6),
            "reconciles_per_second_steady": round(looks, 1),
            f"edit_p50_ms_at_{count}_runs": round(percentile(edits, 0.5), 1),
            f"edit_p99_ms_at_{count}_runs": round(percentile(edits, 0.99), 1),
            f"cold_start_seconds_{count}_runs": round(cold, 2),
            f"rss_mib_{count}_runs": round(memory, 1),
            f"failover_seconds_{count}_runs": round(failover, 2),
        }
        if operators == 1:
            return figures
        return {"several_operators": {"operators": operators, **figures}}
    finally:
        controllers.close()
        seen.close()
        phases.close()
        stand_in.kill()
        stand_in.wait()


def _phase(found: Object) -> str:
    return str(found.get("status", {}).get("phase"))


def _make(bench: Bench, operator: OperatorProcess, part: Part, phases: Seen, say: Callable[[str], None]) -> float:
    """Create an operator's runs once it leads; seconds until those that can are Running."""
    wait("it to lead", operator.is_leader, 60)
    say(f"creating {len(part.spaces)} runs")
    began = time.monotonic()

    def create(name: str) -> None:
        bench.kube.create(run(part.spaces[name], name, steps=999_999))

    with ThreadPoolExecutor(CREATORS) as people:
        list(people.map(create, part.spaces))
    wait(
        f"{len(part.at_work)} runs to be Running",
        lambda: all((name, "Running") in phases.replicas for name in part.at_work),
        3600,
    )
    made = time.monotonic() - began
    say(f"made in {made:.0f} s")
    return made


def _edit(kube: Kube, spaces: dict[str, str], name: str, value: int) -> tuple[str, int]:
    """Ask for so many validators; what is seen in the child when it is applied."""
    kube.merge("TrainingRun", name, spaces[name], {"spec": {"validator": {"replicas": value}}}, manager="bench")
    return f"{name}-validator", value


def _edit_latencies(kube: Kube, seen: Seen, spaces: dict[str, str], names: list[str], seconds: float) -> list[float]:
    """Milliseconds from an edit of a healthy run until its child has it, at a steady rate, each of another run than the last."""
    sent: dict[tuple[str, int], float] = {}
    began = time.monotonic()
    for number in range(int(EDITS_PER_SECOND * seconds)):
        time.sleep(max(0.0, began + number / EDITS_PER_SECOND - time.monotonic()))
        at = time.monotonic()
        sent[_edit(kube, spaces, names[number % len(names)], 2 + number % VALUES)] = at
    wait("every edit to be applied", lambda: sent.keys() <= seen.replicas.keys(), 120)
    return sorted(1000 * (seen.replicas[edit] - at) for edit, at in sent.items())


def _cold_start(bench: Bench, seen: Seen, part: Part, say: Callable[[str], None]) -> tuple[OperatorProcess, float]:
    """Seconds until an operator that starts has looked at every object and applied all edits.

    A tenth of the healthy runs was edited while it was away. Figures of a thousand runs are written afterwards, behind edits: the queue is never
    empty for long.
    """
    bench.kube.delete("Lease", "shoal-operator", OPERATOR_NAMESPACE)
    sent = {_edit(bench.kube, part.spaces, name, VALUES + 3) for name in part.at_work[::10]}
    spaces = set(part.spaces.values())
    objects = sum(found["metadata"]["namespace"] in spaces for kind in OWN for found in bench.kube.list(kind))
    began = time.monotonic()
    process = bench.operator("cold", part.served)

    told = began

    def through() -> bool:
        nonlocal told
        depth, looked = process.metrics().get('workqueue_depth{name="shoal"}'), reconciles(process)
        missing = len(sent - seen.replicas.keys())
        if time.monotonic() - told > 10:
            told = time.monotonic()
            say(
                f"after {told - began:.0f} s: {missing} of {len(sent)} edits missing, {looked} of {objects} looks, queue {depth}"
            )
        return not missing and looked >= objects

    try:
        wait("every run to be looked at", through, LONGEST_COLD_START, interval=0.2)
    except Deadline as never:
        say(f"{never}: the figure is that time")
    return process, time.monotonic() - began


def _failover(bench: Bench, seen: Seen, leader: OperatorProcess, part: Part) -> float:
    """Seconds from SIGKILL of the leader until an edit that was made at that moment is applied by the other replica."""
    standby = bench.operator("standby-runs", part.served)
    wait("the standby to have listed everything", standby.is_ready, 300)
    kill(leader)
    began = time.monotonic()
    edit = _edit(bench.kube, part.spaces, part.at_work[0], VALUES + 4)
    wait("the standby to take over", lambda: edit in seen.replicas, 300, interval=0.01)
    return seen.replicas[edit] - began
