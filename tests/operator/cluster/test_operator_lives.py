"""The operator's own bad days: it is down, started again, killed while it leads; the API server restarts, forgets, refuses. Specs win in the end."""

import itertools
import random
from typing import Any

from cluster_story import Story
from control_plane import ControlPlane, install, shipped_crds
from fault_proxy import Asked, FaultProxy
from kube_audit import AuditLog
from kube_client import Kube, Object
from operator_process import OPERATOR_NAMESPACE, PATIENT, OperatorProcess, StartOperator
from snapshot_cluster import wait_settled

from shoal_operator.engine.kinds import OWN


def test_a_run_deleted_while_the_operator_is_down_is_collected_whole(
    story: Story, start_operator: StartOperator, kube: Kube
) -> None:
    operator = start_operator()
    story.running()
    assert story.managed()
    operator.stop()
    kube.delete("TrainingRun", "sums", story.namespace)
    story.wait_gone("TrainingRun", "sums")
    story.wait_for("everything to be collected", lambda: story.managed() == {}, 60.0)
    for kind in ("InferencePool", "RelayServer", "Validator", "Pod", "PersistentVolumeClaim"):
        story.wait_for(f"every {kind} to be collected", lambda kind=kind: kube.list(kind, story.namespace) == [], 60.0)


def test_a_restart_writes_nothing_when_nothing_changed(
    story: Story, start_operator: StartOperator, audit: AuditLog
) -> None:
    first = start_operator(name="first")
    story.running()
    wait_settled(story)
    first.stop()
    before = story.versions()
    audit.mark()
    second = start_operator(name="second")
    story.wait_for("the second operator to lead", second.is_leader)
    # It has seen everything when an edit gets through.
    story.edit(validator={"replicas": 2})
    story.wait_field("Deployment", "sums-validator", "spec.replicas", 2)
    touched = {name for (kind, name), version in story.versions().items() if before.get((kind, name)) != version}
    expected = {"sums", "sums-validator", "sums-release", "sums-validator-release"}
    assert touched <= expected
    written = {(request.resource, request.name) for request in audit.writes("shoal-operator")}
    assert {name for _, name in written} <= expected, written


def test_the_second_replica_writes_nothing_until_the_first_is_killed_and_then_leads(
    story: Story, start_operator: StartOperator
) -> None:
    replicas = [start_operator(name="a"), start_operator(name="b")]
    story.running()
    [leader] = [each for each in replicas if each.is_leader()]
    [standby] = [each for each in replicas if each is not leader]
    figures = story.wait_for("its figures", lambda: standby.metrics() or None)
    assert sum(value for name, value in figures.items() if "reconcile_total{" in name) == 0
    assert standby.is_healthy()
    leader.kill()
    story.edit(validator={"replicas": 2})
    story.wait_field("Deployment", "sums-validator", "spec.replicas", 2)
    assert standby.is_leader()


def test_a_leader_that_is_stopped_in_order_hands_over_at_once_and_exits_with_0(
    story: Story, start_operator: StartOperator, kube: Kube
) -> None:
    first = start_operator(name="a")
    story.wait_for("the first to lead", first.is_leader)
    second = start_operator(name="b")
    first.stop()
    assert first.process is not None
    assert first.process.returncode == 0
    lease = kube.get("Lease", "shoal-operator", OPERATOR_NAMESPACE)
    assert lease is not None
    assert first.name not in (lease["spec"].get("holderIdentity") or "")
    story.wait_for("the second to lead", second.is_leader)


def survived(story: Story, operator: OperatorProcess, replicas: int) -> None:
    """The same process still makes an edit true."""
    story.edit(validator={"replicas": replicas})
    story.wait_field("Deployment", "sums-validator", "spec.replicas", replicas)
    assert operator.process is not None
    assert operator.process.poll() is None, "the operator ended and would have needed a restart"


def test_it_continues_after_the_api_server_was_killed_and_restarted(
    story: Story, start_operator: StartOperator, control_plane: ControlPlane
) -> None:
    operator = start_operator(lease_seconds=PATIENT)
    story.running()
    control_plane.api_server.kill()
    control_plane.start_api_server()
    survived(story, operator, 2)
    wait_settled(story)


def test_changes_behind_expired_watches_are_found(
    story: Story, proxy: FaultProxy, start_operator: StartOperator, control_plane: ControlPlane, kube: Kube
) -> None:
    """410 Gone: a restarted API server knows no events from before its start, and the operator's versions are from before."""
    operator = start_operator(server=proxy.url, lease_seconds=PATIENT)
    story.running()
    proxy.fault = lambda asked: 503
    proxy.cut()
    kube.delete("Service", "sums-discovery", story.namespace)
    story.edit(validator={"replicas": 3})
    story.create("second")
    control_plane.api_server.kill()
    control_plane.start_api_server()
    proxy.fault = None
    story.wait_there("Service", "sums-discovery")
    story.wait_field("Deployment", "sums-validator", "spec.replicas", 3)
    story.wait_condition("TrainingRun", "second", "Ready", "True")
    assert proxy.gone > 0, "no watch was too old: this test shows nothing"
    survived(story, operator, 2)


def test_an_api_server_that_answers_429_and_500_for_a_while_is_waited_for(
    story: Story, proxy: FaultProxy, start_operator: StartOperator
) -> None:
    operator = start_operator(server=proxy.url, lease_seconds=PATIENT)
    story.wait_for("it to lead", operator.is_leader)
    dice = random.Random(5)

    def sometimes(asked: Asked) -> int | None:
        if "leases" in asked.path:
            return None  # losing the Lease is another test
        return dice.choice((429, 500, 503, None, None, None))

    proxy.fault = sometimes
    story.create()
    story.wait_for("each kind of refusal", lambda: {429, 500, 503} <= set(proxy.answered))
    story.wait_condition("TrainingRun", "sums", "Prepared", "True")
    proxy.fault = None
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    wait_settled(story)
    assert operator.is_healthy()


