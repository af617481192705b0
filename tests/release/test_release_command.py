"""The command `python -m tools.release` where it refuses, what it builds of Python, and its pipeline file."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from tools.release.plan import CannotRelease
from tools.release.programs import checkout, python_packages
from tools.release.steps import ReleaseFolder

from servers import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
CLOSED = "127.0.0.1:9"
"""The discard port: nobody serves a registry there."""


def release(*arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "COSIGN_PASSWORD"}
    command = [sys.executable, "-m", "tools.release", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_dry_run_says_what_would_be_made_and_everything_that_is_wrong(tmp_path: Path) -> None:
    done = release(VERSION, "--registry", CLOSED, "--folder", str(tmp_path / "r"), "--without-scan", "x", "--dry-run")
    assert done.returncode == 1
    assert f"image  {CLOSED}/shoal/operator:{VERSION} for amd64, arm64" in done.stdout
    assert f"chart  oci://{CLOSED}/charts/shoal:{VERSION}" in done.stdout
    assert "release: no key was given to sign with" in done.stderr
    assert "release: COSIGN_PASSWORD is not set" in done.stderr
    assert f"release: the registry {CLOSED} does not answer" in done.stderr
    assert not (tmp_path / "r").exists()


def test_a_version_that_the_checkout_does_not_state_is_refused(tmp_path: Path) -> None:
    done = release("9.9.9", "--registry", CLOSED, "--folder", str(tmp_path), "--without-scan", "x")
    assert done.returncode == 1
    assert "release: pyproject.toml says" in done.stderr
    assert "CHANGELOG.md has no section [9.9.9]" in done.stderr


def test_wheel_and_sdist_of_one_commit_are_the_same_bytes_wherever_they_are_built(tmp_path: Path) -> None:
    made = []
    for name in ("one", "another"):
        checkout(tmp_path / name)
        made.append(python_packages(tmp_path / name, tmp_path / f"{name}-packages", "1700000000"))
    assert made[0] == made[1]
    assert {name.partition("-")[2] for name in made[0]} == {f"{VERSION}-py3-none-any.whl", f"{VERSION}.tar.gz"}


def test_a_stopped_release_goes_on_where_it_was_and_another_one_is_refused(tmp_path: Path) -> None:
    first = ReleaseFolder(tmp_path / "r")
    first.begin(commit="a")
    assert first.once("step", lambda: 1) == 1
    with pytest.raises(ZeroDivisionError):
        first.once("broken", lambda: 1 // 0)
    again = ReleaseFolder(tmp_path / "r")
    again.begin(commit="a")
    assert again.once("step", lambda: 2) == 1
    assert again.once("broken", lambda: 3) == 3
    with pytest.raises(CannotRelease, match="commit 'a', now 'b'; remove the folder"):
        ReleaseFolder(tmp_path / "r").begin(commit="b")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"BUILDER": "docker", "REPOSITORY": "registry.example.org/shoal"}, "docker does not say the digest"),
        ({"BUILDER": "buildah", "REPOSITORY": ""}, "PUSH needs a registry in REPOSITORY"),
    ],
)
def test_images_are_not_pushed_where_their_digest_or_place_is_unknown(settings: dict[str, str], said: str) -> None:
    environment = os.environ | settings | {"PUSH": "/nonexistent"}
    command = [ROOT / "tools" / "images.sh", "operator"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert said in done.stderr


def test_the_pipeline_runs_the_same_command_and_no_action_of_others() -> None:
    [job] = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"].values()
    assert [step for step in job["steps"] if "uses" in step] == []
    assert any("make release VERSION=" in step["run"] for step in job["steps"])
    assert [
        target for target in (ROOT / "Makefile").read_text().splitlines() if target.startswith("release: setup ## ")
    ]
