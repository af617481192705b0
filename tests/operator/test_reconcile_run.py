"""A TrainingRun while it goes on: what exists at each point, what its status says, and what is never done twice."""

import base64

import pytest
from memory_cluster import MemoryCluster
from run_story import at_version, holds, prepared, put, replicas, running, said, status

import samples
from shoal.contracts.answers import AnswerSample, LearningProgress
from shoal.contracts.evaluation import EvaluationProgress
from shoal.contracts.hub import HubCommit
from shoal.contracts.proof_profile import ProofTerms
from shoal.contracts.protocol import DatasetProgress, RunProgress
from shoal.contracts.roster import ROLES
from shoal.contracts.run import RunConfig
from shoal.contracts.thresholds import ProofThresholds
from shoal.crypto.keys import PrivateKey
from shoal_operator.children.names import selector
from shoal_operator.engine.cluster import ClusterError
from shoal_operator.reconcile import reconcile

# Order of creation.


def test_until_prepare_has_succeeded_there_is_nothing_but_prepare(cluster: MemoryCluster) -> None:
    cluster.settle()
    assert cluster.names("Job") == ["sums-prepare"]
    assert replicas(cluster) == {}
    assert status(cluster)["phase"] == "Preparing"
    assert holds(cluster) == {"Progressing", "VolumesReady"}


def test_every_part_is_made_after_prepare(cluster: MemoryCluster) -> None:
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
        "ConfigMap/sums-relay-limits": "RelayServer",
        "Service/sums-relay": "RelayServer",
        "StatefulSet/sums-relay": "RelayServer",
        "Deployment/sums-validator": "Validator",
        "ConfigMap/sums-pool-node": "InferencePool",
        "Service/sums-pool": "InferencePool",
        "StatefulSet/sums-pool": "InferencePool",
        "Secret/sums-relay-release": "RelayServer",
        "Secret/sums-validator-release": "Validator",
        "Secret/sums-pool-release": "InferencePool",
    }


def test_prepare_that_fails_for_good_fails_the_run_and_says_why(cluster: MemoryCluster) -> None:
    cluster.settle()
    cluster.job_ends("sums-prepare", "Failed", "unknown environment 'arithmetic'")
    cluster.settle()
    assert holds(cluster) == {"Failed", "VolumesReady"}
    assert said(cluster, "Failed")["message"] == (
        "Job sums-prepare: unknown environment 'arithmetic'; read its log, and delete the Job to try again"
    )
    assert said(cluster, "Prepared")["message"] == said(cluster, "Failed")["message"]
    assert replicas(cluster) == {}


def test_prepare_that_fails_says_its_last_words_rather_than_the_jobs(cluster: MemoryCluster) -> None:
    cluster.settle()
    last = '{"event": "spec.tasks.dataset: there is no data set a/b on the hub"}'
    ended = {"name": "prepare", "state": {"terminated": {"exitCode": 2, "message": last}}}
    cluster.pods["sums-prepare-0"] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "sums-prepare-0", "labels": selector("sums", "prepare")},
        "status": {"phase": "Failed", "containerStatuses": [ended]},
    }
    cluster.job_ends(
        "sums-prepare", "Failed", "Container prepare failed with exit code 2 matching FailJob rule at index 0"
    )
    cluster.settle()
    assert said(cluster, "Failed")["message"] == (
        "Job sums-prepare: pod sums-prepare-0: PodFailed: container prepare: ended, last: exit code 2: spec.tasks.dataset: there is no data set"
        " a/b on the hub; read its log, and delete the Job to try again"
    )


def test_deleting_a_failed_prepare_tries_again(cluster: MemoryCluster) -> None:
    cluster.settle()
    cluster.job_ends("sums-prepare", "Failed")
    cluster.settle()
    cluster.delete("Job", "sums-prepare")
    cluster.pods_end()
    cluster.settle()
    assert cluster.names("Job") == ["sums-prepare"]
    assert status(cluster)["phase"] == "Preparing"


def test_a_run_whose_name_the_api_server_made_up_is_read_too(cluster: MemoryCluster) -> None:
    """`generateName` is what people use who start many runs."""
    live = cluster.get("TrainingRun", "sums")
    assert live is not None
    cluster.objects.apply({**live, "metadata": {**live["metadata"], "generateName": "su"}})
    cluster.settle()
    assert cluster.names("Job") == ["sums-prepare"]


# Applying: only what differs.


def test_a_second_reconcile_writes_nothing(cluster: MemoryCluster) -> None:
    running(cluster)
    before = len(cluster.writes), cluster.status_writes
    for _ in range(3):
        cluster.reconcile_all()
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
        assert set(entries) == ({"role.pem", "run_secret", "admin_token"} if role == "orchestrator" else {"role.pem"})
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
    # Two steps left, the last one took 20.5 s.
    assert (found["etaSeconds"], found["eta"]) == (41.0, "41 s")


