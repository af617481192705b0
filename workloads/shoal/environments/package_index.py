"""Wheels from a package index: that with a digest, for prepare, and a whole set with what it needs, for `shoal env add`.

In: names and versions, and an index's address (`PIP_INDEX_URL`). Out: wheels, or `BadPackages` in one line. An index answers by a page
of links (packaging.python.org, simple repository API), JSON or HTML. Nothing is built or run: archives of sources are passed over.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin, urlsplit

import httpx
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import parse_wheel_filename
from packaging.version import InvalidVersion, Version

from shoal.contracts.packages import MOST_PACKAGES, MOST_WHEEL_BYTES, EnvironmentPackage, plain_name
from shoal.environments.wheels import (
    BUILD_IT,
    PYTHON,
    BadPackages,
    Wheel,
    needs,
    needs_of_extras,
    own_packages,
    read_wheel,
    short,
)
from shoal.transport.bounded import UNENCODED, AnswerTooLong, body_of

INDEX_VARIABLE = "PIP_INDEX_URL"
JSON_PAGE = "application/vnd.pypi.simple.v1+json"
PAGE_BYTES = 64 << 20
"""PyPI's longest page has about 20 MB."""
TIMEOUT = httpx.Timeout(30.0, connect=10.0)
MOST_CANDIDATES = 20
"""Wheels of one name that are looked into, newest first, for one of pure Python that this Python takes."""


@dataclass(frozen=True)
class IndexLink:
    """A file that an index has; `sha256` is empty where the index does not say it."""

    name: str
    url: str
    sha256: str
    python: str
    yanked: bool


@dataclass(frozen=True)
class LockedWheel:
    """A wheel of a whole set. `url` is empty for one that was given as a file."""

    wheel: Wheel
    url: str

    @property
    def file_name(self) -> str:
        """As the format of wheels has it."""
        name, version = (each.replace("-", "_") for each in (plain_name(self.wheel.package), self.wheel.version))
        return f"{name}-{version}-py3-none-any.whl"


def index_url() -> str:
    """The index of this process. BadPackages when none is named: which one is asked for a name is a person's choice."""
    if not (url := os.environ.get(INDEX_VARIABLE)):
        raise BadPackages(
            f"no package index is named: set {INDEX_VARIABLE} (for prepare by prepare.podTemplate.env), or give --index, a file, a url or an object"
        )
    return url


def fetch(url: str, most: int, what: str, accept: str = "*/*") -> tuple[bytes, str, str]:
    """What is at an address, its media type, and the address that it came from in the end. BadPackages, as passing where the network is at fault."""
    shown = _shown(url)
    try:
        with (
            httpx.Client(follow_redirects=True, timeout=TIMEOUT) as client,
            client.stream("GET", url, headers={"Accept": accept, **UNENCODED}) as response,
        ):
            if response.status_code != httpx.codes.OK:
                if response.status_code == httpx.codes.NOT_FOUND:
                    raise BadPackages(f"{what}: there is nothing at {shown}: check the name, or the address")
                busy = response.status_code >= 500 or response.status_code in (408, 425, 429)
                raise BadPackages(f"{what}: {shown} answers with status {response.status_code}", passing=busy)
            return body_of(response, most), response.headers.get("content-type", ""), str(response.url)
    except AnswerTooLong:
        raise BadPackages(f"{what}: {shown} has more than {most} bytes, the most that is allowed") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise BadPackages(
            f"{what}: cannot get {shown}: {short(error)}; on a cluster allow its port in prepare.egressPorts",
            passing=True,
        ) from None


def wheel_with_digest(wanted: EnvironmentPackage) -> bytes:
    """The wheel of a version that has the digest, from the index. BadPackages."""
    what = f"package {wanted.package} {wanted.version}"
    try:
        version = Version(wanted.version)
    except InvalidVersion:
        raise BadPackages(f"{what}: {wanted.version!r} is not a version of a Python package, such as 1.2.0") from None
    links = [link for link in links_of(wanted.package, what) if _version_of(link) == version]
    found = [link for link in links if link.sha256 == wanted.sha256]
    if not found:
        others = "; ".join(f"{link.name} has {link.sha256[:12] or 'none'}" for link in links[:3])
        raise BadPackages(
            f"{what}: {_shown(index_url())} has no wheel of it with SHA-256 {wanted.sha256[:12]}...: {others or 'and no other wheel of this version'}"
        )
    return fetch(found[0].url, MOST_WHEEL_BYTES, what)[0]


def links_of(package: str, what: str) -> list[IndexLink]:
    """Wheels that the index has of a package. BadPackages when it knows none of that name."""
    page = f"{index_url().rstrip('/')}/{plain_name(package)}/"
    data, kind, where = fetch(page, PAGE_BYTES, what, f"{JSON_PAGE}, text/html;q=0.5")
    try:
        found = _of_json(data, where) if "json" in kind else _of_html(data.decode(errors="replace"), where)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadPackages(f"{what}: {_shown(page)} is not a page of an index: {short(error)}") from None
    return [link for link in found if link.name.endswith(".whl")]


def _of_json(data: bytes, where: str) -> list[IndexLink]:
    document = json.loads(data)
    return [
        IndexLink(
            str(each["filename"]),
            urljoin(where, str(each["url"])),
            str(each.get("hashes", {}).get("sha256", "")),
            str(each.get("requires-python") or ""),
            bool(each.get("yanked")),
        )
        for each in document["files"]
    ]


