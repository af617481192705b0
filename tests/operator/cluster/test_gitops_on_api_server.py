"""What a GitOps controller finds: a manifest that was applied does not differ from its object, whatever defaults and the operator add to it.

Argo CD with `ServerSideDiff=true` and Flux ask the API server by a dry run, as `kubectl diff --server-side` does here. Argo CD's own comparison takes
a manifest's list for the whole list: `whole_lists` is that rule.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_story import Story
from control_plane import ControlPlane
from kube_client import Kube, make_namespace
from operator_process import OperatorProcess
from snapshot_cluster import wait_settled

from servers import ROOT

EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("**/*.yaml") if path.parent.name not in ("serving", "tenancy")
)
CONTROLLER = ("--server-side", "--field-manager=argocd-controller")


@pytest.fixture(scope="module")
def room(kube: Kube) -> Iterator[str]:
    """One namespace for all examples."""
    name = make_namespace(kube)
    yield name
    kube.delete("Namespace", name)


def whole_lists(written: Any, live: Any, path: str = "") -> list[str]:
    """Where the live object lacks what is written, if a list is equal only to an equal list."""
    if isinstance(written, dict) and isinstance(live, dict):
        return [each for key, value in written.items() for each in whole_lists(value, live.get(key), f"{path}.{key}")]
    return [] if written == live else [f"{path}: {written!r} is {live!r}"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT / "examples")))
def test_an_applied_manifest_has_no_difference(path: Path, control_plane: ControlPlane, kube: Kube, room: str) -> None:
    control_plane.kubectl("apply", *CONTROLLER, "-n", room, "-f", str(path))
    assert control_plane.kubectl("diff", *CONTROLLER, "-n", room, "-f", str(path), check=False) == ""
    for written in yaml.safe_load_all(path.read_text()):
        live = kube.get(written["kind"], written["metadata"]["name"], room)
        assert live is not None
        assert whole_lists(written["spec"], live["spec"]) == []
    control_plane.kubectl("delete", "-n", room, "-f", str(path))


def test_a_sync_of_a_run_at_work_writes_nothing_and_no_part_of_it_stands_in_the_repository(
    story: Story, operator: OperatorProcess, control_plane: ControlPlane, tmp_path: Path
) -> None:
    manifest = tmp_path / "run.yaml"
    made = story.running()
    written = {key: made[key] for key in ("apiVersion", "kind", "spec")}
    manifest.write_text(yaml.safe_dump({**written, "metadata": {"name": "sums", "namespace": story.namespace}}))
    control_plane.kubectl("apply", *CONTROLLER, "--force-conflicts", "-f", str(manifest))
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    wait_settled(story)
    before = story.get("TrainingRun", "sums")
    assert control_plane.kubectl("diff", *CONTROLLER, "-f", str(manifest), check=False) == ""
    control_plane.kubectl("apply", *CONTROLLER, "-f", str(manifest))
    wait_settled(story)
    after = story.get("TrainingRun", "sums")
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    for kind, name in story.managed():
        metadata = story.get(kind, name)["metadata"]
        assert metadata.get("ownerReferences") or "shoal.dev/retain" in metadata.get("annotations", {}), (kind, name)
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "shoal-operator"
