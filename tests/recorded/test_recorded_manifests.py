"""Manifests of earlier releases are accepted by today's models, with the same defaults, and render."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel
from record_manifests import HERE, object_of, spec_of

from shoal_operator.api import KINDS, TrainingRun
from shoal_operator.api.manifest import check
from shoal_operator.children.names import SOFTWARE_VERSION
from shoal_operator.render import render

FOLDERS = sorted(HERE.glob("v*/manifests/*"))
CURRENT = [folder for folder in FOLDERS if folder.parts[-3] == f"v{SOFTWARE_VERSION}"]


def named(folder: Path) -> str:
    return f"{folder.parts[-3]}/{folder.name}"


@pytest.mark.parametrize("folder", FOLDERS, ids=named)
def test_a_recorded_manifest_has_the_defaults_that_it_had(folder: Path) -> None:
    recorded = yaml.safe_load((folder / "spec.yaml").read_text())
    found = object_of(folder)
    assert spec_of(found) == recorded
    stored = yaml.safe_load((folder / "manifest.yaml").read_text()) | {"spec": recorded}
    assert check(stored) == (found, []), "an API server's stored object is read as the manifest is"


@pytest.mark.parametrize("folder", FOLDERS, ids=named)
def test_a_recorded_run_renders(folder: Path) -> None:
    found = object_of(folder)
    if isinstance(found, TrainingRun):
        assert {"Job", "ConfigMap"} <= {each["kind"] for each in render(found)}


def test_the_recorded_manifests_of_this_release_give_every_field_of_every_model() -> None:
    """A field that no recorded manifest gives could vanish unseen."""
    objects = [object_of(folder) for folder in CURRENT]
    assert {type(found) for found in objects} == set(KINDS.values())
    given: dict[type[BaseModel], set[str]] = {}
    for model in (below for found in objects for below in models(found.spec)):
        given.setdefault(type(model), set()).update(model.model_fields_set)
    missing = {model.__name__: set(model.model_fields) - fields for model, fields in given.items()}
    assert {name: fields for name, fields in missing.items() if fields} == {}


def models(value: object) -> Iterator[BaseModel]:
    """A model and every model below it."""
    if isinstance(value, BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from models(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            yield from models(item)
