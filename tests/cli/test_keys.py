"""`shoal keys`: what it shows of a run, what it asks for, and what it refuses. `tests/system/test_key_rotation.py` performs it."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shoal.cli.main import app
from shoal.contracts.roster import HOLDERS
from shoal.errors import InputWrong
from shoal.report.run_folders import LOCK_FILE
from shoal_operator.api import TrainingRun
from shoal_operator.api.keys import KeysSpec, KeyWish
from shoal_operator.local.key_wishes import WISHES_FILE, read_wishes, with_wishes
from shoal_operator.local.objects import Objects

MANIFEST: dict[str, Any] = {
    "apiVersion": "shoal.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "sums"},
    "spec": {"model": {"generated": {}}, "tasks": {"environment": "arithmetic"}, "steps": 4},
}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with one run that is stopped, whose keys are the first ones."""
    folder = tmp_path / "sums"
    folder.mkdir()
    (folder / LOCK_FILE).touch()
    objects = Objects(folder / "objects.json")
    objects.apply(MANIFEST)
    keys = [{"name": name, "generation": 1, "fingerprint": f"{n:016x}"} for n, name in enumerate(HOLDERS)]
    objects.set_status("TrainingRun", "sums", {"keys": keys})
    return tmp_path


@pytest.fixture
def shoal(runs: Path) -> Callable[..., Result]:
    def call(*words: str) -> Result:
        return CliRunner().invoke(app, ["keys", *words, "--runs-dir", str(runs)])

    return call


def test_every_key_is_shown_with_its_fingerprint(shoal: Callable[..., Result]) -> None:
    lines = shoal("show").output.splitlines()
    assert [line.split()[:3] for line in lines] == [[name, "1", f"{n:016x}"] for n, name in enumerate(HOLDERS)]
    assert lines[0].endswith("since the run began")


def test_a_stopped_run_is_asked_for_later(shoal: Callable[..., Result], runs: Path) -> None:
    said = shoal("rotate", "sums", "--role", "trainer", "--leaked")
    assert said.exit_code == 0
    assert "its keys are replaced when `shoal up` starts it again" in said.output
    assert read_wishes(runs / "sums").wishes() == {"trainer": KeyWish(generation=2, leaked=True)}
    assert stat.S_IMODE((runs / "sums" / WISHES_FILE).stat().st_mode) == 0o600


def test_what_is_asked_for_twice_is_done_once_and_a_leak_stays_one(shoal: Callable[..., Result], runs: Path) -> None:
    shoal("rotate", "sums", "--role", "relay", "--leaked")
    shoal("rotate", "sums")
    wishes = read_wishes(runs / "sums").wishes()
    assert set(wishes) == set(HOLDERS)
    assert {wish.generation for wish in wishes.values()} == {2}
    assert [name for name, wish in wishes.items() if wish.leaked] == ["relay"]


def test_the_greater_number_of_manifest_and_request_holds(shoal: Callable[..., Result], runs: Path) -> None:
    shoal("rotate", "sums", "--role", "trainer")
    keys = {"trainer": {"generation": 3}, "relay": {"generation": 2}}
    run = TrainingRun.model_validate({**MANIFEST, "spec": {**MANIFEST["spec"], "keys": keys}})
    merged = with_wishes(run, runs / "sums").spec.keys
    assert merged == KeysSpec(trainer=KeyWish(generation=3), relay=KeyWish(generation=2))
    plain = TrainingRun.model_validate(MANIFEST)
    assert with_wishes(plain, runs / "sums").spec.keys == KeysSpec(trainer=KeyWish(generation=2))


def test_what_cannot_be_asked_for_is_refused_in_a_line(shoal: Callable[..., Result], runs: Path) -> None:
    said = shoal("rotate", "sums", "--role", "admin")
    assert isinstance(said.exception, InputWrong)
    assert str(said.exception) == (
        "--role: there is no 'admin'; allowed: run, orchestrator, discovery, trainer, relay, validator"
    )
    (runs / "sums" / WISHES_FILE).write_text("{]")
    assert "is not what `shoal keys rotate` writes" in str(shoal("rotate", "sums").exception)
    Objects(runs / "sums" / "objects.json").set_status("TrainingRun", "sums", {})
    assert "sums has no keys yet: start it with `shoal up` first" in str(shoal("show").exception)


def test_a_run_has_a_limit_of_changes(shoal: Callable[..., Result], runs: Path) -> None:
    keys = [{"name": name, "generation": 17, "fingerprint": "0"} for name in HOLDERS]
    Objects(runs / "sums" / "objects.json").set_status("TrainingRun", "sums", {"keys": keys})
    assert "at most 100 changes of keys, and has 96" in str(shoal("rotate", "sums").exception)
