"""Pods with GPUs: their images, and what their parts are promised and check as they start (`shoal.accelerators`)."""

from typing import Any

import pytest
from run_story import MANIFEST

from shoal_operator.api import TrainingRun
from shoal_operator.api.manifest import check
from shoal_operator.children import names
from shoal_operator.children.own_kinds import References
from shoal_operator.children.pods import GPU_RESOURCE
from shoal_operator.children.run_config import pool_terms
from shoal_operator.render import render

GPU = {"count": 1, "type": "NVIDIA-L4", "memoryGib": 20}
ON_GPUS = {part: f"{names.IMAGES[part]}-cuda" for part in ("trainer", "worker", "validator")}


def containers(**spec: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """Pod, container and the container's object of every pod of a run whose parts have a GPU each."""
    parts = {"trainer": {"gpu": GPU}, "validator": {"gpu": GPU}, "inferencePools": [{"name": "pool", "gpu": GPU}]}
    run = TrainingRun.model_validate({**MANIFEST, "spec": MANIFEST["spec"] | parts | spec})
    found = []
    for made in render(run):
        pod = made.get("spec", {}).get("template", {}).get("spec", {})
        for each in [*pod.get("initContainers", []), *pod.get("containers", [])]:
            found.append((made["metadata"]["name"], each["name"], each))
    return found


def asked(container: dict[str, Any]) -> int:
    return int(container.get("resources", {}).get("limits", {}).get(GPU_RESOURCE, 0))


def promised(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"] if each["name"].startswith("SHOAL_GPU")}


def test_what_asks_for_gpus_has_their_image_and_is_told_what_to_expect() -> None:
    on_gpus = {(pod, name): each for pod, name, each in containers() if asked(each)}
    assert {name for _, name in on_gpus} == {"trainer", "worker", "validator", "prepare"}
    for each in on_gpus.values():
        assert promised(each) == {"SHOAL_GPUS": "1", "SHOAL_GPU_TYPE": "NVIDIA-L4", "SHOAL_GPU_MEMORY_GIB": "20"}
    assert {each["image"] for each in on_gpus.values()} == set(ON_GPUS.values())


def test_what_asks_for_none_is_promised_none_and_has_the_image_for_cpus() -> None:
    others = [(name, each) for _, name, each in containers() if not asked(each)]
    assert [name for name, each in others if promised(each)] == []
    # A node's download takes its worker's image: one pull a pod.
    assert {name for name, each in others if each["image"] in ON_GPUS.values()} == {"fetch"}
    on_cpus = containers(trainer={}, validator={}, inferencePools=[{"name": "pool", "gpu": {"type": "NVIDIA-L4"}}])
    assert {each["image"] for _, _, each in on_cpus}.isdisjoint(ON_GPUS.values())
    assert [name for _, name, each in on_cpus if promised(each)] == []


TP4 = {"tensorParallelSize": 4}


@pytest.mark.parametrize(
    ("pool", "asked", "ranks"),
    [
        ({"open": True, "gpu": GPU}, 1, 1),
        ({"open": True, "gpu": {"count": 1, "claimTemplate": "h200"}}, 1, 1),
        ({"open": True, "gpu": {"count": 1, "resource": "nvidia.com/mig-3g.40gb"}}, 1, 1),
        ({"open": True, "gpu": GPU, "requirements": {"gpus": 4}}, 4, 1),
        ({"open": True, "gpu": {"count": 4}, "engine": TP4, "requirements": {"gpus": 2}}, 4, 4),
        ({"open": True, "gpu": {"count": 1, "resource": "amd.com/gpu"}}, 0, 1),
        ({"open": True}, 0, 1),
        ({"gpu": {"count": 4}, "engine": TP4}, 0, 1),
    ],
)
def test_an_open_pool_of_gpus_asks_strangers_machines_for_those_of_an_engine(
    pool: dict[str, Any], asked: int, ranks: int
) -> None:
    spec = MANIFEST["spec"] | {"inferencePools": [{"name": "pool", **pool}]}
    [terms] = pool_terms(TrainingRun.model_validate({**MANIFEST, "spec": spec}), References())
    assert (terms.requirements.gpus, terms.engine.ranks) == (asked, ranks)


def test_an_image_that_is_named_stays() -> None:
    found = containers(images={"validator": "registry.example.org/mine:1"})
    assert {each["image"] for _, name, each in found if name == "validator"} == {"registry.example.org/mine:1"}


def test_prepare_takes_no_gpu_of_a_validator_into_a_named_image_of_a_trainer_without_any() -> None:
    def prepare(**spec: Any) -> dict[str, Any]:
        return next(
            each for _, name, each in containers(images={"trainer": "site/trainer-cpu"}, **spec) if name == "prepare"
        )

    assert (asked(prepare(trainer={})), promised(prepare(trainer={}))) == (0, {})
    assert asked(prepare()) == 1  # the trainer has GPUs, and its image with it
    assert asked(prepare(trainer={}, prepare={"gpu": GPU})) == 1


def test_a_collector_takes_no_gpu_from_anybody() -> None:
    generate = {"mode": "Generate", "steps": None, "generate": {"dataset": "traces"}}
    collector = next(each for _, name, each in containers(**generate) if name == "trainer")
    assert collector["command"] == ["python", "-m", "shoal.collection"]
    assert (asked(collector), promised(collector), collector["image"]) == (0, {}, names.IMAGES["trainer"])


@pytest.mark.parametrize("memory", [0, 4097, 12.5])
def test_memory_that_no_gpu_has_is_refused_with_its_field(memory: float) -> None:
    manifest = {**MANIFEST, "spec": MANIFEST["spec"] | {"trainer": {"gpu": {"count": 1, "memoryGib": memory}}}}
    _, mistakes = check(manifest)
    assert [path for path, _ in mistakes] == ["spec.trainer.gpu.memoryGib"]
