"""Makes a release, step after step, in a folder that remembers what is done: a release that was stopped goes on where it was.

`build` needs no key. What it pushes are images of single architectures, as `role:1.2.3-amd64`. `make` pushes indexes and the chart without the names
that people use, signs each, and names it then; the chart, which alone names the others, comes last. A whole release of nine roles costs 15 minutes on
two cores with all layers there, and 2 GB of disk.
"""

import hashlib
import json
import os
import re
import shutil
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from tools.release import plan as planned
from tools.release import policy, programs
from tools.release.plan import CannotRelease, Facts, ReleasePlan

ROOT = programs.ROOT
LOCK = "files/images.lock.json"
SUMS, BUNDLE = "SHA256SUMS", "SHA256SUMS.sigstore.json"


class ReleaseFolder:
    """Where one release is made: `source` (a clean checkout), `files` (what is handed out) and `done.json` (results of steps that are over)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "source"
        self.files = folder / "files"
        self._record = folder / "done.json"
        self.done: dict[str, Any] = json.loads(self._record.read_text()) if self._record.exists() else {}

    def begin(self, **what: Any) -> None:
        """Open it for this release. Raises CannotRelease when it holds another one."""
        held = self.done.get("begin", what)
        if held != what:
            wrong = [
                f"{name} {held.get(name)!r}, now {value!r}" for name, value in what.items() if held.get(name) != value
            ]
            raise CannotRelease(
                f"{self.folder} holds a release with {'; '.join(wrong)}; remove the folder to begin again"
            )
        self.files.mkdir(parents=True, exist_ok=True)
        self.once("begin", lambda: what)

    def once(self, step: str, make: Callable[..., Any], *arguments: Any) -> Any:
        """The step's result, made now unless it was made before."""
        if step not in self.done:
            made = make(*arguments)
            self.done[step] = made
            partial = self._record.with_suffix(".partial")
            partial.write_text(planned.as_json(self.done))
            partial.replace(self._record)
        return self.done[step]


class BuiltRelease(NamedTuple):
    """What a release has before anything of it is signed."""

    images: dict[str, dict[str, Any]]
    """By image and architecture: `digest`, `reference` and `bytes`."""
    scanned: str
    """The sentence about the scan for the notes."""


def roles() -> list[str]:
    """Those that have a Dockerfile."""
    return sorted(path.parent.name for path in (ROOT / "images").glob("*/Dockerfile"))


def stated_versions() -> dict[str, str]:
    """The version that each place of the checkout states."""
    chart = yaml.safe_load((ROOT / "charts/shoal/Chart.yaml").read_text())
    names = (ROOT / "operator/shoal_operator/children/names.py").read_text()
    found = re.search(r'^SOFTWARE_VERSION = "(.*)"$', names, re.M)
    return {
        "pyproject.toml": tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"],
        "charts/shoal/Chart.yaml (version)": chart["version"],
        "charts/shoal/Chart.yaml (appVersion)": chart["appVersion"],
        "operator/shoal_operator/children/names.py": found[1] if found else "nothing",
    }


def facts(plan: ReleasePlan, key: str, reason: str, work: ReleaseFolder, builds_only: bool = False) -> Facts:
    """Ask the checkout, the registry and the scanner."""
    registry = programs.RegistryClient(plan)
    trouble = registry.problem()
    tagged = programs.git("for-each-ref", "--format=%(objectname) %(*objectname)", f"refs/tags/v{plan.version}").split()
    return Facts(
        versions=stated_versions(),
        changelog=(ROOT / "CHANGELOG.md").read_text(),
        changed=programs.git("status", "--porcelain"),
        head=programs.git("rev-parse", "HEAD"),
        tagged=tagged[-1] if tagged else None,
        key=key,
        key_exists=Path(key).is_file(),
        password_given="COSIGN_PASSWORD" in os.environ,
        registry_problem=trouble,
        published=not trouble and _published_by_others(plan, registry, work),
        scan=reason,
        scanner_problem="" if reason else programs.scanner_problem(),
        builds_only=builds_only,
    )


def _published_by_others(plan: ReleasePlan, registry: programs.RegistryClient, work: ReleaseFolder) -> bool:
    """Whether the registry's chart of this version is not the one that this folder packed."""
    if registry.digest(f"{plan.chart}:{plan.version}") is None:
        return False
    ours = work.files / f"shoal-{plan.version}.tgz"
    with tempfile.TemporaryDirectory() as scratch:
        theirs = registry.pull_chart(plan.version, Path(scratch)).read_bytes()
    return not ours.is_file() or ours.read_bytes() != theirs


