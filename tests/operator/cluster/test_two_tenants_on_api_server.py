"""Two teams beside each other on the API server: whose pods reach whose, whose quota stops whom, and what the audit log says of their runs.

Policies and pods are those that the operator made here; the rules are those of the tests' node (`e2e/nodes/policy_rules.py`).
"""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from cluster_story import Story
from control_plane import ControlPlane
from e2e.nodes.policy_rules import ENTRY, World, compile_rules
from hollow_node import HollowNode
from kube_client import Kube, Object, Refused, make_namespace
from kube_manifests import manifest, run
from operator_process import OPERATOR_NAMESPACE
from orchestrators import Orchestrators
from pydantic import BaseModel
from test_tenants_on_api_server import person, refused

from servers import ROOT, wait_until
from shoal_operator.api import InferencePool, RelayServer, TrainingRun, Validator
from shoal_operator.children import names
from shoal_operator.children.network import EDGES
from shoal_operator.engine.kinds import OWN, SCALED_KINDS
from shoal_operator.install import aggregated

pytestmark = pytest.mark.usefixtures("operator")

FOLDER = ROOT / "examples/tenancy"
EVERYTHING: dict[str, Any] = {
    "model": {"path": "/models/base", "generated": None},
    "tasks": {"environment": "code", "count": 8},
    "runner": {"replicas": 1},
    "trackers": {"tensorboard": {}},
    "ui": {},
}
PORTS = sorted({*names.PORTS.values(), 22, 443, 40000})


@pytest.fixture
def other(kube: Kube, node: HollowNode, orchestrators: Orchestrators) -> Iterator[Story]:
    """The namespace of another team."""
    namespace = make_namespace(kube)
    yield Story(kube, namespace, node, orchestrators)
    kube.delete("Namespace", namespace)


def passes(chains: dict[str, list[str]], source: str, target: str, port: int) -> bool:
    """Whether the firewall lets a first packet of TCP through; of the rules' own few forms."""

    def fits(rule: str) -> bool:
        for side, address in (("-s", source), ("-d", target)):
            found = re.search(rf"{side} (\S+)/(\d+)", rule)
            if found and found.group(2) == "32" and found.group(1) != address:
                return False
        if "ctstate" in rule or "-p udp" in rule:
            return False
        span = re.search(r"--dport (\d+)(?::(\d+))?", rule)
        return span is None or int(span.group(1)) <= port <= int(span.group(2) or span.group(1))

    for jump in filter(fits, chains[ENTRY]):
        rules = chains[jump.rsplit(" ", 1)[1]]
        if next(filter(fits, rules)).endswith("DROP"):
            return False
    return True


def pods_of(kube: Kube, *namespaces: str) -> list[Object]:
    """The pods that are there, each with an address of its own, as if all ran: the hollow node gives one to all."""
    found = [pod for namespace in namespaces for pod in kube.list("Pod", namespace)]
    for number, pod in enumerate(found):
        pod["status"] = {"podIP": f"10.0.1.{number}", "phase": "Running"}
    return found


def part(pod: Object) -> tuple[str, str, str]:
    labels = pod["metadata"].get("labels", {})
    return pod["metadata"]["namespace"], labels.get(names.RUN_LABEL, ""), labels.get(names.COMPONENT_LABEL, "")


def test_no_pod_of_a_run_reaches_one_of_another_and_within_a_run_only_the_edges_are_open(
    kube: Kube, story: Story, other: Story
) -> None:
    runs = [(story, "sums"), (story, "beside"), (other, "sums")]
    for place, name in runs:
        place.create(name, **EVERYTHING)
    for place, name in runs:
        place.wait_condition("TrainingRun", name, "Ready", "True")
    spaces = (story.namespace, other.namespace)
    pods = pods_of(kube, *spaces)
    said = {"app.kubernetes.io/name": names.OPERATOR_NAME}
    for number, (namespace, labels) in enumerate(
        ((other.namespace, {}), (other.namespace, said), (OPERATOR_NAMESPACE, said))
    ):
        metadata = {"name": f"free-{number}", "namespace": namespace, "uid": f"free-{number}", "labels": labels}
        status = {"podIP": f"10.0.2.{number}", "phase": "Running"}
        pods.append({"metadata": metadata, "spec": {"containers": []}, "status": status})
    policies = [each for namespace in spaces for each in kube.list("NetworkPolicy", namespace)]
    known = (*spaces, OPERATOR_NAMESPACE)
    world = World.of(policies, pods, [each for each in kube.list("Namespace") if each["metadata"]["name"] in known])
    chains = compile_rules(world)
    components = {part(pod)[2] for pod in pods if part(pod)[:2] == (story.namespace, "sums")}
    everywhere = {name for edge in EDGES for name in edge[:2]} - {"island", "lighthouse"}
    assert components == everywhere | {"prepare", "tracker", "ui"}

    within: set[tuple[str, str, int]] = set()
    across: list[Any] = []
    from_outside: dict[str, set[tuple[str, int]]] = {f"free-{number}": set() for number in range(3)}
    for source, target in itertools.permutations(pods, 2):
        if not part(target)[1]:
            continue
        for port in PORTS:
            if not passes(chains, source["status"]["podIP"], target["status"]["podIP"], port):
                continue
            if not part(source)[1]:
                from_outside[source["metadata"]["name"]].add((part(target)[2], port))
            elif part(source)[:2] == part(target)[:2]:
                within.add((part(source)[2], part(target)[2], port))
            else:
                across.append((part(source), part(target), port))
    assert across == []
    assert within == {(caller, to, names.PORTS[port]) for caller, to, port in EDGES if {caller, to} <= components}
    page = ("ui", names.PORTS["ui"])  # which asks everybody for its token
    operator = (
        "orchestrator",
        names.PORTS["orchestrator"],
    )  # from its own namespace, and nobody who is labelled as it is elsewhere
    assert from_outside == {"free-0": {page}, "free-1": {page}, "free-2": {page, operator}}


