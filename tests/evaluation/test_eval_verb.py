"""`shoal eval`: a real engine on a tiny model, its table and its record; and one clear line for what is wrong with the input."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from servers import STARTED_WITH
from shoal.cli.local_run import config_of, read_manifest
from shoal.cli.main import main
from shoal.contracts.evaluation import Truncation
from shoal.contracts.model_source import GeneratedModel
from shoal.contracts.pools import EngineSettings
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.generated_model import random_model
from shoal.environments.generated_tokenizer import train_tokenizer
from shoal.inference.evaluation.record import Asked, of_benchmarks
from shoal.inference.evaluation.sampling import CannotEvaluate, EvaluationRequest, Settings, ask, planned
from shoal.storage import Store
from shoal.storage.store import open_folder

POSITIONS = 96


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights: what it answers is long and wrong, and that is known beforehand."""
    folder, environment = tmp_path_factory.mktemp("eval") / "model", Arithmetic()
    tokenizer = train_tokenizer(environment.prompt(task, None) for task in environment.tasks(8, 0))
    random_model(GeneratedModel(layers=1), tokenizer, POSITIONS).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def shoal_eval(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shoal.cli.main", "eval", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, env=STARTED_WITH | {"OMP_NUM_THREADS": "1"}
    )


def test_a_model_is_scored_with_a_table_and_a_record_of_every_problem(model: Path, tmp_path: Path) -> None:
    record = tmp_path / "scores.json"
    done = shoal_eval(
        model, "--env", "arithmetic", "--count", 6, "--samples", 2, "--max-tokens", 12, "--seed", 3, "--json", record
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "arithmetic: 12 of 12 completions" in lines
    head, first, *rest = lines[lines.index("arithmetic: 12 of 12 completions") + 1 :]
    assert head.split() == [
        "NAME",
        "TASKS",
        "SCORE",
        "VALUE",
        "95",
        "%",
        "INTERVAL",
        "TOKENS",
        "CUT",
        "NO",
        "ANSWER",
        "UNSCORED",
    ]
    assert first.split()[:3] == ["arithmetic", "6", "avg@2"]
    assert [line.split()[0] for line in rest[:2]] == ["pass@1", "pass@2"]
    said = json.loads(record.read_text())
    (one,) = said["evaluations"]
    assert (one["tasks"], one["samples"], one["temperature"], one["seed"]) == (6, 2, 1.0, 3)
    assert len(one["environment_digest"]) == 64
    found = one["scores"]
    assert [problem["scored"] for problem in found["problems"]] == [2] * 6
    assert [problem["problem_id"] for problem in found["problems"]] == [
        task.problem_id for task in Arithmetic().tasks(6, 3)
    ]
    assert found["lengths"]["most"] <= 12
    assert found["lengths"]["cut_share"] > 0.5
    assert found["unanswered_share"] > 0.5
    assert found["avg_at_k"]["value"] <= 1 / 6
    assert found["avg_at_k"]["low"] <= found["avg_at_k"]["value"] < found["avg_at_k"]["high"]


def test_what_is_wrong_with_the_input_is_said_in_one_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    (broken / "config.json").write_text(json.dumps({"dtype": "int3"}))
    manifest = Path(__file__).parents[2] / "examples" / "arithmetic" / "trainingrun.yaml"
    for arguments, words in (
        ((tmp_path, "--env", "arithmetic"), "no config.json; give a folder with a Hugging Face checkpoint"),
        ((broken, "--env", "arithmetic"), "dtype is 'int3'; allowed: float32, bfloat16, float16"),
        ((model, "--env", "arithmetics"), "'arithmetics' is not installed here; installed:"),
        ((model, "--env", "arithmetic", "--env", "arithmetic"), "each environment once"),
        ((model, "--env", "arithmetic", "--temperature", 0), "allowed with --samples 1"),
        ((model, "--env", "arithmetic", "--json", tmp_path / "none" / "x.json"), "there is no folder"),
        ((model, "--env", "arithmetic", "--count", 1_000_000), "--count 1000000"),
        ((model,), "give either --env ENV, once or more, or -f FILE"),
        ((model, "--env", "arithmetic", "-f", manifest), "give either --env ENV, once or more, or -f FILE"),
        ((model, "--env", "arithmetic", "--store", tmp_path), "--store: only a manifest names objects; give -f FILE"),
        (
            (model, "-f", manifest, "--store", tmp_path / "none"),
            "neither s3://BUCKET/PREFIX nor a folder that is there",
        ),
        ((model, "-f", manifest, "--top-k", 5), "--top-k: with -f the manifest's benchmarks say it"),
        ((model, "-f", manifest), "spec.evaluation: absent; give --env, or the benchmarks there"),
        ((model, "-f", tmp_path / "none.yaml"), "none.yaml"),
    ):
        monkeypatch.setattr(sys, "argv", ["shoal", "eval", *map(str, arguments)])
        assert main() == 2, arguments
        [line] = capsys.readouterr().err.strip().splitlines()
        assert words in line


def test_what_does_not_fit_the_model_is_refused_before_the_engine_is_loaded(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shoal.inference.engine", None)  # to load it would fail
    environment = Arithmetic()
    with pytest.raises(CannotEvaluate, match=r"it exceeds the model's 96: allowed: --max-tokens up to \d+$"):
        ask(model, environment, environment.tasks(2, 0), EvaluationRequest(1, 1.0, max_tokens=POSITIONS), print)


def benchmarks(manifest: Path, objects: Store | None = None) -> list[Asked]:
    return of_benchmarks(config_of(read_manifest(manifest)), EngineSettings(max_sequences=7), 9, objects)


def test_a_manifests_benchmarks_are_asked_as_its_run_would(tmp_path: Path) -> None:
    rows = [{"prompt": f"What is 1 + {n}?", "answer": str(n + 1)} for n in range(7)]
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest = yaml.safe_load((Path(__file__).parents[2] / "examples" / "arithmetic" / "trainingrun.yaml").read_text())
    dataset = {"path": str(tmp_path / "held.jsonl")}
    manifest["spec"]["tasks"]["prompt"] = {"template": "Raw", "assistantPrefix": "so "}
    held = {
        "name": "held",
        "tasks": {"environment": "math", "dataset": dataset},
        "samples": 3,
        "temperature": 0.7,
        "topK": 5,
    }
    drawn = {"name": "drawn", "tasks": {"environment": "arithmetic", "count": 4}, "maxCompletionTokens": 16}
    manifest["spec"]["evaluation"] = {"benchmarks": [held, drawn]}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(manifest))
    first, second = benchmarks(tmp_path / "run.yaml")
    assert (first.name, first.environment.name, len(first.tasks)) == ("held", "math", 7)
    assert [first.wanted.samples, first.wanted.temperature, first.wanted.max_tokens, first.wanted.seed] == [
        3,
        0.7,
        32,
        9,
    ]
    assert first.wanted.truncation == Truncation.of(None, 5, None)
    assert first.wanted.prompt is not None
    assert first.wanted.prompt.assistant_prefix == "so "
    assert (second.name, len(second.tasks), second.wanted.max_tokens) == ("drawn", 4, 16)
    assert (second.wanted.longest, second.wanted.engine.max_sequences) == (64, 7)

    manifest["spec"]["evaluation"]["benchmarks"][0]["tasks"]["dataset"] = {"object": "held.jsonl"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(manifest))
    with pytest.raises(CannotEvaluate, match=r"benchmarks, held: tasks.dataset.object lies in the store of runs: give"):
        benchmarks(tmp_path / "run.yaml")
    [stored, _] = benchmarks(tmp_path / "run.yaml", open_folder(tmp_path, ""))
    assert stored.tasks == first.tasks


def test_a_benchmark_of_a_source_is_judged_and_asked_as_that_source() -> None:
    [asked] = benchmarks(Path(__file__).parents[2] / "examples" / "mixture" / "trainingrun.yaml")
    assert asked.environment.name == "arithmetic"


def test_completions_end_at_the_longest_sequence_of_a_run_where_it_has_one() -> None:
    [task] = Arithmetic().tasks(1, 0)
    settings = Settings(1, 1.0, 50)
    [row] = planned([task], [[1] * 40], settings, 64, cut=True)
    assert row.request.max_tokens == 24
    with pytest.raises(CannotEvaluate, match=r"it exceeds the model's 64: allowed: --max-tokens up to 24$"):
        planned([task], [[1] * 40], settings, 64)
