"""The runs of e2e/test_citizen.py and test_placement.py are ones that the operator takes, and what is served is the example with this store."""

from pathlib import Path

import yaml
from e2e import identity_store, served_model, test_citizen, test_placement
from e2e.release import Release
from e2e.space import Space
from e2e.story import Story
from kube_client import Kube

from shoal_operator.api.manifest import load_manifest
from vllm_on_cpu import ARGUMENTS


def space() -> Space:
    """One that asks nobody."""
    return Space(Kube.__new__(Kube), "citizen", Path("none"), lambda role: f"registry.example.org/shoal/{role}:1")


def test_the_queued_runs_are_ones_that_the_operator_takes() -> None:
    queued = test_citizen.queued_run(Story(space(), Release(space(), Path("none"))))
    for made in (queued, test_placement.run(space())):
        (run,) = load_manifest(yaml.safe_dump(made), "citizen")
        assert made["spec"]["queueName"] == "research"
        assert run.kind == "TrainingRun"


def test_what_is_served_is_the_example_but_for_its_store_its_image_and_its_size() -> None:
    example, service = yaml.safe_load_all(served_model.EXAMPLE.read_text())
    ours, same = served_model.documents(space(), "ab" * 32, "s3://rollouts/shoal/arithmetic")
    assert same == service
    text = yaml.safe_dump(ours)
    assert "store.example" not in text
    assert served_model.NO_KEY not in text
    assert f"--endpoint={identity_store.endpoint(space())}" in text
    before, after = (each["spec"]["template"]["spec"] for each in (example, ours))
    for part in ("initContainers", "containers"):
        (old,), (new,) = before[part], after[part]
        differing = {key for key in old if old[key] != new[key]}
        assert differing <= {"image", "command", "resources", "env"}
        assert new["image"] == "registry.example.org/shoal/worker:1"
    assert after["containers"][0]["command"][2] == f"{before['containers'][0]['command'][2]} {ARGUMENTS}"
    assert {key for key in before if before[key] != after[key]} == {"initContainers", "containers"}