def test_the_time_that_is_left_is_also_said_for_people(cluster: MemoryCluster) -> None:
    running(cluster)
    began = samples.METRICS.started_unix
    last = samples.METRICS.model_copy(update={"run": "sums", "step": 1, "finished_unix": began + 6_000.0})
    at_version(cluster, 2, last_step=last)
    cluster.settle()
    assert (status(cluster)["etaSeconds"], status(cluster)["eta"]) == (12_000.0, "3 h 20 min")


def test_thresholds_of_proofs_and_their_error_rates_are_shown(cluster: MemoryCluster) -> None:
    running(cluster)
    at_version(cluster, 2, proofs=ProofTerms.in_force(None, samples.PROOF_PROFILE))
    cluster.settle()
    assert status(cluster)["proofs"] == {
        "calibrated": True,
        "thresholds": {"maxExponentMismatches": 2, "maxMantissaErrorMean": 0.1, "maxMantissaErrorMedian": 0.0},
        "maskedDimensions": 2,
        "honestChunks": 384,
        "falseRejectChunksBound": 0.0096,
        "falseRejectFilesBound": 0.37,
        "controls": [{"name": "int8", "acceptedChunks": 0.0, "acceptedFiles": 0.0}],
    }
    at_version(cluster, 3, proofs=ProofTerms.in_force(ProofThresholds(), samples.PROOF_PROFILE))
    cluster.settle()
    found = status(cluster)["proofs"]  # of other thresholds no rate is known
    assert (found["calibrated"], found["honestChunks"], found["controls"]) == (False, 0, [])
    assert "falseRejectChunksBound" not in found


def test_an_orchestrator_that_is_not_ready_is_not_asked(cluster: MemoryCluster) -> None:
    prepared(cluster)
    assert cluster.asked == []


def test_figures_stay_while_the_orchestrator_is_unreachable(cluster: MemoryCluster) -> None:
    running(cluster, version=2)
    cluster.progress = None
    cluster.settle()
    assert (status(cluster)["step"], status(cluster)["policyVersion"]) == (2, 2)


def test_nobody_is_told_that_a_run_is_well_while_nothing_is_known_of_it(cluster: MemoryCluster) -> None:
    running(cluster, version=2)
    assert said(cluster, "Ready")["status"] == "True"
    cluster.progress = None
    cluster.settle()
    assert (said(cluster, "Ready")["status"], said(cluster, "Ready")["reason"]) == ("Unknown", "OrchestratorSilent")
    assert "sums-orchestrator does not say how far the run is" in said(cluster, "Ready")["message"]
    at_version(cluster, 2)
    cluster.objects.mark_deleted("PersistentVolumeClaim", "sums-store", "2026-11-21T00:00:00Z")
    cluster.reconcile_all()
    assert (said(cluster, "Ready")["status"], said(cluster, "Ready")["reason"]) == ("Unknown", "StoreTerminating")


def test_another_runs_progress_is_not_taken_for_ours(cluster: MemoryCluster) -> None:
    running(cluster)
    cluster.progress = RunProgress(run="other", steps_total=4, open_step=None, latest_version=4)
    cluster.settle()
    assert "Complete" not in holds(cluster)


# What the online filter and a run of mode Generate are at.


def test_groups_kept_and_dropped_are_in_the_status(cluster: MemoryCluster) -> None:
    running(cluster)
    at_version(cluster, 0, groups_accepted_total=30, groups_dropped_total=12)
    reconcile(cluster, "TrainingRun", "sums")
    assert (status(cluster)["groupsKept"], status(cluster)["groupsDropped"]) == (30, 12)
    assert said(cluster, "StalledOnSignal")["status"] == "False"


def test_a_step_at_the_cap_on_sampling_is_a_condition_that_says_what_to_do(cluster: MemoryCluster) -> None:
    running(cluster)
    at_version(cluster, 0, stalled_on_signal="step 0: 160 groups were sampled; raise spec.recipe.samplingCap to go on")
    reconcile(cluster, "TrainingRun", "sums")
    assert "StalledOnSignal" in holds(cluster)
    assert "Ready" not in holds(cluster)
    assert said(cluster, "Ready")["reason"] == "StalledOnSignal"
    assert "raise spec.recipe.samplingCap to go on" in said(cluster, "StalledOnSignal")["message"]
    at_version(cluster, 0)
    reconcile(cluster, "TrainingRun", "sums")
    assert "Ready" in holds(cluster)
    assert "StalledOnSignal" not in holds(cluster)


