"""Writes the CRDs of the four kinds: `python -m shoal_operator.api.crd crds/` (`make crds`). A test fails when the files drift."""

import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from shoal_operator.api import KINDS
from shoal_operator.api.base import GROUP, VERSION
from shoal_operator.api.schema import structural_schema

PLURALS = {
    "TrainingRun": "trainingruns",
    "InferencePool": "inferencepools",
    "RelayServer": "relayservers",
    "Validator": "validators",
}
SHORT_NAMES = {"TrainingRun": "trun", "InferencePool": "ipool", "RelayServer": "relay", "Validator": "val"}

_RUN_NAME_RULE = {
    "rule": "self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')",
    "message": "metadata.name must be a DNS label of at most 40 characters: the children's names start with it",
}


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
]
COLUMNS = {
    "TrainingRun": [
        _column("Phase", "string", ".status.phase"),
        _column("Step", "integer", ".status.step"),
        _column("Steps", "integer", ".spec.steps"),
        _column("Version", "integer", ".status.policyVersion"),
        _column("Reward", "number", ".status.reward"),
        _column("GradNorm", "number", ".status.gradientNorm", 1),
        _column("Lag", "number", ".status.policyLag", 1),
        _column("Accepted", "integer", ".status.accepted", 1),
        _column("Rejected", "integer", ".status.rejected", 1),
        _READY,
        _AGE,
    ],
    "InferencePool": _SCALED_COLUMNS,
    "RelayServer": _SCALED_COLUMNS,
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
    }
    subresources: dict[str, Any] = {"status": {}}
    if kind == "TrainingRun":
        schema["x-kubernetes-validations"] = [_RUN_NAME_RULE]
    else:
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


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def crd_yaml(kind: str) -> str:
    """The CRD as YAML text, keys in the order given, so that a diff shows what changed."""
    header = "# Made by `make crds` from operator/shoal_operator/api: change it there.\n"
    return header + yaml.dump(crd(kind), Dumper=_Dumper, sort_keys=False, width=120)


def file_name(kind: str) -> str:
    return f"{GROUP}_{PLURALS[kind]}.yaml"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        (folder / file_name(kind)).write_text(crd_yaml(kind), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m shoal_operator.api.crd FOLDER")
    main(Path(sys.argv[1]))
