"""What a release consists of and what keeps it from being made; its lock of digests, checksums and notes. Pure: facts in, texts out.

`steps` gathers the facts and carries the plan out.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal_operator.children.site import MOST_DIGESTS

NUMBERS = re.compile(r"(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})")
"""No pre-releases: the chart, the package and the images would spell them in three ways."""
REGISTRY = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d{1,5})?(/[a-z0-9]+([._-][a-z0-9]+)*)*")
LOOPBACK = re.compile(r"(localhost|127(\.\d{1,3}){3})(:\d+)?(/|$)")
"""The only registries that are spoken to without TLS."""
ON_RUNTIME = ("trainer", "worker", "validator")
"""Roles with a variant for NVIDIA's GPUs."""
ARCHITECTURES = ("amd64", "arm64")
CHARTS = "charts"


@dataclass(frozen=True)
class PublishedImage:
    """One tag of a release: an index of the images of one role and variant for each architecture."""

    role: str
    variant: str = "cpu"
    architectures: tuple[str, ...] = ARCHITECTURES

    @property
    def key(self) -> str:
        """What `--only` calls it: `operator`, `trainer-cuda`."""
        return self.role if self.variant == "cpu" else f"{self.role}-{self.variant}"

    def name(self, version: str) -> str:
        """Repository below the registry, and tag, as the operator and the chart name it."""
        return f"shoal/{self.role}:{version}" + ("" if self.variant == "cpu" else f"-{self.variant}")


@dataclass(frozen=True)
class ReleasePlan:
    """What is made, and what a whole release has that this one leaves out."""

    version: str
    registry: str
    images: tuple[PublishedImage, ...]
    left_out: tuple[str, ...] = ()

    @property
    def plain_http(self) -> bool:
        """Whether the registry is on this machine."""
        return bool(LOOPBACK.match(self.registry))

    @property
    def chart(self) -> str:
        """Reference of the chart in the registry, without `oci://` and tag."""
        return f"{self.registry}/{CHARTS}/shoal"

    def at(self, image: PublishedImage) -> str:
        """Full reference of an image by tag."""
        return f"{self.registry}/{image.name(self.version)}"


@dataclass(frozen=True)
class Facts:
    """What the checkout and the registry are like before a release."""

    versions: Mapping[str, str]
    """The version that each place of the checkout states."""
    changelog: str
    changed: str
    """What `git status --porcelain` prints."""
    head: str
    tagged: str | None
    """The commit that the tag v<version> names, if there is one."""
    key: str
    """Path of cosign's private key, or empty."""
    key_exists: bool
    password_given: bool
    registry_problem: str
    """Why the registry does not answer, or empty."""
    published: bool
    """Whether the registry has a chart of this version that this folder did not push."""
    scan: str
    """Why there is to be no scan, or empty."""
    scanner_problem: str
    """Why the scanner cannot work, or empty."""
    builds_only: bool = False
    """Whether nothing is to be signed now."""


class CannotRelease(Exception):
    """The release stops here; the text says what is wrong and what to do."""


def every_image(roles: Iterable[str]) -> tuple[PublishedImage, ...]:
    """All that a whole release has, of the roles that have a Dockerfile. `runtime` is a base and is not published."""
    made = [PublishedImage(role) for role in sorted(roles) if role != "runtime"]
    return (*made, *(PublishedImage(role, "cuda", ("amd64",)) for role in ON_RUNTIME if role in roles))


