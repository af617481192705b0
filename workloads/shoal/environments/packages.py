"""Packages that a run brings: fetched once by prepare, then had from the run by digest and laid out for the sandbox, on every machine alike.

In: `tasks.packages` of a manifest, or what prepare pinned of it. Out: a folder with their files, which `places` looks into before all others, or
`BadPackages` in one line. Nothing of a package is imported in this process, whatever its name. Called by prepare, workers, validators, previews.

Cost, at a run's size: a wheel of 1 MB takes 0.1 s to look at and unpack. 300 workers have it from the orchestrator once each, when they start.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from packaging.version import InvalidVersion, Version

from shoal.contracts import keys
from shoal.contracts.packages import MOST_WHEEL_BYTES, EnvironmentPackage, PinnedPackage, plain_name
from shoal.contracts.run import RunConfig
from shoal.environments.base import load
from shoal.environments.package_index import fetch, wheel_with_digest
from shoal.environments.places import LOCK_FILE, RUN_VARIABLE
from shoal.environments.wheels import BadPackages as BadPackages
from shoal.environments.wheels import Wheel, check_together, read_wheel, unpack
from shoal.storage import NotFound, Store, not_told, open_below_prefix

FIELD = "spec.tasks.packages"
UNFINISHED = "new-"
LEFT_SECONDS = 3600.0
"""Age of a folder whose process was killed. A living one takes seconds for the most bytes that are allowed."""


def prepared(config: RunConfig, store: Store, folder: Path) -> list[PinnedPackage]:
    """Fetch and check the packages of a run, put them into its store and lay them out below `folder`. BadPackages, with the field of the manifest."""
    wheels = fetched(config.tasks.packages, lambda key: open_below_prefix(config).get(key))
    pinned = [
        PinnedPackage(package=each.package, version=each.version, sha256=each.sha256, size_bytes=len(wheel.data))
        for each, wheel in zip(config.tasks.packages, wheels, strict=True)
    ]
    for each, wheel in zip(pinned, wheels, strict=True):
        store.put(keys.package(each.sha256), wheel.data)
    _lay_out(pinned, wheels, folder)
    return pinned


def fetched(packages: Sequence[EnvironmentPackage], read_object: Callable[[str], bytes]) -> list[Wheel]:
    """The wheels that a manifest names, from wherever it says, checked each and together. BadPackages, with the field of the manifest."""
    wheels = []
    for number, wanted in enumerate(packages):
        try:
            wheels.append(_checked(wanted, _bytes_of(wanted, read_object)))
        except BadPackages as error:
            raise BadPackages(f"{FIELD}[{number}]: {error}", passing=error.passing) from error
    try:
        check_together(wheels)
    except BadPackages as error:
        raise BadPackages(f"{FIELD}: {error}") from error
    return wheels


def install(packages: Sequence[PinnedPackage], read: Callable[[str], bytes], folder: Path) -> None:
    """Lay out what prepare pinned; `read` gives the wheel with a digest. Without packages nothing of another run's stays. BadPackages."""
    _forget()
    _lay_out(packages, [_checked(each, read(each.sha256)) for each in packages], folder)


def read_package(store: Store, sha256: str) -> bytes:
    """A wheel of the run from its store, or from a copy that an audit reads. BadPackages when it is not there."""
    key = keys.package(sha256)
    size = store.size(key)
    if size is None or size > MOST_WHEEL_BYTES:
        raise BadPackages(
            f"the run's store has {key} with {size or 'no'} bytes; prepare wrote {MOST_WHEEL_BYTES} at most"
        )
    return store.get(key)


@contextmanager
def laid_out(wheels: Sequence[Wheel]) -> Iterator[None]:
    """Packages in a folder that lasts as long as the block, for commands that try them."""
    before = os.environ.get(RUN_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="shoal-packages-") as folder:
        Path(folder).chmod(0o755)  # for the sandbox, where that is another user
        pinned = [
            PinnedPackage(
                package=each.package,
                version=each.version,
                sha256=hashlib.sha256(each.data).hexdigest(),
                size_bytes=len(each.data),
            )
            for each in wheels
        ]
        _lay_out(pinned, wheels, Path(folder))
        try:
            yield
        finally:
            _forget()
            if before is not None:
                os.environ[RUN_VARIABLE] = before


