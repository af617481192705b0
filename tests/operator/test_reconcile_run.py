"""A TrainingRun through its life: what exists at each point, what its status says, and what is never done twice."""

import base64
from pathlib import Path
from typing import Any

import pytest
from memory_cluster import MemoryCluster

import samples
from shoal.contracts.identity import ROLES, PrivateKey
from shoal.contracts.protocol import RunProgress
from shoal.contracts.run import NodeConfig, RunConfig
from shoal_operator.api import TrainingRun
from shoal_operator.engine.cluster import ClusterError
from shoal_operator.reconcile import reconcile, reconcile_all

MANIFEST: dict[str, Any] = {
    "apiVersion": "shoal.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "sums"},
    "spec": {
        "model": {"generated": {}},
        "tasks": {"environment": "arithmetic"},
        "steps": 4,
        "recipe": {"promptsPerStep": 8, "groupSize": 4, "optimizerSteps": 2},
    },
}


@pytest.fixture
def cluster(tmp_path: Path) -> MemoryCluster:
    made = MemoryCluster(tmp_path)
    put(made)
    return made


def put(cluster: MemoryCluster, **changes: Any) -> None:
    """Apply the manifest with parts of its spec changed."""
    run = TrainingRun.model_validate({**MANIFEST, "spec": MANIFEST["spec"] | changes})
    cluster.objects.apply(run.model_dump(mode="json", by_alias=True, exclude_none=True))


def prepared(cluster: MemoryCluster) -> None:
    cluster.settle()
    cluster.job_ends("sums-prepare", "Complete")
    cluster.settle()


def running(cluster: MemoryCluster, version: int = 0) -> None:
    prepared(cluster)
    at_version(cluster, version)
    cluster.pods_start()
    cluster.settle()


def at_version(cluster: MemoryCluster, version: int, **more: Any) -> None:
    cluster.progress = RunProgress(run="sums", steps_total=4, open_step=version, latest_version=version, **more)


def status(cluster: MemoryCluster) -> dict[str, Any]:
    found = cluster.get("TrainingRun", "sums")
    assert found is not None
    return found["status"]


def holds(cluster: MemoryCluster) -> set[str]:
    """Types of the conditions that are True."""
    return {each["type"] for each in status(cluster)["conditions"] if each["status"] == "True"}


def said(cluster: MemoryCluster, condition: str) -> dict[str, Any]:
    return next(each for each in status(cluster)["conditions"] if each["type"] == condition)


def replicas(cluster: MemoryCluster) -> dict[str, int]:
    kinds = ("StatefulSet", "Deployment")
    return {
        found["metadata"]["name"]: found["spec"]["replicas"] for kind in kinds for found in cluster.objects.find(kind)
    }


# Order of creation.


def test_until_prepare_has_succeeded_there_is_nothing_but_prepare(cluster: MemoryCluster) -> None:
    cluster.settle()
    assert cluster.names("Job") == ["sums-prepare"]
    assert replicas(cluster) == {}
    assert status(cluster)["phase"] == "Preparing"
    assert holds(cluster) == {"Progressing"}


def test_then_every_part_is_made(cluster: MemoryCluster) -> None:
    prepared(cluster)
    assert replicas(cluster) == {
        "sums-redis": 1, "sums-relay": 2, "sums-pool": 2, "sums-discovery": 1, "sums-orchestrator": 1, "sums-validator": 1,
    }  # fmt: skip
    assert cluster.names("Job") == ["sums-prepare", "sums-trainer-1"]
    assert status(cluster)["phase"] == "Starting"
    assert "waits for Redis, Discovery, Orchestrator" in said(cluster, "Ready")["message"]


def test_a_run_is_ready_when_every_part_is(cluster: MemoryCluster) -> None:
    running(cluster)
    assert {"Ready", "Progressing", "Prepared", "TrainerReady", "InferencePoolReady"} <= holds(cluster)
    assert status(cluster)["phase"] == "Running"
    assert said(cluster, "Progressing")["message"] == "step 0 of 4"


