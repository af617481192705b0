"""e2e/story.py: the run of the end-to-end story is one that the operator takes, and the cheat is a pod of the pool in all but its lie."""

import ast
import inspect
from typing import Any

import pytest
import yaml
from e2e.story import EXAMPLE, LIE, crashes, manifest, merged, without_claims

from servers import ROOT
from shoal.inference import rollouts
from shoal_operator.api.manifest import load_manifest

Object = dict[str, Any]


def image(role: str) -> str:
    return f"registry.example.org/shoal/{role}:1"


def story_run() -> Object:
    return manifest(image, "http://shoal-minio.story.svc:9000", "shoal-storage")


def test_the_storys_run_is_one_that_the_operator_takes() -> None:
    (run,) = load_manifest(yaml.safe_dump(story_run()), "story")
    assert run.kind == "TrainingRun"


def test_the_storys_run_is_the_example_but_for_its_size_its_store_and_its_images() -> None:
    example, run = yaml.safe_load(EXAMPLE.read_text()), story_run()
    assert run["metadata"] == example["metadata"]
    differing = {field for field in example["spec"] if run["spec"].get(field) != example["spec"][field]}
    assert differing == {"steps", "recipe", "sampling", "inferencePools", "validator", "trainer", "storage"}
    for field in ("groupSize", "learningRate", "maxSequenceLength"):
        assert run["spec"]["recipe"][field] == example["spec"]["recipe"][field]


def test_every_part_of_the_storys_run_has_the_image_that_is_tested() -> None:
    parts = ("protocol", "redis", "relay", "trainer", "validator", "worker")
    assert story_run()["spec"]["images"] == {part: image(part) for part in parts}


def test_maps_are_merged_and_lists_are_replaced() -> None:
    assert merged({"a": {"b": 1, "c": 2}, "d": [1, 2]}, {"a": {"c": 3}, "d": [4]}) == {"a": {"b": 1, "c": 3}, "d": [4]}


def test_a_pod_that_stands_alone_has_an_empty_folder_in_place_of_each_claim() -> None:
    mounts = [{"name": "key", "mountPath": "/shoal/key"}, {"name": "tmp", "mountPath": "/shoal/tmp"}]
    template = {"spec": {"containers": [{"volumeMounts": mounts}], "volumes": [{"name": "tmp", "emptyDir": {}}]}}
    volumes = without_claims(template)["spec"]["volumes"]
    assert volumes == [{"name": "tmp", "emptyDir": {}}, {"name": "key", "emptyDir": {}}]


@pytest.mark.parametrize(
    ("over", "is_crash"),
    [
        (None, False),
        ({"exitCode": 0, "reason": "Completed"}, False),
        ({"exitCode": 143, "reason": "Error"}, False),
        ({"exitCode": 1, "reason": "Error"}, True),
        ({"exitCode": 137, "reason": "OOMKilled"}, True),
    ],
)
def test_a_container_that_was_asked_to_end_is_no_crash_and_one_without_memory_is(
    over: Object | None, is_crash: bool
) -> None:
    last = {"terminated": over} if over else {}
    pod = {"status": {"containerStatuses": [{"name": "worker", "lastState": last}]}}
    assert bool(crashes(pod)) is is_crash


def test_what_the_lying_worker_replaces_is_what_workers_score_with() -> None:
    """The lie reaches into the worker's module: when that changes, the cheat would be honest, and never evicted."""
    assert "w.assemble = lambda *given: honest(*given[:-1]," in LIE
    assert list(inspect.signature(rollouts.assemble).parameters)[-1] == "score"
    tree = ast.parse((ROOT / "workloads/shoal/inference/worker.py").read_text())
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "assemble"
    ]
    assert [ast.unparse(call.args[-1]) for call in calls] == ["score"]
    imported = {name.name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert "assemble" in imported
