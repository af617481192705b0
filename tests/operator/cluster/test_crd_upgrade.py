"""CRDs are upgraded in place: objects made under an older schema are read, defaulted and reconciled under the new one. Nobody deletes a CRD."""

from collections.abc import Iterator

import pytest
from cluster_story import Story
from control_plane import install, older_crds, shipped_crds
from kube_client import Kube
from operator_process import StartOperator


@pytest.fixture
def older_schema(kube: Kube) -> Iterator[None]:
    """The CRDs as they were once; afterwards those of today."""
    install(kube, older_crds())
    yield
    install(kube, shipped_crds())


def test_the_older_schema_differs() -> None:
    today = {crd["metadata"]["name"]: crd for crd in shipped_crds()}
    older = older_crds()
    assert {crd["metadata"]["name"] for crd in older} == set(today)
    assert all(crd["spec"] != today[crd["metadata"]["name"]]["spec"] for crd in older)


def test_a_run_of_an_older_schema_is_reconciled_after_the_upgrade(
    older_schema: None, story: Story, start_operator: StartOperator, kube: Kube
) -> None:
    made = story.create(recipe={"learningRate": 1e-5}, relayServer={"replicas": 3})
    assert "trainer" in made["spec"]
    install(kube, shipped_crds())
    start_operator()
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    live = story.get("TrainingRun", "sums")
    assert live["metadata"]["uid"] == made["metadata"]["uid"]
    assert live["metadata"]["generation"] == made["metadata"]["generation"]
    assert live["spec"]["recipe"]["learningRate"] == 1e-5
    assert live["spec"]["trainer"]["replicas"] == 1, "a field that is new has its default"
    assert story.get("StatefulSet", "sums-relay")["spec"]["replicas"] == 3


def test_an_upgrade_under_a_running_operator_is_survived(
    story: Story, start_operator: StartOperator, kube: Kube
) -> None:
    operator = start_operator()
    story.running()
    install(kube, [crd | {"metadata": crd["metadata"] | {"labels": {"upgraded": "true"}}} for crd in shipped_crds()])
    story.edit(validator={"replicas": 2})
    story.wait_field("Deployment", "sums-validator", "spec.replicas", 2)
    assert operator.is_healthy()
