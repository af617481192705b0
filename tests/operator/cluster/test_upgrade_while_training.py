"""Operator, CRDs and chart are upgraded by Helm while a run trains: no pod of the run is replaced, and no step is lost.

Pods are played, so the operator of each release runs as a process, with the account and the Roles that the chart of its release made. On a cluster
with real pods e2e/test_story.py upgrades the chart under a run that trains.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_story import Story
from control_plane import ControlPlane, install, shipped_crds
from kube_client import Kube
from operator_process import ACCOUNT, OperatorProcess
from orchestrators import Orchestrators

from helm import CHART, run_helm
from servers import Loopback
from shoal_operator.children.names import SOFTWARE_VERSION as FIRST

NEXT = "9.9.9"
KINDS = ("Deployment", "StatefulSet", "Job", "Pod", "Secret", "PersistentVolumeClaim")


def chart_of(folder: Path, release: str) -> Path:
    """The chart as a release has it: its version, its application's version, and CRDs of which those of the next have one field more."""
    chart = folder / release / "shoal"
    shutil.copytree(CHART, chart)
    meta = (chart / "Chart.yaml").read_text()
    assert f"version: {FIRST}\n" in meta
    (chart / "Chart.yaml").write_text(meta.replace(FIRST, release))
    if release == NEXT:
        for path in (chart / "files" / "crds").glob("*.yaml"):
            crd = yaml.safe_load(path.read_text())
            spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
            spec["properties"]["novelty"] = {"type": "string", "description": "A field of the next release."}
            path.write_text(yaml.safe_dump(crd, sort_keys=False))
    return chart


@pytest.fixture
def charts(kube: Kube, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """The chart of this release, and that of the next with another schema."""
    yield chart_of(tmp_path, FIRST), chart_of(tmp_path, NEXT)
    install(kube, shipped_crds())


def identities(story: Story) -> dict[str, tuple[str, Any]]:
    """Everything of the run that holds state or work: uid, and of pods and workloads what they run."""
    return {
        f"{kind}/{each['metadata']['name']}": (each["metadata"]["uid"], each.get("spec", {}).get("template"))
        for kind in KINDS
        for each in story.kube.list(kind, story.namespace, "shoal.dev/run=sums")
    }


def test_an_upgrade_of_chart_crds_and_operator_replaces_no_pod_and_loses_no_step(
    control_plane: ControlPlane,
    charts: tuple[Path, Path],
    story: Story,
    kube: Kube,
    loopback: Loopback,
    orchestrators: Orchestrators,
    tmp_path: Path,
) -> None:
    space = story.namespace
    where = ("--kubeconfig", str(control_plane.kubeconfig), "--namespace", space, "--no-hooks")

    def helm(verb: str, chart: Path, *options: str) -> None:
        run_helm(verb, "shoal", chart, *where, *options, folder=tmp_path)

    def operator(release: str) -> OperatorProcess:
        account = control_plane.account_kubeconfig(kube, space, ACCOUNT)
        scope = ["--namespace", space]
        made = OperatorProcess(
            release, account, scope, tmp_path / f"operator-{release}", loopback, orchestrators.address, release, space
        )
        made.start()
        return made

    helm("install", charts[0], "--take-ownership", "--set", f"operator.namespaces={{{space}}}")
    first = operator(FIRST)
    try:
        story.running()
        for version in (1, 2):
            story.progress(latest_version=version, open_step=version)
            story.wait_field("TrainingRun", "sums", "status.policyVersion", version)
        before, schema = identities(story), kube.get("CustomResourceDefinition", "trainingruns.shoal.dev")["spec"]

        helm("upgrade", charts[1], "--reset-then-reuse-values")
        assert kube.get("CustomResourceDefinition", "trainingruns.shoal.dev")["spec"] != schema, "the CRDs are new"
        story.progress(latest_version=3, open_step=3)  # the old operator reads runs of the new schema
        story.wait_field("TrainingRun", "sums", "status.policyVersion", 3)
    finally:
        first.stop()
    second = operator(NEXT)
    try:
        story.wait_condition("TrainingRun", "sums", "UpToDate", "False", f"set spec.release: {NEXT}")
        assert story.get("TrainingRun", "sums")["status"]["step"] == 3, "nothing was forgotten"
        story.edit(validator={"replicas": 2})  # it works for the run
        story.wait_field("Deployment", "sums-validator", "status.readyReplicas", 2)
        after = identities(story)
        assert {name for name in before if after.get(name) != before[name]} == set(), (
            "something of the run was replaced"
        )
        story.progress(open_step=None, latest_version=4, complete=True)
        found = story.wait_condition("TrainingRun", "sums", "Complete", "True")
        assert "policy version 4 of 4" in found["message"]
        attempts = [each for each in after if each.startswith("Job/sums-trainer-")]
        assert attempts == ["Job/sums-trainer-1"]
    finally:
        second.stop()
        run_helm("uninstall", "shoal", "--ignore-not-found", *where, folder=tmp_path)
