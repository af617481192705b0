"""`shoal env preview`: prompts as the model sees them, and how answers score, before anything runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from servers import ROOT
from shoal.cli.local_run import config_of, read_manifest
from shoal.cli.main import app
from shoal.cli.previewing import preview_lines
from shoal.environments.preview import CannotPreview, preview
from shoal.errors import InputWrong, RunFailed

DEMO = ROOT / "examples" / "arithmetic" / "trainingrun.yaml"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from shoal.environments.generated_tokenizer import train_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(["What is 1+1?"]).save_pretrained(folder)
    (folder / "config.json").write_text('{"eos_token_id": 1}')
    return folder


def manifest(tmp_path: Path, rows: list[dict[str, Any]], **spec: Any) -> Path:
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    document = {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "mine"},
        "spec": {
            "model": {"run": "other"},
            "tasks": {
                "environment": "math",
                "dataset": {"path": str(data), "columns": {"prompt": "problem", "answer": "answer"}},
            },
            "steps": 1,
            "recipe": {"maxSequenceLength": 2048},
            "sampling": {"maxCompletionTokens": 512},
            **spec,
        },
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_the_demo_shows_three_prompts_with_tokens_lengths_and_scores() -> None:
    result = CliRunner().invoke(app, ["env", "preview", "-f", str(DEMO)])
    assert result.exit_code == 0, result.output
    assert result.output.count("\ntask add-") == 3
    assert result.output.count("scores 1.00") == result.output.count("scores 0.00") == 3
    for target in (20, 24, 28):
        assert f"asks for {target} tokens" in result.output
    assert "= Think for " in result.output


def test_the_tokens_are_those_that_a_worker_samples_from(tmp_path: Path, tokenizer: Path) -> None:
    rows = [{"problem": f"What is {n}+1?", "answer": str(n + 1)} for n in range(5)]
    found = preview(config_of(read_manifest(manifest(tmp_path, rows))), tokenizer)
    [only] = found.sources
    assert [each.text.splitlines()[0] for each in only.shown] == ["What is 0+1?", "What is 2+1?", "What is 4+1?"]
    for each in only.shown:
        assert len(each.tokens) == len(each.pieces)
        assert each.right is not None
        assert (each.right.task_reward, each.wrong.task_reward) == (1.0, 0.0)
    assert found.problems == ()


def test_an_answer_that_cannot_be_judged_and_a_prompt_without_room_are_told(tmp_path: Path, tokenizer: Path) -> None:
    rows = [{"problem": "What is 1+1?" + "!" * 300, "answer": "2"}]
    path = manifest(tmp_path, rows, recipe={"maxSequenceLength": 600}, sampling={"maxCompletionTokens": 512})
    result = CliRunner().invoke(app, ["env", "preview", "-f", str(path), "--tokenizer", str(tokenizer)])
    assert isinstance(result.exception, RunFailed)
    assert "raise recipe.maxSequenceLength" in str(result.exception)


def test_no_more_golds_are_proven_than_a_look_needs(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proven: list[str] = []
    monkeypatch.setattr("shoal.environments.math.gold_flaw", lambda judge, gold: proven.append(gold))
    monkeypatch.setattr("shoal.environments.judgeable.AT_ONCE", 40)
    rows = [{"problem": f"What is {n}+1?", "answer": str(n + 1)} for n in range(100)]
    found = preview(config_of(read_manifest(manifest(tmp_path, rows))), tokenizer)
    [only] = found.sources
    assert (len(proven), only.proven, only.tasks) == (64, 64, 100)
    assert "64 gold answers can be judged of the first 64; prepare looks at all" in list(preview_lines(found))


def test_of_a_mixture_three_prompts_of_each_source_are_shown(tmp_path: Path, tokenizer: Path) -> None:
    rows = [{"problem": f"What is {n}+1?", "answer": str(n + 1)} for n in range(5)]
    data = {"path": str(tmp_path / "train.jsonl"), "columns": {"prompt": "problem", "answer": "answer"}}
    mixture = [
        {"name": "sums", "environment": "math", "dataset": data, "weight": 3, "prompt": {"assistantPrefix": "So: "}},
        {"name": "programs", "environment": "code", "count": 4},
    ]
    path = manifest(tmp_path, rows, tasks={"mixture": mixture})
    result = CliRunner().invoke(app, ["env", "preview", "-f", str(path), "--tokenizer", str(tokenizer)])
    assert result.exit_code == 0, result.output
    assert "source sums, 75.0 % of the prompts: 5 tasks" in result.output
    assert "source programs, 25.0 % of the prompts: 4 tasks" in result.output
    assert result.output.count("\ntask sums-") == result.output.count("\ntask programs-") == 3
    assert result.output.count("| So: ") == 3


def test_a_model_that_is_not_here_matters_only_without_a_tokenizer(tmp_path: Path, tokenizer: Path) -> None:
    environment = "lm-eval:/nowhere/model.yaml"
    path = manifest(tmp_path, [], model={"path": "/nowhere/base"}, tasks={"environment": environment})
    result = CliRunner().invoke(app, ["env", "preview", "-f", str(path), "--tokenizer", str(tokenizer)])
    assert isinstance(result.exception, InputWrong)
    assert str(result.exception).endswith(
        f"spec.tasks.environment: {environment}: there is no such file on this machine; allowed: the absolute path of a task's YAML"
    )


def test_text_of_a_data_set_cannot_move_a_cursor(tmp_path: Path, tokenizer: Path) -> None:
    rows = [{"problem": "red \x1b[31m \u202e", "answer": "2"}]
    found = preview(config_of(read_manifest(manifest(tmp_path, rows))), tokenizer)
    printed = "\n".join(preview_lines(found))
    assert "\x1b" not in printed
    assert "\u202e" not in printed
    assert "\\x1b" in printed


def test_a_long_prompt_is_shortened_in_the_middle(tmp_path: Path, tokenizer: Path) -> None:
    rows = [{"problem": "a" * 10_000 + "END", "answer": "2"}]
    printed = "\n".join(preview_lines(preview(config_of(read_manifest(manifest(tmp_path, rows))), tokenizer)))
    assert "characters more" in printed
    assert "aEND" in printed
    assert len(printed) < 30_000


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({}, "spec.model.run: the model of run other lies in its store; give --tokenizer"),
        ({"model": {"path": "/no/such/model"}}, "spec.model: the tokenizer of /no/such/model cannot be read"),
        ({"tasks": {"environment": "math", "dataset": {"object": "tasks/"}}}, "spec.tasks.dataset.object: lies in"),
        ({"tasks": {"environment": "math", "dataset": {"path": "/no/such/file"}}}, "spec.tasks.dataset: path"),
        ({"model": {"generated": {}}}, "spec.model.generated"),
    ],
)
def test_what_cannot_be_shown_is_told_by_its_field(tmp_path: Path, spec: dict[str, Any], told: str) -> None:
    path = manifest(tmp_path, [{"problem": "1+1", "answer": "2"}], **spec)
    with pytest.raises(CannotPreview, match=told.replace(".", r"\.")):
        preview(config_of(read_manifest(path)))


def test_tasks_in_the_store_are_read_where_it_is_named(tmp_path: Path, tokenizer: Path) -> None:
    columns = {"prompt": "problem", "answer": "answer"}
    tasks = {"environment": "math", "dataset": {"object": "train.jsonl", "columns": columns}}
    path = manifest(tmp_path, [{"problem": "What is 1+1?", "answer": "2"}], tasks=tasks)
    line = ["env", "preview", "-f", str(path), "--tokenizer", str(tokenizer)]
    refused = CliRunner().invoke(app, line)
    assert isinstance(refused.exception, InputWrong)
    assert "spec.tasks.dataset.object: lies in the store of runs: give --store DIR" in str(refused.exception)
    shown = CliRunner().invoke(app, [*line, "--store", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "What is 1+1?" in shown.output
    other = CliRunner().invoke(app, [*line, "--store", str(tmp_path / "none")])
    assert "neither s3://BUCKET/PREFIX nor a folder" in str(other.exception)


def test_the_bucket_of_the_manifest_is_named_as_the_place_to_give(tmp_path: Path) -> None:
    storage = {
        "s3": {"endpoint": "http://minio:9000", "bucket": "rollouts", "credentialsSecret": "keys"},
        "prefix": "shoal",
    }
    tasks = {"environment": "math", "dataset": {"object": "train.jsonl"}}
    path = manifest(tmp_path, [], tasks=tasks, storage=storage)
    with pytest.raises(CannotPreview, match="give --store s3://rollouts/shoal; or name its file with `path`"):
        preview(config_of(read_manifest(path)))


def test_an_environment_that_is_not_here_is_told_first(tmp_path: Path) -> None:
    path = manifest(tmp_path, [], tasks={"environment": "chess"})
    result = CliRunner().invoke(app, ["env", "preview", "-f", str(path)])
    assert isinstance(result.exception, InputWrong)
    assert "environment 'chess' is not installed here" in str(result.exception)