def make_plan(
    version: str, registry: str, roles: Iterable[str], only: Iterable[str] = (), architectures: Iterable[str] = ()
) -> ReleasePlan:
    """The plan of a release. Raises CannotRelease for names and numbers that mean nothing."""
    if not NUMBERS.fullmatch(version):
        raise CannotRelease(f"VERSION is {version!r}; it must be three numbers such as 1.2.3")
    if not REGISTRY.fullmatch(registry):
        raise CannotRelease(
            f"REGISTRY is {registry!r}; it must be a host, such as registry.example.org/project or 127.0.0.1:5000"
        )
    whole = every_image(set(roles))
    known = [image.key for image in whole]
    wanted = set(only) or set(known)
    builds = tuple(architectures) or ARCHITECTURES
    for name, allowed in ((wanted - set(known), known), (set(builds) - set(ARCHITECTURES), list(ARCHITECTURES))):
        if name:
            raise CannotRelease(f"there is no {', '.join(sorted(name))} to release; there are: {', '.join(allowed)}")
    images, left_out = [], []
    for image in whole:
        made = tuple(each for each in image.architectures if each in builds and image.key in wanted)
        left_out += [f"{image.key} ({each})" for each in image.architectures if each not in made]
        if made:
            images.append(PublishedImage(image.role, image.variant, made))
    return ReleasePlan(version, registry, tuple(images), tuple(left_out))


def section(changelog: str, version: str) -> tuple[str, str] | None:
    """What follows the version in its heading (a date, or Unreleased), and the section's text; None when there is none."""
    found = re.search(rf"^## \[{re.escape(version)}\] - (.+)\n", changelog, re.M)
    if found is None:
        return None
    rest = changelog[found.end() :]
    end = re.search(r"^## \[|^\[[^\]]+\]: ", rest, re.M)
    return found[1].strip(), rest[: end.start() if end else None].strip()


def problems(plan: ReleasePlan, facts: Facts) -> list[str]:
    """Everything that keeps the release from being made, each with the way out. Empty: it can begin."""
    found = [
        f"{place} says {said}; set it to {plan.version} and commit that"
        for place, said in facts.versions.items()
        if said != plan.version
    ]
    entry = section(facts.changelog, plan.version)
    if entry is None:
        found.append(f"CHANGELOG.md has no section [{plan.version}]; write one")
    elif not re.fullmatch(r"\d{4}-\d{2}-\d{2}", entry[0]):
        found.append(
            f"CHANGELOG.md says {entry[0]!r} of {plan.version}; put the day there, such as 2026-12-01, and commit that"
        )
    elif not entry[1]:
        found.append(f"CHANGELOG.md says nothing of {plan.version}; write what changed")
    if facts.changed:
        first = facts.changed.splitlines()[0].strip()
        found.append(f"the checkout has changes that no commit has ({first} first); commit or remove them")
    if facts.tagged not in (None, facts.head):
        found.append(f"the tag v{plan.version} names {str(facts.tagged)[:12]}, not this commit; raise the version")
    if facts.builds_only:
        pass
    elif not facts.key:
        found.append("no key was given to sign with; make one with `cosign generate-key-pair`, and give KEY=cosign.key")
    elif not facts.key_exists:
        found.append(f"there is no key {facts.key}; make one with `cosign generate-key-pair`")
    if not facts.builds_only and not facts.password_given:
        found.append("COSIGN_PASSWORD is not set; it must hold the password of the key, and may be empty")
    if facts.registry_problem:
        found.append(f"the registry {plan.registry} does not answer: {facts.registry_problem}")
    if facts.published:
        found.append(
            f"{plan.registry} has a chart {plan.version} already; a release is never replaced: raise the version"
        )
    if facts.scanner_problem and not facts.scan:
        found.append(
            f"the scan for vulnerabilities cannot run: {facts.scanner_problem}; `--without-scan REASON` releases without it, and the notes say so"
        )
    return found


