"""What is handed out has its licence: the wheel, which the images install, and the labels of the images."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

from servers import ROOT


def test_the_wheel_has_licence_notice_types_and_its_metadata(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
    assert {"shoal/py.typed", "shoal_operator/py.typed"} <= set(names)
    licences = [name.rpartition("/")[2] for name in names if ".dist-info/licenses/" in name]
    assert sorted(licences) == ["LICENSE", "NOTICE"]
    for line in ("License-Expression: Apache-2.0", "Author: The Shoal authors", "Classifier: Typing :: Typed"):
        assert f"\n{line}\n" in metadata


def test_every_image_says_its_licence() -> None:
    said = {
        path.parent.name: re.findall(r'image\.licenses="([^"]+)"', path.read_text())
        for path in (ROOT / "images").glob("*/Dockerfile")
        if "LABEL" in path.read_text()
    }
    own = {"redis": ["BSD-3-Clause"], "minio": ["AGPL-3.0-only"]}
    assert said == {role: own.get(role, ["Apache-2.0"]) for role in said}
    assert said.keys() >= {"operator", "protocol", "relay", "trainer", "worker", "validator", "redis", "minio"}
