"""The programs that a release calls: Git, the package builder, `tools/images.sh`, skopeo, buildah, Helm, syft, grype, cosign. Thin.

The Go programs are those that `tools/build.sh` pins. Whatever fails raises CannotRelease with the end of what the program said.
Registry credentials are those of the caller's Docker or Helm configuration. Each program gets the secrets of its own work, and no others.
"""

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import uuid
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import httpx
from tools.release.plan import CannotRelease, PublishedImage, ReleasePlan

ROOT = Path(__file__).parents[2]
BUILD_SECONDS = 4 * 3600.0
"""For an image in emulation, or the first build of a program."""
CALL_SECONDS = 900.0
"""For one call that moves an image of gigabytes at most."""
SAID_CHARACTERS = 1500
UNSIGNED = "-unsigned"
"""Behind the tag of an index, and the folder of a chart, that are pushed and not yet signed: nothing of a release refers to them."""
SIGNING = re.compile(r"COSIGN_")
SECRETS = re.compile(
    r"COSIGN_|.*(TOKEN|PASSW|SECRET|CREDENTIAL|PRIVATE_KEY|API_KEY)|(REGISTRY_AUTH_FILE|HELM_REGISTRY_CONFIG|DOCKER_CONFIG|DOCKER_AUTH_CONFIG)$",
    re.IGNORECASE,
)
"""Names of variables that open something."""
Access = Literal["nothing", "registry", "key"]


def environment_for(access: Access, environment: Mapping[str, str]) -> dict[str, str]:
    """What a program may see: `key` everything, `registry` all but the signer's, `nothing` no secret at all."""
    hidden = {"nothing": SECRETS, "registry": SIGNING, "key": None}[access]
    return {name: value for name, value in environment.items() if hidden is None or not hidden.match(name)}


def run(
    command: Iterable[str | Path],
    *,
    cwd: Path = ROOT,
    seconds: float = CALL_SECONDS,
    exact: bool = False,
    access: Access = "nothing",
    settings: Mapping[str, str] | None = None,
) -> str:
    """What a program prints, or its messages if it prints nothing and `exact` is not asked. Raises CannotRelease when it fails or takes too long.

    `settings` are environment variables beside those of this process that `access` leaves.
    """
    words = [str(word) for word in command]
    called = " ".join([Path(words[0]).name, *words[1:]])[:300]
    environment = environment_for(access, os.environ) | dict(settings or {})
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except FileNotFoundError:
        raise CannotRelease(f"{words[0]} is not here; on Debian: apt-get install -y {words[0]}") from None
    except subprocess.TimeoutExpired:
        raise CannotRelease(
            f"{called} did not end within {seconds:.0f} s; see what it waits for, and release again"
        ) from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-SAID_CHARACTERS:]
        raise CannotRelease(f"{called} ended with {done.returncode}: {said}")
    return done.stdout if exact or done.stdout.strip() else done.stderr


def tool(name: str) -> str:
    """Path of a pinned program, built unless it is."""
    return run([ROOT / "tools/build.sh", name], seconds=BUILD_SECONDS).strip().splitlines()[-1]


def git(*arguments: str) -> str:
    """What Git prints about this checkout."""
    return run(["git", *arguments]).strip()


