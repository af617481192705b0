"""The bill of materials that goes into images: real packages of this machine, a go.mod, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.installed import BEFORE, NAME

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "images" / "sbom.py"


def printed(*arguments: str) -> dict[str, object]:
    done = subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def purls(bill: dict[str, object]) -> list[str]:
    return [each["purl"] for each in bill["components"]]


@pytest.fixture
def dpkg(tmp_path: Path) -> Path:
    folder = tmp_path / "dpkg"
    (folder / "info").mkdir(parents=True)
    (folder / "updates").mkdir()
    (folder / "status").write_text(
        "Package: redis-server\nStatus: install ok installed\nArchitecture: amd64\nVersion: 5:7.0.15-1~deb12u3+b1\nMaintainer: x\nDescription: y\n"
    )
    return folder


def test_another_images_packages_are_listed_without_this_ones_python(dpkg: Path) -> None:
    bill = printed("redis", "--version", "1.2.3", "--dpkg", str(dpkg))
    assert bill["metadata"] == {"component": {"type": "container", "name": "shoal/redis", "version": "1.2.3"}}
    assert purls(bill) == ["pkg:deb/debian/redis-server@5%3A7.0.15-1~deb12u3%2Bb1?arch=amd64"]


def test_a_go_programs_modules_are_listed_once_each_and_replacements_are_not(dpkg: Path, tmp_path: Path) -> None:
    module = tmp_path / "go.mod"
    module.write_text(
        "module shoal/tools/minio\n\ngo 1.25.0\n\ntool github.com/minio/minio\n\nrequire (\n"
        "\taead.dev/mem v0.2.0 // indirect\n\tgithub.com/Azure/sdk v1.0.0+incompatible\n)\n\n"
        "require github.com/single/line v0.0.0-20250101000000-abcdef\n\nreplace example.org/a => example.org/b v9.9.9\n"
    )
    bill = printed("minio", "--version", "1.2.3", "--dpkg", str(dpkg), "--go", str(module))
    assert [purl for purl in purls(bill) if purl.startswith("pkg:golang")] == [
        "pkg:golang/aead.dev/mem@v0.2.0",
        "pkg:golang/github.com/azure/sdk@v1.0.0%2Bincompatible",
        "pkg:golang/github.com/single/line@v0.0.0-20250101000000-abcdef",
    ]


def test_the_shipped_minio_is_among_its_own_modules(dpkg: Path) -> None:
    bill = printed("minio", "--version", "1", "--dpkg", str(dpkg), "--go", str(ROOT / "tools" / "minio" / "go.mod"))
    listed = purls(bill)
    assert any(purl.startswith("pkg:golang/github.com/minio/minio@") for purl in listed)
    assert len(listed) == len(set(listed)) > 200


def test_an_images_own_python_is_listed_with_this_projects_version() -> None:
    bill = printed("operator")
    assert any(purl.startswith("pkg:pypi/pydantic@") for purl in purls(bill))
    assert any(purl.startswith((f"pkg:pypi/{NAME}@", f"pkg:pypi/{BEFORE}@")) for purl in purls(bill))
    assert bill == printed("operator")


def test_a_folder_that_is_none_of_dpkgs_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, "redis", "--version", "1", "--dpkg", str(tmp_path / "none")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stdout == ""
