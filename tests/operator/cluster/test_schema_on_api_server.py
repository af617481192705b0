"""The API server itself refuses what is wrong, with the message that `shoal up` would print: every CEL rule, bounds, unknown keys."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import yaml
from control_plane import ControlPlane, shipped_crds
from kube_client import Kube, Object, Refused, make_namespace
from kube_manifests import SMALL, manifest, merged, placed, run

from servers import ROOT
from shoal_operator.api.rules import RULES, Rule

SCHEMAS = {
    crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for crd in shipped_crds()
}
EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("**/*.yaml") if path.parent.name not in ("serving", "tenancy")
)


@pytest.fixture(scope="module")
def namespace(kube: Kube) -> Iterator[str]:
    """One for all: what these tests make is deleted, and one for each would cost the control plane more than they do."""
    name = make_namespace(kube)
    yield name
    kube.delete("Namespace", name)


def places(schema: Object, rule: Object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where in a schema a rule stands."""
    if any(rule.items() <= each.items() for each in schema.get("x-kubernetes-validations", [])):
        yield path
    for name, below in schema.get("properties", {}).items():
        yield from places(below, rule, (*path, name))
    if isinstance(schema.get("items"), dict):
        yield from places(schema["items"], rule, (*path, "[]"))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from places(schema["additionalProperties"], rule, (*path, "*"))


def where(rule: Rule) -> tuple[str, tuple[str, ...]]:
    """Kind and path of the first place of a rule."""
    for kind, schema in SCHEMAS.items():
        for path in places(schema, {"rule": rule.expression, "message": message(rule)}):
            return kind, path
    raise AssertionError(f"no CRD has the rule {rule.expression}")


BESIDE: dict[str, Object] = {
    "S3Storage": {"endpoint": "http://s3", "bucket": "rollouts"},
    "WorkloadIdentity": {"serviceAccount": "store", "roleArn": "arn:aws:iam::1:role/research"},
    "NodeRequirement": {"key": "zone"},
    "SftSettings": {"dataset": {"path": "/data"}},
    "CustomObjective": {"path": "lab.objectives:OURS", "sha256": "ab" * 32},
    "IslandGroup": {"name": "north-south", "serveLighthouse": True},
}
"""Required fields that stand beside what a rule reads, by the rule's model: an example holds only what the rule reads."""

AROUND: dict[str, Object] = {
    "LengthReward": {"sampling": {"maxCompletionTokens": 4096}, "recipe": {"maxSequenceLength": 8192}},
    "RollBack": {"steps": 1000},
    "AzureWorkload": {"storage": {"azure": {"account": "research", "container": "rollouts"}}},
    "GcsWorkload": {"storage": {"gcs": {"bucket": "rollouts"}}},
    "WorkloadIdentity": {"storage": {"s3": {"endpoint": "http://s3", "bucket": "rollouts"}}},
    "GenerateSettings": {"mode": "Generate"},
    "SftSettings": {"mode": "SFT"},
    "SftDataset": {"mode": "SFT"},
    "OfflineFilter": {"tasks": {"dataset": {"path": "/data/tasks"}}},
    "DatasetColumns": {"tasks": {"dataset": {"path": "/data/tasks"}}},
    "AnswerExtraction": {
        "tasks": {"dataset": {"path": "/data/tasks", "columns": {"prompt": "question", "answer": "answer"}}}
    },
    "RowFilter": {"tasks": {"dataset": {"path": "/data/tasks"}}},
    "MixtureSource": {"lengthReward": {"targets": [16]}},
    "TrainerSettings": {"trainer": {"gpu": {"count": 1}}},
}
"""What other rules want of the rest of the spec when the example is in its place."""

MIXTURE: Object = {
    "tasks": {"mixture": [{"name": name, "environment": name, "weight": 1} for name in ("math", "code", "sums")]}
}
"""What `recipe.sources` in an example names."""

CONTAINER_OF = {"InferencePool": "worker", "RelayServer": "sync", "Validator": "validator"}
"""A container that stands around a rule of what is in it."""

CHOICES = ("model", "storage")
"""Fields that are given whole: an example of a rule replaces them, two halves would be two choices."""


def with_example(rule: Rule, value: Object, namespace: str) -> Object:
    """A whole object with a rule's example in its place."""
    kind, path = where(rule)
    changed = placed(path, BESIDE.get(rule.model, {}) | value)
    example = changed["spec"]
    for container in example.get("podTemplate", {}).get("containers", []):
        container.setdefault("name", CONTAINER_OF[kind])
    for source in example.get("recipe", {}).get("sources", []):
        source.setdefault("name", "code")
    around = AROUND.get(rule.model, {})
    if "sources" in example.get("recipe", {}) and "tasks" not in example:
        around = MIXTURE
    given = example | around
    whole_fields = [*CHOICES, "tasks"] if "mixture" in given.get("tasks", {}) else CHOICES
    rest = {key: each for key, each in SMALL[kind].items() if key not in whole_fields or key not in given}
    if "Generate" in (around.get("mode"), example.get("mode")):
        del rest["steps"]  # which that mode does not have
    whole = manifest(kind, changed.get("metadata", {}).get("name", "sums"), namespace)
    return whole | {"spec": merged(merged(rest, around), example)}


