"""The CRDs of the four kinds, from the models in `shoal_operator.api`. Pure."""

from typing import Any

import yaml
from pydantic import BaseModel

from shoal_operator.api import KINDS
from shoal_operator.api.base import GROUP, VERSION
from shoal_operator.api.rules import rules_of
from shoal_operator.api.schema import structural_schema
from shoal_operator.render import PlainDumper

PLURALS = {
    "TrainingRun": "trainingruns",
    "InferencePool": "inferencepools",
    "RelayServer": "relayservers",
    "Validator": "validators",
}
SHORT_NAMES = {"TrainingRun": "trun", "InferencePool": "ipool", "RelayServer": "relay", "Validator": "val"}


def _name_rule(kind: str) -> dict[str, str]:
    """A name that the models take: other objects, labels and host names are made of it."""
    most = 40 if kind == "TrainingRun" else 52
    return {
        "rule": f"self.metadata.name.size() <= {most} && self.metadata.name.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')",
        "message": f"metadata.name must be a DNS label of at most {most} characters: the children's names start with it",
    }


def _root_rules(kind: str) -> list[dict[str, str]]:
    """Rules between the name and the spec."""
    return [{"rule": rule.expression, "message": f"{rule.field} {rule.message}"} for rule in rules_of(kind)]


def _column(name: str, kind: str, path: str, priority: int = 0) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    return column | ({"priority": priority} if priority else {})


_AGE = _column("Age", "date", ".metadata.creationTimestamp")
_READY = _column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status")
_SCALED_COLUMNS = [
    _column("Run", "string", ".spec.run"),
    _column("Replicas", "integer", ".spec.replicas"),
    _column("Available", "integer", ".status.readyReplicas"),
    _READY,
    _AGE,
    _column("Message", "string", ".status.conditions[?(@.type=='Ready')].message", 1),
]
COLUMNS = {
    "TrainingRun": [
        _column("Phase", "string", ".status.phase"),
        _column("Step", "integer", ".status.step"),
        _column("Steps", "integer", ".spec.steps"),
        _column("Version", "integer", ".status.policyVersion"),
        _column("Reward", "number", ".status.reward"),
        _column("Nodes", "integer", ".status.nodes"),
        _READY,
        _column("Stable", "string", ".status.conditions[?(@.type=='Stable')].status"),
        _column("ETA", "string", ".status.eta"),
        _AGE,
        _column("Message", "string", ".status.conditions[?(@.type=='Ready')].message"),
        _column("GradNorm", "number", ".status.gradientNorm", 1),
        _column("ClipRatio", "number", ".status.clipRatio", 1),
        _column("Lag", "number", ".status.policyLag", 1),
        _column("Accepted", "integer", ".status.accepted", 1),
        _column("Rejected", "integer", ".status.rejected", 1),
        _column("Slashed", "integer", ".status.slashed", 1),
        _column("Endpoint", "string", ".status.endpoint", 1),
        _column("Round", "integer", ".status.islands.round", 1),
        _column("Exchanging", "string", ".status.conditions[?(@.type=='Exchanging')].status", 1),
    ],
    "InferencePool": [*_SCALED_COLUMNS, _column("Open", "boolean", ".spec.open", 1)],
    "RelayServer": [*_SCALED_COLUMNS, _column("Exposure", "string", ".spec.exposure.type", 1)],
    "Validator": _SCALED_COLUMNS,
}


def crd(kind: str) -> dict[str, Any]:
    """The CustomResourceDefinition of one of our kinds, as an object."""
    model = KINDS[kind]
    spec, status = (_field_schema(model, name) for name in ("spec", "status"))
    schema: dict[str, Any] = {
        "type": "object",
        "description": model.__doc__,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
        "x-kubernetes-validations": [_name_rule(kind), *_root_rules(kind)],
    }
    subresources: dict[str, Any] = {"status": {}}
    if kind != "TrainingRun":
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURALS[kind]}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": PLURALS[kind],
                "singular": kind.lower(),
                "shortNames": [SHORT_NAMES[kind]],
                "categories": ["shoal"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": subresources,
                    "additionalPrinterColumns": COLUMNS[kind],
                }
            ],
        },
    }


def _field_schema(model: type[BaseModel], field: str) -> dict[str, Any]:
    annotation: Any = model.model_fields[field].annotation
    members: list[Any] = [found for found in getattr(annotation, "__args__", (annotation,)) if found is not type(None)]
    return structural_schema(members[0])


def crd_yaml(kind: str) -> str:
    """The CRD as YAML text, keys in the order given, so that a diff shows what changed."""
    header = "# Made by `make crds` from operator/shoal_operator/api: change it there.\n"
    return header + yaml.dump(crd(kind), Dumper=PlainDumper, sort_keys=False, width=120)


def file_name(kind: str) -> str:
    return f"{GROUP}_{PLURALS[kind]}.yaml"
