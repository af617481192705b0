"""`shoal render`: every object that the operator would apply, and nothing secret."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from memory_cluster import MemoryCluster

from shoal_operator.api import TrainingRun
from shoal_operator.api.manifest import load_manifest
from shoal_operator.render import render, to_yaml

EXAMPLE = Path(__file__).parents[2] / "examples" / "arithmetic" / "trainingrun.yaml"


@pytest.fixture(scope="module")
def run() -> TrainingRun:
    [found] = load_manifest(EXAMPLE.read_text(), EXAMPLE.name)
    assert isinstance(found, TrainingRun)
    return found


def keys(objects: list[dict[str, Any]]) -> set[str]:
    return {f"{made['kind']}/{made['metadata']['name']}" for made in objects}


def test_what_is_rendered_is_what_reconcile_applies(run: TrainingRun, tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)
    cluster.objects.apply(run.model_dump(mode="json", by_alias=True, exclude_none=True))
    cluster.reconcile_all()
    cluster.job_ends("arithmetic-prepare", "Complete")
    cluster.settle()
    records = {key for key in cluster.writes if key.startswith("Secret/") and key.endswith("-release")}
    assert len(records) == 4, (
        "of the run, its relays, validator and pool: what the operator remembers, no part of a manifest"
    )
    assert keys(render(run)) == set(cluster.writes) - records


def test_claims_that_the_operator_makes_for_groups_are_among_what_is_rendered(run: TrainingRun) -> None:
    [pool] = run.spec.inference_pools
    engine = pool.engine.model_copy(update={"hosts": 2, "tensor_parallel_size": 2})
    grouped = pool.model_copy(update={"engine": engine, "hosts_by": "LeaderWorkerSet", "replicas": 1})
    changed = run.model_copy(update={"spec": run.spec.model_copy(update={"inference_pools": [grouped]})})
    claims = {key for key in keys(render(changed)) if key.startswith("PersistentVolumeClaim/")}
    of_pods = {
        f"PersistentVolumeClaim/{volume}-arithmetic-{pool.name}-0{more}"
        for volume in ("key", "weights")
        for more in ("", "-1")
    }
    assert of_pods <= claims


def test_the_output_is_one_yaml_stream_that_reads_back(run: TrainingRun) -> None:
    objects = render(run)
    assert list(yaml.safe_load_all(to_yaml(objects))) == objects


def test_secrets_are_named_and_empty(run: TrainingRun) -> None:
    secrets = [made for made in render(run) if made["kind"] == "Secret"]
    assert len(secrets) == 9
    assert all("data" not in made and "stringData" not in made for made in secrets)


def test_rendering_twice_gives_the_same_text(run: TrainingRun) -> None:
    assert to_yaml(render(run)) == to_yaml(render(run))


def test_objects_lie_in_the_namespace_of_the_run(run: TrainingRun) -> None:
    elsewhere = run.model_copy(update={"metadata": run.metadata.model_copy(update={"namespace": "team"})})
    rendered = render(elsewhere)
    assert {made["metadata"]["namespace"] for made in rendered} == {"team"}
    assert "arithmetic-orchestrator.team.svc:8080" in to_yaml(rendered)


def test_a_suspended_run_is_rendered_without_a_trainer(run: TrainingRun) -> None:
    suspended = run.model_copy(update={"spec": run.spec.model_copy(update={"suspend": True})})
    assert not any("trainer-1" in key for key in keys(render(suspended)))