def checkout(folder: Path) -> None:
    """The files of HEAD, and no others, in a new folder."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        archive, made = Path(scratch) / "source.tar", Path(scratch) / "source"
        made.mkdir()
        run(["git", "-c", "tar.umask=0022", "archive", "--output", archive, "HEAD"])
        run(["tar", "-xf", archive, "-C", made])
        made.rename(folder)


def python_packages(source: Path, folder: Path, epoch: str) -> dict[str, bytes]:
    """Wheel and sdist of a source folder by file name. The same source and epoch (seconds) give the same bytes."""
    run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=source, settings={"SOURCE_DATE_EPOCH": epoch})
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def build_image(plan: ReleasePlan, image: PublishedImage, architecture: str, source: Path) -> str:
    """Build one image from a source folder and push it. Returns the digest of its manifest."""
    pushed = source / ".cache" / "pushed"
    settings = {
        "ARCH": architecture,
        "VARIANT": image.variant,
        "TAG": plan.version,
        "REPOSITORY": f"{plan.registry}/shoal",
        "PUSH": str(pushed),
        "GIT_DIR": git("rev-parse", "--absolute-git-dir"),  # the image's label names the commit
    }
    program = source / "tools/images.sh"  # it pushes what it built: hence the registry
    run([program, image.role], cwd=source, seconds=BUILD_SECONDS, access="registry", settings=settings)
    return (pushed / f"{image.key}-{architecture}").read_text().strip()


class RegistryClient:
    """The registry of a release, through skopeo, buildah and Helm."""

    def __init__(self, plan: ReleasePlan) -> None:
        self.registry = plan.registry
        self.chart = plan.chart
        self.plain = ["--plain-http"] if plan.plain_http else []
        self.tls = ["--tls-verify=false"] if plan.plain_http else []

    def problem(self) -> str:
        """Why it does not answer, or empty."""
        host = self.registry.partition("/")[0]
        url = f"{'http' if self.plain else 'https'}://{host}/v2/"
        try:
            status = httpx.get(url, timeout=20.0).status_code
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__
        return "" if status in (200, 401) else f"GET {url} gives {status}"

    def tags(self, repository: str) -> list[str]:
        """Tags of a repository; none where there is no such repository."""
        try:
            said = run(["skopeo", "list-tags", *self.tls, f"docker://{repository}"], access="registry")
            return list(json.loads(said)["Tags"] or [])
        except CannotRelease as refused:
            # Registries and versions of skopeo say it in different ways.
            if any(said in str(refused).lower() for said in ("name unknown", "name_unknown", "404 (not found)")):
                return []
            raise

    def manifest(self, reference: str) -> bytes:
        """What the registry has under a reference, byte for byte."""
        command = ["skopeo", "inspect", "--raw", *self.tls, f"docker://{reference}"]
        return run(command, exact=True, access="registry").encode()

    def digest(self, reference: str) -> str | None:
        """What a tag names, or None."""
        repository, _, tag = reference.rpartition(":")
        return _digest(self.manifest(reference)) if tag in self.tags(repository) else None

    def bytes_of(self, reference: str) -> int:
        """Compressed size of an image: its configuration and layers."""
        found = json.loads(self.manifest(reference))
        return int(found["config"]["size"]) + sum(int(layer["size"]) for layer in found["layers"])

    def push_index(self, reference: str, digests: list[str]) -> str:
        """Push one index for the images of several architectures. Returns its digest. It has its reference once `name` gave it."""
        unsigned = f"{reference}{UNSIGNED}"
        local = f"localhost/shoal-index-{uuid.uuid4().hex}"
        run(["buildah", "manifest", "create", local])
        try:
            for digest in digests:
                image = f"docker://{reference.rpartition(':')[0]}@{digest}"
                run(["buildah", "manifest", "add", *self.tls, local, image], access="registry")
            push = ["buildah", "manifest", "push", "--all", *self.tls, local, f"docker://{unsigned}"]
            run(push, access="registry")
        finally:
            run(["buildah", "rmi", local])
        raw = self.manifest(unsigned)
        found = [each["digest"] for each in json.loads(raw).get("manifests", ())]
        if sorted(found) != sorted(digests):
            raise CannotRelease(f"{unsigned} in the registry is not what was pushed; does another release run?")
        return _digest(raw)

    def push_chart(self, archive: Path) -> str:
        """Push a packed chart. Returns the digest of its manifest. It has its version once `name` gave it: until then nobody installs it."""
        folder, _, name = self.chart.rpartition("/")
        beside = f"{folder}/{UNSIGNED.strip('-')}"
        said = run([tool("helm"), "push", archive, f"oci://{beside}", *self.plain], access="registry")
        found = [line.split()[-1] for line in said.splitlines() if line.startswith("Digest:")]
        if len(found) != 1:
            raise CannotRelease(f"helm push did not say one digest: {said[-SAID_CHARACTERS:]}")
        [digest] = found
        self._copy(f"{beside}/{name}@{digest}", f"{self.chart}@{digest}")
        return digest

    def name(self, reference: str, digest: str) -> None:
        """Give what the registry has under a digest the tag that people use. Raises CannotRelease for a tag that names something else already."""
        repository, _, tag = reference.rpartition(":")
        if tag not in self.tags(repository):
            self._copy(f"{repository}@{digest}", reference)
        if (found := _digest(self.manifest(reference))) != digest:
            raise CannotRelease(
                f"{reference} in the registry is {found}, not {digest}; a release is never replaced: raise the version"
            )

    def _copy(self, source: str, to: str) -> None:
        """Byte for byte, within the registry."""
        tls = ["--src-tls-verify=false", "--dest-tls-verify=false"] if self.tls else []
        run(
            ["skopeo", "copy", "--all", "--preserve-digests", *tls, f"docker://{source}", f"docker://{to}"],
            access="registry",
        )

    def pull_chart(self, version: str, folder: Path) -> Path:
        """The packed chart of a version, as the registry has it."""
        of = ["--version", version, "--destination", str(folder), *self.plain]
        run([tool("helm"), "pull", f"oci://{self.chart}", *of], access="registry")
        return folder / f"shoal-{version}.tgz"


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Signer:
    """Cosign with a key of a file. Nothing is sent to a transparency log: a private registry's names stay private."""

    def __init__(self, plan: ReleasePlan, key: str, folder: Path) -> None:
        self.program = tool("cosign")
        self.http = ["--allow-http-registry"] if plan.plain_http else []
        self.public = folder / "cosign.pub"
        self.public.write_text(run([self.program, "public-key", "--key", key], access="key"))
        self.key = key

    def sign(self, reference: str) -> None:
        """Sign what the registry has under a reference by digest, all its architectures too."""
        with self._services() as services:
            run(
                [self.program, "sign", "--yes", "--recursive", "--key", self.key, *services, *self.http, reference],
                access="key",
            )

    def sign_file(self, path: Path, bundle: Path) -> None:
        """Write the signature of a file as a bundle."""
        with self._services() as services:
            how = ["--yes", "--key", self.key, *services, "--bundle", str(bundle)]
            run([self.program, "sign-blob", *how, path], access="key")

    def verify(self, reference: str, former: Sequence[Path] = ()) -> None:
        """Raises CannotRelease unless the key signed it, or one of the former public keys."""
        refusals = []
        for public in (self.public, *former):
            how = ["--key", str(public), "--insecure-ignore-tlog=true", *self.http]
            try:
                run([self.program, "verify", *how, reference], access="registry")
            except CannotRelease as refused:
                refusals.append(str(refused))
            else:
                return
        raise CannotRelease("; ".join(refusals))

    def verify_file(self, path: Path, bundle: Path) -> None:
        """Raises CannotRelease unless the key signed the file."""
        run(
            [self.program, "verify-blob", "--key", self.public, "--insecure-ignore-tlog=true", "--bundle", bundle, path]
        )

    @contextlib.contextmanager
    def _services(self) -> Any:
        """The option that names no service to sign through."""
        with tempfile.TemporaryDirectory() as scratch:
            configuration = Path(scratch) / "services.json"
            run([self.program, "signing-config", "create", "--out", configuration])
            yield ["--signing-config", str(configuration)]


