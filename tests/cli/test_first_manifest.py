"""`shoal init`: every manifest that it writes is accepted by the rules of the CRDs and renders; what is wrong is told in one line."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from shoal.cli.first_manifest import ManifestRequest, first_manifest
from shoal.cli.main import app
from shoal.cli.preflight import lacking
from shoal.errors import InputWrong
from shoal_operator.api import TrainingRun
from shoal_operator.api.manifest import load_manifest
from shoal_operator.render import render

SIZES = ("135M", "0.6B", "1.7B", "8B", "14B", "32B", "72B")


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def run_of(text: str) -> TrainingRun:
    [found] = load_manifest(text, "run.yaml")
    assert isinstance(found, TrainingRun)
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("gpus", [0, 1, 8, 32])
def test_it_is_accepted_passes_the_preflight_and_renders(size: str, gpus: int) -> None:
    made = first_manifest(ManifestRequest(f"owner/model-{size}", ("owner/data",), gpus))
    run = run_of(made.text)
    assert lacking(run.spec) == []
    assert {"Job", "StatefulSet"} <= {each["kind"] for each in render(run)}
    set_lines = [line for line in made.text.splitlines() if line.startswith(" ") and not line.lstrip().startswith("#")]
    assert len(set_lines) <= 18
    assert "# " in made.text


def test_smaller_models_learn_faster_and_answer_shorter() -> None:
    small, large = (
        run_of(first_manifest(ManifestRequest(f"owner/m-{size}", ("o/d",), 32)).text).spec for size in ("135M", "32B")
    )
    assert small.recipe.learning_rate > large.recipe.learning_rate == 3e-7
    assert small.sampling.max_completion_tokens < large.sampling.max_completion_tokens
    assert large.recipe.prompts_per_step * large.recipe.group_size == 4096


def test_a_folder_s_configuration_is_read(tmp_path: Path) -> None:
    config = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "vocab_size": 300,
    }
    (tmp_path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 128}))
    made = first_manifest(ManifestRequest(str(tmp_path), ("math",), 0))
    spec = run_of(made.text).spec
    assert spec.model.path == str(tmp_path)
    assert (spec.tasks.environment, spec.tasks.dataset) == ("math", None)
    assert spec.recipe.max_sequence_length <= 128
    assert "has 143,360 parameters" not in made.text or made.notes == ()
    assert made.notes == ()


def test_a_data_set_on_disk_is_taken_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tasks.jsonl").write_text("{}")
    monkeypatch.chdir(tmp_path)
    spec = run_of(first_manifest(ManifestRequest("o/m-1B", ("tasks.jsonl",), 0, environment="code")).text).spec
    assert spec.tasks.dataset is not None
    assert spec.tasks.dataset.path == str(tmp_path / "tasks.jsonl")
    assert spec.tasks.environment == "code"


def test_several_data_sets_are_a_mixture_each_with_what_judges_it(tmp_path: Path) -> None:
    data = tmp_path / "My Tasks.jsonl"
    data.write_text("{}")
    spec = run_of(
        first_manifest(ManifestRequest("o/m-1B", ("arithmetic", "o/d", f"{data}@code", "o/d@ifeval"), 0)).text
    ).spec
    assert spec.tasks.mixture is not None
    assert [(each.name, each.environment, each.weight) for each in spec.tasks.mixture] == [
        ("arithmetic", "arithmetic", 1),
        ("d", "math", 1),
        ("my-tasks", "code", 1),
        ("d-2", "ifeval", 1),
    ]
    assert [each.dataset and (each.dataset.path or each.dataset.hugging_face) for each in spec.tasks.mixture] == [
        None,
        "o/d",
        str(data),
        "o/d",
    ]


def test_the_generated_model_gets_the_settings_of_the_demo() -> None:
    spec = run_of(first_manifest(ManifestRequest("generated", ("arithmetic",), 0)).text).spec
    assert spec.model.generated is not None
    assert (spec.recipe.max_sequence_length, spec.recipe.learning_rate) == (64, 1.5e-4)


def test_one_gpu_is_shared_and_the_manifest_says_so() -> None:
    made = first_manifest(ManifestRequest("o/m-1B", ("o/d",), 1))
    spec = run_of(made.text).spec
    [pool] = spec.inference_pools
    assert (pool.gpu.count, pool.engine.gpu_memory_utilization) == (1, 0.3)
    assert "share one GPU" in made.text
    assert spec.validator is not None
    held = spec.validator.validation.weights_memory_bytes
    assert held is not None
    assert 1.1 * 2e9 < held < 2 * 2e9, "one version with room for what its name rounds away, and no second one"
    alone = run_of(first_manifest(ManifestRequest("o/m-1B", ("o/d",), 8)).text).spec.validator
    assert alone is not None
    assert alone.validation.weights_memory_bytes is None


def test_what_does_not_fit_is_a_note_in_the_manifest_and_on_standard_error(tmp_path: Path) -> None:
    output = tmp_path / "run.yaml"
    arguments = ["init", "--model", "o/m-72B", "--dataset", "o/d", "--gpus", "8", "-o", str(output)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "note: no trainer fits beside one engine of 4 GPUs and a validator of 4" in result.stderr
    assert "# NOTE: no trainer fits" in output.read_text()
    assert yaml.safe_load(output.read_text())["kind"] == "TrainingRun"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (ManifestRequest("o/model", ("o/d",), 0), "give its size, such as --parameters 7B"),
        (ManifestRequest("nothing here", ("o/d",), 0), "is no folder here and no hub id"),
        (ManifestRequest("o/m-1B", ("no such thing",), 0), "is nothing here, no hub id and no installed environment"),
        (ManifestRequest("o/m-1B", ("o/d",), 0, parameters="large"), "--parameters large: not a size"),
        (ManifestRequest("o/m-1B", ("o/d",), 0, environment="chess"), "--environment chess: not installed here"),
        (ManifestRequest("o/m-1B", ("math",), 0, environment="code"), "leave out --environment"),
        (ManifestRequest("o/m-1B", ("o/d", "o/e"), 0, environment="code"), "name it behind each: --dataset DATA@code"),
        (ManifestRequest("o/m-1B", ("o/d@chess", "o/e"), 0), "--environment chess: not installed here"),
        (ManifestRequest("generated", ("math",), 0), "is made for --dataset arithmetic"),
        (ManifestRequest("o/m-1B", ("o/d",), 0, name="Not A Name"), "metadata.name"),
    ],
)
def test_bad_input_is_told_in_one_line(asked: ManifestRequest, told: str) -> None:
    with pytest.raises(InputWrong) as caught:
        first_manifest(asked)
    [line] = caught.value.lines
    assert told in line


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    output = tmp_path / "run.yaml"
    output.write_text("mine")
    arguments = ["--model", "o/m-1B", "--dataset", "o/d", "-o", str(output)]
    result = CliRunner().invoke(app, ["init", *arguments])
    assert isinstance(result.exception, InputWrong)
    assert "is there already" in str(result.exception)
    assert output.read_text() == "mine"


def test_a_model_that_one_gpu_cannot_check_has_a_validator_of_several() -> None:
    made = first_manifest(ManifestRequest("o/m-72B", ("o/d",), 64))
    validator = run_of(made.text).spec.validator
    assert validator is not None
    assert validator.gpu.count == 4
    assert "4 for the validator" in made.text
    assert "validator, each of 4 GPUs" in made.text
