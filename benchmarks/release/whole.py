"""A release, made twice, and what is the same of both: `python -m benchmarks.release.whole [IMAGE...]`, some three minutes an image.

Each time a clone of HEAD, whose changelog gets a day, is released with a fresh key by `python -m tools.release` to a registry of this machine, in an
empty folder: built, listed, signed, published, verified. Needs docker-registry (or REGISTRY_PROGRAM), skopeo and buildah. Nothing is scanned, as
grype's database answers from few machines. Writes `release` and `release_reproducible` to benchmarks/results/release.json.

`--once --arch amd64,arm64 redis trainer-cuda` makes one, of images of more kinds, and writes `release_of_kinds`: the same, and what each name in the
registry is an index of. Here arm64 is emulated, and its base is made first: `make base-image ARCH=arm64`.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from tools.release import programs, steps

OWN = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
INDEX = "application/vnd.oci.image.index.v1+json"
START_SECONDS = 30.0
RELEASE_SECONDS = 4 * 3600.0
UNLIKE = {
    "SHA256SUMS": "it names the others",
    "SHA256SUMS.sigstore.json": "signatures are random",
    "NOTES.md": "it names the chart's digest and the registry",
    "images.lock.json": "it names the registry",
    "cosign.pub": "each release had a fresh key",
}
"""Files that differ by their nature between two releases to two registries."""


def main() -> None:
    from benchmarks.release.__main__ import record

    parser = argparse.ArgumentParser(prog="python -m benchmarks.release.whole")
    parser.add_argument("images", nargs="*", default=["operator"], help="what `--only` of `make release` takes")
    parser.add_argument("--arch", default=OWN, help="what `--arch` of `make release` takes (default: this machine's)")
    parser.add_argument("--once", action="store_true", help="make one release, and compare nothing")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-release-") as name:
        scratch = Path(name)
        version = clone(scratch / "clone")
        made = []
        for number in (1,) if given.once else (1, 2):
            folder = scratch / str(number)
            folder.mkdir()
            with registry(folder) as host:
                made.append(release(scratch / "clone", folder, host, version, given.images, given.arch))
    first = made[0]
    figures = {
        "images": {name: {"compressed_mb": round(each["bytes"] / 1e6, 1)} for name, each in first["images"].items()},
        "minutes": [one["minutes"] for one in made],
        "signed_and_verified": all(one["verified"] for one in made),
        "packages_in_bills": first["bills"],
        "scanned": False,
    }
    if given.once:
        record(release_of_kinds=figures | {"names": first["names"]})
    else:
        record(release=figures, release_reproducible=compare(*made))


def clone(folder: Path) -> str:
    """A clone of HEAD in which the changelog has a day for the version. Returns the version."""
    subprocess.run(["git", "clone", "-q", ROOT, folder], check=True, timeout=300)
    # It is the same environment: the packages of a release come from its source, not from there.
    (folder / ".venv").symlink_to(ROOT / ".venv")
    with (folder / ".git/info/exclude").open("a") as excluded:
        excluded.write(".venv\n")
    version = steps.stated_versions()["pyproject.toml"]
    changelog = folder / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace(f"## [{version}] - Unreleased", f"## [{version}] - 2026-01-01"))
    who = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@example.org"]
    subprocess.run(["git", *who, "commit", "-qam", "Date the changelog"], cwd=folder, check=True, timeout=60)
    return version


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Host and port of an empty registry that stands while the context does."""
    program = os.environ.get("REGISTRY_PROGRAM") or shutil.which("docker-registry")
    if program is None:
        raise SystemExit(
            "docker-registry is not here: apt-get install -y docker-registry, or name it in REGISTRY_PROGRAM"
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{free.getsockname()[1]}"
    storage = {"filesystem": {"rootdirectory": str(folder / "registry")}}
    settings = folder / "registry.json"
    settings.write_text(json.dumps({"version": "0.1", "http": {"addr": host}, "storage": storage}))
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen([program, "serve", settings], stdout=log, stderr=log)
    try:
        end = time.monotonic() + START_SECONDS
        while not _answers(f"http://{host}/v2/"):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"waited for the registry to answer: {(folder / 'registry.log').read_text()[-1000:]}")
            time.sleep(0.2)
        yield host
    finally:
        process.terminate()
        process.wait(20)


def release(
    checkout: Path, folder: Path, host: str, version: str, images: list[str], architectures: str
) -> dict[str, Any]:
    """Make one release in `folder`. Returns its minutes, digests by subject, files by name, counts of its bills, and platforms by name."""
    environment = os.environ | {
        "COSIGN_PASSWORD": "benchmark",
        "PYTHONPATH": f"{checkout / 'operator'}:{checkout / 'workloads'}",
    }
    subprocess.run(
        [programs.tool("cosign"), "generate-key-pair"],
        cwd=folder,
        env=environment,
        check=True,
        timeout=60,
        capture_output=True,
    )
    started = time.monotonic()
    subprocess.run(
        [
            sys.executable, "-m", "tools.release", version, "--registry", host, "--key", folder / "cosign.key", "--only", ",".join(images),
            "--arch", architectures, "--folder", folder / "made", "--without-scan", "no database was asked",
        ],
        cwd=checkout, env=environment, check=True, timeout=RELEASE_SECONDS,
    )  # fmt: skip
    work = steps.ReleaseFolder(folder / "made")
    built = {
        name.removeprefix("image "): {"digest": done, "bytes": work.done[name.replace("image ", "size ", 1)]}
        for name, done in work.done.items()
        if name.startswith("image ")
    }
    files = {path.name: path.read_bytes() for path in work.files.iterdir()}
    return {
        "minutes": round((time.monotonic() - started) / 60, 1),
        "verified": True,  # the command ends with it, or fails
        "images": built,
        "digests": {f"image {name}": each["digest"] for name, each in built.items()} | {"chart": work.done["chart"]},
        "files": files,
        "bills": {
            name: len(json.loads(text)["packages"]) for name, text in files.items() if name.endswith(".spdx.json")
        },
        "names": {name: platforms(host, name) for name in json.loads(files["images.lock.json"])["digests"]},
    }


def platforms(host: str, name: str) -> list[str]:
    """Of the index that a registry has under a name, such as `shoal/redis:0.2.0`."""
    repository, _, tag = name.rpartition(":")
    index = httpx.get(f"http://{host}/v2/{repository}/manifests/{tag}", headers={"Accept": INDEX}, trust_env=False)
    index.raise_for_status()
    found = (each["platform"] for each in index.json()["manifests"])
    return sorted(f"{each['os']}/{each['architecture']}" for each in found)


def compare(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """What two releases of one commit have in common: names that are `same`, and those that `differ` with the reason where it is known."""
    kinds = ("digests", "files")
    same = sorted(name for kind in kinds for name, each in first[kind].items() if second[kind].get(name) == each)
    differ = {
        name: _reason(name) for kind in kinds for name, each in first[kind].items() if second[kind].get(name) != each
    }
    return {"same": same, "differ": dict(sorted(differ.items()))}


def _reason(name: str) -> str:
    if name in UNLIKE:
        return UNLIKE[name]
    if name.endswith(".spdx.json"):
        return "a bill has its time and a random name"
    if name == "chart" or name.endswith(".tgz"):
        return "Helm writes the time, and the lock names the registry"
    return "packages of the day and times of files" if name.startswith("image ") else "unknown"


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    main()
