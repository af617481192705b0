"""What a run asks of its Kueue queue, and what the queue's answer makes of its pods. Pure (ADR 0095).

One Workload a run, with a set of pods for each role: while the run prepares that of prepare alone, then those of all its parts. A set has the very
template that the builders make. The one-pod parts of the control plane are one set, since Kueue takes few of them.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal_operator.api import TrainingRun
from shoal_operator.children import names
from shoal_operator.children.workloads import WITH_PODS, digest, template_of, with_template
from shoal_operator.engine.cluster import KUEUE, Object
from shoal_operator.engine.kinds import SCALED_KINDS

CONTROL_PLANE = ("redis", "discovery", "orchestrator", "lighthouse")
"""Components of one pod each, with one placement."""
STANDS = (*CONTROL_PLANE, "ui", "tracker")
"""What outlives the work, for its last words."""
PREPARE = "prepare"
ASKS_ANNOTATION = "shoal.dev/asks"
"""Of a Workload: count and digest of each set, as it was asked for. Kueue changes requests by LimitRanges, which is no change of ours."""
ACCOUNTED = (
    "affinity", "nodeSelector", "overhead", "priorityClassName", "resourceClaims", "resources", "runtimeClassName", "tolerations",
)  # fmt: skip
"""Fields of a pod on which quota and flavours depend. A change of any other needs no new admission."""


@dataclass(frozen=True)
class PodSet:
    """Pods of one role. `min_count`: fewest with which the run may start; None: all."""

    name: str
    count: int
    template: Object
    min_count: int | None = None

    @property
    def asks(self) -> str:
        """What must be admitted again when it changes."""
        spec = self.template["spec"]
        containers = [
            each.get("resources", {}) for part in ("initContainers", "containers") for each in spec.get(part, ())
        ]
        asked = [{name: spec[name] for name in ACCOUNTED if name in spec}, containers]
        return f"{self.count}/{self.min_count or self.count} {digest(json.dumps(asked, sort_keys=True).encode())}"


@dataclass(frozen=True)
class QueueGrant:
    """What the queue gives one set: how many pods, and on which nodes."""

    count: int
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Object] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def pod_sets(run: TrainingRun, children: Iterable[Object], *, prepares: bool) -> list[PodSet]:
    """The sets of a run.

    Args:
        children: all children with pods that the run has at work, also those of its own kinds, and prepare.
        prepares: the run has not been prepared yet.
    """
    pools = {names.pool(run.metadata.name, pool.name): pool for pool in run.spec.inference_pools}
    made: dict[str, PodSet] = {}
    for child in children:
        if child["kind"] not in WITH_PODS:
            continue
        name = set_of(child)
        if (name == PREPARE) != prepares:
            continue
        spec = child["spec"]
        count = spec["parallelism"] if child["kind"] == "Job" else spec["replicas"]
        template, least = _bare(template_of(child)), None
        if (pool := pools.get(child["metadata"]["name"])) is not None and name.startswith("pool-"):
            hosts = pool.engine.hosts
            count = (pool.max_replicas or pool.replicas) * hosts
            least = pool.min_replicas * hosts if pool.min_replicas is not None else None
        if count == 0:
            continue
        before = made.get(name)
        if before is None:
            made[name] = PodSet(name, count, template, least)
        elif name == "control-plane":
            made[name] = PodSet(name, 1, _together(before.template, template))
        else:
            made[name] = PodSet(name, before.count + count, before.template)  # islands are alike
    return list(made.values())


def set_of(child: Object) -> str:
    """Name of the set that a child's pods are of."""
    labels = child["metadata"].get("labels", {})
    component = str(labels.get(names.COMPONENT_LABEL, ""))
    if component in CONTROL_PLANE:
        return "control-plane"
    if component == "pool":
        return "pool-" + str(child["metadata"]["name"]).removeprefix(f"{labels[names.RUN_LABEL]}-")
    return component


def workload(run: TrainingRun, sets: Sequence[PodSet]) -> Object:
    """The Workload that asks for them. `active` is whoever's who sets it; the operator never does."""
    name, spec = run.metadata.name, run.spec
    return {
        "apiVersion": KUEUE,
        "kind": "Workload",
        "metadata": {
            "name": names.workload(name),
            "labels": names.labels(name, "queue"),
            "annotations": {ASKS_ANNOTATION: asks(sets)},
        },
        "spec": {
            "queueName": spec.queue_name,
            "priority": spec.queue_priority or 0,
            "podSets": [
                {"name": each.name, "count": each.count, "template": each.template}
                | ({"minCount": each.min_count} if each.min_count is not None else {})
                for each in sets
            ],
        },
    }