def test_every_child_is_owned_by_its_own_kind(cluster: MemoryCluster) -> None:
    running(cluster)
    owners = {
        f"{kind}/{found['metadata']['name']}": found["metadata"]["ownerReferences"][0]["kind"]
        for kind in ("Secret", "ConfigMap", "PersistentVolumeClaim", "Service", "StatefulSet", "Deployment", "Job")
        for found in cluster.objects.find(kind)
    }
    below = {name: kind for name, kind in owners.items() if kind != "TrainingRun"}
    assert below == {
        "Service/sums-relay": "RelayServer",
        "StatefulSet/sums-relay": "RelayServer",
        "Deployment/sums-validator": "Validator",
        "ConfigMap/sums-pool-node": "InferencePool",
        "Service/sums-pool": "InferencePool",
        "StatefulSet/sums-pool": "InferencePool",
    }


def test_prepare_that_fails_for_good_fails_the_run_and_says_why(cluster: MemoryCluster) -> None:
    cluster.settle()
    cluster.job_ends("sums-prepare", "Failed", "unknown environment 'arithmetic'")
    cluster.settle()
    assert holds(cluster) == {"Failed"}
    assert said(cluster, "Failed")["message"] == (
        "Job sums-prepare: unknown environment 'arithmetic'; read its log, and delete the Job to try again"
    )
    assert replicas(cluster) == {}


def test_deleting_a_failed_prepare_tries_again(cluster: MemoryCluster) -> None:
    cluster.settle()
    cluster.job_ends("sums-prepare", "Failed")
    cluster.settle()
    cluster.delete("Job", "sums-prepare")
    cluster.pods_end()
    cluster.settle()
    assert cluster.names("Job") == ["sums-prepare"]
    assert status(cluster)["phase"] == "Preparing"


# Applying: only what differs.


def test_a_second_reconcile_writes_nothing(cluster: MemoryCluster) -> None:
    running(cluster)
    before = len(cluster.writes), cluster.status_writes
    for _ in range(3):
        reconcile_all(cluster)
    assert (len(cluster.writes), cluster.status_writes) == before


def test_drift_is_repaired_and_only_drift(cluster: MemoryCluster) -> None:
    running(cluster)
    drifted = cluster.get("StatefulSet", "sums-relay")
    assert drifted is not None
    drifted["spec"]["replicas"] = 0
    drifted["spec"]["minReadySeconds"] = 7  # a field that we never set
    cluster.objects.apply(drifted)
    cluster.writes.clear()
    cluster.settle()
    assert cluster.writes == ["StatefulSet/sums-relay"]


def test_a_deleted_child_is_made_again(cluster: MemoryCluster) -> None:
    running(cluster)
    cluster.objects.remove("Deployment", "sums-validator")
    cluster.settle()
    assert replicas(cluster)["sums-validator"] == 1


def test_a_changed_spec_reaches_the_children(cluster: MemoryCluster) -> None:
    running(cluster)
    put(cluster, validator={"replicas": 3})
    cluster.settle()
    assert replicas(cluster)["sums-validator"] == 3
    assert status(cluster)["observedGeneration"] == 2


def test_transition_times_stand_while_the_status_stands(cluster: MemoryCluster) -> None:
    running(cluster)
    since = said(cluster, "Ready")["lastTransitionTime"]
    at_version(cluster, 1)
    cluster.settle()
    assert said(cluster, "Ready")["lastTransitionTime"] == since
    assert said(cluster, "Progressing")["message"] == "step 1 of 4"


# Keys.


def secret(cluster: MemoryCluster, name: str) -> dict[str, bytes]:
    found = cluster.get("Secret", name)
    assert found is not None
    return {key: base64.b64decode(value) for key, value in found["data"].items()}


def test_each_role_has_a_secret_with_its_own_key_and_the_roster_lists_them(cluster: MemoryCluster) -> None:
    cluster.settle()
    found = cluster.get("ConfigMap", "sums-config")
    assert found is not None
    config = RunConfig.from_json(found["data"]["run.json"])
    roster = config.trusted_roster()
    for role in ROLES:
        entries = secret(cluster, f"sums-{role}-key")
        assert PrivateKey.from_pem(entries["role.pem"]).public == roster.keys[role]
        assert set(entries) == ({"role.pem", "run_secret"} if role == "orchestrator" else {"role.pem"})
    assert PrivateKey.from_pem(secret(cluster, "sums-run-key")["run.pem"]).public == config.run_key
    assert status(cluster)["runPublicKey"] == config.run_key


