"""What `benchmarks.release.cuda` says of the CUDA images, and the lock of their runtime. Nothing is built here."""

import importlib
import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
from benchmarks.release import cuda

ROOT = Path(__file__).resolve().parents[2]


def parts_of(lock: str) -> dict[str, set[str]]:
    """Packages of a runtime's lock by the layer that images/install.sh puts them into, told by its own awk programs."""
    script = (ROOT / "images" / "install.sh").read_text()
    [libraries] = re.findall(r"^libraries='(.*)'$", script, re.M)
    programs = dict(re.findall(r"^ +(libraries|rest)\) awk -v of=\"\$libraries\" '(.*?)' ", script, re.M))
    assert programs.keys() == {"libraries", "rest"}
    path = ROOT / "requirements" / "images" / f"{lock}.lock"
    found = {}
    for part, program in programs.items():
        text = subprocess.run(
            ["awk", "-v", f"of={libraries}", program, path], capture_output=True, text=True, check=True
        )
        # Every package comes with its hashes.
        assert text.stdout.count("--hash=sha256:") >= text.stdout.count("==")
        found[part] = set(re.findall(r"^([a-z0-9._-]+)==", text.stdout, re.M))
    return found


@pytest.mark.parametrize("lock", ["runtime-cpu", "runtime-cuda"])
def test_each_package_of_the_runtime_is_in_one_of_its_two_layers(lock: str) -> None:
    parts = parts_of(lock)
    whole = set(re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements/images" / f"{lock}.lock").read_text(), re.M))
    assert parts["libraries"] | parts["rest"] == whole
    assert not parts["libraries"] & parts["rest"]
    assert "torch" in parts["libraries"]
    assert "transformers" in parts["rest"]


def test_every_part_that_computes_is_started_from_an_image_with_a_gpu_variant() -> None:
    roles = importlib.import_module("accelerator_roles").ROLES
    assert {cuda.image_of(part) for part in roles} == set(cuda.ON_RUNTIME)


def test_packages_without_a_licence_and_with_a_proprietary_one_are_named() -> None:
    bill = {
        "components": [
            {"name": "torch", "licenses": [{"expression": "BSD-3-Clause"}]},
            {"name": "nvidia-cublas", "licenses": [{"expression": "LicenseRef-NVIDIA-Proprietary"}]},
            {"name": "gcc", "licenses": [{"license": {"name": "GPL-3"}}, {"license": {"name": "LGPL-3"}}]},
            {"name": "names-only"},
        ]
    }
    assert cuda.licences(bill) == {
        "packages": 4,
        "none_stated": ["names-only"],
        "proprietary": {"LicenseRef-NVIDIA-Proprietary": ["nvidia-cublas"]},
    }


def test_a_layer_of_an_archive_has_its_own_weight(tmp_path: Path) -> None:
    (tmp_path / "layer").write_bytes(b"x" * 1234)
    (tmp_path / "manifest.json").write_text(json.dumps([{"RepoTags": ["shoal/worker:1"], "Layers": ["layer"]}]))
    with tarfile.open(tmp_path / "archive.tar", "w") as archive:
        archive.add(tmp_path / "manifest.json", "manifest.json")
        archive.add(tmp_path / "layer", "layer")
    assert cuda.compressed(tmp_path / "archive.tar") == {"shoal/worker:1": [1234]}


@pytest.mark.parametrize(
    ("code", "output"),
    [
        (0, "shoal: the GPUs that this part was promised cannot be used: none is seen\n"),
        (1, "out of memory\n"),
        (1, "Traceback (most recent call last):\nthe GPUs that this part was promised cannot be used\n"),
    ],
)
def test_a_part_that_goes_on_or_throws_without_its_gpu_is_told(code: int, output: str) -> None:
    with pytest.raises(SystemExit, match="a part without its GPU ended with"):
        cuda.last_words(subprocess.CompletedProcess([], code, output))