CUT = LearningProgress(
    groups=32,
    cut=0.98765,
    groups_wrong=1.0,
    decided=True,
    reason="AnswersCutOff",
    message="of the last 32 groups none carries signal: 98.8 % cut off; raise sampling.maxCompletionTokens",
    samples=[AnswerSample(problem_id="p", prompt="1+1=", answer="<", tokens=2, cut=True, task_reward=0.0)],
)


def test_a_run_that_cannot_learn_says_why_in_a_condition_and_shows_answers(cluster: MemoryCluster) -> None:
    running(cluster)
    at_version(cluster, 0, learning=LearningProgress(groups=8, message="of the last 8 groups none"))
    reconcile(cluster, "TrainingRun", "sums")
    assert (said(cluster, "Learning")["status"], said(cluster, "Learning")["reason"]) == ("Unknown", "FewGroupsJudged")
    at_version(cluster, 0, learning=CUT)
    reconcile(cluster, "TrainingRun", "sums")
    found = said(cluster, "Learning")
    assert (found["status"], found["reason"]) == ("False", "AnswersCutOff")
    assert "raise sampling.maxCompletionTokens" in found["message"]
    assert "none carries signal" in said(cluster, "Ready")["message"], "what `kubectl get` shows says it too"
    answers = status(cluster)["answers"]
    assert (answers["groups"], answers["cut"], answers["groupsWrong"]) == (32, 0.988, 1.0)
    assert answers["samples"] == [
        {"problemId": "p", "prompt": "1+1=", "answer": "<", "tokens": 2, "cut": True, "taskReward": 0.0}
    ]
    at_version(cluster, 0, learning=CUT.model_copy(update={"reason": None, "groups_with_signal": 3}))
    reconcile(cluster, "TrainingRun", "sums")
    assert said(cluster, "Learning")["status"] == "True"


def test_commits_of_hub_repositories_are_in_the_status(cluster: MemoryCluster) -> None:
    running(cluster)
    commit = HubCommit(kind="model", repository="owner/name", revision="main", commit="a" * 40)
    at_version(cluster, 0, commits=[commit])
    reconcile(cluster, "TrainingRun", "sums")
    assert status(cluster)["revisions"] == [commit.model_dump()]


def test_the_status_has_the_newest_score_of_each_benchmark_with_its_interval(cluster: MemoryCluster) -> None:
    def scored(version: int, benchmark: str, value: float | None) -> EvaluationProgress:
        bounds = {} if value is None else {"avg_at_k": value, "low": value - 0.1, "high": value + 0.1, "ended": True}
        return EvaluationProgress(version=version, benchmark=benchmark, slices=2, slices_done=2, **bounds)

    told = [scored(2, "sums", 0.5), scored(0, "sums", 0.25), scored(0, "aime", 0.125), scored(2, "aime", None)]
    running(cluster)
    before = cluster.progress
    assert before is not None
    cluster.progress = before.model_copy(update={"evaluations": told})
    cluster.settle()
    wanted = [
        {"benchmark": "aime", "version": 0, "score": 0.125, "low": 0.025, "high": 0.225},
        {"benchmark": "sums", "version": 2, "score": 0.5, "low": 0.4, "high": 0.6},
    ]
    assert status(cluster)["scores"] == wanted
    cluster.progress = None
    cluster.settle()
    assert status(cluster)["scores"] == wanted


def test_a_run_that_generates_is_complete_when_its_orchestrator_said_so_once(cluster: MemoryCluster) -> None:
    cluster.delete("TrainingRun", "sums")
    cluster.settle()
    put(cluster, mode="Generate", steps=None)
    prepared(cluster)
    trainer = cluster.get("Job", "sums-trainer-1")
    assert trainer is not None
    commands = {each["name"]: each["command"] for each in trainer["spec"]["template"]["spec"]["containers"]}
    assert commands["trainer"] == ["python", "-m", "shoal.collection"]
    made = DatasetProgress(name="traces", steps=9, steps_collected=9, rows_seen=80, rows_kept=31)
    cluster.progress = RunProgress(run="sums", steps_total=9, open_step=None, latest_version=0, dataset=made)
    cluster.pods_start()
    cluster.settle()
    assert status(cluster)["dataset"] == {"slices": 9, "slicesCollected": 9, "rowsSeen": 80, "rowsKept": 31}
    assert "Complete" not in holds(cluster)
    cluster.progress = cluster.progress.model_copy(update={"complete": True})
    cluster.settle()
    assert said(cluster, "Complete")["reason"] == "DatasetWritten"
    cluster.progress = None
    cluster.settle()
    assert "Complete" in holds(cluster)
