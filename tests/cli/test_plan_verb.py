"""`shoal plan`: what it says of shipped manifests, what it measures of a run, and what it refuses."""

import json
from pathlib import Path

import pytest
import yaml
from benchmarks.plans.__main__ import HERE, SHAPES, text
from run_documents import RunFolder, step_metrics
from typer.testing import CliRunner

from servers import ROOT
from shoal.cli.local_run import read_manifest
from shoal.cli.main import app
from shoal.cli.plan import PlanRequest, planned
from shoal_operator.api import TrainingRun

PAPER = str(ROOT / "examples" / "intellect-2" / "trainingrun.yaml")
DEMO = str(ROOT / "examples" / "arithmetic" / "trainingrun.yaml")
SIZE = ["--parameters", "32763876352"]


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def said(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["plan", *words])
    assert result.exit_code == code, result.output or result.exception
    return result.output


@pytest.mark.parametrize("file", ["trainingrun.yaml", "target-short.yaml"])
@pytest.mark.parametrize("size", [[], SIZE], ids=["by-name", "exact"])
def test_the_paper_s_run_plans_without_a_warning(file: str, size: list[str]) -> None:
    output = said("-f", str(ROOT / "examples" / "intellect-2" / file), *size, "--strangers", "33", "--price", "2.5")
    assert "WORK:" not in output, output
    for word in (
        "generate",
        "upload",
        "verify",
        "train",
        "save state",
        "publish",
        "broadcast",
        "Bottleneck: ",
        "price",
    ):
        assert word in output


EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("*/*.yaml") if path.parent.name not in ("serving", "tenancy")
)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_shipped_manifest_of_mode_train_can_work_or_waits_for_strangers(path: Path) -> None:
    run = read_manifest(path).run
    if run.spec.mode != "Train":
        assert "only runs of mode Train have a plan" in str(
            CliRunner().invoke(app, ["plan", "-f", str(path)]).exception
        )
        return
    own_size = run.spec.model.generated is not None or run.spec.model.hugging_face is not None
    made = planned(run, PlanRequest(parameters=None if own_size else "700k"))
    assert [each for each in made.plan.findings if each.certain] == []
    assert made.plan.works or not any(pool.replicas for pool in run.spec.inference_pools)


def test_json_has_the_same_plan_and_what_it_was_made_with() -> None:
    found = json.loads(said("-f", PAPER, *SIZE, "--mean-tokens", "9000", "--strangers", "strangers=33", "--json"))
    recorded = json.loads((HERE / "intellect-2.json").read_text())
    assert found == {key: value for key, value in recorded.items() if key != "options"}
    assert found["works"] is True
    assert any("--mean-tokens" in line for line in found["assumed"])