def asks(sets: Sequence[PodSet]) -> str:
    """What the sets ask for, as the annotation has it."""
    return json.dumps({each.name: each.asks for each in sets}, sort_keys=True)


def assignments(live: Object | None, flavor: Callable[[str], Object]) -> dict[str, QueueGrant]:
    """What the queue gives each set, by its name; none before quota is reserved. `flavor` reads a ResourceFlavor.

    Labels of flavours and updates of admission checks only add: what they name already, Kueue has matched.
    """
    status = (live or {}).get("status", {})
    made: dict[str, QueueGrant] = {}
    counts = {each["name"]: each.get("count", 1) for each in (live or {}).get("spec", {}).get("podSets", ())}
    for each in (status.get("admission") or {}).get("podSetAssignments", ()):
        name = each["name"]
        flavors = [flavor(found).get("spec", {}) for found in sorted(set(each.get("flavors", {}).values()))]
        updates = [
            update
            for check in status.get("admissionChecks", ())
            if check.get("state") == "Ready"
            for update in check.get("podSetUpdates", ())
            if update.get("name") == name
        ]
        made[name] = QueueGrant(
            count=each.get("count", counts.get(name, 1)),
            node_selector=_joined(
                [each.get("nodeLabels") for each in flavors] + [each.get("nodeSelector") for each in updates]
            ),
            tolerations=_distinct(given for found in (*flavors, *updates) for given in found.get("tolerations") or ()),
            labels=_joined(found.get("labels") for found in updates),
            annotations=_joined(found.get("annotations") for found in updates),
        )
    return made


def placed(child: Object, assigned: Mapping[str, QueueGrant]) -> Object:
    """The child with what the queue gives its pods; both stay as they are."""
    kind = child["kind"]
    if kind not in (*WITH_PODS, *SCALED_KINDS) or (given := assigned.get(set_of(child))) is None:
        return child
    spec = child["spec"]
    if kind in WITH_PODS:
        template = template_of(child)
        metadata = {**template["metadata"], **_metadata(template["metadata"], given)}
        pod = {**template["spec"], **_nodes(template["spec"], given)}
        return with_template(child, {**template, "metadata": metadata, "spec": pod})
    template = spec.get("podTemplate", {})
    template = {**template, **_metadata(template, given), **_nodes(template, given)}
    return {**child, "spec": {**spec, "podTemplate": template}}


def capped(child: Object, assigned: Mapping[str, QueueGrant], *, works: bool) -> Object:
    """A child of our own kinds with the replicas that the queue admits, whatever its own ask for, which others own. A set without quota has
    none, such as one that asked for no pod, or any while the run does not work: else an autoscaler would make some in the meantime. Of engines over
    several pods only whole ones count."""
    if child["kind"] not in SCALED_KINDS:
        return child
    given, metadata = assigned.get(set_of(child)) if works else None, child["metadata"]
    count = 0 if given is None else given.count // child["spec"].get("engine", {}).get("hosts", 1)
    annotations = {**metadata.get("annotations", {}), names.ADMITTED_ANNOTATION: str(count)}
    return {**child, "metadata": {**metadata, "annotations": annotations}}


def _nodes(pod: Object, given: QueueGrant) -> Object:
    made: Object = {}
    if given.node_selector:
        made["nodeSelector"] = {**pod.get("nodeSelector", {}), **given.node_selector}
    if given.tolerations:
        made["tolerations"] = _distinct([*pod.get("tolerations", ()), *given.tolerations])
    return made


def _metadata(pod: Object, given: QueueGrant) -> Object:
    made: Object = {}
    for field_name, more in (("labels", given.labels), ("annotations", given.annotations)):
        if more:
            made[field_name] = {**more, **pod.get(field_name, {})}
    return made


def _bare(template: Object) -> Object:
    """A set's metadata may have labels and annotations alone."""
    metadata = {key: value for key, value in template.get("metadata", {}).items() if key in ("labels", "annotations")}
    return {"metadata": metadata, "spec": template["spec"]}


def _together(one: Object, other: Object) -> Object:
    """One pod with the containers of both, which asks for what both ask for."""
    spec = dict(one["spec"])
    for part in ("initContainers", "containers", "volumes"):
        every = {each["name"]: each for each in (*spec.get(part, ()), *other["spec"].get(part, ()))}
        if every:
            spec[part] = list(every.values())
    return {**one, "spec": spec}


def _joined(found: Iterable[Any]) -> dict[str, str]:
    made: dict[str, str] = {}
    for each in found:
        made.update(each or {})
    return made


def _distinct(found: Iterable[Object]) -> list[Object]:
    made: list[Object] = []
    for each in found:
        if each not in made:
            made.append(each)
    return made
