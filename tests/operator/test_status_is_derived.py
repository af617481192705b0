"""A status that somebody wrote over decides nothing: what it says is derived again, or held to what the Jobs and the orchestrator say."""

from datetime import timedelta
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import at_version, holds, put, running, said, status

from shoal_operator.api.training_run import TrainingRunStatus
from shoal_operator.engine.last_heard import LastHeard
from shoal_operator.reconcile import reconcile
from shoal_operator.reconcile.decisions import rfc3339


def write_over(cluster: MemoryCluster, **fields: Any) -> None:
    """`kubectl patch --subresource status` of these fields; `Complete="True"` sets a condition."""
    now = status(cluster)
    conditions = [{**each, "status": fields.pop(each["type"], each["status"])} for each in now["conditions"]]
    cluster.objects.set_status("TrainingRun", "sums", {**now, "conditions": conditions, **fields})


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("lie", [{"policyVersion": 999}, {"policyVersion": 999, "Complete": "True"}])
def test_a_version_in_the_status_completes_no_run(cluster: MemoryCluster, lie: dict[str, Any], answers: bool) -> None:
    running(cluster, version=1)
    if not answers:
        cluster.progress = None
    write_over(cluster, **lie)
    cluster.settle()
    assert "Complete" not in holds(cluster)
    assert "sums-trainer-1" in cluster.names("Job")
    assert not cluster.objects.deleting()
    at_version(cluster, 1)
    cluster.settle()
    assert status(cluster)["policyVersion"] == 1


def test_a_run_that_is_complete_stays_so_when_its_status_is_lost_and_nobody_answers(cluster: MemoryCluster) -> None:
    running(cluster)
    at_version(cluster, 4)
    cluster.settle()
    cluster.progress = None
    cluster.objects.set_status("TrainingRun", "sums", {})
    cluster.settle()
    assert "Complete" in holds(cluster)
    assert status(cluster)["policyVersion"] == 4


def test_a_condition_in_the_status_prepares_no_run(cluster: MemoryCluster) -> None:
    cluster.settle()
    write_over(cluster, Prepared="True")
    cluster.settle()
    assert "Prepared" not in holds(cluster)
    assert cluster.names("Deployment") == []


def test_an_attempt_in_the_status_replaces_no_trainer(cluster: MemoryCluster) -> None:
    running(cluster, version=1)
    lie = {"attempt": 77, "startedAtVersion": 900, "failures": 50, "lastFailed": 77}
    write_over(cluster, trainer=lie)
    cluster.settle()
    assert cluster.names("Job") == ["sums-prepare", "sums-trainer-1"]
    assert not cluster.objects.deleting()
    shown = status(cluster)["trainer"]
    assert (shown["attempt"], shown["startedAtVersion"]) == (1, 1)
    assert shown["failures"] <= 1


def test_a_time_in_the_status_deletes_no_run_that_is_not_finished(cluster: MemoryCluster) -> None:
    put(cluster, ttlSecondsAfterFinished=60)
    running(cluster, version=1)
    write_over(cluster, completionTime="2020-01-01T00:00:00Z")
    reconcile(cluster, "TrainingRun", "sums")
    assert not cluster.objects.deleting()
    assert "completionTime" not in status(cluster)


def test_a_start_before_the_run_was_made_or_in_the_future_is_moved_to_where_it_can_be(cluster: MemoryCluster) -> None:
    put(cluster, activeDeadlineSeconds=3600)
    live = cluster.get("TrainingRun", "sums")
    assert live is not None
    born = rfc3339(cluster.time)
    live["metadata"]["creationTimestamp"] = born
    live["metadata"]["annotations"] = {"made": "then"}  # or nothing is stored
    cluster.objects.apply(live)
    running(cluster, version=1)
    for lie, held_to in (("2020-01-01T00:00:00Z", born), ("2099-01-01T00:00:00Z", None), ("soon", None)):
        write_over(cluster, startTime=lie)
        reconcile(cluster, "TrainingRun", "sums")
        shown = status(cluster)["startTime"]
        assert shown == held_to or (held_to is None and born < shown <= rfc3339(cluster.time))
        assert "Failed" not in holds(cluster)
    cluster.time += timedelta(seconds=3601)
    cluster.settle()
    assert said(cluster, "Failed")["reason"] == "DeadlineExceeded"


