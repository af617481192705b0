"""`shoal env`: a new environment passes its check as it is made, and each kind of fault is told in one line."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forked_python import run_python
from servers import ROOT
from shoal.cli.main import app
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.checking import MEMORY_BYTES, check
from shoal.environments.probe import probe
from shoal.environments.scaffold import CannotMake, new_environment

CHECK = ("shoal.environments.checking", "shoal.cli.env", "shoal.cli.node", "shoal.cli.ledger")


def shoal(*arguments: str, cwd: Path, more_path: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = [*([str(more_path)] if more_path else []), *(entry for entry in sys.path if entry)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    return run_python(["-m", "shoal.cli.main", "env", *arguments], CHECK, env=environment, cwd=cwd, timeout=200)


def install(folder: Path) -> Path:
    """What an installer leaves of a package: the module on the path, and metadata with its entry points."""
    module = next(path for path in folder.iterdir() if path.is_dir())
    name = folder.name.removeprefix("shoal-environment-")
    metadata = folder / f"{module.name}-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {folder.name}\nVersion: 0.1.0\n")
    value = next(
        line.split('"')[1]
        for line in (folder / "pyproject.toml").read_text().splitlines()
        if line.startswith(f"{name} = ")
    )
    (metadata / "entry_points.txt").write_text(f"[shoal.environments]\n{name} = {value}\n")
    return folder


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return install(new_environment("word-puzzles", tmp_path))


def spoil(package: Path, before: str, after: str) -> None:
    path = package / "shoal_environment_word_puzzles" / "__init__.py"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


@pytest.mark.parametrize("verb", ["new", "check", "list"])
def test_the_help_of_every_verb_shows_an_example(verb: str) -> None:
    result = CliRunner().invoke(app, ["env", verb, "--help"])
    assert result.exit_code == 0
    assert f"Example: shoal env {verb}" in result.output


def test_a_new_environment_is_usable_and_listed_with_its_digest(tmp_path: Path, package: Path) -> None:
    done = shoal("check", "word-puzzles", cwd=tmp_path, more_path=package)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("word-puzzles: usable in a run; 8 tasks, slowest score ")
    digest = done.stdout.split()[-1]
    listed = shoal("list", cwd=tmp_path, more_path=package)
    rows = {line.split()[0]: line.split() for line in listed.stdout.splitlines()}
    assert rows["NAME"] == ["NAME", "VERSION", "DIGEST", "PACKAGE"]
    assert {"arithmetic", "code", "math", "tool", "word-puzzles"} <= rows.keys()
    assert rows["word-puzzles"][2].startswith(digest)
    assert rows["word-puzzles"][3:] == ["shoal-environment-word-puzzles", "0.1.0"]
    assert {len(row[2]) for name, row in rows.items() if name != "NAME" and ":" not in name} == {64}
    assert rows["lm-eval:TASK[,METRIC[,FILTER]][@REVISION]"][2:5] == ["one", "for", "each"]


def test_new_says_what_to_do_next(tmp_path: Path) -> None:
    done = shoal("new", "riddles", "--dir", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0
    assert f"made; next: {sys.executable} -m pip install -e " in done.stdout
    assert (tmp_path / "shoal-environment-riddles" / "shoal_environment_riddles" / "__init__.py").is_file()
    again = shoal("new", "riddles", "--dir", str(tmp_path), cwd=tmp_path)
    assert again.returncode == 2
    assert "exists already; remove it or choose another name" in again.stderr


def test_a_new_package_does_not_depend_on_shoal_from_an_index(package: Path) -> None:
    """What is called `shoal` on an index is a stranger's: an install outside of our environment must not fetch it."""
    project = tomllib.loads((package / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == []
    assert project["build-system"]["requires"] == ["hatchling>=1.27"]


def test_the_environment_of_the_journey_is_usable(tmp_path: Path) -> None:
    made = new_environment("carries", tmp_path)
    shutil.copy(ROOT / "examples" / "carries" / "environment.py", made / "shoal_environment_carries" / "__init__.py")
    done = shoal("check", "carries", "--tasks", "50", cwd=tmp_path, more_path=install(made))
    assert (done.returncode, done.stderr) == (0, "")
    assert "carries: usable in a run; 50 tasks" in done.stdout


@pytest.mark.parametrize("name", ["", "Word", "a_b", "a--b", "-a", "9a", "a" * 41, "../a"])
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CannotMake, match="allowed: small letters, digits and single hyphens"):
        new_environment(name, tmp_path)
    assert not list(tmp_path.iterdir())


FAULTS = {
    "gold that is wrong": ("return str(task.verification_info", "return 'x' + str(task.verification_info", "the gold answer must score 1"),
    "broken gold that is right": ('self.gold(task) + "a"', "self.gold(task)", "the broken gold answer must score 0"),
    "an exception": ("lines = completion", "completion.encode()\n        lines = completion", "score() raised UnicodeEncodeError"),
    "partial rewards": ("float(right)", "float(right) or 0.5", "is 0.5; allowed: 0 or 1"),
    "any answer is right": ("right = bool(lines) and", "right = not lines or", "the completion '' scores 1"),
    "a seed by the clock": ("random.Random(seed)", "random.Random(seed + STARTED)", "two processes have different tasks"),
    "a missing dependency": ('version = "1"', 'version = "1"; requires = ("no-such-package",)', "needs no-such-package, which is not installed"),
    "no request for a length": ("{length_suffix(target_length)}", "", "a target length of 1000 is not in the prompt"),
    "scoring without an end": ("lines = completion", "while True: pass\n        lines = completion", "8 tasks were not scored within 6 s"),
    "too much memory": ("lines = completion", "waste = b'x' * (9 << 30)\n        lines = completion", "score() raised MemoryError"),
    "a module that cannot be imported": ("import random", "import random, no_such_module", "No module named 'no_such_module'"),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_reported(
    package: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, fault: str
) -> None:
    spoil(package, before, after)
    spoil(package, "LETTERS =", "import time\nSTARTED = time.time_ns()\nLETTERS =")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package), *filter(None, sys.path)]))
    report = check("word-puzzles", 8, 0, seconds=6.0 if "while True" in after else 100.0)
    assert any(fault in found for found in report.faults), report.faults


