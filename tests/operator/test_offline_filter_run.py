"""A run with an offline filter: the run that samples comes first, is waited for, and rests once its counts are read."""

from collections.abc import Iterator
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import MANIFEST, holds, put, record_complete, said, status

from shoal.contracts.algorithm import Algorithm, Prime, VinePpo
from shoal.contracts.recipe import Recipe
from shoal_operator.api import TrainingRun
from shoal_operator.api.manifest import broken_rules, check
from shoal_operator.api.rules import RULES
from shoal_operator.children.offline_filter import filter_training_run
from shoal_operator.children.own_kinds import References
from shoal_operator.children.runner import runner_children
from shoal_operator.engine.cluster import Object
from shoal_operator.reconcile import reconcile

FILTER = "sums-filter"


def run(**spec: Any) -> TrainingRun:
    tasks = {"environment": "arithmetic", "offlineFilter": {"samples": 6}}
    return TrainingRun.model_validate({**MANIFEST, "spec": MANIFEST["spec"] | {"tasks": tasks} | spec})


@pytest.fixture
def filtering(cluster: MemoryCluster) -> MemoryCluster:
    """A cluster with the run of the story, which filters its tasks."""
    cluster.delete("TrainingRun", "sums")
    cluster.settle()
    put(cluster, tasks={"environment": "arithmetic", "offlineFilter": {"samples": 6}})
    reconcile(cluster, "TrainingRun", "sums")
    return cluster


def child(cluster: MemoryCluster) -> Object:
    found = cluster.get("TrainingRun", FILTER)
    assert found is not None
    return found