def test_figures_that_the_orchestrator_does_not_say_are_not_kept(cluster: MemoryCluster) -> None:
    running(cluster, version=1)
    write_over(cluster, reward=1.0, bestVersion=9, step=77)
    cluster.settle()
    assert not {"reward", "bestVersion"} & set(status(cluster))
    assert status(cluster)["step"] == 1


HEARD = {
    "step", "policyVersion", "reward", "gradientNorm", "clipRatio", "policyLag", "epoch", "loss", "heldOutLoss", "groupsKept", "groupsDropped",
    "dataset", "answers", "revisions", "bestVersion", "bestScore", "scores", "accepted", "rejected", "slashed", "nodes", "etaSeconds", "eta",
    "islands", "proofs",
}  # fmt: skip
"""What an orchestrator says. A silent one's is what this process heard last."""
DERIVED = {
    "observedGeneration", "release", "phase", "endpoint", "runPublicKey", "islandPublicKey", "lighthouse", "keys", "components",
}  # fmt: skip
HELD = {"startTime", "completionTime", "lastProgressTime", "trainer", "conditions"}
"""Remembered between the times and Jobs that there are: the tests above and tests of conditions and of times."""
RECORD = {"lastFailures"}
"""Kept as it was read once: the pods that it is of are gone."""
SCHEMA = TrainingRunStatus.model_json_schema(by_alias=True)


def absurd(schema: dict[str, Any]) -> Any:
    """A value that the schema allows and that nobody would say."""
    if "$ref" in schema:
        return absurd(SCHEMA["$defs"][schema["$ref"].rsplit("/", 1)[-1]])
    if "anyOf" in schema:
        return absurd(schema["anyOf"][0])
    if "enum" in schema:
        return schema["enum"][-1]
    if schema["type"] == "object":
        return {name: absurd(each) for name, each in schema["properties"].items()}
    if schema["type"] == "array":
        return [absurd(schema["items"])]
    return {"string": "somebody", "boolean": True}.get(schema["type"], min(987654, schema.get("maximum", 987654)))


def test_every_field_of_the_status_has_a_kind() -> None:
    kinds = [HEARD, DERIVED, HELD, RECORD]
    assert set(SCHEMA["properties"]) == set.union(*kinds)
    assert sum(map(len, kinds)) == len(set.union(*kinds))


@pytest.mark.parametrize("answers", [True, False], ids=["answers", "silent"])
@pytest.mark.parametrize("field", sorted(HEARD | DERIVED))
def test_what_somebody_wrote_into_a_field_does_not_stand(cluster: MemoryCluster, field: str, answers: bool) -> None:
    running(cluster, version=1)
    if not answers:
        cluster.progress = None
        cluster.settle()
    before = status(cluster)
    lie = absurd(SCHEMA["properties"][field])
    assert lie != before.get(field)
    write_over(cluster, **{field: lie})
    cluster.settle()
    assert status(cluster) == before


def test_a_restart_with_a_silent_orchestrator_writes_nothing_and_says_no_number_that_nobody_said(
    cluster: MemoryCluster,
) -> None:
    running(cluster, version=1)
    cluster.progress = None
    cluster.settle()
    cluster.heard, written = LastHeard(), cluster.status_writes
    cluster.settle()
    assert cluster.status_writes == written
    write_over(cluster, policyVersion=987654)
    cluster.settle()
    assert said(cluster, "Complete")["message"] == "nobody says how many of 4 policy versions are announced"
    assert said(cluster, "Ready")["status"] == "Unknown"
    at_version(cluster, 1)
    cluster.settle()
    assert status(cluster)["policyVersion"] == 1