def quota(kube: Kube, namespace: str, hard: dict[str, str]) -> None:
    """The example's quota with other amounts. The API server counts what it admits; the controller that counts anew is not run here."""
    [found] = [each for each in documents("tenant.yaml") if each["kind"] == "ResourceQuota"]
    assert set(hard) <= set(found["spec"]["hard"])
    metadata = {"name": "tenant", "namespace": namespace}
    kube.create({**found, "metadata": metadata, "spec": {"hard": hard}})
    status = {"hard": hard, "used": dict.fromkeys(hard, "0")}
    kube.merge("ResourceQuota", "tenant", namespace, {"status": status}, sub="status")


def test_a_quota_of_gpus_stops_the_run_of_its_namespace_alone_and_its_status_says_so(
    kube: Kube, story: Story, other: Story
) -> None:
    quota(kube, story.namespace, {"requests.nvidia.com/gpu": "3"})
    gpus = {
        "trainer": {"gpu": {"count": 2}},
        "inferencePools": [{"name": "pool", "replicas": 2, "gpu": {"count": 2}}],
    }
    story.create(**gpus)
    other.running(**gpus)
    said = "exceeded quota: tenant, requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=2"
    story.wait_condition("TrainingRun", "sums", "Ready", "False", "PodsRefused")
    story.wait_for(
        "a condition of the run to name the quota",
        lambda: said in json.dumps(story.get("TrainingRun", "sums")["status"]["conditions"]),
    )
    [left] = kube.list("ResourceQuota", story.namespace)
    assert left["status"]["used"] == {"requests.nvidia.com/gpu": "2"}
    assert other.condition("TrainingRun", "sums", "Ready")["status"] == "True"


def test_a_quota_of_runs_refuses_one_more_in_its_namespace_alone(kube: Kube, story: Story, other: Story) -> None:
    """The API server hears of its own quotas a moment later: runs until then are not counted."""
    amount = {"count/trainingruns.shoal.dev": "1"}
    quota(kube, story.namespace, amount)
    fresh = map("run-{}".format, itertools.count())

    def one_more_is_refused() -> bool:
        try:
            kube.create(run(story.namespace, next(fresh), suspend=True))
        except Refused as error:
            return "exceeded quota: tenant" in str(error)
        return False

    story.wait_for("the quota to refuse one more run", one_more_is_refused)
    [left] = kube.list("ResourceQuota", story.namespace)
    assert left["status"]["used"] == amount
    kube.create(run(other.namespace, "run-0", suspend=True))


