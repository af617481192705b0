"""Every block of YAML in the documentation is one that its reader would take: manifests by the CRD models, chart values by the chart's schema."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from doc_pages import Block, blocks, page_names

from servers import ROOT, lacking
from shoal.environments.harness import Harness
from shoal_operator.api import API_VERSION, KINDS, TrainingRun
from shoal_operator.api.manifest import load_manifest
from shoal_operator.api.training_run import TrainingRunSpec

KUBERNETES = {"v1", "apps/v1", "autoscaling/v2", "networking.k8s.io/v1", "kind.x-k8s.io/v1alpha4", "cert-manager.io/v1"}
"""API groups of others that pages may show; their own readers check them."""
VALUES = ROOT / "charts" / "shoal" / "values.yaml"
SCHEMA = ROOT / "charts" / "shoal" / "values.schema.json"
FIELDS = {field.alias or name for name, field in TrainingRunSpec.model_fields.items()}


def yaml_blocks() -> list[Block]:
    return [block for page in page_names() for block in blocks(page) if block.language in ("yaml", "yml")]


def read(document: dict[str, Any]) -> str:
    """Check one document; what it was taken for. Raises what its reader would."""
    version = document.get("apiVersion")
    if "scrape_configs" in document:
        prometheus(document)
        return "configuration of Prometheus"
    if "output_type" in document:
        harness_task(document)
        return "task of lm-evaluation-harness"
    if version in KUBERNETES:
        assert document.get("kind"), "a Kubernetes object without a kind"
        return "kubernetes"
    if version == API_VERSION:
        load_manifest(yaml.safe_dump(document))
        return "manifest"
    if set(document) == {"spec"}:
        spec = document["spec"]
        if "steps" in spec or "model" in spec:
            load_manifest(yaml.safe_dump(manifest(spec)))
            return "spec"
        return read(spec)
    if set(document) <= FIELDS:
        load_manifest(yaml.safe_dump(manifest(document)))
        return "part of a spec"
    values = yaml.safe_load(VALUES.read_text())
    if set(document) <= set(values):
        jsonschema.validate(merged(values, document), json.loads(SCHEMA.read_text()))
        return "values"
    raise AssertionError(
        f"neither a manifest, part of a TrainingRun's spec, nor values of the chart: {sorted(document)}"
    )


def prometheus(document: dict[str, Any]) -> None:
    """Fail unless Prometheus takes this configuration, and the files of rules that it names are there."""
    program = shutil.which("promtool")
    if program is None:
        lacking("promtool", "run `make setup`")
    assert all((ROOT / name).is_file() for name in document.get("rule_files", []))
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        file.write(yaml.safe_dump(document))
        file.flush()
        command = [str(program), "check", "config", "--syntax-only", file.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def harness_task(document: dict[str, Any]) -> None:
    """Fail unless the task, on a document like the page's, is asked and scored as the page says."""
    with tempfile.TemporaryDirectory() as folder:
        data, task = Path(folder) / "test.jsonl", Path(folder) / "task.yaml"
        data.write_text('{"question": "12+34=", "answer": "46"}\n')
        assert set(document["dataset_kwargs"]["data_files"]) == {"test"}
        task.write_text(yaml.safe_dump(document | {"dataset_kwargs": {"data_files": {"test": str(data)}}}))
        environment = Harness(str(task))
        [asked] = environment.tasks(1, 0)
    assert environment.prompt(asked, None) == "12+34=\n"
    answers = (environment.gold(asked), "<2+4+0=6,1+3+0=4>46", "<2+4+0=6,1+3+0=4>47")
    assert [environment.score(asked, each).task_reward for each in answers] == [1.0, 1.0, 0.0]


def manifest(given: dict[str, Any]) -> dict[str, Any]:
    """A whole TrainingRun with these fields of its spec."""
    least: dict[str, Any] = {"model": {"generated": {}}, "tasks": {"environment": "arithmetic"}, "steps": 4}
    if given.get("mode") == "Generate":
        del least["steps"]
    return {
        "apiVersion": API_VERSION,
        "kind": TrainingRun.__name__,
        "metadata": {"name": "page"},
        "spec": least | given,
    }


def merged(values: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = dict(values)
    for key, value in over.items():
        result[key] = (
            merged(result[key], value) if isinstance(value, dict) and isinstance(result.get(key), dict) else value
        )
    return result


@pytest.mark.parametrize("block", yaml_blocks(), ids=str)
def test_its_reader_takes_it(block: Block) -> None:
    for document in yaml.safe_load_all(block.text):
        assert isinstance(document, dict), f"{block} is no mapping"
        read(document)


def test_there_are_manifests_to_check() -> None:
    assert len(yaml_blocks()) >= 5
    assert set(KINDS) == {"TrainingRun", "InferencePool", "RelayServer", "Validator"}


@pytest.mark.parametrize(
    "wrong",
    [
        "spec: {mode: SFT, model: {generated: {}}}",
        "asynclevel: 3",
        "asyncLevel: 9",
        "operator: {replica: 2}",
        "scrape_configs: [{job_name: runs, static_config: []}]",
        "inferencePools: [{name: a, replica: 2}]",
        "{output_type: generate_until, task: sums, dataset_path: json, dataset_kwargs: {data_files: {test: a}}, doc_to_text: '{{q}}'}",
    ],
)
def test_a_wrong_block_would_be_found(wrong: str) -> None:
    with pytest.raises((AssertionError, ValueError, jsonschema.ValidationError)):
        read(yaml.safe_load(wrong))
