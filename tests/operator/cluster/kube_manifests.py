"""Small manifests of the four kinds for tests on the API server, and how to change one deep inside."""

import copy
from typing import Any

from kube_client import Object

SMALL: dict[str, Object] = {
    "TrainingRun": {
        "model": {"generated": {}},
        "tasks": {"environment": "arithmetic", "count": 8},
        "steps": 4,
        "recipe": {"promptsPerStep": 8, "groupSize": 4, "optimizerSteps": 2, "maxSequenceLength": 160},
        "sampling": {"maxCompletionTokens": 96, "groupsPerSubmission": 4},
    },
    "InferencePool": {"run": "sums", "replicas": 2},
    "RelayServer": {"run": "sums", "replicas": 2},
    "Validator": {"run": "sums", "replicas": 1},
}
"""A valid spec of each kind with little in it."""


def manifest(kind: str, name: str, namespace: str, **changes: Any) -> Object:
    """An object of a kind; `changes` are merged into its spec."""
    return {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": merged(SMALL[kind], changes),
    }


def run(namespace: str, name: str = "sums", **changes: Any) -> Object:
    """A TrainingRun."""
    return manifest("TrainingRun", name, namespace, **changes)


def merged(below: Any, above: Any) -> Any:
    """`above` laid over `below`: mappings are merged, everything else is replaced."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return copy.deepcopy(above)
    return {
        **copy.deepcopy(below),
        **{key: merged(below[key], value) if key in below else copy.deepcopy(value) for key, value in above.items()},
    }


def placed(path: tuple[str, ...], value: Any) -> Any:
    """The value below a path of keys; `[]` is a list of one, `*` any key of a map."""
    for part in reversed(path):
        value = [value] if part == "[]" else {("one" if part == "*" else part): value}
    return value