def bill_of_image(reference: str, to: Path) -> None:
    """What is in an image, as SPDX JSON. Two bills of one image differ in their time and their random name."""
    _syft([f"registry:{reference}"], to)


def bill_of_wheel(wheel: Path, version: str, to: Path) -> None:
    """What is in a wheel, as SPDX JSON."""
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(scratch)
        _syft([f"dir:{scratch}", "--source-name", "shoal-rl", "--source-version", version], to)


def _syft(arguments: list[str], to: Path) -> None:
    partial = to.with_suffix(".partial")
    run(
        [tool("syft"), "scan", *arguments, "--quiet", "-o", f"spdx-json={partial}"],
        access="registry" if arguments[0].startswith("registry:") else "nothing",
        settings={"SYFT_CHECK_FOR_APP_UPDATE": "false"},
    )
    if not json.loads(partial.read_text()).get("packages"):
        raise CannotRelease(f"syft found no package in {arguments[0]}")
    partial.rename(to)


def scanner_problem() -> str:
    """Why grype cannot scan here, or empty. Fetches its database where that is older than grype allows."""
    try:
        run([tool("grype"), "db", "update"], settings={"GRYPE_CHECK_FOR_APP_UPDATE": "false"})
    except CannotRelease as refused:
        return str(refused)[-400:].replace("\n", " ")
    return ""


def scan(bills: Mapping[str, Path]) -> tuple[dict[str, Any], str]:
    """Grype's report on each bill, and the day of its database."""
    program = tool("grype")
    reports = {
        subject: json.loads(
            run([program, f"sbom:{bill}", "-o", "json", "--quiet"], settings={"GRYPE_DB_AUTO_UPDATE": "false"})
        )
        for subject, bill in bills.items()
    }
    status = json.loads(run([program, "db", "status", "-o", "json"], settings={"GRYPE_DB_AUTO_UPDATE": "false"}))
    return reports, str(status.get("built", "an unknown day"))