def filter_is(cluster: MemoryCluster, condition: str, message: str = "", **more: Any) -> None:
    """Give the filter's run a status, as its own reconcile would, and let the run look at it."""
    told = {
        "type": condition,
        "status": "True",
        "reason": "Said",
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    cluster.apply_status("TrainingRun", FILTER, {"conditions": [told], **more})
    if condition == "Complete":
        record_complete(cluster, FILTER)
    reconcile(cluster, "TrainingRun", "sums")


def test_the_filters_run_samples_every_task_with_the_base_model_and_the_runs_own_parts() -> None:
    wanted = filter_training_run(run(), References(), suspend=False)
    assert wanted is not None
    made = TrainingRun.model_validate(wanted)
    assert list(broken_rules(made)) == []
    assert made.spec.mode == "Generate"
    assert made.spec.recipe.group_size == 6
    assert made.spec.tasks.offline_filter is None
    assert (made.spec.model, made.spec.sampling, made.spec.storage) == (
        run().spec.model, run().spec.sampling, run().spec.storage,
    )  # fmt: skip
    assert made.spec.inference_pools == run().spec.inference_pools


def test_a_run_that_stops_for_bad_data_has_a_filter_that_does() -> None:
    policy = {"badData": "Stop", "maxTrainerAttempts": 3}
    wanted = filter_training_run(run(failurePolicy=policy), References(), suspend=False)
    assert wanted is not None
    assert wanted["spec"]["failurePolicy"] == policy


def test_the_filter_is_given_as_long_without_progress_as_the_run() -> None:
    wanted = filter_training_run(run(progressDeadlineSeconds=7200), References(), suspend=False)
    assert wanted is not None
    assert wanted["spec"]["progressDeadlineSeconds"] == 7200


def test_the_filter_of_a_run_with_prime_has_no_reward_model() -> None:
    recipe = Recipe(algorithm=Algorithm(prime=Prime(max_accuracy=0.5)), prompts_per_step=8, optimizer_steps=2)
    given = run(recipe=recipe)
    found = filter_training_run(given, References(), suspend=False)
    made = TrainingRun.model_validate(found)
    assert made.spec.recipe.process_rewards is None
    assert list(broken_rules(made)) == []


def test_the_filter_of_a_run_with_vineppo_has_no_continuations() -> None:
    recipe = Recipe(algorithm=Algorithm(vineppo=VinePpo(segments=2)), prompts_per_step=8, optimizer_steps=2)
    made = TrainingRun.model_validate(filter_training_run(run(recipe=recipe), References(), suspend=False))
    assert made.spec.recipe.rows_each == 1
    assert list(broken_rules(made)) == []


PLACES: dict[str, list[str]] = {
    "TrainingRunSpec": [], "Recipe": ["recipe"], "Sampling": ["sampling"], "Rollouts": ["rollouts"], "TrainerTemplate": ["trainer"],
    "TrainerSettings": ["trainer", "settings"], "Gpus": ["trainer", "gpu"], "PodWithVariables": ["trainer", "podTemplate"],
}  # fmt: skip
"""Where models with rules lie in a spec."""


def good_examples() -> Iterator[tuple[str, dict[str, Any]]]:
    """Specs that keep a rule of ours, and those that a rule's example does not show, by what they are examples of."""
    for number, rule in enumerate(RULES):
        if rule.model in PLACES and not rule.of_updates:
            spec = rule.good
            for key in reversed(PLACES[rule.model]):
                spec = {key: spec}
            yield f"{number} {rule.model}.{rule.field}", spec
    yield "two ranks share each pack", {"trainer": {"processesPerReplica": 2, "settings": {"contextParallel": 2}}}
    yield "a store that stays", {"storeVolume": {"retain": True}}


def merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return old | {key: merged(old.get(key), value) for key, value in new.items()}


def filtered_runs() -> dict[str, TrainingRun]:
    """The examples as runs with an offline filter. Some are no run by themselves, or none that may have a filter."""
    base = {"model": {"path": "/models/a"}, "steps": 4, "tasks": {"environment": "arithmetic", "offlineFilter": {}}}
    found = {name: check({**MANIFEST, "spec": merged(base, spec)})[0] for name, spec in good_examples()}
    return {name: given for name, given in found.items() if isinstance(given, TrainingRun)}


FILTERED = filtered_runs()


def test_most_examples_are_runs_that_have_a_filter() -> None:
    assert len(FILTERED) >= 40
    fields = " ".join(FILTERED)
    assert all(name in fields for name in ("contextParallel", "claimTemplate", "settings.offload", "recipe.muon"))


@pytest.mark.parametrize("name", FILTERED)
def test_the_filter_of_a_run_that_is_accepted_is_accepted(name: str) -> None:
    wanted = filter_training_run(FILTERED[name], References(), suspend=False)
    assert wanted is None or check(wanted)[1] == []


def test_the_filters_programs_run_in_the_sandbox_of_the_run() -> None:
    sandbox = {"replicas": 3, "podTemplate": {"runtimeClassName": "gvisor"}}
    tasks = {"environment": "another", "offlineFilter": {}}
    wanted = filter_training_run(run(tasks=tasks, runner=sandbox), References(), suspend=False)
    made = TrainingRun.model_validate(wanted)
    [runners] = [each for each in runner_children(made, work=True) if each["kind"] == "StatefulSet"]
    assert runners["spec"]["replicas"] == 3
    assert runners["spec"]["template"]["spec"]["runtimeClassName"] == "gvisor"


def test_another_model_may_be_sampled() -> None:
    other = {"environment": "arithmetic", "offlineFilter": {"model": {"path": "/models/other"}}}
    wanted = filter_training_run(run(tasks=other), References(), suspend=False)
    assert wanted is not None
    assert wanted["spec"]["model"] == {"path": "/models/other"}


def test_a_run_without_a_filter_has_no_such_run() -> None:
    assert filter_training_run(run(tasks={"environment": "arithmetic"}), References(), suspend=False) is None


def test_nothing_but_the_filters_run_exists_until_it_is_complete(filtering: MemoryCluster) -> None:
    assert child(filtering)["metadata"]["ownerReferences"][0]["name"] == "sums"
    assert "sums-prepare" not in filtering.names("Job")
    filter_is(filtering, "Progressing", dataset={"slices": 9, "slicesCollected": 4})
    assert "4 of 9 parts are sampled" in said(filtering, "Progressing")["message"]
    assert "sums-prepare" not in filtering.names("Job")


def test_the_problem_of_the_filters_run_is_reported_on_the_run_too(filtering: MemoryCluster) -> None:
    reconcile(filtering, "TrainingRun", "sums")
    ready = {"type": "Ready", "status": "False", "reason": "ComponentsNotReady", "message": "waits for InferencePool"}
    dataset = {"slices": 9, "slicesCollected": 0}
    filtering.objects.set_status("TrainingRun", FILTER, {"conditions": [ready], "dataset": dataset})
    reconcile(filtering, "TrainingRun", "sums")
    assert said(filtering, "Progressing")["message"].endswith(": 0 of 9 parts are sampled; waits for InferencePool")


def test_a_status_alone_does_not_make_the_filters_run_complete(filtering: MemoryCluster) -> None:
    lie = {"type": "Complete", "status": "True", "reason": "R", "message": ""}
    filtering.objects.set_status("TrainingRun", FILTER, {"conditions": [lie]})
    reconcile(filtering, "TrainingRun", "sums")
    assert "sums-prepare" not in filtering.names("Job")


def test_then_prepare_reads_its_counts_from_its_store(filtering: MemoryCluster) -> None:
    filter_is(filtering, "Complete")
    prepare = filtering.get("Job", "sums-prepare")
    assert prepare is not None
    pod = prepare["spec"]["template"]["spec"]
    claims = {each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"] if "persistentVolumeClaim" in each}
    assert claims == {"sums-store", "sums-filter-store"}
    assert "/shoal/others/sums-filter" in {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}


def test_the_filters_run_stops_when_the_run_is_prepared(filtering: MemoryCluster) -> None:
    filter_is(filtering, "Complete")
    filtering.job_ends("sums-prepare", "Complete")
    reconcile(filtering, "TrainingRun", "sums")
    reconcile(filtering, "TrainingRun", "sums")
    assert child(filtering)["spec"]["suspend"] is True
    filtering.objects.remove("TrainingRun", FILTER)
    reconcile(filtering, "TrainingRun", "sums")
    assert filtering.get("TrainingRun", FILTER) is None


def test_a_suspended_run_suspends_its_filter(filtering: MemoryCluster) -> None:
    put(filtering, tasks={"environment": "arithmetic", "offlineFilter": {"samples": 6}}, suspend=True)
    reconcile(filtering, "TrainingRun", "sums")
    assert child(filtering)["spec"]["suspend"] is True
    put(filtering, tasks={"environment": "arithmetic", "offlineFilter": {"samples": 6}}, suspend=False)
    reconcile(filtering, "TrainingRun", "sums")
    assert child(filtering)["spec"]["suspend"] is False


def test_a_filter_that_failed_fails_the_run_and_says_what_to_do(filtering: MemoryCluster) -> None:
    filter_is(filtering, "Failed", "Job sums-filter-prepare: no such model")
    assert "Failed" in holds(filtering)
    assert said(filtering, "Failed")["reason"] == "FilterFailed"
    assert said(filtering, "Failed")["message"] == (
        "TrainingRun sums-filter, which samples every task (spec.tasks.offlineFilter), has failed: Job sums-filter-prepare: no such model;"
        " delete it to sample again"
    )
    assert "sums-prepare" not in filtering.names("Job")


def test_deleting_the_failed_filter_retries_it(filtering: MemoryCluster) -> None:
    filter_is(filtering, "Failed", "no such model")
    filtering.objects.remove("TrainingRun", FILTER)
    reconcile(filtering, "TrainingRun", "sums")
    reconcile(filtering, "TrainingRun", "sums")
    assert child(filtering)
    assert status(filtering)["phase"] == "Preparing"
