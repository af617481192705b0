"""What a GitOps controller finds: a manifest that was applied does not differ from its object, whatever defaults and the operator add to it.

Argo CD with `ServerSideDiff=true` and Flux ask the API server by a dry run, as `kubectl diff --server-side` does here. Argo CD's own comparison takes
a list of a manifest for the whole list: it would miss the defaults in items of `inferencePools` for ever. So docs/operator.md asks for that option.
"""

from collections.abc import Iterator
from pathlib import Path

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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT / "examples")))
def test_an_applied_manifest_has_no_difference(path: Path, control_plane: ControlPlane, room: str) -> None:
    control_plane.kubectl("apply", *CONTROLLER, "-n", room, "-f", str(path))
    assert control_plane.kubectl("diff", *CONTROLLER, "-n", room, "-f", str(path), check=False) == ""
    control_plane.kubectl("delete", "-n", room, "-f", str(path))


def test_a_second_sync_of_a_run_at_work_writes_nothing_and_its_parts_are_its_own(
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