def _begin(plan: ReleasePlan, work: ReleaseFolder) -> str:
    """Open the folder for this release of HEAD. Returns the time of HEAD, in seconds since 1970."""
    head, epoch = programs.git("log", "-1", "--format=%H %ct").split()
    images = [[image.key, *image.architectures] for image in plan.images]
    work.begin(version=plan.version, commit=head, registry=plan.registry, images=images)
    return epoch


def build(plan: ReleasePlan, reason: str, work: ReleaseFolder, say: Callable[[str], None]) -> BuiltRelease:
    """Build all of the release and look through it, without its key. `reason`: why nothing is scanned."""
    epoch = _begin(plan, work)
    registry = programs.RegistryClient(plan)
    if not work.source.exists():
        programs.checkout(work.source)

    say("building wheel and sdist, twice")
    packages = work.once("packages", _packages, work, epoch)

    built: dict[str, dict[str, Any]] = {}
    for image in plan.images:
        for architecture in image.architectures:
            subject = f"{image.key}-{architecture}"
            say(f"building and pushing {subject}")
            digest = work.once(f"image {subject}", programs.build_image, plan, image, architecture, work.source)
            reference = f"{plan.registry}/shoal/{image.role}@{digest}"
            size = work.once(f"size {subject}", registry.bytes_of, reference)
            built[subject] = {"digest": digest, "reference": reference, "bytes": size}

    bills = {subject: work.files / f"{subject}.spdx.json" for subject in built}
    for subject, bill in bills.items():
        say(f"listing what is in {subject}")
        work.once(f"bill {subject}", programs.bill_of_image, built[subject]["reference"], bill)
    [wheel] = [name for name in packages if name.endswith(".whl")]
    bills[wheel] = work.files / f"{wheel.removesuffix('.whl')}.spdx.json"
    work.once("bill wheel", programs.bill_of_wheel, work.files / wheel, plan.version, bills[wheel])

    say("scanning nothing, as asked" if reason else "scanning for known vulnerabilities")
    scanned = work.once(f"scan {reason}".strip(), _scan, bills, reason)

    for program in ("helm", "cosign"):  # what signs builds nothing
        programs.tool(program)
    return BuiltRelease(built, scanned)


def make(
    plan: ReleasePlan,
    key: str,
    reason: str,
    work: ReleaseFolder,
    say: Callable[[str], None],
    former: Sequence[Path] = (),
) -> dict[str, Any]:
    """Make the release, publish it and verify what was published. Returns digests and sizes.

    `reason`: why nothing is scanned. `former`: public keys that earlier releases were signed with. What `build` made before is not made again.
    """
    _begin(plan, work)
    registry = programs.RegistryClient(plan)
    signer = programs.Signer(plan, key, work.files)
    before = work.once("lock before", lock_before, plan, registry, signer, former, say)
    planned.require_room(plan, before)
    built, scanned = build(plan, reason, work, say)

    say("signing and publishing the images")
    references, digests = [], {}
    for image in plan.images:
        parts = [built[f"{image.key}-{each}"]["digest"] for each in image.architectures]
        digest = work.once(f"index {image.key}", registry.push_index, plan.at(image), parts)
        digests[image.name(plan.version)] = digest
        references.append(f"{plan.registry}/shoal/{image.role}@{digest}")
        _sign_and_name(references[-1], plan.at(image), work, registry, signer)

    say("packing, signing and publishing the chart")
    work.once("chart packed", pack_chart, plan, digests, before, work)
    chart = work.once("chart", registry.push_chart, work.files / f"shoal-{plan.version}.tgz")
    references.append(f"{plan.chart}@{chart}")
    _sign_and_name(references[-1], f"{plan.chart}:{plan.version}", work, registry, signer)

    made = json.loads((work.files / "images.lock.json").read_text())
    text = planned.notes(plan, (ROOT / "CHANGELOG.md").read_text(), made, chart, scanned)
    (work.files / "NOTES.md").write_text(text)
    _sum_up(work, signer)
    say("verifying what the registry and the folder have")
    verify(plan, work, registry, signer, references)
    return {"chart": chart, "images": built, "lock": made}


def _sign_and_name(
    reference: str, name: str, work: ReleaseFolder, registry: programs.RegistryClient, signer: programs.Signer
) -> None:
    """Sign what the registry has under a digest, and only then give it the tag that people use."""
    work.once(f"signature {reference}", signer.sign, reference)
    work.once(f"name {name}", registry.name, name, reference.rpartition("@")[2])


