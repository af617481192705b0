"""The images for NVIDIA's GPUs, built, weighed, imported and started without a GPU: `python -m benchmarks.release.cuda`, some 20 minutes, 24 GB.

Builds trainer, worker and validator with `VARIANT=cuda tools/images.sh` (buildah, root; `--built` takes those that are there). Then it mounts each
on a root that nobody can write, and runs it as uid 12345 without a capability. Only /shoal and /tmp can be written to. There the image must import
its programs, and each part that is promised a GPU must end with the one line that says that none is seen. Writes `images` of
benchmarks/results/release.json: megabytes compressed (where the archive was made) and unpacked, of the runtime by layer, the last lines, and the
packages whose licences are proprietary or unknown. All licences are in the bill of each image.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests")]

ON_RUNTIME = ("trainer", "worker", "validator")
ARCHIVE = ROOT / ".cache" / "images" / "runtime-cuda.tar"
BUILD_SECONDS = 4 * 3600.0
START_SECONDS = 600.0
"""For an import of torch and vLLM from a disk that others read too."""
UNKNOWN = 12345
"""A uid and gid that no image has heard of."""
PROMISE = "the GPUs that this part was promised"
BILL = "usr/share/sbom/shoal.cdx.json"
HOSTS = f"127.0.0.1 localhost {platform.node()}\n"
"""A runtime writes such a file for each container: ranks meet by these names."""
ISOLATED = """
mount --bind "$0" "$0"; mount -o remount,bind,ro "$0"; mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"
mount -t tmpfs -o mode=1777 tmpfs "$0/tmp"; mount --bind "$1" "$0/shoal"
root=$0; shift; exec chroot --userspec="$user:$user" --groups= "$root" /usr/bin/env -i "$@"
"""
"""Run in a mount namespace of its own with a root, a folder for /shoal, variables and a command."""


def main() -> None:
    from e2e.test_images import STARTS

    from accelerator_roles import PROMISED, ROLES
    from benchmarks.release.__main__ import RESULT, record
    from shoal.accelerators import read_machine

    parser = argparse.ArgumentParser(prog="python -m benchmarks.release.cuda")
    parser.add_argument("--built", action="store_true", help="take the images that buildah has; build none")
    given = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("this mounts images: run it as root")
    if read_machine().cards:
        raise SystemExit("this machine has a GPU: what parts do without one cannot be seen here")
    if not given.built:
        build()
    config = json.loads(_output("buildah", "inspect", "--type", "image", name("runtime")))["OCIv1"]["config"]
    variables: dict[str, str] = dict(each.split("=", 1) for each in config["Env"])
    packed = compressed(ARCHIVE) if ARCHIVE.exists() else {}
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    suffix = f"cuda-{architecture}"
    images: dict[str, Any] = {f"runtime-{suffix}": weighed("runtime", packed)}
    for role in ON_RUNTIME:
        with mounted(role) as root:
            imported = run(root, variables, STARTS[role])
            ended = {
                part: run(root, variables | dict(PROMISED), ("python", *command))
                for part, command in ROLES.items()
                if image_of(part) == role
            }
            bill = json.loads((root / BILL).read_text())
        images[f"{role}-{suffix}"] = weighed(role, packed, layers=False) | {
            "imports": imported.returncode == 0 or imported.stdout[-600:],
            "without_a_gpu": {part: last_words(one) for part, one in ended.items()},
        }
    images[f"runtime-{suffix}"]["licences"] = licences(bill)
    found = json.loads(RESULT.read_text()).get("images", {}) if RESULT.is_file() else {}
    record(images=found | images)


def name(role: str) -> str:
    """What tools/images.sh calls an image on this machine."""
    from shoal.installed import installed

    return f"localhost/shoal/{role}:{installed().version}-cuda"


def image_of(part: str) -> str:
    """The image that the operator starts a part of `accelerator_roles` from: the run's preparation is the trainer's."""
    return part if part in ON_RUNTIME else "trainer"


def build() -> None:
    """Build all three, and the archive of them."""
    subprocess.run(
        [ROOT / "tools/images.sh", *ON_RUNTIME],
        cwd=ROOT,
        env=os.environ | {"VARIANT": "cuda"},
        check=True,
        timeout=BUILD_SECONDS,
    )


def compressed(archive: Path) -> dict[str, list[int]]:
    """Bytes of each layer of each image of an archive by the name of the image, in order, as images/pack.py packed them."""
    with tarfile.open(archive) as opened:
        sizes = {member.name: member.size for member in opened}
        listing = opened.extractfile("manifest.json")
        assert listing is not None
        return {each["RepoTags"][0]: [sizes[layer] for layer in each["Layers"]] for each in json.load(listing)}


def weighed(role: str, packed: Mapping[str, list[int]], *, layers: bool = True) -> dict[str, Any]:
    """Megabytes of an image, with what made each layer. `packed`: see `compressed`; the runtime is what the three begin with."""
    found = json.loads(_output("buildah", "inspect", "--type", "image", name(role)))
    unpacked = [layer["size"] for layer in json.loads(found["Manifest"])["layers"]]
    of = name(role if role != "runtime" else ON_RUNTIME[0]).removeprefix("localhost/")
    sizes: list[int | None] = [*packed.get(of, [None] * len(unpacked))][: len(unpacked)]
    made: dict[str, Any] = {"unpacked_mb": _megabytes(sum(unpacked))}
    if packed:
        made["compressed_mb"] = _megabytes(sum(size or 0 for size in sizes))
    if layers:
        steps = [each["created_by"] for each in found["OCIv1"]["history"] if not each.get("empty_layer")]
        made["layers"] = [
            {"of": content(step), "unpacked_mb": _megabytes(whole)}
            | ({"compressed_mb": _megabytes(small)} if small is not None else {})
            for step, whole, small in zip(steps, unpacked, sizes, strict=True)
        ]
    return made


def content(step: str) -> str:
    """What a layer of the runtime holds, by the command that made it."""
    known = {
        " libraries": "torch, Triton and NVIDIA's libraries",
        " rest": "the other Python packages",
        "apt-get": "Debian's packages",
        "mkdir": "a folder",
    }
    return next((what for word, what in known.items() if word in step), "the base")


def licences(bill: Mapping[str, Any]) -> dict[str, Any]:
    """Of a bill of materials: packages, those that state no licence, and those under a licence that is called proprietary. It holds the rest."""
    proprietary: dict[str, list[str]] = defaultdict(list)
    for package in bill["components"]:
        for one in package.get("licenses", []):
            stated = one.get("expression") or one["license"]["name"]
            if "proprietary" in stated.lower():
                proprietary[stated].append(package["name"])
    return {
        "packages": len(bill["components"]),
        "none_stated": [each["name"] for each in bill["components"] if not each.get("licenses")],
        "proprietary": dict(sorted(proprietary.items())),
    }


def last_words(ended: "subprocess.CompletedProcess[str]") -> str:
    """The line about GPUs of a part that ended as it must. Raises SystemExit for one that went on, said nothing of them, or threw at its user.

    Above the line of ranks torchrun shows where it threw itself.
    """
    said = [line for line in ended.stdout.splitlines() if PROMISE in line]
    if ended.returncode == 0 or not said or ("Traceback" in ended.stdout and "ChildFailedError" not in ended.stdout):
        raise SystemExit(f"a part without its GPU ended with {ended.returncode} and said: {ended.stdout[-2000:]}")
    if not said[-1].startswith("{"):
        return PROMISE + said[-1].partition(PROMISE)[2]
    line = json.loads(said[-1])
    return f"{line['event']}: {line['reason']}"


@contextmanager
def mounted(role: str) -> Iterator[Path]:
    """The file system of an image, while the context lasts."""
    container = _output("buildah", "from", "--pull-never", name(role))
    try:
        root = Path(_output("buildah", "mount", container))
        (root / "etc/hosts").write_text(HOSTS)
        yield root
    finally:
        subprocess.run(["buildah", "rm", container], check=True, capture_output=True, timeout=300)


def run(root: Path, variables: Mapping[str, str], command: tuple[str, ...]) -> "subprocess.CompletedProcess[str]":
    """Run a command in an image as a user that it does not know, on a root that cannot be written. /shoal holds a run's configuration alone."""
    from accelerator_roles import lay_out

    with tempfile.TemporaryDirectory(prefix="bench-cuda-") as scratch:
        home = Path(scratch)
        home.chmod(0o1777)
        lay_out(home)
        (home / "tmp").mkdir(exist_ok=True)
        for path in (home, *home.rglob("*")):
            os.chown(path, UNKNOWN, UNKNOWN)
        stated = dict(variables) | {"SHOAL_POD": "a-pod", "SHOAL_BIND": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [
                "unshare",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "sh",
                "-ec",
                f"user={UNKNOWN}{ISOLATED}",
                str(root),
                scratch,
            ]
            + [f"{key}={value}" for key, value in stated.items()]
            + list(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=START_SECONDS,
        )


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout.strip()


def _megabytes(count: int) -> float:
    return round(count / 1e6, 1)


if __name__ == "__main__":
    main()