def test_the_namespace_and_the_role_of_a_tenant_are_taken_as_they_are(kube: Kube) -> None:
    for made in documents("tenant.yaml"):
        if made["kind"] == "Namespace":
            assert made["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
            kube.create(made, dry_run=True)
        elif made["kind"] == "RoleBinding":
            kube.create({**made, "metadata": {"name": "team", "namespace": "default"}}, dry_run=True)


def documents(name: str) -> list[Object]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def audited(log: Path, start: int, user: str) -> list[tuple[str, str, dict[str, str]]]:
    """Verb, resource and annotations of our policy of each write by a user, since the log had `start` bytes. What is listed is sorted."""
    with log.open("rb") as file:
        file.seek(start)
        events = [json.loads(line) for line in file if line.endswith(b"\n")]
    found = []
    for event in events:
        what = event.get("objectRef", {})
        if event["user"]["username"].endswith(user):
            of_ours = {
                key.removeprefix("shoal-runs/"): ", ".join(sorted(value.split(", ")))
                for key, value in event.get("annotations", {}).items()
                if key.startswith("shoal-runs/")
            }
            if of_ours:
                resource = "/".join(filter(None, (what["resource"], what.get("subresource"))))
                found.append((event["verb"], resource, of_ours))
    return found


def places(model: type[BaseModel], path: str = "spec") -> Iterator[tuple[str, str]]:
    """Path and name of each field of a kind that opens it to strangers or exposes a part."""
    for name, each in model.model_fields.items():
        if name in ("open", "exposure"):
            yield path, name
        for inner in models_of(each.annotation):
            yield from places(inner, f"{path}.?{each.alias or name}")


def models_of(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for each in get_args(annotation) for found in models_of(each)]


def test_the_audit_policy_looks_at_every_field_of_every_kind_that_opens_a_run() -> None:
    policy, _ = documents("audit.yaml")
    wanted = {
        place for kind in (TrainingRun, InferencePool, RelayServer, Validator) for place in places(kind, "object")
    }
    written = {each["key"]: each["valueExpression"] for each in policy["spec"]["auditAnnotations"]}
    exposed = set(re.findall(r"(object[\w.?]*)\.\?exposure\.\?type", written["exposed"]))
    assert exposed == {path.replace("object.?spec", "object.spec") for path, name in wanted if name == "exposure"}
    opened = {path.replace("object.?spec", "object.spec") for path, name in wanted if name == "open"}
    assert opened == {"object.spec", "object.spec.?inferencePools"}
    assert all(path in written["strangers"] for path in opened)
    [rule] = policy["spec"]["matchConstraints"]["resourceRules"]
    scales = [f"{OWN[kind].plural}/scale" for kind in SCALED_KINDS]
    assert rule["resources"] == [*(each.plural for each in OWN.values()), *scales]


def test_the_audit_log_says_what_a_change_of_a_run_changed_and_to_whom_it_opened_it(
    kube: Kube, story: Story, control_plane: ControlPlane
) -> None:
    policy, binding = documents("audit.yaml")
    user = ":a-shoal-edit"
    for role_for_people in aggregated():
        kube.apply(role_for_people, manager="installer", force=True)
    one = person(control_plane, kube, story.namespace, "shoal-edit")
    wait_until("the role to be known", lambda: not refused(one.list, "TrainingRun", story.namespace), 60.0)
    assert refused(one.list, "Secret", story.namespace)
    kube.create(policy)
    kube.create(binding)
    try:
        start = control_plane.audit_log.stat().st_size

        def annotated() -> bool:
            one.create(run(story.namespace, "tried", suspend=True), dry_run=True)
            return bool(audited(control_plane.audit_log, start, user))

        wait_until("the policy to be in force", annotated, 60.0)
        start = control_plane.audit_log.stat().st_size
        one.create(run(story.namespace, "ours", suspend=True))
        exposure = {"type": "NodePort", "nodeAddress": "203.0.113.7"}
        pools = [{"name": "friends", "replicas": 0, "open": True}]
        for changes in ({"inferencePools": pools, "steps": 5}, {"controlPlane": {"exposure": exposure}}):
            one.merge("TrainingRun", "ours", story.namespace, {"spec": changes})
        one.create(manifest("InferencePool", "guests", story.namespace, run="ours", replicas=0, open=True))
        one.merge("InferencePool", "guests", story.namespace, {"spec": {"replicas": 1}}, sub="scale")
        one.create(manifest("RelayServer", "gates", story.namespace, run="ours", replicas=0, exposure=exposure))
        one.create(manifest("Validator", "judges", story.namespace, run="ours", replicas=0))
        one.merge("Validator", "judges", story.namespace, {"spec": {"replicas": 1}})
        one.delete("TrainingRun", "ours", story.namespace)
        wait_until("nine events", lambda: len(audited(control_plane.audit_log, start, user)) == 9, 30.0)
    finally:
        kube.delete("ValidatingAdmissionPolicyBinding", "shoal-runs")
        kube.delete("ValidatingAdmissionPolicy", "shoal-runs")
    assert audited(control_plane.audit_log, start, user) == [
        ("create", "trainingruns", {"changed": "all"}),
        ("patch", "trainingruns", {"changed": "inferencePools, steps", "strangers": "friends"}),
        ("patch", "trainingruns", {"changed": "controlPlane", "strangers": "friends", "exposed": "controlPlane"}),
        ("create", "inferencepools", {"changed": "all", "strangers": "guests"}),
        ("patch", "inferencepools/scale", {"changed": "replicas"}),
        ("create", "relayservers", {"changed": "all", "exposed": "relays"}),
        ("create", "validators", {"changed": "all"}),
        ("patch", "validators", {"changed": "replicas"}),
        ("delete", "trainingruns", {"changed": "all"}),
    ]
    one.close()
