"""The CRDs: as committed, and of the structural form that an API server takes."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celpy
import pytest
import yaml
from celpy.adapter import json_to_cel
from pydantic import Field, ValidationError
from tools.crds.crd import crd, crd_yaml, file_name
from tools.crds.reference import reference_page

from shoal.contracts.base import SpecModel
from shoal_operator.api import KINDS
from shoal_operator.api.schema import UnsupportedSchema, schema_at, structural_schema
from shoal_operator.api.training_run import TrainingRunSpec

CRDS = Path(__file__).parents[2] / "crds"


@pytest.mark.parametrize("kind", KINDS)
def test_the_committed_file_is_what_the_models_say(kind: str) -> None:
    assert (CRDS / file_name(kind)).read_text() == crd_yaml(kind), "run `make crds`"


def test_the_committed_reference_page_is_what_the_models_say() -> None:
    assert (CRDS.parent / "docs" / "reference.md").read_text() == reference_page(), "run `make crds`"


def test_the_reference_page_links_only_to_what_it_has() -> None:
    page = reference_page()
    headings = {line.lstrip("# ").lower().replace(" ", "-") for line in page.splitlines() if line.startswith("#")}
    assert set(re.findall(r"\(#([^)]+)\)", page)) <= headings


def test_no_other_file_is_beside_them() -> None:
    assert {path.name for path in CRDS.iterdir()} == {file_name(kind) for kind in KINDS}


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


def version(kind: str) -> dict[str, Any]:
    return crd(kind)["spec"]["versions"][0]


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_structural(kind: str) -> None:
    schema = version(kind)["schema"]["openAPIV3Schema"]
    for path, node in nodes(schema):
        assert "type" in node or "x-kubernetes-int-or-string" in node, path
        assert not {"$ref", "anyOf", "oneOf", "allOf", "const", "title"} & set(node), path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert node.get("default", ...) is not None, path
        assert isinstance(node.get("exclusiveMinimum", True), bool), path


@pytest.mark.parametrize("kind", KINDS)
def test_what_cel_reads_is_bounded(kind: str) -> None:
    for path, node in nodes(version(kind)["schema"]["openAPIV3Schema"]["properties"]["spec"]):
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path
        if node.get("type") == "string":
            assert {"maxLength", "pattern", "enum"} & set(node), path


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_a_spec_is_described(kind: str) -> None:
    spec = version(kind)["schema"]["openAPIV3Schema"]["properties"]["spec"]
    lacking = [path for path, node in nodes(spec) if not path.endswith("[]") and not node.get("description") and path]
    assert lacking == []


def test_conditions_are_a_map_by_type() -> None:
    for kind in KINDS:
        conditions = version(kind)["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["conditions"]
        assert conditions["x-kubernetes-list-type"] == "map"
        assert conditions["x-kubernetes-list-map-keys"] == ["type"]


def test_names_and_subresources() -> None:
    short = {kind: crd(kind)["spec"]["names"]["shortNames"] for kind in KINDS}
    assert short == {
        "TrainingRun": ["trun"],
        "InferencePool": ["ipool"],
        "RelayServer": ["relay"],
        "Validator": ["val"],
    }
    assert all(crd(kind)["spec"]["names"]["categories"] == ["shoal"] for kind in KINDS)
    assert all("status" in version(kind)["subresources"] for kind in KINDS)
    assert [kind for kind in KINDS if "scale" in version(kind)["subresources"]] == [
        "InferencePool",
        "RelayServer",
        "Validator",
    ]


def test_defaults_below_an_object_apply_though_the_object_is_absent() -> None:
    spec = yaml.safe_load(crd_yaml("TrainingRun"))["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][
        "spec"
    ]
    recipe = spec["properties"]["recipe"]
    assert recipe["default"]["promptsPerStep"] == 256
    assert recipe["properties"]["promptsPerStep"]["default"] == 256
    assert "default" not in spec["properties"]["lengthReward"]


def test_no_group_size_is_filled_in_by_a_server_that_cannot_know_the_algorithm() -> None:
    recipe = schema_at(structural_schema(TrainingRunSpec), ("recipe",))
    assert recipe is not None
    assert "default" not in recipe["properties"]["groupSize"]
    assert "groupSize" not in recipe["default"]
    assert "groupSize" not in recipe.get("required", [])


def test_each_description_is_of_short_sentences() -> None:
    """What `kubectl explain` prints, at most 25 words a sentence."""
    long = {
        sentence
        for kind in KINDS
        for description in re.findall(r"description: (.*?)(?=\n\s*[A-Za-z-]+:\s)", crd_yaml(kind), re.DOTALL)
        for sentence in re.split(r"[.:;]\s", description)
        if len(sentence.split()) > 25
    }
    assert not long


def test_an_algorithm_has_only_parameters_that_have_an_effect_with_it() -> None:
    union = schema_at(structural_schema(TrainingRunSpec), ("recipe", "algorithm"))
    assert union is not None
    parameters = {name: set(member["properties"]) for name, member in union["properties"].items()}
    assert {name for name, of in parameters.items() if "clipDelta" in of} == {"twoSidedGrpo"}
    assert {name for name, of in parameters.items() if "normalizeAdvantages" not in of} == {"drGrpo", "rloo", "prime"}


def test_a_union_is_refused_by_the_name_of_its_field() -> None:
    class Either(SpecModel):
        value: int | list[int] = Field(1, description="Either.")

    with pytest.raises(UnsupportedSchema, match=r"Either\.value: unions are not allowed"):
        structural_schema(Either)


@pytest.mark.parametrize(
    ("kind", "most"), [("TrainingRun", 40), *((kind, 52) for kind in KINDS if kind != "TrainingRun")]
)
def test_a_name_that_the_models_do_not_take_is_refused_by_the_api_server(kind: str, most: int) -> None:
    """The operator could read such an object neither for itself nor for the run that it serves."""
    rule, *_ = version(kind)["schema"]["openAPIV3Schema"]["x-kubernetes-validations"]
    metadata = KINDS[kind].model_fields["metadata"].annotation
    assert metadata is not None
    for name in ("a" * most, "a-b", "a" * (most + 1), "a.b", "-a", "a-"):
        try:
            metadata(name=name)
            taken = True
        except ValidationError:
            taken = False
        program = celpy.Environment().program(celpy.Environment().compile(rule["rule"]))
        assert bool(program.evaluate({"self": json_to_cel({"metadata": {"name": name}})})) is taken, name
