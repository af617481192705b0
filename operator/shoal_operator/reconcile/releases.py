"""Which release each child of a run is of: that which made it, until `spec.release` names another; then one component after the other (ADR 0092).

In come the owner, the record of what releases made for it, and the live children with their releases: all from the cache. Out go
the children as they shall be, and what the condition `UpToDate` says. Nothing is remembered between calls but in the children themselves.

A roll waits for the pods of each component; the trainer, last, waits for a version. Cost while nothing is rolled: the inputs as JSON once a pass.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from shoal_operator.children import names
from shoal_operator.children.releases import (
    Builder,
    ChildKey,
    Inputs,
    KeptChildren,
    NoRecord,
    key_of,
    made_of,
    of_release,
    release_record,
)
from shoal_operator.children.workloads import WITH_PODS
from shoal_operator.engine.apply import job_state
from shoal_operator.engine.cluster import Cluster, Object
from shoal_operator.engine.conditions import Condition, condition
from shoal_operator.engine.kinds import SCALED_KINDS
from shoal_operator.reconcile.common import groups_of, owned_by, up_to_date

log = logging.getLogger(__name__)

ORDER = (
    ("config", "network", "prepare"),
    ("relay",),
    ("runner", "validator"),
    ("tracker", "ui"),
    ("pool",),
    ("discovery",),
    ("redis", "orchestrator"),
    ("lighthouse", "island"),
    ("trainer",),
)
"""Components in the order in which they are rolled, the next when the pods of one are ready: what holds no state first, the trainer last."""
TRAINER = len(ORDER) - 1
MOST_RECORDS = 2
"""Releases in a record; more are not looked at."""
IS_RELEASE = re.compile(r"[0-9A-Za-z]([0-9A-Za-z._-]{0,61}[0-9A-Za-z])?")
REMEMBERED_RECORDS = 256
"""Unpacked records of other releases, about 200 KiB each: those of runs that wait to be rolled."""


@dataclass(frozen=True)
class Upgrade:
    """The releases of an owner's children.

    Attributes:
        target: the release that all are to be of.
        kept: what other releases than the operator's made, where it is known.
        others: release of a child that says none.
        live: release that made each live child.
        reached: how many groups of `ORDER` are of the target, or become so now; None: no roll is under way.
        record: the Secret to apply beside the children.
        unknown: `spec.release` where that release is not available.
        waits: what the roll waits for, in words.
        waits_for_step: it waits for the trainer's next version.
    """

    target: str
    kept: Mapping[str, KeptChildren] = field(default_factory=dict)
    others: str = ""
    live: Mapping[ChildKey, str] = field(default_factory=dict)
    reached: int | None = None
    record: Object | None = None
    unknown: str = ""
    waits: str = ""
    waits_for_step: bool = False
    marks: bool = True
    """Whether children say their release. On one machine all run the code that is installed, and nothing is recorded."""

    @property
    def release(self) -> str:
        """The release of the run: while it is rolled, the one that it leaves."""
        return self.target if self.reached is None else self.others

    @property
    def made_of(self) -> str:
        """What says of which inputs all children are made: the same for the same ones. Empty where other releases have a part in them."""
        if self.record is None or self.kept or self.unknown or not self.target == self.others == names.SOFTWARE_VERSION:
            return ""
        return str(self.record["metadata"]["annotations"][names.MADE_OF_ANNOTATION])

    def release_of(self, made: Object) -> str:
        """The release by which a child is to be made."""
        key = key_of(made)
        before = self.live.get(key, self.others)
        if self.reached is None:
            return self.target
        group = _group(made)
        if group >= self.reached or (group == TRAINER and self.waits_for_step):
            return before
        return self.target

    def child(self, made: Object) -> Object | None:
        """A child by its release, from how this release makes it; None for one that its release does not have."""
        release = self.release_of(made)
        found: Object | None = made
        if release != names.SOFTWARE_VERSION:
            kept = self.kept.get(release)
            found = of_release(made, release) if kept is None else kept.child(made)
        return found if found is None or not self.marks else marked(found, release)

    def children(self, made: Sequence[Object], *, work: bool) -> list[Object]:
        """All children by their releases. `work`: the run works, so that parts which only another release has work too."""
        found = [each for each in map(self.child, made) if each is not None]
        if work:
            for kept in self.kept.values():
                found += (
                    marked(each, kept.release) for each in kept.others(made) if self.release_of(each) == kept.release
                )
        return found if self.record is None else [*found, self.record]

    def conditions(self) -> list[Condition]:
        """Whether all parts are of the operator's release; nothing while no other release is known."""
        own = names.SOFTWARE_VERSION
        if not self.unknown and self.target == self.others == own:
            return []
        return [self._condition(own)]

    def _condition(self, own: str) -> Condition:
        if self.unknown:
            known = " or ".join(dict.fromkeys([own, self.target, *self.kept]))
            text = f"spec.release is {self.unknown}, of which nothing is known here: give {known}; the run stays as release {self.target} made it"
            return condition("UpToDate", False, "UnknownRelease", text)
        if self.reached is not None:
            reason = "WaitsForStep" if self.waits_for_step else "Rolling"
            return condition("UpToDate", False, reason, f"from release {self.others} to {self.target}: {self.waits}")
        if self.target != own:
            lost = (
                ""
                if self.target in self.kept
                else "; what it made is not known, so that this release makes its parts with those images"
            )
            text = f"the run is as release {self.target} made it{lost}; the operator is of {own}: set spec.release: {own} to roll the parts"
            return condition("UpToDate", False, "OtherRelease", text)
        return condition("UpToDate", True, "OperatorsRelease", f"release {own} made all parts")