def test_keys_are_made_once(cluster: MemoryCluster) -> None:
    cluster.settle()
    before = secret(cluster, "sums-trainer-key")
    put(cluster, steps=9)
    cluster.settle()
    assert secret(cluster, "sums-trainer-key") == before


def test_no_private_key_is_outside_the_secrets(cluster: MemoryCluster) -> None:
    running(cluster)
    private = [secret(cluster, f"sums-{role}-key")["role.pem"].decode() for role in ROLES]
    private += [secret(cluster, "sums-orchestrator-key")["run_secret"].decode()]
    kinds = (
        "TrainingRun",
        "InferencePool",
        "RelayServer",
        "Validator",
        "ConfigMap",
        "StatefulSet",
        "Deployment",
        "Job",
    )
    text = str([cluster.objects.find(kind) for kind in kinds])
    assert not any(each.strip() in text or each.splitlines()[1] in text for each in private if "\n" in each)
    assert private[-1] not in text


def test_a_damaged_key_is_named_and_not_shown(cluster: MemoryCluster) -> None:
    cluster.settle()
    broken = cluster.get("Secret", "sums-relay-key")
    assert broken is not None
    broken["data"]["role.pem"] = base64.b64encode(b"hunter2").decode()
    cluster.objects.apply(broken)
    with pytest.raises(ClusterError, match=r"Secret sums-relay-key: role\.pem is not an Ed25519 private key") as caught:
        reconcile(cluster, "TrainingRun", "sums")
    assert "hunter2" not in str(caught.value)


# Progress.


def test_figures_come_from_the_orchestrator(cluster: MemoryCluster) -> None:
    running(cluster)
    last = samples.METRICS.model_copy(update={"run": "sums", "step": 1})
    at_version(cluster, 2, last_step=last, files_accepted=11, files_rejected=2)
    cluster.settle()
    found = status(cluster)
    assert (found["step"], found["policyVersion"], found["accepted"], found["rejected"]) == (2, 2, 11, 2)
    assert (found["reward"], found["gradientNorm"], found["policyLag"]) == (0.625, 0.3, 1.5)
    assert found["clipRatio"] == pytest.approx(0.03)
    assert found["etaSeconds"] == 41.0  # two steps left, the last one took 20.5 s


def test_an_orchestrator_that_is_not_ready_is_not_asked(cluster: MemoryCluster) -> None:
    prepared(cluster)
    assert cluster.asked == []


def test_figures_stand_while_the_orchestrator_is_away(cluster: MemoryCluster) -> None:
    running(cluster, version=2)
    cluster.progress = None
    cluster.settle()
    assert (status(cluster)["step"], status(cluster)["policyVersion"]) == (2, 2)


def test_another_runs_progress_is_not_taken_for_ours(cluster: MemoryCluster) -> None:
    running(cluster)
    cluster.progress = RunProgress(run="other", steps_total=4, open_step=None, latest_version=4)
    cluster.settle()
    assert "Complete" not in holds(cluster)


# The end.


def test_a_run_whose_last_version_is_announced_is_complete_and_frees_its_workers(cluster: MemoryCluster) -> None:
    running(cluster)
    at_version(cluster, 4)
    cluster.settle()
    assert "Complete" in holds(cluster)
    assert not {"Ready", "Failed", "Progressing"} & holds(cluster)
    assert {name for name, count in replicas(cluster).items() if count} == {
        "sums-redis", "sums-discovery", "sums-orchestrator",
    }  # fmt: skip
    assert "sums-trainer-1" in cluster.names("Job"), "the last attempt ends by itself"


def test_a_complete_run_stays_complete_when_the_orchestrator_goes(cluster: MemoryCluster) -> None:
    running(cluster)
    at_version(cluster, 4)
    cluster.settle()
    cluster.progress = None
    cluster.settle()
    assert "Complete" in holds(cluster)