class _Page(HTMLParser):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.links: list[IndexLink] = []
        self._where = where

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag != "a" or not given.get("href"):
            return
        address, fragment = urldefrag(urljoin(self._where, given["href"] or ""))
        digest = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
        name = urlsplit(address).path.rpartition("/")[2]
        self.links.append(
            IndexLink(
                name.replace("%2B", "+"),
                address,
                digest[1] if digest else "",
                given.get("data-requires-python") or "",
                "data-yanked" in given,
            )
        )


def _of_html(text: str, where: str) -> list[IndexLink]:
    page = _Page(where)
    page.feed(text)
    return page.links


def resolve(wanted: Sequence[str], files: Mapping[str, bytes], say: Callable[[str], None]) -> list[LockedWheel]:
    """Wheels for some requirements, and for all that they need and Shoal does not have. BadPackages.

    `files`: wheels that were given as files, by their names. The newest version that fits is taken when a name first comes up, and stays: where two
    need different ones, the message says so and the person chooses.
    """
    chosen: dict[str, LockedWheel] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    for name, data in files.items():
        wheel = read_wheel(data, name)
        chosen[plain_name(wheel.package)] = LockedWheel(wheel, "")
    waiting = [(_requirement(text), "") for text in wanted]
    waiting += [
        (each, one.wheel.words) for one in chosen.values() for each in needs(one.wheel.requires, one.wheel.words)
    ]
    while waiting:
        needed, by = waiting.pop(0)
        name = plain_name(needed.name)
        who = f"{by} needs {needed}" if by else str(needed)
        if name in own_packages() and name not in chosen:
            if not needed.specifier.contains(own_packages()[name], prereleases=True):
                raise BadPackages(f"{who}, and Shoal has {name} {own_packages()[name]}, which no package may replace")
            if not by:
                say(f"{name} {own_packages()[name]} is Shoal's own: nothing to add")
            waiting += [(each, by or str(needed)) for each in needs_of_extras(needed, None, seen)]
            continue
        if name in chosen:
            version = chosen[name].wheel.version
            if not needed.specifier.contains(version, prereleases=True):
                raise BadPackages(
                    f"{who}, and {name} {version} was taken before: name a version that fits all, `{name}==...`"
                )
            waiting += [(each, chosen[name].wheel.words) for each in needs_of_extras(needed, chosen[name].wheel, seen)]
            continue
        if len(chosen) >= MOST_PACKAGES:
            raise BadPackages(f"{who}: with it there are more than {MOST_PACKAGES} packages, the most that is allowed")
        chosen[name] = one = _newest(needed, who)
        say(f"{one.wheel.package} {one.wheel.version}" + (f", which {by} needs" if by else ""))
        waiting += [(each, one.wheel.words) for each in needs(one.wheel.requires, one.wheel.words)]
        waiting += [(each, one.wheel.words) for each in needs_of_extras(needed, one.wheel, seen)]
    return list(chosen.values())


def _newest(needed: Requirement, who: str) -> LockedWheel:
    """The newest wheel of pure Python that fits; one before a release only where the requirement names such a version, as pip has it."""
    before_release = bool(needed.specifier.prereleases)
    fitting = [
        (version, link)
        for link in links_of(needed.name, who)
        if not link.yanked
        and (version := _version_of(link)) is not None
        and needed.specifier.contains(version, prereleases=before_release)
    ]
    fitting.sort(key=lambda pair: pair[0], reverse=True)
    refused = f"{who}: {_shown(index_url())} has no wheel of a version that fits; {BUILD_IT}"
    for version, link in fitting[:MOST_CANDIDATES]:
        if not link.name.endswith("-none-any.whl"):
            refused = f"{who}: {link.name} is for one platform; allowed: wheels of pure Python (py3-none-any)"
            continue
        if not _takes_this_python(link):
            refused = f"{who}: {link.name} needs Python {link.python:.100}; the images have {PYTHON}"
            continue
        data = fetch(link.url, MOST_WHEEL_BYTES, who)[0]
        if link.sha256 not in ("", found := hashlib.sha256(data).hexdigest()):
            raise BadPackages(f"{who}: {link.name} has SHA-256 {found}, and the index says {link.sha256:.64}")
        wheel = read_wheel(data, who)
        if plain_name(wheel.package) != plain_name(needed.name) or Version(wheel.version) != version:
            raise BadPackages(f"{who}: {link.name} holds {wheel.package} {wheel.version}")
        return LockedWheel(wheel, link.url)
    raise BadPackages(refused)


def _takes_this_python(link: IndexLink) -> bool:
    try:
        return PYTHON in SpecifierSet(link.python)
    except ValueError:  # no specifier, or a number of more digits than Python reads
        return False


def _requirement(text: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement:
        raise BadPackages(
            f"{text[:100]!r} cannot be read as a requirement; write NAME, NAME==VERSION or the path of a wheel"
        ) from None


def _version_of(link: IndexLink) -> Version | None:
    try:
        return parse_wheel_filename(link.name)[1]
    except ValueError:  # no name of a wheel, or a number of more digits than Python reads
        return None


def _shown(url: str) -> str:
    """An address without its user and password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that is none"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:200]
