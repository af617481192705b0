"""The program as a person meets it: help with examples, one line a mistake, exit codes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from run_documents import RunFolder, step_metrics
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.installed import installed

VERBS = ("up", "down", "logs", "render", "report")
GOOD = """
apiVersion: shoal.dev/v1alpha1
kind: TrainingRun
metadata: {name: demo}
spec:
  model: {generated: {name: arithmetic}}
  tasks: {environment: arithmetic}
  steps: 10
"""


def shoal(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(
        [sys.executable, "-m", "shoal.cli.main", *arguments],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def failed(tmp_path: Path, *arguments: str) -> list[str]:
    """Lines on standard error of a command that must end with exit code 2 and nothing on standard output."""
    done = shoal(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_shows_an_example(verb: str) -> None:
    result = CliRunner().invoke(app, [verb, "--help"])
    assert result.exit_code == 0
    assert f"Example: shoal {verb}" in result.output


@pytest.mark.parametrize("group", [[], ["env"], ["ledger"], ["node"]], ids=" ".join)
def test_a_list_of_verbs_ends_every_summary_with_its_sentence(group: list[str]) -> None:
    result = CliRunner().invoke(app, [*group, "--help"], terminal_width=80)
    assert result.exit_code == 0
    _, _, listed = result.output.partition("Commands:\n")
    summaries = re.split(r"\n(?=  \w)", listed.rstrip())
    assert len(summaries) >= 3
    assert all(summary.endswith(".") and "..." not in summary for summary in summaries)


def test_help_lists_every_verb_and_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from shoal.cli.main import app\ntry: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'matplotlib', 'pyarrow', 'obstore', 'transformers', 'vllm', 'shoal_operator'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(f"\n  {verb} " in done.stdout for verb in VERBS)


def test_a_missing_option_and_an_unknown_verb_are_wrong_input(tmp_path: Path) -> None:
    assert failed(tmp_path, "up") == ["Missing option '-f' / '--file'; see `shoal up --help`"]
    (unknown,) = failed(tmp_path, "upp")
    assert unknown.startswith("No such command 'upp'")
    assert unknown.endswith("; see `shoal --help`")
    assert ".;" not in unknown


def test_the_version_and_a_short_help_exist() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"shoal {installed().version}\n"
    assert CliRunner().invoke(app, ["up", "-h"]).output == CliRunner().invoke(app, ["up", "--help"]).output


def test_a_missing_manifest_is_one_line(tmp_path: Path) -> None:
    assert failed(tmp_path, "up", "-f", "run.yaml") == [
        "run.yaml: cannot be read: No such file or directory; give the path of a manifest"
    ]


def test_a_manifest_that_is_not_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes(b"kind: \xff")
    assert failed(tmp_path, "render", "-f", "run.yaml") == [
        "run.yaml: is not UTF-8 text (byte 6); give the path of a manifest"
    ]


def test_every_mistake_in_a_manifest_is_one_line_with_the_nearest_key(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        GOOD.replace("steps: 10", "stepz: 10\n  asyncLevel: 9").replace("environment:", "environ:")
    )
    lines = failed(tmp_path, "up", "-f", "run.yaml")
    assert len(lines) == 3
    assert any("spec.stepz: unknown key" in line and "did you mean steps?" in line for line in lines)
    assert any("spec.asyncLevel: given 9; allowed: integer, 0 to 4" in line for line in lines)
    assert any("spec.tasks.environ: unknown key" in line and "did you mean environment?" in line for line in lines)


def test_two_runs_in_one_manifest_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(GOOD + "---" + GOOD.replace("name: demo", "name: other"))
    assert failed(tmp_path, "up", "-f", "run.yaml") == [
        "run.yaml: holds TrainingRun demo, TrainingRun other; this machine runs exactly one TrainingRun, and the run creates the other kinds"
    ]


@pytest.mark.parametrize("verb", ["down", "logs", "report"])
def test_a_missing_run_is_one_line(tmp_path: Path, verb: str) -> None:
    assert failed(tmp_path, verb, "demo") == [
        "no run 'demo' in runs; there is none; give --runs-dir, or start one with `shoal up -f FILE`"
    ]


def test_a_wrong_since_says_what_is_allowed(tmp_path: Path) -> None:
    assert failed(tmp_path, "logs", "demo", "--since", "soon") == [
        "--since 'soon': allowed: 90s, 10m, 2h, 1d, or a time such as 2026-11-21T04:15:00"
    ]


def test_report_writes_both_files_and_says_where_they_are(tmp_path: Path) -> None:
    RunFolder(tmp_path / "runs").add_step(step_metrics(0))
    done = shoal("report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "report: runs/demo/report.html and runs/demo/report.json" in done.stdout
    assert (tmp_path / "runs/demo/report.html").is_file()


def test_a_report_of_a_run_that_was_never_prepared_says_why_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "runs/demo").mkdir(parents=True)
    (tmp_path / "runs/demo/up.lock").touch()
    assert failed(tmp_path, "report") == [
        "runs/demo has no orchestrator yet: the run ended before its base model was prepared, so there is nothing to report"
    ]


def test_a_reader_that_closes_the_pipe_early_is_not_an_error(tmp_path: Path) -> None:
    log = tmp_path / "runs/demo/logs/demo-pool-0/worker.log"
    log.parent.mkdir(parents=True)
    log.write_text("line\n" * 100_000)
    (tmp_path / "runs/demo/up.lock").touch()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m shoal.cli.main logs | head -1"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_render_prints_every_child_as_yaml_and_applies_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(GOOD)
    done = shoal("render", "-f", "run.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    objects = list(yaml.safe_load_all(done.stdout))
    kinds = {made["kind"] for made in objects}
    assert {"StatefulSet", "Deployment", "Job", "ConfigMap", "InferencePool", "RelayServer", "Validator"} <= kinds
    assert all(not made.get("data") for made in objects if made["kind"] == "Secret")
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "store.yaml: cannot be read: No such file or directory; give the path of a Secret's manifest"),
        ("kind: Pod", "store.yaml: must hold one object of kind Secret with metadata.name"),
        ("a: b: c", "store.yaml: is not YAML"),
    ],
)
def test_a_secret_that_cannot_be_used_is_one_line_and_makes_no_run(tmp_path: Path, text: str | None, line: str) -> None:
    (tmp_path / "run.yaml").write_text(GOOD)
    if text is not None:
        (tmp_path / "store.yaml").write_text(text)
    assert failed(tmp_path, "up", "-f", "run.yaml", "--secret", "store.yaml") == [line]
    assert not (tmp_path / "runs").exists()
