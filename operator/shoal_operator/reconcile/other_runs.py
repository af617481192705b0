"""Whether the runs that a run builds on are far enough. Called by `observe` until the run is prepared.

All else that is read of another run's status is only said, or holds up this run until the other's reconcile has corrected it.
"""

from dataclasses import dataclass
from typing import Any

from shoal_operator.api import TrainingRun
from shoal_operator.children import names
from shoal_operator.children.sources import Source, sources
from shoal_operator.engine.apply import job_state
from shoal_operator.engine.cluster import Cluster, Object
from shoal_operator.engine.conditions import is_true
from shoal_operator.reconcile.common import owned_by
from shoal_operator.reconcile.decisions import is_complete

NOT_YET = "which is not complete yet"


@dataclass(frozen=True)
class Wait:
    """What a run waits for and what to do about it, empty for nothing; `well`: that is another run, which works, so nothing is to be done."""

    text: str = ""
    well: bool = False


def waits_for_others(cluster: Cluster, run: TrainingRun) -> Wait:
    """The first run that it names and that has not what it needs."""
    storage = run.spec.storage.model_dump(mode="json", by_alias=True, exclude_none=True)
    for source in sources(run.spec):
        why = _why_not(cluster, source, run.metadata.name, storage)
        if why:
            well = why == NOT_YET and not is_true(cluster.get("TrainingRun", source.run), "Stalled")
            return Wait(f"waits for TrainingRun {source.run} (spec.{source.field}), {why}", well)
    return Wait()


def _why_not(cluster: Cluster, source: Source, own_name: str, storage: dict[str, Any]) -> str:
    if source.run == own_name:
        return "which is this run itself: name another one"
    other = cluster.get("TrainingRun", source.run)
    if other is None:
        return "which does not exist: create it, or correct the name"
    mode = other["spec"].get("mode", "Train")
    if mode not in source.modes:
        leaves = "trains no model" if mode == "Generate" else "writes no data set"
        return f"whose mode is {mode}, which {leaves}; allowed: {', '.join(source.modes)}"
    if _place(other["spec"].get("storage", {})) != _place(storage):
        return "whose spec.storage differs: runs that build on each other need the same prefix and s3, azure or gcs"
    if completed(cluster, other):
        return ""
    if is_true(other, "Failed"):
        return "which has failed: its conditions say why"
    if _builds_on(cluster, other, own_name):
        return "which itself waits for this run to be complete: neither can begin, start one of them from another model or data set"
    if other["spec"].get("suspend"):
        return "which is suspended: set its spec.suspend to false"
    return NOT_YET


def completed(cluster: Cluster, live: Object) -> bool:
    """Whether the status of a run says that it is complete, and its record bears that out.

    Without the record a status that somebody wrote over would start prepare too early, which fails for good or takes the result of fewer steps.
    """
    version = recorded_version(cluster, live) if is_true(live, "Complete") else None
    return version is not None and is_complete(live["spec"].get("steps"), version, said=True)


def recorded_version(cluster: Cluster, live: Object) -> int | None:
    """Policy version at which a run was called complete, by the record in its configuration; None if it never was.

    The status alone makes no run complete; a trainer that ended well bears it out, as in a run that an earlier release completed without a record.
    """
    name = live["metadata"]["name"]
    config = cluster.get("ConfigMap", names.config(name))
    if config is not None and owned_by(config, live):
        said = config["metadata"].get("annotations", {}).get(names.COMPLETE_ANNOTATION, "")
        if said.isdecimal():
            return int(said)
    jobs = cluster.list("Job", names.selector(name, "trainer")) if is_true(live, "Complete") else []
    if any(owned_by(job, live) and job_state(job) == "succeeded" for job in jobs):
        return live.get("status", {}).get("policyVersion") or 0
    return None


def _builds_on(cluster: Cluster, other: Object, own_name: str) -> bool:
    """Whether `other` begins with results of the run `own_name`, over however many runs between them."""
    seen: set[str] = set()
    left = _named(other)
    while left:
        name = left.pop()
        if name == own_name:
            return True
        if name not in seen:
            seen.add(name)
            found = cluster.get("TrainingRun", name)
            left += _named(found) if found is not None else []
    return False


def _named(run: Object) -> list[str]:
    """The runs that a live one names, as `sources` finds them; its release may have unknown fields."""
    names = []
    spec = run["spec"]
    tasks = spec.get("tasks") or {}
    origins = [tasks, *(tasks.get("mixture") or [])]
    filters = [each.get("offlineFilter") or {} for each in origins]
    places: list[Any] = [
        spec.get("model"),
        *(each.get("model") for each in filters),
        (spec.get("sft") or {}).get("dataset"),
    ]
    names += [(place or {}).get("run") for place in places]
    return [name for name in names if name is not None]


def _place(storage: dict[str, Any]) -> tuple[Any, ...]:
    """Where objects lie: the prefix, and what names an S3 store's bucket, a container of Azure or a bucket of Google's."""
    s3, azure, gcs = (storage.get(cloud) or {} for cloud in ("s3", "azure", "gcs"))
    named = (
        (s3.get("endpoint"), s3.get("bucket")),
        tuple(azure.get(key) for key in ("endpoint", "account", "container")),
        (gcs.get("endpoint"), gcs.get("bucket")),
    )
    return storage.get("prefix", "shoal"), *named