def marked(made: Object, release: str) -> Object:
    """The child with the release that makes it; what does not change is shared with the one given."""
    metadata = made["metadata"]
    annotations = {**metadata.get("annotations", {}), names.RELEASE_ANNOTATION: release}
    return {**made, "metadata": {**metadata, "annotations": annotations}}


def release_mark(live: Object | None) -> str | None:
    """The release that made a live object, if it says one."""
    found = (live or {}).get("metadata", {}).get("annotations", {}).get(names.RELEASE_ANNOTATION)
    return found if isinstance(found, str) and IS_RELEASE.fullmatch(found) else None


def upgrade_of(
    cluster: Cluster,
    owner: Object,
    run: str,
    builder: Builder[Inputs],
    inputs: Inputs,
    asked: str | None,
    *,
    sure: bool = False,
) -> Upgrade:
    """Releases of an owner's children, before a roll is looked at.

    Args:
        run: name of the run.
        asked: the release that somebody asks for.
        sure: the run's reconcile asks for it, so that it is right though nothing is recorded.
    """
    own, name = names.SOFTWARE_VERSION, owner["metadata"]["name"]
    if not cluster.has_images:
        return Upgrade(own, marks=False)
    found = cluster.get("Secret", names.release_record(name))
    if found is not None and not owned_by(found, owner):
        found = None
    before = release_mark(found) or own
    there: dict[str, str] = found.get("data", {}) if found is not None else {}
    records = {each: there[each] for each in [*dict.fromkeys((before, *there))][:MOST_RECORDS] if each in there}
    known = sure or asked is None or asked == own or asked in records
    target = (asked if known else None) or before
    kept = dict[str, KeptChildren]()
    for release, record in records.items():
        children = None if release == own else _read(builder, release, record, name, run)
        if children is not None:  # otherwise `Upgrade.child` and the condition say what follows
            kept[release] = children
    others = next((each for each in (before, *records) if each != target), target)
    text = builder.text(inputs)
    digest = found["metadata"].get("annotations", {}).get(names.MADE_OF_ANNOTATION, "") if found is not None else ""
    if target == own:
        if own not in records or digest != made_of(own, text):
            records[own], digest = builder.record(inputs, text, cluster.with_digests), made_of(own, text)
        records = {each: records[each] for each in (own, others) if each in records}
    return Upgrade(
        target,
        kept=kept,
        others=others,
        record=release_record(name, run, target, records, digest),
        unknown="" if known else asked or "",
    )


