"""The condition `Fits`: a manifest that certainly cannot hold its model says so, as early as its size is known."""

from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import MANIFEST, at_version, put, running, said, status

from servers import ROOT
from shoal.contracts.protocol import RunProgress
from shoal_operator.api import TrainingRun
from shoal_operator.api.manifest import load_manifest
from shoal_operator.local.cluster import LocalCluster
from shoal_operator.plan_facts import misfits, named_parameters, run_facts
from shoal_operator.reconcile import reconcile

HUB = {"huggingFace": "Qwen/Qwen3-8B", "revision": "main"}
LARGE: dict[str, Any] = {
    "model": HUB,
    "steps": 40,
    "trainer": {"scratchSize": "200Gi"},
    "inferencePools": [{"name": "pool", "weightsSize": "80Gi"}],
    "relayServer": {"cacheSize": "200Gi"},
    "storage": {"folderSize": "600Gi"},
}


def run_of(**changes: Any) -> TrainingRun:
    return TrainingRun.model_validate({**MANIFEST, "spec": {**MANIFEST["spec"], **LARGE, **changes}})


def progress(version_bytes: int | None) -> RunProgress:
    return RunProgress(run="sums", steps_total=40, open_step=0, latest_version=0, version_bytes=version_bytes)


def test_a_volume_that_is_too_small_is_told_before_anything_was_made(cluster: MemoryCluster) -> None:
    put(cluster, **(LARGE | {"inferencePools": [{"name": "pool", "weightsSize": "40Gi"}]}))
    cluster.settle()
    found = said(cluster, "Fits")
    assert (found["status"], found["reason"]) == ("False", "VolumeTooSmall")
    wanted = "spec.inferencePools[0].weightsSize: weights of pool has 42.9 GB and needs 57.7 GB for 4 versions"
    assert found["message"].startswith(wanted)
    assert found["message"].endswith("set 54Gi or more")
    assert status(cluster)["phase"] == "Preparing"
    assert wanted in said(cluster, "Ready")["message"], "what `kubectl get` shows says it too"


def test_sizes_that_fit_hold(cluster: MemoryCluster) -> None:
    put(cluster, **LARGE)
    cluster.settle()
    assert said(cluster, "Fits") | {"lastTransitionTime": "", "observedGeneration": 0} == {
        "type": "Fits", "status": "True", "reason": "SizesChecked", "message": "", "lastTransitionTime": "", "observedGeneration": 0,
    }  # fmt: skip


def test_without_a_size_it_is_unknown_until_a_version_is_announced(cluster: MemoryCluster) -> None:
    cluster.settle()
    assert (said(cluster, "Fits")["status"], said(cluster, "Fits")["reason"]) == ("Unknown", "SizeNotKnown")
    running(cluster)
    at_version(cluster, 0, version_bytes=1_400_000)
    reconcile(cluster, "TrainingRun", "sums")
    assert said(cluster, "Fits")["status"] == "True"
    at_version(cluster, 0, version_bytes=16_000_000_000)
    reconcile(cluster, "TrainingRun", "sums")
    found = said(cluster, "Fits")
    assert (found["status"], found["reason"]) == ("False", "VolumeTooSmall")
    assert "spec.inferencePools[0].weightsSize" in said(cluster, "Ready")["message"]


def test_claims_for_temporary_files_are_planned_with_their_size() -> None:
    asked = run_of(
        trainer={"temporaryVolume": {"size": "70Gi"}}, validator={"temporaryVolume": {"storageClassName": "fast"}}
    )
    for run, wanted in ((asked, (70 << 30, 20 << 30)), (run_of(), (None, None))):
        facts = run_facts(run)
        assert facts is not None
        assert (facts.trainer_temporary, facts.validator_temporary) == wanted


def test_an_announced_size_counts_more_than_a_name() -> None:
    small = run_of(inferencePools=[{"name": "pool", "weightsSize": "40Gi"}])
    assert misfits(small, None) != ()
    assert misfits(small, progress(None)) != ()
    assert misfits(small, progress(8 * 10**9)) == ()


