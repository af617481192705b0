"""The bill of materials that goes into images: real packages of this machine, a go.mod, and what it refuses."""

import importlib.util
import json
import subprocess
import sys
from email import message_from_string
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shoal.installed import BEFORE, NAME

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "images" / "sbom.py"


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    spec = importlib.util.spec_from_file_location("images_sbom", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def printed(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def purls(bill: dict[str, Any]) -> list[str]:
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


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: *\nLicense: BSD-3-Clause\n\n"
            "Files: debian/*\nLicense: GPL-2+\n\nLicense: GPL-2+\n On Debian systems see /usr/share/common-licenses/GPL-2.\n",
            ["BSD-3-Clause", "GPL-2+"],
        ),
        ("It was put together by X.\nSee /usr/share/common-licenses/LGPL-2.1'. And /usr/share/common-licenses/GPL-2.\n", ["GPL-2", "LGPL-2.1"]),
        ("Anyone may use this without any condition.\n", ["see /usr/share/doc/redis-server/copyright"]),
        (None, []),
    ],
)  # fmt: skip
def test_a_debian_package_is_listed_with_the_licences_of_its_copyright_file(
    text: str | None, names: list[str], dpkg: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "doc" / "redis-server"
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "copyright").write_text(text)
    [listed] = printed("redis", "--version", "1", "--dpkg", str(dpkg), "--doc", str(tmp_path / "doc"))["components"]
    assert [each["license"]["name"] for each in listed.get("licenses", [])] == names


@pytest.mark.parametrize(
    ("metadata", "licences"),
    [
        ("License-Expression: Apache-2.0 OR MIT\nLicense: ignored\n", [{"expression": "Apache-2.0 OR MIT"}]),
        ("License: LicenseRef-NVIDIA-Proprietary\n", [{"license": {"name": "LicenseRef-NVIDIA-Proprietary"}}]),
        ("License: MIT License\n        \n        Copyright (c) 2022\n", [{"license": {"name": "MIT License"}}]),
        ("Classifier: License :: OSI Approved :: BSD License\nLicense: Long\n  text\n", [{"license": {"name": "BSD License"}}]),
        ("Name: silent\n", [{"license": {"name": "see silent-1.dist-info/licenses/LICENSE"}}]),
    ],
)  # fmt: skip
def test_a_distribution_is_listed_with_the_licence_that_its_metadata_states(
    metadata: str, licences: list[dict[str, Any]], sbom: ModuleType
) -> None:
    files = ["silent/vendored/LICENSE", "silent-1.dist-info/licenses/LICENSE"]
    assert sbom.python_licences(message_from_string(metadata), files) == licences


def test_nearly_every_distribution_of_the_runtime_states_a_licence(sbom: ModuleType) -> None:
    silent = [each["name"] for each in sbom.python_distributions() if not each.get("licenses")]
    # NVIDIA's package of names alone, and packages of the machine that runs the tests.
    assert len(silent) <= 5, silent


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