@lru_cache(maxsize=REMEMBERED_RECORDS)
def _read(builder: Builder[Any], release: str, text: str, owner: str, run: str) -> KeptChildren | None:
    """None for a record that cannot be read: it is not unpacked at each pass to see that."""
    try:
        return builder.read(release, text, owner, run)
    except NoRecord as refused:
        log.warning(
            "Secret %s of run %s: the record of release %s %s; it is not used",
            names.release_record(owner),
            run,
            release,
            refused,
        )
        return None


def rolled(
    upgrade: Upgrade, cluster: Cluster, owner: Object, children: Iterable[Object], trainer: Object | None, *, edge: bool
) -> Upgrade:
    """The upgrade of a run with how far its roll is.

    Args:
        children: all that the run makes, as this release does.
        trainer: the live Job of the trainer's newest attempt.
        edge: the trainer may be replaced now: a version has just been announced, or it makes none.
    """
    live, lags = dict[ChildKey, str](), dict[int, list[str]]()
    older = False
    if not upgrade.marks:
        return upgrade
    for made in children:
        key, kind, name = key_of(made), made["kind"], made["metadata"]["name"]
        found = trainer if key == ("Job", "trainer") else cluster.get(kind, name)
        if found is None or not owned_by(found, owner):
            continue
        live[key] = release_mark(found) or upgrade.others
        if kind not in (*WITH_PODS, *SCALED_KINDS):
            continue
        found = cluster.get(workload_kind(made), name) if kind in SCALED_KINDS else found
        there = live[key] == upgrade.target and (release_mark(found) or upgrade.others) == upgrade.target
        ended = found is not None and kind == "Job" and _group(made) == 0 and job_state(found) != "running"
        older = older or not (there or ended)
        if not ended and not (there and settled(cluster, found)):
            lags.setdefault(_group(made), []).append(f"{(found or made)['kind']} {name}")
    if not older:
        return replace(upgrade, live=live)
    first = min(lags)
    waits = f"{', '.join(lags[first][:3])} {'is' if len(lags[first]) == 1 else 'are'} not ready"
    at_trainer = first == TRAINER and trainer is not None and live["Job", "trainer"] != upgrade.target
    if at_trainer and not edge:
        waits = (
            f"Job {trainer['metadata']['name']} is replaced when its next version is announced"
            if trainer is not None
            else waits
        )
    return replace(upgrade, live=live, reached=first + 1, waits=waits, waits_for_step=at_trainer and not edge)


def workload_kind(own: Object) -> str:
    """Kind of what makes the pods of one of our kinds with replicas."""
    if own["kind"] == "InferencePool":
        return str(own["spec"].get("hostsBy") or "StatefulSet")
    return {"RelayServer": "StatefulSet", "Validator": "Deployment"}[own["kind"]]


def settled(cluster: Cluster, workload: Object | None) -> bool:
    """Whether all pods of a workload are of its newest template and ready. One without replicas is."""
    if workload is None:
        return False
    status, spec = workload.get("status", {}), workload["spec"]
    if workload["kind"] == "Job":
        return job_state(workload) != "running" or status.get("ready", 0) >= spec.get("parallelism", 1)
    wanted = spec.get("replicas", 1)
    if workload["kind"] == "LeaderWorkerSet":
        return up_to_date(workload) and groups_of(cluster, workload).new >= wanted
    fresh = status.get("updatedReplicas", 0) >= wanted or wanted == 0
    return up_to_date(workload) and fresh and status.get("readyReplicas", 0) >= wanted


def _group(made: Object) -> int:
    """Number of the group that a child is rolled with; what has no component of its own goes first."""
    component = made["metadata"].get("labels", {}).get(names.COMPONENT_LABEL)
    return next((number for number, group in enumerate(ORDER) if component in group), 0)