def test_an_unfit_environment_is_exit_code_one(tmp_path: Path, package: Path) -> None:
    spoil(package, "float(right)", "float(right) or 0.5")
    done = shoal("check", "word-puzzles", cwd=tmp_path, more_path=package)
    assert (done.returncode, done.stderr) == (1, "not usable in a run: word-puzzles\n")
    assert "is 0.5; allowed: 0 or 1" in done.stdout


def test_an_environment_whose_gold_answer_raises_is_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(*_: object) -> str:
        raise ValueError("no gold answer")

    monkeypatch.setattr(Arithmetic, "gold", no_answer)
    with pytest.raises(ValueError, match="no gold answer"):
        probe(Arithmetic(), 1, 0)


def test_an_unknown_environment_is_wrong_input(tmp_path: Path) -> None:
    done = shoal("check", "riddles", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "riddles: not installed here; installed: arithmetic, code, ifeval, interpreter, lm-eval, math, reasoning-gym, tool, verifiers"
    )


@pytest.mark.parametrize("name", ["arithmetic", "code", "ifeval", "math", "tool"])
def test_shipped_environments_are_usable(tmp_path: Path, name: str) -> None:
    done = shoal("check", name, "--tasks", "2" if name in ("code", "math") else "50", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name}: usable in a run" in done.stdout


def test_memory_is_that_of_the_scoring_process_and_not_of_the_one_that_checks_it(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's peak of a process begins with that of the process that it was forked from."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package), *filter(None, sys.path)]))
    held = b"x" * (5 << 29)
    report = check("word-puzzles", 1, 0, seconds=100.0)
    assert report.faults == ()
    assert 20 << 20 < report.peak_bytes < MEMORY_BYTES < len(held)
