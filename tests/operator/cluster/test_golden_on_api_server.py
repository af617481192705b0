"""What the builders make, by their golden files, is taken by a real API server as it is: nothing unknown, nothing rewritten, pods restricted."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from gateway_api import httproutes
from kube_client import Kube, Object, make_namespace
from lws_api import leader_worker_sets

from servers import ROOT
from shoal_operator.engine.apply import Action, decide, with_hash

GOLDEN = sorted((ROOT / "tests/golden").glob("*/*/out.yaml"))


@pytest.fixture(scope="module", autouse=True)
def kinds_of_others(kube: Kube) -> Iterator[None]:
    with httproutes(kube), leader_worker_sets(kube, controller=False):
        yield


@pytest.fixture(scope="module")
def namespace(kube: Kube) -> Iterator[str]:
    """One for all: these tests leave nothing in it, and to make and collect one for each would cost the control plane more than they do."""
    name = make_namespace(kube)
    yield name
    kube.delete("Namespace", name)


def objects(path: Path, namespace: str) -> list[Object]:
    found = [each for each in yaml.safe_load_all(path.read_text()) if each]
    for each in found:
        each["metadata"]["namespace"] = namespace
    return found


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.parent.name}-{path.parent.name}")
def test_children_are_accepted_and_not_seen_as_drift(path: Path, kube: Kube, namespace: str) -> None:
    for wanted in objects(path, namespace):
        live = kube.apply(with_hash(wanted), manager="shoal-operator", dry_run=True)
        assert decide(wanted, live) is Action.NOTHING, f"{wanted['kind']}/{wanted['metadata']['name']} is rewritten"


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.parent.name}-{path.parent.name}")
def test_pods_are_admitted_where_only_restricted_ones_are(path: Path, kube: Kube, namespace: str, deadline) -> None:
    deadline("the default service account", lambda: kube.get("ServiceAccount", "default", namespace))
    for wanted in objects(path, namespace):
        template = wanted.get("spec", {}).get("template")
        if template is None:
            continue
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        pod["metadata"] = {**template["metadata"], "name": wanted["metadata"]["name"], "namespace": namespace}
        mounted = {mount["name"] for each in pod["spec"]["containers"] for mount in each.get("volumeMounts", [])}
        for name in sorted(mounted - {volume["name"] for volume in pod["spec"]["volumes"]}):
            # What a StatefulSet adds for its claim templates.
            pod["spec"]["volumes"].append({"name": name, "persistentVolumeClaim": {"claimName": name}})
        for named in ("serviceAccountName", "priorityClassName", "runtimeClassName"):
            pod["spec"].pop(named, None)  # of objects that an admin makes
        kube.create(pod, dry_run=True)
