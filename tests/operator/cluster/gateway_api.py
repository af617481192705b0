"""The Gateway API's HTTPRoute on an API server for tests: a CRD with the documented shape of what is used, and no other field.

With `--kubeconfig` the cluster's own is used where it has one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from foreign_kinds import CONDITION, definition, fields, is_installed, served
from kube_client import GATEWAY, Kube, Object

GROUP = GATEWAY.removeprefix("/apis/").split("/")[0]
CONTROLLER = "example.org/controller"


def _list(items: Object, most: int, **more: Any) -> Object:
    return {"type": "array", "maxItems": most, "items": items, "x-kubernetes-list-type": "atomic", **more}


def _rule(rule: str, message: str) -> Object:
    return {"x-kubernetes-validations": [{"rule": rule, "message": message}]}


def _text(**more: Any) -> Object:
    return {"type": "string", "minLength": 1, "maxLength": 253, **more}


def _number(least: int, most: int, **more: Any) -> Object:
    return {"type": "integer", "format": "int32", "minimum": least, "maximum": most, **more}


PARENT = fields(
    ["name"],
    group=_text(default=GROUP),
    kind=_text(default="Gateway"),
    namespace=_text(),
    name=_text(),
    sectionName=_text(),
    port=_number(1, 65535),
)
PATH = fields(
    [],
    type={"type": "string", "enum": ["Exact", "PathPrefix", "RegularExpression"], "default": "PathPrefix"},
    value={"type": "string", "maxLength": 1024, "default": "/"},
) | _rule("self.type == 'RegularExpression' || self.value.startsWith('/')", "value must be an absolute path")
BACKEND = fields(
    ["name"],
    group={"type": "string", "maxLength": 253, "default": ""},
    kind=_text(default="Service"),
    name=_text(),
    namespace=_text(),
    port=_number(1, 65535),
    weight=_number(0, 1_000_000, default=1),
) | _rule("self.kind != 'Service' || has(self.port)", "Must have port for Service reference")
ALL = [{"path": {"type": "PathPrefix", "value": "/"}}]
HOST = _text(pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
DURATION = {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
TIMEOUTS = fields([], request=DURATION, backendRequest=DURATION) | _rule(
    "!(has(self.request) && has(self.backendRequest) && duration(self.request) != duration('0s') && duration(self.backendRequest) >"
    " duration(self.request))",
    "backendRequest timeout cannot be longer than request timeout",
)
RULE = fields(
    [],
    matches=_list(fields([], path=PATH), 64, default=ALL),
    backendRefs=_list(BACKEND, 16),
    timeouts=TIMEOUTS,
)
SAID = {
    "type": "array",
    "maxItems": 8,
    "items": CONDITION,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
}
ROUTE = fields(
    ["spec"],
    spec=fields(
        [],
        parentRefs=_list(PARENT, 32),
        hostnames=_list(HOST, 16),
        rules=_list(RULE, 16, default=[{"matches": ALL}]),
    ),
    status=fields(
        ["parents"],
        parents=_list(
            fields(["parentRef", "controllerName"], parentRef=PARENT, controllerName=_text(), conditions=SAID), 32
        ),
    ),
)
DEFINITION = definition(
    GATEWAY, "HTTPRoute", ROUTE, approved="https://github.com/kubernetes-sigs/gateway-api/pull/2997"
)
"""What v1 documents of an HTTPRoute, as far as the operator writes or reads it."""


@contextmanager
def httproutes(kube: Kube) -> Iterator[None]:
    """The kind is served; it goes again with all routes, unless it was there before."""
    if is_installed(kube, "HTTPRoute"):
        yield
        return
    with served(kube, DEFINITION):
        yield


def say(kube: Kube, namespace: str, name: str, **false: tuple[str, str]) -> None:
    """Play the Gateway's controller: `Accepted` and `ResolvedRefs` are True but those of `false`, with reason and message."""
    route = kube.get("HTTPRoute", name, namespace)
    assert route is not None
    conditions = [
        {
            "type": each,
            "status": "False" if each in false else "True",
            "reason": false[each][0] if each in false else each,
            "message": false[each][1] if each in false else "",
            "observedGeneration": route["metadata"]["generation"],
            "lastTransitionTime": "2026-11-27T12:00:00Z",
        }
        for each in ("Accepted", "ResolvedRefs")
    ]
    parents = [
        {"parentRef": each, "controllerName": CONTROLLER, "conditions": conditions}
        for each in route["spec"]["parentRefs"]
    ]
    kube.merge("HTTPRoute", name, namespace, {"status": {"parents": parents}}, sub="status", manager="gateway")
