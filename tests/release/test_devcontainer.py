"""The devcontainer: the Debian and the Python that `make setup` asks for, and commands that are targets of the Makefile."""

import json
import re
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from servers import ROOT

CODENAMES = {"11": "bullseye", "12": "bookworm", "13": "trixie"}
"""Debian's releases."""
IMAGE = re.compile(r"mcr\.microsoft\.com/devcontainers/python:\d+-(?P<python>\d+\.\d+)-(?P<debian>[a-z]+)")
COMMANDS = {"initializeCommand", "onCreateCommand", "updateContentCommand", "postCreateCommand", "postStartCommand"}
SETUP = (ROOT / "tools" / "setup.sh").read_text()
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def asked() -> tuple[str, str]:
    """Python and Debian of `tools/setup.sh`."""
    python = re.search(r"sys\.version_info\[:2\] != \((\d+), (\d+)\)", SETUP)
    debian = re.search(r"Debian (\d+) has it", SETUP)
    assert python is not None
    assert debian is not None
    return ".".join(python.groups()), CODENAMES[debian.group(1)]


def faults(container: dict[str, Any]) -> list[str]:
    """Where a `devcontainer.json` is not what this checkout needs."""
    image = IMAGE.fullmatch(container["image"])
    if image is None:
        return [f"image {container['image']}"]
    found = [] if image.groups() == asked() else [f"image of {image.groups()}, not {asked()}"]
    for name in COMMANDS & container.keys():
        program, *words = container[name].split()
        if program != "make" or not words or not set(words) <= TARGETS:
            found.append(f"{name}: {container[name]}")
    return found


def container() -> dict[str, Any]:
    return dict(json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text()))


def test_its_image_and_commands_are_those_of_the_set_up() -> None:
    assert faults(container()) == []
    assert container()["postCreateCommand"] == "make setup"


def test_its_python_is_one_that_the_project_takes() -> None:
    requires = re.search(r'^requires-python = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert requires is not None
    assert SpecifierSet(requires.group(1)).contains(asked()[0])


@pytest.mark.parametrize(
    "changed",
    [
        {"image": "mcr.microsoft.com/devcontainers/python:1-3.12-bookworm"},
        {"image": "mcr.microsoft.com/devcontainers/python:1-3.11-trixie"},
        {"image": "debian:12"},
        {"postCreateCommand": "make set-up"},
        {"postStartCommand": "pip install -e ."},
    ],
)
def test_a_wrong_devcontainer_would_be_found(changed: dict[str, str]) -> None:
    assert len(faults(container() | changed)) == 1
