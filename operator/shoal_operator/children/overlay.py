"""Kubernetes' strategic merge of a `podTemplate` over a pod of ours: mappings merge, lists merge by their keys, all else is replaced. Pure.

What may be laid over at all is decided at admission (`api/pod_rules`). Microseconds a pod, once for each reconcile.
"""

from typing import Any

from shoal_operator.engine.cluster import Object

MERGE_KEYS = {
    "claims": "name",
    "containers": "name",
    "env": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""`patchMergeKey` of each list of a pod spec that a template may name, by its field. Lists that are not here, such as tolerations, are atomic."""


def overlay(pod: Object, template: Object) -> Object:
    """The pod spec with the template's fields laid over it; both stay as they are.

    The template names containers wherever they run: one of a sidecar finds it among the init containers. An entry for a container that the pod does
    not have is for another pod of the same part. A volume that no container of the pod mounts stays away.
    """
    laid = {each["name"]: each for each in template.get("containers", ())}
    rest = {name: value for name, value in template.items() if name not in ("containers", "volumes")}
    made: Object = _merged(pod, rest)
    for field in ("initContainers", "containers"):
        if field in made:
            made[field] = [_merged(each, laid.get(each["name"], {})) for each in made[field]]
    every = [*made.get("initContainers", ()), *made.get("containers", ())]
    mounted = {mount["name"] for each in every for mount in each.get("volumeMounts", ())}
    volumes = [each for each in template.get("volumes", ()) if each["name"] in mounted]
    return _merged(made, {"volumes": volumes} if volumes else {})


def _merged(below: Object, above: Object) -> Object:
    return {**below, **{name: _value(name, below.get(name), value) for name, value in above.items()}}


def _value(field: str, below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return _merged(below, above)
    key = MERGE_KEYS.get(field)
    if key is None or not isinstance(below, list):
        return above
    # What is new comes first: of variables of one name the last holds, and ours hold. What has no key an API server refuses, and says so.
    over = {_name(each, key) or number: each for number, each in enumerate(above)}
    known = {_name(each, key) for each in below}
    new = [each for name, each in over.items() if name not in known]
    return [*new, *(_merged(each, over.get(_name(each, key), {})) for each in below)]


def _name(item: Object, key: str) -> str:
    found = item.get(key)
    return found if isinstance(found, str) else ""