def without_the_rest(rule: Rule) -> Object:
    """The bad example of an update as a merge patch: what the rule's field no longer has is taken out."""

    def below(old: object, bad: object, path: list[str]) -> object:
        if not isinstance(old, dict) or not isinstance(bad, dict):
            return bad
        if not path:
            return dict.fromkeys(old) | bad
        return bad | {path[0]: below(old.get(path[0]), bad.get(path[0]), path[1:])}

    return cast(Object, below(rule.old, rule.bad, rule.field.split(".")))


def message(rule: Rule) -> str:
    return f"{rule.field} {rule.message}".strip()


@pytest.mark.parametrize("rule", [r for r in RULES if not r.of_updates], ids=lambda r: f"{r.model}.{r.field}")
def test_every_rule_refuses_its_bad_example_and_takes_its_good_one(rule: Rule, kube: Kube, namespace: str) -> None:
    kube.create(with_example(rule, rule.good, namespace), dry_run=True)
    with pytest.raises(Refused) as caught:
        kube.create(with_example(rule, rule.bad, namespace), dry_run=True)
    assert caught.value.status == 422
    assert message(rule) in caught.value.message


@pytest.mark.parametrize("rule", [r for r in RULES if r.of_updates], ids=lambda r: f"{r.model}.{r.field}")
def test_what_cannot_change_is_refused_in_an_update(rule: Rule, kube: Kube, namespace: str) -> None:
    kind, path = where(rule)
    assert rule.old is not None
    made = kube.create(with_example(rule, rule.old, namespace))
    try:
        if "status" in rule.old:
            kube.merge(kind, "sums", namespace, {"status": rule.old["status"]}, sub="status")
        kube.merge(kind, "sums", namespace, placed(path, rule.good))
        with pytest.raises(Refused) as caught:
            kube.merge(kind, "sums", namespace, placed(path, without_the_rest(rule)))
        assert caught.value.status == 422
        assert message(rule) in caught.value.message
        assert kube.get(kind, "sums", namespace)["metadata"]["uid"] == made["metadata"]["uid"]
    finally:
        kube.delete(kind, "sums", namespace)


def test_a_name_too_long_for_its_children_is_refused(kube: Kube, namespace: str) -> None:
    with pytest.raises(Refused, match="at most 40 characters"):
        kube.create(run(namespace, name="a" * 41), dry_run=True)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"steps": 0}, "spec.steps in body should be greater than or equal to 1"),
        ({"asyncLevel": 9}, "spec.asyncLevel in body should be less than or equal to 4"),
        ({"trainer": {"resources": {"requests": {"cpu": -1}}}}, "in body should be greater than or equal to 0"),
        ({"storeVolume": {"size": -5}}, "spec.storeVolume.size in body should be greater than or equal to 1"),
        ({"storage": {"folderSize": "20e9"}}, "spec.storage.folderSize in body should match"),
        ({"steps": "four"}, "spec.steps in body must be of type integer"),
    ],
)
def test_a_value_outside_its_bounds_is_refused_with_the_bound(
    kube: Kube, namespace: str, spec: Object, said: str
) -> None:
    with pytest.raises(Refused) as caught:
        kube.create(run(namespace, **spec), dry_run=True)
    assert said in caught.value.message


def test_a_misspelled_key_is_refused_by_kubectl(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(run(namespace, asynclevel=2)))
    said = control_plane.kubectl("apply", "-f", str(path), check=False)
    assert 'unknown field "spec.asynclevel"' in said


def test_absent_fields_get_their_defaults(kube: Kube, namespace: str) -> None:
    spec = kube.create(run(namespace, recipe=None), dry_run=True)["spec"]
    assert (spec["asyncLevel"], spec["recipe"]["promptsPerStep"]) == (2, 256)
    assert spec["recipe"]["algorithm"] == {
        "twoSidedGrpo": {"clipEpsilon": 0.2, "clipDelta": 4.0, "normalizeAdvantages": True}
    }
    assert "groupSize" not in spec["recipe"]  # 16, or 4 with PRIME: the operator fills it in


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT / "examples")))
def test_every_shipped_example_is_accepted(path: Path, control_plane: ControlPlane, kube: Kube, namespace: str) -> None:
    control_plane.kubectl("apply", "--dry-run=server", "-n", namespace, "-f", str(path))
