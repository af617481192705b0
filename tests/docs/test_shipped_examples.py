"""Every run under examples/ is accepted by the models of the CRDs and renders; those that claim a recipe have it. Two folders have no run."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from servers import ROOT
from shoal.environments.columns import TASK_TYPES
from shoal_operator.api import TrainingRun
from shoal_operator.api.manifest import load_manifest
from shoal_operator.children import names
from shoal_operator.render import render

EXAMPLES = sorted(
    path for path in (ROOT / "examples").rglob("*.yaml") if path.parent.name not in ("serving", "tenancy")
)
GPU_EXAMPLES = ("one-node", "intellect-2", "sft-then-rl")
GPU_RESOURCE = "nvidia.com/gpu"


@cache
def run_of(path: Path | str) -> TrainingRun:
    place = ROOT / path
    [found] = load_manifest(place.read_text(), str(path))
    assert isinstance(found, TrainingRun)
    return found


def named(path: Path) -> str:
    return path.relative_to(ROOT / "examples").as_posix()


@pytest.mark.parametrize("path", EXAMPLES, ids=named)
def test_it_is_accepted_and_renders(path: Path) -> None:
    run = run_of(path)
    made = render(run)
    kinds = {each["kind"] for each in made}
    assert {"Job", "Secret", "ConfigMap", "NetworkPolicy"} <= kinds
    assert ("InferencePool" in kinds) == (run.spec.mode != "SFT")
    assert len({(each["kind"], each["metadata"]["name"]) for each in made}) == len(made)


@pytest.mark.parametrize("path", EXAMPLES, ids=named)
def test_it_says_at_its_head_what_it_is(path: Path) -> None:
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.parent.name in GPU_EXAMPLES], ids=named)
def test_parts_on_gpus_have_images_that_can_use_them(path: Path) -> None:
    asked = [each for made in render(run_of(path)) for each in containers(made) if gpus_of(each)]
    assert asked
    assert [each["image"] for each in asked if not each["image"].endswith("-cuda")] == []


def containers(made: dict[str, Any]) -> list[dict[str, Any]]:
    pod = made.get("spec", {}).get("template", {}).get("spec", {})
    return [*pod.get("initContainers", []), *pod.get("containers", [])]


def gpus_of(container: dict[str, Any]) -> int:
    return int(container.get("resources", {}).get("limits", {}).get(GPU_RESOURCE, 0))


def gpus(run: TrainingRun) -> int:
    """GPUs that a run asks for at a time, all replicas of all pods together: prepare has ended when the others begin."""
    total = 0
    for made in render(run):
        if made["metadata"]["name"] == names.prepare(run.metadata.name):
            continue
        spec = made.get("spec", {})
        pods = spec.get("parallelism") or spec.get("replicas", 1)
        total += pods * sum(gpus_of(each) for each in containers(made))
    return total


def test_the_one_node_example_asks_for_eight_gpus() -> None:
    assert gpus(run_of("examples/one-node/trainingrun.yaml")) == 8


def test_intellect_2_has_the_papers_recipe() -> None:
    spec = run_of("examples/intellect-2/trainingrun.yaml").spec
    recipe = spec.recipe
    assert recipe.prompts_per_step * recipe.group_size == 4096
    assert recipe.prompts_per_step * recipe.group_size // recipe.optimizer_steps == 512
    assert (recipe.learning_rate, recipe.warmup_steps, recipe.max_grad_norm) == (3e-7, 25, 0.1)
    assert (recipe.loss.clip_epsilon, recipe.loss.upper_bound) == (0.2, 4.0)
    assert (recipe.kl_coefficient, recipe.entropy_coefficient) == (0.001, 1e-4)
    assert (recipe.adam_beta1, recipe.adam_beta2) == (0.9, 0.99)
    assert (recipe.objective, recipe.online_filter, recipe.normalizes_advantages) == (
        "two_sided_grpo",
        "TaskReward",
        True,
    )
    assert (recipe.max_sequence_length, spec.async_level) == (32768, 2)
    assert spec.length_reward is not None
    assert (spec.length_reward.targets, spec.length_reward.alpha) == ([2000, 4000, 6000, 8000, 10000], 0.0003)
    assert [(each.name, each.environment, each.weight) for each in spec.tasks.mixture] == [
        ("math", "math", 10),
        ("code", "code", 1),
    ]
    for source in spec.tasks.mixture:
        kept = source.offline_filter
        assert kept is not None
        assert (kept.solve_rate, kept.min_correct, kept.max_correct) == ("solve_rate_qwen_r1_distill_7b", 0.125, 0.5)
        assert source.dataset is not None
        [wanted] = source.dataset.where
        assert {TASK_TYPES[each] for each in wanted.one_of} == {source.environment}, "rows by task_type"
    assert spec.trainer.settings.compile is False
    assert any(pool.open and pool.replicas == 0 for pool in spec.inference_pools)
    assert spec.relay_server is not None
    assert spec.relay_server.kept_versions == 5


def test_target_short_differs_from_target_long_in_its_targets_only() -> None:
    long = run_of("examples/intellect-2/trainingrun.yaml").spec
    short = run_of("examples/intellect-2/target-short.yaml").spec
    assert short.length_reward is not None
    assert short.length_reward.targets == [1000, 2000, 3000, 4000]
    assert long.evaluation is not None
    assert short.evaluation is not None
    asked = [spec.evaluation.benchmarks for spec in (long, short) if spec.evaluation is not None]
    assert [{each.target_length for each in found} for found in asked] == [{10000}, {4000}], (
        "each at its longest target"
    )
    scored = short.evaluation.model_copy(
        update={"benchmarks": [each.model_copy(update={"target_length": 10000}) for each in asked[1]]}
    )
    same = {"length_reward": long.length_reward, "evaluation": scored}
    assert short.model_copy(update=same) == long


def test_the_demo_for_an_s3_store_differs_from_the_demo_in_its_store_only() -> None:
    demo, other = (run_of(f"examples/arithmetic/{name}.yaml").spec for name in ("trainingrun", "s3"))
    store = other.storage.s3
    assert store is not None
    values = yaml.safe_load((ROOT / "charts" / "shoal" / "values.yaml").read_text())
    assert (store.bucket, store.credentials_secret) == (values["minio"]["bucket"], values["storage"]["secretName"])
    assert other.model_copy(update={"storage": demo.storage}) == demo


def test_the_open_pool_of_the_demo_waits_for_strangers_only() -> None:
    demo, other = (run_of(f"examples/{name}/trainingrun.yaml").spec for name in ("arithmetic", "open-pool"))
    ours, strangers = other.inference_pools
    assert (ours.open, ours.replicas, strangers.open, strangers.replicas) == (False, 1, True, 0)
    assert other.model_copy(update={"inference_pools": demo.inference_pools}) == demo


def test_the_run_of_the_journey_begins_with_what_the_demo_leaves() -> None:
    demo, other = (run_of(f"examples/{name}/trainingrun.yaml") for name in ("arithmetic", "carries"))
    assert (other.spec.model.run, other.spec.storage) == (demo.metadata.name, demo.spec.storage)
    same = {name: getattr(demo.spec, name) for name in ("model", "tasks", "steps")}
    assert other.spec.model_copy(update=same) == demo.spec


def test_strangers_reach_the_intellect_2_run_over_https_only() -> None:
    made = render(run_of("examples/intellect-2/trainingrun.yaml"))
    [relays] = [each for each in made if each["kind"] == "StatefulSet" and each["metadata"]["name"].endswith("-relay")]
    mounts = [mount["mountPath"] for each in containers(relays) for mount in each["volumeMounts"]]
    assert "/shoal/secrets/tls" in mounts
    ingresses = [each for each in made if each["kind"] == "Ingress"]
    assert len(ingresses) == 2
    assert all(each["spec"]["tls"] for each in ingresses)


def test_the_second_of_two_runs_begins_with_what_the_first_leaves() -> None:
    first, second = (run_of(f"examples/sft-then-rl/{name}.yaml") for name in ("1-sft", "2-train"))
    assert second.spec.model.run == first.metadata.name
    assert second.spec.storage == first.spec.storage
    assert first.spec.mode == "SFT"
    assert names.pool(second.metadata.name, second.spec.inference_pools[0].name) == "reason-train-pool"