def test_more_steps_continue_a_complete_run(cluster: MemoryCluster) -> None:
    running(cluster)
    at_version(cluster, 4)
    cluster.settle()
    cluster.job_ends("sums-trainer-1", "Complete")
    put(cluster, steps=9)
    cluster.settle()
    cluster.pods_start()
    cluster.settle()
    assert "Complete" not in holds(cluster)
    assert "sums-trainer-2" in cluster.names("Job")
    assert replicas(cluster)["sums-pool"] == 2


# The trainer's attempts.


def test_a_changed_recipe_starts_a_new_attempt_once_the_old_one_is_gone(cluster: MemoryCluster) -> None:
    running(cluster, version=1)
    put(cluster, recipe={**MANIFEST["spec"]["recipe"], "learningRate": 1e-6})
    cluster.settle()
    assert cluster.names("Job") == ["sums-prepare", "sums-trainer-1"], "two trainers at once would both write"
    cluster.pods_end()
    cluster.settle()
    assert cluster.names("Job") == ["sums-prepare", "sums-trainer-2"]
    assert status(cluster)["trainer"] == {"attempt": 2, "startedAtVersion": 1}


def test_an_attempt_that_made_progress_and_died_is_followed_by_another(cluster: MemoryCluster) -> None:
    running(cluster)
    at_version(cluster, 2)
    cluster.settle()
    cluster.job_ends("sums-trainer-1", "Failed", "out of memory")
    cluster.settle()
    cluster.pods_end()
    cluster.settle()
    assert cluster.names("Job") == ["sums-prepare", "sums-trainer-2"]
    assert "Failed" not in holds(cluster)


def test_an_attempt_that_made_none_fails_the_run_and_says_why(cluster: MemoryCluster) -> None:
    running(cluster)
    cluster.job_ends("sums-trainer-1", "Failed", "loss is not finite")
    cluster.settle()
    assert "Failed" in holds(cluster)
    assert "Job sums-trainer-1: loss is not finite" in said(cluster, "Failed")["message"]
    assert replicas(cluster)["sums-pool"] == 0


def test_deleting_the_failed_job_tries_again(cluster: MemoryCluster) -> None:
    running(cluster)
    cluster.job_ends("sums-trainer-1", "Failed")
    cluster.settle()
    cluster.delete("Job", "sums-trainer-1")
    cluster.pods_end()
    cluster.settle()
    assert "sums-trainer-2" in cluster.names("Job")
    assert "Failed" not in holds(cluster)


# Suspension.


def test_a_suspended_run_has_no_pods_and_keeps_its_volumes_and_keys(cluster: MemoryCluster) -> None:
    running(cluster, version=2)
    volumes, keys = cluster.names("PersistentVolumeClaim"), cluster.names("Secret")
    put(cluster, suspend=True)
    cluster.settle()
    cluster.pods_start()
    cluster.settle()
    assert set(replicas(cluster).values()) == {0}
    assert cluster.names("Job") == ["sums-prepare"]
    assert (cluster.names("PersistentVolumeClaim"), cluster.names("Secret")) == (volumes, keys)
    assert {"Suspended", "Prepared"} <= holds(cluster)
    assert "Ready" not in holds(cluster)


def test_resuming_starts_a_new_attempt_and_does_not_prepare_again(cluster: MemoryCluster) -> None:
    running(cluster, version=2)
    put(cluster, suspend=True)
    cluster.settle()
    cluster.pods_start()
    cluster.writes.clear()
    put(cluster)
    cluster.settle()
    cluster.pods_start()
    cluster.settle()
    assert "sums-trainer-2" in cluster.names("Job")
    assert "Job/sums-prepare" not in cluster.writes
    assert "Ready" in holds(cluster)


def test_suspending_before_prepare_has_ended_stops_it(cluster: MemoryCluster) -> None:
    cluster.settle()
    put(cluster, suspend=True)
    cluster.settle()
    cluster.pods_end()
    cluster.settle()
    assert cluster.names("Job") == []
    assert status(cluster)["phase"] == "Suspended"