def test_a_manifest_that_cannot_work_says_so_and_exits_with_1(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(Path(PAPER).read_text().replace("weightsSize: 320Gi", "weightsSize: 300Gi"))
    output = said("-f", str(path), *SIZE, code=1)
    assert (
        "CANNOT WORK: spec.inferencePools[0].weightsSize: weights of home has 322.1 GB and needs 327.7 GB for 5 versions"
        in output
    )
    assert "set 306Gi or more" in output
    assert json.loads(said("-f", str(path), *SIZE, "--json", code=1))["works"] is False


def test_what_only_may_not_work_exits_with_0(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(Path(PAPER).read_text().replace("packLength: 32768", "packLength: 131072"))
    assert "MAY NOT WORK: spec.trainer: a trainer's rank needs" in said("-f", str(path), *SIZE)


def test_a_curriculum_is_planned_with_what_its_pools_cost(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    given = yaml.safe_load(Path(DEMO).read_text())
    plain = json.loads(said("-f", DEMO, "--json"))
    given["spec"]["tasks"] |= {"curriculum": {}, "count": 285_000}
    path.write_text(yaml.safe_dump(given))
    found = json.loads(said("-f", str(path), "--json"))
    (line,) = [line for line in found["assumed"] if line.startswith("curriculum: ")]
    assert "pools of 285,000 problems, 0.2 s a step and 12.0 MB each" in line
    assert "measure it with --run" in line
    assert {**found, "assumed": plain["assumed"]} == plain, "pools change no other figure"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--gpu", "TPU"], "--gpu TPU: not known; allowed: A100-40GB, A100, H100"),
        (
            ["--mean-tokens", "50000"],
            "--mean-tokens 50000: longer than sampling.maxCompletionTokens; allowed: up to 30720",
        ),
        (["--parameters", "big"], "--parameters big: not a size"),
        (["--parameters", "99999999999999"], "--parameters 99999999999999: not a size"),
        (["--strangers", "many"], "--strangers many: allowed: a number of machines"),
        (["--strangers", "home=3"], "--strangers home=3: no open pool 'home'; allowed: strangers"),
        (["--run", "nothing"], "nothing"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(words: list[str], told: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["plan", "-f", PAPER, "--runs-dir", str(tmp_path), *words])
    assert told in str(result.exception)
    assert "\n" not in str(result.exception)


def test_strangers_need_an_open_pool_and_a_model_of_another_run_a_size(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["plan", "-f", DEMO, "--strangers", "3"])
    assert "no pool of the manifest is open; set open: true in one" in str(result.exception)
    path = tmp_path / "run.yaml"
    path.write_text(Path(PAPER).read_text().replace("huggingFace: Qwen/QwQ-32B\n    revision: main ", "run: other "))
    result = CliRunner().invoke(app, ["plan", "-f", str(path)])
    assert "spec.model.run: the size of another run's model is not known here; give --parameters" in str(
        result.exception
    )


def test_lengths_signal_and_training_time_of_a_run_take_the_place_of_assumptions(tmp_path: Path) -> None:
    store = RunFolder(tmp_path)
    with pytest.raises(AssertionError, match="trained no step yet"):
        said("-f", DEMO, "--run", "demo", "--runs-dir", str(tmp_path))
    for step, update in enumerate((5.0, 4.0, 90.0)):
        seconds = {"wait": 3.0, "old_logprobs": 1.0, "reference_logprobs": 1.0, "update": update}
        store.add_step(step_metrics(step, phase_seconds=seconds, completion_length_mean=20.0), groups=24, dropped=8)
    found = json.loads(said("-f", DEMO, "--run", "demo", "--runs-dir", str(tmp_path), "--json"))
    assert found["measured"] == {
        "steps": 3, "step_seconds": 10.0, "train_seconds": 7.0, "mean_tokens": 20.0, "signal_share": 0.75,
    }  # fmt: skip
    [train] = [part for part in found["parts"] if part["name"] == "train"]
    assert train["seconds"] == 7.0
    output = said("-f", DEMO, "--run", "demo", "--runs-dir", str(tmp_path))
    assert "Measured: 10 s a step, median of 3." in output
    assert "20 tokens on average (median of 3 steps)" in output


def test_lengths_of_a_mixture_are_those_of_its_sources_by_weight() -> None:
    mixture = [
        {"name": "sums", "environment": "arithmetic", "weight": 3, "lengthTargets": [16, 24]},
        {"name": "products", "environment": "arithmetic"},
    ]
    manifest = read_manifest(Path(DEMO)).run.model_dump(mode="json", by_alias=True, exclude_none=True)
    manifest["spec"] |= {"lengthReward": {"targets": [4, 12]}, "tasks": {"mixture": mixture}}
    made = planned(TrainingRun.model_validate(manifest), PlanRequest())
    assert any("17 tokens on average (mean of the targets of tasks.mixture by weight)" in line for line in made.assumed)


@pytest.mark.parametrize("name", SHAPES)
def test_the_committed_plan_is_what_the_planner_says(name: str) -> None:
    assert (HERE / f"{name}.json").read_text() == text(name), "run python -m benchmarks.plans"


def test_ten_shapes_are_planned_and_most_are_not_bound_by_their_gpus() -> None:
    made = {name: json.loads((HERE / f"{name}.json").read_text()) for name in SHAPES}
    assert len(made) == 10
    assert all(each["works"] and each["findings"] == [] for each in made.values())
    bound = [each["bottleneck"]["part"] for each in made.values()]
    assert sum(part in ("broadcast", "upload", "verify", "save state", "publish") for part in bound) >= 5
    assert {"broadcast", "verify", "save state"} <= set(bound)
    assert {path.stem for path in HERE.glob("*.json")} == set(SHAPES)
    sizes = [each["parameters"] for each in made.values()]
    assert (min(sizes), max(sizes)) == (596_049_920, 32_763_876_352)