def test_a_size_in_a_name_counts_with_nine_tenths() -> None:
    """`8B` may be 7.3 billion: volumes for that are no certain mistake."""
    volume = 4 * 2 * 7_300_000_000 + (64 << 20)
    assert misfits(run_of(inferencePools=[{"name": "pool", "weightsSize": volume}]), None) == ()
    less = 4 * 2 * 7_100_000_000
    assert misfits(run_of(inferencePools=[{"name": "pool", "weightsSize": less}]), None) != ()


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (HUB, 8 * 10**9),
        ({"huggingFace": "Qwen/Qwen3-32B-AWQ", "revision": "main"}, None),
        ({"huggingFace": "Qwen/Qwen3-32B-FP8", "revision": "main"}, None),
        ({"huggingFace": "openai-community/gpt2", "revision": "main"}, None),
        ({"huggingFace": "mistralai/Mixtral-8x7B-v0.1", "revision": "main"}, None),
        ({"path": "/models/8B"}, None),
        ({"generated": {}}, None),
    ],
)
def test_only_a_name_that_says_the_size_of_halves_is_taken(model: dict[str, Any], parameters: int | None) -> None:
    assert named_parameters(run_of(model=model)) == parameters


def test_gpus_that_the_manifest_names_are_compared_with_the_weights() -> None:
    pools = [{"name": "pool", "weightsSize": "600Gi", "gpu": {"count": 1, "type": "NVIDIA-L4"}}]
    model = {"huggingFace": "Qwen/Qwen3-32B", "revision": "main"}
    larger = {
        "trainer": {"scratchSize": "800Gi"},
        "relayServer": {"cacheSize": "800Gi"},
        "storage": {"folderSize": "4Ti"},
    }
    [found] = misfits(run_of(model=model, inferencePools=pools, **larger), None) or ()
    assert str(found) == (
        "spec.inferencePools[0].gpu: an engine of pool has 1 x 24.2 GB of L4 and needs 57.6 GB for the weights; give it 3 such GPUs or more"
    )
    unnamed = [{**pools[0], "gpu": {"count": 1}}]
    assert misfits(run_of(model=model, inferencePools=unnamed, **larger), None) == ()


def test_a_reward_model_is_a_fact_of_a_run_with_prime() -> None:
    facts = run_facts(run_of(recipe={"algorithm": {"prime": {}}}))
    assert facts is not None
    assert facts.reward_model
    assert facts.reference
    plain = run_facts(run_of())
    assert plain is not None
    assert not plain.reward_model


def test_relays_that_others_made_are_theirs_to_size() -> None:
    assert misfits(run_of(relayServer=None, relayServerRef="shared"), None) == ()


@pytest.mark.parametrize("file", ["trainingrun.yaml", "target-short.yaml"])
def test_the_paper_s_manifests_fit(file: str) -> None:
    [run] = load_manifest((ROOT / "examples" / "intellect-2" / file).read_text())
    assert isinstance(run, TrainingRun)
    assert misfits(run, progress(65_527_752_704)) == ()
    assert misfits(run, None) == ()


def test_the_volumes_that_the_paper_s_manifest_had_before_do_not() -> None:
    """300Gi hold 4.9 of the 5 versions: the run stopped when the fifth one came."""
    text = (ROOT / "examples" / "intellect-2" / "trainingrun.yaml").read_text()
    [run] = load_manifest(text.replace("320Gi", "300Gi").replace("diskGib: 320", "diskGib: 200"))
    assert isinstance(run, TrainingRun)
    found = misfits(run, progress(65_527_752_704)) or ()
    assert [each.field for each in found] == ["inferencePools[0].weightsSize"], (
        "a stranger may have more than the least disk"
    )


def test_sizes_that_nobody_enforces_are_no_misfit(cluster: MemoryCluster) -> None:
    small = LARGE | {
        "inferencePools": [{"name": "pool", "weightsSize": "40Gi", "gpu": {"count": 1, "type": "NVIDIA-L4"}}]
    }
    cluster.enforces_volumes = False
    put(cluster, **small)
    cluster.settle()
    assert said(cluster, "Fits")["status"] == "True"
    assert not LocalCluster.enforces_volumes
    model = {"huggingFace": "Qwen/Qwen3-32B", "revision": "main"}
    [found] = misfits(run_of(**(small | {"model": model})), None, volumes=False) or ()
    assert found.reason == "MemoryTooSmall"


def test_adapters_are_planned_by_their_rank_and_the_matrices_of_experts_that_are_named() -> None:
    given = {"lora": {"rank": 8, "targetModules": ["q_proj", "up_proj", "down_proj"]}}
    facts = run_facts(run_of(trainer=LARGE["trainer"] | {"settings": given}))
    assert facts is not None
    assert (facts.method, facts.adapters.rank, facts.adapters.of_expert) == ("LoRA", 8, 2)