def verify(
    plan: ReleasePlan,
    work: ReleaseFolder,
    registry: programs.RegistryClient,
    signer: programs.Signer,
    references: list[str],
) -> None:
    """Check the published release as a user can: signatures, sums, tags, and the chart's lock against the registry. Raises CannotRelease."""
    for reference in references:
        signer.verify(reference)
    signer.verify_file(work.files / SUMS, work.files / BUNDLE)
    if (work.files / SUMS).read_text() != planned.checksums(_handed_out(work)):
        raise CannotRelease(f"files in {work.files} are not those of {SUMS}")
    with tempfile.TemporaryDirectory() as scratch:
        pulled = registry.pull_chart(plan.version, Path(scratch))
        if pulled.read_bytes() != (work.files / pulled.name).read_bytes():
            raise CannotRelease(f"the chart that {plan.chart} has is not the one that was packed")
        locked = lock_of(pulled)
    for image in plan.images:
        name = image.name(plan.version)
        if (found := registry.digest(plan.at(image))) != locked["digests"][name]:
            raise CannotRelease(f"the registry has {found} for {name}, the chart's lock {locked['digests'][name]}")


def _packages(work: ReleaseFolder, epoch: str) -> dict[str, str]:
    """SHA-256 of wheel and sdist by name. Raises CannotRelease when two builds differ."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        made = programs.python_packages(work.source, Path(first), epoch)
        again = programs.python_packages(work.source, Path(second), epoch)
    if made != again:
        raise CannotRelease("two builds of wheel and sdist from the same source differ")
    for name, content in made.items():
        (work.files / name).write_bytes(content)
    return {name: hashlib.sha256(content).hexdigest() for name, content in made.items()}


def _scan(bills: dict[str, Path], reason: str) -> str:
    """The sentence for the notes. Raises CannotRelease for what the policy refuses."""
    if reason:
        return policy.statement(reason, "", [])
    excepted = policy.exemptions(json.loads((Path(__file__).parent / "exceptions.json").read_text()))
    reports, database = programs.scan(bills)
    refused = policy.refusals(reports, excepted, datetime.now(UTC).date())
    if refused:
        raise CannotRelease(f"{len(refused)} vulnerabilities that the policy refuses:\n" + "\n".join(refused))
    return policy.statement("", database, excepted)


def lock_before(
    plan: ReleasePlan,
    registry: programs.RegistryClient,
    signer: programs.Signer,
    former: Sequence[Path],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The lock of the newest earlier chart that this key or a former one signed; empty for the first release. Says which charts are passed over.

    Raises CannotRelease when there are earlier charts and none is signed so.
    """
    earlier = planned.earlier_versions(registry.tags(plan.chart), plan.version)
    for version in earlier:
        reference = f"{plan.chart}@{registry.digest(f'{plan.chart}:{version}')}"
        try:
            signer.verify(reference, former)
        except CannotRelease as refused:
            say(f"chart {version} is passed over, and digests that it alone has: {refused}")
            continue
        with tempfile.TemporaryDirectory() as scratch:
            return lock_of(registry.pull_chart(version, Path(scratch)))
    if earlier:
        raise CannotRelease(
            f"no earlier chart in {plan.chart} is signed by this key: {', '.join(earlier)}; give the public key that signed one with `--former-key`,"
            " or take charts that nobody signed out of the registry"
        )
    return {}


def pack_chart(plan: ReleasePlan, digests: dict[str, str], before: dict[str, Any], work: ReleaseFolder) -> None:
    """Pack the chart of the release's source with its lock, and write the lock beside it. Helm puts the time into both: no two are the same bytes."""
    text = planned.as_json(planned.lock(plan, digests, before))
    with tempfile.TemporaryDirectory() as scratch:
        chart = Path(shutil.copytree(work.source / "charts" / "shoal", Path(scratch) / "shoal"))
        (chart / LOCK).write_text(text)
        programs.run([programs.tool("helm"), "package", chart, "--destination", work.files])
    (work.files / "images.lock.json").write_text(text)


def lock_of(chart: Path) -> dict[str, Any]:
    """The lock inside a packed chart."""
    with tarfile.open(chart) as archive:
        try:
            member = archive.extractfile(f"shoal/{LOCK}")
        except KeyError:
            member = None
        if member is None:
            raise CannotRelease(f"{chart.name} has no {LOCK}; it was not made by a release")
        return dict(json.load(member))


def _handed_out(work: ReleaseFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in work.files.iterdir() if path.name not in (SUMS, BUNDLE)}


def _sum_up(work: ReleaseFolder, signer: programs.Signer) -> None:
    """Write and sign the checksums, unless those that are there are of these files."""
    sums, bundle = work.files / SUMS, work.files / BUNDLE
    text = planned.checksums(_handed_out(work))
    if bundle.exists() and sums.read_text() == text:
        return
    bundle.unlink(missing_ok=True)
    sums.write_text(text)
    signer.sign_file(sums, bundle)