def read_folder(folder: Path) -> dict[str, Wheel]:
    """The wheels in a folder by their files' names, checked each and together. BadPackages."""
    names = sorted(path.name for path in folder.glob("*.whl"))
    if not names:
        raise BadPackages(f"{folder}: has no wheels; `shoal env add` puts them there")
    wheels = {name: read_wheel(read_file(folder / name), name) for name in names}
    first: dict[str, str] = {}
    for name, wheel in wheels.items():
        if (other := first.setdefault(plain_name(wheel.package), name)) != name:
            raise BadPackages(f"{folder}: {other} and {name} are both {wheel.package}: keep one")
    check_together(list(wheels.values()))
    return wheels


def remove_others(folder: Path, kept: Mapping[str, Wheel]) -> list[tuple[str, str]]:
    """Delete other wheels of the packages that are `kept` by their files' names; the names of these files, and of their packages."""
    packages = {plain_name(wheel.package): wheel.package for wheel in kept.values()}
    removed = []
    for path in sorted(folder.glob("*.whl")):
        package = packages.get(plain_name(path.name.partition("-")[0]))
        if package is not None and path.name not in kept:
            path.unlink()
            removed.append((path.name, package))
    return removed


@contextmanager
def of_manifest(config: RunConfig, objects: Store | None) -> Iterator[None]:
    """The packages of a run for a command on this machine; `objects` is what lies below `storage.prefix`, where the command was told. BadPackages."""

    def read_object(key: str) -> bytes:
        if objects is None:
            raise BadPackages(f"object: {key} {not_told(config)}")
        return objects.get(key)

    with laid_out(fetched(config.tasks.packages, read_object)):
        yield


def read_file(path: Path) -> bytes:
    """A wheel's file. BadPackages when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_WHEEL_BYTES + 1)
    except OSError as error:
        raise BadPackages(f"{path}: {error.strerror}; give the file of a wheel") from None


def _bytes_of(wanted: EnvironmentPackage, read_object: Callable[[str], bytes]) -> bytes:
    words = f"package {wanted.package} {wanted.version}"
    if wanted.object is not None:
        try:
            return read_object(wanted.object)
        except NotFound:
            raise BadPackages(f"{words}: there is no object {wanted.object} below storage.prefix: publish it") from None
    if wanted.path is not None:
        return read_file(Path(wanted.path))
    if wanted.url is not None:
        return fetch(wanted.url, MOST_WHEEL_BYTES, words)[0]
    return wheel_with_digest(wanted)


def _checked(wanted: EnvironmentPackage | PinnedPackage, data: bytes) -> Wheel:
    """The wheel, if it is the one that is wanted. The digest comes first: of other bytes nothing is looked at."""
    words = f"package {wanted.package} {wanted.version}"
    found = hashlib.sha256(data).hexdigest()
    if found != wanted.sha256:
        raise BadPackages(
            f"{words}: its wheel has SHA-256 {found}, and {wanted.sha256} is pinned: it was changed, or is another one"
        )
    wheel = read_wheel(data, words)
    try:
        same = Version(wheel.version) == Version(wanted.version)
    except InvalidVersion:
        same = False
    if plain_name(wheel.package) != plain_name(wanted.package) or not same:
        raise BadPackages(f"{words}: the wheel with this SHA-256 is {wheel.package} {wheel.version}")
    return wheel


def _forget() -> None:
    """No packages are laid out any more, and no environment of theirs is loaded."""
    load.cache_clear()
    os.environ.pop(RUN_VARIABLE, None)


def _lay_out(pinned: Sequence[PinnedPackage], wheels: Sequence[Wheel], folder: Path) -> None:
    """Write a new folder, named by what it holds, and let `places` find it. What a stopped process left there goes."""
    _forget()
    if not wheels:
        return
    lines = [f"{plain_name(each.package)}=={each.version} {each.sha256}" for each in pinned]
    target = folder / hashlib.sha256("\n".join(lines).encode()).hexdigest()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        shutil.rmtree(target, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder))
        try:
            unpack(wheels, made)
            (made / LOCK_FILE).write_text(json.dumps(lines))
            (made / LOCK_FILE).chmod(0o444)
            made.rename(target)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        raise BadPackages(
            f"packages cannot be laid out in {folder}: {error.strerror or error}; check its space and its rights",
            passing=True,
        ) from error
    os.environ[RUN_VARIABLE] = str(target)


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left half unpacked. Of a living one nothing is that old."""
    for each in folder.glob(f"{UNFINISHED}*"):
        with suppress(FileNotFoundError):  # another process was faster
            if time.time() - each.stat().st_mtime > LEFT_SECONDS:
                shutil.rmtree(each, ignore_errors=True)
