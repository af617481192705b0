"""Dockerfiles against what the operator starts, and against the promises of images/README.md. Nothing is built here."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal_operator.children import names
from shoal_operator.children.pods import HOME, USER_ID

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "images"
ROLES = sorted(path.parent.name for path in IMAGES.glob("*/Dockerfile"))
ON_RUNTIME = ("trainer", "validator", "worker")
OF_PYTHON = ("operator", "protocol", "relay", "runtime", *ON_RUNTIME)


def dockerfile(role: str) -> str:
    return (IMAGES / role / "Dockerfile").read_text()


def last_stage(role: str) -> str:
    return re.split(r"^(?=FROM )", dockerfile(role), flags=re.M)[-1]


def started() -> set[tuple[str, tuple[str, ...]]]:
    """Role and command of every container in the golden files that has an image of ours."""
    roles = {image + variant: role for role, image in names.IMAGES.items() for variant in ("", names.ON_GPUS)}
    found = set[tuple[str, tuple[str, ...]]]()

    def look(node: Any) -> None:
        if isinstance(node, list):
            for each in node:
                look(each)
        elif isinstance(node, dict):
            if node.get("image") in roles and "command" in node:
                found.add((roles[node["image"]], tuple(node["command"])))
            for each in node.values():
                look(each)

    for path in sorted((ROOT / "tests" / "golden").glob("*/*/out.yaml")):
        look(list(yaml.safe_load_all(path.read_text())))
    return found


def programs() -> set[tuple[str, str]]:
    """Role and module of every `python -m module` that the operator starts; of torchrun also the module that it starts."""
    return {
        (role, command[position + 1])
        for role, command in started()
        for position, word in enumerate(command)
        if word == "-m"
    }


def test_the_golden_files_start_every_image_that_the_operator_knows() -> None:
    # If one is in no golden file, nothing below says anything about it.
    assert {role for role, _ in started()} == set(names.IMAGES)


@pytest.mark.parametrize("role", sorted(names.IMAGES))
def test_every_image_that_the_operator_starts_has_a_dockerfile(role: str) -> None:
    assert role in ROLES


@pytest.mark.parametrize("role", ROLES)
def test_an_image_runs_as_nobody_in_particular_and_stands_on_a_chosen_base(role: str) -> None:
    text = dockerfile(role)
    assert re.findall(r"^USER (.*)$", text, re.M)[-1] == f"{USER_ID}:{USER_ID}"
    stages = re.findall(r"^FROM (\S+)", text, re.M)
    earlier = set(re.findall(r"^FROM \S+ AS (\S+)", text, re.M))
    assert set(stages) - earlier <= {"${BASE}", "${RUNTIME}"}, "a base that no build argument can replace"
    # Nothing is started through a shell: no CMD or ENTRYPOINT in the form that needs one.
    assert re.findall(r"^(?:CMD|ENTRYPOINT) (?!\[)", text, re.M) == []


@pytest.mark.parametrize("role", ROLES)
def test_an_image_can_be_told_from_others(role: str) -> None:
    text = last_stage(role)
    if role != "runtime":  # is run by nobody, and holds nothing of a version of Shoal
        for label in ("title", "description", "version", "revision"):
            assert f'org.opencontainers.image.{label}="' in text
        assert f'image.title="shoal/{role}"' in text
        assert "/usr/share/sbom/shoal.cdx.json" in text
    assert f"-f images/{role}/Dockerfile" in dockerfile(role).split("FROM")[0]


@pytest.mark.parametrize("role", ROLES)
def test_settings_of_the_machine_that_builds_reach_no_layer(role: str) -> None:
    text = dockerfile(role)
    for secret in ("/run/secrets/", "/etc/pip.conf", "/etc/apt/apt.conf"):
        copied = [line for line in text.splitlines() if line.startswith(("COPY", "ADD")) and secret in line]
        assert copied == []
    for run in re.findall(r"^RUN (?:.*\\\n)*.*$", text, re.M):
        if "apt-get" in run:
            assert "--mount=type=secret,id=apt" in run
        if "install.sh" in run:
            assert "--mount=type=secret,id=ca" in run
            assert "--mount=type=secret,id=pip" in run


@pytest.mark.parametrize("role", OF_PYTHON)
def test_a_program_writes_below_shoal_only(role: str) -> None:
    text = dockerfile("runtime" if role in ON_RUNTIME else role)
    assert f"HOME={HOME}/tmp TMPDIR={HOME}/tmp SHOAL_HOME={HOME}" in text
    assert "PYTHONDONTWRITEBYTECODE=1" in text
    assert f"mkdir -p {HOME}/tmp" in text or f"{HOME}/tmp && chmod 1777" in text


@pytest.mark.parametrize("role", ON_RUNTIME)
def test_images_on_the_runtime_differ_in_role_and_command_only(role: str) -> None:
    def common(name: str) -> list[str]:
        own = re.compile(r"^# .*Shoal|image\.description=|^CMD |opt/shoal/bin/shoal$|/shoal/node|^# A node's")
        named = re.compile(rf"(images/|shoal/|sbom\.py ){name}\b")
        return [named.sub(r"\1ROLE", line) for line in dockerfile(name).splitlines() if not own.search(line)]

    assert common(role) == common("trainer")
    # What is common to all of them lies in one layer of the runtime, not in three of theirs.
    assert "apt-get" not in last_stage(role)


def test_one_file_makes_both_variants_of_the_runtime() -> None:
    text = dockerfile("runtime")
    assert "requirements/images/runtime-${VARIANT}.lock" in text
    assert {path.name for path in (ROOT / "requirements" / "images").glob("runtime-*.lock")} == {
        "runtime-cpu.lock",
        "runtime-cuda.lock",
    }
    # With it set, an image would take GPUs that the device plugin gave to other pods.
    assert "NVIDIA_VISIBLE_DEVICES=" not in text


@pytest.mark.parametrize("role", ROLES)
def test_what_a_dockerfile_copies_is_there(role: str) -> None:
    if role == "minio":  # its context is put together by tools/images.sh
        sources = ["tools/minio/go.mod", "images/sbom.py"]
    else:
        lines = re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+) \S+$", dockerfile(role), re.M)
        sources = [source.replace("${VARIANT}", "cpu") for line in lines for source in line.split()]
    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []


@pytest.mark.parametrize(("role", "program"), [("redis", "redis-server"), ("relay", "nginx-light")])
def test_a_server_that_children_start_is_installed(role: str, program: str) -> None:
    assert program in last_stage(role) or program in dockerfile(role)


@pytest.mark.parametrize("role", ROLES)
def test_the_readme_names_every_image(role: str) -> None:
    assert f"`{role}`" in (IMAGES / "README.md").read_text()