def test_a_leader_that_cannot_renew_stops_leading(
    story: Story, proxy: FaultProxy, start_operator: StartOperator
) -> None:
    cut_off = start_operator(name="a", server=proxy.url)
    story.wait_for("the first to lead", cut_off.is_leader)
    other = start_operator(name="b")
    proxy.fault = lambda asked: 503
    proxy.cut()
    story.wait_for("the other to lead", other.is_leader, 60.0)
    process = cut_off.process
    assert process is not None
    story.wait_for(
        "the one that was cut off to have stopped leading",
        lambda: process.poll() is not None or not cut_off.is_leader(),
    )
    story.running()


def test_watches_that_are_cut_again_and_again_lose_nothing(
    story: Story, proxy: FaultProxy, start_operator: StartOperator
) -> None:
    operator = start_operator(server=proxy.url, lease_seconds=PATIENT)
    story.running()
    for number in itertools.islice(itertools.cycle((2, 3, 1)), 6):
        proxy.cut()
        survived(story, operator, number)


def test_a_crd_that_is_deleted_ends_nothing_and_is_served_again_when_it_is_back(
    story: Story, start_operator: StartOperator, kube: Kube
) -> None:
    operator = start_operator()
    story.running()
    [crd] = [each for each in shipped_crds() if each["spec"]["names"]["kind"] == "Validator"]
    name = crd["metadata"]["name"]
    try:
        kube.delete("CustomResourceDefinition", name)
        story.wait_for(
            "kopf to have ended", lambda: operator.metrics().get("shoal_operator_kopf_restarts_total", 0.0) > 0
        )
        story.wait_for(
            "the CRD to be missed",
            lambda: operator.metrics().get('shoal_operator_crd_missing{kind="Validator"}') == 1.0,
        )
        assert f"the CRD {name} is missing" in operator.log
        story.edit("sums-relay", "RelayServer", replicas=2)
        kube.delete("Service", "sums-discovery", story.namespace)
        story.create("second")
        story.wait_there("Service", "sums-discovery")
        story.wait_there("ConfigMap", "second-join")
        assert operator.is_leader()
        assert operator.is_healthy()
    finally:
        install(kube, [crd])
    story.wait_there("Validator", "sums-validator")
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    story.wait_condition("TrainingRun", "second", "Ready", "True")
    survived(story, operator, 3)


REMEMBERED = {"startTime", "lastTransitionTime", "lastProgressTime", "failures", "lastFailed", "startedAtVersion"}
"""When something was seen, and how often a trainer has failed: nothing else tells it. What is believed of it has bounds (decisions.py)."""
INVENTED = {
    "TrainingRun": {
        "completionTime": "2026-01-01T00:00:00Z",
        "bestVersion": 99,
        "bestScore": 1.0,
    }
}
BLESSED = {"type": "Blessed", "status": "True", "reason": "Lie", "message": "a lie"}
ADDED: dict[str, list[Object]] = {
    "conditions": [BLESSED | {"lastTransitionTime": "2026-01-01T00:00:00Z"}],
    "components": [{"name": "nobody", "desired": 3, "ready": 3}],
}
"""Items of lists that nothing of ours has: who writes them owns them."""


def told(value: Any) -> Any:
    """What a status says and something else tells, too."""
    if isinstance(value, dict):
        return {key: told(each) for key, each in value.items() if key not in REMEMBERED}
    return [told(each) for each in value] if isinstance(value, list) else value


def lie(key: str, value: Any) -> Any:
    """Another value of a status that its CRD takes."""
    if isinstance(value, dict):
        return {each: lie(each, inner) for each, inner in value.items() if each not in REMEMBERED}
    if isinstance(value, list):
        return [lie(key, each) for each in value]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 7
    said = {"status": {"True": "False"}.get(value, "True"), "phase": "Complete", "message": "a lie", "reason": "Lie"}
    return said.get(key, value)


def test_what_was_written_into_each_status_while_it_was_down_is_believed_by_nobody(
    story: Story, start_operator: StartOperator, kube: Kube
) -> None:
    operator = start_operator(name="first")
    story.running()
    story.progress(open_step=1, latest_version=1)
    story.wait_field("TrainingRun", "sums", "status.policyVersion", 1)
    wait_settled(story)
    operator.stop()
    names = {kind: [each["metadata"]["name"] for each in kube.list(kind, story.namespace)] for kind in OWN}
    true = {(kind, name): told(story.get(kind, name)["status"]) for kind in OWN for name in names[kind]}
    pods = {pod["metadata"]["uid"] for pod in kube.list("Pod", story.namespace)}
    for kind, name in true:
        lies = lie("", true[kind, name]) | INVENTED.get(kind, {})
        for field, items in ADDED.items():
            if field in lies:
                lies[field] += items
        kube.merge(kind, name, story.namespace, {"status": lies}, sub="status", manager="liar")
        assert told(story.get(kind, name)["status"]) != true[kind, name]
    start_operator(name="second")
    for (kind, name), truth in true.items():
        story.wait_for(
            f"the truth of {kind} {name}",
            lambda kind=kind, name=name, truth=truth: told(story.get(kind, name)["status"]) == truth,
        )
    assert {pod["metadata"]["uid"] for pod in kube.list("Pod", story.namespace)} == pods
