"""Two runs laid over each other: one plot a figure with a line for each run, their ends, and the settings that differ."""

import json
from pathlib import Path

import pytest
from run_documents import RunFolder, step_metrics
from typer.testing import CliRunner

from samples import run_config
from shoal.cli.main import app
from shoal.contracts.recipe import Recipe
from shoal.errors import InputWrong
from shoal.report.comparison import ComparedRun, compare, differing_settings


def compared(label: str, rewards: list[float], **changes: object) -> ComparedRun:
    steps = [step_metrics(number, task_reward=value) for number, value in enumerate(rewards)]
    return ComparedRun(label, run_config(**changes), steps)


def test_the_page_has_a_line_of_each_run_in_every_plot_and_loads_nothing(tmp_path: Path) -> None:
    made = compare(compared("one", [0.1, 0.2, 0.3]), compared("other", [0.3, 0.5]), tmp_path)
    page = (tmp_path / "comparison.html").read_text()
    assert page.count("<figure>") >= 5
    for plot in page.split("<figure>")[1:]:
        assert ">one<" in plot
        assert ">other<" in plot
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org", "")
    data = json.loads((tmp_path / "comparison.json").read_text())
    assert data["curves"]["task_reward"] == [[[0, 0.1], [1, 0.2], [2, 0.3]], [[0, 0.3], [1, 0.5]]]
    assert data["ends"]["Task reward"] == ["0.200", "0.200", "0.400", "0.400"]
    assert made[0] == "Task reward: 0.200 -> 0.200 in one, 0.400 -> 0.400 in other"


def test_settings_that_differ_are_told_and_no_others() -> None:
    ours, theirs = run_config(), run_config(recipe=Recipe(learning_rate=1e-5), run="another", steps=9)
    found = differing_settings(ours, theirs)
    assert found["recipe.learningRate"] == (json.dumps(ours.recipe.learning_rate), "1e-05")
    assert "steps" in found
    assert not {"run", "addresses", "roster"} & {name.partition(".")[0] for name in found}
    assert differing_settings(ours, ours) == {}
    assert differing_settings(ours, None) == {}


def test_a_name_that_means_harm_is_text(tmp_path: Path) -> None:
    compare(compared("<b>one", [0.1]), compared("other", [0.3]), tmp_path)
    assert "<b>one" not in (tmp_path / "comparison.html").read_text()


def test_the_verb_compares_two_runs_of_this_machine(tmp_path: Path) -> None:
    for name, reward in (("one", 0.2), ("two", 0.4)):
        folder = RunFolder(tmp_path / name)
        for step in range(3):
            folder.add_step(step_metrics(step, task_reward=reward))
    places = [str(next((tmp_path / name).iterdir())) for name in ("one", "two")]
    result = CliRunner().invoke(app, ["report", *places, "--output", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "Task reward: 0.200 -> 0.200 in demo (A), 0.400 -> 0.400 in demo (B)" in result.output
    assert (tmp_path / "out" / "comparison.html").is_file()


def test_a_run_without_steps_and_an_option_that_does_not_fit_are_told(tmp_path: Path) -> None:
    RunFolder(tmp_path / "one")
    place = str(next((tmp_path / "one").iterdir()))
    result = CliRunner().invoke(app, ["report", place, place])
    assert isinstance(result.exception, InputWrong)
    assert "no step was trained yet" in str(result.exception)
    result = CliRunner().invoke(app, ["report", place, place, "--prometheus", "http://127.0.0.1:1"])
    assert isinstance(result.exception, InputWrong)
    assert "--prometheus cannot be used to compare two runs" in str(result.exception)


@pytest.mark.parametrize("name", ["nowhere"])
def test_a_run_that_is_not_there_is_told(tmp_path: Path, name: str) -> None:
    result = CliRunner().invoke(app, ["report", name, name, "--runs-dir", str(tmp_path)])
    assert isinstance(result.exception, InputWrong)