# What else a run depends on.


def test_a_run_waits_for_its_store_credentials_and_says_so(cluster: MemoryCluster) -> None:
    s3 = {"endpoint": "http://minio:9000", "bucket": "rollouts", "credentialsSecret": "minio"}
    cluster.objects.remove("TrainingRun", "sums")
    put(cluster, storage={"s3": s3})
    cluster.settle()
    assert cluster.names("Job") == []
    assert said(cluster, "Progressing")["message"] == (
        "waits for Secret minio with accessKey and secretKey (spec.storage.s3.credentialsSecret)"
    )
    given = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "minio"}, "data": {"accessKey": "YQ=="}}
    cluster.objects.apply(given)
    cluster.settle()
    assert said(cluster, "Progressing")["message"].startswith("waits for secretKey in Secret minio")
    cluster.objects.apply(given | {"data": {"accessKey": "YQ==", "secretKey": "Yg=="}})
    cluster.settle()
    assert cluster.names("Job") == ["sums-prepare"]


def test_a_run_that_is_gone_or_going_is_left_alone(cluster: MemoryCluster) -> None:
    cluster.objects.mark_deleted("TrainingRun", "sums", "now")
    assert reconcile(cluster, "TrainingRun", "sums") is None
    assert reconcile(cluster, "TrainingRun", "never-was") is None
    assert cluster.writes == []


# Pools that an admin adds.


def pool(cluster: MemoryCluster, **spec: Any) -> None:
    made = {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": "sums-fast"},
        "spec": {"run": "sums", "pool": "fast", **spec},
    }
    cluster.objects.apply(made)


def pool_ready(cluster: MemoryCluster) -> dict[str, Any]:
    found = cluster.get("InferencePool", "sums-fast")
    assert found is not None
    return next(each for each in found["status"]["conditions"] if each["type"] == "Ready")


def test_a_pool_beside_the_runs_own_joins_under_its_own_name(cluster: MemoryCluster) -> None:
    pool(cluster, replicas=5)
    running(cluster)
    found = cluster.get("ConfigMap", "sums-fast-node")
    assert found is not None
    node = NodeConfig.from_json(found["data"]["node.json"])
    assert (node.run, node.pool) == ("sums", "fast")
    assert replicas(cluster)["sums-fast"] == 5
    live = cluster.get("InferencePool", "sums-fast")
    assert live is not None
    assert (live["status"]["replicas"], live["status"]["readyReplicas"]) == (5, 5)
    assert live["status"]["selector"] == "shoal.dev/component=pool,shoal.dev/run=sums,shoal.dev/set=sums-fast"


def test_a_pool_waits_for_the_config_map_that_says_how_to_join(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)
    pool(cluster)
    cluster.settle()
    assert pool_ready(cluster)["message"] == (
        "ConfigMap sums-join: does not exist; the TrainingRun sums makes it, or copy it from the run's cluster"
    )
    assert replicas(cluster) == {}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({}, "has no entry node.json"),
        ({"node.json": "{}"}, "node.json is wrong"),
        ({"node.json": "forged"}, "does not fit the document"),
        ({"node.json": "other"}, "is for run arithmetic, but the pool's spec.run is sums"),
    ],
)
def test_a_wrong_join_document_is_refused_in_words(tmp_path: Path, data: dict[str, str], problem: str) -> None:
    cluster = MemoryCluster(tmp_path)
    other = NodeConfig(
        run="arithmetic",
        pool="pool",
        discovery="http://127.0.0.1:8081",
        roster=samples.ROSTER,
        run_key=samples.RUN_KEY.public,
    )
    forged = other.model_copy(update={"roster": samples.ROSTER.model_copy(update={"signature": "0" * 128})})
    texts = {"other": other.to_json().decode(), "forged": forged.to_json().decode()}
    data = {key: texts.get(value, value) for key, value in data.items()}
    cluster.objects.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "sums-join"}, "data": data})
    pool(cluster)
    cluster.settle()
    assert problem in pool_ready(cluster)["message"]
    assert replicas(cluster) == {}