def lock(plan: ReleasePlan, digests: Mapping[str, str], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """The chart's `files/images.lock.json`: its registry, and digests by image. Those of an earlier release's lock stay: runs may still be of it.

    Costs about 100 bytes an image and release, in the operator's arguments too. Raises CannotRelease when the earlier lock has another digest for one
    of this release's images, and for more than operators take.
    """
    require_room(plan, earlier)
    digest = re.compile(r"sha256:[0-9a-f]{64}")
    kept = dict(earlier.get("digests") or {})
    for name, said in [*kept.items(), *digests.items()]:
        if not digest.fullmatch(str(said)):
            raise CannotRelease(f"the digest of {name} is {said!r}, not sha256 and 64 hexadecimal digits")
    for name, said in digests.items():
        if kept.get(name, said) != said:
            raise CannotRelease(f"the earlier release's lock has {kept[name]} for {name}, which is {said} now")
    return {"registry": plan.registry, "digests": dict(sorted({**kept, **digests}.items()))}


def require_room(plan: ReleasePlan, earlier: Mapping[str, Any]) -> None:
    """Raises CannotRelease when the lock after `earlier` would hold more digests than operators take: each of them would end at its start."""
    count = len({*(earlier.get("digests") or {}), *(image.name(plan.version) for image in plan.images)})
    if count > MOST_DIGESTS:
        raise CannotRelease(
            f"the lock would have {count} digests, and the operator takes {MOST_DIGESTS} at most; change the limit in children/site.py first,"
            " and how the chart hands them over"
        )


def earlier_versions(tags: Iterable[str], version: str) -> list[str]:
    """The releases before this one among a chart's tags, latest first."""

    def numbers(tag: str) -> tuple[int, ...]:
        return tuple(map(int, tag.split(".")))

    before = [tag for tag in tags if NUMBERS.fullmatch(tag) and numbers(tag) < numbers(version)]
    return sorted(before, key=numbers, reverse=True)


def checksums(files: Mapping[str, bytes]) -> str:
    """SHA256SUMS as `sha256sum --check` reads it, in order of names."""
    return "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))


def notes(plan: ReleasePlan, changelog: str, lock_made: Mapping[str, Any], chart_digest: str, scan: str) -> str:
    """The release's notes as Markdown: the changelog's section, what was published, what was not, and how to check it. `scan` is one sentence."""
    entry = section(changelog, plan.version)
    text = entry[1] if entry else ""
    rows = [
        f"| `{plan.at(image)}` | {', '.join(image.architectures)} | `{lock_made['digests'][image.name(plan.version)]}` |"
        for image in plan.images
    ]
    missing = (
        ["", f"Not part of this release: {', '.join(plan.left_out)}. Build these with `make images`."]
        if plan.left_out
        else []
    )
    plain = " --plain-http" if plan.plain_http else ""
    http = " --allow-http-registry" if plan.plain_http else ""
    verify = f"cosign verify --key cosign.pub --insecure-ignore-tlog=true{http}"
    return "\n".join(
        [
            f"# Shoal {plan.version}",
            "",
            text,
            "",
            "## Images",
            "",
            "| image | for | digest |",
            "|---|---|---|",
            *rows,
            *missing,
            "",
            "## Install",
            "",
            "```sh",
            f"helm install shoal oci://{plan.chart} --version {plan.version}{plain}",
            "```",
            "",
            "The chart pulls these images by digest.",
            "",
            "## Vulnerabilities",
            "",
            scan,
            "",
            "## Check",
            "",
            "`cosign.pub` must be the key that you already trust; one that came with the files proves nothing.",
            "",
            "```sh",
            "sha256sum --check --ignore-missing SHA256SUMS",
            "cosign verify-blob --key cosign.pub --insecure-ignore-tlog=true --bundle SHA256SUMS.sigstore.json SHA256SUMS",
            f"{verify} {plan.chart}@{chart_digest}",
            *(
                f"{verify} {plan.registry}/{image.name(plan.version).partition(':')[0]}@{lock_made['digests'][image.name(plan.version)]}"
                for image in plan.images
            ),
            "```",
            "",
        ]
    )


def as_json(value: Any) -> str:
    """One spelling for every JSON file of a release."""
    return json.dumps(value, indent=2, sort_keys=True) + "\n"
